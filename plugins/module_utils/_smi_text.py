# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Judging the text of ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits``.

The tool exits with 0 although its text holds error markers in place of values. Content is judged, not only the status.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED, Finding

CHECK = "node.nvidia_smi"
#: Exit codes that the tool's own help explains.
EXIT_CODES = {
    2: "a wrong argument",
    3: "not supported by the device",
    4: "no permission",
    6: "the device was not found",
    8: "the power cables of a GPU are not attached",
    9: "the driver is not loaded",
    10: "an interrupt of a GPU does not arrive",
    12: "the NVML library was not found",
    13: "the NVML library lacks a function",
    14: "the infoROM of a GPU is corrupted",
    15: "a GPU has fallen off the bus",
    18: "library and module are of different versions",
    124: "it did not answer in time",
    127: "the tool is not there",
}
# What stands in place of a value. "ERR!" comes bare, the others in brackets or, in newer versions, without.
_ERROR = re.compile(
    r"ERR!|\[?(?:Unknown Error|GPU is lost|GPU requires reset|Insufficient Permissions)\]?|\[Error", re.I
)
_UNSUPPORTED = re.compile(r"^\[?(?:N/A|Not Supported|Requested functionality has been deprecated)\]?$", re.I)
_SOURCE = "nvidia-smi"


def judge(text: str, fields: Sequence[str], rc: int = 0, expected: int | None = None) -> list[Finding]:
    """Return the findings on the tool's answer.

    Args:
        text: Its standard output: a line for each GPU, the fields separated by commas.
        fields: Names of the fields that were asked for, in order; with ``index`` or ``pci.bus_id`` among them a GPU is
            named by it.
        rc: Its exit code.
        expected: How many GPUs must answer; None: as many as there are.

    Returns:
        One finding for each GPU with an error marker, with a field that is not supported or with good values, and one
        for the node when the tool failed, said nothing, or spoke of too few GPUs.
    """
    found = []
    if rc:
        hint = EXIT_CODES.get(rc, "see its output")
        found.append(Finding(CHECK, "node", FAIL, {"rc": rc, "text": text.strip()[:200]}, {"rc": 0}, _SOURCE, hint))
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if any(cell.strip() for cell in row)]
    for number, row in enumerate(rows):
        found.append(_row([cell.strip() for cell in row], fields, number))
    if expected is not None and len(rows) < expected:
        found.append(Finding(CHECK, "node", FAIL, len(rows), expected, _SOURCE, "a GPU does not answer: see gpu_count"))
    if not found:
        found.append(Finding(CHECK, "node", ERROR, "", "a line for each GPU", _SOURCE, "the tool said nothing at all"))
    return found


def _row(cells: Sequence[str], fields: Sequence[str], number: int) -> Finding:
    named = dict(zip(fields, cells))
    target = f"gpu{named.get('index', number)} {named.get('pci.bus_id', '')}".strip()
    marked = {field: cell for field, cell in named.items() if _ERROR.search(cell)}
    # The raw line goes into the finding: a marker may stand where no field was expected.
    stray = [cell for cell in cells if _ERROR.search(cell)]
    if marked or stray:
        shown = marked or {"line": ", ".join(cells)[:200]}
        return Finding(CHECK, target, FAIL, shown, "values", _SOURCE, "an error marker in place of a value: see dmesg")
    if len(cells) != len(fields) or any(not cell for cell in cells):
        hint = f"{len(fields)} fields were asked for: the tool's answer cannot be understood"
        return Finding(CHECK, target, ERROR, ", ".join(cells)[:200], list(fields), _SOURCE, hint)
    missing = sorted(field for field, cell in named.items() if _UNSUPPORTED.match(cell))
    told = {field: cell for field, cell in named.items() if field not in missing}
    if missing:
        return Finding(CHECK, target, SKIPPED, told, None, "", f"not supported by this GPU: {', '.join(missing)}")
    return Finding(CHECK, target, OK, told, None, _SOURCE)
