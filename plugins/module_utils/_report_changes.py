# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What changed between two reports: what got worse or better, what is wanted now, what came and what went.

Readings that move while all is well (a temperature, bytes in use) are no change; those of findings that are not ok are.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _results

#: Versions of the report's schema that can be compared with one another.
READABLE = (1, 2)
STATUS, EXPECTED, VALUE, NEW, GONE = "status", "expected", "value", "new", "gone"
_COMPARED = frozenset(("check", "target", "status", "expected", "value"))
#: Most characters of a value on a line.
_LONG = 120


class LastReportError(ValueError):
    """The last report cannot be compared; the text says why."""


def last_report(text: str) -> dict[str, Any]:
    """Return the report that a ``report.json`` holds.

    Raises:
        LastReportError: for anything that is none.
    """
    try:
        report = json.loads(text)
        if report["schema_version"] not in READABLE:
            raise LastReportError(f"its schema version is {report['schema_version']!r}")
        for node in report["nodes"]:
            lacks = {"name", "verdict"} - set(node)
            lacks.update(*(_COMPARED - set(finding) for finding in node["findings"]))
            if lacks:
                raise LastReportError(f"it is no report: {', '.join(sorted(lacks))} is missing")
        str(report["ended"])
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, LastReportError):
            raise
        raise LastReportError(f"it is no report ({type(error).__name__}: {error})") from error
    return dict(report)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the changes, in the order of the nodes and findings of the newer report, what went behind what is there.

    Returns:
        Dictionaries with ``node``, ``check``, ``target`` (both empty for a whole node), ``kind`` (``status``,
        ``expected``, ``value``, ``new`` or ``gone``), ``before`` and ``after``.
    """
    old = {node["name"]: node for node in before["nodes"]}
    found: list[dict[str, Any]] = []
    for node in after["nodes"]:
        earlier = old.pop(node["name"], None)
        if earlier is None:
            found.append(_change(node["name"], "", "", NEW, None, node["verdict"]))
        else:
            found += _in_node(node["name"], _keyed(earlier), _keyed(node))
    return found + [_change(name, "", "", GONE, node["verdict"], None) for name, node in old.items()]


def _keyed(node: Mapping[str, Any]) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """Return findings by check, target and, where several have the same, their number."""
    found: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for finding in node["findings"]:
        number = 0
        while (finding["check"], finding["target"], number) in found:
            number += 1
        found[(finding["check"], finding["target"], number)] = finding
    return found


def _in_node(
    name: str, old: dict[Any, Mapping[str, Any]], new: Mapping[Any, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    found = []
    for key, finding in new.items():
        earlier, (check, target, _number) = old.pop(key, None), key
        if earlier is None:
            found.append(_change(name, check, target, NEW, None, finding["status"]))
        elif earlier["status"] != finding["status"]:
            found.append(_change(name, check, target, STATUS, earlier["status"], finding["status"]))
        elif earlier["expected"] != finding["expected"]:
            found.append(_change(name, check, target, EXPECTED, earlier["expected"], finding["expected"]))
        elif earlier["value"] != finding["value"] and finding["status"] not in (_results.OK, _results.SKIPPED):
            found.append(_change(name, check, target, VALUE, earlier["value"], finding["value"]))
    return found + [_change(name, key[0], key[1], GONE, finding["status"], None) for key, finding in old.items()]


def _change(node: str, check: str, target: str, kind: str, before: Any, after: Any) -> dict[str, Any]:
    return {"node": node, "check": check, "target": target, "kind": kind, "before": before, "after": after}


def lines(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one line a change for the screen, with ``+`` for what is new, ``-`` for what went, ``~`` for the rest."""
    return [_line(change) for change in found]


def _line(change: Mapping[str, Any]) -> str:
    sign = {NEW: "+", GONE: "-"}.get(change["kind"], "~")
    if not change["check"]:
        what = "verified for the first time: " if change["kind"] == NEW else "not verified this time, was "
        return f"{sign} {change['node']}: {what}{change['after'] or change['before']}"
    head = f"{sign} {change['node']}: {change['check']} [{change['target']}]"
    if change["kind"] == NEW:
        return f"{head}: {change['after']}"
    if change["kind"] == GONE:
        return f"{head}: no longer judged, was {change['before']}"
    what = {EXPECTED: "wanted ", VALUE: "seen "}.get(change["kind"], "")
    return f"{head}: {what}{_short(change['before'])} -> {_short(change['after'])}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONG else text[:_LONG] + "..."
