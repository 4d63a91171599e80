# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Verdicts on the machine itself, before anything is done to it: pure, and all of them in one go.

Verdicts on driver, CUDA and GPUs are in _preflight_driver.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _compat, _preflight_driver
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import (
    ERROR,
    FAIL,
    OK,
    SKIPPED,
    WARN,
    Finding,
)

Facts = Mapping[str, Any]
Expected = Mapping[str, Any]

_NODE = "node"
_DATA = "files/compatibility.yml"
#: What the expectation may leave out; the role always gives everything.
DEFAULTS: dict[str, Any] = {
    "ram_min_gib": 32,
    "ram_per_gpu_memory": 2.0,
    "ram_reserved_percent": 5,
    "gpu_memory_mib": 0,
    "cores_per_gpu_min": 2,
    "cores_per_gpu_recommended": 4,
    "root_fs_max_percent": 85,
    "require_clock_sync": True,
    "expect_gpus": True,
    "accept": [],
    "driver_state": "present",
    "driver_version": "",
    "driver_source": "distro",
    "driver_repo": {},
    "driver_components": ["compute"],
    "driver_flavour": "auto",
    "driver_prefer_prebuilt": True,
    "cuda_releases": [],
    "cuda_policy": "refuse",
}


def findings(facts: Facts, expected: Expected, data: _compat.Data) -> list[Finding]:
    """Return all findings of preflight about a node.

    Args:
        facts: What module node_info returned.
        expected: The role's variables, by the names in ``DEFAULTS``.
        data: The compatibility data.
    """
    want = dict(DEFAULTS, **expected)
    gpus = _compat.matches(data, facts["gpus"])
    found = [
        *operating_system(facts, data),
        interpreter(facts),
        *ram(facts, want, gpus),
        *cores(facts, want, gpus),
        root_fs(facts, want),
        *package_database(facts),
        clock(facts, want),
        fstab(facts),
        compiler(facts),
        *addresses(facts),
        *_preflight_driver.findings(facts, want, data, gpus),
    ]
    return accept(found, want["accept"])


def accept(found: Iterable[Finding], names: Sequence[str]) -> list[Finding]:
    """Turn failures of the checks that the operator accepts into warnings; what is unknown stays an error."""
    return [
        dataclasses.replace(one, status=WARN, hint=f"accepted by preflight_accept; {one.hint}")
        if one.status == FAIL and one.check in names
        else one
        for one in found
    ]


def operating_system(facts: Facts, data: _compat.Data) -> list[Finding]:
    """Is this an operating system and an architecture that the roles know?"""
    system = facts["os"]
    name = system["name"] or f"{system['id']} {system['version']}".strip() or "unknown"
    known = ", ".join(f"{row['id']} {row['version']} ({row['level']})" for row in data["operating_systems"])
    row = _compat.supported_system(data, system["id"], system["version"])
    if row is None:
        hint = "Install one of these systems, or take the node out of the group gpu_nodes."
        return [Finding("node.os", _NODE, FAIL, name, known, _DATA, hint)]
    found = [Finding("node.os", _NODE, OK, name, None, _DATA, f"support level: {row['level']}")]
    machine = facts["architecture"]
    level = row["architectures"].get(machine)
    if level is None:
        wanted = ", ".join(row["architectures"])
        hint = "NVIDIA's driver exists for these architectures only."
        found.append(Finding("node.architecture", _NODE, FAIL, machine, wanted, _DATA, hint))
    elif level == "untested":
        hint = "The roles should work here, but nobody has tried: start with one node."
        found.append(Finding("node.architecture", _NODE, WARN, machine, None, _DATA, hint))
    else:
        found.append(Finding("node.architecture", _NODE, OK, machine, None, _DATA))
    return found


def interpreter(facts: Facts) -> Finding:
    """Can the Python that runs the modules use apt? One from pyenv or a virtual environment cannot."""
    python = facts["interpreter"]
    name, value = "node.interpreter", f"{python['path']} ({python['version']})"
    if python["apt"]:
        return Finding(name, _NODE, OK, value)
    if python["system_python_has_apt"]:
        hint = "Set ansible_python_interpreter: /usr/bin/python3 for this host; only the system's Python has apt_pkg."
    else:
        hint = (
            "Install the package python3-apt, and set ansible_python_interpreter: /usr/bin/python3 if this host uses "
            "another Python."
        )
    seen = f"{value} cannot use apt: {python['reason']}"
    return Finding(name, _NODE, FAIL, seen, "a Python with apt_pkg", "ansible_python_interpreter", hint)


def ram(facts: Facts, want: Expected, gpus: Sequence[_compat.Match]) -> list[Finding]:
    """Is there enough memory, at all and for the GPUs? A few percent that firmware and kernel keep are allowed for."""
    have = facts["memory_mib"]
    if have is None:
        hint = "The node does not tell its memory: is /proc mounted?"
        return [Finding("node.ram", _NODE, ERROR, "unreadable", source="/proc/meminfo", hint=hint)]
    share = 1 - want["ram_reserved_percent"] / 100.0
    least = want["ram_min_gib"] * 1024
    source = "preflight_ram_min_gib"
    hint = "Add memory, or set preflight_ram_min_gib for this host."
    found = [_at_least("node.ram", have, least, share, source, hint)]
    if not gpus:
        return [*found, Finding("node.ram_per_gpu", _NODE, SKIPPED, hint="no GPU on the PCI bus")]
    unknown = [gpu for gpu in gpus if gpu.memory_mib is None]
    if unknown and not want["gpu_memory_mib"]:
        text = ", ".join(dict.fromkeys(gpu.label for gpu in unknown))
        hint = "Its memory is not in the table: set preflight_gpu_memory_mib to the memory of one of these GPUs."
        return [*found, Finding("node.ram_per_gpu", _NODE, WARN, text, source="preflight_gpu_memory_mib", hint=hint)]
    total = sum(want["gpu_memory_mib"] if gpu.memory_mib is None else gpu.memory_mib for gpu in gpus)
    least = want["ram_per_gpu_memory"] * total
    source = f"preflight_ram_per_gpu_memory: {want['ram_per_gpu_memory']:g} x {_gib(total)} of GPU memory"
    hint = "Add memory, or set preflight_ram_per_gpu_memory for this host; models load through it."
    return [*found, _at_least("node.ram_per_gpu", have, least, share, source, hint)]


def cores(facts: Facts, want: Expected, gpus: Sequence[_compat.Match]) -> list[Finding]:
    """Are there enough physical cores for each GPU?"""
    name = "node.cores_per_gpu"
    if not gpus:
        return [Finding(name, _NODE, SKIPPED, hint="no GPU on the PCI bus")]
    have = facts["cpu"]["cores"]
    if have is None:
        hint = "Neither /sys/devices/system/cpu nor /proc/cpuinfo tells the physical cores of this processor."
        return [Finding(name, _NODE, ERROR, "unreadable", source=facts["cpu"]["source"], hint=hint)]
    each = have / len(gpus)
    value = f"{have} physical cores for {len(gpus)} GPU(s)"
    least, wish = want["cores_per_gpu_min"], want["cores_per_gpu_recommended"]
    if each < least:
        hint = "Take a larger processor, fewer GPUs, or set preflight_cores_per_gpu_min for this host."
        return [Finding(name, _NODE, FAIL, value, f"at least {least:g} each", "preflight_cores_per_gpu_min", hint)]
    if each < wish:
        hint = "It works, but feeding the GPUs may become the bottleneck."
        return [Finding(name, _NODE, WARN, value, f"{wish:g} each", "preflight_cores_per_gpu_recommended", hint)]
    return [Finding(name, _NODE, OK, value, f"{wish:g} each", "preflight_cores_per_gpu_recommended")]


def root_fs(facts: Facts, want: Expected) -> Finding:
    """Is there room on the root file system? Packages, kernels and compiled modules land there."""
    name, disk, limit = "node.root_fs", facts["root_fs"], want["root_fs_max_percent"]
    if disk["used_percent"] is None:
        return Finding(name, "/", ERROR, "unreadable", hint=str(disk.get("reason") or "statvfs gives no answer"))
    value = f"{disk['used_percent']} % of {_gib(disk['size_mib'])} used"
    source = "preflight_root_fs_max_percent"
    hint = "Free space first (apt-get clean, journalctl --vacuum-size=200M, old kernels), or enlarge the file system."
    if disk["used_percent"] >= limit:
        return Finding(name, "/", FAIL, value, f"below {limit} %", source, hint)
    if (disk["inodes_percent"] or 0) >= limit:
        value = f"{disk['inodes_percent']} % of the inodes used"
        return Finding(name, "/", FAIL, value, f"below {limit} %", source, "Many small files fill the file system.")
    return Finding(name, "/", OK, value, f"below {limit} %", source)


def package_database(facts: Facts) -> list[Finding]:
    """Is dpkg's database clean, and free for us?"""
    packages = facts["packages"]
    return [_unfinished(packages), _lock(packages)]


def clock(facts: Facts, want: Expected) -> Finding:
    """Is the clock synchronised? Signatures of repositories and certificates, and every log, depend on it."""
    name, state = "node.clock", facts["clock"]
    container = facts["virtualisation"]["container"]
    value = {True: "synchronised", False: "not synchronised", None: "unknown"}[state["synchronised"]]
    if state["synchronised"]:
        return Finding(name, _NODE, OK, value, source=state["source"])
    if container:
        return Finding(name, _NODE, SKIPPED, value, hint=f"the clock of this {container} container is kept by its host")
    status = FAIL if want["require_clock_sync"] else WARN
    if state["synchronised"] is None and want["require_clock_sync"]:
        status = ERROR
    hint = (
        "Install and start a time service (systemd-timesyncd or chrony) and let it reach its servers, "
        "or set preflight_require_clock_sync: false."
    )
    return Finding(name, _NODE, status, value, "synchronised", "preflight_require_clock_sync", hint)


def fstab(facts: Facts) -> Finding:
    """Can every line of /etc/fstab be read?"""
    bad = facts["fstab"]
    if not bad:
        return Finding("node.fstab", "/etc/fstab", OK, "well formed")
    value = "; ".join(f"line {one['line']}: {one['text']!r} has {one['reason']}" for one in bad)
    hint = "Correct these lines by hand and prove them with findmnt --verify."
    return Finding("node.fstab", "/etc/fstab", FAIL, value, "lines as fstab(5) wants them", "fstab(5)", hint)


def compiler(facts: Facts) -> Finding:
    """Would a module be built with the compiler that built the kernel? (KRN-03)"""
    name, gcc = "node.compiler", facts["compiler"]
    container = facts["virtualisation"]["container"]
    if container:
        return Finding(name, _NODE, SKIPPED, hint=f"the kernel of this {container} container is its host's")
    if gcc["kernel"] is None:
        return Finding(name, _NODE, SKIPPED, hint="the kernel does not say which gcc built it")
    if gcc["default"] is None:
        return Finding(name, _NODE, OK, f"gcc {gcc['kernel']} built the kernel", hint="no default gcc installed yet")
    if gcc["default"] != gcc["kernel"]:
        hint = f"Install gcc-{gcc['kernel']}; if /usr/bin/gcc was redirected by hand, put it back."
        value = f"/usr/bin/gcc is version {gcc['default']}"
        return Finding(name, _NODE, WARN, value, f"{gcc['kernel']}, which built the kernel", "/proc/version", hint)
    return Finding(name, _NODE, OK, f"gcc {gcc['kernel']}")


def addresses(facts: Facts) -> list[Finding]:
    """Does every package source answer?"""
    name, found = "node.package_source", []
    if facts.get("addresses") is None:
        return [Finding(name, _NODE, SKIPPED, hint="preflight_check_addresses is false")]
    if facts["sources_error"]:
        hint = "Correct this file; apt does nothing at all until then."
        found.append(Finding(name, "/etc/apt", FAIL, facts["sources_error"], "readable sources", "/etc/apt", hint))
    for entry in facts["addresses"]:
        target = f"{entry['uri']} {entry['suite']}"
        origin = str(entry["origin"])
        if entry["reachable"]:
            found.append(Finding(name, target, OK, "answers", source=origin))
        elif entry["reachable"] is None:
            found.append(Finding(name, target, SKIPPED, source=origin, hint=entry["detail"]))
        else:
            hint = f"Check network, proxy and address, or correct the entry in {origin}."
            found.append(Finding(name, target, FAIL, entry["detail"], "an index that answers", origin, hint))
    if not found:
        hint = "Give the node a package source in /etc/apt/sources.list.d."
        found.append(Finding(name, _NODE, FAIL, "none", "at least one", "/etc/apt", hint))
    return found


def _unfinished(packages: Facts) -> Finding:
    name, target = "node.packages", "/var/lib/dpkg/status"
    if not packages["readable"]:
        hint = "The status file of dpkg is missing or unreadable; restore it from /var/backups/dpkg.status.*."
        return Finding(name, target, ERROR, "unreadable", hint=hint)
    parts = [f"{one['name']} is {one['status']}" for one in packages["unfinished"]]
    if packages["interrupted"]:
        parts.append("dpkg was killed before it could write its journal")
    mark = packages["transaction"]
    if mark is not None:
        started = mark.get("started") or "an earlier time"
        value = "; ".join([f"a run of this collection, started {started}, was cut off", *parts])
        return Finding(name, target, WARN, value, "clean", target, "Nothing to do: it will be repaired by this run.")
    if not parts:
        return Finding(name, target, OK, "clean")
    hint = "Repair it with dpkg --configure -a (then apt-get -f install), and look why it broke: /var/log/dpkg.log."
    return Finding(name, target, FAIL, "; ".join(parts), "clean", target, hint)


def _lock(packages: Facts) -> Finding:
    name, target, holder = "node.package_lock", "/var/lib/dpkg/lock-frontend", packages["lock"]
    if holder is None:
        return Finding(name, target, OK, "free")
    who = holder["command"] or "a process of another container"
    value = f"held by process {holder['pid']} ({who}) for more than {holder.get('waited', 0):g} s"
    hint = "Wait until it ends (systemctl list-jobs shows automatic upgrades), or raise preflight_lock_wait."
    return Finding(name, target, FAIL, value, "free", "preflight_lock_wait", hint)


def _at_least(name: str, have: int, least: float, share: float, source: str, hint: str) -> Finding:
    enough = have >= least * share
    return Finding(
        name, _NODE, OK if enough else FAIL, _gib(have), f"at least {_gib(least)}", source, "" if enough else hint
    )


def _gib(mib: float) -> str:
    return f"{mib / 1024.0:.1f}".rstrip("0").rstrip(".") + " GiB"
