# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The lines that the child writes, taken apart as they come; a line that is none of its own counts for nothing."""

from __future__ import annotations

import json
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import (
    NOT_REACHED,
    Gpu,
    MigDevice,
    Process,
    Reading,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading_names import READINGS

#: Bytes of one line; a list of processes is the longest.
_MAX_LINE = 4 << 20
#: NVML counts 16 GPUs on the largest nodes; a number far above is no answer.
MAX_GPUS = 128


class Lines:
    """What the child has told until now.

    Attributes:
        nvml: Entries of ``Nvml``.
        done: Whether it told that this is all.
        calls: Calls into NVML that it announced.
        where: The call that it announced last, in words.
    """

    def __init__(self) -> None:
        self.nvml: dict[str, Any] = {}
        self.done = False
        self.calls = 0
        self.where = "the start of Python"
        self._rest = b""
        self._cards: dict[int, dict[str, Any]] = {}

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest if len(self._rest) <= _MAX_LINE else b""
        for line in lines:
            try:
                entries = json.loads(line)
            except ValueError:
                continue
            if isinstance(entries, dict):
                self._line(entries)

    def _line(self, entries: Mapping[str, Any]) -> None:
        index = entries.get("gpu")
        if "call" in entries:
            call = str(entries["call"])
            self.calls += call.startswith("nvml")
            self.where = call if index is None else f"{call} of GPU {index}"
        elif isinstance(entries.get("nvml"), dict):
            self.nvml.update(entries["nvml"])
        elif entries.get("done") is True:
            self.done = True
        elif isinstance(index, int) and 0 <= index < MAX_GPUS:
            card = self._cards.setdefault(index, {"set": {}})
            if isinstance(entries.get("set"), dict):
                card["set"].update(entries["set"])
            else:
                card.update(entries)

    def gpus(self, why: str) -> tuple[Gpu, ...]:
        """Return the GPUs that NVML counts, also those that were not reached.

        Args:
            why: Why the child did not get further, for readings that are not there.
        """
        count = self.nvml.get("count")
        count = min(count, MAX_GPUS) if isinstance(count, int) else 0
        return tuple(self._gpu(index, why) for index in range(count))

    def _gpu(self, index: int, why: str) -> Gpu:
        card = self._cards.get(index, {"set": {}})
        lost = "lost" in card
        note = "the GPU is lost: {}".format(card.get("text", "")) if lost else why
        readings = dict.fromkeys(READINGS, Reading(why=NOT_REACHED, note=note))
        readings.update(_readings(card["set"]))
        return Gpu(
            index=index,
            bus_id=str(card.get("bus_id", "")),
            lost=lost,
            lost_code=card.get("lost"),
            readings=readings,
            processes=tuple(Process(**item) for item in card.get("processes", ())),
            mig=tuple(MigDevice(**{**item, "readings": _readings(item["readings"])}) for item in card.get("mig", ())),
        )


def _readings(entries: Mapping[str, Any]) -> dict[str, Reading]:
    return {name: Reading(*entry) for name, entry in entries.items()}
