# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the timer of the role gpu_health is told: the configuration file of a node, checked as a whole."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_request
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_request import Request, RequestError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernel_log import KMSG
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_child import DEADLINE_S

SCHEMA = 1
#: Seconds between two runs: the default, and what is allowed.
INTERVAL_S = 60
INTERVALS = (10, 1800)
#: Seconds that a run takes at most beside reading NVML: systemctl answers within 5 or is given up.
SLACK_S = 20
#: What the request is made of.
_REQUEST = ("profile", "profiles", "expected", "thresholds", "xid_policy", "xid_overrides", "skip")
KEYS = ("schema", *_REQUEST, "repaired_at", "deadline_s", "interval_s", "nvml_library", "kernel_log", "textfile_dir")


class SettingsError(ValueError):
    """A configuration that cannot be used; the text names every mistake."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The configuration of a node's timer.

    Args:
        request: What the node is judged by.
        deadline_s: Seconds until NVML is given up.
        interval_s: Seconds between two runs.
        nvml_library: Path of libnvidia-ml; empty for the one that the loader finds.
        kernel_log: The kernel's log.
        textfile_dir: Directory of node_exporter's textfile collector; empty: no metrics.
    """

    request: Request
    deadline_s: float = DEADLINE_S
    interval_s: int = INTERVAL_S
    nvml_library: str = ""
    kernel_log: str = KMSG
    textfile_dir: str = ""

    @property
    def stale_after_s(self) -> float:
        """Age of the last result from which on the timer counts as dead: two runs in a row were missed."""
        return 3 * self.interval_s + self.deadline_s + SLACK_S


def parse(data: Any, where: str = "gpu_health") -> Settings:
    """Return the settings that a configuration file, or the options of the module, hold.

    Args:
        data: Plain data with ``KEYS``; all but ``schema``, ``profiles`` and ``xid_policy`` may be left out.
        where: Name of the file, for the message.

    Raises:
        SettingsError: naming every mistake.
    """
    if not isinstance(data, Mapping):
        raise SettingsError(f"{where}: it is a dictionary, not {type(data).__name__}")
    problems = []
    if data.get("schema") != SCHEMA:
        problems.append(f"schema is {data.get('schema')!r}; this version reads {SCHEMA}: run the role gpu_health")
    unknown = sorted(str(key) for key in data if key not in KEYS)
    if unknown:
        problems.append(f"unknown keys {', '.join(unknown)}; known: {', '.join(KEYS)}")
    values: dict[str, Any] = {}
    for key, (low, high), default in (
        ("deadline_s", _health_request.DEADLINES, DEADLINE_S),
        ("interval_s", INTERVALS, INTERVAL_S),
    ):
        values[key] = data.get(key, default)
        if not _between(values[key], low, high):
            problems.append(f"{key} is {values[key]!r}; allowed are {low:g} to {high:g} seconds")
    for key, usual in (("nvml_library", ""), ("kernel_log", KMSG), ("textfile_dir", "")):
        values[key] = data.get(key) or usual
        if not isinstance(values[key], str) or (values[key] and not os.path.isabs(values[key])):
            problems.append(f"{key} is {values[key]!r}; allowed is an absolute path")
    request = None
    try:
        request = _health_request.parse(
            {**{key: data.get(key) for key in _REQUEST}, "since": data.get("repaired_at") or None}
        )
        if request.since is not None and not isinstance(request.since, datetime.datetime):
            # Seconds since the boot would mean another instant after each reboot.
            problems.append(f"repaired_at is {data['repaired_at']!r}; allowed is a time such as 2026-01-31T10:00:00Z")
    except RequestError as error:
        problems.append(str(error))
    if problems or request is None:
        raise SettingsError(f"{where}: " + "; ".join(problems))
    return Settings(
        request,
        float(values["deadline_s"]),
        int(values["interval_s"]),
        values["nvml_library"],
        values["kernel_log"],
        values["textfile_dir"],
    )


def _between(value: Any, low: float, high: float) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return number and low <= value <= high
