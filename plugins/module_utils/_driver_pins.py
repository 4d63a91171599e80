# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""apt preferences as files: which version a pin gives to a package."""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, read_text

FILE = "etc/apt/preferences"
DIRECTORY = "etc/apt/preferences.d"
#: From here on a pin also takes a package back to an older version.
FORCING = 1000

_FIELD = re.compile(r"^([A-Za-z-]+):\s*(.*)$")
#: apt reads names without an extension, or with this one, and passes over the rest.
_READ = re.compile(r"^[A-Za-z0-9_-]+(?:\.pref)?$|^[A-Za-z0-9_.-]+\.pref$")


def parse(text: str, path: str = "") -> list[dict[str, Any]]:
    """Return the stanzas of a preferences file as ``{file, packages, kind, pin, priority}``.

    ``kind`` is version, release or origin; stanzas without a number as priority are passed over, as apt does.
    """
    found = []
    for block in re.split(r"\n[ \t]*\n", re.sub(r"(?m)^#.*$\n?", "", text)):
        fields: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            match = _FIELD.match(line)
            if match:
                key = match.group(1).lower()
                fields[key] = match.group(2).strip()
            elif line.startswith((" ", "\t")) and key:
                fields[key] += " " + line.strip()
        kind, _unused, pin = fields.get("pin", "").partition(" ")
        if not re.match(r"^-?\d+$", fields.get("pin-priority", "")) or "package" not in fields:
            continue
        found.append(
            {
                "file": path,
                "packages": fields["package"].split(),
                "kind": kind,
                "pin": pin.strip(),
                "priority": int(fields["pin-priority"]),
            }
        )
    return found


def read(root: str = "/") -> list[dict[str, Any]]:
    """Return the stanzas of the node in the order in which apt reads them."""
    found = parse(read_text(root, FILE) or "", "/" + FILE)
    for name in list_dir(root, DIRECTORY):
        if _READ.match(name):
            path = f"{DIRECTORY}/{name}"
            found.extend(parse(read_text(root, path) or "", "/" + path))
    return found


def pin_of(pins: Iterable[dict[str, Any]], package: str) -> dict[str, Any] | None:
    """Return the version pin that apt applies to a package: the first one that names it, then the first pattern."""
    versions = [pin for pin in pins if pin["kind"] == "version"]
    for pin in versions:
        if package in pin["packages"]:
            return pin
    for pin in versions:
        if any(_matches(pattern, package) for pattern in pin["packages"]):
            return pin
    return None


def allows(pin: dict[str, Any], version: str) -> bool:
    """Whether a version pin means this version."""
    return _matches(str(pin["pin"]), version)


def _matches(pattern: str, text: str) -> bool:
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            return bool(re.search(pattern[1:-1], text))
        except re.error:
            return False
    return fnmatch.fnmatchcase(text, pattern)
