# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""nvidia-persistenced: the three packagings of its unit, and the drop-in that makes each keep persistence.

Canonical's unit is static, stops when nothing needs it and runs with persistence off; Debian's and NVIDIA's work as
they are, but fail on a machine without a GPU. The drop-in is made from the unit that the package brought, so that its
user and its other options stay.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED, WARN, Finding
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, read_text

UNIT = "nvidia-persistenced.service"
DROP_IN = "/etc/systemd/system/nvidia-persistenced.service.d/gpu-node.conf"
VENDOR_PATHS = ("usr/lib/systemd/system/" + UNIT, "lib/systemd/system/" + UNIT)

#: Exit status 0 where a GPU is there that no other driver has taken. A condition on /dev/nvidiactl would depend on the
#: order of boot: that node appears with the module, which may still be loading when this unit's turn comes, while PCI
#: devices are known before the first unit. Status 1 makes systemd skip the unit, which is not a failure.
GPU_TEST = (
    "for d in /sys/bus/pci/devices/*; do"
    ' read -r v <"$$d/vendor" && read -r c <"$$d/class" || continue;'
    ' case "$$v $$c" in "0x10de 0x03"*) ;; *) continue ;; esac;'
    ' case "$$(readlink "$$d/driver")" in ""|*/nvidia) exit 0 ;; esac;'
    " done; exit 1"
)

_PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "Result",
    "NeedDaemonReload",
    "DropInPaths",
    "FragmentPath",
    "ExecStart",
)
_ARGV = re.compile(r"argv\[\]=(.*?) ;")


def parse_show(text: str) -> dict[str, str]:
    """Return the properties that ``systemctl show`` printed."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key in _PROPERTIES:
            found[key] = value.strip()
    return found


def parse_unit(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return a unit file as section to ``(key, value)`` pairs, continuation lines joined."""
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            found.setdefault(section, [])
        elif "=" in line and section:
            key, _unused, value = line.partition("=")
            found[section].append((key.strip(), value.strip()))
    return found


def unit_facts(runner: Runner, root: str = "/", ask_mode: bool = False) -> dict[str, Any]:
    """Return what the unit is and does.

    Returns:
        ``packaging`` (canonical, debian, nvidia; None where no package brought a unit), ``vendor_exec`` (its command),
        ``installable`` (its own ``[Install]``), ``load``, ``enabled`` (systemd's word: enabled, disabled, static,
        masked, or empty), ``active``, ``result``, ``command`` (in force, drop-ins included), ``reload_needed``,
        ``drop_in`` (text of ours, None where there is none) and ``modes``: GPU to persistence mode as the driver
        reports it, None where that was not asked or not answered, and ``modes_error``.
    """
    shown = runner.run(["systemctl", "show", UNIT, "--property", ",".join(_PROPERTIES)], timeout=20)
    said = parse_show(shown.out)
    vendor = vendor_unit(root)
    command = _ARGV.findall(said.get("ExecStart", ""))
    facts: dict[str, Any] = {
        "packaging": packaging(vendor) if vendor is not None else None,
        "vendor_exec": _value(vendor, "Service", "ExecStart") if vendor is not None else "",
        "installable": bool(vendor and vendor.get("Install")),
        "load": said.get("LoadState", ""),
        "enabled": said.get("UnitFileState", ""),
        "active": said.get("ActiveState", ""),
        "result": said.get("Result", ""),
        "command": command[-1] if command else "",
        "reload_needed": said.get("NeedDaemonReload") == "yes",
        "drop_in": read_text(root, DROP_IN),
        "modes": None,
        "modes_error": "",
    }
    if ask_mode:
        facts["modes"], facts["modes_error"] = persistence_modes(runner)
    return facts


def vendor_unit(root: str = "/") -> dict[str, list[tuple[str, str]]] | None:
    """Return the unit that the package brought, also where a mask or an override in /etc hides it."""
    for path in VENDOR_PATHS:
        text = read_text(root, path)
        if text:
            return parse_unit(text)
    return None


def packaging(unit: dict[str, list[tuple[str, str]]]) -> str:
    """Return whose unit this is, by its properties: canonical, nvidia or debian."""
    if "--no-persistence-mode" in _value(unit, "Service", "ExecStart") or not unit.get("Install"):
        return "canonical"
    return "nvidia" if _value(unit, "Service", "Restart") == "always" else "debian"


def persistent_command(command: str) -> str:
    """Return a daemon's command line with persistence switched on."""
    words = [word for word in command.split() if word not in ("--no-persistence-mode", "--persistence-mode")]
    return " ".join(words[:1] + ["--persistence-mode"] + words[1:]) if words else ""


def drop_in(facts: dict[str, Any], header: str) -> str:
    """Return the text of our drop-in for the unit that is on the node.

    Args:
        facts: What ``unit_facts`` returned.
        header: Comment line on top.
    """
    lines = [header, "[Unit]"]
    if facts["packaging"] == "canonical":
        lines += ["# The package's unit ends as soon as nothing needs it.", "StopWhenUnneeded=no"]
    lines += ["StartLimitIntervalSec=300", "StartLimitBurst=5", "", "[Service]"]
    lines += [
        "# Skipped, not failed, on a machine without a GPU for this driver.",
        f"ExecCondition=/bin/sh -c '{GPU_TEST}'",
    ]
    if facts["packaging"] == "canonical":
        lines += ["# The package starts the daemon with persistence off.", "ExecStart="]
        lines += ["ExecStart=" + persistent_command(facts["vendor_exec"])]
    if facts["packaging"] != "nvidia":
        lines += ["# The module may still be loading at boot.", "Restart=on-failure", "RestartSec=5"]
    if not facts["installable"]:
        lines += ["", "[Install]", "WantedBy=multi-user.target"]
    return "\n".join(lines) + "\n"


def persistence_modes(runner: Runner) -> tuple[dict[str, str] | None, str]:
    """Return GPU address to persistence mode (Enabled, Disabled) as the driver reports it, or None and the reason."""
    query = ["nvidia-smi", "--query-gpu=pci.bus_id,persistence_mode", "--format=csv,noheader"]
    result = runner.run(query, timeout=60)
    if not result.ok:
        return None, result.text or f"nvidia-smi ended with {result.rc}"
    modes = {}
    for line in result.out.splitlines():
        bus, comma, mode = line.partition(",")
        if comma:
            modes[bus.strip()] = mode.strip()
    return modes, ""


def _value(unit: dict[str, list[tuple[str, str]]], section: str, key: str) -> str:
    values = [value for name, value in unit.get(section, []) if name == key]
    return values[-1] if values else ""


def plan(facts: Mapping[str, Any], enabled: bool, header: str) -> dict[str, Any]:
    """Return what the role has to do.

    Args:
        facts: What driver_info returned.
        enabled: Whether the daemon shall run.
        header: Comment line on top of the drop-in.

    Returns:
        ``present`` (a package brought the unit), ``drop_in`` (its text), ``write`` (it differs), ``masked``,
        ``enable``, ``reset`` (a failure of the past has to be cleared), ``state`` (started, restarted, stopped, or
        empty where the daemon is left as it is) and ``reason``: why it is not started.
    """
    unit = facts["persistenced"]
    present = unit["packaging"] is not None
    text = drop_in(unit, header) if present else ""
    reason = why_not_started(facts)
    active = unit["active"] == "active"
    state = ""
    if not enabled:
        state = "stopped" if active else ""
    elif not reason:
        off = "--no-persistence-mode" in unit["command"]
        state = "restarted" if active and off else "" if active else "started"
    return {
        "present": present,
        "drop_in": text,
        "write": present and unit["drop_in"] != text,
        "masked": unit["enabled"] == "masked" or unit["load"] == "masked",
        "enable": present and unit["enabled"] != ("enabled" if enabled else "disabled"),
        "reset": present and needs_reset(unit["active"], state),
        "state": state if present else "",
        "reason": reason,
    }


def needs_reset(active: str, state: str) -> bool:
    """Return whether systemd's memory of a unit's failures has to be cleared before the unit gets its state.

    A unit that failed may have used up its starts, and one that systemd is still trying to start is about to; then
    systemd refuses the next start, whatever was mended meanwhile.
    """
    return active == "failed" or (active == "activating" and state in ("started", "restarted"))


def why_not_started(facts: Mapping[str, Any]) -> str:
    """Return why the daemon cannot do its work now; empty where it can."""
    if not facts["gpus"]:
        return "no NVIDIA GPU on PCI"
    if facts["nvml"]["code"]:
        return "the driver is not usable now ({}): {}".format(facts["nvml"]["name"], facts["nvml"]["action"])
    if not any(gpu["driver"] == "nvidia" for gpu in facts["gpus"]):
        return "the nvidia module holds no GPU"
    return ""


def findings(facts: Mapping[str, Any], enabled: bool, header: str) -> list[Finding]:
    """Judge the unit, and persistence by the mode that the driver reports; arguments as in ``plan``."""
    unit, source = facts["persistenced"], "nvidia_persistenced_enabled"
    value = {key: unit[key] for key in ("packaging", "enabled", "active", "result")}
    if unit["packaging"] is None:
        hint = f"no package brought {UNIT}: run the role nvidia_driver"
        return [Finding("persistenced.unit", UNIT, FAIL, value, "enabled", source, hint)]
    wanted = "enabled" if enabled else "disabled"
    problems = []
    if unit["enabled"] != wanted:
        problems.append("the unit is {}".format(unit["enabled"] or "unknown"))
    if unit["active"] == "failed":
        problems.append("the unit failed ({}): journalctl -u {}".format(unit["result"], UNIT))
    if unit["drop_in"] != drop_in(unit, header):
        problems.append(f"{DROP_IN} is not the role's")
    if problems:
        problems.append("run the role nvidia_persistenced")
    found = [Finding("persistenced.unit", UNIT, FAIL if problems else OK, value, wanted, source, "; ".join(problems))]
    return found + (_modes(facts) if enabled else [])


def _modes(facts: Mapping[str, Any]) -> list[Finding]:
    check, source = "persistenced.mode", "NVML"
    unit, reason = facts["persistenced"], why_not_started(facts)
    if reason:
        return [Finding(check, "node", SKIPPED, None, "Enabled", source, reason)]
    if unit["modes"] is None:
        hint = unit["modes_error"] or "the driver was not asked"
        return [Finding(check, "node", ERROR, None, "Enabled", source, hint)]
    if not unit["modes"]:
        return [Finding(check, "node", ERROR, {}, "Enabled", source, "the driver lists no GPU")]
    found = []
    for gpu, mode in sorted(unit["modes"].items()):
        status, hint = (OK, "") if mode == "Enabled" else (FAIL, "persistence is off: look at the daemon's journal")
        if mode.startswith("[") or mode.lower() in ("n/a", "not supported"):
            status, hint = SKIPPED, "the GPU does not know persistence mode"
        elif mode == "Enabled" and unit["active"] != "active":
            status, hint = WARN, "the mode is on without the daemon, so it will not outlive the last client or a reboot"
        found.append(Finding(check, gpu, status, mode, "Enabled", source, hint))
    return found
