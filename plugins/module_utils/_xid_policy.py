# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the driver's errors in the kernel's log (Xid) mean: a table of decisions, a site's own, and the judgement.

State outranks events: what a reading of the GPU says now weighs more than a line of the past. Consequences are
attached to their cause, and how often a line came never makes it worse.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, LogEvent
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, WARN

SCHEMA = 1
INFO, IGNORE, LINE, STATE = "info", "ignore", "line", "state"
VERDICTS = (FAIL, WARN, INFO, IGNORE, LINE, STATE)
#: Fallen off the bus, with or without a number in the line.
OFF_BUS = 79
#: A line that asks for a reset and has no number: as a GPU that stopped and needs one.
RESET_REQUIRED = 0
_DATE = re.compile(r"^20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$")
_WEIGHT = {INFO: 0, WARN: 1, FAIL: 2}


class XidPolicyError(ValueError):
    """A table that cannot be used; the text names every mistake."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is decided about one code.

    Args:
        code: Number; -1 in the decision for codes that the table does not know.
        verdict: One of ``VERDICTS``.
        reason: Why.
        action: What the vendor's catalogue says to do.
        source: Where the decision comes from.
        date: Day of the catalogue or of the decision.
        cleared_by: Reading of the GPU that turns the event into history when it says 0.
        follower: Whether it is a consequence of other errors.
    """

    code: int
    verdict: str
    reason: str
    action: str = "NONE"
    source: str = ""
    date: str = ""
    cleared_by: str = ""
    follower: bool = False


@dataclasses.dataclass(frozen=True)
class XidPolicy:
    """The decisions by code, and the one for codes that are not known."""

    decisions: Mapping[int, Decision]
    default: Decision

    def decide(self, code: int) -> Decision:
        """Return the decision about a code."""
        return self.decisions.get(code, dataclasses.replace(self.default, code=code))


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What a GPU's lines amount to.

    Args:
        status: ``ok``, ``warn`` or ``fail``.
        value: First the cause, then counts by code; plain data.
        hint: What it means and what to do; empty when ok.
        source: Where the decision comes from.
    """

    status: str
    value: dict[str, Any]
    hint: str = ""
    source: str = ""


def parse(data: Any, overrides: Sequence[Mapping[str, Any]] = ()) -> XidPolicy:
    """Return the policy that the data file holds, with a site's decisions over it.

    Args:
        data: Content of files/xid_policy.yml.
        overrides: Rows with ``code``, ``verdict`` and ``reason``; they keep what else the row they replace says.

    Raises:
        XidPolicyError: naming every mistake.
    """
    problems = problems_of(data) or override_problems(overrides)
    if problems:
        raise XidPolicyError("Xid policy: " + "; ".join(problems))
    default = Decision(**{**_clean(data["default"]), "code": -1})
    rows = {row["code"]: Decision(**_clean(row)) for row in data["codes"]}
    for row in overrides:
        base = dataclasses.asdict(rows.get(row["code"], default))
        # A site that decides itself has decided: what would soften the old row does not soften the new one.
        base.update(cleared_by="", follower=False, source="gpu_health_xid_overrides", date="")
        rows[row["code"]] = Decision(**{**base, **_clean(row)})
    return XidPolicy(rows, default)


def problems_of(data: Any) -> list[str]:
    """Return what is wrong with the content of the data file; empty when nothing is."""
    if not isinstance(data, Mapping) or not isinstance(data.get("codes"), list) or not data["codes"]:
        return ["it is a dictionary with a list 'codes'"]
    problems = (
        [] if data.get("schema") == SCHEMA else [f"schema is {data.get('schema')!r}; this version reads {SCHEMA}"]
    )
    if not isinstance(data.get("default"), Mapping):
        problems.append("the decision for unknown codes ('default') is missing")
    else:
        problems += _row_problems({**data["default"], "code": 1}, "default")
        if data["default"].get("verdict") == IGNORE:
            problems.append("default: a code that nobody knows may not be ignored")
    seen: set[Any] = set()
    for row in data["codes"]:
        where = f"code {row.get('code')!r}" if isinstance(row, Mapping) else repr(row)[:40]
        problems += _row_problems(row, where)
        code = row.get("code") if isinstance(row, Mapping) else None
        problems += [f"{where} is there twice"] if code in seen else []
        seen.add(code)
    return problems


def override_problems(rows: Any) -> list[str]:
    """Return what is wrong with a site's decisions (the variable gpu_health_xid_overrides)."""
    name = "gpu_health_xid_overrides"
    if not isinstance(rows, (list, tuple)):
        return [f"{name} is a list of rows with code, verdict and reason, not {type(rows).__name__}"]
    problems, seen = [], set()
    for row in rows:
        where = f"{name}: code {row.get('code')!r}" if isinstance(row, Mapping) else f"{name}: {row!r:.40}"
        problems += _row_problems(row, where)
        if isinstance(row, Mapping):
            problems += [f"{where} is there twice"] if row.get("code") in seen else []
            seen.add(row.get("code"))
    return problems


def _row_problems(row: Any, where: str) -> list[str]:
    if not isinstance(row, Mapping):
        return [f"{where}: a row is a dictionary"]
    known = {field.name for field in dataclasses.fields(Decision)}
    problems = [f"{where}: unknown key {key!r}" for key in row if key not in known]
    code = row.get("code")
    if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= 9999:
        problems.append(f"{where}: the code is a whole number")
    if row.get("verdict") not in VERDICTS:
        problems.append(f"{where}: the verdict is {row.get('verdict')!r}; allowed is one of {', '.join(VERDICTS)}")
    if not str(row.get("reason") or "").strip():
        problems.append(f"{where}: a decision needs a reason")
    if row.get("date") and not _DATE.match(str(row["date"])):
        problems.append(f"{where}: the date is {row['date']!r}; allowed is a day as 2025-10-29")
    if row.get("cleared_by") not in (None, "", "recovery_action", "reset_status"):
        problems.append(f"{where}: cleared_by is {row['cleared_by']!r}; allowed is recovery_action or reset_status")
    return problems


def _clean(row: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(row)
    if isinstance(found.get("source"), (list, tuple)):
        found["source"] = ", ".join(str(item) for item in found["source"])
    return found


def code_of(event: LogEvent) -> int:
    """Return the code that an event counts as; lines without a number count as what they say."""
    if event.kind == "off_bus":
        return OFF_BUS
    return RESET_REQUIRED if event.kind == "reset_required" or event.xid is None else event.xid


def judge(policy: XidPolicy, events: Iterable[LogEvent], gpu: Gpu | None) -> Judgement:
    """Judge the events of one GPU.

    Args:
        policy: The decisions.
        events: Of one GPU, of this boot, since the instant that counts.
        gpu: The GPU as it is now; None where NVML does not know it.
    """
    first: dict[int, tuple[LogEvent, str, Decision]] = {}
    counts: dict[int, int] = {}
    for event in sorted(events, key=lambda event: event.at):
        code = code_of(event)
        decision = _decision(policy, code)
        verdict = INFO if event.injected else _verdict(decision, event, gpu)
        if verdict == IGNORE:
            continue
        counts[code] = counts.get(code, 0) + 1
        # The worst line of a code speaks for it; of equal ones the first does.
        if code not in first or _WEIGHT[verdict] > _WEIGHT[first[code][1]]:
            first[code] = (event, verdict, decision)
    if not first:
        return Judgement(OK, {"events": 0})
    # What only informs (an injected error, a change of the recovery action that is over) is no cause of anything.
    causes = [found for found in first.values() if not found[2].follower and found[1] != INFO]
    causes = causes or list(first.values())
    event, verdict, decision = max(causes, key=lambda found: (_WEIGHT[found[1]], -found[0].at))
    code = code_of(event)
    value: dict[str, Any] = {"events": sum(counts.values()), "xid": code or None, "at_s": round(event.at, 3)}
    value["text"] = event.text[:200]
    others = {str(other): count for other, count in sorted(counts.items()) if other != code}
    value["count"] = counts[code]
    if others:
        value["others"] = others
    if verdict == INFO:
        return Judgement(OK, value, "", decision.source)
    hint = f"Xid {code}: {decision.reason}" if code else decision.reason
    if verdict != decision.verdict and decision.cleared_by and verdict == WARN:
        hint += f"; {decision.cleared_by} says that nothing is to be done now, so this is history"
    return Judgement(FAIL if verdict == FAIL else WARN, value, hint, f"files/xid_policy.yml ({decision.source})")


def _decision(policy: XidPolicy, code: int) -> Decision:
    if code == RESET_REQUIRED and code not in policy.decisions:
        reason = "the driver asks for a reset of the GPU in a line without a number: drain the node and reset it"
        return Decision(code, FAIL, reason, "RESET_GPU", "P", "", "recovery_action")
    return policy.decide(code)


def _verdict(decision: Decision, event: LogEvent, gpu: Gpu | None) -> str:
    if decision.verdict == LINE:
        return WARN if event.fatal is False else FAIL
    if decision.verdict == STATE:
        return INFO if _says_none(gpu, "recovery_action") else FAIL
    if decision.verdict == FAIL and decision.cleared_by and _says_none(gpu, decision.cleared_by):
        return WARN
    return decision.verdict


def _says_none(gpu: Gpu | None, reading: str) -> bool:
    """Whether a reading was read and says that nothing is to be done; what is unknown does not say so."""
    if gpu is None or gpu.lost:
        return False
    value = gpu.get(reading)
    return value.ok and value.value == 0 and not isinstance(value.value, bool)
