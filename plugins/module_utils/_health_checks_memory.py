# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Checks of a GPU's memory: errors, repairs, what the card itself asks for, size and use."""

from __future__ import annotations

from typing import Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import (
    GPU,
    NO_HISTORY,
    Context,
    Judged,
    check,
    mig_on,
    no_profile,
    skipped,
    verdict,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, WARN

_OURS = "this collection"
_RESET = "drain the node, then reset the GPU or reboot"
_RMA = "take it out of service and have it replaced"
#: NVML field 230.
ACTIONS = (
    "none",
    "reset the GPU",
    "reboot the node",
    "drain peer-to-peer traffic",
    "drain and reset the GPU",
    "recover the IMEX domain",
    "reset the bus",
    "reboot the system",
)


def _pending(ctx: Context) -> str:
    """The status of what a reset will mend: applications go on, so it warns, unless the gate is strict."""
    return FAIL if ctx.policy.strict_pending else WARN


@check(
    "gpu.ecc_mode", GPU, "Is ECC on as wanted, and does nothing wait for a reboot?",
    ("ecc_mode_current", "ecc_mode_pending"), priority="P0", source=_OURS,
    action="nvidia-smi -e 1, then reset the GPU or reboot",
)  # fmt: skip
def ecc_mode(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the mode with the profile, and with the one that waits for a reset."""
    profile = ctx.profile(gpu)
    value = {"current": gpu.get("ecc_mode_current").value, "pending": gpu.get("ecc_mode_pending").value}
    wanted = None if profile is None or profile.ecc is None else int(profile.ecc)
    source = profile.source("ecc") if profile and wanted is not None else ""
    if wanted is not None and value["current"] != wanted:
        return [Judged(FAIL, value, wanted, "", source)]
    if value["current"] != value["pending"]:
        return [Judged(WARN, value, wanted, "another mode waits for a reset of the GPU or a reboot", source)]
    return [Judged(OK, value, wanted, source=source)]


@check(
    "gpu.ecc_uncorrected", GPU, "Are there no uncorrected memory errors since the driver was loaded?",
    ("ecc_uncorrected_volatile",), priority="P0", source="DCGM: any double-bit error", action=_RESET,
)  # fmt: skip
def ecc_uncorrected(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the volatile counter, which a reset clears."""
    count = gpu.get("ecc_uncorrected_volatile").value
    return [Judged(verdict(count > 0), count, 0)]


@check(
    "gpu.ecc_aggregate", GPU, "Has the life-time count of uncorrected errors stopped growing?",
    ("ecc_uncorrected_aggregate",), source=_OURS, action="watch the GPU; see row remapping and the kernel's log",
)  # fmt: skip
def ecc_aggregate(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the growth since the baseline; the number itself is the card's past."""
    grown = ctx.history.increase(gpu, "ecc_uncorrected_aggregate")
    value = {"count": gpu.get("ecc_uncorrected_aggregate").value, "grown": grown}
    return skipped(NO_HISTORY, value) if grown is None else [Judged(verdict(grown > 0, WARN), value, {"grown": 0})]


@check(
    "gpu.ecc_corrected", GPU, "Is the number of corrected memory errors usual?", ("ecc_corrected_volatile",),
    thresholds=("ecc_corrected_max",), source="Azure NHC", action="watch the GPU; see row remapping",
)  # fmt: skip
def ecc_corrected(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the volatile counter of corrected errors; large numbers are normal."""
    count, limit = gpu.get("ecc_corrected_volatile").value, ctx.policy.ecc_corrected_max
    return [Judged(verdict(count > limit, WARN), count, f"at most {limit}")]


@check(
    "gpu.sram_threshold", GPU, "Is the threshold of SRAM errors not exceeded?", ("sram_threshold_exceeded",),
    source="DCGM diagnostic, DCGM_FR_SRAM_THRESHOLD", action=_RMA,
)  # fmt: skip
def sram_threshold(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the card's own word on its SRAM."""
    exceeded = bool(gpu.get("sram_threshold_exceeded").value)
    return [Judged(verdict(exceeded), exceeded, False)]


@check(
    "gpu.row_remap_pending", GPU, "Does no row remapping wait for a reset?", ("remap_pending",),
    thresholds=("strict_pending",), priority="P0", source="NVIDIA: applications go on until the reset",
    action="reset when drained: the remapping takes effect with the next reset of the GPU",
)  # fmt: skip
def row_remap_pending(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the state, whatever the log says about it."""
    pending = bool(gpu.get("remap_pending").value)
    return [Judged(verdict(pending, _pending(ctx)), pending, False)]


@check(
    "gpu.row_remap_failure", GPU, "Has no row remapping failed?", ("remap_failure",), priority="P0",
    source="every project compared", action=_RMA,
)  # fmt: skip
def row_remap_failure(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the state, whatever the log says about it."""
    failed = bool(gpu.get("remap_failure").value)
    return [Judged(verdict(failed), failed, False)]


@check(
    "gpu.row_remap_banks", GPU, "Has every memory bank spare rows left?", ("remap_bank_none",),
    optional=("remap_bank_low",), source=_OURS, action="plan its replacement: the next bad row of that bank stays",
)  # fmt: skip
def row_remap_banks(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the histogram of spare rows."""
    value = {"none_left": gpu.get("remap_bank_none").value, "few_left": gpu.get("remap_bank_low").value}
    return [Judged(verdict(value["none_left"] > 0, WARN), value, {"none_left": 0})]


@check(
    "gpu.row_remap_count", GPU, "Were few rows remapped for uncorrected errors?", ("remap_uncorrectable",),
    thresholds=("remapped_rows_max",), source="DCGM", action="plan its replacement",
)  # fmt: skip
def row_remap_count(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge how many rows were remapped."""
    count, limit = gpu.get("remap_uncorrectable").value, ctx.policy.remapped_rows_max
    return [Judged(verdict(count >= limit, WARN), count, f"below {limit}")]


@check(
    "gpu.retired_pages", GPU, "Are there few retired pages, and none that waits?",
    ("retired_sbe", "retired_dbe", "retired_pending"),
    thresholds=("retired_pages_max", "retired_double_bit_max", "strict_pending"), source="DCGM",
    action="reset when drained when pages wait; have the card replaced when there are too many",
)  # fmt: skip
def retired_pages(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge page retirement (up to Turing): the total, those for double-bit errors, their growth, waiting ones."""
    single, double = gpu.get("retired_sbe").value, gpu.get("retired_dbe").value
    pending, grown = bool(gpu.get("retired_pending").value), ctx.history.increase(gpu, "retired_dbe")
    value = {"single_bit": single, "double_bit": double, "pending": pending, "double_bit_grown": grown}
    most, doubles = ctx.policy.retired_pages_max, ctx.policy.retired_double_bit_max
    expected = {"total": f"below {most}", "double_bit": f"at most {doubles}", "pending": False}
    if single + double >= most:
        return [Judged(FAIL, value, expected, "too many pages are retired: have it replaced")]
    if double > doubles and grown:
        return [
            Judged(FAIL, value, expected, "many pages were retired for double-bit errors, and more come: replace it")
        ]
    if pending:
        return [Judged(_pending(ctx), value, expected, "reset when drained: pages are retired with the next reset")]
    return [Judged(verdict(double > doubles, WARN), value, expected)]


@check(
    "gpu.repair", GPU, "Does no repair of a channel or TPC wait for a reset?",
    ("repair_channel_pending", "repair_tpc_pending"), thresholds=("strict_pending",), source="DCGM 4.6",
    action="reset when drained: the repair takes effect with the next reset of the GPU",
)  # fmt: skip
def repair(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge repairs that wait."""
    value = {part: bool(gpu.get(f"repair_{part}_pending").value) for part in ("channel", "tpc")}
    return [Judged(verdict(any(value.values()), _pending(ctx)), value, {"channel": False, "tpc": False})]


@check(
    "gpu.unrepairable_memory", GPU, "Is no memory beyond repair?", ("unrepairable_memory",), source="DCGM 4.6",
    action=_RMA,
)  # fmt: skip
def unrepairable_memory(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the card's own word on its memory."""
    broken = bool(gpu.get("unrepairable_memory").value)
    return [Judged(verdict(broken), broken, False)]


@check(
    "gpu.recovery_action", GPU, "Does the driver ask for nothing to be done?", ("recovery_action",),
    instead=(("reset_status",),), priority="P0", source="NVML field 230, or 226 where there is none",
    action="drain the node and do what it asks for",
)  # fmt: skip
def recovery_action(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge what the driver asks for; a value that nobody knows yet is no "nothing"."""
    found = gpu.get("recovery_action")
    if found.ok:
        code = found.value
        asked = ACTIONS[code] if code < len(ACTIONS) else f"unknown action {code}"
        hint = f"the driver asks: {asked}" if code else ""
        return [Judged(verdict(code != 0), {"code": code, "action": asked}, 0, hint)]
    code = gpu.get("reset_status").value
    return [Judged(verdict(code != 0), {"reset_status": code}, 0)]


@check(
    "gpu.inforom", GPU, "Is the infoROM intact?", ("inforom_valid",), source="NVML, nvmlDeviceValidateInforom",
    action=_RMA,
)  # fmt: skip
def inforom(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the checksum of the infoROM."""
    valid = bool(gpu.get("inforom_valid").value)
    return [Judged(verdict(not valid), "valid" if valid else "corrupted", "valid")]


@check(
    "gpu.memory_total", GPU, "Has the GPU all its memory?", ("memory_total_mib",), thresholds=("memory_total_percent",),
    source="the profile", action="a part of the memory is gone: reset or reboot, then have it replaced",
)  # fmt: skip
def memory_total(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the memory with the profile."""
    profile, total = ctx.profile(gpu), gpu.get("memory_total_mib").value
    if profile is None or profile.memory_mib is None:
        return no_profile(gpu, ctx, "how much memory it has")
    least = int(profile.memory_mib * ctx.policy.memory_total_percent / 100)
    return [Judged(verdict(total < least), total, f"at least {least} MiB", source=profile.source("memory_mib"))]


@check(
    "gpu.memory_idle", GPU, "Is the memory free while nothing uses the GPU?", ("memory_used_mib", "processes"),
    thresholds=("memory_idle_mib",), source=_OURS,
    action="memory is held by nobody: find clients of /dev/nvidia* in other namespaces, else reset the GPU",
)  # fmt: skip
def memory_idle(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge used memory without any process; a value that includes the driver's own part says nothing."""
    used, limit = gpu.get("memory_used_mib"), ctx.policy.memory_idle_mib
    if "includes reserved" in used.note:
        return skipped("this driver counts its own memory as used (includes reserved)", used.value)
    clients = [holder for holder in ctx.snapshot.occupants.holders if not holder.get("service")]
    if gpu.processes or gpu.mig or gpu.get("processes").value or clients:
        return skipped("the GPU is in use", used.value)
    return [Judged(verdict(used.value > limit, WARN), used.value, f"at most {limit} MiB")]


@check(
    "gpu.memory_use", GPU, "Is there memory left?", ("memory_used_mib", "memory_total_mib"),
    thresholds=("memory_warn_percent", "memory_high_percent"), source="the project's alert rules: 80 % and 90 %",
    action="lower the server's share of the memory, or move models; raise the thresholds where that much is meant",
)  # fmt: skip
def memory_use(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the share of memory in use."""
    used, total = gpu.get("memory_used_mib"), gpu.get("memory_total_mib").value
    if not total:
        return [Judged(FAIL, {"total_mib": total}, "memory", "the GPU reports no memory at all")]
    percent = round(100.0 * used.value / total, 1)
    value = {"used_mib": used.value, "percent": percent}
    if used.note:
        value["note"] = used.note
    expected = f"below {ctx.policy.memory_warn_percent:g} %"
    if percent >= ctx.policy.memory_high_percent and ctx.policy.memory_high_percent < 100:
        return [Judged(WARN, value, expected, "nearly full: the next larger request may fail for want of memory")]
    bad = percent >= ctx.policy.memory_warn_percent and ctx.policy.memory_warn_percent < 100
    return [Judged(verdict(bad, WARN), value, expected)]


@check(
    "gpu.bar1", GPU, "Is the BAR1 window whole and not full?", ("bar1_total_mib", "bar1_used_mib"),
    thresholds=("bar1_used_percent",), source="the profile",
    action="switch on resizable BAR and above-4G decoding in the firmware, or pci=realloc on the kernel's command line",
)  # fmt: skip
def bar1(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the window with the profile, and judge its use."""
    profile, total, used = ctx.profile(gpu), gpu.get("bar1_total_mib").value, gpu.get("bar1_used_mib").value
    value, wanted = {"total_mib": total, "used_mib": used}, profile.bar1_mib if profile else None
    if profile and wanted is not None and total < wanted and not mig_on(gpu):
        return [Judged(FAIL, value, f"{wanted} MiB", "", profile.source("bar1_mib"))]
    if total and 100.0 * used / total >= ctx.policy.bar1_used_percent:
        return [Judged(WARN, value, f"below {ctx.policy.bar1_used_percent:g} %", "the window is nearly used up")]
    if wanted is None:
        return no_profile(gpu, ctx, "how large BAR1 is")
    return [Judged(OK, value, f"{wanted} MiB", source=profile.source("bar1_mib") if profile else "")]
