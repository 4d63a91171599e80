# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Processes at the GPUs by the kernel's word: who hangs in the driver, who has ended and still counts as a user.

Neither the memory map nor the command line of a process is read: both wait for one that hangs in the driver.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_holders
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, Occupants, Process
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_tables import COMM
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, read_text

#: The driver's daemons, tools and kernel threads, and the child that reads NVML.
_DRIVERS_OWN = re.compile(r"^(?:nvidia|nv_|nv-|nvlsm|irq/\d+-nvidia|" + COMM + ")")


@dataclasses.dataclass(frozen=True)
class Status:
    """Name and state letter of a process (``R``, ``S``, ``D``, ``Z`` and so on)."""

    name: str
    state: str


def status(root: str, pid: int) -> Status | None:
    """Return name and state of a process; None when there is no such process."""
    # The name may hold blanks and brackets: it ends at the last one.
    head, bracket, rest = (read_text(root, f"proc/{pid}/stat") or "").rpartition(")")
    return Status(head.partition("(")[2], rest.split()[0]) if bracket and rest.split() else None


def occupants(gpus: Iterable[Gpu], root: str = "/") -> Occupants:
    """Return the processes at the GPUs.

    Args:
        gpus: Of which the driver names users.
        root: Directory that stands for ``/``.
    """
    holders = _gpu_holders.holders(root)
    holding = {holder["pid"] for holder in holders}
    stuck: list[dict[str, Any]] = []
    for name in list_dir(root, "proc"):
        found = status(root, int(name)) if name.isdigit() else None
        if found and found.state == "D" and (int(name) in holding or _DRIVERS_OWN.match(found.name)):
            stuck.append({"pid": int(name), "name": found.name})
    zombies = {}
    for process in (process for gpu in gpus for process in gpu.processes):
        found = status(root, process.pid)
        if found and found.state in ("Z", "X"):
            zombies[process.pid] = {"pid": process.pid, "name": found.name}
    return Occupants(
        dstate=tuple(sorted(stuck, key=lambda item: int(item["pid"]))),
        holders=tuple(holders),
        zombies=tuple(zombies[pid] for pid in sorted(zombies)),
    )


def named(gpu: Gpu, root: str = "/") -> Gpu:
    """Return a GPU whose processes have their names and units."""
    return dataclasses.replace(gpu, processes=tuple(_process(process, root) for process in gpu.processes))


def _process(process: Process, root: str) -> Process:
    found = status(root, process.pid)
    if found is None:
        return dataclasses.replace(process, exists=False)
    unit = _gpu_holders.parse_cgroup(read_text(root, f"proc/{process.pid}/cgroup") or "")["unit"]
    return dataclasses.replace(process, exists=True, name=found.name, unit=unit)
