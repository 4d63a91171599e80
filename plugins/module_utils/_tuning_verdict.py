# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Verdicts on host tuning: facts of tuning_info and the role's wishes go in, findings come out."""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _power_limit, _sysctl, _tuning_plan, _tuning_power
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import (
    ERROR,
    FAIL,
    OK,
    SKIPPED,
    WARN,
    Finding,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._sysctl_plan import (
    FLOOR,
    NEVER,
    Item,
    reaches,
    read_profile,
)

_AGAIN = "Run the tuning role again"
_VARIABLES = {"thp": "tuning_thp", "governor": "tuning_cpu_governor", "aspm": "tuning_aspm_policy"}


def findings(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> list[Finding]:
    """Judge everything that the role owns, and what stands between GPUs."""
    found = sysctl(facts, wants)
    found.append(swap(facts, wants["swap_off"]))
    found += sysfs(facts, wants)
    found += limits(facts, wants)
    found += i915(facts, wants["i915"])
    found.append(peer_traffic(facts, wants["peer_traffic"]))
    found += power(facts, wants)
    return found


def power(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> list[Finding]:
    """Judge the power limits of the GPUs, where some are wanted."""
    try:
        wishes = _power_limit.read_wishes(wants["power_limit"])
    except ValueError as fault:
        return [Finding("tuning.gpu_power_limit", "node", ERROR, source=_power_limit.VARIABLE, hint=str(fault))]
    return _tuning_power.findings(facts, wishes, wants["power_program"])


def sysctl(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> list[Finding]:
    """Judge each kernel setting of the profile: live value first, then what the next boot makes of it."""
    if wants.get("sysctl") is None:
        return [_skipped("tuning.sysctl", "node", "switched off by tuning_sysctl_enabled")]
    found = []
    for item in read_profile(wants["sysctl"]):
        seen = facts["sysctl"].get(item.name)
        if seen is None:
            found.append(
                Finding("tuning.sysctl", item.name, ERROR, source=item.source, hint="was not read; run tuning_info")
            )
        elif item.policy == NEVER:
            found += _never(item, seen[_sysctl.BOOT] or seen[_sysctl.SYSCTL_SYSTEM])
        else:
            found.append(_setting(item, seen, str(wants["sysctl_file"])))
    return found


def _never(item: Item, setter: Mapping[str, Any] | None) -> list[Finding]:
    if setter is None:
        return []
    hint = "Remove it from {} line {}: {}".format(setter["file"], setter["line"], item.reason)
    return [Finding("tuning.sysctl", item.name, WARN, setter["value"], "not set", item.source, hint)]


def _setting(item: Item, seen: Mapping[str, Any], own: str) -> Finding:
    expected = "at least " + item.value if item.policy == FLOOR else item.value

    def judged(status: str, hint: str = "") -> Finding:
        return Finding("tuning.sysctl", item.name, status, seen["live"], expected, item.source or "tuning_sysctl", hint)

    boot = seen[_sysctl.BOOT]
    overruled = boot is not None and boot["file"] != own and not reaches(item, boot["value"])
    if overruled:
        return judged(
            WARN,
            "{} line {} sets {} at boot and wins over {}: remove that line, or change tuning_sysctl_overrides".format(
                boot["file"], boot["line"], boot["value"], own
            ),
        )
    if boot is None and (item.policy != FLOOR or not reaches(item, seen["live"])):
        return judged(FAIL, "No file sets it, so the next boot loses it. " + _AGAIN)
    if boot is not None and not reaches(item, boot["value"]):
        return judged(FAIL, "{} says {}. {}".format(boot["file"], boot["value"], _AGAIN))
    if not reaches(item, seen["live"]):
        if seen["obstacle"] is not None:
            return judged(SKIPPED, "not applied here: {}".format(seen["obstacle"]))
        return judged(FAIL, _AGAIN)
    by_hand = seen[_sysctl.SYSCTL_SYSTEM]
    if by_hand is not None and not reaches(item, by_hand["value"]):
        return judged(WARN, "`sysctl --system` would set {} from {}".format(by_hand["value"], by_hand["file"]))
    if item.policy == FLOOR and (boot is None or boot["file"] != own):
        return judged(OK, "kept as it is: {} has it".format("the kernel" if boot is None else boot["file"]))
    return judged(OK)


def swap(facts: Mapping[str, Any], wanted_off: bool) -> Finding:
    """Judge swap: nothing active, and nothing left that brings it back."""
    seen = facts["swap"]
    active = [area["path"] for area in seen["active"]]

    def judged(status: str, value: Any, hint: str = "") -> Finding:
        return Finding("tuning.swap", "node", status, value, "no swap, now and after a boot", "tuning_swap_off", hint)

    if not wanted_off:
        return judged(SKIPPED, active, "switched off by tuning_swap_off")
    if seen["sources"]:
        return judged(FAIL, {"active": active, "sources": seen["sources"]}, _AGAIN + ": it disables these sources")
    if active and facts["container"]:
        return judged(SKIPPED, active, "not applied here: " + _sysctl.HOST_KEY)
    if active:
        note = "; vm.swappiness 0 does not turn swap off" if seen["swappiness"] == "0" else ""
        return judged(FAIL, active, _AGAIN + ", or find out what switched swap on" + note)
    broken = seen["broken_fstab_lines"]
    if broken:
        lines = ", ".join(str(line["line"]) for line in broken)
        return judged(WARN, "none", f"/etc/fstab has fewer than three fields in line {lines}; left as it is")
    return judged(OK, "none")


def sysfs(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> list[Finding]:
    """Judge huge pages, CPU governor and PCIe link power."""
    found = []
    chosen = {name: (seen, wanted) for name, seen, wanted in _tuning_plan.sysfs_choices(facts, wants)}
    for name, variable in _VARIABLES.items():
        check = "tuning." + name
        if name not in chosen:
            found.append(_skipped(check, "node", f"switched off by {variable}: keep"))
            continue
        seen, wanted = chosen[name]
        if seen is None:
            found.append(_skipped(check, "node", "this machine has no such setting", None, wanted, variable))
            continue
        current = seen["current"]
        hint = ""
        if current == wanted or (isinstance(current, Mapping) and list(current) == [wanted]):
            status = OK
        elif seen["obstacle"] is not None:
            status, hint = SKIPPED, "not applied here: {}".format(seen["obstacle"])
        elif wanted not in seen["available"]:
            status, hint = WARN, "not on offer here; {} can be one of {}".format(variable, ", ".join(seen["available"]))
        elif name == "aspm":
            status, hint = WARN, "the firmware may keep link power to itself; look into its setup"
        else:
            status, hint = FAIL, _AGAIN + ", or find out what changed it"
        found.append(Finding(check, "node", status, current, wanted, variable, hint))
    return found


def limits(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> list[Finding]:
    """Judge the limits that the running systemd gives to services, and the file for logins."""
    if not wants["limits"]:
        return [_skipped("tuning.limits", "services", "switched off by tuning_limits_enabled")]
    try:
        wanted = _tuning_plan.effective_limits(facts, wants)
    except ValueError as fault:
        return [Finding("tuning.limits", "services", ERROR, hint=str(fault))]
    found = []
    for name in sorted(wanted):
        variable = "tuning_limits_" + name.replace("DefaultLimit", "").lower()
        running = _tuning_plan.running_limit(facts, name)
        expected = _tuning_plan.format_limit(wanted[name])
        value = None if running is None else _tuning_plan.format_limit(running)
        other = _tuning_plan.overruled_limits(facts, name)
        if other is not None:
            status, hint = WARN, f"{other} has a later name and wins over {_tuning_plan.SYSTEMD_LIMITS}"
        elif running is None:
            status, hint = SKIPPED, "not applied here: no systemd runs"
        elif running == wanted[name]:
            status, hint = OK, ""
        else:
            status, hint = FAIL, _AGAIN
        found.append(Finding("tuning.limits", name, status, value, expected, variable, hint))
    texts = {entry["path"]: entry["content"] for entry in _tuning_plan.plan(facts, wants)["files"]}
    for path in (_tuning_plan.SYSTEMD_LIMITS, _tuning_plan.LOGIN_LIMITS):
        right = facts["files"].get(path) == texts[path]
        found.append(
            Finding(
                "tuning.limits",
                path,
                OK if right else FAIL,
                "as wanted" if right else "absent or changed",
                "as wanted",
                "tuning_limits_enabled",
                "" if right else _AGAIN,
            )
        )
    return found


def i915(facts: Mapping[str, Any], options: Mapping[str, Any]) -> list[Finding]:
    """Judge the parameters of Intel's graphics driver, where it is loaded at all."""
    if not options:
        return []
    if not facts["i915"]["present"]:
        return [_skipped("tuning.i915", "node", "i915 is not loaded on this machine")]
    found = []
    for name in sorted(options):
        value = facts["i915"]["parameters"].get(name)
        wanted = str(options[name])
        if value == wanted:
            status, hint = OK, ""
        elif value is None:
            status, hint = WARN, "this kernel's i915 has no such parameter"
        else:
            status, hint = (
                WARN,
                "taken up at the next boot; where i915 is in the initramfs, `update-initramfs -u` first",
            )
        found.append(Finding("tuning.i915", name, status, value, wanted, "tuning_i915_options", hint))
    return found


def peer_traffic(facts: Mapping[str, Any], wanted: str) -> Finding:
    """Judge whether GPUs can reach each other without a detour. Nothing is changed: it may be wanted as it is.

    Access control (ACS) on bridges sends peer traffic up to the root complex, and address translation (IOMMU) has
    each access looked up there: peer transfers get slow or hang.
    """
    gpus = facts["pci"]["gpus"]

    def judged(status: str, value: Any, hint: str = "") -> Finding:
        return Finding("tuning.peer_traffic", "node", status, value, "direct", "tuning_peer_traffic", hint)

    if wanted == "unwanted" or (wanted == "auto" and len(gpus) < 2):
        reason = "not wanted (tuning_peer_traffic)" if wanted == "unwanted" else "fewer than two GPUs"
        return judged(SKIPPED, None, reason)
    if facts["container"] or facts["virtual"]:
        where = "container" if facts["container"] else "virtual machine"
        return judged(SKIPPED, None, f"decided by the host of this {where}")
    if any(gpu["driver"] == "vfio-pci" for gpu in gpus):
        return judged(SKIPPED, None, "GPUs are passed to virtual machines, which need the separation")
    if any(gpu["acs_redirect"] is None for gpu in gpus):
        return judged(ERROR, None, "PCI configuration space cannot be read; run as root")
    bridges = sorted({bridge for gpu in gpus for bridge in gpu["acs_redirect"]})
    translated = translating(facts)
    if not bridges and not translated:
        return judged(OK, "direct")
    advice = []
    if bridges:
        advice.append("ACS redirects peer traffic at {}: switch it off in the firmware".format(", ".join(bridges)))
    if translated:
        advice.append("the IOMMU translates for {}: boot with iommu=pt".format(", ".join(translated)))
    hint = "; ".join(advice) + ". Leave both as they are where GPUs are passed to virtual machines"
    return judged(WARN, {"acs_redirect": bridges, "iommu_translated": translated}, hint)


def translating(facts: Mapping[str, Any]) -> list[str]:
    """Return the GPUs whose accesses the IOMMU translates: by their group's type, else by the kernel command line."""
    seen = facts["pci"]
    untranslated = {"iommu=pt", "iommu=off", "intel_iommu=off", "amd_iommu=off", "iommu.passthrough=1"}
    by_command_line = bool(seen["iommus"]) and untranslated.isdisjoint(seen["cmdline"])
    return [
        gpu["address"] for gpu in seen["gpus"] if (gpu["iommu"].startswith("DMA") if gpu["iommu"] else by_command_line)
    ]


def _skipped(
    check: str, target: str, reason: str, value: Any = None, expected: Any = None, source: str = ""
) -> Finding:
    return Finding(check, target, SKIPPED, value, expected, source, reason)
