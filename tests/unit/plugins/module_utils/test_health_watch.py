"""Whether the timer runs and its result is fresh; what a pending reboot excuses."""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_pending, _health_watch

NOW = 1_700_000_000.0
BOOT = "5e1f7a70-0000-4000-8000-000000000001"
GOOD = {
    "timer": {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"},
    "service": {"Result": "success", "ExecMainStatus": "0"},
    "state": {"boot_id": BOOT, "age_s": 30.0, "verdict": "ok", "problem": ""},
    "boot_id": BOOT,
    "uptime_s": 5000.0,
}


def judged(enabled=True, drift=(), **changes):
    found = _health_watch.findings({**GOOD, **changes}, enabled, 210.0, list(drift))
    return {one.check.partition(".")[2]: one for one in found}


def status(name, **changes):
    return judged(**changes)[name].status


def test_all_is_well():
    assert {name: one.status for name, one in judged().items()} == dict.fromkeys(
        ("timer", "last_run", "state", "agent"), "ok"
    )


@pytest.mark.parametrize(
    "unit", [{"ActiveState": "inactive"}, {"UnitFileState": "disabled"}, {"LoadState": "not-found"}]
)
def test_a_timer_that_does_not_run_fails(unit):
    shown = {"ActiveState": "", "UnitFileState": ""} if "LoadState" in unit else {}
    assert status("timer", timer={**GOOD["timer"], **shown, **unit}) == "fail"


def test_a_systemd_that_does_not_answer_is_an_error():
    found = judged(timer={}, service={})
    assert (found["timer"].status, found["last_run"].status) == ("error", "error")


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        ({"age_s": 210.0}, "ok"),
        ({"age_s": 211.0}, "fail"),
        ({"age_s": None}, "fail"),
        ({"age_s": -5.0}, "ok"),
        ({"age_s": -100_000.0}, "fail"),
        ({"boot_id": "another"}, "fail"),
        ({"problem": "the configuration has mistakes"}, "fail"),
    ],
)
def test_a_result_that_is_stale_or_none_fails(state, wanted):
    assert status("state", state={**GOOD["state"], **state}) == wanted


def test_no_result_at_all_fails_but_not_right_after_a_boot():
    assert status("state", state={}) == "fail"
    assert status("state", state={}, uptime_s=40.0) == "skipped"
    assert status("state", state={**GOOD["state"], "boot_id": "another"}, uptime_s=40.0) == "skipped"
    # The kernel did not say since when it runs: that excuses nothing.
    assert status("state", state={}, uptime_s=0.0) == "fail"


def test_a_run_that_failed_is_told():
    assert status("last_run", service={"Result": "timeout", "ExecMainStatus": "0"}) == "fail"


def test_turned_off_it_is_skipped_with_the_reason_and_told_when_it_runs_all_the_same():
    off = {"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "disabled"}
    found = judged(enabled=False, timer=off, state={})
    assert {found[name].status for name in ("timer", "last_run", "state")} == {"skipped"}
    assert "gpu_health_timer_enabled" in found["timer"].hint
    assert status("timer", enabled=False) == "warn"


def test_what_differs_from_the_controller_warns():
    assert status("agent", drift=["/etc/gpu_node/health.json"]) == "warn"


def test_facts_are_read_in_one_question(tmp_path, fake_runner):
    state = tmp_path / "var/lib/gpu_node/health/state.json"
    state.parent.mkdir(parents=True)
    state.write_text(
        json.dumps({"schema": 1, "boot_id": BOOT, "written_at": NOW - 12, "verdict": "ok"}), encoding="utf-8"
    )
    for path, text in (("proc/sys/kernel/random/boot_id", BOOT + "\n"), ("proc/uptime", "77.5 1.0\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    shown = (
        "Id=gpu-node-health.timer\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\n"
        "Id=gpu-node-health.service\nResult=success\nExecMainStatus=0\n"
    )
    runner = fake_runner({"systemctl show": shown})
    found = _health_watch.facts(runner, NOW, str(tmp_path))
    assert len(runner.calls) == 1
    assert found["state"]["age_s"] == 12.0 and found["boot_id"] == BOOT and found["uptime_s"] == 77.5
    assert {one.status for one in _health_watch.findings(found, True, 210.0, [])} == {"ok"}


def finding(check, state="fail", hint="do it"):
    return {"check": check, "target": "node", "status": state, "hint": hint}


def test_a_pending_reboot_excuses_what_only_a_loaded_driver_can_tell():
    found = _health_pending.softened([finding("node.nvml"), finding("node.gpu_count", "error")], "not_loaded", True)
    assert [one["status"] for one in found] == ["warn", "warn"]
    assert all("reboot" in one["hint"] and "do it" in one["hint"] for one in found)


def test_with_a_driver_that_answers_it_excuses_the_driver_only():
    rows = [finding("node.driver_pin"), finding("gpu.lost"), finding("node.kernel_log", "ok")]
    found = _health_pending.softened(rows, "ok", True)
    assert [one["status"] for one in found] == ["warn", "fail", "ok"]


@pytest.mark.parametrize("nvml", ["timeout", "error", "no_binding"])
def test_it_does_not_excuse_a_hang(nvml):
    assert _health_pending.softened([finding("node.nvml")], nvml, True)[0]["status"] == "fail"


def test_without_a_pending_reboot_nothing_is_excused():
    rows = [finding("node.nvml"), finding("node.driver_pin", "error")]
    assert _health_pending.softened(rows, "not_loaded", False) == rows


def test_in_a_container_the_system_is_younger_than_the_kernel(tmp_path):
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/uptime").write_text("7200.5 1.0\n")
    assert _health_watch.up_s(str(tmp_path)) == 7200.5
    ticks = os.sysconf("SC_CLK_TCK") * 7160
    fields = " ".join(["S", "0"] + ["1"] * 17 + [str(ticks), "0"])
    (tmp_path / "proc/1/stat").write_text(f"1 (systemd (init)) {fields}\n")
    assert _health_watch.up_s(str(tmp_path)) == 40.5
    (tmp_path / "proc/uptime").unlink()
    assert _health_watch.up_s(str(tmp_path)) == 0.0
