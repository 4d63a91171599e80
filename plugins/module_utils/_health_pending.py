# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""A node whose new driver waits for a reboot: what only the reboot will tell is a warning until then."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import BAD, WARN

#: NVML's states in which no driver answers yet. A call that hangs, or an error, is not among them.
UNLOADED = frozenset({"absent", "not_loaded", "mismatch"})
#: What differs between the installed driver and the loaded one while that still answers.
OF_THE_DRIVER = frozenset({"node.driver_match", "node.driver_pin", "node.nouveau"})
NOTE = "judged after the reboot that is due"


def softened(findings: Iterable[Mapping[str, Any]], nvml: str, awaits_reboot: bool) -> list[dict[str, Any]]:
    """Return findings of which those that the reboot decides warn.

    Args:
        findings: Plain findings of a health check.
        nvml: State of NVML as a whole.
        awaits_reboot: Whether a reboot is due for the driver, and the caller takes that as a warning.

    Returns:
        Copies, in the same order; all of them as they were where no reboot is due.
    """
    found = []
    for finding in findings:
        row = dict(finding)
        excused = nvml in UNLOADED or row.get("check") in OF_THE_DRIVER
        if awaits_reboot and excused and row.get("status") in BAD:
            row["status"] = WARN
            row["hint"] = f"{NOTE}: {row.get('hint') or row.get('check')}"
        found.append(row)
    return found
