"""The collector on a node made of files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _driver_info,
    _driver_verdict,
    _loaded_module,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

FIXTURES = Path(__file__).parent / "fixtures"
RELEASE = "6.1.0-41-amd64"
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs-builder@U22)\n"


def write(root, path, text=""):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def node(tmp_path):
    """A Debian node with the driver loaded and one GPU."""
    write(tmp_path, "etc/os-release", 'NAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n')
    write(tmp_path, "boot/vmlinuz-" + RELEASE)
    write(tmp_path, f"lib/modules/{RELEASE}/modules.dep", "updates/dkms/nvidia-current.ko:\n")
    write(tmp_path, f"lib/modules/{RELEASE}/updates/dkms/nvidia-current.ko")
    write(tmp_path, f"lib/modules/{RELEASE}/build/include/x.h")
    write(tmp_path, "boot/grub/grub.cfg", "menuentry 'Debian' --id d {\n linux /boot/vmlinuz-6.1.0-41-amd64\n}\n")
    write(tmp_path, "proc/driver/nvidia/version", PROPRIETARY)
    write(tmp_path, "sys/module/nvidia/version", "535.183.06\n")
    write(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.183.06")
    write(tmp_path, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    write(tmp_path, "var/lib/dpkg/status", (FIXTURES / "dpkg/status").read_text())
    write(tmp_path, "etc/modprobe.d/nvidia.conf", "# comment\nblacklist nouveau\n")
    write(tmp_path, "etc/modprobe.d/other.conf", "options nouveau modeset=0\n")
    device = "sys/bus/pci/devices/0000:17:00.0/"
    for name, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        write(tmp_path, device + name, value + "\n")
    os.symlink("../../../bus/pci/drivers/nvidia", str(tmp_path / device / "driver"))
    write(tmp_path, "var/lib/gpu_node/driver.json", json.dumps({"version": "535.183.06", "packages": {}}))
    return tmp_path


def runner_for(fake_runner, root):
    path = f"{root}/lib/modules/{RELEASE}/updates/dkms/nvidia-current.ko"
    modinfo = "filename:       {}\nversion:        535.183.06\nlicense:        NVIDIA\nvermagic:       {} SMP\n"
    return fake_runner(
        {
            "modinfo": modinfo.format(path, RELEASE),
            "mokutil --sb-state": "SecureBoot disabled\n",
            "systemctl show": (FIXTURES / "persistenced/show-active.txt").read_text(),
        }
    )


def test_a_node_with_the_driver_loaded(node, fake_runner):
    runner = runner_for(fake_runner, node)
    facts = _driver_info.collect(runner, str(node), running=RELEASE)
    json.dumps(facts)
    assert facts["os"] == {"id": "debian", "version": "12", "codename": "", "name": ""}
    assert facts["machine"] == os.uname().machine
    (kernel,) = facts["kernels"]
    assert (kernel["release"], kernel["running"], kernel["headers"]) == (RELEASE, True, True)
    assert [(m["name"], m["version"], m["fits"]) for m in kernel["nvidia"]] == [("nvidia-current", "535.183.06", True)]
    assert facts["boot"]["next_kernel"] == RELEASE
    assert facts["loaded"] == {"version": "535.183.06", "flavour": "proprietary"}
    assert facts["library"]["version"] == "535.183.06"
    assert facts["nvml"]["code"] == 0
    assert facts["reboot"] == {"required": False, "reasons": []}
    assert sorted(facts["packages"]) == [
        "libcuda1",
        "libcuda1:i386",
        "libnvidia-ml1",
        "nvidia-kernel-dkms",
        "nvidia-persistenced",
    ]
    assert facts["packages"]["libcuda1"]["hold"] is True
    assert facts["package_database"]["unfinished"]["nvidia-kernel-dkms"] == "half-configured"
    assert sorted(facts["kernel_packages"]) == ["linux-image-6.1.0-41-amd64"]
    assert facts["nouveau"] == {"blacklisted_by": ["/etc/modprobe.d/nvidia.conf"], "loaded": False, "bound": []}
    assert [gpu["driver"] for gpu in facts["gpus"]] == ["nvidia"]
    assert facts["record"]["version"] == "535.183.06"
    assert facts["kernel_hold"] is None


def test_few_commands_and_none_of_the_slow_ones(node, fake_runner):
    runner = runner_for(fake_runner, node)
    _driver_info.collect(runner, str(node), running=RELEASE, kernel_candidates=True)
    assert sorted(call.split(" ")[0] for call in runner.calls) == ["modinfo", "mokutil", "systemctl"]


def test_facts_of_an_empty_node_can_be_judged(tmp_path, fake_runner):
    facts = _driver_info.collect(fake_runner(), str(tmp_path), running=RELEASE)
    statuses = {item.check: item.status for item in _driver_verdict.findings(facts, {"version": "535.183.06"})}
    assert statuses["driver.package_set"] == "fail"
    assert statuses["driver.module"] == "error"
    assert statuses["driver.loaded"] == "skipped"


def test_drv_07_json_holds_code_18_both_versions_and_the_action(node, fake_runner):
    write(node, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.309.01")
    facts = _driver_info.collect(runner_for(fake_runner, node), str(node), running=RELEASE)
    assert facts["nvml"] == {
        "code": 18,
        "name": "LIB_RM_VERSION_MISMATCH",
        "loaded": "535.183.06",
        "library": "535.309.01",
        "action": "reboot or reload",
    }
    assert facts["reboot"]["required"] is True


def test_another_flavour_of_the_loaded_version_waits_for_a_reboot(node, fake_runner):
    write(node, "var/lib/gpu_node/driver.json", json.dumps({"version": "535.183.06", "flavour": "open"}))
    facts = _driver_info.collect(runner_for(fake_runner, node), str(node), running=RELEASE)
    assert facts["reboot"] == {
        "required": True,
        "reasons": ["the proprietary module is loaded, the open one is installed"],
    }
    # Where the module does not tell, nothing is known to wait.
    (node / "proc/driver/nvidia/version").unlink()
    facts = _driver_info.collect(runner_for(fake_runner, node), str(node), running=RELEASE)
    assert facts["reboot"]["required"] is False


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [(PROPRIETARY, "535.183.06", "proprietary"), (OPEN, "550.163.01", "open"), ("garbage\n", None, "")],
)
def test_loaded_module_by_both_wordings(tmp_path, text, version, flavour):
    write(tmp_path, "proc/driver/nvidia/version", text)
    assert _loaded_module.loaded_facts(str(tmp_path)) == {"version": version, "flavour": flavour}


def test_loaded_module_by_sysfs_alone(tmp_path):
    write(tmp_path, "sys/module/nvidia/version", "580.126.20\n")
    assert _loaded_module.loaded_facts(str(tmp_path)) == {"version": "580.126.20", "flavour": ""}


@pytest.mark.parametrize(
    "directory", ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib64"]
)
def test_library_in_every_place(tmp_path, directory):
    write(tmp_path, directory + "/libnvidia-ml.so.535.183.06")
    write(tmp_path, directory + "/libnvidia-ml.so.550.54.15")
    assert _driver_info.library_facts(str(tmp_path))["version"] == "550.54.15"


@pytest.mark.parametrize(
    ("loaded", "library", "code"),
    [(None, None, 12), ("535.183.06", None, 12), (None, "535.183.06", 9), ("535.183.06", "535.183.06", 0)],
)
def test_nvml_answers_by_its_own_numbers(loaded, library, code):
    assert _driver_info.nvml_state(loaded, library)["code"] == code


@pytest.mark.parametrize(
    ("path", "text", "seen"),
    [
        ("etc/modprobe.d/a.conf", "blacklist nouveau\n", ["/etc/modprobe.d/a.conf"]),
        ("usr/lib/modprobe.d/a.conf", "install nouveau /bin/false\n", ["/usr/lib/modprobe.d/a.conf"]),
        ("lib/modprobe.d/a.conf", "alias nouveau off\n", ["/lib/modprobe.d/a.conf"]),
        ("etc/modprobe.d/a.conf", "#blacklist nouveau\nblacklist nouveau-x\n", []),
        ("etc/modprobe.d/a.conf.bak", "blacklist nouveau\n", []),
        ("proc/cmdline", "root=/dev/sda1 modprobe.blacklist=nouveau,nova quiet\n", ["kernel command line"]),
    ],
)
def test_krn_04_what_keeps_nouveau_away(tmp_path, path, text, seen):
    write(tmp_path, path, text)
    assert _driver_info.nouveau_facts(str(tmp_path), [])["blacklisted_by"] == seen


def test_krn_04_an_empty_file_in_etc_overrides_the_packaged_blacklist(tmp_path):
    write(tmp_path, "usr/lib/modprobe.d/a.conf", "blacklist nouveau\n")
    write(tmp_path, "etc/modprobe.d/a.conf", "")
    assert _driver_info.nouveau_facts(str(tmp_path), [])["blacklisted_by"] == []


def test_drv_06_blacklist_as_apt_merges_it(tmp_path, fake_runner):
    write(tmp_path, "usr/bin/unattended-upgrade")
    runner = fake_runner({"apt-config dump": (FIXTURES / "apt/config-dump.txt").read_text()})
    assert _driver_info.unattended_facts(runner, str(tmp_path)) == {
        "installed": True,
        "enabled": True,
        "blacklist": ["nvidia-", "libnvidia-", "libcuda1$"],
    }


def test_krn_06_versions_above_the_installed_one_and_whether_they_are_security():
    found = _driver_info.parse_policy((FIXTURES / "apt/policy-held-kernel.txt").read_text())
    assert found["linux-image-amd64"]["newer"] == [
        {"version": "6.1.158-1", "security": True},
        {"version": "6.1.153-1", "security": False},
    ]
    assert found["linux-headers-amd64"] == {
        "installed": None,
        "candidate": "6.1.158-1",
        "versions": ["6.1.158-1"],
        "newer": [],
    }
    assert found["linux-headers-6.1.0-9-amd64"]["candidate"] is None


def test_unreadable_record_is_told(tmp_path):
    write(tmp_path, "var/lib/gpu_node/driver.json", "{")
    assert "unreadable" in _driver_info.read_json(str(tmp_path), _driver_info.RECORD)


def test_initramfs_only_on_request(node, fake_runner):
    write(node, "boot/initrd.img-" + RELEASE)
    runner = runner_for(fake_runner, node)
    runner.answers["lsinitramfs"] = CommandResult(0, "usr/lib/modules/x/nouveau.ko\n")
    assert _driver_info.collect(runner, str(node), running=RELEASE)["kernels"][0]["initramfs"] is None
    facts = _driver_info.collect(runner, str(node), running=RELEASE, initramfs=True)
    assert facts["kernels"][0]["initramfs"]["nouveau"] is True


def test_persistence_is_asked_only_from_a_driver_that_can_answer(node, fake_runner):
    runner = runner_for(fake_runner, node)
    runner.answers["nvidia-smi"] = "00000000:17:00.0, Enabled\n"
    facts = _driver_info.collect(runner, str(node), running=RELEASE, persistence=True)
    assert facts["persistenced"]["modes"] == {"00000000:17:00.0": "Enabled"}
    write(node, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.309.01")
    facts = _driver_info.collect(runner, str(node), running=RELEASE, persistence=True)
    assert facts["persistenced"]["modes"] is None
    assert len([call for call in runner.calls if call.startswith("nvidia-smi")]) == 1
