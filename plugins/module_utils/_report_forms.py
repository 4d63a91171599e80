# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The forms of a report made by ``_report``: JUnit XML for CI, a table and verdict lines for the screen."""

from __future__ import annotations

import re
import textwrap
from typing import Any, Iterable, Mapping
from xml.sax.saxutils import escape, quoteattr

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report, _results

#: Everything that XML 1.0 cannot carry, not even as a character reference; line ends and tabs are fine.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_WIDTH = 110
#: Longer texts are cut on the screen only; the files have them whole.
_SCREEN_TEXT = 400
_COLUMNS = ("NODE", "CHECK", "STATUS", "TARGETS")


def as_junit(report: Mapping[str, Any]) -> str:
    """Return the report as JUnit XML: a node is a suite, a finding is a case.

    ``fail`` is a failure, ``error`` an error, ``skipped`` is skipped with its reason; ``warn`` passes and says so in
    the output of the case.
    """
    nodes = report["nodes"]
    head = _attributes(
        name="aiinfra.gpu_node verify",
        tests=sum(len(node["findings"]) for node in nodes),
        failures=report["counts"][_results.FAIL],
        errors=report["counts"][_results.ERROR],
        skipped=report["counts"][_results.SKIPPED],
        time=report["duration_s"],
        timestamp=report["started"],
    )
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites{head}>"]
    for node in nodes:
        lines += _suite(node, report["started"])
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def as_table(report: Mapping[str, Any]) -> str:
    """Return the report for the screen, plain ASCII: counts of what is ok, and what is not with what to do."""
    rows: list[tuple[str, str, str, str]] = []
    notes: dict[int, list[str]] = {}
    for node in report["nodes"]:
        for row, hints in _node_rows(node):
            notes[len(rows)] = hints
            rows.append(row)
    widths = [max(len(row[column]) for row in [_COLUMNS, *rows]) for column in range(3)]
    lines = [_line(_COLUMNS, widths)]
    for index, row in enumerate(rows):
        lines.append(_line(row, widths))
        for note in notes[index]:
            lines += textwrap.wrap(
                note, _LINE_WIDTH, initial_indent="    - ", subsequent_indent="      ", break_on_hyphens=False
            )
    return "\n".join(lines)


def verdict_lines(report: Mapping[str, Any]) -> list[str]:
    """Return one verdict line per node and, last, the one of the run."""
    lines = [f"VERDICT {_ascii(node['name'])}: {node['verdict']} ({_told(node['counts'])})" for node in report["nodes"]]
    bad = len(_report.bad_nodes(report))
    total = len(report["nodes"])
    told = f"{total - bad} of {total} nodes pass" if total else "no node was verified"
    return [*lines, f"VERDICT: {report['verdict']} ({told})"]


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[status]} {status}" for status in _report.COUNT_ORDER if counts[status])


def _suite(node: Mapping[str, Any], started: str) -> Iterable[str]:
    counts = node["counts"]
    head = _attributes(
        name=node["name"],
        tests=len(node["findings"]),
        failures=counts[_results.FAIL],
        errors=counts[_results.ERROR],
        skipped=counts[_results.SKIPPED],
        timestamp=started,
    )
    yield f"  <testsuite{head}>"
    for finding in node["findings"]:
        yield from _case(finding)
    yield "  </testsuite>"


def _case(finding: Mapping[str, Any]) -> Iterable[str]:
    status = finding["status"]
    head = _attributes(classname=finding["check"], name=finding["target"])
    text = _results.describe(dict(finding))
    if status == _results.OK:
        yield f"    <testcase{head}/>"
        return
    yield f"    <testcase{head}>"
    if status == _results.SKIPPED:
        yield f"      <skipped{_attributes(message=finding['hint'])}/>"
    elif status == _results.WARN:
        yield f"      <system-out>{escape(_xml('WARN ' + text))}</system-out>"
    else:
        element = "failure" if status == _results.FAIL else "error"
        yield f"      <{element}{_attributes(message=text, type=status)}>{escape(_xml(text))}</{element}>"
    yield "    </testcase>"


def _attributes(**attributes: Any) -> str:
    return "".join(f" {name}={quoteattr(_xml(str(value)))}" for name, value in attributes.items())


def _xml(text: str) -> str:
    """Return text that XML 1.0 can carry: control characters appear escaped, as ``\\x1b``."""
    return _NOT_XML.sub(lambda match: _escaped(match.group()), text)


def _ascii(text: str) -> str:
    """Return text that every terminal shows as it is, on one line."""
    return "".join(char if " " <= char <= "~" else _escaped(char) for char in " ".join(text.split()))


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _node_rows(node: Mapping[str, Any]) -> Iterable[tuple[tuple[str, str, str, str], list[str]]]:
    """Give the rows of a node: per area first how many findings are ok, then each check that has others."""
    areas: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for finding in node["findings"]:
        check = finding["check"]
        areas.setdefault(check.split(".")[0], {}).setdefault(check, []).append(finding)
    name = _ascii(node["name"])
    for area, checks in areas.items():
        fine = sum(finding["status"] == _results.OK for findings in checks.values() for finding in findings)
        if fine:
            yield (name, _ascii(area), _results.OK, f"{fine} ok"), []
        for check, findings in checks.items():
            others = [finding for finding in findings if finding["status"] != _results.OK]
            if others:
                told = others[0]["target"] if len(findings) == 1 else f"{len(others)} of {len(findings)}"
                row = (name, _ascii(check), _results.worst([dict(finding) for finding in others]), _ascii(told))
                yield row, [_note(finding) for finding in others]


def _note(finding: Mapping[str, Any]) -> str:
    # The check stands in the row already; several statuses may stand below one row.
    text = _results.describe({**finding, "check": finding["status"]})
    if finding["status"] == _results.SKIPPED:
        text = "{} [{}]: {}".format(finding["status"], finding["target"], finding["hint"])
    text = _ascii(text)
    return text if len(text) <= _SCREEN_TEXT else text[:_SCREEN_TEXT] + "... (whole in report.json)"


def _line(row: tuple[str, str, str, str], widths: list[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths)]
    return "  ".join([*cells, row[3]]).rstrip()
