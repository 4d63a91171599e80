# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The one result model of health checks, verify steps and drift.

A finding says what was looked at, what was seen, what was wanted, where the wanted value comes from and what to do.
Verdict functions are pure: facts and expectations go in, findings come out.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Iterable, Mapping

OK = "ok"
WARN = "warn"
FAIL = "fail"
SKIPPED = "skipped"
ERROR = "error"

#: From harmless to worst. A finding that could not be judged for a known reason (skipped) never hides a worse one.
SEVERITY = (OK, SKIPPED, WARN, FAIL, ERROR)
#: A node with one of these may not serve. "error" means that the truth is not known, which is never good enough.
BAD = frozenset({FAIL, ERROR})


@dataclasses.dataclass(frozen=True)
class Finding:
    """One judged observation.

    Args:
        check: Dotted name of the check, e.g. ``driver.module``.
        target: What was looked at: a kernel, a package, a GPU, a file, or ``node``.
        status: One of ``SEVERITY``.
        value: What was seen, as plain data.
        expected: What was wanted, as plain data.
        source: Where the wanted value comes from (variable, data file, document).
        hint: What to do; for ``skipped`` the reason, which is mandatory there.

    Raises:
        ValueError: for an unknown status, or a skipped finding without a reason.
    """

    check: str
    target: str
    status: str
    value: Any = None
    expected: Any = None
    source: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        if self.status not in SEVERITY:
            raise ValueError(f"unknown status {self.status!r} of check {self.check}")
        if self.status == SKIPPED and not self.hint:
            raise ValueError(f"check {self.check} is skipped without a reason")

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as the plain dictionary that modules, filters and reports exchange."""
        # Not dataclasses.asdict: it rebuilds each container with its own type, which Ansible's lazy ones do not allow.
        return {field.name: _copied(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _copied(value: Any) -> Any:
    """Return plain data: dictionaries and lists in place of whatever kind of mapping and sequence came in."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value


def as_dicts(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return plain dictionaries, in order."""
    return [finding.as_dict() for finding in findings]


def worst(findings: Iterable[dict[str, Any]]) -> str:
    """Return the worst status among plain findings; no finding at all is an error, since nothing was judged."""
    statuses = [str(finding.get("status", ERROR)) for finding in findings]
    if not statuses:
        return ERROR
    return max(statuses, key=lambda status: SEVERITY.index(status) if status in SEVERITY else len(SEVERITY))


def blockers(findings: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the findings that keep a node from serving: fail, error, and any status this code does not know."""
    harmless = frozenset(SEVERITY) - BAD
    return [finding for finding in findings if finding.get("status") not in harmless]


def describe(finding: dict[str, Any]) -> str:
    """Return one line for people: check, target, what was seen against what was wanted, and what to do."""
    text = "{check} [{target}]: {seen}".format(
        check=finding.get("check", "?"), target=finding.get("target", "?"), seen=_plain(finding.get("value"))
    )
    if finding.get("expected") is not None:
        text += ", wanted {}".format(_plain(finding["expected"]))
    if finding.get("source"):
        text += " ({})".format(finding["source"])
    if finding.get("hint"):
        text += ". {}".format(finding["hint"])
    return text


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, default=str)
