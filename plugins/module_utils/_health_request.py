# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What is asked of a health check: plain data of a task or of a file becomes what ``_gpu_health`` judges by.

Every mistake is found before anything is read, and all of them are named at once.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _gpu_health,
    _gpu_profile,
    _remedy,
    _xid_policy,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_health import Skip, SkipError, Verdict
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_profile import Profile, ProfileError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, Snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import gpu_target
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_history import History
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_policy import Policy, PolicyError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import describe
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._xid_policy import XidPolicy, XidPolicyError

AUTO = "auto"
#: Seconds until NVML may be given up, lowest and highest.
DEADLINES = (1.0, 300.0)
#: Most GPUs that are counted in one node.
MAX_GPUS = 64
#: Where the timer of the role gpu_health keeps what earlier runs saw.
HISTORY = "/var/lib/gpu_node/health/history.json"


class RequestError(ValueError):
    """A request that cannot be judged by; the text names every mistake and what is allowed."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a node is judged by.

    Args:
        profiles: In the order of their right, golden ones first.
        xids: Decisions about the driver's errors.
        policy: Thresholds.
        skips: Checks that are left out.
        since: From when on events of the log count: seconds since the boot (float), an instant with a time zone, or
            None for the boot.
    """

    profiles: tuple[Profile, ...]
    xids: XidPolicy
    policy: Policy
    skips: tuple[Skip, ...]
    since: float | datetime.datetime | None = None


def parse(values: Mapping[str, Any]) -> Request:
    """Return the request that plain data describes.

    Args:
        values: ``profiles`` (content of the shipped profiles, a list) and ``xid_policy`` (content of
            files/xid_policy.yml); optionally ``profile`` (``auto``, the name of a shipped one or a mapping),
            ``expected`` (number of GPUs or ``auto``), ``thresholds``, ``xid_overrides``, ``skip`` and ``since``. None
            is the same as absent.

    Raises:
        RequestError: naming every mistake.
    """
    problems: list[str] = []

    def tried(function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ProfileError, PolicyError, SkipError, XidPolicyError, RequestError) as error:
            problems.append(str(error))
            return None

    wanted = values.get("profile") or AUTO
    profiles = tried(parse_profiles, values.get("profiles") or [], wanted)
    xids = tried(_xid_policy.parse, values.get("xid_policy"), values.get("xid_overrides") or [])
    thresholds = values.get("thresholds") or {}
    policy = tried(Policy.from_mapping, thresholds)
    expected = tried(expected_gpus, values.get("expected"))
    skips = tried(_gpu_health.parse_skips, _rows(values.get("skip") or []))
    since = tried(parse_since, values.get("since"))
    if problems:
        raise RequestError("; ".join(problems))
    if wanted != AUTO and "unknown_model" not in thresholds:
        # Who says which GPU it must be does not want another one to pass with a warning.
        policy = dataclasses.replace(policy, unknown_model="fail")
    if expected is not None:
        policy = dataclasses.replace(policy, expected_gpus=expected, expect_gpus=expected > 0)
    return Request(profiles, xids, policy, skips, since)


def _rows(rows: Any) -> Any:
    """Return a skip list as ``parse_skips`` takes it: ``gpu`` is another word for ``target``, and None for absent."""
    if not isinstance(rows, (list, tuple)):
        return rows
    clean = []
    for row in rows:
        if isinstance(row, Mapping):
            given = {key: value for key, value in row.items() if value is not None}
            gpu = given.pop("gpu", None)
            row = given if gpu is None else {"target": f"gpu{gpu}" if str(gpu).isdigit() else str(gpu), **given}
        clean.append(row)
    return clean


def parse_profiles(shipped: Sequence[Any], wanted: Any = AUTO) -> tuple[Profile, ...]:
    """Return the profiles to compare with.

    Args:
        shipped: Content of the shipped profiles.
        wanted: ``auto`` for all of them, the name of one, or the mapping of another one, which is then the only one.

    Raises:
        ProfileError: for a profile that cannot be used.
        RequestError: for a name that is not there.
    """
    if isinstance(wanted, Mapping):
        # The only one: a GPU that it does not describe is another one than it should be.
        return (_gpu_profile.parse(wanted, "profile"),)
    known = tuple(_gpu_profile.parse(data, f"files/gpu_profiles, number {index}") for index, data in enumerate(shipped))
    if wanted == AUTO:
        return known
    found = tuple(profile for profile in known if profile.name == wanted)
    if not found:
        names = ", ".join(sorted(profile.name for profile in known)) or "none"
        raise RequestError(
            f"profile {wanted!r} is not there; allowed are auto, a dictionary as the module gpu_profile captures it,"
            f" and these names: {names}"
        )
    return found


def expected_gpus(value: Any) -> int | None:
    """Return the number of GPUs that is expected; None for ``auto``.

    Raises:
        RequestError: for anything that is neither.
    """
    text = AUTO if value is None else str(value).strip().lower()
    if text in (AUTO, ""):
        return None
    if not text.isascii() or not text.isdigit() or int(text) > MAX_GPUS:
        raise RequestError(f"expected is {value!r}; allowed is auto or a whole number from 0 to {MAX_GPUS}")
    return int(text)


def check_deadline(seconds: float) -> None:
    """Refuse a deadline that is too short to read anything, or too long to be one.

    Raises:
        RequestError: naming what is allowed.
    """
    low, high = DEADLINES
    if not low <= seconds <= high:
        raise RequestError(f"deadline is {seconds:g}; allowed are {low:g} to {high:g} seconds")


def parse_since(value: Any) -> float | datetime.datetime | None:
    """Return from when on events count.

    Args:
        value: Seconds since the boot, or a time such as ``2026-01-31T10:00:00Z``; one without a zone is UTC. None or an
            empty text: from the boot.

    Raises:
        RequestError: for anything else.
    """
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    try:
        moment = datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "zZ" else text)
    except ValueError:
        raise RequestError(
            f"since is {value!r}; allowed are seconds since the boot and a time such as 2026-01-31T10:00:00Z"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)


def since_epoch(since: float | datetime.datetime | None, snapshot: Snapshot) -> float | None:
    """Return an instant in seconds since the epoch, as ``_gpu_health.judge`` takes it."""
    if since is None:
        return None
    if isinstance(since, datetime.datetime):
        return since.timestamp()
    return snapshot.taken_at - snapshot.uptime_s + since


def judge(request: Request, snapshot: Snapshot, history: History | None = None) -> tuple[Verdict, History]:
    """Judge a snapshot by a request; returns the verdict and the history to keep."""
    return _gpu_health.judge(
        snapshot,
        request.profiles,
        request.xids,
        request.policy,
        history,
        since_epoch(request.since, snapshot),
        request.skips,
    )


def summary(snapshot: Snapshot) -> dict[str, Any]:
    """Return the few facts of a snapshot that a verdict is read with."""
    nvml = snapshot.nvml
    return {
        "taken_at": snapshot.taken_at,
        "boot_id": snapshot.boot_id,
        "uptime_s": snapshot.uptime_s,
        "root": snapshot.root,
        "nvml": nvml.state,
        "nvml_text": nvml.text,
        "hung_in": nvml.hung_in,
        "driver_version": nvml.driver_version,
        "cuda_version": nvml.cuda_version,
        "library": nvml.library,
        "pci_gpus": len(snapshot.pci),
        "nvml_gpus": nvml.count,
    }


def gpu_rows(snapshot: Snapshot, verdict: Verdict) -> list[dict[str, Any]]:
    """Return each GPU with its own status, and with what would mend it."""
    return [
        {
            "index": gpu.index,
            "bus_id": gpu.bus_id,
            "target": gpu_target(gpu),
            "name": _text(gpu, "name"),
            "uuid": _text(gpu, "uuid"),
            "lost": gpu.lost,
            "status": verdict.gpus[gpu_target(gpu)],
            "remedy": _remedy.remedy(gpu, snapshot).as_dict(),
        }
        for gpu in snapshot.gpus
    ]


def _text(gpu: Gpu, name: str) -> str:
    found = gpu.get(name)
    return str(found.value) if found.ok else ""


def answer(snapshot: Snapshot, verdict: Verdict) -> dict[str, Any]:
    """Return the whole result as plain data, for the module and for whoever prints it."""
    return {
        "verdict": verdict.status,
        "may_serve": verdict.may_serve,
        "counts": dict(verdict.counts),
        "findings": [finding.as_dict() for finding in verdict.findings],
        "bad": [describe(finding.as_dict()) for finding in verdict.bad],
        "gpus": gpu_rows(snapshot, verdict),
        "summary": summary(snapshot),
        "duration_s": snapshot.nvml.duration_s,
        "calls": snapshot.nvml.calls,
    }
