# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Power limits of GPUs in the tuning role: facts, files, what is pending and the verdict.

A limit lives in the driver: it is gone after a reboot, after a reload of the module, and without persistence as soon as
the last client ends. So a unit sets it, after the persistence daemon and with each of its starts.
"""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _power_limit
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED, WARN, Finding
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._sysctl_plan import HEADER

NAME = "gpu-node-power-limits.service"
UNIT = "/etc/systemd/system/" + NAME
PROGRAM = "/usr/local/sbin/gpu-node-power-limits"
WISHES = "/etc/gpu-node-power-limits.conf"
WITH_BOOT = "/etc/systemd/system/multi-user.target.d/gpu-node-power-limits.conf"
WITH_DAEMON = "/etc/systemd/system/nvidia-persistenced.service.d/gpu-node-power-limits.conf"
UNIT_FILES = (UNIT, WITH_BOOT, WITH_DAEMON)
FILES = (PROGRAM, WISHES, *UNIT_FILES)
LOADED = "/proc/driver/nvidia/version"

_UNIT_TEXT = f"""{HEADER}[Unit]
Description=Power limits of the GPUs
# Later than module and persistence: all cards are there, and no limit is dropped again.
After=systemd-modules-load.service nvidia-persistenced.service
ConditionPathExists={LOADED}
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=oneshot
ExecStart={PROGRAM} {WISHES}
TimeoutStartSec=120
Restart=on-failure
RestartSec=10
"""
_WANTS_TEXT = f"{HEADER}[Unit]\nWants={NAME}\n"
_CHECK = "tuning.gpu_power_limit"


def read(runner: Runner, root: str = "/", ask: bool = True) -> dict[str, Any]:
    """Return ``loaded`` (the driver is), ``cards`` as nvidia-smi lists them (None: not asked, no answer), ``error``."""
    facts: dict[str, Any] = {"loaded": read_text(root, LOADED) is not None, "cards": None, "error": ""}
    if ask and facts["loaded"]:
        answer = runner.run(_power_limit.QUERY, timeout=60)
        if answer.ok:
            facts["cards"] = _power_limit.parse_listing(answer.out)
        else:
            facts["error"] = answer.text or f"nvidia-smi ended with {answer.rc}"
    return facts


def texts(wishes: Mapping[str, int], program: str) -> dict[str, str | None]:
    """Return the files; None for each where no limit is wanted."""
    if not wishes:
        return dict.fromkeys(FILES)
    return {
        PROGRAM: "#!/usr/bin/python3\n" + HEADER + program,
        WISHES: HEADER
        + "# Watts, by UUID or product name; * is every other card.\n"
        + _power_limit.wishes_text(wishes),
        UNIT: _UNIT_TEXT,
        WITH_BOOT: _WANTS_TEXT,
        WITH_DAEMON: _WANTS_TEXT,
    }


def pending(facts: Mapping[str, Any], wishes: Mapping[str, int]) -> list[str]:
    """Return the UUIDs of the cards whose limit can be set now and differs."""
    return _power_limit.pending(facts["power"]["cards"] or [], wishes)


def findings(facts: Mapping[str, Any], wishes: Mapping[str, int], program: str) -> list[Finding]:
    """Judge the unit, and each card by the limit that the driver reports."""
    if not wishes:
        return []
    wrong = [path for path, text in texts(wishes, program).items() if facts["files"].get(path) != text]
    hint = "Run the tuning role again: absent or changed are {}".format(", ".join(wrong)) if wrong else ""
    value = "absent or changed" if wrong else "as wanted"
    found = [_finding(NAME, FAIL if wrong else OK, value, "as wanted", hint)]
    power = facts["power"]
    if not power["loaded"]:
        return [
            *found,
            _finding("node", SKIPPED, None, None, "the driver is not loaded; the unit sets limits when it is"),
        ]
    if not power["cards"]:
        return [*found, _finding("node", ERROR, None, None, power["error"] or "nvidia-smi lists no GPU")]
    known = {str(card[key]).casefold() for card in power["cards"] for key in ("uuid", "name")}
    for key in sorted(wishes):
        if key != _power_limit.ALL and key.casefold() not in known:
            found.append(_finding(key, WARN, None, wishes[key], "no GPU of this node has this UUID or product name"))
    return found + [_card(card, wishes) for card in power["cards"]]


def _card(card: Mapping[str, Any], wishes: Mapping[str, int]) -> Finding:
    uuid, limit, enforced = card["uuid"], card["limit"], card["enforced"]
    wanted, watt = _power_limit.wish(card, wishes), _power_limit.target(card, wishes)
    if wanted is None:
        return _finding(uuid, SKIPPED, limit, None, "left alone: no entry for {}".format(card["name"]))
    if watt is None:
        return _finding(uuid, SKIPPED, limit, wanted, "this card has no power limit to set")
    if not _power_limit.same(limit, watt):
        return _finding(uuid, FAIL, limit, watt, f"Run the tuning role again, or look into journalctl -u {NAME}")
    if enforced is not None and enforced > watt and not _power_limit.same(enforced, watt):
        return _finding(uuid, FAIL, enforced, watt, "the limit was set and is not in force")
    hints = []
    if watt != wanted:
        hints.append("{} W is out of the card's range, {:g} to {:g} W".format(wanted, card["lowest"], card["highest"]))
    if enforced is not None and not _power_limit.same(enforced, watt):
        hints.append(f"the board holds the card at {enforced:g} W, below the limit that was set")
    if str(card["persistence"]).lower() == "disabled":
        hints.append("persistence is off, so the limit is gone when the last client ends: role nvidia_persistenced")
    return _finding(uuid, WARN if hints else OK, limit, watt, "; ".join(hints))


def _finding(target: str, status: str, value: Any, expected: Any, hint: str = "") -> Finding:
    return Finding(_CHECK, target, status, value, expected, _power_limit.VARIABLE, hint)
