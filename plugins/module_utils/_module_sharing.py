# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The controller's cache of compiled modules: what is in it, and who compiles what is not while the others wait.

Beside each archive lies its seal, the sha256 that the node which packed it told. It is written last, so an archive
without one is half a copy and does not count.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._module_tar import file_name

SEAL = ".sha256"


def entries(
    kernels: Sequence[str], directory: str, dkms_name: str, version: str, machine: str, node_directory: str
) -> list[dict[str, Any]]:
    """Return the archives that kernels need.

    Returns:
        For each ``kernel``, ``file`` and ``seal`` (paths on the controller), ``there``, and ``load``: what the node's
        modules want, ``path`` (on the node), ``sha256`` and ``kernel``.
    """
    found = []
    for kernel in kernels:
        name = file_name(dkms_name, version, kernel, machine)
        path = os.path.join(directory, name)
        sha256 = _sealed(path + SEAL)
        found.append(
            {
                "kernel": kernel,
                "file": path,
                "seal": path + SEAL,
                "there": bool(sha256) and os.path.isfile(path),
                "load": {"path": f"{node_directory}/{name}", "sha256": sha256, "kernel": kernel},
            }
        )
    return found


def work(lacking: Mapping[str, Sequence[str]], host: str) -> dict[str, Any]:
    """Return what a node has to do about the kernels that it lacks an archive for.

    The first node of a batch that lacks one compiles it. A node waits only when others compile all that it lacks:
    otherwise it has something to compile anyway, and compiles for all of its kernels at once.

    Args:
        lacking: The archives that are not there, by node, in the order of the batch.
        host: The node.

    Returns:
        ``makes``, the archives that it packs for the cache, and ``waits_for``, the node that it waits for, or empty.
    """
    makers: dict[str, str] = {}
    for name, archives in lacking.items():
        makes = [archive for archive in archives if archive not in makers]
        if name == host:
            return {"makes": makes, "waits_for": makers[archives[0]] if archives and not makes else ""}
        makers.update((archive, name) for archive in makes)
    return {"makes": [], "waits_for": ""}


def _sealed(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            words = stream.read().split()
    except (OSError, UnicodeDecodeError):
        return ""
    return words[0].lower() if words else ""
