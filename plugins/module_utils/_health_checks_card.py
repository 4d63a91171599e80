# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Checks of a GPU as a card: is it there and known, is it throttled, hot or starved of power, is its firmware alike."""

from __future__ import annotations

from typing import Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import (
    GPU,
    LOST,
    NO_HISTORY,
    Context,
    Judged,
    check,
    gpu_target,
    no_profile,
    skipped,
    unread,
    verdict,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, WARN

_OURS = "this collection"
_COOL = "look at fans, filters, air flow or coolant; see what the BMC says"
_LOST_CODES = {
    15: "the GPU is lost",
    16: "the GPU needs a reset",
    28: "the GPU is not found",
    999: "the GPU gives an unknown error",
}
#: Bits of the clock event reasons: slowed down by hardware, by heat, by the power brake.
_HW_REASONS = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
_SW_THERMAL = 0x20


@check(
    LOST, GPU, "Does the GPU answer?", parts=("lost",), priority="P0", source="NVML codes 15, 16, 28, 999",
    essential=True, action="drain the node; see dmesg; reset the GPU or reboot, then reseat or replace it",
)  # fmt: skip
def lost(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge whether the GPU is there; the others of the node are judged all the same."""
    if gpu.lost:
        text = _LOST_CODES.get(gpu.lost_code or 0, f"the GPU is lost (NVML code {gpu.lost_code})")
        hint = f"{text}: drain the node, see dmesg, reset the GPU or reboot, then reseat or replace it"
        return [Judged(FAIL, {"lost": True, "code": gpu.lost_code}, {"lost": False}, hint)]
    if not gpu.readings:
        return [Judged(ERROR, "nothing was read", "readings", "nothing could be read of this GPU: see node.nvml")]
    return [Judged(OK, {"lost": False}, {"lost": False})]


@check(
    "gpu.profile", GPU, "Is the GPU the one that is expected?", parts=("bus_id", "pci.device_id"),
    thresholds=("unknown_model",), priority="P0", source="files/gpu_profiles",
    action="add a profile: the module gpu_profile captures one of a good node",
)  # fmt: skip
def profile(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge whether a profile describes the GPU, by its PCI ids."""
    pci = ctx.pci(gpu)
    if pci is None:
        hint = "NVML's GPU has no counterpart on PCI: its address could not be read, or sysfs does not show it"
        return [Judged(FAIL, gpu.bus_id or "no address", "a PCI function", hint)]
    found = ctx.profile(gpu)
    value = {"device": pci.device_id, "board": pci.subsystem}
    golden = [item.name for item in ctx.profiles if item.gpu_count is not None]
    if golden and (found is None or found.name not in golden):
        return [Judged(FAIL, value, ", ".join(golden), "another GPU than the node's profile says", "profile")]
    if found is None:
        status = FAIL if ctx.policy.unknown_model == "fail" else WARN
        return [Judged(status, value, "a profile", "no profile describes it, so that much cannot be judged: add one")]
    return [Judged(OK, value, found.name, source=f"profile {found.name}")]


@check(
    "gpu.clock_reasons", GPU, "Is the GPU not slowed down by hardware or heat?", ("clock_reasons",),
    thresholds=("confirm_bad", "confirm_window"), priority="P0", source="NVML clock event reasons",
    damped=("confirm_bad", "confirm_window"), action=_COOL + "; power cables and supplies for a power brake",
)  # fmt: skip
def clock_reasons(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the reasons that matter; idle, a power cap and chosen clocks are none."""
    mask = gpu.get("clock_reasons").value
    hardware = [name for bit, name in _HW_REASONS.items() if mask & bit]
    value = {"mask": mask, "reasons": hardware + (["software thermal slowdown"] if mask & _SW_THERMAL else [])}
    if hardware:
        return [Judged(FAIL, value, "none of these")]
    return [Judged(verdict(bool(mask & _SW_THERMAL), WARN), value, "none of these")]


@check(
    "gpu.clock_counters", GPU, "How much of the time was the GPU slowed down?",
    ("clock_ns_sw_thermal", "clock_ns_hw_thermal", "clock_ns_hw_brake"),
    thresholds=("slowdown_warn_percent", "slowdown_fail_percent", "window_s"), source=_OURS, action=_COOL,
)  # fmt: skip
def clock_counters(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the share of time, from the counters of nanoseconds; their total since the boot says nothing about now."""
    value: dict[str, float] = {}
    for kind in ("sw_thermal", "hw_thermal", "hw_brake"):
        rate = ctx.history.rate(gpu, f"clock_ns_{kind}")
        if rate is None:
            return skipped(NO_HISTORY)
        value[f"{kind}_percent"] = round(rate.delta / rate.span_s / 1e7, 3)
    hardware = max(value["hw_thermal_percent"], value["hw_brake_percent"])
    warn, fail = ctx.policy.slowdown_warn_percent, ctx.policy.slowdown_fail_percent
    expected = f"at most {warn:g} % of the time"
    if hardware > fail:
        return [Judged(FAIL, value, expected)]
    return [Judged(verdict(max(value.values()) > warn, WARN), value, expected)]


@check(
    "gpu.temperature", GPU, "Is the GPU far enough from its slowdown temperature?", ("temperature_margin",),
    instead=(("temperature", "temperature_slowdown"),), optional=("tlimit_slowdown",), thresholds=("margin_warn_c",),
    priority="P0", source="the GPU's own slowdown limit (NVML field 194), NVSentinel ADR-042", action=_COOL,
)  # fmt: skip
def temperature(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the margin, which is signed: it may go below zero before the GPU slows down at its own offset."""
    warn, margin = ctx.policy.margin_warn_c, gpu.get("temperature_margin")
    source = ""
    if margin.ok:
        left, offset, own = margin.value, 0, gpu.get("tlimit_slowdown")
        profile = ctx.profile(gpu)
        if own.ok:
            offset = own.value
        elif profile and profile.tlimit_slowdown_offset is not None:
            offset, source = profile.tlimit_slowdown_offset, profile.source("tlimit_slowdown_offset")
        value = {"margin": left, "slowdown_at": offset}
    else:
        hot, limit = gpu.get("temperature").value, gpu.get("temperature_slowdown").value
        left, offset, value = limit - hot, 0, {"temperature": hot, "slowdown_at": limit, "margin": limit - hot}
    expected = f"a margin of {warn} °C or more"
    if left <= offset:
        return [Judged(FAIL, value, expected, "", source)]
    return [Judged(verdict(left < warn, WARN), value, expected, source=source)]


@check(
    "gpu.memory_temperature", GPU, "Is the memory cool enough?", ("memory_temperature",),
    optional=("temperature_mem_max", "tlimit_mem", "temperature_margin"), thresholds=("margin_warn_c",), source="NVML",
    action=_COOL,
)  # fmt: skip
def memory_temperature(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the memory's temperature with its limit, or the margin with the memory's own offset."""
    hot, limit = gpu.get("memory_temperature").value, gpu.get("temperature_mem_max")
    margin, own = gpu.get("temperature_margin"), gpu.get("tlimit_mem")
    if limit.ok:
        value = {"temperature": hot, "limit": limit.value}
        status = FAIL if hot >= limit.value else verdict(limit.value - hot < ctx.policy.margin_warn_c, WARN)
        return [Judged(status, value, f"below {limit.value} °C")]
    if margin.ok and own.ok:
        value = {"temperature": hot, "margin": margin.value, "limit_at": own.value}
        return [Judged(verdict(margin.value <= own.value, WARN), value, f"a margin above {own.value}")]
    return skipped("the GPU does not tell a limit for its memory", hot)


@check(
    "gpu.power_reading", GPU, "Can the power draw be read?", ("power_mw",), source="DCGM, POWER_UNREADABLE",
    action="the power sensor does not work: reset the GPU; have it replaced when that does not help",
)  # fmt: skip
def power_reading(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge whether the draw can be: a GPU that answers draws some watts."""
    power = gpu.get("power_mw").value
    return [Judged(verdict(power == 0, WARN), round(power / 1000, 1), "more than 0 W")]


@check(
    "gpu.power_limit", GPU, "Is the enforced power limit the wanted one?", ("power_enforced_mw",),
    optional=("power_limit_mw", "power_default_mw"), thresholds=("power_limit_percent", "power_limit_w"),
    source="the profile",
    action="a cable, a power supply or the BMC caps it when it is below nvidia-smi's limit; else set the limit",
)  # fmt: skip
def power_limit(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the limit that is enforced with the wanted one."""
    profile, enforced, own = ctx.profile(gpu), gpu.get("power_enforced_mw").value / 1000, gpu.get("power_default_mw")
    asked = gpu.get("power_limit_mw")
    wanted: float | None = None
    source = ""
    if ctx.policy.power_limit_w < 0:
        if not asked.ok:
            return skipped("the limit that is set on the card is not told")
        wanted, source = asked.value / 1000, "the limit that is set on the card"
    elif ctx.policy.power_limit_w:
        wanted, source = ctx.policy.power_limit_w, "power_limit_w"
    elif profile and profile.power_limit_w:
        wanted, source = profile.power_limit_w["default"], profile.source("power_limit_w")
    elif own.ok:
        wanted, source = own.value / 1000, "the card's own default"
    if wanted is None:
        return no_profile(gpu, ctx, "what its power limit is")
    value = {"enforced_w": round(enforced, 1), "asked_w": round(asked.value / 1000, 1) if asked.ok else None}
    off = abs(enforced - wanted) * 100 > wanted * ctx.policy.power_limit_percent
    return [Judged(verdict(off), value, f"{wanted:g} W", source=source)]


@check(
    "gpu.fan", GPU, "Do the fans turn?", ("fan_count", "fan_speed"), optional=("temperature",), priority="P2",
    source=_OURS, action="look at the fans",
)  # fmt: skip
def fan(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the fans of cards that have their own; a passive card has none."""
    count, speeds, hot = gpu.get("fan_count").value, list(gpu.get("fan_speed").value), gpu.get("temperature")
    if count == 0:
        return skipped("the card has no fan of its own")
    if len(speeds) < count:
        return [Judged(WARN, {"fans": count, "speeds": speeds}, "a speed for each fan")]
    # Fans may rest on a cool card.
    still = not any(speeds) and hot.ok and hot.value >= 60
    return [Judged(verdict(still, WARN), {"fans": count, "speeds": speeds}, "turning when it is warm")]


@check(
    "gpu.vbios", GPU, "Is the VBIOS the same as the others'?", ("vbios",), source="the profile, or most of the node",
    action="bring the firmware of the node's GPUs to one version",
)  # fmt: skip
def vbios(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the VBIOS with the captured one, or with that of the node's other GPUs of the same model."""
    found = ctx.profile(gpu)
    return _drift(gpu, ctx, "vbios", found.slot(gpu).get("vbios") if found else None)


@check(
    "gpu.inforom_version", GPU, "Is the infoROM's version the same as the others'?", ("inforom_version",),
    source="most of the node", action="bring the firmware of the node's GPUs to one version",
)  # fmt: skip
def inforom_version(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the infoROM's version with that of the node's other GPUs of the same model."""
    return _drift(gpu, ctx, "inforom_version", None)


@check(
    "gpu.gsp_version", GPU, "Is the GSP firmware the pinned one, or the same as the others'?", ("gsp_version",),
    source="the profile, or most of the node",
    action="the firmware comes with the driver: reboot, reinstall the driver",
)  # fmt: skip
def gsp_version(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the GSP firmware with the profile, or with that of the node's other GPUs."""
    found = ctx.profile(gpu)
    if found and found.gsp_version:
        seen = gpu.get("gsp_version").value
        return [Judged(verdict(seen != found.gsp_version), seen, found.gsp_version, "", found.source("gsp_version"))]
    return _drift(gpu, ctx, "gsp_version", None)


def _drift(gpu: Gpu, ctx: Context, name: str, wanted: str | None) -> list[Judged]:
    seen = gpu.get(name).value
    if wanted:
        return [Judged(verdict(seen != wanted, WARN), seen, wanted, source="the captured profile of this slot")]
    # Models may be mixed in a node; firmware is compared within one.
    mine = ctx.pci(gpu)
    alike = [
        other
        for other in ctx.snapshot.gpus
        if unread(other, ctx, name) is None
        and getattr(ctx.pci(other), "device_id", None) == getattr(mine, "device_id", None)
    ]
    if len(alike) < 2:
        return skipped("no other GPU of this model to compare with", seen)
    values = [other.get(name).value for other in alike]
    common = max(sorted(set(values), key=str), key=values.count)
    others = [gpu_target(other) for other in alike if other.get(name).value != seen]
    # Half against half: neither is the right one, both are told.
    tied = values.count(seen) == values.count(common) and seen != common
    if seen == common and not (others and values.count(common) * 2 == len(values)):
        return [Judged(OK, seen, common)]
    hint = f"it differs from {', '.join(others)}" + ("; neither is in the majority" if tied else "")
    return [Judged(WARN, seen, common, hint)]
