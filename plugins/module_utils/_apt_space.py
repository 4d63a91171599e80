# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Room on the disks: judged before a transaction, since a full disk in the middle of one leaves half a driver."""

from __future__ import annotations

import os
from typing import Callable, Tuple

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._apt_get import sizes
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below

#: Bytes that stay free beside what the packages need: building a module takes a good part of it.
MARGIN = 512 * 1024 * 1024

FreeBytes = Callable[[str], Tuple[int, int]]


def free_bytes(path: str) -> tuple[int, int]:
    """Return (device, free bytes) of the file system that a path is, or would be, on."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    return os.stat(path).st_dev, stat.f_bavail * stat.f_frsize


def problem(shown: str, root: str = "/", margin: int = MARGIN, free: FreeBytes = free_bytes) -> str:
    """Return why packages do not fit; empty when they do.

    Args:
        shown: Output of ``apt-cache show`` for the packages that would be installed.
        root: Directory that stands for ``/``.
        margin: Bytes to spare.
        free: Tells (device, free bytes) of a path.
    """
    download, unpacked = sizes(shown)
    needs: dict[int, tuple[list[str], int, int]] = {}
    for path, size in (("/var/cache/apt/archives", download), ("/usr", unpacked), ("/var", margin)):
        device, room = free(path_below(root, path))
        paths, needed, _room = needs.get(device, ([], 0, 0))
        needs[device] = ([*paths, path], needed + size, room)
    for paths, needed, room in needs.values():
        if room < needed:
            return (
                f"not enough room on the file system of {' and '.join(paths)}: {room >> 20} MiB are free, "
                f"{needed >> 20} MiB are needed (download {download >> 20}, unpacked {unpacked >> 20}, "
                f"to spare {margin >> 20})"
            )
    return ""
