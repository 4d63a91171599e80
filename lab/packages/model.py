# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a stand-in package is made of, and the driver versions that the lab knows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBDIR = "/usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class Driver:
    """One driver version: the kernels it compiles for (first known, first unknown) and the CUDA version it brings."""

    first: tuple[int, int]
    beyond: tuple[int, int]
    cuda: int


def _known_to(beyond: tuple[int, int], cuda: int) -> Driver:
    return Driver((6, 1), beyond, cuda)


# Upper bounds are the lab's: they reproduce "this driver is too old for that kernel" with kernels that Debian has.
DRIVERS: dict[str, Driver] = {
    "535.183.06": _known_to((6, 2), 12020),
    "535.261.03": _known_to((6, 13), 12020),
    "535.274.02": _known_to((6, 13), 12020),
    "535.288.01": _known_to((6, 13), 12020),
    "535.309.01": _known_to((6, 13), 12020),
    "550.163.01": _known_to((6, 13), 12040),
    "580.126.20": _known_to((6, 19), 13000),
    "590.48.01": _known_to((6, 20), 13010),
}


def branch(version: str) -> int:
    """Return 535 for 535.261.03."""
    return int(version.split(".", 1)[0])


@dataclass(frozen=True)
class Entry:
    """One thing that a package installs.

    kind: text (data is the content), link (data is the target), dir, artifact (data names a compiled file, see
    artifacts.py) or tree (data names a generated source tree).
    """

    path: str
    kind: str
    data: str = ""
    mode: int = 0o644


def text(path: str, content: str, mode: int = 0o644) -> Entry:
    """Return a file with this content."""
    return Entry(path, "text", content, mode)


def link(path: str, target: str) -> Entry:
    """Return a symbolic link."""
    return Entry(path, "link", target)


def directory(path: str) -> Entry:
    """Return an empty directory."""
    return Entry(path, "dir")


def program(path: str, name: str) -> Entry:
    """Return a compiled file with mode 0755."""
    return Entry(path, "artifact", name, 0o755)


def library(where: str, soname: str, real: str, artifact: str) -> list[Entry]:
    """Return a shared library under its full name, with the links that the loader and the linker look for."""
    entries = [Entry(f"{where}/{real}", "artifact", artifact), link(f"{where}/{soname}", real)]
    bare = soname.split(".so", 1)[0] + ".so"
    if bare != soname:
        entries.append(link(f"{where}/{bare}", soname))
    return entries


@dataclass
class Package:
    """One binary package. relations holds control fields such as Depends, fields any others."""

    name: str
    version: str
    section: str
    summary: str
    source: str = ""
    architecture: str = "amd64"
    relations: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    conffiles: list[str] = field(default_factory=list)
    triggers: list[str] = field(default_factory=list)

    @property
    def component(self) -> str:
        """Return the archive component that the section names."""
        return self.section.split("/", 1)[0] if "/" in self.section else "main"

    @property
    def upstream(self) -> str:
        """Return the version without epoch and revision."""
        return self.version.split(":", 1)[-1].rsplit("-", 1)[0]

    def filename(self) -> str:
        """Return the name of the .deb file."""
        return f"{self.name}_{self.version.split(':', 1)[-1]}_{self.architecture}.deb"


@dataclass(frozen=True)
class Repository:
    """Where packages go: a path below the output directory, and how it wants to be indexed."""

    path: str
    kind: str
    suite: str
    origin: str
    label: str
    packages: tuple[Package, ...]


def script(name: str, **values: str) -> str:
    """Return a maintainer script or another template of scripts/, with @KEY@ replaced."""
    content = (HERE / "scripts" / name).read_text(encoding="utf-8")
    for key, value in values.items():
        content = content.replace(f"@{key}@", value)
    if re.search("@[A-Z]+@", content):
        raise ValueError(f"scripts/{name}: a @KEY@ was not replaced")
    return content
