# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What would mend a GPU, and what has to happen before: the next step of a ladder, told and never taken.

The driver's own word (NVML field 230) is the limit: nothing is proposed that it does not ask for, and where it says
nothing that is known, a person decides. A GPU that is in use, or of which nobody knows, is never to be reset next.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, Snapshot

NONE, DRAIN, RESET, REBOOT, PERSON = "none", "drain", "reset", "reboot", "person"
#: Codes of field 230 that a machine could follow. The others (an IMEX domain, a bus) reach beyond this node or GPU.
_ASKED = {0: NONE, 1: RESET, 2: REBOOT, 3: DRAIN, 4: RESET, 7: REBOOT}
_WORDS = {
    RESET: "the driver asks for a reset of this GPU",
    REBOOT: "the driver asks for a reboot",
    DRAIN: "the driver asks that no new work starts here",
}


@dataclasses.dataclass(frozen=True)
class Remedy:
    """The next step for a GPU.

    Args:
        step: ``none``, ``drain``, ``reset``, ``reboot`` or ``person``.
        then: What comes after a drain; empty for nothing, and for the other steps.
        reason: Why, in a line.
        users: Processes that have to end before, as ``pid`` and ``name``.
    """

    step: str
    then: str
    reason: str
    users: tuple[Mapping[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "step": self.step,
            "then": self.then,
            "reason": self.reason,
            "users": [dict(user) for user in self.users],
        }


def remedy(gpu: Gpu, snapshot: Snapshot) -> Remedy:
    """Return the next step for a GPU.

    Args:
        gpu: The GPU.
        snapshot: Its node, for who uses it.
    """
    asked = gpu.get("recovery_action")
    if not asked.ok or isinstance(asked.value, bool) or not isinstance(asked.value, int):
        if gpu.lost:
            return Remedy(PERSON, "", "the GPU is lost and cannot say what would mend it")
        return Remedy(NONE, "", "this driver or GPU does not say what it asks for")
    wanted = _ASKED.get(asked.value, PERSON)
    if wanted == NONE:
        return Remedy(NONE, "", "the driver asks for nothing")
    if wanted == PERSON:
        return Remedy(PERSON, "", f"the driver asks for action {asked.value}, which reaches further than this GPU")
    users, known = _users(gpu, snapshot, whole_node=wanted == REBOOT)
    if wanted == DRAIN:
        return Remedy(DRAIN, "", _WORDS[DRAIN], users)
    if users:
        return Remedy(DRAIN, wanted, f"{_WORDS[wanted]}, but it is in use", users)
    if not known:
        return Remedy(DRAIN, wanted, f"{_WORDS[wanted]}, but who uses it is not known")
    return Remedy(wanted, "", _WORDS[wanted])


def _users(gpu: Gpu, snapshot: Snapshot, whole_node: bool) -> tuple[tuple[dict[str, Any], ...], bool]:
    """Return who uses a GPU or, for a reboot, any of the node, and whether that is all that there is to know."""
    cards = snapshot.gpus if whole_node else (gpu,)
    found = {process.pid: process.name for card in cards for process in card.processes if process.exists}
    known = bool(snapshot.root)
    for card in cards:
        minor = card.get("minor")
        known = known and card.get("processes").ok and minor.ok
        device = f"/dev/nvidia{minor.value}" if minor.ok else ""
        for holder in snapshot.occupants.holders:
            if not holder.get("service") and (whole_node or device in holder.get("devices", ())):
                found[holder["pid"]] = str(holder.get("name") or "")
    stuck = {str(process["pid"]) for process in snapshot.occupants.dstate}
    users = tuple({"pid": pid, "name": name} for pid, name in sorted(found.items()))
    # A process that is stuck in the driver cannot be told to end, and its GPU cannot be named.
    return users, known and not stuck
