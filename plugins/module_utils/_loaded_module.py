# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The nvidia module in the running kernel, by its own words."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import read_text

# "NVIDIA UNIX x86_64 Kernel Module  535.183.06  ..." and "NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  ..."
_LOADED = re.compile(r"(?P<open>Open )?Kernel Module(?: for \S+)?\s+(?P<version>\d+\.\d+(?:\.\d+)*)")


def loaded_facts(root: str) -> dict[str, Any]:
    """Return version and flavour of the nvidia module in the running kernel; version None where none is loaded."""
    match = _LOADED.search(read_text(root, "proc/driver/nvidia/version") or "")
    sysfs = (read_text(root, "sys/module/nvidia/version") or "").strip()
    flavour = ""
    if match:
        flavour = "open" if match.group("open") else "proprietary"
    return {"version": match.group("version") if match else (sysfs or None), "flavour": flavour}
