"""The fabric manager: where it is needed, what the role does, and the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_info, _fabricmanager, _gpu_holders
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, SKIPPED, WARN
from node_facts import VERSION, healthy, package

DATA = yaml.safe_load((Path(__file__).parents[4] / "files/compatibility.yml").read_text())
SHOW = (Path(__file__).parent / "fixtures/fabricmanager/show-active.txt").read_text()
NAME = "nvidia-fabricmanager-535"


def switches(count=4, device="22a3"):
    return [
        {"address": f"0000:c{index}:00.0", "vendor": "10de", "device": device, "class": "068000", "driver": None}
        for index in range(count)
    ]


def node(version=VERSION, count=4, **unit):
    """Return a healthy node with switches and a running fabric manager."""
    facts = healthy()
    facts["nvswitches"] = switches(count)
    if version:
        facts["packages"][NAME] = package(version + "-1")
        facts["fabricmanager"].update(
            present=True, link=True, load="loaded", enabled="enabled", active="active", result="success", config="A=1\n"
        )
    facts["fabricmanager"]["driven"] = [switch["address"] for switch in facts["nvswitches"]]
    facts["fabricmanager"].update(unit)
    return facts


def reboot_pending(facts):
    """Let the node wait for the reboot that loads the new module."""
    facts["loaded"]["version"] = "535.183.06"
    facts["nvml"] = _driver_info.nvml_state("535.183.06", VERSION)
    facts["reboot"] = _driver_info.reboot_facts(facts["loaded"], VERSION, None, facts["gpus"], False)
    return facts


def plan(facts, enabled=True, settings=None):
    return _fabricmanager.plan(facts, _fabricmanager.need(facts, DATA), enabled, settings or {})


def judge(facts, enabled=True, settings=None, pending="fail"):
    found = _fabricmanager.findings(facts, _fabricmanager.need(facts, DATA), enabled, settings or {}, pending)
    return {finding.check.partition(".")[2]: finding for finding in found}


# --- need ---


def test_svc_04_needed_where_switches_are_on_pci():
    need = _fabricmanager.need(node(), DATA)
    assert need["needed"] and need["reason"] == "4 NVSwitches on PCI (10de:22a3)"
    assert not need["subnet_manager"]


def test_svc_04_not_needed_on_the_same_card_without_switches():
    need = _fabricmanager.need(healthy(), DATA)
    assert (need["needed"], need["relevant"]) == (False, False)
    assert "no NVSwitch on PCI" in need["reason"]


def test_svc_04_boards_that_hide_their_switches_are_known_by_their_card():
    facts = healthy()
    facts["gpus"] = [dict(gpu, device="2901") for gpu in facts["gpus"]]
    need = _fabricmanager.need(facts, DATA)
    assert need["needed"] and need["subnet_manager"] and "B200 (10de:2901)" in need["reason"]


# --- facts ---


def test_a_node_without_a_trace_asks_systemd_nothing(tmp_path, fake_runner):
    runner = fake_runner()
    assert _fabricmanager.unit_facts(runner, str(tmp_path)) == healthy()["fabricmanager"]
    assert runner.calls == []


def test_facts_of_a_running_unit(tmp_path, fake_runner):
    for path, text in (
        (_fabricmanager.VENDOR_PATHS[0], "[Unit]\n"),
        (_fabricmanager.CONFIG, "LOG_LEVEL=4\n"),
        ("/proc/uptime", "1000000000.00 1.0\n"),
        ("/" + _fabricmanager.DRIVEN + "/0000:c0:00.0/information", "NVSwitch\n"),
    ):
        target = tmp_path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    facts = _fabricmanager.unit_facts(fake_runner({"systemctl show": SHOW}), str(tmp_path))
    assert (facts["present"], facts["enabled"], facts["active"]) == (True, "enabled", "active")
    assert (facts["driven"], facts["config"]) == (["0000:c0:00.0"], "LOG_LEVEL=4\n")
    # By this uptime the unit started long before the file was written.
    assert facts["config_newer"] is True
    (tmp_path / "proc/uptime").write_text("0.00 0.0\n")
    assert _fabricmanager.unit_facts(fake_runner({"systemctl show": SHOW}), str(tmp_path))["config_newer"] is False


def test_an_enablement_that_outlived_its_package_is_seen(tmp_path, fake_runner):
    link = tmp_path / _fabricmanager.LINK.lstrip("/")
    link.parent.mkdir(parents=True)
    link.symlink_to("/lib/systemd/system/" + _fabricmanager.UNIT)
    facts = healthy()
    facts["fabricmanager"] = _fabricmanager.unit_facts(fake_runner(), str(tmp_path))
    assert (facts["fabricmanager"]["link"], facts["fabricmanager"]["present"]) == (True, False)
    assert plan(facts)["unlink"] and plan(facts)["pending"] and _fabricmanager.need(facts, DATA)["relevant"]


def test_the_fabric_manager_is_no_user_of_the_gpus(tmp_path):
    for pid, name in (("10", "nv-fabricmanage"), ("11", "python3")):
        folder = tmp_path / "proc" / pid / "fd"
        folder.mkdir(parents=True)
        (folder.parent / "comm").write_text(name + "\n")
        (folder / "3").symlink_to("/dev/nvidiactl")
    assert _gpu_holders.users(str(tmp_path)) == ["11 python3"]


# --- plan ---


def test_second_run_has_nothing_to_do():
    assert not plan(node())["pending"]
    assert not plan(healthy())["pending"]


def test_svc_04_a_fresh_unit_is_enabled_and_started():
    found = plan(node(enabled="disabled", active="inactive"))
    assert (found["enable"], found["state"], found["reason"]) == (True, "started", "")


def test_a_masked_unit_is_unmasked():
    found = plan(node(load="masked", enabled="masked", active="inactive"))
    assert (found["masked"], found["enable"], found["state"]) == (True, True, "started")


def test_a_driver_that_waits_for_a_reboot_leaves_it_enabled_and_not_started():
    found = plan(reboot_pending(node(enabled="disabled", active="inactive")))
    assert (found["enable"], found["state"]) == (True, "")
    assert "reboot" in found["reason"]


def test_svc_03_another_version_is_neither_started_nor_restarted():
    for active in ("inactive", "active"):
        found = plan(node("535.183.06", active=active, config_newer=True), settings={"A": 2})
        assert found["state"] == ""
        assert found["reason"] == f"{NAME} 535.183.06, but driver {VERSION} is loaded"


def test_switches_that_the_driver_has_not_taken_are_named():
    assert "has not taken the NVSwitches" in plan(node(active="inactive", driven=[]))["reason"]


@pytest.mark.parametrize("enabled", [True, False])
def test_svc_04_without_switches_or_unwanted_it_is_stopped_and_disabled(enabled):
    facts = node(count=0 if enabled else 4)
    found = plan(facts, enabled=enabled)
    assert (found["wanted"], found["enable"], found["state"]) == (False, True, "stopped")
    facts["fabricmanager"].update(enabled="disabled", active="inactive")
    assert not plan(facts, enabled=enabled)["pending"]
    facts["fabricmanager"].update(active="failed")
    assert plan(facts, enabled=enabled)["reset"]


def test_a_fabric_manager_that_has_used_up_its_starts_is_started_all_the_same():
    found = plan(node(active="failed"))
    assert (found["state"], found["reset"]) == ("started", True)


def test_a_configuration_is_edited_in_place_and_only_where_it_differs():
    text = "# Comment about LOG_LEVEL=9\nLOG_LEVEL=4\nA=1\nLOG_LEVEL=5\n"
    once = _fabricmanager.config_text(text, {"LOG_LEVEL": 3, "NEW_KEY": "x y"})
    assert once == f"# Comment about LOG_LEVEL=9\nLOG_LEVEL=3\nA=1\n{_fabricmanager.CONFIG_HEADER}\nNEW_KEY=x y\n"
    assert _fabricmanager.config_text(once, {"LOG_LEVEL": 3, "NEW_KEY": "x y"}) == once
    assert plan(node(config=once), settings={"LOG_LEVEL": 3})["config"] is None


def test_a_changed_configuration_restarts_only_an_idle_node():
    found = plan(node(), settings={"A": 2})
    assert (found["config"], found["state"]) == ("A=2\n", "restarted")
    found = plan(node(users=["42 python3"]), settings={"A": 2})
    assert (found["config"], found["state"]) == ("A=2\n", "") and "42 python3" in found["reason"]
    assert plan(node(config="A=2\n", config_newer=True), settings={"A": 2})["state"] == "restarted"
    assert plan(node(config_newer=True))["state"] == ""


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["LOG_LEVEL=3"], "dictionary of settings, not list"),
        ({"log level": 3}, "'log level' is no setting"),
        ({"LOG_LEVEL": "3\nA=1"}, "the value of LOG_LEVEL"),
        ({"LOG_LEVEL": True}, "the value of LOG_LEVEL"),
    ],
)
def test_wrong_settings_are_named(settings, problem):
    assert any(problem in text for text in _fabricmanager.config_problems(settings))
    assert _fabricmanager.config_problems({"LOG_LEVEL": 3, "LOG_FILE_NAME": "/var/log/x"}) == []


# --- verdict ---


def test_all_is_good():
    found = judge(node(config="A=2\n"), settings={"A": 2})
    assert {check: finding.status for check, finding in found.items()} == {"version": OK, "unit": OK, "config": OK}


def test_svc_04_skipped_with_the_reason_where_there_is_no_switch():
    found = judge(healthy())
    assert list(found) == ["unit"] and found["unit"].status == SKIPPED and "no NVSwitch" in found["unit"].hint


def test_svc_04_a_preset_that_enabled_it_without_switches_is_a_warning():
    found = judge(node(count=0, active="failed"))["unit"]
    assert found.status == WARN and "yet the unit is enabled and failed" in found.hint


def test_unwanted_where_it_is_needed_says_what_that_means():
    found = judge(node(enabled="disabled", active="inactive"), enabled=False)["unit"]
    assert found.status == SKIPPED and "error 802" in found.hint and "4 NVSwitches" in found.hint


def test_svc_04_required_with_switches_and_not_there():
    found = judge(node(version=""))["unit"]
    assert found.status == FAIL and "run the role nvidia_driver" in found.hint


def test_svc_03_verify_names_both_versions_before_any_restart():
    found = judge(node("535.183.06"))["version"]
    assert found.status == FAIL
    assert f"{NAME} 535.183.06" in found.hint and VERSION in found.hint and "do not restart it" in found.hint


def test_svc_06_a_unit_that_does_not_run_is_a_failure():
    found = judge(node(active="failed", result="exit-code"))["unit"]
    assert found.status == FAIL and "journalctl" in found.hint
    assert judge(node(enabled="disabled"))["unit"].status == FAIL


def test_a_pending_reboot_is_judged_as_the_driver_is():
    facts = reboot_pending(node(active="inactive"))
    assert judge(facts)["unit"].status == FAIL
    found = judge(facts, pending="warn")
    assert (found["unit"].status, found["version"].status) == (WARN, OK) and "reboot" in found["unit"].hint


def test_a_configuration_that_is_not_in_force_is_a_warning():
    assert judge(node(), settings={"A": 2})["config"].status == FAIL
    found = judge(node(config="A=2\n", config_newer=True), settings={"A": 2})["config"]
    assert found.status == WARN and "restart" in found.hint


def test_boards_of_nvlink_5_need_the_subnet_manager():
    facts = node(count=0)
    facts["gpus"] = [dict(gpu, device="2901") for gpu in facts["gpus"]]
    assert judge(facts)["nvlsm"].status == FAIL
    assert plan(dict(facts, fabricmanager={**facts["fabricmanager"], "active": "inactive"}))["reason"] != ""
    facts["fabricmanager"]["subnet_manager"] = True
    assert judge(facts)["nvlsm"].status == OK
