"""Modules by the kernel's own index, and what the files say."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _modules_index

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("updates/dkms/nvidia.ko: kernel/drivers/gpu/drm/drm.ko.xz", "nvidia"),
        ("updates/dkms/nvidia-current.ko:", "nvidia-current"),
        ("updates/dkms/nvidia-current-open.ko.xz:", "nvidia-current-open"),
        ("updates/dkms/nvidia-srv.ko.zst: ", "nvidia-srv"),
        ("updates/dkms/nvidia-tesla-470.ko:", "nvidia-tesla-470"),
        ("kernel/nvidia-535srv/nvidia.ko:", "nvidia"),
        ("extra/nvidia/nvidia.ko.gz:", "nvidia"),
    ],
)
def test_krn_02_every_packaging_s_name_is_known(line, name):
    assert [entry["name"] for entry in _modules_index.parse_index(line + "\n")] == [name]


@pytest.mark.parametrize(
    "path",
    [
        "updates/dkms/nvidia-uvm.ko",
        "updates/dkms/nvidia-current-drm.ko",
        "updates/dkms/nvidia-current-open-peermem.ko",
        "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko",
        "kernel/drivers/i2c/busses/i2c-nvidia-gpu.ko",
        "kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko",
        "kernel/drivers/gpu/drm/nouveau/nouveau.ko",
    ],
)
def test_companions_and_other_drivers_are_not_the_module(path):
    # A dependency on the main module stands behind the colon and must not count either.
    assert _modules_index.parse_index(path + ": updates/dkms/nvidia.ko\n") == []


def kernel(root, release, index, files):
    base = root / "lib/modules" / release
    base.mkdir(parents=True)
    (base / "modules.dep").write_text(index)
    for name in files:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("")


def test_krn_01_the_index_decides_and_a_file_it_does_not_know_is_told_apart(tmp_path):
    kernel(tmp_path, "6.1.0-41-amd64", "updates/dkms/nvidia-current.ko:\n", ["updates/dkms/nvidia-current.ko"])
    kernel(tmp_path, "6.1.0-42-amd64", "kernel/fs/ext4/ext4.ko:\n", ["updates/dkms/nvidia-current.ko"])
    kernel(tmp_path, "6.1.0-43-amd64", "updates/dkms/nvidia-current.ko:\n", [])
    seen = {
        release: [(entry["indexed"], entry["exists"]) for entry in _modules_index.indexed(release, str(tmp_path))]
        for release in ("6.1.0-41-amd64", "6.1.0-42-amd64", "6.1.0-43-amd64", "6.1.0-44-amd64")
    }
    assert seen == {
        "6.1.0-41-amd64": [(True, True)],
        "6.1.0-42-amd64": [(False, True)],
        "6.1.0-43-amd64": [(True, False)],
        "6.1.0-44-amd64": [],
    }


def test_one_modinfo_call_describes_the_modules_of_all_kernels(fake_runner):
    modules = {
        "6.1.0-41-amd64": [{"path": "/lib/modules/6.1.0-41-amd64/updates/dkms/nvidia-current.ko", "exists": True}],
        "6.12.57+deb12-amd64": [
            {"path": "/lib/modules/6.12.57+deb12-amd64/updates/dkms/nvidia-current-open.ko.xz", "exists": True},
            {"path": "/lib/modules/6.12.57+deb12-amd64/updates/dkms/nvidia.ko", "exists": False},
        ],
    }
    runner = fake_runner({"modinfo": (FIXTURES / "modinfo/two-kernels.txt").read_text()})
    _modules_index.describe(runner, modules)
    assert len(runner.calls) == 1
    first = modules["6.1.0-41-amd64"][0]
    assert (first["version"], first["signer"], first["flavour"], first["fits"]) == (
        "535.183.06",
        "DKMS module signing key",
        "proprietary",
        True,
    )
    second, missing = modules["6.12.57+deb12-amd64"]
    assert (second["version"], second["signer"], second["flavour"], second["fits"]) == ("550.163.01", "", "open", True)
    assert (missing["version"], missing["fits"]) == ("", None)


def test_a_module_built_for_another_kernel_does_not_fit(fake_runner):
    path = "/lib/modules/6.1.0-42-amd64/updates/dkms/nvidia.ko"
    modules = {"6.1.0-42-amd64": [{"path": path, "exists": True}]}
    answer = f"filename:       {path}\nversion:        535.183.06\nvermagic:       6.1.0-41-amd64 SMP preempt\n"
    _modules_index.describe(fake_runner({"modinfo": answer}), modules)
    assert modules["6.1.0-42-amd64"][0]["fits"] is False


def test_no_module_no_call(fake_runner):
    runner = fake_runner()
    _modules_index.describe(runner, {"6.1.0-41-amd64": []})
    assert runner.calls == []
