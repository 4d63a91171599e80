# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Verdicts on the installed driver packages: one version, all held, pinned, out of reach of the nightly updater."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_names, _driver_pins
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._repo_login import split_login
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED, WARN, Finding

RECORD = "/var/lib/gpu_node/driver.json"
#: What else of a request the record keeps.
_REQUESTED = ("source", "components", "repo_uri")


def findings(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    """Judge the packages; see ``_driver_verdict.findings`` for the arguments."""
    if not facts["packages"]:
        hint = "no package of the NVIDIA driver is installed: run the role nvidia_driver"
        return [
            Finding("driver.package_set", "node", FAIL, {}, expected.get("version"), _source(facts, expected), hint)
        ]
    members = closure(facts)
    return [
        _package_set(facts, expected),
        _database(facts, members),
        _holds(facts, members),
        _pins(facts, members),
        _unattended(facts, members),
        _record(facts, expected),
        *_request(facts, expected),
    ]


def closure(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the members of the driver's closure with the version each should have.

    The record of the installation says it; on a node without one, every installed package of the family counts.
    """
    record = facts.get("record") or {}
    members: dict[str, str] = {}
    members.update(record.get("packages") or {})
    members.update(record.get("independent") or {})
    if not members:
        members = {name: item["version"] for name, item in facts["packages"].items()}
    return dict(sorted(members.items()))


def carriers(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, str]:
    """Return the installed packages whose upstream version has to be the driver's, by name."""
    record = facts.get("record") or {}
    independent = set(record.get("independent") or {})
    source = str(expected.get("source") or record.get("source") or "distro")
    packagings = _driver_names.packagings(source, facts["os"]["id"]) if source in _driver_names.SOURCES else ()
    found = {}
    for name, item in facts["packages"].items():
        bare = name.split(":", 1)[0]
        loose = bare in independent or any(_driver_names.is_independent(kind, bare) for kind in packagings)
        if not loose and _driver_names.is_driver_version(item["upstream"]):
            found[name] = str(item["upstream"])
    return found


def _package_set(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> Finding:
    found = carriers(facts, expected)
    source = _source(facts, expected)
    versions = sorted(set(found.values()))
    wanted = expected.get("version") or (facts.get("record") or {}).get("version")
    if not versions:
        hint = "packages of the family are installed, but none that carries a driver version"
        return Finding("driver.package_set", "node", FAIL, sorted(facts["packages"]), wanted, source, hint)
    if wanted is None:
        # Nobody said which version: the one that most packages have is the measure for the rest.
        wanted = max(versions, key=lambda version: list(found.values()).count(version))
    odd = {name: version for name, version in found.items() if version != wanted}
    if not odd:
        return Finding("driver.package_set", "node", OK, wanted, wanted, source)
    names = ", ".join(f"{name} {version}" for name, version in sorted(odd.items()))
    hint = f"these packages have another version: {names}"
    return Finding("driver.package_set", "node", FAIL, odd, wanted, source, hint)


def _database(facts: Mapping[str, Any], members: Iterable[str]) -> Finding:
    unfinished = facts["package_database"]["unfinished"]
    ours = {name: state for name, state in unfinished.items() if name in set(members) | set(facts["packages"])}
    if facts["package_database"]["interrupted"]:
        hint = "dpkg was interrupted: run dpkg --configure -a"
        return Finding("driver.package_state", "node", FAIL, ours, {}, "dpkg", hint)
    # What waits for a trigger is configured otherwise; the next package run settles it.
    broken = {name: state for name, state in ours.items() if not state.startswith("triggers-")}
    hint = "left half way: run dpkg --configure -a and look at its errors" if broken else ""
    return Finding("driver.package_state", "node", FAIL if broken else OK, broken, {}, "dpkg", hint)


def _holds(facts: Mapping[str, Any], members: Mapping[str, str]) -> Finding:
    packages = facts["packages"]
    loose = [name for name in members if name in packages and not packages[name]["hold"]]
    gone = [name for name in members if name not in packages]
    held = [name for name in members if name in packages and packages[name]["hold"]]
    if loose or gone:
        hint = "; ".join(
            text
            for text in (
                "not held: {}".format(", ".join(loose)) if loose else "",
                "not installed: {}".format(", ".join(gone)) if gone else "",
            )
            if text
        )
        return Finding("driver.holds", "node", FAIL, held, list(members), RECORD, hint)
    return Finding("driver.holds", "node", OK, len(held), len(members), RECORD)


def _pins(facts: Mapping[str, Any], members: Mapping[str, str]) -> Finding:
    problems = []
    for name, version in members.items():
        pin = _driver_pins.pin_of(facts["pins"], name)
        if pin is None:
            problems.append(f"{name} has no pin")
        elif not _driver_pins.allows(pin, version):
            problems.append("{} is pinned to {} in {}, not to {}".format(name, pin["pin"], pin["file"], version))
        elif pin["priority"] < _driver_pins.FORCING:
            problems.append("{} has priority {} in {}".format(name, pin["priority"], pin["file"]))
    if not problems:
        return Finding("driver.pins", "node", OK, len(members), len(members), RECORD)
    return Finding("driver.pins", "node", FAIL, problems, len(members), RECORD, "; ".join(problems[:5]))


def _unattended(facts: Mapping[str, Any], members: Mapping[str, str]) -> Finding:
    state = facts["unattended_upgrades"]
    check, source = "driver.unattended_upgrades", "Unattended-Upgrade::Package-Blacklist"
    if not state["installed"]:
        return Finding(check, "node", SKIPPED, None, None, source, "unattended-upgrades is not installed")
    patterns = []
    for pattern in state["blacklist"]:
        try:
            patterns.append(re.compile(pattern))
        except re.error:
            hint = f"the entry {pattern!r} is no valid regular expression, so unattended-upgrades stops at it"
            return Finding(check, "node", ERROR, state["blacklist"], None, source, hint)
    # unattended-upgrades matches from the start of the name and lets the end open.
    open_names = [name for name in members if not any(pattern.match(name) for pattern in patterns)]
    if open_names:
        hint = "not on the blacklist: {}".format(", ".join(open_names))
        return Finding(check, "node", FAIL, state["blacklist"], list(members), source, hint)
    return Finding(check, "node", OK, len(members), len(members), source)


def _record(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> Finding:
    record = facts.get("record")
    wanted = expected.get("version")
    source = _source(facts, expected)
    if record is None:
        hint = "the installed set was not recorded by the role nvidia_driver, so it cannot be compared or rolled back"
        return Finding("driver.record", RECORD, WARN, None, wanted, source, hint)
    if "unreadable" in record:
        return Finding("driver.record", RECORD, ERROR, None, wanted, source, str(record["unreadable"]))
    if wanted is not None and record.get("version") != wanted:
        return Finding(
            "driver.record", RECORD, FAIL, record.get("version"), wanted, source, "run the role nvidia_driver"
        )
    moved = {
        name: facts["packages"].get(name, {}).get("version")
        for name, version in closure(facts).items()
        if facts["packages"].get(name, {}).get("version") != version
    }
    if moved:
        hint = "changed since the installation: {}".format(", ".join(sorted(moved)))
        return Finding("driver.record", RECORD, FAIL, moved, record.get("version"), RECORD, hint)
    return Finding("driver.record", RECORD, OK, record.get("version"), wanted, source)


def _request(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    """Judge whether the installed driver still is what the inventory asks for, beside its version."""
    record = facts.get("record") or {}
    wanted = {key: expected[key] for key in _REQUESTED if expected.get(key) is not None and key in record}
    if not wanted:
        return []
    have = {key: record[key] for key in wanted}
    if "repo_uri" in wanted:
        # A record of former times may have the login in it.
        have["repo_uri"] = split_login(str(have["repo_uri"]))[0]
    if "components" in wanted:
        wanted["components"], have["components"] = sorted(wanted["components"]), sorted(have["components"] or [])
    odd = [key for key in wanted if wanted[key] != have[key]]
    names = ", ".join(f"nvidia_driver_{key}" for key in (odd or wanted))
    if not odd:
        return [Finding("driver.request", RECORD, OK, have, wanted, names)]
    told = "; ".join("{} is {}, not {}".format(key, have[key] or "none", wanted[key] or "none") for key in odd)
    hint = f"the inventory asks for another driver than the installed one ({told}): run the role nvidia_driver"
    return [
        Finding(
            "driver.request",
            RECORD,
            FAIL,
            {key: have[key] for key in odd},
            {key: wanted[key] for key in odd},
            names,
            hint,
        )
    ]


def _source(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    return (
        "nvidia_driver_version" if expected.get("version") else RECORD if facts.get("record") else "installed packages"
    )
