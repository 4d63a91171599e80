# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The registry of the GPU health checks, what they are given, and the one rule for values that could not be read.

A check is a pure function that says what it reads. It is called only with values that were read and can be: everything
else is decided here, so that no check can take "unknown" for "good".
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterable, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as reading
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_profile import (
    RETIRED_PAGES,
    ROW_REMAP,
    Profile,
    match,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, PciGpu, Snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_history import View
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_policy import Policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_readings import misread
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import (
    BAD,
    ERROR,
    FAIL,
    OK,
    SKIPPED,
    WARN,
    Finding,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._xid_policy import XidPolicy

NODE, GPU = "node", "gpu"
#: The check that says that a GPU is gone; the others then have nothing to judge.
LOST = "gpu.lost"
NO_HISTORY = "no earlier sample to compare with: known from the next run on"


@dataclasses.dataclass(frozen=True)
class Judged:
    """What a check says; the runner makes a finding of it.

    Args:
        status: ``ok``, ``warn``, ``fail``, ``skipped`` or ``error``.
        value: What was seen, as plain data.
        expected: What was wanted.
        hint: What is wrong and what to do; empty: the check's own action. For ``skipped`` the reason.
        source: Where the wanted value comes from; empty: the check's own source.
        target: What was looked at, where it is not the GPU or the node.
    """

    status: str
    value: Any = None
    expected: Any = None
    hint: str = ""
    source: str = ""
    target: str = ""


@dataclasses.dataclass(frozen=True)
class Check:
    """One registered check.

    Args:
        name: Dotted name.
        scope: ``gpu`` (called for each GPU) or ``node``.
        title: What it asks, in a line.
        reads: Readings that it needs, all of them.
        parts: What else of the snapshot it looks at, for the documentation.
        instead: Groups of readings that serve where those of ``reads`` are not supported.
        optional: Readings that it uses where they are supported.
        thresholds: Fields of the policy that it uses.
        priority: ``P0``, ``P1`` or ``P2``.
        source: Where the verdict comes from.
        action: What to do when it is not ok.
        damped: Names of the policy's fields "bad samples" and "samples"; empty: every verdict counts at once.
        essential: Cannot be left out by the skip list: without it nothing else can be believed.
        function: The judgement.
    """

    name: str
    scope: str
    title: str
    reads: tuple[str, ...]
    parts: tuple[str, ...]
    instead: tuple[tuple[str, ...], ...]
    optional: tuple[str, ...]
    thresholds: tuple[str, ...]
    priority: str
    source: str
    action: str
    damped: tuple[str, ...]
    essential: bool
    function: Callable[..., Iterable[Judged]]

    @property
    def all_reads(self) -> tuple[str, ...]:
        """Every reading that it may use."""
        return (*self.reads, *(name for group in self.instead for name in group), *self.optional)


#: Every check by name, in the order in which they were registered.
REGISTRY: dict[str, Check] = {}


def check(
    name: str,
    scope: str,
    title: str,
    reads: Sequence[str] = (),
    *,
    source: str,
    action: str,
    priority: str = "P1",
    parts: Sequence[str] = (),
    instead: Sequence[Sequence[str]] = (),
    optional: Sequence[str] = (),
    thresholds: Sequence[str] = (),
    damped: Sequence[str] = (),
    essential: bool = False,
) -> Callable[[Callable[..., Iterable[Judged]]], Callable[..., Iterable[Judged]]]:
    """Register a check; the arguments are those of ``Check``.

    Raises:
        ValueError: for a name that is taken.
    """

    def register(function: Callable[..., Iterable[Judged]]) -> Callable[..., Iterable[Judged]]:
        if name in REGISTRY:
            raise ValueError(f"two checks are called {name}")
        groups = tuple(tuple(group) for group in instead)
        REGISTRY[name] = Check(
            name, scope, title, tuple(reads), tuple(parts), groups, tuple(optional), tuple(thresholds),
            priority, source, action, tuple(damped), essential, function,
        )  # fmt: skip
        return function

    return register


@dataclasses.dataclass(frozen=True)
class Context:
    """What every check is given beside its GPU.

    Args:
        snapshot: The node.
        policy: Thresholds.
        profiles: In the order of their right, golden ones first.
        xids: Decisions about the driver's errors.
        history: Earlier runs.
        since_s: Events of the log count from here on, in seconds since the boot.
        since_problem: Why the instant that was asked for could not be used; empty when it could.
    """

    snapshot: Snapshot
    policy: Policy
    profiles: tuple[Profile, ...]
    xids: XidPolicy
    history: View
    since_s: float = 0.0
    since_problem: str = ""

    def pci(self, gpu: Gpu) -> PciGpu | None:
        """Return what sysfs shows of a GPU."""
        return self.history.pci(gpu)

    def profile(self, gpu: Gpu) -> Profile | None:
        """Return the profile that a GPU is compared with; None where none describes it."""
        pci = self.pci(gpu)
        return match(self.profiles, pci) if pci else None

    def node_profiles(self) -> list[Profile]:
        """Return the profiles of the GPUs that PCI shows, and the golden ones, each once."""
        found = [match(self.profiles, pci) for pci in self.snapshot.pci]
        golden = [profile for profile in self.profiles if profile.gpu_count is not None]
        unique: list[Profile] = []
        for profile in [*golden, *found]:
            if profile is not None and profile not in unique:
                unique.append(profile)
        return unique

    def expected_gpus(self) -> int | None:
        """Return how many GPUs the policy, else the golden profiles name; None where none does."""
        if self.policy.expected_gpus >= 0:
            return self.policy.expected_gpus
        counts = [profile.gpu_count for profile in self.profiles if profile.gpu_count is not None]
        return sum(counts) if counts else None

    def gpus_expected(self) -> bool:
        """Whether this node should have GPUs: by the policy, by a profile, or because there are some."""
        return bool(self.policy.expect_gpus or self.expected_gpus() or self.snapshot.pci or self.snapshot.gpus)

    def requires(self, gpu: Gpu, name: str) -> str:
        """Return why a reading may not be unsupported on a GPU; empty where it may."""
        profile = self.profile(gpu)
        if profile is None:
            return ""
        fabric = profile.fabric or (profile.fabric is None and profile.nvlink_count and self.snapshot.nvswitches)
        implied = {
            "nvlink_states": bool(profile.nvlink_count),
            "fabric_state": bool(fabric),
            "ecc_mode_current": bool(profile.ecc),
            "remap_failure": profile.memory_repair == ROW_REMAP,
            "retired_pending": profile.memory_repair == RETIRED_PAGES,
            "mig_mode_current": bool(profile.mig_layout),
        }
        return f"profile {profile.name}" if name in profile.must_have or implied.get(name) else ""


def gpu_target(gpu: Gpu) -> str:
    """Return how findings name a GPU: its index and, where it is known, its address."""
    return f"gpu{gpu.index} {gpu.bus_id}".strip()


def mig_on(gpu: Gpu) -> bool:
    """Whether a GPU is partitioned."""
    mode = gpu.get("mig_mode_current")
    return bool(gpu.mig) or (mode.ok and mode.value == 1)


def unread(gpu: Gpu, ctx: Context, name: str) -> Judged | None:
    """The one rule for a value that could not be read; None for one that was read and can be.

    ``unsupported`` is skipped unless the profile says that the feature must exist; a function that an old library does
    not have is skipped with the driver's version; what only root may read is skipped for others. Everything else,
    every other code, a call that did not return, a value that cannot be, is bad.
    """
    found = gpu.get(name)
    text = f" ({found.note})" if found.note else ""
    if found.ok:
        problem = misread(name, found.value)
        hint = f"{name} was misread: {problem}; compare with nvidia-smi -q and update the driver"
        return Judged(ERROR, found.value, None, hint) if problem else None
    if found.why == reading.UNSUPPORTED:
        if mig_on(gpu):
            return Judged(SKIPPED, hint=f"mig: {name} is not told for a partitioned GPU")
        must = ctx.requires(gpu, name)
        if must:
            hint = f"{name} is not supported, but the feature must exist: driver, firmware or the GPU is not right"
            return Judged(FAIL, reading.UNSUPPORTED, "supported", hint, must)
        return Judged(SKIPPED, hint=f"{name} is not supported by this GPU")
    if found.why == reading.NO_SYMBOL:
        driver = ctx.snapshot.nvml.driver_version or "of unknown version"
        return Judged(SKIPPED, hint=f"function not found: driver {driver} cannot tell {name}")
    if found.why == reading.NO_PERMISSION and not ctx.snapshot.root:
        return Judged(SKIPPED, hint=f"run as root: {name} is not told to others")
    seen = {"reading": name, "why": found.why, "code": found.code}
    if found.why == reading.NOT_REACHED:
        hint = f"{name} was not read{text}: the driver hung, or the run ended before; see node.nvml"
        return Judged(ERROR, seen, None, hint)
    hint = f"{name} could not be read, NVML code {found.code}{text}: look in the kernel's log, then reset or reboot"
    return Judged(FAIL, seen, None, hint)


def _unreadable(spec: Check, gpu: Gpu, ctx: Context) -> Judged | None:
    """Return what the rule says about the readings of a check; None when it can judge."""
    soft: list[Judged] = []
    for group in (spec.reads, *spec.instead):
        found = [problem for problem in (unread(gpu, ctx, name) for name in group) if problem]
        hard = [problem for problem in found if problem.status in BAD]
        if hard:
            return hard[0]
        if not found:
            break
        soft.append(found[0])
    else:
        return soft[0]
    extra = [problem for problem in (unread(gpu, ctx, name) for name in spec.optional) if problem]
    return next((problem for problem in extra if problem.status in BAD), None)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A finding, and whether it is a judgement: only a judgement may wait for more samples.

    Args:
        finding: The finding.
        judgement: False for what the rule for unread values, or a mistake in the check, decided.
    """

    finding: Finding
    judgement: bool


def run_check(spec: Check, ctx: Context, strict: bool = False) -> list[Outcome]:
    """Return the outcomes of one check.

    Args:
        spec: The check.
        ctx: What it is given.
        strict: Let an exception of the check through (for tests); else it becomes an ``error`` finding.
    """
    if spec.scope == NODE:
        return _outcomes(spec, "node", (ctx,), None, strict)
    found: list[Outcome] = []
    for gpu in ctx.snapshot.gpus:
        if gpu.lost and spec.name != LOST:
            problem: Judged | None = Judged(SKIPPED, hint=f"the GPU is lost: see {LOST}")
        else:
            problem = _unreadable(spec, gpu, ctx)
        found += _outcomes(spec, gpu_target(gpu), (gpu, ctx), problem, strict)
    return found


def _outcomes(
    spec: Check, target: str, arguments: tuple[Any, ...], problem: Judged | None, strict: bool
) -> list[Outcome]:
    judgement = problem is None
    try:
        judged = [problem] if problem else list(spec.function(*arguments))
    except Exception as error:
        if strict:
            raise
        # A mistake in a check must not take the others with it, nor count as good.
        text, judgement = f"{type(error).__name__}: {error}", False
        judged = [Judged(ERROR, text, hint="the check itself failed: this is a mistake in the collection, report it")]
    if not judged:
        judged = [Judged(ERROR, hint="the check judged nothing: this is a mistake in the collection, report it")]
    return [Outcome(_finding(spec, item, target), judgement) for item in judged]


def _finding(spec: Check, item: Judged, target: str) -> Finding:
    return Finding(
        spec.name,
        item.target or target,
        item.status,
        item.value,
        item.expected,
        item.source or (spec.source if item.status != SKIPPED else ""),
        item.hint or (spec.action if item.status in (WARN, FAIL, ERROR) else ""),
    )


def skipped(reason: str, value: Any = None) -> list[Judged]:
    """Return the one result of a check that cannot judge for a known reason."""
    return [Judged(SKIPPED, value, hint=reason)]


def no_profile(gpu: Gpu, ctx: Context, fact: str) -> list[Judged]:
    """Return the result of a check that lacks a fact of the profile."""
    profile, pci = ctx.profile(gpu), ctx.pci(gpu)
    if profile is None:
        return skipped(f"no profile describes this GPU (PCI id {pci.device_id if pci else 'unknown'})")
    return skipped(f"profile {profile.name} does not say {fact}: capture a profile of a good node")


def verdict(bad: bool, status: str = FAIL) -> str:
    """Return ``status`` for something bad, else ``ok``."""
    return status if bad else OK
