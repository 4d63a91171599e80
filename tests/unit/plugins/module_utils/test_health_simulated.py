"""The checks on what really comes through nvidia-ml-py: healthy simulated cards of every model have nothing bad."""

from __future__ import annotations

import dataclasses
import sys

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_sysfs, _nvml_child
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _pci as pci_devices
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import BAD, OK

from lab import nvml_build

VERSION = "580.105.08"

MODELS = ("a10", "a100", "a100-pcie", "a30", "a40", "b200", "gb200", "h100-nvl", "h100-pcie", "h100-sxm", "h200-sxm")
MODELS += ("l4", "l40s", "t4", "v100")


@pytest.fixture
def read(tmp_path, nvml_library, monkeypatch):
    """Return read(model): the snapshot of a node with two simulated cards; NVML and PCI come through the real code."""

    def run(model, *changes, version=VERSION):
        library = nvml_library(version)
        nvml_build.simgpu(tmp_path / "state", "init", "--gpus", "2", "--model", model)
        for change in changes:
            nvml_build.simgpu(tmp_path / "state", "set", *change.split())
        nvml_build.simgpu(tmp_path / "state", "sysfs", "--root", str(tmp_path), "--driver", "nvidia")
        for name, value in nvml_build.environment(tmp_path, library, version).items():
            monkeypatch.setenv(name, value)
        nvml, gpus = _nvml_child.probe(sys.executable, 60.0)
        root = str(tmp_path)
        node = make.snapshot(gpus)
        software = dataclasses.replace(
            node.software, module_version=version, library_version=version, wanted_version=version
        )
        return dataclasses.replace(
            node,
            nvml=nvml,
            pci=tuple(_gpu_sysfs.pci_gpus(root)),
            nvswitches=tuple(device.address for device in pci_devices.nvswitches(root)),
            software=software,
        )

    return run


@pytest.mark.parametrize("model", MODELS)
def test_a_healthy_card_of_each_model_has_nothing_bad(read, model):
    node = read(model, "gpu=0 persistence_mode=1", "gpu=1 persistence_mode=1")
    assert node.nvml.state == "ok" and len(node.gpus) == 2
    first, kept = make.judge(node, wanted=make.profiles())
    assert not first.bad, [(item.check, item.value, item.hint) for item in first.bad]
    later = dataclasses.replace(node, taken_at=node.taken_at + 60, uptime_s=node.uptime_s + 60)
    verdict = make.judge(later, kept, wanted=make.profiles())[0]
    assert (verdict.status, verdict.may_serve) == (OK, True), [
        (item.check, item.status, item.hint) for item in verdict.findings if item.status in ("warn", *BAD)
    ]
    assert {item.status for item in make.only(verdict, "gpu.profile")} == {OK}


def test_a_model_without_a_profile_warns(read):
    verdict = make.judge(read("p40"), wanted=make.profiles())[0]
    assert {item.status for item in make.only(verdict, "gpu.profile")} == {"warn"}
    assert verdict.may_serve


def test_an_old_driver_has_fewer_answers_and_no_failure_for_that(read):
    verdict = make.judge(read("a100", version="470.256.02"), wanted=make.profiles())[0]
    assert not verdict.bad, [(item.check, item.value, item.hint) for item in verdict.bad]
    found = [item for item in verdict.findings if "470.256.02" in item.hint]
    assert found, "hlt-01: what the library lacks is skipped with its version"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ("gpu=1 remap_failure=1", "gpu.row_remap_failure"),
        ("gpu=1 recovery_action=2", "gpu.recovery_action"),
        ("gpu=1 temperature_margin=-2", "gpu.temperature"),
        ("gpu=1 pcie_width=8", "gpu.pcie_width"),
        ("gpu=1 ecc_uncorrected_volatile=1", "gpu.ecc_uncorrected"),
    ],
)
def test_what_the_card_says_comes_through(read, change, check):
    verdict = make.judge(read("h100-sxm", change), wanted=make.profiles())[0]
    assert make.one(verdict, check, "gpu1").status == "fail"
    assert [item.check for item in verdict.bad] == [check]


def test_names_of_models_are_those_of_the_lab():
    text = (nvml_build.LAB / "bin" / "simgpu").read_text(encoding="utf-8")
    assert all(f'"{model}"' in text for model in MODELS)
