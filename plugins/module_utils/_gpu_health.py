# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The health of a GPU node: a snapshot, profiles, a policy and a history go in, findings and one verdict come out.

Pure: nothing is read or written here. Modules, the timer and the tests call the same ``judge``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _health_checks_card,
    _health_checks_links,
    _health_checks_memory,
    _health_checks_modes,
    _health_checks_node,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_history as health_history
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_profile import Profile
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import (
    REGISTRY,
    Check,
    Context,
    gpu_target,
    run_check,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_history import History, View
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_policy import Policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import (
    BAD,
    ERROR,
    FAIL,
    OK,
    SEVERITY,
    SKIPPED,
    WARN,
    Finding,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._xid_policy import XidPolicy

#: The modules that register checks; importing them is what fills the registry.
REGISTERED_BY = (
    _health_checks_node,
    _health_checks_card,
    _health_checks_links,
    _health_checks_memory,
    _health_checks_modes,
)


class SkipError(ValueError):
    """A skip list that cannot be used; the text names every mistake."""


@dataclasses.dataclass(frozen=True)
class Skip:
    """A check that is left out.

    Args:
        check: Its name.
        reason: Why; mandatory, and shown.
        target: Only for this target (``gpu3``, ``0000:65:00.0`` or a finding's whole target); empty: for all.
    """

    check: str
    reason: str
    target: str = ""

    def covers(self, finding: Finding) -> bool:
        """Whether a finding is meant."""
        return finding.check == self.check and self.target in ("", finding.target, *finding.target.split())


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a node's health comes to.

    Args:
        status: The worst status of all findings, ``skipped`` counting as ``ok`` unless nothing else is there.
        may_serve: Whether the node may serve: nothing failed, nothing is unknown, and something was judged.
        findings: All of them, in the order of the registry.
        gpus: Target of each GPU to its own status.
        counts: How many findings have which status.
    """

    status: str
    may_serve: bool
    findings: tuple[Finding, ...]
    gpus: Mapping[str, str]
    counts: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for modules, reports and the state file."""
        return {
            "status": self.status,
            "may_serve": self.may_serve,
            "findings": [finding.as_dict() for finding in self.findings],
            "gpus": dict(self.gpus),
            "counts": dict(self.counts),
        }

    @property
    def bad(self) -> list[Finding]:
        """The findings that keep the node from serving."""
        return [finding for finding in self.findings if finding.status in BAD]


def parse_skips(rows: Any) -> tuple[Skip, ...]:
    """Return the skip list.

    Args:
        rows: Dictionaries with ``check``, ``reason`` and optionally ``target``.

    Raises:
        SkipError: for an unknown check, a missing reason, or a check that nothing else can be believed without.
    """
    if not isinstance(rows, (list, tuple)):
        raise SkipError(f"the skip list is a list of dictionaries with check and reason, not {type(rows).__name__}")
    problems = []
    for row in rows:
        if not isinstance(row, Mapping) or set(row) - {"check", "reason", "target"}:
            problems.append(f"{row!r:.60}: an entry is a dictionary with check, reason and optionally target")
            continue
        name = row.get("check")
        if not isinstance(name, str) or name not in REGISTRY:
            problems.append(f"{name!r} is no check; docs/health-checks.md lists them")
        elif REGISTRY[name].essential:
            problems.append(f"{name} cannot be skipped: without it nothing else can be believed; quarantine the node")
        if not str(row.get("reason") or "").strip():
            problems.append(f"{name}: a skipped check needs a reason")
    if problems:
        raise SkipError("skip list: " + "; ".join(problems))
    return tuple(Skip(row["check"], str(row["reason"]).strip(), str(row.get("target") or "")) for row in rows)


def judge(
    snapshot: Snapshot,
    profiles: Sequence[Profile],
    xids: XidPolicy,
    policy: Policy | None = None,
    history: History | None = None,
    since: float | None = None,
    skips: Sequence[Skip] = (),
    strict: bool = False,
) -> tuple[Verdict, History]:
    """Judge a node.

    Args:
        snapshot: The node now.
        profiles: Golden ones first, then those of the models.
        xids: Decisions about the driver's errors.
        policy: Thresholds; None: the defaults.
        history: Of earlier runs; None: none.
        since: Events of the log count from here on, seconds since the epoch; None: from the boot. An instant of the
            last repair in the history counts as well.
        skips: Checks that are left out.
        strict: Let an exception of a check through (for tests).

    Returns:
        The verdict, and the history to keep for the next run.
    """
    policy = policy or Policy()
    known = health_history.current(history or History(), snapshot)
    since_s, problem = _since(snapshot, since, known.repaired_at)
    view = View(known, snapshot, policy)
    ctx = Context(snapshot, policy, tuple(profiles), xids, view, since_s, problem)
    findings: list[Finding] = []
    marks: list[tuple[str, str, bool]] = []
    for spec in REGISTRY.values():
        for outcome in run_check(spec, ctx, strict):
            finding = outcome.finding
            skip = next((one for one in skips if one.covers(finding)), None)
            if skip:
                findings.append(
                    dataclasses.replace(finding, status=SKIPPED, hint=f"left out by the skip list: {skip.reason}")
                )
                continue
            if spec.damped and outcome.judgement:
                marks.append((spec.name, finding.target, finding.status == FAIL))
                finding = _damped(spec, finding, view, policy)
            findings.append(finding)
    return conclude(findings, snapshot), health_history.record(known, snapshot, policy, marks)


def _since(snapshot: Snapshot, *instants: float | None) -> tuple[float, str]:
    """Return from which second of this boot on events count, and why an instant could not be used."""
    problem, latest = "", 0.0
    booted = snapshot.taken_at - snapshot.uptime_s
    for instant in instants:
        if instant is None:
            continue
        if instant > snapshot.taken_at + 1:
            # Taken at its word it would hide every event there is, and those to come.
            problem = f"the instant {instant:.0f} from which events count lies in the future: it is not used"
            continue
        latest = max(latest, instant - booted)
    return latest, problem


def _damped(spec: Check, finding: Finding, view: View, policy: Policy) -> Finding:
    """Return the finding as N of the last M samples confirm it: seen once it warns, gone once it still counts."""
    needed, window = (getattr(policy, name) for name in spec.damped)
    bad = finding.status == FAIL
    confirmed, seen = view.confirmed(spec.name, finding.target, bad, needed, window)
    if bad and not confirmed:
        hint = f"{finding.hint} (seen in {seen} of the last {window} samples; {needed} make it fail)"
        return dataclasses.replace(finding, status=WARN, hint=hint)
    if not bad and confirmed:
        hint = f"not seen now, but in {seen} of the last {window} samples: {spec.action}"
        return dataclasses.replace(finding, status=FAIL, hint=hint)
    return finding


def overall(statuses: Iterable[str]) -> str:
    """Return the one status of several: the worst; ``skipped`` hides nothing and is nothing bad beside an ``ok``.

    Nothing at all is an error, since nothing was judged; so is a status that this code does not know.
    """
    found = list(statuses)
    if not found or any(status not in SEVERITY for status in found):
        return ERROR
    judged = [status for status in found if status != SKIPPED]
    return max(judged, key=SEVERITY.index) if judged else SKIPPED


def conclude(findings: Sequence[Finding], snapshot: Snapshot) -> Verdict:
    """Return the verdict on findings: the worst decides, and each GPU has a status of its own."""
    status = overall(finding.status for finding in findings)
    gpus = {}
    for gpu in snapshot.gpus:
        target = gpu_target(gpu)
        gpus[target] = overall(finding.status for finding in findings if finding.target == target)
    counts = {name: sum(1 for finding in findings if finding.status == name) for name in SEVERITY}
    return Verdict(status, status in (OK, WARN), tuple(findings), gpus, counts)
