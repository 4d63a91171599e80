# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Verdicts on what is wanted of the driver, against the GPUs, the firmware and the compatibility data; pure."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _compat,
    _dpkg,
    _driver_flavour,
    _driver_names,
)
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
_VERSION = "nvidia_driver_version"
_FLAVOUR = "nvidia_driver_flavour"
_FLAVOURS = (_compat.AUTO, _compat.OPEN, _compat.PROPRIETARY)
#: Only Ubuntu's archive has modules that come compiled and signed by the distribution.
_PREBUILT_SYSTEMS = ("ubuntu",)


def findings(facts: Facts, want: Expected, data: _compat.Data, gpus: Sequence[_compat.Match]) -> list[Finding]:
    """Return the findings about GPUs, driver, Secure Boot and CUDA."""
    found = [expected_gpus(want["expect_gpus"], gpus), *known_gpus(facts, gpus)]
    if want["driver_state"] == "absent":
        return [*found, Finding("driver.version", _NODE, SKIPPED, hint="nvidia_driver_state is absent")]
    version = driver_version(want["driver_version"], data, str(facts["time"]))
    usable = version[0].status == OK
    driver = _dpkg.upstream_version(str(want["driver_version"])) if usable else ""
    return [
        *found,
        *version,
        *([support(driver, data, gpus)] if usable else []),
        *flavour(driver, want["driver_flavour"], data, gpus),
        components(want["driver_components"]),
        *repository(facts, want, data),
        secure_boot(facts, want),
        *(cuda(driver, want, data, gpus) if usable else []),
    ]


def expected_gpus(expect: Any, gpus: Sequence[_compat.Match]) -> Finding:
    """Are there as many GPUs as the inventory says? (SVC-08)"""
    name, source, have = "node.gpus", "preflight_expect_gpus", len(gpus)
    expect = _expectation(expect)
    value = f"{have} GPU(s) on the PCI bus" + (f": {_counted(gpus)}" if gpus else "")
    if isinstance(expect, bool):
        if expect and not gpus:
            hint = "Check seating, power and firmware settings, or set preflight_expect_gpus: false for this host."
            return Finding(name, "pci", FAIL, value, "at least one", source, hint)
        if not expect and not gpus:
            hint = "none is expected: everything is installed, nothing that needs a GPU is started"
            return Finding(name, "pci", OK, value, "none needed", source, hint)
        return Finding(name, "pci", OK, value, "at least one" if expect else "none needed", source)
    if not isinstance(expect, int) or expect < 0:
        hint = "Allowed are true (at least one), false (none needed) and a number."
        return Finding(name, "pci", FAIL, repr(expect), "true, false or a number", source, hint)
    if have != expect:
        hint = "A GPU is missing or one too many: check seating, power and firmware, or correct the number."
        return Finding(name, "pci", FAIL, value, f"exactly {expect}", source, hint)
    return Finding(name, "pci", OK, value, f"exactly {expect}", source)


def known_gpus(facts: Facts, gpus: Sequence[_compat.Match]) -> list[Finding]:
    """Are the GPUs known, and free for the nvidia driver?"""
    found = []
    for gpu in dict.fromkeys(gpus):
        if gpu.how in (_compat.UNKNOWN, _compat.BY_RULE):
            guess = f"treated as {gpu.title}" if gpu.title else "its generation cannot be told"
            hint = f"The id is in none of the tables, so {guess}; look it up in NVIDIA's list before you go on."
            found.append(Finding("node.gpu_known", f"10de:{gpu.device.lower()}", WARN, "unknown", None, _DATA, hint))
    for device in facts["gpus"]:
        if device.get("driver") == "vfio-pci":
            hint = "It is given to virtual machines; the nvidia driver will not see it."
            found.append(Finding("node.gpu_bound", device["address"], WARN, "vfio-pci", "nvidia", "sysfs", hint))
    return found


def driver_version(version: Any, data: _compat.Data, today: str) -> list[Finding]:
    """Is the wanted version given, exact, and of a branch that is known and maintained?"""
    name = "driver.version"
    advice = ", ".join(str(branch) for branch in _compat.living_branches(data, today[:10]))
    text = str(version) if version is not None else ""
    if not text:
        hint = f"Set nvidia_driver_version to one exact release, for example 580.65.06; maintained branches: {advice}."
        return [Finding(name, _NODE, FAIL, "not set", "an exact version", _VERSION, hint)]
    upstream = _dpkg.upstream_version(text)
    if not _compat.exact_driver(upstream):
        hint = (
            "Name one release in full, like 580.65.06, or a package's version, like 580.65.06-1; no branch or pattern."
        )
        return [Finding(name, _NODE, FAIL, text, "an exact version", _VERSION, hint)]
    row = _compat.branch_row(data, upstream)
    if row is None:
        known = ", ".join(str(one["branch"]) for one in data["branches"])
        hint = "Correct the version; a branch that is too new for this collection needs an update of the table."
        return [Finding(name, _NODE, FAIL, text, f"one of the branches {known}", f"{_VERSION}, {_DATA}", hint)]
    found = [Finding(name, _NODE, OK, text, None, _VERSION)]
    kind = {"LTSB": "long-term support", "PB": "production", "NFB": "new feature", "DEV": "developer"}[row["type"]]
    if _compat.branch_ended(row, today[:10]):
        ended = f"{row['branch']} ({kind}) has ended" + (f" in {row['eol']}" if row["eol"] else "")
        hint = f"NVIDIA fixes nothing there any more; maintained branches: {advice}."
        found.append(Finding("driver.branch", str(row["branch"]), WARN, ended, "maintained", _DATA, hint))
    else:
        until = f" until {row['eol']}" if row["eol"] else ""
        found.append(Finding("driver.branch", str(row["branch"]), OK, f"{kind}{until}", None, _DATA))
    return found


def support(driver: str, data: _compat.Data, gpus: Sequence[_compat.Match]) -> Finding:
    """Can this version drive every GPU of the node? (DRV-08)"""
    name, source = "driver.gpu", f"{_VERSION}, {_DATA}"
    problems = _compat.branch_problems(gpus, driver)
    if problems:
        return Finding(name, "pci", FAIL, "; ".join(problems), None, source)
    return Finding(
        name, "pci", OK, f"{driver} drives all GPUs of this node" if gpus else "no GPU to drive", None, source
    )


def flavour(driver: str, wanted: Any, data: _compat.Data, gpus: Sequence[_compat.Match]) -> list[Finding]:
    """Is the flavour one that drives every GPU? Judged without a usable version too, by the GPUs alone. (DRV-08)"""
    name = "driver.flavour"
    if wanted not in _FLAVOURS:
        hint = "Choose one of them; auto takes what the GPUs of the node need."
        return [Finding(name, _NODE, FAIL, str(wanted), ", ".join(_FLAVOURS), _FLAVOUR, hint)]
    choice = _compat.choose_flavour(data, gpus, driver, str(wanted))
    if choice.flavour:
        return [Finding(name, _NODE, OK, choice.flavour, None, _FLAVOUR)]
    return [Finding(name, _NODE, FAIL, problem, None, f"{_FLAVOUR}, {_DATA}") for problem in choice.problems]


def components(wanted: Any) -> Finding:
    """Are the wanted parts of the driver ones that exist?"""
    name, source, known = "driver.components", "nvidia_driver_components", _driver_names.COMPONENTS
    if isinstance(wanted, (list, tuple)) and wanted and all(one in known for one in wanted):
        return Finding(name, _NODE, OK, ", ".join(wanted), None, source)
    hint = "Give a list of these words; compute is the least."
    return Finding(name, _NODE, FAIL, str(wanted), f"a list of {', '.join(known)}", source, hint)


def repository(facts: Facts, want: Expected, data: _compat.Data) -> list[Finding]:
    """Is the source one of those that exist, and its repository given with a key that has the right fingerprint?"""
    name, source, variable = "driver.source", want["driver_source"], "nvidia_driver_source"
    if source not in _driver_names.SOURCES:
        wanted = ", ".join(_driver_names.SOURCES)
        return [Finding(name, _NODE, FAIL, str(source), wanted, variable, "Choose one of them.")]
    problems = []
    if source != "distro":
        problems = _driver_flavour.repository_problems(dict(want["driver_repo"], source=source), data, facts["os"])
    if not problems:
        return [Finding(name, _NODE, OK, source, None, variable)]
    return [Finding("driver.repository", _NODE, FAIL, problem, None, variable) for problem in problems]


def secure_boot(facts: Facts, want: Expected) -> Finding:
    """Would the firmware let a module load that is compiled on this node? (KRN-05)"""
    name, state = "node.secure_boot", facts["secure_boot"]
    value = f"Secure Boot is {state['state']}"
    if state["enforced"] is False:
        return Finding(name, _NODE, OK, value, source=state["source"])
    if state["enforced"] is None:
        container = facts["virtualisation"]["container"]
        if container:
            hint = f"a {container} container does not see its host's firmware"
            return Finding(name, _NODE, SKIPPED, value, source=state["source"], hint=hint)
        hint = "Install mokutil, or look in the firmware: with Secure Boot on, modules need an enrolled key."
        return Finding(name, _NODE, ERROR, value, "known", state["source"], hint)
    keys = state.get("keys") or []
    enrolled = [key["path"] for key in keys if key["enrolled"]]
    if enrolled:
        return Finding(name, _NODE, OK, f"{value}; modules are signed with the enrolled key {enrolled[0]}")
    prebuilt = facts["os"]["id"] in _PREBUILT_SYSTEMS and want["driver_source"] == "distro"
    if prebuilt and want["driver_prefer_prebuilt"]:
        return Finding(name, _NODE, OK, f"{value}; modules come signed from the distribution")
    seen = "; ".join(f"the key {key['path']} is not enrolled" for key in keys) or "the node has no signing key yet"
    path = keys[0]["path"] if keys else "/var/lib/dkms/mok.pub"
    make = "" if keys else "make a key with dkms generate_mok, "
    hint = (
        f"A module compiled here would be refused. On the node: {make}run mokutil --import {path}, choose a password, "
        "reboot and confirm the key at the console; then run again. Secure Boot is never switched off by this role."
    )
    return Finding(name, _NODE, FAIL, f"{value}; {seen}", "an enrolled signing key", state["source"], hint)


def cuda(driver: str, want: Expected, data: _compat.Data, gpus: Sequence[_compat.Match]) -> list[Finding]:
    """Does every wanted CUDA release run on the wanted driver and on the GPUs? (CUD-05)"""
    name, source = "driver.cuda", "preflight_cuda_releases"
    found = []
    for release in want["cuda_releases"]:
        target = f"CUDA {release}"
        if not _compat.valid_release(release):
            hint = "Write the release as text with its minor version."
            found.append(Finding(name, target, FAIL, str(release), 'for example "12.4"', source, hint))
            continue
        verdict = _compat.check_cuda(data, str(release), driver)
        refused = FAIL if want["cuda_policy"] == "refuse" else WARN
        if not verdict.ok:
            wanted = f"{verdict.minimum} or newer" if verdict.minimum else "a known release"
            hint = f"{verdict.ways_out}; or set preflight_cuda_policy: warn."
            found.append(Finding(name, target, refused, f"driver {driver}", wanted, f"{source}, {_DATA}", hint))
            continue
        problems = _compat.cuda_problems(gpus, str(release))
        found.extend(Finding(name, target, refused, problem, None, f"{source}, {_DATA}") for problem in problems)
        if not problems:
            note = (
                "" if verdict.native else "newer than the driver: minor-version compatibility, without PTX compilation"
            )
            found.append(Finding(name, target, OK, f"driver {driver}", f"{verdict.minimum} or newer", source, note))
    return found


def _expectation(value: Any) -> Any:
    """Return what text from the command line means: ``-e preflight_expect_gpus=8`` arrives as text."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("true", "yes"):
            return True
        if text in ("false", "no"):
            return False
        return int(text) if text.isdigit() else value
    return value


def _counted(gpus: Sequence[_compat.Match]) -> str:
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.label] = counts.get(gpu.label, 0) + 1
    return ", ".join(f"{number} x {label}" for label, number in counts.items())
