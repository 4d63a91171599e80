# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What drifts on a node beside what every role verifies: apt sources, the last known good state, the boot default.

Nothing here says that a node may not serve; it says what will surprise somebody later. All of it is read from files.
"""

from __future__ import annotations

import datetime
import os
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _apt_prefs,
    _apt_sources,
    _dkms_guard,
    _driver_record,
    _grub,
    _lkg_store,
    _repo_login,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernels import release_key
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, SKIPPED, WARN, Finding
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below


def collect(root: str = "/") -> dict[str, Any]:
    """Return ``foreign_sources`` (file, address, suite), ``last_known_good`` and ``no_autoinstall``.

    ``last_known_good`` has time, version, kernel and damage, or only the reason why there is none. ``no_autoinstall``
    says whether DKMS is told to build nothing.
    """
    sources = _apt_sources.read_sources(root, ignore=(_apt_prefs.SOURCES_PATH,))
    foreign = _driver_record.release_origins(root, sources)
    found = []
    for source in sources:
        if not source.enabled:
            continue
        for uri in source.uris:
            for suite in source.suites:
                if (_apt_sources.plain_uri(uri), suite) in foreign:
                    found.append({"file": source.path, "uri": _repo_login.split_login(uri)[0], "suite": suite})
    manifest = _lkg_store.load(root)
    good = {
        "reason": _lkg_store.explain(root),
        "time": manifest.time if manifest else None,
        "version": manifest.version if manifest else None,
        "kernel": manifest.kernel if manifest else None,
        "damage": manifest.damage() if manifest else [],
    }
    return {
        "foreign_sources": found,
        "last_known_good": good,
        "no_autoinstall": os.path.exists(path_below(root, _dkms_guard.SWITCH)),
    }


def findings(facts: Mapping[str, Any], drift: Mapping[str, Any], now: str) -> list[Finding]:
    """Return what drifted.

    Args:
        facts: What the module driver_info returned under ``driver``.
        drift: What ``collect`` returned.
        now: The present, as ``2026-01-31T12:00:00Z``.
    """
    return [
        *_sources(drift),
        _record(facts, drift["last_known_good"], now),
        _default(facts, drift["last_known_good"]),
        *_untried(facts),
        _autoinstall(drift),
        _rolled_back(facts),
    ]


def _sources(drift: Mapping[str, Any]) -> list[Finding]:
    check = "drift.apt_source"
    if not drift["foreign_sources"]:
        return [Finding(check, "node", OK, [], [], "/etc/apt")]
    hint = "neither the distribution's nor the driver's repository: pins keep its driver packages away, nothing else"
    return [
        Finding(check, one["file"], WARN, "{} {}".format(one["uri"], one["suite"]), None, "/etc/apt", hint)
        for one in drift["foreign_sources"]
    ]


def _record(facts: Mapping[str, Any], good: Mapping[str, Any], now: str) -> Finding:
    check, source = "drift.last_known_good", _lkg_store.DIRECTORY
    if good["time"] is None:
        hint = "there is no way back ({}): verify.yml records one on a node that passes".format(good["reason"])
        return Finding(check, "node", FAIL, None, "a record", source, hint)
    age = (_moment(now) - _moment(str(good["time"]))).days
    value = {"version": good["version"], "kernel": good["kernel"], "age_days": age}
    if good["damage"]:
        hint = "its files are damaged, so there is no way back: {}".format("; ".join(good["damage"]))
        return Finding(check, "node", FAIL, value, "whole files", source, hint)
    version = (facts["record"] or {}).get("version")
    wanted = {"version": version, "kernel": facts["running_kernel"]}
    if version and (good["version"], good["kernel"]) != (version, facts["running_kernel"]):
        hint = "a rollback would lead elsewhere: verify.yml records what runs now, if it passes"
        return Finding(check, "node", WARN, value, wanted, source, hint)
    return Finding(check, "node", OK, value, wanted, source)


def _default(facts: Mapping[str, Any], good: Mapping[str, Any]) -> Finding:
    following = facts["boot"]["next_kernel"]
    check, source = "drift.boot_default", "grub.cfg"
    if good["kernel"] is None:
        return Finding(check, "node", SKIPPED, following, None, source, "no last known good to compare with")
    if following != good["kernel"]:
        hint = (
            "the next boot starts a kernel that was not verified: kernel_upgrade.yml tries it, rollback.yml undoes it"
        )
        return Finding(check, "node", FAIL, following, good["kernel"], source, hint)
    return Finding(check, "node", OK, following, good["kernel"], source)


def _untried(facts: Mapping[str, Any]) -> list[Finding]:
    """Newer kernels that lie there and will not boot by themselves: fixes that are installed and not in force."""
    if not _grub.is_pinned(facts["boot"]):
        return []
    present = facts["boot"]["next_kernel"] or ""
    newer = [one["release"] for one in facts["kernels"] if release_key(one["release"]) > release_key(present)]
    hint = "installed, newer than the default, and not tried yet: kernel_upgrade.yml does that"
    return [Finding("drift.untried_kernel", release, WARN, release, present, "/boot", hint) for release in newer]


def _autoinstall(drift: Mapping[str, Any]) -> Finding:
    check = "drift.dkms_autoinstall"
    hint = f"{_dkms_guard.SWITCH} exists, so no new kernel gets a module" if drift["no_autoinstall"] else ""
    status = WARN if drift["no_autoinstall"] else OK
    return Finding(check, "node", status, not drift["no_autoinstall"], True, "DKMS", hint)


def _rolled_back(facts: Mapping[str, Any]) -> Finding:
    check, source = "drift.rolled_back", "rollback.json"
    record = facts.get("rollback")
    if not record or "attempted" not in record:
        return Finding(check, "node", OK, None, None, source)
    hint = "rolled back {}: {}".format(record.get("time"), record.get("reason"))
    return Finding(check, "node", WARN, record["attempted"], record.get("active"), source, hint)


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
