# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the tuning role wants from its variables and the facts: the profile, the files, and what is still pending.

Pure functions: they run on the controller as filters, without a round trip to the node.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _power_limit,
    _swap,
    _sysctl,
    _tuning_info,
    _tuning_power,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._sysctl_plan import (
    FLOOR,
    HEADER,
    ProfileError,
    read_profile,
)

TMPFILES = "/etc/tmpfiles.d/gpu-node-tuning.conf"
SYSTEMD_LIMITS = "/etc/systemd/system.conf.d/60-gpu-node-limits.conf"
LOGIN_LIMITS = "/etc/security/limits.d/90-gpu-node.conf"
I915_OPTIONS = "/etc/modprobe.d/gpu-node-i915.conf"
FILES = (TMPFILES, SYSTEMD_LIMITS, LOGIN_LIMITS, I915_OPTIONS, *_tuning_power.FILES)
#: Files after whose change systemd has to read its configuration again.
SYSTEMD_FILES = (SYSTEMD_LIMITS, *_tuning_power.UNIT_FILES)
KEEP = "keep"
SHMMAX = "kernel.shmmax"
SHMALL = "kernel.shmall"

INFINITY = float("inf")
#: What systemd uses where no file says anything; a default of ours never goes below it.
_COMPILED = {"DefaultLimitMEMLOCK": (8 << 20, 8 << 20), "DefaultLimitNOFILE": (1024, 524288)}
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

#: Parameters of i915 that are gone, and what takes their place.
_GONE_I915 = {
    "enable_rc6": "it was a module parameter (never a kernel setting) and was removed in Linux 4.16: render power "
    "states are always on; enable_dc limits the display's power states",
}


def profile(
    base: Mapping[str, Any],
    overrides: Mapping[str, Any],
    shmmax_min_bytes: int = 0,
    page_size: int = 4096,
) -> dict[str, Any]:
    """Merge the profile with an inventory's overrides, key by key.

    Args:
        base: The role's profile.
        overrides: Entries merged over those of the same key; a bare value replaces the value only, null drops the key.
        shmmax_min_bytes: Raises a floor of kernel.shmmax to this, and one of kernel.shmall to the pages that it takes.
        page_size: Bytes of a page.
    """
    merged: dict[str, Any] = {}
    for source in (base, overrides):
        for name, entry in source.items():
            known = next((old for old in merged if _sysctl.to_path(old) == _sysctl.to_path(str(name))), str(name))
            if entry is None:
                merged.pop(known, None)
                continue
            old = merged.get(known)
            change = dict(entry) if isinstance(entry, Mapping) else {"value": entry}
            merged[known] = {**old, **change} if isinstance(old, Mapping) else change
    need = max(shmmax_min_bytes, _floor_value(merged.get(SHMMAX)))
    for name, floor in ((SHMMAX, need), (SHMALL, -(-need // page_size))):
        entry = merged.get(name)
        if isinstance(entry, Mapping) and entry.get("policy") == FLOOR and floor > _floor_value(entry):
            merged[name] = {**entry, "value": floor}
    return merged


def _floor_value(entry: Any) -> int:
    value = entry.get("value") if isinstance(entry, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return 0
    number = _sysctl.numbers(str(value))
    return number[0] if number is not None and len(number) == 1 else 0


def largest_card_bytes(facts: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> int:
    """Return the memory of the largest GPU on PCI by the table of cards; 0 when none is known there."""
    present = set(_tuning_info.gpu_device_ids(facts))
    sizes = [int(card["memory_mib"]) for card in cards if str(card.get("device", "")).upper() in present]
    return max(sizes, default=0) << 20


def parse_limit(text: str, name: str) -> tuple[float, float]:
    """Return the soft and the hard limit of systemd's ``VALUE`` or ``SOFT:HARD``.

    Raises:
        ValueError: with the name and what is allowed.
    """
    soft, separator, hard = str(text).strip().partition(":")
    found = (_parse_amount(soft, name), _parse_amount(hard if separator else soft, name))
    if found[0] > found[1]:
        raise ValueError(f"{name}: the soft limit of {text!r} is above the hard one")
    return found


def _parse_amount(text: str, name: str) -> float:
    if text == "infinity":
        return INFINITY
    factor = _SUFFIXES.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdigit():
        raise ValueError(f"{name}: {text!r} is no limit; allowed are a whole number, infinity, or SOFT:HARD of these")
    return int(digits) * factor


def format_limit(limit: tuple[float, float]) -> str:
    """Return a limit as systemd writes it."""
    parts = ["infinity" if part == INFINITY else str(int(part)) for part in limit]
    return parts[0] if parts[0] == parts[1] else ":".join(parts)


def effective_limits(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the limits to set: those wanted, or higher where another file or systemd itself has them higher.

    Raises:
        ValueError: for a limit that cannot be read, or more open files than the kernel can give.
    """
    memlock = parse_limit(wants["memlock"], "tuning_limits_memlock")
    nofile = parse_limit(wants["nofile"], "tuning_limits_nofile")
    most = facts.get("nr_open")
    if nofile[1] == INFINITY or (most is not None and nofile[1] > most):
        raise ValueError(
            "tuning_limits_nofile: {} is above fs.nr_open ({}); logins fail with such a limit. Raise fs.nr_open in "
            "tuning_sysctl_overrides first, or take less".format(wants["nofile"], most)
        )
    limits = {"DefaultLimitMEMLOCK": memlock, "DefaultLimitNOFILE": nofile}
    for name, wanted in limits.items():
        other = _other_limit(facts, name) or _COMPILED[name]
        floor = _COMPILED[name]
        limits[name] = (max(wanted[0], other[0], floor[0]), max(wanted[1], other[1], floor[1]))
    return limits


def _other_limit(facts: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    found = None
    for line in facts.get("limits", {}).get("files", []):
        if line["name"] == name and line["file"] != SYSTEMD_LIMITS:
            try:
                found = parse_limit(line["value"], name)
            except ValueError:
                continue
    return found


def overruled_limits(facts: Mapping[str, Any], name: str) -> str | None:
    """Return the file of a later name that sets the same limit and wins over ours, if any."""
    ours = SYSTEMD_LIMITS.rsplit("/", 1)[1]
    later = [
        line["file"]
        for line in facts.get("limits", {}).get("files", [])
        if line["name"] == name and "/system.conf.d/" in line["file"] and line["file"].rsplit("/", 1)[1] > ours
    ]
    return later[-1] if later else None


def running_limit(facts: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Return the limit that the running systemd uses; None without systemd."""
    manager = facts.get("limits", {}).get("manager") or {}
    try:
        return (_parse_amount(manager[name + "Soft"], name), _parse_amount(manager[name], name))
    except (KeyError, ValueError):
        return None


def plan(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``errors`` (one line each), ``files`` for managed_files, and what is pending now.

    ``values_pending`` names values below /sys that differ, ``values_writable`` says whether any can be written,
    ``reload_pending`` names limits that the running systemd has not taken up, ``systemd_files`` the files after whose
    change it has to read them again, and ``power_pending`` the GPUs that are not at their power limit.
    """
    errors: list[str] = []
    if wants.get("sysctl") is not None:
        try:
            read_profile(wants["sysctl"])
        except ProfileError as fault:
            errors += str(fault).split("\n")
    doubtful = facts["swap"]["doubtful_fstab_lines"]
    if wants["swap_off"] and doubtful:
        errors.append(_swap.describe_doubt([(line["line"], line["text"]) for line in doubtful]))
    limits: dict[str, tuple[float, float]] | None = None
    if wants["limits"]:
        try:
            limits = effective_limits(facts, wants)
        except ValueError as fault:
            errors.append(str(fault))
    errors += [
        f"tuning_i915_options: i915 has no parameter {name}: {_GONE_I915[name]}"
        for name in sorted(wants["i915"])
        if name in _GONE_I915
    ]
    power: dict[str, int] = {}
    try:
        power = _power_limit.read_wishes(wants["power_limit"])
    except ValueError as fault:
        errors.append(str(fault))
    texts = {
        TMPFILES: _tmpfiles(facts, wants),
        SYSTEMD_LIMITS: None if limits is None else _systemd_limits(limits),
        LOGIN_LIMITS: None if limits is None else _login_limits(limits),
        I915_OPTIONS: _i915_options(facts, wants["i915"]),
        **_tuning_power.texts(power, wants["power_program"]),
    }
    return {
        "errors": errors,
        "files": [
            {"path": path, "content": texts[path], "mode": "0755" if path == _tuning_power.PROGRAM else "0644"}
            for path in FILES
        ],
        "systemd_files": list(SYSTEMD_FILES),
        "power_pending": _tuning_power.pending(facts, power),
        "values_pending": [
            name
            for name, seen, wanted in sysfs_choices(facts, wants)
            if name != "aspm" and seen is not None and seen["obstacle"] is None and not _uses(seen, wanted)
        ],
        "values_writable": texts[TMPFILES] is not None
        and any(seen is not None and seen["obstacle"] is None for _name, seen, _wanted in sysfs_choices(facts, wants)),
        "reload_pending": [
            name
            for name, limit in (limits or {}).items()
            if overruled_limits(facts, name) is None and running_limit(facts, name) not in (None, limit)
        ],
    }


def sysfs_choices(
    facts: Mapping[str, Any], wants: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any] | None, str]]:
    """Return name, facts and wanted value of the settings below /sys that are not left alone."""
    names = ("thp", "governor", "aspm")
    return [(name, facts.get(name), wants[name]) for name in names if wants[name] != KEEP]


def _uses(seen: Mapping[str, Any], wanted: str) -> bool:
    """Whether a setting has its wanted value, or cannot have it because it is not on offer."""
    current = seen["current"]
    return wanted not in seen["available"] or (
        list(current) == [wanted] if isinstance(current, Mapping) else current == wanted
    )


def _tmpfiles(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> str | None:
    paths = {"thp": _tuning_info.THP, "governor": _tuning_info.GOVERNOR, "aspm": _tuning_info.ASPM}
    reasons = {
        "thp": 'Huge pages for programs that ask for them; "always" costs latency and memory in the others.',
        "governor": "A GPU waits for its processor: no ramp-up.",
        "aspm": "No power saving on PCIe links: waking one costs microseconds a transfer.",
    }
    lines = [
        f"\n# {reasons[name]}\nw- {paths[name]} - - - - {wanted}\n"
        for name, seen, wanted in sysfs_choices(facts, wants)
        if seen is not None and wanted in seen["available"]
    ]
    note = "# The minus: a firmware that keeps a setting to itself must not fail the boot; the role's check tells.\n"
    return HEADER + note + "".join(lines) if lines else None


def _systemd_limits(limits: Mapping[str, tuple[float, float]]) -> str:
    lines = [f"{name}={format_limit(limits[name])}\n" for name in sorted(limits)]
    note = "# Services take these at their next start. Pinned memory for GPUs counts against MEMLOCK.\n"
    return HEADER + note + "[Manager]\n" + "".join(lines)


def _login_limits(limits: Mapping[str, tuple[float, float]]) -> str:
    lines = []
    for who in ("*", "root"):
        for item, name, unit in (("memlock", "DefaultLimitMEMLOCK", 1024), ("nofile", "DefaultLimitNOFILE", 1)):
            for kind, amount in zip(("soft", "hard"), limits[name]):
                value = "unlimited" if amount == INFINITY else str(int(amount) // unit)
                lines.append(f"{who:<5}{kind:<5}{item:<8}{value}\n")
    return HEADER + "# Logins only: services take theirs from systemd. The star does not mean root.\n" + "".join(lines)


def _i915_options(facts: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    if not facts["i915"]["present"] or not options:
        return None
    words = " ".join(f"{name}={options[name]}" for name in sorted(options))
    return HEADER + f"options i915 {words}\n"


def not_applied(
    facts: Mapping[str, Any], wants: Mapping[str, Any], *results: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Return what was wanted but cannot be applied on this machine: name and reason.

    Args:
        facts: Result of tuning_info.
        wants: The role's wishes.
        results: Results of sysctl_profile and swap_off.
    """
    found = [dict(entry) for result in results for entry in result.get("not_applied") or []]
    for name, seen, wanted in sysfs_choices(facts, wants):
        if seen is not None and seen["obstacle"] is not None and not _uses(seen, wanted):
            found.append({"name": name, "reason": str(seen["obstacle"])})
    return found


def describe_not_applied(entries: Sequence[Mapping[str, str]]) -> str:
    """Return one line for people, grouped by reason."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(entry["reason"], []).append(entry["name"])
    return "Written, not applied here: " + "; ".join(
        "{} ({})".format(", ".join(names), reason) for reason, names in groups.items()
    )
