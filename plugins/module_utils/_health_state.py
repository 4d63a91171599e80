# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the timer of the role gpu_health keeps on a node: the last verdict, and what later runs compare with.

Nothing here is trusted when it is read again: a file that is damaged costs a comparison, never a run.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Iterator, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_history, _health_request
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_settings import Settings
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import (
    ERROR,
    OK,
    SKIPPED,
    WARN,
    Finding,
    describe,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import read_bytes

SCHEMA = 1
FOLDER = os.path.dirname(_health_request.HISTORY)
STATE = os.path.join(FOLDER, "state.json")
HISTORY = _health_request.HISTORY
#: Digits of the hash that names a folder with the agent's code.
GENERATION_LENGTH = 16
#: How _textfile names what it has not finished yet.
_UNFINISHED = ".gpu-node-"
#: Seconds after which an unfinished file belongs to no run that could still be working.
_ABANDONED_S = 3600.0
#: Priorities of the journal.
_ERR, _WARNING, _NOTICE = 3, 4, 5


def encoded(data: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file."""
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode("utf-8")


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _loaded(root: str, path: str) -> tuple[Any, str]:
    """Return what a JSON file holds (None where there is none), and why it could not be read."""
    try:
        content = read_bytes(root, path)
        return (None, "") if content is None else (json.loads(content.decode("utf-8")), "")
    except OSError as error:
        return None, f"{path} could not be read: {error.strerror or error}"
    except (ValueError, RecursionError) as error:
        return None, f"{path} is no JSON ({error})"


def load_history(root: str = "/") -> _health_history.History:
    """Return what earlier runs saw; an empty history, with the problem, where it cannot be read."""
    data, problem = _loaded(root, HISTORY)
    return _health_history.History(problem=problem) if problem else _health_history.load(data)


def load_state(root: str = "/") -> dict[str, Any]:
    """Return the last verdict as ``document`` gave it; empty where there is none that can be read."""
    data, _problem = _loaded(root, STATE)
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}


def document(
    answer: Mapping[str, Any],
    boot_id: str,
    now: float,
    duration_s: float,
    wanted: Settings,
    history_problem: str = "",
) -> dict[str, Any]:
    """Return what is written down of a run.

    Args:
        answer: What ``_health_request.answer`` returns.
        boot_id: This boot.
        now: When it is written, in seconds since the epoch.
        duration_s: Seconds that the whole run took.
        wanted: What the node was judged by.
        history_problem: Why earlier runs could not be compared with; empty when they could.
    """
    return {
        "schema": SCHEMA,
        "written_at": round(now, 3),
        "boot_id": boot_id,
        "run_duration_s": duration_s,
        "interval_s": wanted.interval_s,
        "stale_after_s": wanted.stale_after_s,
        "history_problem": history_problem,
        "problem": "",
        **answer,
    }


def failed_document(reason: str, now: float, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written down of a run that could not judge: that the truth is not known."""
    finding = Finding("node.health_agent", "node", ERROR, reason, hint=reason)
    return {
        "schema": SCHEMA,
        "written_at": round(now, 3),
        "boot_id": str(before.get("boot_id") or ""),
        "interval_s": before.get("interval_s"),
        "stale_after_s": before.get("stale_after_s"),
        "history_problem": "",
        "problem": reason,
        "verdict": ERROR,
        "may_serve": False,
        "counts": {ERROR: 1},
        "findings": [finding.as_dict()],
        "bad": [describe(finding.as_dict())],
        "gpus": [],
        "summary": {},
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the lines for the journal: what changed since the run before, each with its priority in front.

    After a boot, and in the first run, everything that is not as it should be is said; later only what is new, what got
    better or worse, and what is over.
    """
    fresh = not before or before.get("boot_id") != after.get("boot_id")
    known = {} if fresh else dict(_by_key(before))
    now = dict(_by_key(after))
    lines = []
    if fresh or before.get("verdict") != after.get("verdict"):
        was = "" if fresh else f", was {before.get('verdict')}"
        lines.append(f"<{_priority(str(after.get('verdict')))}>verdict {after.get('verdict')}{was}")
    for key, finding in now.items():
        status = str(finding.get("status"))
        was = str((known.get(key) or {}).get("status") or "")
        if status == was or (status in (OK, SKIPPED) and was in ("", OK, SKIPPED)):
            continue
        shown = f"<{_priority(status)}>{status}{f' (was {was})' if was else ''}: {describe(dict(finding))}"
        lines.append(shown.replace("\n", " "))
    for key, finding in known.items():
        if key not in now and finding.get("status") not in (OK, SKIPPED):
            lines.append(f"<{_NOTICE}>gone (was {finding.get('status')}): {key[0]} [{key[1]}]".replace("\n", " "))
    return lines


def _by_key(state: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    for finding in state.get("findings") or ():
        if isinstance(finding, Mapping):
            yield (str(finding.get("check")), str(finding.get("target"))), finding


def _priority(status: str) -> int:
    if status in (OK, SKIPPED):
        return _NOTICE
    if status == WARN:
        return _WARNING
    return _ERR


def remove_leftovers(folder: str, now: float) -> list[str]:
    """Remove unfinished files of runs that were killed; returns their names."""
    removed = []
    try:
        entries = [entry.name for entry in os.scandir(folder) if entry.name.startswith(_UNFINISHED)]
    except OSError:
        return []
    for name in entries:
        path = os.path.join(folder, name)
        try:
            if now - os.lstat(path).st_mtime > _ABANDONED_S:
                os.unlink(path)
                removed.append(name)
        except OSError:
            continue
    return removed
