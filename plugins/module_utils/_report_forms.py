# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The forms of a report made by ``_report``: JUnit XML for CI, a table and verdict lines for the screen."""

from __future__ import annotations

import re
import textwrap
from typing import Any, Iterable, List, Mapping, Sequence, Tuple
from xml.sax.saxutils import escape, quoteattr

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report, _report_gpus, _results

#: Everything that XML 1.0 cannot carry, not even as a character reference; line ends and tabs are fine.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_WIDTH = 110
#: Longer texts are cut on the screen only; the files have them whole.
_SCREEN_TEXT = 400
_COLUMNS = ("NODE", "CHECK", "STATUS", "TARGETS")


def as_junit(report: Mapping[str, Any]) -> str:
    """Return the report as JUnit XML: a node is a suite, a GPU is a case, and so is each finding of no GPU.

    ``fail`` is a failure, ``error`` an error, ``skipped`` is skipped with its reason; ``warn`` passes and says so in
    the output of the case. A case of a GPU has the worst status of its findings and the text of all that are not ok.
    """
    suites = [(node["name"], _cases(node)) for node in report["nodes"]]
    total = _totals([case for _name, cases in suites for case in cases])
    head = _attributes(name="aiinfra.gpu_node verify", **total, time=report["duration_s"], timestamp=report["started"])
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites{head}>"]
    for name, cases in suites:
        lines.append(f"  <testsuite{_attributes(name=name, **_totals(cases), timestamp=report['started'])}>")
        for _status, text in cases:
            lines += text
        lines.append("  </testsuite>")
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


_Case = Tuple[str, List[str]]


def _cases(node: Mapping[str, Any]) -> list[_Case]:
    """Return status and lines of each case of a node."""
    gpus, others = _report_gpus.by_gpu(node["findings"])
    cases: list[_Case] = [(finding["status"], list(_case(finding))) for finding in others]
    return cases + [(_report_gpus.status_of(found), list(_gpu_case(name, found))) for name, found in gpus.items()]


def _totals(cases: Sequence[_Case]) -> dict[str, int]:
    counts = {name: sum(status == name for status, _lines in cases) for name in _results.SEVERITY}
    return {
        "tests": len(cases),
        "failures": counts[_results.FAIL],
        "errors": counts[_results.ERROR],
        "skipped": counts[_results.SKIPPED],
    }


def _gpu_case(name: str, findings: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    status, head = _report_gpus.status_of(findings), _attributes(classname="gpu", name=name)
    bad = [_results.describe(dict(item)) for item in findings if item["status"] in _results.BAD]
    # What was not judged is told as well: a case that passes says what it does not speak of.
    notes = [
        f"{item['status'].upper()} {_results.describe(dict(item))}"
        for item in findings
        if item["status"] in (_results.WARN, _results.SKIPPED)
    ]
    if not bad and not notes:
        yield f"    <testcase{head}/>"
        return
    yield f"    <testcase{head}>"
    if bad:
        element = "failure" if status == _results.FAIL else "error"
        told = bad[0] if len(bad) == 1 else f"{bad[0]} (and {len(bad) - 1} more)"
        text = escape(_xml("\n".join(bad)))
        yield f"      <{element}{_attributes(message=told, type=status)}>{text}</{element}>"
    elif status == _results.SKIPPED:
        yield f"      <skipped{_attributes(message=findings[0]['hint'])}/>"
    if notes:
        yield f"      <system-out>{escape(_xml(chr(10).join(notes)))}</system-out>"
    yield "    </testcase>"


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


def plain_line(text: str) -> str:
    """Return text for the screen: one line of plain ASCII, cut where it is very long."""
    text = _ascii(text)
    return text if len(text) <= _SCREEN_TEXT else text[:_SCREEN_TEXT] + "..."


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
    yield from _gpu_row(node)


def _gpu_row(node: Mapping[str, Any]) -> Iterable[tuple[tuple[str, str, str, str], list[str]]]:
    """Give one row that counts the GPUs of a node by their status, and names those that are not ok."""
    gpus, _others = _report_gpus.by_gpu(node["findings"])
    if not gpus:
        return
    statuses = {name: _report_gpus.status_of(found) for name, found in gpus.items()}
    told = [(status, sum(found == status for found in statuses.values())) for status in _report.COUNT_ORDER]
    notes = []
    for name, found in gpus.items():
        if statuses[name] not in (_results.OK, _results.SKIPPED):
            checks = dict.fromkeys(item["check"] for item in found if item["status"] == statuses[name])
            notes.append(_ascii(f"{statuses[name]} [{name}]: {', '.join(checks)}"))
    worst = _report_gpus.status_of([{"status": status} for status in statuses.values()])
    row = (_ascii(node["name"]), "GPUs", worst, ", ".join(f"{count} {status}" for status, count in told if count))
    yield row, notes


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
