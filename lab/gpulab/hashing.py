# SPDX-License-Identifier: GPL-3.0-or-later
"""Hashes of inputs: what decides whether something has to be built again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Iterable, Mapping

_IGNORED = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def files_below(folder: Path) -> list[Path]:
    """Regular files in a stable order, without caches."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not _IGNORED.intersection(path.relative_to(folder).parts)
    )


def digest_contents(contents: Mapping[str, tuple[bytes, int]]) -> str:
    """The same over files that exist only in memory: path -> (content, mode)."""
    total = hashlib.sha256()
    for name, (content, mode) in sorted(contents.items()):
        total.update(b"%s\0%o\0" % (name.encode(), mode & 0o111))
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()[:12]


def digest(paths: Iterable[Path], root: Path, *texts: str) -> str:
    """Twelve hex digits over names, modes and contents of files, and over texts."""
    total = hashlib.sha256()
    for path in paths:
        total.update(b"%s\0%o\0" % (path.relative_to(root).as_posix().encode(), path.stat().st_mode & 0o111))
        total.update(hashlib.sha256(path.read_bytes()).digest())
    for text in texts:
        total.update(b"text\0" + text.encode() + b"\0")
    return total.hexdigest()[:12]
