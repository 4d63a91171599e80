# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The recorded driver of a node, and whether the node still is what the record says; files only, no apt."""

from __future__ import annotations

import re
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _apt_sources, _dpkg, _gpu_holders
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_origin import is_distribution
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._loaded_module import loaded_facts
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import (
    read_installed,
    unfinished_names,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_state import STATE_DIR, named, read_json

RECORD = STATE_DIR + "/driver.json"
_LISTS = "var/lib/apt/lists"


def read_record(root: str) -> dict[str, Any]:
    """Return the record of the installed driver; empty where there is none."""
    return read_json(root, RECORD) or {}


def members(record: Mapping[str, Any]) -> dict[str, str]:
    """Return all packages of a record or plan with their versions."""
    return {**dict(record.get("packages") or {}), **dict(record.get("independent") or {})}


def holds_true(root: str, record: Mapping[str, Any], pins_text: str, blacklist_text: str) -> bool:
    """Whether packages, holds, pins and the updater's blacklist of a node are as recorded."""
    wanted = members(record)
    if not wanted or unfinished_names(root):
        return False
    installed = read_installed(root, wanted.__contains__)
    for name, version in wanted.items():
        package = installed.get(name)
        if package is None or not package.installed or not package.held or package.version != version:
            return False
    return read_text(root, _apt_prefs.PINS_PATH) == pins_text and (
        read_text(root, _apt_prefs.BLACKLIST_PATH) == blacklist_text
    )


def same_request(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a record answers a request.

    Args:
        record: The record.
        wanted: version, source, flavours, components, repo_uri, kernels, prefer_prebuilt.
    """
    version = str(wanted["version"])
    known = {str(record.get("version")), str(record.get("requested"))}
    exact = version in known or version in set(dict(record.get("packages") or {}).values())
    return (
        exact
        and record.get("source") == wanted["source"]
        and record.get("flavour") in wanted["flavours"]
        and sorted(record.get("components") or []) == sorted(wanted["components"])
        and record.get("repo_uri", "") == wanted["repo_uri"]
        and record.get("prefer_prebuilt", True) == wanted["prefer_prebuilt"]
        # A kernel that came later is DKMS's affair where DKMS builds; prebuilt modules have to be looked up for it.
        and (bool(record.get("dkms_name")) or not set(wanted["kernels"]) - set(record.get("kernels_at_install") or []))
    )


def release_origins(root: str, sources: list[_apt_sources.Source]) -> set[tuple[str, str]]:
    """Return the (address, suite) pairs whose downloaded Release file names another origin than Debian or Ubuntu."""
    foreign = set()
    names = frozenset(list_dir(root, _LISTS))
    for source in sources:
        for uri in source.uris:
            for suite in source.suites:
                bare = re.sub(r"^[a-z+]+:(?://)?(?:[^/@]*@)?", "", uri.rstrip("/")).replace("/", "_")
                for kind in ("InRelease", "Release"):
                    name = f"{bare}_dists_{suite}_{kind}"
                    text = (read_text(root, f"{_LISTS}/{name}") or "") if name in names else ""
                    match = re.search(r"^Origin:[ \t]*(.*)$", text[:4096], re.MULTILINE)
                    if match and not is_distribution(match.group(1)):
                        foreign.add((_apt_sources.plain_uri(uri), suite))
    return foreign


def in_use_problem(root: str, version: str, flavour: str) -> str:
    """Return why the driver must not be replaced by this one now: work runs on another one; empty when it may be.

    Packages of the same driver may be completed while it is in use. Another flavour is another driver.
    """
    loaded = loaded_facts(root)
    # The module does not always tell its flavour; then the record knows what was installed.
    present = loaded["flavour"] or str(read_record(root).get("flavour") or "")
    same = loaded["version"] == version and (not present or not flavour or present == flavour)
    users = [] if loaded["version"] is None or same else _gpu_holders.users(root)
    if not users:
        return ""
    old, new = (f"{one} ({kind})" if kind else one for one, kind in ((loaded["version"], present), (version, flavour)))
    return (
        f"the loaded driver {old} is in use and would be replaced by {new}; stop what uses the GPUs first (pid, name, "
        f"unit or pod): {', '.join(users)}"
    )


def removable(root: str, names: Mapping[str, Any], brought: list[str]) -> list[str]:
    """Return which packages that came along may go with the driver: those that nothing else on the node relies on.

    What came along as a mere dependency and is marked as manually installed now has been asked for since: it stays.
    """
    installed = read_installed(root)
    relations = _installed_relations(root)
    unclaimed = _dpkg.automatic(root) | named(root)
    leaving = {name for name in installed if name in names or (name in brought and name in unclaimed)}
    changed = True
    while changed:
        changed = False
        staying = set(installed) - leaving
        for name in sorted(leaving - set(names)):
            if _needed_by(name, staying, relations):
                leaving.discard(name)
                changed = True
                break
    return sorted(leaving)


def _installed_relations(root: str) -> dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]]:
    """Return (dependency groups, provided names) of the installed packages, from dpkg's status file."""
    found = {}
    for stanza in (read_text(root, _dpkg.STATUS_FILE) or "").split("\n\n"):
        name = re.search(r"^Package: (\S+)$", stanza, re.MULTILINE)
        if not name or not re.search(r"^Status: \S+ \S+ installed$", stanza, re.MULTILINE):
            continue
        groups: list[tuple[str, ...]] = []
        provided: list[str] = []
        for key, value in re.findall(r"^(Pre-Depends|Depends|Recommends|Provides): (.*)$", stanza, re.MULTILINE):
            parts = [tuple(re.findall(r"(?:^|\|)\s*([a-z0-9][a-z0-9.+-]*)", group)) for group in value.split(",")]
            if key == "Provides":
                provided += [one[0] for one in parts if one]
            else:
                groups += [one for one in parts if one]
        found[name.group(1)] = (tuple(groups), tuple(provided))
    return found


def _needed_by(
    name: str, staying: set[str], relations: Mapping[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]]
) -> bool:
    names = {name, *relations.get(name, ((), ()))[1]}
    provided = {one for other in staying for one in (other, *relations.get(other, ((), ()))[1])}
    for other in staying:
        for group in relations.get(other, ((), ()))[0]:
            if names & set(group) and not provided & set(group):
                return True
    return False
