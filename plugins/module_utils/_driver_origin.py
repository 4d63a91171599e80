# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Whose packages count: every driver package of a node comes from one origin, and the others are pinned away."""

from __future__ import annotations

from typing import Callable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._apt_sources import plain_uri
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._universe import Offer, Universe

Owned = Callable[[Offer], bool]

#: What the distributions call themselves in their Release files; mirrors that change it are found by base-files.
_DISTRIBUTIONS = ("debian", "ubuntu")


def is_distribution(origin: str) -> bool:
    """Whether the origin in a Release file is Debian or Ubuntu; Debian's backports say ``Debian Backports``."""
    return origin.strip().lower().split(" ", 1)[0] in _DISTRIBUTIONS


def owner(source: str, repo_uri: str, distribution: frozenset[str]) -> Owned:
    """Return the test whether a version comes from the chosen source.

    Args:
        source: ``distro``, ``cuda_repo`` or ``local_repo``.
        repo_uri: Address of the repository for the latter two.
        distribution: Names of the distribution's origin on this node.
    """
    if source == "distro":
        return lambda offer: is_distribution(offer.origin.origin) or offer.origin.origin in distribution
    wanted = plain_uri(repo_uri)
    return lambda offer: plain_uri(offer.origin.uri) == wanted


def foreign_pins(universe: Universe, owned: Owned) -> list[tuple[str, str]]:
    """Return (name, pin) of each driver package that another origin offers.

    The pin names the origin's Release fields, else its host, else the exact version: it must not hit our own origin.
    """
    ours = frozenset(_release(offer) for name in universe.names() for offer in universe.offers(name) if owned(offer))
    found = set()
    for name in universe.names():
        if not _driver_names.is_family(name):
            continue
        for offer in universe.offers(name):
            if owned(offer):
                continue
            release = _release(offer)
            if release and release not in ours:
                found.add((name, release))
            else:
                found.add((name, f"version {offer.version}"))
    return sorted(found)


def _release(offer: Offer) -> str:
    origin = offer.origin
    fields = [("o", origin.origin), ("l", origin.label)]
    words = [f"{key}={value}" for key, value in fields if value]
    if words:
        return "release " + ",".join(words)
    host = origin.site.split("//")[-1].split("/")[0] if "//" in origin.site else ""
    return f'origin "{host}"' if host else ""
