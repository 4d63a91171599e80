# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Keeps DKMS from compiling while packages are put back whose modules come compiled.

DKMS's package scripts and kernel hooks do nothing while ``/etc/dkms/no-autoinstall`` exists. A file that a killed run
of ours left would keep every later kernel without modules, so it says whose it is and the next run sweeps it away. It
is there with its whole text or not at all, also after a power cut: an empty one is what an administrator's ``touch``
makes, and stays. The module driver_info tells of either, so that a verification warns.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _textfile
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below, read_text

SWITCH = "/etc/dkms/no-autoinstall"
_TEXT = "# Made by the aiinfra.gpu_node collection while it puts packages back; may go when no run is going on.\n"


def sweep(root: str) -> bool:
    """Remove the switch that a killed run left; one that somebody else made stays. Return whether it was there."""
    if read_text(root, SWITCH) != _TEXT:
        return False
    os.unlink(path_below(root, SWITCH))
    return True


@contextlib.contextmanager
def no_builds(root: str) -> Iterator[None]:
    """Switch DKMS's own builds off for the time of the block."""
    target = path_below(root, SWITCH)
    if os.path.isdir(os.path.dirname(target)) and not os.path.exists(target):
        _textfile.replace_file(root, SWITCH, _TEXT.encode())
    try:
        yield
    finally:
        sweep(root)
