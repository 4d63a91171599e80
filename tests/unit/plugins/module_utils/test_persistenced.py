"""The unit of nvidia-persistenced in its three packagings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_info, _persistenced
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult
from node_facts import healthy

FIXTURES = Path(__file__).parent / "fixtures/persistenced"
HEADER = "# Managed"


def unit_node(root, name, runner, drop_in=None):
    path = root / "usr/lib/systemd/system/nvidia-persistenced.service"
    path.parent.mkdir(parents=True)
    path.write_text((FIXTURES / (name + ".service")).read_text())
    if drop_in is not None:
        target = root / _persistenced.DROP_IN.lstrip("/")
        target.parent.mkdir(parents=True)
        target.write_text(drop_in)
    return _persistenced.unit_facts(runner, str(root))


def show(name):
    return (FIXTURES / f"show-{name}.txt").read_text()


@pytest.mark.parametrize(("name", "installable"), [("debian", True), ("canonical", False), ("nvidia", True)])
def test_packagings_are_told_apart(tmp_path, fake_runner, name, installable):
    facts = unit_node(tmp_path, name, fake_runner({"systemctl show": show("active")}))
    assert (facts["packaging"], facts["installable"]) == (name, installable)
    assert (facts["enabled"], facts["active"]) == ("enabled", "active")
    assert facts["command"] == "/usr/bin/nvidia-persistenced --user nvpd"


def test_svc_01_a_static_unit_with_persistence_off_gets_all_it_lacks(tmp_path, fake_runner):
    text = _persistenced.drop_in(unit_node(tmp_path, "canonical", fake_runner()), HEADER)
    unit = _persistenced.parse_unit(text)
    assert ("StopWhenUnneeded", "no") in unit["Unit"]
    assert [value for key, value in unit["Service"] if key == "ExecStart"] == [
        "",
        "/usr/bin/nvidia-persistenced --persistence-mode --user nvidia-persistenced --verbose",
    ]
    assert unit["Install"] == [("WantedBy", "multi-user.target")]
    assert text.startswith(HEADER + "\n")


@pytest.mark.parametrize("name", ["debian", "nvidia"])
def test_units_that_work_keep_their_command(tmp_path, fake_runner, name):
    unit = _persistenced.parse_unit(_persistenced.drop_in(unit_node(tmp_path, name, fake_runner()), HEADER))
    assert "ExecStart" not in [key for key, _value in unit["Service"]]
    assert "Install" not in unit


def test_svc_01_masked_unit_is_unmasked_and_enabled(tmp_path, fake_runner):
    facts = healthy()
    facts["persistenced"] = unit_node(tmp_path, "debian", fake_runner({"systemctl show": show("masked")}))
    plan = _persistenced.plan(facts, True, HEADER)
    assert (plan["masked"], plan["enable"], plan["write"], plan["state"]) == (True, True, True, "started")


def converged(tmp_path, fake_runner, name="debian"):
    facts = healthy()
    runner = fake_runner({"systemctl show": show("active")})
    facts["persistenced"] = unit_node(tmp_path, name, runner)
    facts["persistenced"]["drop_in"] = _persistenced.drop_in(facts["persistenced"], HEADER)
    facts["persistenced"]["modes"] = {"00000000:17:00.0": "Enabled"}
    return facts


def test_second_run_has_nothing_to_do(tmp_path, fake_runner):
    plan = _persistenced.plan(converged(tmp_path, fake_runner), True, HEADER)
    assert {key: plan[key] for key in ("write", "masked", "enable", "reset", "state", "reason")} == {
        "write": False,
        "masked": False,
        "enable": False,
        "reset": False,
        "state": "",
        "reason": "",
    }


def test_running_with_persistence_off_is_restarted(tmp_path, fake_runner):
    facts = converged(tmp_path, fake_runner, "canonical")
    facts["persistenced"]["command"] = "/usr/bin/nvidia-persistenced --no-persistence-mode"
    assert _persistenced.plan(facts, True, HEADER)["state"] == "restarted"


def test_svc_08_without_gpu_it_is_enabled_and_not_started(tmp_path, fake_runner):
    facts = converged(tmp_path, fake_runner)
    facts["gpus"] = []
    facts["persistenced"].update(active="failed", result="exit-code", enabled="disabled")
    plan = _persistenced.plan(facts, True, HEADER)
    assert (plan["enable"], plan["state"], plan["reset"], plan["reason"]) == (True, "", True, "no NVIDIA GPU on PCI")


@pytest.mark.parametrize("active", ["failed", "activating"])
def test_a_daemon_that_has_used_up_its_starts_is_started_all_the_same(tmp_path, fake_runner, active):
    """While the module was away systemd tried again and again, and would refuse the start that comes after."""
    facts = converged(tmp_path, fake_runner)
    facts["persistenced"].update(active=active, result="exit-code")
    plan = _persistenced.plan(facts, True, HEADER)
    assert (plan["state"], plan["reset"]) == ("started", True)


def test_drv_07_it_is_not_started_on_a_mismatch(tmp_path, fake_runner):
    facts = converged(tmp_path, fake_runner)
    facts["persistenced"]["active"] = "inactive"
    facts["nvml"] = _driver_info.nvml_state("535.183.06", "535.261.03")
    plan = _persistenced.plan(facts, True, HEADER)
    assert plan["state"] == ""
    assert "LIB_RM_VERSION_MISMATCH" in plan["reason"]


def test_no_package_no_plan():
    facts = healthy()
    facts["persistenced"].update(packaging=None, enabled="", active="inactive")
    plan = _persistenced.plan(facts, True, HEADER)
    assert (plan["present"], plan["write"], plan["enable"], plan["state"]) == (False, False, False, "")
    assert [item.status for item in _persistenced.findings(facts, True, HEADER)] == ["fail"]


def test_switched_off(tmp_path, fake_runner):
    plan = _persistenced.plan(converged(tmp_path, fake_runner), False, HEADER)
    assert (plan["enable"], plan["state"]) == (True, "stopped")


def statuses(facts):
    return [(item.check, item.target, item.status) for item in _persistenced.findings(facts, True, HEADER)]


def test_persistence_is_judged_by_the_driver_not_by_the_process(tmp_path, fake_runner):
    facts = converged(tmp_path, fake_runner)
    assert statuses(facts) == [
        ("persistenced.unit", "nvidia-persistenced.service", "ok"),
        ("persistenced.mode", "00000000:17:00.0", "ok"),
    ]
    facts["persistenced"]["modes"] = {"a": "Disabled", "b": "[N/A]"}
    assert statuses(facts)[1:] == [("persistenced.mode", "a", "fail"), ("persistenced.mode", "b", "skipped")]
    facts["persistenced"].update(modes=None, modes_error="Failed to initialize NVML")
    assert statuses(facts)[1:] == [("persistenced.mode", "node", "error")]
    facts["gpus"] = []
    assert statuses(facts)[1:] == [("persistenced.mode", "node", "skipped")]


@pytest.mark.parametrize(
    "change", [{"enabled": "masked"}, {"active": "failed"}, {"drop_in": None}, {"enabled": "static"}]
)
def test_svc_01_unit_that_will_not_come_up_by_itself(tmp_path, fake_runner, change):
    facts = converged(tmp_path, fake_runner)
    facts["persistenced"].update(change)
    assert statuses(facts)[0][2] == "fail"


def test_modes_are_asked_from_the_driver(fake_runner):
    runner = fake_runner({"nvidia-smi": "00000000:17:00.0, Enabled\n00000000:65:00.0, Disabled\n"})
    assert _persistenced.persistence_modes(runner) == (
        {"00000000:17:00.0": "Enabled", "00000000:65:00.0": "Disabled"},
        "",
    )
    runner = fake_runner({"nvidia-smi": CommandResult(9, "NVIDIA-SMI has failed because it couldn't communicate\n")})
    modes, error = _persistenced.persistence_modes(runner)
    assert modes is None
    assert "NVIDIA-SMI has failed" in error


@pytest.mark.parametrize(
    ("vendor", "code", "driver", "status"),
    [
        ("0x10de", "0x030200", "nvidia", 0),
        ("0x10de", "0x030000", None, 0),
        ("0x10de", "0x030200", "vfio-pci", 1),
        ("0x10de", "0x030000", "nouveau", 1),
        ("0x10de", "0x040300", "snd_hda_intel", 1),
        ("0x1a03", "0x030000", "ast", 1),
        (None, None, None, 1),
    ],
)
def test_svc_08_condition_of_the_unit(tmp_path, vendor, code, driver, status):
    devices = tmp_path / "devices"
    devices.mkdir()
    if vendor:
        device = devices / "0000:17:00.0"
        device.mkdir()
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(code + "\n")
        if driver:
            os.symlink("../../../bus/pci/drivers/" + driver, str(device / "driver"))
    # systemd turns a doubled dollar into one.
    script = _persistenced.GPU_TEST.replace("$$", "$").replace("/sys/bus/pci/devices", str(devices))
    assert subprocess.run(["/bin/sh", "-c", script], check=False, stderr=subprocess.DEVNULL).returncode == status
