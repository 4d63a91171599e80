# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""From the findings of all nodes to one judged report; its forms for people and for CI are in ``_report_forms``.

The report fails closed: a node without findings, a finding without a name, an unknown status or a skip without a reason
each become an ``error`` in it, so that nothing that was not judged can look good.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report_gpus, _results

#: Raised with every change of docs/report.schema.json.
SCHEMA_VERSION = 2
#: The order in which counts are told.
COUNT_ORDER = (_results.OK, _results.SKIPPED, _results.WARN, _results.FAIL, _results.ERROR)
PASS = "PASS"
FAIL = "FAIL"
#: Name of the check that the report itself adds where a node or a finding cannot be trusted.
OWN_CHECK = "report.findings"

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Meta:
    """What the report says about the run itself.

    Args:
        version: Version of the collection.
        started: When the first check began, with a time zone.
        ended: When the report was made, with a time zone.
        hosts: Every node that was to be verified, in the order of the report.
    """

    version: str
    started: datetime.datetime
    ended: datetime.datetime
    hosts: Sequence[str]


def build(findings_by_host: Mapping[str, Any], meta: Meta) -> dict[str, Any]:
    """Return the report as plain JSON data.

    Args:
        findings_by_host: Node name to its list of findings; None, an empty list or no entry at all means that the node
            was not judged.
        meta: The run. Nodes with findings that it does not expect are reported after the expected ones.
    """
    expected = list(dict.fromkeys(clean_text(host) for host in meta.hosts))
    given = {clean_text(host): findings for host, findings in findings_by_host.items()}
    nodes = [_node(host, given.get(host)) for host in expected + sorted(set(given) - set(expected))]
    counts = {status: sum(node["counts"][status] for node in nodes) for status in COUNT_ORDER}
    return {
        "schema_version": SCHEMA_VERSION,
        "collection": {"name": "aiinfra.gpu_node", "version": clean_text(meta.version)},
        "started": timestamp(meta.started),
        "ended": timestamp(meta.ended),
        "duration_s": round(max(0.0, (meta.ended - meta.started).total_seconds()), 3),
        # No node at all means that nothing was verified, which is not a success.
        "verdict": PASS if nodes and all(node["verdict"] == PASS for node in nodes) else FAIL,
        "counts": counts,
        "nodes": nodes,
    }


def bad_nodes(report: Mapping[str, Any]) -> list[str]:
    """Return the names of the nodes that may not serve."""
    return [str(node["name"]) for node in report["nodes"] if node["verdict"] != PASS]


def as_json(report: Mapping[str, Any]) -> str:
    """Return the report as the text of ``report.json``: ASCII, stable order, strict JSON."""
    return json.dumps(report, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def timestamp(moment: datetime.datetime) -> str:
    """Return a moment as RFC 3339 text in UTC, to the second."""
    return moment.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def clean_text(value: Any) -> str:
    """Return text that every JSON and UTF-8 reader accepts: bytes that are no UTF-8 appear as ``\\xff``."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return _SURROGATE.sub(lambda match: _escaped(ord(match.group())), str(value))


def _escaped(code: int) -> str:
    # Python keeps a byte that it could not decode as a lone surrogate from U+DC80 to U+DCFF (PEP 383).
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def _plain(value: Any) -> Any:
    """Return a value as strict JSON data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {clean_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    return clean_text(value)


def _node(name: str, findings: Any) -> dict[str, Any]:
    judged = [_finding(finding) for finding in _as_list(findings)] or [_not_judged()]
    counts = {status: sum(finding["status"] == status for finding in judged) for status in COUNT_ORDER}
    return {
        "name": name,
        "verdict": FAIL if _results.blockers(judged) else PASS,
        "worst": _results.worst(judged),
        "counts": counts,
        "gpus": _report_gpus.rows(judged),
        "findings": judged,
    }


def _as_list(findings: Any) -> list[Any]:
    if findings is None:
        return []
    if isinstance(findings, (list, tuple)):
        return list(findings)
    return [findings]


def _not_judged() -> dict[str, Any]:
    return _results.Finding(
        OWN_CHECK,
        "node",
        _results.ERROR,
        value="no findings",
        expected="findings of every check",
        hint="The node could not be reached, or it failed before it was verified: see the first failed task of this"
        " node above, repair that, then run playbooks/verify.yml again",
    ).as_dict()


def _finding(given: Any) -> dict[str, Any]:
    """Return a finding that keeps to the model; what does not becomes an error that shows what was given."""
    if not isinstance(given, Mapping) or not given.get("check") or not given.get("target"):
        return _results.Finding(
            OWN_CHECK,
            "finding",
            _results.ERROR,
            value=_plain(given),
            expected="check, target and status",
            hint="A check returned this instead of a finding: please report it as a defect of the collection",
        ).as_dict()
    status, hint = given.get("status"), clean_text(given.get("hint") or "")
    if status not in _results.SEVERITY:
        hint = _join(f"Status {_plain(status)!r} is unknown and counts as error", hint)
        status = _results.ERROR
    elif status == _results.SKIPPED and not hint:
        hint = "Skipped without a reason, which counts as error"
        status = _results.ERROR
    return _results.Finding(
        clean_text(given["check"]),
        clean_text(given["target"]),
        str(status),
        value=_plain(given.get("value")),
        expected=_plain(given.get("expected")),
        source=clean_text(given.get("source") or ""),
        hint=hint,
    ).as_dict()


def _join(*parts: str) -> str:
    return ". ".join(part for part in parts if part)
