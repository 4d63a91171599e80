# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Swap: everything that brings it up, now or at the next boot, and how each is put out of action for good.

Sources: active areas in /proc/swaps, lines of type swap in /etc/fstab, systemd ``*.swap`` units (written by hand, made
by a generator from fstab or from GPT partition types), zram (systemd-zram-generator, zram-tools and relatives).
``vm.swappiness = 0`` is not a source and not a cure: it only makes swapping rarer.
"""

from __future__ import annotations

import configparser
import dataclasses
import os
import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import (
    CommandResult,
    Runner,
    list_dir,
    path_below,
    read_text,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._sysctl import HOST_KEY, container_kind
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import diff_entry, read_bytes, replace_file

FSTAB = "/etc/fstab"
#: Which masks are ours, so that they can be taken away again.
RECORD = _state.STATE_DIR + "/swap.json"
MASKS = "/etc/systemd/system"
#: Put before a line of fstab that is taken out of use; the rest of the line stays as it was, byte for byte.
MARK = "# swap is off on a GPU node (aiinfra.gpu_node, role tuning): "
#: A unit file that an administrator wrote under /etc stands in the way of a mask and moves aside under this ending.
ASIDE = ".gpu-node-off"

#: systemd's own order, strongest first.
UNIT_DIRECTORIES = (
    MASKS,
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
#: Services of packages that make swap by themselves.
SERVICES = (
    "dphys-swapfile.service",
    "swapspace.service",
    "zram-config.service",
    "zram-swap.service",
    "zramswap.service",
)
_GENERATORS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_ZRAM_CONFIGS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
_OCTAL = re.compile(r"\\([0-7]{3})")


class SwapError(Exception):
    """Swap cannot be put out of action; the text says what stands in the way."""


@dataclasses.dataclass(frozen=True)
class Active:
    """One line of /proc/swaps."""

    path: str
    kind: str
    size_kib: int
    used_kib: int


@dataclasses.dataclass(frozen=True)
class Facts:
    """What brings swap up on this machine.

    Args:
        container: Kind of container, empty on a machine of its own; /proc/swaps of a container shows the host.
        active: Areas in use.
        fstab_lines: Numbers of the lines of type swap.
        broken_lines: Number and text of lines with fewer than three fields.
        units: Unmasked ``*.swap`` units and where each file lies; empty for one that the zram generator would make.
        services: Unmasked services that make swap.
        swappiness: Live value of vm.swappiness.
    """

    container: str
    active: tuple[Active, ...]
    fstab_lines: tuple[int, ...]
    broken_lines: tuple[tuple[int, str], ...]
    units: tuple[tuple[str, str], ...]
    services: tuple[str, ...]
    swappiness: str | None

    @property
    def sources(self) -> list[str]:
        """What would bring swap back, one line for people each."""
        return (
            [f"{FSTAB} line {number}" for number in self.fstab_lines]
            + ["unit {}{}".format(name, f" ({path})" if path else "") for name, path in self.units]
            + [f"service {name}" for name in self.services]
        )

    @property
    def doubtful_lines(self) -> list[tuple[int, str]]:
        """Broken lines of fstab that speak of swap: whether they are swap entries cannot be told."""
        return [(number, text) for number, text in self.broken_lines if "swap" in text.lower()]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "container": self.container,
            "active": [dataclasses.asdict(area) for area in self.active],
            "sources": self.sources,
            "broken_fstab_lines": [{"line": number, "text": text} for number, text in self.broken_lines],
            "doubtful_fstab_lines": [{"line": number, "text": text} for number, text in self.doubtful_lines],
            "swappiness": self.swappiness,
        }


def parse_proc_swaps(text: str) -> list[Active]:
    """Return the active areas; blanks in a path are octal escapes there."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 4 and fields[2].isdigit() and fields[3].isdigit():
            path = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), fields[0])
            found.append(Active(path, fields[1], int(fields[2]), int(fields[3])))
    return found


def scan_fstab(text: str) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the numbers of swap lines, and number and text of broken lines.

    A swap line is one whose third field is ``swap``: a mount point, label or option of that name does not count.
    """
    swaps, broken = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) < 3:
            broken.append((number, line.strip()))
        elif fields[2] == "swap":
            swaps.append(number)
    return swaps, broken


def disable_fstab_lines(content: bytes, numbers: list[int]) -> bytes:
    """Return fstab with the given lines commented out and every other byte as it was."""
    lines = content.split(b"\n")
    for number in numbers:
        lines[number - 1] = MARK.encode("ascii") + lines[number - 1]
    return b"\n".join(lines)


def collect(root: str = "/") -> Facts:
    """Look at every source. Only files are read; no command runs."""
    swaps, broken = scan_fstab((read_bytes(root, FSTAB) or b"").decode("utf-8", "replace"))
    units = _units(root)
    chosen = {name: path for name, path in units.items() if name.endswith(".swap") and not _masked(root, path)}
    for name in _zram_units(root):
        if name not in units:
            chosen[name] = ""
    swappiness = read_text(root, "/proc/sys/vm/swappiness")
    return Facts(
        container=container_kind(root),
        active=tuple(parse_proc_swaps(read_text(root, "/proc/swaps") or "")),
        fstab_lines=tuple(swaps),
        broken_lines=tuple(broken),
        units=tuple(sorted(chosen.items())),
        services=tuple(name for name in SERVICES if name in units and not _masked(root, units[name])),
        swappiness=None if swappiness is None else swappiness.strip(),
    )


def _units(root: str) -> dict[str, str]:
    """Return name to file of every swap unit and swap-making service, the strongest directory first."""
    found: dict[str, str] = {}
    for directory in UNIT_DIRECTORIES:
        for name in list_dir(root, directory):
            if name.endswith(".swap") or name in SERVICES:
                found.setdefault(name, f"{directory}/{name}")
    return found


def _masked(root: str, path: str) -> bool:
    """Whether a unit file is a mask: a link to /dev/null, or empty."""
    file = path_below(root, path)
    if os.path.islink(file) and os.readlink(file) == "/dev/null":
        return True
    try:
        return os.path.isfile(file) and os.path.getsize(file) == 0
    except OSError:
        return False


def _zram_units(root: str) -> list[str]:
    """Return the swap units that systemd-zram-generator makes from its configuration."""
    if not any(
        os.path.exists(path_below(root, base + "/systemd/system-generators/zram-generator")) for base in _GENERATORS
    ):
        return []
    parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    main = next((text for text in (read_text(root, d + "/zram-generator.conf") for d in _ZRAM_CONFIGS) if text), None)
    for text in [main] + _drop_ins(root):
        try:
            parser.read_string(text or "")
        except configparser.Error:
            continue
    return [
        f"dev-{section}.swap"
        for section in parser.sections()
        if re.match(r"zram[0-9]+\Z", section)
        and not parser.get(section, "mount-point", fallback="")
        and parser.get(section, "fs-type", fallback="swap") == "swap"
    ]


def _drop_ins(root: str) -> list[str | None]:
    files: dict[str, str] = {}
    for directory in _ZRAM_CONFIGS:
        for name in list_dir(root, directory + "/zram-generator.conf.d"):
            files.setdefault(name, f"{directory}/zram-generator.conf.d/{name}")
    return [read_text(root, files[name]) for name in sorted(files) if name.endswith(".conf")]


def disable(runner: Runner, root: str = "/", check_mode: bool = False) -> dict[str, Any]:
    """Put every source out of action and switch active areas off; return the module's result.

    What lasts comes first, so that a run that is killed leaves no source half disabled and the next run finishes.

    Raises:
        SwapError: for a line of fstab that cannot be judged, memory that cannot take in what is swapped out, an area
            that stays active, or a service that cannot be stopped.
    """
    facts = collect(root)
    if facts.doubtful_lines:
        raise SwapError(describe_doubt(facts.doubtful_lines))
    result: dict[str, Any] = {
        "active_before": [area.path for area in facts.active],
        "fstab_lines": list(facts.fstab_lines),
        "masked": [name for name, _path in facts.units] + list(facts.services),
        "not_applied": [],
        "diff": [],
    }
    _fstab(facts, root, check_mode, result)
    for name in result["masked"]:
        _mask(root, name, check_mode, result)
    off = facts.active
    if facts.active and facts.container:
        result["not_applied"] = [{"name": "swapoff " + area.path, "reason": HOST_KEY} for area in facts.active]
        off = ()
    if off:
        result["diff"].append(_active_diff(off))
    if not check_mode:
        problem = _stop(runner, root, facts.services)
        _swapoff(runner, root, off)
        if problem:
            raise SwapError(problem)
    result["changed"] = bool(result["diff"])
    return result


def restore(root: str = "/", check_mode: bool = False) -> dict[str, Any]:
    """Take back what ``disable`` did to fstab and units; return the module's result. No area is switched on.

    Only masks that ``disable`` recorded are taken away: an administrator's own stay.
    """
    result: dict[str, Any] = {"active_before": [], "fstab_lines": [], "masked": [], "not_applied": [], "diff": []}
    before = read_bytes(root, FSTAB) or b""
    mark = MARK.encode("ascii")
    lines = before.splitlines(keepends=True)
    result["fstab_lines"] = [number for number, line in enumerate(lines, 1) if line.startswith(mark)]
    after = b"".join(line[len(mark) :] if line.startswith(mark) else line for line in lines)
    if after != before:
        result["diff"].append(diff_entry(FSTAB, before, after))
        if not check_mode:
            replace_file(root, FSTAB, after)
    for name in (_state.read_json(root, RECORD) or {}).get("masked", []):
        path = f"{MASKS}/{name}"
        file = path_below(root, path)
        if not os.path.islink(file) or os.readlink(file) != "/dev/null":
            continue
        entry = {"before_header": path, "after_header": path, "before": "-> /dev/null\n", "after": "as before\n"}
        result["diff"].append(entry)
        result["masked"].append(name)
        if not check_mode:
            os.unlink(file)
            if os.path.lexists(file + ASIDE):
                os.replace(file + ASIDE, file)
    if not check_mode:
        _state.remove_file(root, RECORD)
    result["changed"] = bool(result["diff"])
    return result


def describe_doubt(lines: list[tuple[int, str]]) -> str:
    """Return the message for lines of fstab that cannot be judged."""
    return "; ".join(
        f"{FSTAB} line {number} has fewer than three fields and speaks of swap: {text!r}. Complete or remove the line, "
        "or set tuning_swap_off to false"
        for number, text in lines
    )


def _fstab(facts: Facts, root: str, check_mode: bool, result: dict[str, Any]) -> None:
    if not facts.fstab_lines:
        return
    before = read_bytes(root, FSTAB) or b""
    after = disable_fstab_lines(before, list(facts.fstab_lines))
    result["diff"].append(diff_entry(FSTAB, before, after))
    if not check_mode:
        replace_file(root, FSTAB, after)


def _mask(root: str, name: str, check_mode: bool, result: dict[str, Any]) -> None:
    path = f"{MASKS}/{name}"
    file = path_below(root, path)
    aside = os.path.lexists(file)
    result["diff"].append(
        {
            "before_header": path,
            "after_header": path,
            "before": "unit can bring swap up\n",
            "after": "-> /dev/null{}\n".format(f" (file kept as {name}{ASIDE})" if aside else ""),
        }
    )
    if check_mode:
        return
    os.makedirs(os.path.dirname(file), mode=0o755, exist_ok=True)
    if aside:
        os.replace(file, file + ASIDE)
    masked = (_state.read_json(root, RECORD) or {}).get("masked", [])
    _state.write_json(root, RECORD, {"masked": sorted({*masked, name})})
    os.symlink("/dev/null", file)


def _stop(runner: Runner, root: str, services: tuple[str, ...]) -> str:
    """Stop services that make swap; return what went wrong. They are masked: the next boot is without them."""
    if not services or not os.path.isdir(path_below(root, "/run/systemd/system")):
        return ""
    done = runner.run(["systemctl", "stop", *services], timeout=600)
    if done.ok:
        return ""
    reason = done.text or f"exit status {done.rc}"
    return f"{', '.join(services)} could not be stopped and may bring swap back until the next boot: {reason}"


def _active_diff(areas: tuple[Active, ...]) -> dict[str, str]:
    return {
        "before_header": "/proc/swaps",
        "after_header": "/proc/swaps",
        "before": "".join(f"{area.path} {area.size_kib} KiB\n" for area in areas),
        "after": "",
    }


def _swapoff(runner: Runner, root: str, areas: tuple[Active, ...]) -> None:
    if not areas:
        return
    active = {area.path: area for area in parse_proc_swaps(read_text(root, "/proc/swaps") or "")}
    left = [active[area.path] for area in areas if area.path in active]
    used = sum(area.used_kib for area in left)
    available = _available_kib(root)
    if used and available is not None and used > available:
        raise SwapError(
            f"{used // 1024} MiB are swapped out but only {available // 1024} MiB of memory are available: stop some "
            "work or reboot. Nothing brings swap back at the next boot any more"
        )
    failed: set[str] = set()
    for area in left:
        done: CommandResult = runner.run(["swapoff", area.path], timeout=1800)
        if not done.ok:
            failed.add("{}: {}".format(area.path, done.text or f"exit status {done.rc}"))
    if failed:
        raise SwapError("swap stays active until the next boot: " + "; ".join(sorted(failed)))


def _available_kib(root: str) -> int | None:
    match = re.search(r"^MemAvailable:\s+([0-9]+) kB", read_text(root, "/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) if match else None
