# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Who watches the watcher: whether the timer of the role gpu_health runs, and whether its last result is fresh."""

from __future__ import annotations

import os
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_snapshot import uptime
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED, WARN, Finding
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, read_text

TIMER = "gpu-node-health.timer"
SERVICE = "gpu-node-health.service"
SOURCE = "role gpu_health"
#: Seconds after a boot until the first result may be missing: the machine is busy then, and the driver starts late.
BOOT_GRACE_S = 180.0
_TIMEOUT_S = 10.0
_SHOWN = "Id,LoadState,ActiveState,UnitFileState,Result,ExecMainStatus,NeedDaemonReload"


def facts(runner: Runner, now: float, root: str = "/") -> dict[str, Any]:
    """Read the two units and the last result.

    Args:
        runner: Runs systemctl, once.
        now: Seconds since the epoch.
        root: Directory that stands for ``/``.

    Returns:
        ``timer`` and ``service`` (systemd's properties; empty where it did not answer), ``state`` (age_s, boot_id,
        stale_after_s, verdict, problem; empty where there is none), ``boot_id`` and ``uptime_s``.
    """
    shown = runner.run(["systemctl", "show", TIMER, SERVICE, "--property", _SHOWN], timeout=_TIMEOUT_S)
    units: dict[str, dict[str, str]] = {}
    for block in shown.out.split("\n\n"):
        said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        units[said.get("Id", "")] = said
    state = _health_state.load_state(root)
    kept = {key: state.get(key) for key in ("boot_id", "stale_after_s", "verdict", "problem", "written_at")}
    written = state.get("written_at")
    age = now - written if isinstance(written, (int, float)) else None
    return {
        "timer": units.get(TIMER, {}),
        "service": units.get(SERVICE, {}),
        "state": {**kept, "age_s": None if age is None else round(age, 1)} if state else {},
        "boot_id": (read_text(root, "proc/sys/kernel/random/boot_id") or "").strip(),
        "uptime_s": up_s(root),
    }


def up_s(root: str = "/") -> float:
    """Return for how many seconds this system has been up, 0 where that is not known.

    Counted from the start of process 1: in a container the kernel has been up for longer than the system.
    """
    stat = (read_text(root, "proc/1/stat") or "").rpartition(")")[2].split()
    ticks = stat[19] if len(stat) > 19 else "0"
    began = int(ticks) / os.sysconf("SC_CLK_TCK") if ticks.isdigit() else 0.0
    return max(0.0, uptime(root) - began)


def findings(found: Mapping[str, Any], enabled: bool, stale_after_s: float, drift: list[str]) -> list[Finding]:
    """Judge what ``facts`` returned.

    Args:
        found: The facts.
        enabled: Whether the timer shall run.
        stale_after_s: Age of the last result from which on the timer counts as dead.
        drift: What differs from what the role writes.
    """
    judged = [_timer(found, enabled), _last_run(found, enabled), _state(found, enabled, stale_after_s)]
    value = {"differs": drift[:20]} if drift else "as written"
    hint = "the node does not run what the controller has: run site.yml with the tag gpu_health" if drift else ""
    judged.append(Finding("health.agent", "node", WARN if drift else OK, value, "as written", SOURCE, hint))
    return judged


def _off(check: str, target: str) -> Finding:
    return Finding(check, target, SKIPPED, hint="the timer is turned off (gpu_health_timer_enabled)")


def _timer(found: Mapping[str, Any], enabled: bool) -> Finding:
    unit = found["timer"]
    value = {key: unit.get(name, "") for key, name in (("active", "ActiveState"), ("enabled", "UnitFileState"))}
    wanted = {"active": "active", "enabled": "enabled"}
    if not enabled:
        if value["active"] == "active" or value["enabled"] == "enabled":
            hint = "it is turned off (gpu_health_timer_enabled), yet it runs: run the role gpu_health"
            return Finding("health.timer", TIMER, WARN, value, {"active": "inactive"}, SOURCE, hint)
        return _off("health.timer", TIMER)
    if not unit.get("LoadState"):
        return Finding("health.timer", TIMER, ERROR, value, wanted, SOURCE, "systemd did not answer")
    if value != wanted:
        hint = "nobody watches the GPUs between two runs of Ansible: run the role gpu_health"
        return Finding("health.timer", TIMER, FAIL, value, wanted, SOURCE, hint)
    return Finding("health.timer", TIMER, OK, value, wanted, SOURCE)


def _last_run(found: Mapping[str, Any], enabled: bool) -> Finding:
    unit = found["service"]
    if not enabled:
        return _off("health.last_run", SERVICE)
    result, status = unit.get("Result", ""), unit.get("ExecMainStatus", "")
    value = {"result": result, "exit_status": status}
    if result == "success":
        return Finding("health.last_run", SERVICE, OK, value, {"result": "success"}, SOURCE)
    hint = f"the last run did not come to its end: journalctl --unit={SERVICE}"
    return Finding("health.last_run", SERVICE, FAIL if result else ERROR, value, {"result": "success"}, SOURCE, hint)


def _state(found: Mapping[str, Any], enabled: bool, stale_after_s: float) -> Finding:
    state, target = found["state"], _health_state.STATE
    if not enabled:
        return _off("health.state", target)
    this_boot = bool(state) and state.get("boot_id") == found["boot_id"]
    value = {"age_s": state.get("age_s"), "this_boot": this_boot, "verdict": state.get("verdict")} if state else "none"
    expected = {"age_s": f"at most {stale_after_s:g}", "this_boot": True}
    if not this_boot and 0 < found["uptime_s"] < BOOT_GRACE_S:
        hint = f"the node booted {found['uptime_s']:.0f} s ago: the first result is on its way"
        return Finding("health.state", target, SKIPPED, value, expected, SOURCE, hint)
    why = f"journalctl --unit={SERVICE}"
    if not state:
        return Finding("health.state", target, FAIL, value, expected, SOURCE, f"there is no result: {why}")
    if state.get("problem"):
        value = {**value, "problem": state["problem"]} if isinstance(value, dict) else value
        return Finding("health.state", target, FAIL, value, expected, SOURCE, f"the last run could not judge: {why}")
    age = state.get("age_s")
    if not this_boot or age is None or age > stale_after_s:
        return Finding("health.state", target, FAIL, value, expected, SOURCE, f"the last result is stale: {why}")
    if age < -stale_after_s:
        hint = f"the last result is from the future, so its age says nothing: set the clock, then {why}"
        return Finding("health.state", target, FAIL, value, expected, SOURCE, hint)
    return Finding("health.state", target, OK, value, expected, SOURCE)
