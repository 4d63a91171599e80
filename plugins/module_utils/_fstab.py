# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Is /etc/fstab well formed? A broken line stops the next boot, or the next program that edits the file."""

from __future__ import annotations

from typing import Any

#: Mount points that are no path: swap areas and file systems that are mounted by other means.
_NO_PATH = frozenset({"none", "swap"})


def problems(text: str) -> list[dict[str, Any]]:
    """Return the lines that fstab(5) does not allow, each with ``line`` (number), ``text`` and ``reason``."""
    found = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        reason = _reason(line.split())
        if reason:
            found.append({"line": number, "text": line, "reason": reason})
    return found


def _reason(fields: list[str]) -> str:
    """Return what is wrong with the fields of a line, or an empty text."""
    for position, field in enumerate(fields):
        if field.startswith("#"):
            return f"a comment cannot start in the middle of a line (field {position + 1})"
    if len(fields) < 3:
        return f"{len(fields)} of at least 3 fields (device, mount point, type)"
    if len(fields) > 6:
        return f"{len(fields)} fields where 6 are allowed: a blank in a name is written \\040"
    if not fields[1].startswith("/") and fields[1] not in _NO_PATH:
        return f"the mount point {fields[1]} is neither a path nor none"
    for name, field in zip(("dump", "pass"), fields[4:]):
        if not field.isdigit():
            return f"the {name} field is {field}, which is not a number"
    return ""
