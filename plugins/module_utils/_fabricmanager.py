# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""NVIDIA's fabric manager: where it is needed, what its unit needs, and the verdict on it.

It sets up the NVSwitches between GPUs. Where there are some, CUDA does not start without it (error 802); where there
are none, it fails at every boot. It refuses any driver but the one of its own exact version.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _compat, _gpu_holders, _persistenced
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, SKIPPED, WARN, Finding
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, list_dir, path_below, read_text

COMPONENT = "fabricmanager"
UNIT = "nvidia-fabricmanager.service"
VENDOR_PATHS = ("usr/lib/systemd/system/" + UNIT, "lib/systemd/system/" + UNIT)
#: What enabling the unit makes; it outlives a package whose scripts do not clean up.
LINK = "/etc/systemd/system/multi-user.target.wants/" + UNIT
CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
CONFIG_HEADER = "# Set by the aiinfra.gpu_node collection (role nvidia_fabricmanager):"
#: Filled by the driver once it has taken the switches.
DRIVEN = "proc/driver/nvidia-nvswitch/devices"
#: There when the package of the subnet manager that NVLink 5 boards need is installed.
SUBNET_MANAGER = "var/lib/dpkg/info/nvlsm.list"

_PACKAGE = re.compile(r"^nvidia-fabric-?manager(?:-[0-9]+)?$")
_KEY = re.compile(r"^[A-Z][A-Z0-9_]*$")
_SHOWN = ("LoadState", "UnitFileState", "ActiveState", "Result", "NeedDaemonReload", "ActiveEnterTimestampMonotonic")
_RUNNING = ("active", "activating", "reloading")


def unit_facts(runner: Runner, root: str = "/") -> dict[str, Any]:
    """Return what the unit is and does; systemd is asked only where there is a trace of it.

    Returns:
        ``present`` (a package brought the unit), ``link`` (its enablement is on the disk), ``load``, ``enabled``,
        ``active``, ``result``, ``reload_needed``, ``config`` (text, None where there is none), ``config_newer`` (the
        file changed after the unit became active), ``driven`` (addresses of the switches that the driver has taken),
        ``users`` (processes that use the GPUs, where the unit is there) and ``subnet_manager`` (nvlsm is installed).
    """
    present = any(os.path.exists(path_below(root, path)) for path in VENDOR_PATHS)
    link = os.path.lexists(path_below(root, LINK))
    said: dict[str, str] = {}
    if present or link:
        shown = runner.run(["systemctl", "show", UNIT, "--property", ",".join(_SHOWN)], timeout=20)
        said = dict(line.split("=", 1) for line in shown.out.splitlines() if "=" in line)
    return {
        "present": present,
        "link": link,
        "load": said.get("LoadState", ""),
        "enabled": said.get("UnitFileState", ""),
        "active": said.get("ActiveState", ""),
        "result": said.get("Result", ""),
        "reload_needed": said.get("NeedDaemonReload") == "yes",
        "config": read_text(root, CONFIG) if present else None,
        "config_newer": present and _config_newer(root, said.get("ActiveEnterTimestampMonotonic", "")),
        "driven": list_dir(root, DRIVEN),
        "users": _gpu_holders.users(root) if present else [],
        "subnet_manager": os.path.exists(path_below(root, SUBNET_MANAGER)),
    }


def _config_newer(root: str, entered: str) -> bool:
    """Whether the configuration changed after the unit became active, a time in microseconds since the boot."""
    if not entered.isdigit() or entered == "0":
        return False
    uptime = (read_text(root, "proc/uptime") or "").split()
    try:
        changed = os.stat(path_below(root, CONFIG)).st_mtime
        return changed > time.time() - float(uptime[0]) + int(entered) / 1e6
    except (OSError, IndexError, ValueError):
        return False


def need(facts: Mapping[str, Any], data: _compat.Data) -> dict[str, Any]:
    """Return whether a node needs the fabric manager.

    Args:
        facts: What driver_info returned.
        data: The compatibility data.

    Returns:
        ``needed``, ``reason`` (why, or why not), ``subnet_manager`` (whether the boards need nvlsm too) and
        ``relevant``: it is needed, or there is a trace of it on the node.
    """
    unit, switches = facts["fabricmanager"], facts["nvswitches"]
    boards = _compat.hidden_nvswitches(data, facts["gpus"])
    if switches:
        ids = sorted({"{}:{}".format(switch["vendor"], switch["device"]) for switch in switches})
        reason = "{} NVSwitch{} on PCI ({})".format(len(switches), "es" if len(switches) > 1 else "", ", ".join(ids))
    elif boards:
        reason = "boards of {} have NVSwitches that do not show on PCI".format(", ".join(boards))
    else:
        reason = "no NVSwitch on PCI (10de, class 0680), and no board that hides its own"
    needed = bool(switches or boards)
    return {
        "needed": needed,
        "reason": reason,
        "subnet_manager": bool(boards),
        "relevant": bool(needed or unit["present"] or unit["link"]),
    }


def versions(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the installed packages of the fabric manager with their upstream versions."""
    return {name: str(item["upstream"]) for name, item in facts["packages"].items() if _PACKAGE.match(name)}


def why_not_started(facts: Mapping[str, Any], needed: Mapping[str, Any]) -> str:
    """Return why it cannot do its work now; empty where it can."""
    nvml = facts["nvml"]
    if nvml["code"]:
        return "the driver is not usable now ({}): {}".format(nvml["name"], nvml["action"])
    odd = {name: version for name, version in versions(facts).items() if version != nvml["loaded"]}
    if odd:
        return "{}, but driver {} is loaded".format(_named(odd), nvml["loaded"])
    if facts["nvswitches"] and not facts["fabricmanager"]["driven"]:
        return "the driver has not taken the NVSwitches: look in the kernel's log"
    if needed["subnet_manager"] and not facts["fabricmanager"]["subnet_manager"]:
        return "nvlsm is not installed"
    return ""


def config_problems(settings: Any) -> list[str]:
    """Return what is wrong with the wanted settings."""
    name = "nvidia_fabricmanager_config"
    if not isinstance(settings, Mapping):
        return [f"{name} is a dictionary of settings, not {type(settings).__name__}"]
    problems = [
        f"{name}: {key!r} is no setting; they are capital letters, digits and '_', such as LOG_LEVEL"
        for key in settings
        if not _KEY.match(str(key))
    ]
    return problems + [
        f"{name}: the value of {key} is {value!r}; allowed is a number or a text of one line"
        for key, value in settings.items()
        if isinstance(value, (bool, list, dict)) or value is None or "\n" in str(value)
    ]


def config_text(current: str, settings: Mapping[str, Any]) -> str:
    """Return the configuration with these settings: lines that exist are changed in place, others added at the end."""
    rest = {str(key): str(value) for key, value in settings.items()}
    lines = []
    for line in current.splitlines():
        key = line.partition("=")[0].strip()
        if "=" in line and key in settings:
            if key in rest:
                lines.append(f"{key}={rest.pop(key)}")
            continue
        lines.append(line)
    if rest and CONFIG_HEADER not in lines:
        lines.append(CONFIG_HEADER)
    return "\n".join([*lines, *(f"{key}={value}" for key, value in sorted(rest.items()))]) + "\n"


def plan(
    facts: Mapping[str, Any], needed: Mapping[str, Any], enabled: bool, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the role has to do.

    Args:
        facts: What driver_info returned.
        needed: What ``need`` returned.
        enabled: Whether the operator wants it where it is needed.
        settings: Settings for the configuration file.

    Returns:
        ``present`` (a package brought the unit), ``wanted`` (it shall run), ``config`` (text to write, None where the
        file is right), ``masked``, ``enable`` (its enablement has to change), ``reset`` (a failure of the past has to
        be cleared), ``state`` (started, restarted, stopped, or empty where it is left as it is), ``unlink`` (its
        enablement outlived the package), ``reason`` (why it is not started, or not restarted) and ``pending``.
    """
    unit = facts["fabricmanager"]
    present, wanted = bool(unit["present"]), bool(needed["needed"] and enabled)
    running = unit["active"] in _RUNNING
    text = config_text(unit["config"], settings) if wanted and settings and unit["config"] is not None else None
    config = text if text != unit["config"] else None
    reason, state = "", ""
    if present and not wanted:
        state = "stopped" if running else ""
    elif present:
        reason = why_not_started(facts, needed)
        stale = config is not None or bool(settings and unit["config_newer"])
        if not reason and running and stale and unit["users"]:
            reason = "it has to be restarted, and the GPUs are in use (pid and name): " + ", ".join(unit["users"])
        if not reason and (stale or not running):
            state = "restarted" if running else "started"
    masked = wanted and "masked" in (unit["load"], unit["enabled"])
    off = unit["enabled"] in ("disabled", "masked", "masked-runtime", "static", "")
    found = {
        "present": present,
        "wanted": wanted,
        "config": config,
        "masked": present and masked,
        "enable": present and (unit["enabled"] != "enabled" if wanted else not off),
        "reset": present and _persistenced.needs_reset(unit["active"], state),
        "state": state,
        "unlink": bool(unit["link"]) and not present,
        "reason": reason,
    }
    pending = any(found[key] for key in ("masked", "enable", "reset", "state", "unlink")) or config is not None
    return {**found, "pending": pending}


def findings(
    facts: Mapping[str, Any],
    needed: Mapping[str, Any],
    enabled: bool,
    settings: Mapping[str, Any],
    pending_reboot: str = FAIL,
) -> list[Finding]:
    """Judge package, unit and configuration; the fabric itself is judged by the GPUs' health.

    Args:
        facts: As in ``plan``, like the next three.
        needed: As in ``plan``.
        enabled: As in ``plan``.
        settings: As in ``plan``.
        pending_reboot: Status of what a reboot alone will mend, ``fail`` or ``warn``.
    """
    if not needed["needed"] or not enabled:
        return [_unneeded(facts, needed)]
    if not facts["fabricmanager"]["present"]:
        hint = f"no package brought {UNIT}: run the role nvidia_driver, from a source that has the fabric manager"
        return [Finding("fabricmanager.unit", UNIT, FAIL, "not installed", "active", needed["reason"], hint)]
    found = [_version(facts), _unit(facts, needed, pending_reboot)]
    if settings:
        found.append(_config(facts, settings))
    if needed["subnet_manager"]:
        there = facts["fabricmanager"]["subnet_manager"]
        hint = "" if there else "install nvlsm and infiniband-diags from NVIDIA's repository"
        value = "installed" if there else "missing"
        found.append(
            Finding("fabricmanager.nvlsm", "node", OK if there else FAIL, value, "installed", needed["reason"], hint)
        )
    return found


def _unneeded(facts: Mapping[str, Any], needed: Mapping[str, Any]) -> Finding:
    unit, check = facts["fabricmanager"], "fabricmanager.unit"
    source = "PCI"
    reason = str(needed["reason"])
    if needed["needed"]:
        source = "nvidia_fabricmanager_enabled"
        reason = f"{source} is false; {reason}: CUDA does not start without it (error 802)"
    value = {key: unit[key] for key in ("enabled", "active")} if unit["present"] else "not installed"
    if unit["enabled"] == "enabled" or unit["active"] in (*_RUNNING, "failed"):
        hint = f"{reason}, yet the unit is {unit['enabled'] or 'unknown'} and {unit['active']}"
        return Finding(check, UNIT, WARN, value, "disabled", source, hint + ": run the role nvidia_fabricmanager")
    return Finding(check, UNIT, SKIPPED, value, "disabled", source, reason)


def _version(facts: Mapping[str, Any]) -> Finding:
    check, driver = "fabricmanager.version", facts["library"]["version"]
    found = versions(facts)
    odd = {name: version for name, version in found.items() if version != driver}
    if not found:
        hint = f"{UNIT} is there, but no package of it: its version cannot be told"
        return Finding(check, "node", WARN, found, driver, "installed driver", hint)
    if not odd:
        return Finding(check, "node", OK, found, driver, "installed driver")
    hint = f"{_named(odd)} does not work with driver {driver}: do not restart it, run the role nvidia_driver"
    return Finding(check, "node", FAIL, found, driver, "installed driver", hint)


def _unit(facts: Mapping[str, Any], needed: Mapping[str, Any], pending_reboot: str) -> Finding:
    unit = facts["fabricmanager"]
    value = {key: unit[key] for key in ("enabled", "active", "result")}
    status, hints = OK, []
    if unit["active"] != "active":
        reason = why_not_started(facts, needed)
        status = WARN if reason and facts["reboot"]["required"] and pending_reboot == WARN else FAIL
        hints.append(reason or f"the unit is {unit['active'] or 'unknown'}: journalctl -u {UNIT}")
    if unit["enabled"] != "enabled":
        status = FAIL
        hints.append(f"the unit is {unit['enabled'] or 'unknown'}: run the role nvidia_fabricmanager")
    return Finding("fabricmanager.unit", UNIT, status, value, "active", needed["reason"], "; ".join(hints))


def _config(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> Finding:
    unit, check, source = facts["fabricmanager"], "fabricmanager.config", "nvidia_fabricmanager_config"
    wanted = {str(key): str(value) for key, value in settings.items()}
    have = {}
    for line in (unit["config"] or "").splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() in wanted:
            have[key.strip()] = value.strip()
    if have != wanted:
        return Finding(check, CONFIG, FAIL, have, wanted, source, "run the role nvidia_fabricmanager")
    if unit["config_newer"] and unit["active"] == "active":
        hint = f"changed after the start: systemctl restart {UNIT} when nothing uses the GPUs"
        return Finding(check, CONFIG, WARN, have, wanted, source, hint)
    return Finding(check, CONFIG, OK, have, wanted, source)


def _named(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
