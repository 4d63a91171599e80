# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Why a driver cannot be had: what the repositories offer instead, where a name forwards to, what brings no module."""

from __future__ import annotations

import functools
from typing import Iterable, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _dpkg, _driver_names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_pick import Candidate, Picker, candidates
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_origin import Owned
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._universe import Universe

_BY_VERSION = functools.cmp_to_key(_dpkg.compare_versions)


class Refusal(Exception):
    """The wanted driver cannot be planned; ``problems`` say why, each with the name of a variable."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


def redirect(universe: Universe, owned: Owned, ways: Iterable[Candidate], version: str) -> tuple[str, str] | None:
    """Return (package, upstream version) when names of the wanted branch only forward to another branch."""
    branch = _driver_names.branch_of(_dpkg.upstream_version(version))
    for way in ways:
        names = [*way.roots.required, way.roots.module, *way.roots.metas]
        for name in names:
            if _driver_names.name_branch(name) != branch:
                continue
            upstreams = {
                offer.upstream
                for offer in universe.offers(name)
                if owned(offer) and _driver_names.is_driver_version(offer.upstream)
            }
            if upstreams and all(_driver_names.branch_of(upstream) != branch for upstream in upstreams):
                return name, max(upstreams, key=_BY_VERSION)
    return None


def explain(
    universe: Universe,
    owned: Owned,
    ways: Sequence[Candidate],
    version: str,
    source: str,
    packagings: Sequence[str],
    forwarded: tuple[str, str] | None,
) -> list[str]:
    """Return why no way leads to the wanted version."""
    if forwarded:
        branch = _driver_names.branch_of(_dpkg.upstream_version(version))
        return [
            f"nvidia_driver_version: wanted {version} (branch {branch}), but {forwarded[0]} of source {source} only "
            f"forwards: it would resolve to {forwarded[1]}. Choose a version of a living branch, or set "
            "nvidia_driver_allow_redirect: true"
        ]
    if not ways:
        branch = _driver_names.branch_of(version)
        return [
            f"nvidia_driver_flavour: branch {branch} has no such kernel modules: open ones exist from branch "
            f"{_driver_names.OPEN_FROM} on, proprietary ones before branch {_driver_names.OPEN_ONLY_FROM}"
        ]
    problems = _partial(universe, owned, ways, version, source)
    if problems:
        return problems
    text = f"nvidia_driver_version: {version} is in no repository of source {source}"
    there = complete_versions(universe, owned, packagings)
    text += f"; there are: {', '.join(there)}" if there else "; no driver is"
    others = _elsewhere(universe, owned, ways, version)
    return [text + (f". Another origin on this node has it: {others}" if others else "")]


def complete_versions(
    universe: Universe, owned: Owned, packagings: Iterable[str], components: tuple[str, ...] = ()
) -> list[str]:
    """Return the driver versions that a source offers with library and kernel module, oldest first."""
    upstreams = {
        offer.upstream
        for name in universe.names()
        if _driver_names.carries_module(name)
        for offer in universe.offers(name)
        if owned(offer) and _driver_names.is_driver_version(offer.upstream)
    }
    found = []
    for upstream in sorted(upstreams, key=_BY_VERSION):
        ways = candidates(packagings, _driver_names.FLAVOURS, components, _driver_names.branch_of(upstream))
        for way in ways:
            picker = Picker(universe, owned, way.packaging, upstream)
            if all(picker.choose(name) for name in (*way.roots.required, way.roots.module)):
                found.append(upstream)
                break
    return found


def _partial(universe: Universe, owned: Owned, ways: Sequence[Candidate], version: str, source: str) -> list[str]:
    """Explain a version that is there in part: no kernel module, no such component, or nothing but a meta package."""
    for way in ways:
        picker = Picker(universe, owned, way.packaging, version)
        module = picker.choose(way.roots.module)
        missing = [name for name in way.roots.required if not picker.choose(name)]
        if missing and module is None:
            continue
        if missing:
            return [f"nvidia_driver_version {version}: source {source} lacks {', '.join(missing)} in this version"]
        for component, names in way.roots.any_of:
            if not any(picker.choose(name) for name in names):
                looked = f" (looked for {', '.join(names)})" if names else ""
                text = f"nvidia_driver_components: {component} does not exist in source {source} for {version}{looked}"
                if component == "fabricmanager":
                    text += "; it is added on nodes with NVSwitches, unless nvidia_fabricmanager_enabled is false"
                return [text]
        if module is None:
            return [_no_module(picker, way, version, source)]
    for way in ways:
        picker = Picker(universe, owned, way.packaging, version)
        if any(picker.choose(name) for name in way.roots.metas):
            return [_no_module(picker, way, version, source)]
    return []


def _no_module(picker: Picker, way: Candidate, version: str, source: str) -> str:
    metas = [offer for offer in map(picker.choose, way.roots.metas) if offer is not None]
    text = f"nvidia_driver_version {version}: no package of source {source} carries the {way.flavour} kernel module"
    text += f" ({way.roots.module} does not exist in this version)"
    for meta in metas:
        brings = "depends on nothing" if not meta.depends else "does not bring one"
        text += f"; the meta package {meta.name} {meta.version} {brings}"
    return text + ". Choose another nvidia_driver_flavour or nvidia_driver_version"


def _elsewhere(universe: Universe, owned: Owned, ways: Iterable[Candidate], version: str) -> str:
    upstream = _dpkg.upstream_version(version)
    titles = {
        offer.origin.title
        for way in ways
        for name in (*way.roots.required, way.roots.module)
        for offer in universe.offers(name)
        if offer.upstream == upstream and not owned(offer)
    }
    return ", ".join(sorted(titles))
