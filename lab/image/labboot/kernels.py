# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels and their modules, read from the files that the real packages install."""

from __future__ import annotations

import os
import re
import struct
from typing import NamedTuple


class Banner(NamedTuple):
    """Release and version as uname(2) tells them."""

    release: str
    version: str
    text: str


def kernel_banner(path: str) -> Banner | None:
    """The version text inside a bzImage (boot protocol: pointer at 0x20e)."""
    try:
        with open(path, "rb") as image:
            head = image.read(0x10000)
    except OSError:
        return None
    if len(head) < 0x300 or head[0x202:0x206] != b"HdrS"[:4]:
        return None
    (pointer,) = struct.unpack_from("<H", head, 0x20E)
    start = pointer + 0x200
    text = head[start : head.find(b"\0", start)].decode("ascii", "replace")
    release, _, _ = text.partition(" ")
    match = re.search(r"(#\d+ .*)$", text)
    return Banner(release, match.group(1) if match else "", text)


def normalise(name: str) -> str:
    """Module names: dashes and underscores are the same."""
    base = os.path.basename(name)
    for suffix in (".xz", ".zst", ".gz"):
        if base.endswith(suffix):
            base = base[: -len(suffix)]
    if base.endswith(".ko"):
        base = base[:-3]
    return base.replace("-", "_")


def module_index(root: str, release: str) -> dict[str, str]:
    """name -> path below /lib/modules/RELEASE, from that kernel's own modules.dep (what modprobe would find)."""
    index: dict[str, str] = {}
    try:
        with open(os.path.join(root, "lib/modules", release, "modules.dep"), encoding="utf-8") as handle:
            for line in handle:
                path = line.partition(":")[0].strip()
                if path:
                    index.setdefault(normalise(path), path)
    except OSError:
        return {}
    return index


def blacklist(showconfig: str) -> set[str]:
    """Names that `modprobe -c` says must not be loaded by alias, or whose install line does nothing."""
    names: set[str] = set()
    for line in showconfig.splitlines():
        words = line.split()
        if (
            len(words) >= 2
            and words[0] == "blacklist"
            or len(words) >= 3
            and words[0] == "install"
            and os.path.basename(words[2]) in ("false", "true", ":")
        ):
            names.add(normalise(words[1]))
    return names
