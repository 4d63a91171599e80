# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which version of which package: the choice behind a driver's closure, without any solver.

Packages of the driver get the wanted version, and nothing else. Packages with versions of their own get the newest that
is not above the driver's, else the lowest above it. Whatever is no driver package is left to apt.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _dpkg, _driver_names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_origin import Owned
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._universe import Offer, Relation, Universe


def _compare(left: Offer, right: Offer) -> int:
    return _dpkg.compare_versions(left.version, right.version)


_BY_VERSION = functools.cmp_to_key(_compare)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to name the wanted driver: a packaging, a flavour and a variant of the names.

    Args:
        packaging: See ``_driver_names``.
        flavour: ``open`` or ``proprietary``.
        variant: E.g. ``-server``.
        roots: The packages to ask for.
    """

    packaging: str
    flavour: str
    variant: str
    roots: _driver_names.Roots


class Picker:
    """Chooses versions for one packaging and one wanted driver version.

    Args:
        universe: Repositories and node.
        owned: Whether an offer comes from the chosen origin.
        packaging: See ``_driver_names``.
        wanted: Upstream version, or a full package version.
    """

    def __init__(self, universe: Universe, owned: Owned, packaging: str, wanted: str) -> None:
        self._universe = universe
        self._owned = owned
        self._packaging = packaging
        self._full = wanted if "-" in wanted else ""
        self.upstream = _dpkg.upstream_version(wanted)

    def independent(self, name: str) -> bool:
        """Whether a package has a version of its own here."""
        return _driver_names.is_independent(self._packaging, name)

    def choose(self, name: str, relation: Relation | None = None) -> Offer | None:
        """Return the version that a driver package shall have; None when there is none, or it is no driver package."""
        if not _driver_names.is_family(name):
            return None
        offers = [
            offer
            for offer in self._universe.offers(name)
            if self._owned(offer)
            and _driver_names.is_driver_version(offer.upstream)
            and (relation is None or satisfies(offer, relation))
        ]
        if self.independent(name):
            return _nearest(offers, self.upstream)
        return self._preferred([offer for offer in offers if offer.upstream == self.upstream])

    def close(self, start: Iterable[Offer]) -> dict[str, Offer]:
        """Return the driver packages that a set needs, itself included, by name."""
        chosen: dict[str, Offer] = {}
        queue = list(start)
        while queue:
            offer = queue.pop(0)
            if offer.name in chosen:
                continue
            chosen[offer.name] = offer
            for group in offer.depends:
                following = self._follow(group, [*chosen.values(), *queue])
                if following is not None:
                    queue.append(following)
        return chosen

    def fits(self, offer: Offer) -> bool:
        """Whether the driver packages that a prebuilt module relies on exist in the wanted version."""
        for group in offer.depends:
            ours = [relation for relation in group if _driver_names.is_family(relation.name)]
            versioned = [relation for relation in ours if not _driver_names.is_prebuilt(relation.name)]
            if versioned and not any(self._resolve(relation) for relation in versioned):
                return False
        return True

    def prebuilt(self, name: str, relation: Relation | None = None) -> Offer | None:
        """Return the newest prebuilt module package of this name that belongs to the wanted driver."""
        fitting = [
            offer
            for offer in self._universe.offers(name)
            if self._owned(offer) and self.fits(offer) and (relation is None or satisfies(offer, relation))
        ]
        return max(fitting, key=_BY_VERSION) if fitting else None

    def _follow(self, group: tuple[Relation, ...], chosen: list[Offer]) -> Offer | None:
        if any(satisfies(offer, relation) for relation in group for offer in chosen):
            return None
        for relation in group:
            found = self._resolve(relation)
            if found is not None:
                return found
            if not _driver_names.is_family(relation.name) and not self._universe.providers(relation):
                # A package of the distribution: that is for apt.
                return None
        return None

    def _resolve(self, relation: Relation) -> Offer | None:
        if _driver_names.is_prebuilt(relation.name):
            return self.prebuilt(relation.name, relation)
        named = self.choose(relation.name, relation)
        if named is not None:
            return named
        for offer in sorted(self._universe.providers(relation), key=lambda offer: offer.name):
            if self.choose(offer.name) == offer:
                return offer
        return None

    def _preferred(self, offers: list[Offer]) -> Offer | None:
        """Return the exact version, else the one that is installed, else the newest outside backports."""
        for offer in offers:
            if self._full and offer.version == self._full:
                return offer
        for offer in offers:
            present = self._universe.installed.get(offer.name)
            if present is not None and present.version == offer.version:
                return offer
        regular = [offer for offer in offers if "backports" not in offer.origin.archive + offer.origin.codename]
        return max(regular or offers, key=_BY_VERSION) if offers else None


def satisfies(offer: Offer, relation: Relation) -> bool:
    """Whether an offer is what a relation asks for, by its name or by what it provides."""
    if offer.name == relation.name and relation.accepts(offer.version):
        return True
    return any(
        provided.name == relation.name
        and (not relation.operator or bool(provided.version and relation.accepts(provided.version)))
        for provided in offer.provides
    )


def candidates(
    packagings: Iterable[str], flavours: Iterable[str], components: tuple[str, ...], branch: int
) -> list[Candidate]:
    """Return the ways to name a driver of a branch, the preferred one first."""
    flavours = [flavour for flavour in flavours if flavour and _driver_names.has_flavour(branch, flavour)]
    return [
        Candidate(packaging, flavour, variant, _driver_names.roots(packaging, branch, flavour, components, variant))
        for packaging in packagings
        for flavour in flavours
        for variant in _driver_names.variants(packaging, branch)
    ]


def _nearest(offers: list[Offer], upstream: str) -> Offer | None:
    ordered = sorted(offers, key=_BY_VERSION)
    below = [offer for offer in ordered if _dpkg.compare_versions(offer.upstream, upstream) <= 0]
    if below:
        return below[-1]
    return ordered[0] if ordered else None
