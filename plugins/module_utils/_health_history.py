# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What earlier runs saw: rates of counters, baselines of life-time counters, and how often a check was bad.

Plain JSON data that survives restarts of the service. A new boot and a repair make it forget, so that a finding does
not outlive its cause. Its size is bounded. Without an earlier sample a rate is unknown, which is not the same as zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, PciGpu, Snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_policy import Policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_readings import misread

SCHEMA = 1
#: Counters that are readings of their own.
_PLAIN = (
    "pcie_replay",
    "clock_ns_sw_thermal",
    "clock_ns_hw_thermal",
    "clock_ns_hw_brake",
    "ecc_uncorrected_aggregate",
    "retired_dbe",
)
#: Readings that hold several counters.
_NESTED = ("nvlink_errors", "nvlink5_errors")
#: Counters of the card's whole life: an increase is told against a baseline, which a reboot does not reset.
LIFETIME = ("ecc_uncorrected_aggregate", "retired_dbe")
#: Counters that a boot resets: an increase is told against the first sample of the boot.
PER_BOOT = ("aer.nonfatal", "aer.fatal", "port_aer.nonfatal", "port_aer.fatal")
MAX_GPUS = 64
MAX_MARKS = 512


@dataclasses.dataclass(frozen=True)
class History:
    """What is kept between runs.

    Args:
        boot_id: Boot that the samples are of.
        repaired_at: Seconds since the epoch of the last repair; what is older does not count. None: never.
        samples: Oldest first: ``up`` (seconds since the boot) and ``gpus`` (GPU to its counters).
        baseline: GPU to the counters that increases are told against.
        marks: ``check|target`` to its last samples, oldest first, ``1`` for bad.
        problem: Why an earlier history could not be used; not stored.
    """

    boot_id: str = ""
    repaired_at: float | None = None
    samples: tuple[Mapping[str, Any], ...] = ()
    baseline: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    marks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the plain data that ``load`` reads."""
        return {
            "schema": SCHEMA,
            "boot_id": self.boot_id,
            "repaired_at": self.repaired_at,
            "samples": [
                {"up": sample["up"], "gpus": {key: dict(item) for key, item in sample["gpus"].items()}}
                for sample in self.samples
            ],
            "baseline": {key: dict(item) for key, item in self.baseline.items()},
            "marks": dict(self.marks),
        }


def load(data: Any) -> History:
    """Return the history that ``as_dict`` gave; an empty one with a ``problem`` for anything else.

    A history that cannot be read costs rates for a while, not the run: it never raises.
    """
    if data is None:
        return History()
    try:
        return _loaded(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return History(problem=f"the stored history is not usable ({type(error).__name__}: {error})")


def _loaded(data: Any) -> History:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r}, this version reads {SCHEMA}")
    repaired = data.get("repaired_at")
    samples = tuple({"up": float(sample["up"]), "gpus": _counters(sample["gpus"])} for sample in data["samples"])
    marks = {str(key): str(mark) for key, mark in data["marks"].items()}
    if any(set(mark) - {"0", "1"} for mark in marks.values()):
        raise ValueError("marks are made of 0 and 1")
    return History(
        boot_id=str(data["boot_id"]),
        repaired_at=None if repaired is None else float(repaired),
        samples=samples,
        baseline=_counters(data["baseline"]),
        marks=marks,
    )


def _counters(data: Any) -> dict[str, dict[str, int]]:
    return {str(key): {str(name): int(value) for name, value in item.items()} for key, item in data.items()}


def repaired(history: History, at: float) -> History:
    """Return a history that has forgotten everything before a repair.

    Args:
        history: The one so far.
        at: Instant of the repair, in seconds since the epoch.
    """
    return History(boot_id=history.boot_id, repaired_at=at)


def key_of(gpu: Gpu) -> str:
    """Return what a GPU is known by: a card that was replaced starts anew even in the same slot."""
    uuid = gpu.get("uuid")
    if uuid.ok and isinstance(uuid.value, str) and uuid.value:
        return uuid.value
    return gpu.bus_id or f"gpu{gpu.index}"


def counters(gpu: Gpu, pci: PciGpu | None) -> dict[str, int]:
    """Return the counters of a GPU that could be read; one that could not is left out, not zero."""
    found: dict[str, int] = {}
    for name in _PLAIN:
        reading = gpu.get(name)
        if reading.ok and not misread(name, reading.value):
            found[name] = reading.value
    for name in _NESTED:
        reading = gpu.get(name)
        if reading.ok and not misread(name, reading.value):
            found.update({f"{name}.{part}": value for part, value in reading.value.items()})
    for name in ("aer", "port_aer"):
        errors = getattr(pci, name) if pci else None
        found.update({f"{name}.{part}": int(value) for part, value in (errors or {}).items()})
    return found


@dataclasses.dataclass(frozen=True)
class Rate:
    """How fast a counter grows.

    Args:
        delta: Growth since the earlier sample.
        span_s: Seconds between the two samples.
    """

    delta: int
    span_s: float

    @property
    def per_minute(self) -> float:
        """Growth a minute."""
        return self.delta * 60.0 / self.span_s


@dataclasses.dataclass(frozen=True)
class View:
    """The history as the checks of one run see it: of this boot, since the last repair.

    Args:
        history: What ``current`` returned.
        snapshot: The node now.
        policy: Windows.
    """

    history: History
    snapshot: Snapshot
    policy: Policy

    def pci(self, gpu: Gpu) -> PciGpu | None:
        """Return what sysfs shows of a GPU; None where its address is not known there."""
        return next((pci for pci in self.snapshot.pci if gpu.bus_id and pci.address == gpu.bus_id), None)

    def rate(self, gpu: Gpu, counter: str) -> Rate | None:
        """Return how fast a counter grows, over at most ``window_s``.

        Returns:
            None where there is no earlier sample that may be compared: the first run, a pause that was too long, or a
            counter that restarted.
        """
        now = counters(gpu, self.pci(gpu)).get(counter)
        if now is None:
            return None
        key, later, best = key_of(gpu), now, None
        for sample in reversed(self.history.samples):
            value, span = sample["gpus"].get(key, {}).get(counter), self.snapshot.uptime_s - sample["up"]
            if span <= 0:
                continue
            # A value above a later one: the counter restarted in between, and what is older is no part of its growth.
            if value is None or value > later or span > self.policy.max_gap_s:
                break
            if span > self.policy.window_s and best is not None:
                break
            later = value
            if span >= self.policy.min_span_s:
                best = Rate(now - value, span)
        return best

    def increase(self, gpu: Gpu, counter: str) -> int | None:
        """Return how much a counter has grown since its baseline; None where there is none."""
        base = self.history.baseline.get(key_of(gpu), {}).get(counter)
        now = counters(gpu, self.pci(gpu)).get(counter)
        return None if base is None or now is None or now < base else now - base

    def confirmed(self, check: str, target: str, bad: bool, needed: int, window: int) -> tuple[bool, int]:
        """Return whether a check was bad in enough of its last samples, this one included, and in how many."""
        before = self.history.marks.get(f"{check}|{target}", "")
        marks = _marked(before, bad, is_fresh(self.history, self.snapshot, self.policy))[-window:]
        return marks.count("1") >= needed, marks.count("1")


def current(history: History, snapshot: Snapshot) -> History:
    """Return what of a history still counts: after a reboot only the baselines of the cards' life-time counters.

    The last values of the boot before become the baseline, so that what grew while nobody looked is seen once.
    """
    if history.boot_id == snapshot.boot_id:
        return history
    baseline: dict[str, dict[str, int]] = {key: dict(item) for key, item in history.baseline.items()}
    for sample in history.samples:
        for key, item in sample["gpus"].items():
            baseline.setdefault(key, {}).update(item)
    kept = {key: {name: value for name, value in item.items() if name in LIFETIME} for key, item in baseline.items()}
    return History(
        boot_id=snapshot.boot_id,
        repaired_at=history.repaired_at,
        baseline={key: item for key, item in list(kept.items())[-MAX_GPUS:] if item},
        problem=history.problem,
    )


def is_fresh(history: History, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a snapshot is a sample of its own.

    Two runs in quick succession (a play beside the timer) are one sample: N of M counts time, not runs.
    """
    last = history.samples[-1]["up"] if history.samples else None
    return last is None or not 0 <= snapshot.uptime_s - last < policy.min_span_s


def _marked(before: str, bad: bool, fresh: bool) -> str:
    mark = "1" if bad else "0"
    return before + mark if fresh or not before else before[:-1] + max(mark, before[-1])


def record(history: History, snapshot: Snapshot, policy: Policy, bad: Iterable[tuple[str, str, bool]]) -> History:
    """Return the history with this run in it.

    Args:
        history: What ``current`` returned.
        snapshot: The node now.
        policy: How much is kept.
        bad: Check, target and whether it was bad, of the damped checks that could be judged.
    """
    view = View(history, snapshot, policy)
    gpus = {key_of(gpu): counters(gpu, view.pci(gpu)) for gpu in snapshot.gpus[:MAX_GPUS] if not gpu.lost}
    fresh = is_fresh(history, snapshot, policy)
    samples = list(history.samples)
    if fresh:
        samples = [sample for sample in samples if sample["up"] < snapshot.uptime_s]
        samples.append({"up": snapshot.uptime_s, "gpus": gpus})
    baseline = {key: dict(item) for key, item in history.baseline.items()}
    for key, item in gpus.items():
        known = baseline.setdefault(key, {})
        for name in (*LIFETIME, *PER_BOOT):
            if name in item and item[name] < known.get(name, item[name] + 1):
                known[name] = item[name]
    longest = max(policy.confirm_window, policy.dstate_window)
    marks = {}
    for check, target, is_bad in list(bad)[:MAX_MARKS]:
        name, before = f"{check}|{target}", history.marks.get(f"{check}|{target}", "")
        marks[name] = _marked(before, is_bad, fresh)[-longest:]
    return History(
        boot_id=snapshot.boot_id,
        repaired_at=history.repaired_at,
        samples=tuple(samples[-policy.history_samples :]),
        baseline=dict(list(baseline.items())[-MAX_GPUS:]),
        marks=marks,
    )
