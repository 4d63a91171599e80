# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the repositories offer and the node has, in the small form that a plan needs: plain data, tests need no apt."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterable, Iterator, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _dpkg
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import Installed

_RELATION = re.compile(
    r"^\s*(?P<name>[a-zA-Z0-9.+-]+)(?::[a-z0-9-]+)?\s*(?:\(\s*(?P<op><<|<=|=|>=|>>)\s*(?P<version>[^\s)]+)\s*\))?"
)
_FIELD = re.compile(
    r"^(?P<key>Package|Version|Depends|Pre-Depends|Provides):[ \t]*(?P<value>.*(?:\n[ \t].*)*)", re.MULTILINE
)


@dataclasses.dataclass(frozen=True)
class Relation:
    """One alternative of a dependency; without a version the operator is empty."""

    name: str
    operator: str = ""
    version: str = ""

    def accepts(self, version: str) -> bool:
        """Whether a version of the named package will do."""
        if not self.operator:
            return True
        order = _dpkg.compare_versions(version, self.version)
        return {"<<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">>": order > 0}[self.operator]


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a version comes from: the fields of the Release file and the address of the repository."""

    origin: str = ""
    label: str = ""
    archive: str = ""
    codename: str = ""
    site: str = ""
    uri: str = ""

    @property
    def title(self) -> str:
        """Return a name for messages."""
        return f"{self.label or self.origin or self.site or self.uri} {self.archive or self.codename}".strip()


@dataclasses.dataclass(frozen=True)
class Offer:
    """One version of a package in one repository."""

    name: str
    version: str
    origin: Origin
    depends: tuple[tuple[Relation, ...], ...] = ()
    provides: tuple[Relation, ...] = ()

    @property
    def upstream(self) -> str:
        """Return the version without epoch and revision."""
        return _dpkg.upstream_version(self.version)


class Universe:
    """What a plan may know of a node and its repositories.

    Args:
        offers: All versions of the driver's packages in all repositories.
        installed: Packages of the node by name, all of them.
        distribution: Values of ``Origin.origin`` that are the distribution itself.
    """

    def __init__(self, offers: Iterable[Offer], installed: Installed, distribution: Iterable[str] = ()) -> None:
        self.installed = installed
        self.distribution = frozenset(distribution)
        self._by_name: dict[str, list[Offer]] = {}
        self._providers: dict[str, list[Offer]] = {}
        for offer in offers:
            self._by_name.setdefault(offer.name, []).append(offer)
            for provided in offer.provides:
                self._providers.setdefault(provided.name, []).append(offer)

    def offers(self, name: str) -> list[Offer]:
        """Return all versions of a package, in no order."""
        return self._by_name.get(name, [])

    def providers(self, relation: Relation) -> list[Offer]:
        """Return the versions of other packages that provide what a relation asks for."""
        found = []
        for offer in self._providers.get(relation.name, []):
            versions = [one.version for one in offer.provides if one.name == relation.name]
            if not relation.operator or any(version and relation.accepts(version) for version in versions):
                found.append(offer)
        return found

    def names(self) -> list[str]:
        """Return the names of all driver packages in the repositories."""
        return sorted(self._by_name)

    def simulate(self, arguments: Sequence[str], pins_text: str, lifted: Iterable[str]) -> _apt_get.Simulation:
        """Return what apt-get would do with these arguments, these preferences and without the holds of ``lifted``."""
        raise NotImplementedError


def parse_relations(text: str) -> tuple[tuple[Relation, ...], ...]:
    """Return a Depends field as groups of alternatives."""
    groups = []
    for group in text.replace("\n", " ").split(","):
        alternatives = [_relation(part) for part in group.split("|") if part.strip()]
        if alternatives:
            groups.append(tuple(alternatives))
    return tuple(groups)


def parse_packages(text: str, origin: Origin, wanted: Any) -> Iterator[Offer]:
    """Yield the offers of a Packages file whose name ``wanted`` accepts."""
    position = 0
    marker = "Package: "
    while True:
        start = text.find(marker, position)
        if start < 0:
            return
        end_of_line = text.find("\n", start)
        end_of_line = len(text) if end_of_line < 0 else end_of_line
        position = end_of_line
        if (start and text[start - 1] != "\n") or not wanted(text[start + len(marker) : end_of_line].strip()):
            continue
        end = text.find("\n\n", start)
        stanza = text[start : end if end >= 0 else len(text)]
        position = start + len(stanza)
        yield _offer(stanza, origin)


def _offer(stanza: str, origin: Origin) -> Offer:
    fields: Mapping[str, str] = {match.group("key"): match.group("value") for match in _FIELD.finditer(stanza)}
    depends = parse_relations(fields.get("Pre-Depends", "")) + parse_relations(fields.get("Depends", ""))
    provides = tuple(group[0] for group in parse_relations(fields.get("Provides", "")))
    return Offer(fields["Package"].strip(), fields.get("Version", "").strip(), origin, depends, provides)


def _relation(text: str) -> Relation:
    match = _RELATION.match(text)
    if not match:
        return Relation(text.strip())
    return Relation(match.group("name"), match.group("op") or "", match.group("version") or "")
