# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which processes use the GPUs, by the NVIDIA devices that they have open."""

from __future__ import annotations

import os
import re

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text

_DEVICE = re.compile(r"^/dev/nvidia(?:[0-9]+|ctl|-uvm|-modeset|-caps/.*)$")
#: The driver's own daemons, which keep the devices open on purpose; the kernel keeps 15 characters of a name.
KEEPERS = ("nvidia-persiste", "nv-fabricmanage")


def users(root: str) -> list[str]:
    """Return the processes that have an NVIDIA device open, as ``pid name``; the driver's own daemons are no users."""
    found = []
    for pid in list_dir(root, "proc"):
        if not pid.isdigit():
            continue
        name = (read_text(root, f"proc/{pid}/comm") or "").strip()
        if name in KEEPERS:
            continue
        folder = path_below(root, f"proc/{pid}/fd")
        try:
            links = [os.readlink(os.path.join(folder, one)) for one in os.listdir(folder)]
        except OSError:
            continue
        if any(_DEVICE.match(link) for link in links):
            found.append(f"{pid} {name}")
    return found
