# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""dpkg's database read as files: installed packages, holds and unfinished work, without apt or dpkg.

The status file of a busy node has a thousand stanzas and more; only those that are asked for are taken apart.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Iterator

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, read_text

EXTENDED_STATES = "var/lib/apt/extended_states"
STATUS_FILE = "var/lib/dpkg/status"
UPDATES_DIR = "var/lib/dpkg/updates"

#: States in which nothing of a package is half done.
SETTLED = frozenset({"installed", "config-files", "not-installed"})

_FIELD = re.compile(r"^([A-Za-z0-9-]+):[ \t]*(.*)$", re.MULTILINE)
_UPDATE = re.compile(r"^[0-9]+$")


@dataclasses.dataclass(frozen=True)
class Package:
    """One stanza of the status file.

    Args:
        name: Package name without architecture.
        version: Full version with epoch and revision; empty for a package that is gone.
        architecture: As recorded, ``all`` included.
        want: What is wanted of it: ``install``, ``hold``, ``deinstall`` or ``purge``.
        flag: ``ok`` or ``reinstreq``.
        status: Its state, e.g. ``installed``, ``half-configured``, ``unpacked``, ``config-files``.
        source: Source package name, the package's own name where the stanza has none.
    """

    name: str
    version: str
    architecture: str
    want: str
    flag: str
    status: str
    source: str

    @property
    def installed(self) -> bool:
        """Whether the package's files are there and configured (pending triggers count as configured)."""
        return self.status in ("installed", "triggers-pending", "triggers-awaited")

    @property
    def present(self) -> bool:
        """Whether files of the package are on the disk, configured or not."""
        return self.status not in ("config-files", "not-installed")

    @property
    def held(self) -> bool:
        """Whether dpkg holds the package."""
        return self.want == "hold"

    @property
    def unfinished(self) -> bool:
        """Whether an earlier run left the package half way, as ``dpkg --audit`` would say."""
        return self.status not in SETTLED or self.flag != "ok"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for module results."""
        return {
            "version": self.version,
            "upstream": upstream_version(self.version),
            "architecture": self.architecture,
            "status": self.status,
            "hold": self.held,
            "source": self.source,
        }


def parse_status(text: str, wanted: Callable[[str], bool] | None = None) -> Iterator[Package]:
    """Yield the packages of a status file.

    Args:
        text: Content of ``/var/lib/dpkg/status``.
        wanted: Predicate on the package name; all packages when None.
    """
    for stanza in text.split("\n\n"):
        stanza = stanza.lstrip("\n")
        if not stanza.startswith("Package:"):
            continue
        name = stanza[8 : stanza.find("\n") if "\n" in stanza else None].strip()
        if wanted is not None and not wanted(name):
            continue
        yield _package(name, stanza)


def read_packages(root: str = "/", wanted: Callable[[str], bool] | None = None) -> list[Package]:
    """Return the packages of the node whose files are present, those of every architecture."""
    return [package for package in parse_status(read_text(root, STATUS_FILE) or "", wanted) if package.present]


def unfinished(root: str = "/") -> list[Package]:
    """Return the packages that an interrupted or failed run left half way (``dpkg --configure -a`` continues)."""
    found: list[Package] = []
    for stanza in (read_text(root, STATUS_FILE) or "").split("\n\n"):
        # Nearly all stanzas end their status so; the slower look is for the rest.
        if " ok installed\n" in stanza or "\nStatus:" not in stanza:
            continue
        found.extend(package for package in parse_status(stanza) if package.unfinished)
    return found


def automatic(root: str = "/") -> frozenset[str]:
    """Return the names of the packages that apt knows to have come along with others: nobody asked for them."""
    found = set()
    for stanza in (read_text(root, EXTENDED_STATES) or "").split("\n\n"):
        name = re.search(r"^Package: (\S+)$", stanza, re.MULTILINE)
        if name and re.search(r"^Auto-Installed: 1$", stanza, re.MULTILINE):
            found.add(name.group(1))
    return frozenset(found)


def interrupted(root: str = "/") -> bool:
    """Whether dpkg was killed before it could merge its journal; apt then refuses to work at all."""
    return any(_UPDATE.match(name) for name in list_dir(root, UPDATES_DIR))


def upstream_version(version: str) -> str:
    """Return a version without epoch and revision: ``1:535.261.03-1~deb12u1`` gives ``535.261.03``."""
    bare = version.split(":", 1)[-1]
    return bare.rsplit("-", 1)[0] if "-" in bare else bare


def compare_versions(left: str, right: str) -> int:
    """Compare two Debian versions as dpkg does; negative, zero or positive."""
    left_parts, right_parts = _split_version(left), _split_version(right)
    if left_parts[0] != right_parts[0]:
        return left_parts[0] - right_parts[0]
    return _compare_part(left_parts[1], right_parts[1]) or _compare_part(left_parts[2], right_parts[2])


def _package(name: str, stanza: str) -> Package:
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(stanza):
        key = match.group(1).lower()
        if key in ("status", "version", "architecture", "source"):
            fields.setdefault(key, match.group(2).strip())
    want, flag, status = (fields.get("status", "").split() + ["", "", ""])[:3]
    source = fields.get("source", "").split(" ")[0]
    return Package(
        name,
        fields.get("version", ""),
        fields.get("architecture", ""),
        want,
        flag,
        status or "not-installed",
        source or name,
    )


def _split_version(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, "0"
    return (int(epoch) if epoch.isdigit() else 0, upstream, revision)


def _order(char: str) -> int:
    if char == "~":
        return -1
    if char.isalpha():
        return ord(char)
    return ord(char) + 256


def _compare_part(left: str, right: str) -> int:
    """Compare runs of non-digits in dpkg's order (``~`` first, then the end, then letters) and numbers by value."""
    i = j = 0
    while i < len(left) or j < len(right):
        while (i < len(left) and not left[i].isdigit()) or (j < len(right) and not right[j].isdigit()):
            a = _order(left[i]) if i < len(left) and not left[i].isdigit() else 0
            b = _order(right[j]) if j < len(right) and not right[j].isdigit() else 0
            if a != b:
                return a - b
            i, j = i + 1, j + 1
        start_i, start_j = i, j
        while i < len(left) and left[i].isdigit():
            i += 1
        while j < len(right) and right[j].isdigit():
            j += 1
        a, b = int(left[start_i:i] or "0"), int(right[start_j:j] or "0")
        if a != b:
            return a - b
    return 0
