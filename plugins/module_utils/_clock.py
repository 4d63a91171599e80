# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Is the clock synchronised? The kernel knows; time services are asked only where its answer is no or missing."""

from __future__ import annotations

import ctypes
import re
import struct
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner

#: Bit of the kernel's clock status: no time service has set the clock lately.
_UNSYNCHRONISED = 0x40
#: Offset of the status word in struct timex on 64-bit Linux, the only one that GPU drivers exist for.
_STATUS_OFFSET = 40
_LEAP = re.compile(r"^Leap status\s*:\s*(.+)$", re.MULTILINE)


def kernel_clock() -> bool | None:
    """Return whether the kernel considers its clock synchronised; None where it does not tell (some containers)."""
    try:
        buffer = ctypes.create_string_buffer(512)
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    (status,) = struct.unpack_from("i", buffer, _STATUS_OFFSET)
    return not status & _UNSYNCHRONISED


def clock(runner: Runner, kernel: bool | None) -> dict[str, Any]:
    """Return ``synchronised`` (None when nobody knows) and ``source``.

    chrony without ``rtcsync`` leaves the kernel's flag alone, so its own word counts when the kernel says no.
    """
    if kernel:
        return {"synchronised": True, "source": "kernel"}
    leap = _LEAP.search(runner.run(["chronyc", "-n", "tracking"], timeout=5).out)
    if leap:
        return {"synchronised": leap.group(1).strip().lower() != "not synchronised", "source": "chronyc"}
    if kernel is None:
        answer = runner.run(["timedatectl", "show", "--property=NTPSynchronized", "--value"], timeout=5).out.strip()
        if answer in ("yes", "no"):
            return {"synchronised": answer == "yes", "source": "timedatectl"}
    return {"synchronised": kernel, "source": "kernel"}
