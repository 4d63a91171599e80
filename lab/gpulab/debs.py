# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian control data: stanzas, Packages and Release files, as text in and text out."""

from __future__ import annotations

import email.utils
import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator

from .progress import output

# Fields of Release that a client decides by; taken from the original archive where there is one.
KEPT_RELEASE_FIELDS = (
    "Origin",
    "Label",
    "Suite",
    "Version",
    "Codename",
    "NotAutomatic",
    "ButAutomaticUpgrades",
    "Description",
)


def stanzas(text: str) -> Iterator[str]:
    """The paragraphs of a control file."""
    for part in text.split("\n\n"):
        if part.strip():
            yield part.strip("\n")


def fields(stanza: str) -> dict[str, str]:
    """Fields of one paragraph; continuation lines stay joined by newlines."""
    found: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1] in (" ", "\t"):
            if name:
                found[name] += "\n" + line
        elif ":" in line:
            name, _, value = line.partition(":")
            found[name] = value.strip()
    return found


def replace_fields(stanza: str, new: dict[str, str]) -> str:
    """The paragraph with some one-line fields changed, added at the end, or (empty value) dropped."""
    lines: list[str] = []
    left = dict(new)
    skipping = False
    for line in stanza.splitlines():
        if line[:1] in (" ", "\t"):
            if not skipping:
                lines.append(line)
            continue
        name = line.partition(":")[0]
        skipping = name in new
        if not skipping:
            lines.append(line)
        elif left.get(name):
            lines.append(f"{name}: {left.pop(name)}")
    lines.extend(f"{name}: {value}" for name, value in left.items() if value)
    return "\n".join(lines)


def file_fields(path: Path) -> dict[str, str]:
    """Size and checksums for a Packages stanza."""
    data = path.read_bytes()
    return {
        "Size": str(len(data)),
        "MD5sum": hashlib.md5(data, usedforsecurity=False).hexdigest(),
        "SHA256": hashlib.sha256(data).hexdigest(),
    }


def deb_stanza(path: Path, filename: str) -> str:
    """The Packages stanza of a .deb file."""
    control = output(["dpkg-deb", "-f", str(path)]).strip("\n")
    return replace_fields(control, {"Filename": filename, **file_fields(path)})


def archive_name(package: str, version: str, architecture: str) -> str:
    """How apt names a downloaded file."""
    return "{}_{}_{}.deb".format(package, version.replace(":", "%3a"), architecture)


@dataclass
class Release:
    """What a Release file says besides its checksums."""

    fields: dict[str, str]

    @staticmethod
    def from_text(text: str) -> Release:
        """Fields of an original (In)Release that clients decide by."""
        body = text
        if text.startswith("-----BEGIN PGP SIGNED MESSAGE-----"):
            body = text.split("\n\n", 1)[1].split("-----BEGIN PGP SIGNATURE-----", 1)[0]
        found = fields(body)
        return Release({name: found[name] for name in KEPT_RELEASE_FIELDS if name in found})

    def text(self, indexes: dict[str, bytes], now: float, components: Iterable[str] = ()) -> str:
        """The Release file over these index files."""
        lines = ["{}: {}".format(*item) for item in self.fields.items()]
        lines.append("Date: " + email.utils.formatdate(now, usegmt=True).replace("GMT", "UTC"))
        names = list(components)
        if names:
            lines.append("Components: " + " ".join(names))
            lines.append("Architectures: amd64")
        for title, algorithm in (("MD5Sum", "md5"), ("SHA256", "sha256")):
            lines.append(title + ":")
            for name, data in sorted(indexes.items()):
                total = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
                lines.append(f" {total} {len(data):16d} {name}")
        return "\n".join(lines) + "\n"


def packages_text(items: Iterable[str]) -> bytes:
    """A Packages file."""
    return "".join(item + "\n\n" for item in items).encode()


def compressed(data: bytes) -> bytes:
    """gzip without a time stamp, so that equal input gives equal output."""
    return gzip.compress(data, compresslevel=6, mtime=0)
