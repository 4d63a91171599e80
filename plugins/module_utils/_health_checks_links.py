# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Checks of a GPU's links: PCIe, NVLink, the fabric between the nodes' GPUs."""

from __future__ import annotations

from typing import Any, Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import (
    GPU,
    NO_HISTORY,
    Context,
    Judged,
    check,
    no_profile,
    skipped,
    verdict,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, SKIPPED, WARN

_OURS = "this collection"
_SEAT = "reseat the card or its riser, look at the slot's settings in the firmware; a slot that is narrow by design "
#: Replays a minute and lane that a bit error rate of 1e-12 gives, by PCIe generation (DCGM 4.6).
REPLAYS_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
#: Utilisation in % from which a GPU is under load, so that its link is not slowed down to save power.
_LOAD = 10
_FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
#: NVML's mask of the fabric's health: name, shift; two bits each: 1 true, 2 false, 0 not told.
_HEALTH_BITS = (("degraded_bandwidth", 0), ("route_recovery", 2), ("route_unhealthy", 4), ("access_timeout", 6))
#: Four bits: 0 not told, 1 none, else what is wrong.
_CONFIGURATION_SHIFT = 8


@check(
    "gpu.pcie_width", GPU, "Has the PCIe link all its lanes?", ("pcie_width",), optional=("pcie_width_max",),
    priority="P0", source="the profile", action=_SEAT + "belongs into a captured profile",
)  # fmt: skip
def pcie_width(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the width with the slot's, the profile's or the card's own; idle links keep it."""
    profile, width, card = ctx.profile(gpu), gpu.get("pcie_width").value, gpu.get("pcie_width_max")
    slot = profile.slot(gpu).get("pcie_width") if profile else None
    wanted = slot or (profile.pcie or {}).get("width") if profile else None
    source = (f"profile {profile.name}, this slot" if slot else profile.source("pcie")) if profile and wanted else ""
    if wanted is None and card.ok:
        wanted, source = card.value, "the card's own maximum"
    if wanted is None:
        return no_profile(gpu, ctx, "how many lanes it has")
    pci = ctx.pci(gpu)
    port = pci.port_max_width if pci else None
    value = {"lanes": width, "port": port}
    hint = (
        f"the port above has only {port} lanes: another slot, or a captured profile" if port and port < wanted else ""
    )
    # More lanes than the profile knows of is a profile of another slot, not a fault.
    return [Judged(verdict(width < wanted), value, wanted, hint if width < wanted else "", source)]


@check(
    "gpu.pcie_generation", GPU, "Does the PCIe link run at full speed under load?", ("pcie_gen", "pstate"),
    optional=("pcie_gen_max", "utilization_gpu"), priority="P0", source="card and slot",
    action=_SEAT + "belongs into a captured profile",
)  # fmt: skip
def pcie_generation(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the speed only at P0 or under load: an idle link is slow by design."""
    now, state, load = gpu.get("pcie_gen").value, gpu.get("pstate").value, gpu.get("utilization_gpu")
    both, profile = gpu.get("pcie_gen_max"), ctx.profile(gpu)
    slot = profile.slot(gpu).get("pcie_generation") if profile else None
    wanted, source = slot, f"profile {profile.name}, this slot" if profile and slot else "card and slot"
    if wanted is None and both.ok:
        wanted = both.value
    elif wanted is None and profile and profile.pcie:
        wanted, source = profile.pcie["generation"], profile.source("pcie")
    value = {"generation": now, "pstate": state}
    if wanted is None:
        return no_profile(gpu, ctx, "how fast its link is")
    if now >= wanted:
        return [Judged(OK, value, wanted, source=source)]
    if state != 0 and not (load.ok and load.value >= _LOAD):
        return [Judged(SKIPPED, value, wanted, "idle: the link is slowed down by design", source)]
    return [Judged(FAIL, value, wanted, "", source)]


@check(
    "gpu.pcie_replay", GPU, "Are PCIe packets seldom sent again?", ("pcie_replay",),
    optional=("pcie_gen_max", "pcie_gen", "pcie_width"), thresholds=("replay_factor", "window_s"),
    source="DCGM 4.6: bit error rate of 1e-12", action="reseat the card or its riser; watch AER",
)  # fmt: skip
def pcie_replay(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the rate of replays against what the link's speed and width make usual."""
    rate = ctx.history.rate(gpu, "pcie_replay")
    value = {"count": gpu.get("pcie_replay").value, "per_minute": None if rate is None else round(rate.per_minute, 3)}
    if rate is None:
        return skipped(NO_HISTORY, value)
    generations = [reading.value for reading in (gpu.get("pcie_gen_max"), gpu.get("pcie_gen")) if reading.ok]
    # What cannot be told counts as the slowest link, which allows the least.
    per_lane = REPLAYS_PER_LANE.get(generations[0] if generations else 1, REPLAYS_PER_LANE[6])
    width = gpu.get("pcie_width")
    limit = round(per_lane * (width.value if width.ok else 1) * ctx.policy.replay_factor, 3)
    return [Judged(verdict(rate.per_minute > limit, WARN), value, f"at most {limit:g} a minute")]


@check(
    "gpu.pcie_errors", GPU, "Does the GPU count no fatal and non-fatal PCIe errors?", ("pcie_nonfatal", "pcie_fatal"),
    optional=("pcie_correctable", "pcie_bad_tlp", "pcie_lcrc"), source=_OURS,
    action="see dmesg for AER; reseat the card or its riser; drain and reset the GPU",
)  # fmt: skip
def pcie_errors(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the GPU's own error counters."""
    names = ("pcie_nonfatal", "pcie_fatal", "pcie_correctable", "pcie_bad_tlp", "pcie_lcrc")
    value = {name: gpu.get(name).value for name in names if gpu.get(name).ok}
    return [Judged(verdict(value["pcie_nonfatal"] + value["pcie_fatal"] > 0), value, {"nonfatal": 0, "fatal": 0})]


@check(
    "gpu.pcie_aer", GPU, "Does the PCIe root see no errors of the GPU's link (AER)?", parts=("pci.aer", "pci.port_aer"),
    thresholds=("aer_correctable_per_minute", "window_s"), source=_OURS,
    action="see dmesg for AER; reseat the card or its riser",
)  # fmt: skip
def pcie_aer(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the growth of AER's counters of the GPU and of the port above it, from sysfs."""
    pci = ctx.pci(gpu)
    sides = {"aer": pci.aer, "port_aer": pci.port_aer} if pci else {}
    sides = {side: errors for side, errors in sides.items() if errors}
    if not sides:
        return skipped("sysfs has no AER counters for it")
    value = {side: dict(errors or {}) for side, errors in sides.items()}
    grown = {
        f"{side}.{kind}": ctx.history.increase(gpu, f"{side}.{kind}")
        for side in sides
        for kind in ("nonfatal", "fatal")
    }
    rates = [ctx.history.rate(gpu, f"{side}.correctable") for side in sides]
    expected = {"nonfatal": "no growth", "fatal": "no growth"}
    worse = {name: growth for name, growth in grown.items() if growth}
    if worse:
        return [Judged(FAIL, {**value, "grown": worse}, expected)]
    limit = ctx.policy.aer_correctable_per_minute
    fast = [rate.per_minute for rate in rates if rate and rate.per_minute > limit]
    if fast:
        hint = f"{max(fast):.1f} corrected errors a minute, at most {limit:g} are usual: reseat the card or its riser"
        return [Judged(WARN, value, expected, hint)]
    if any(rate is None for rate in rates) or None in grown.values():
        return skipped(NO_HISTORY, value)
    return [Judged(OK, value, expected)]


@check(
    "gpu.numa", GPU, "Does the firmware tell which memory is next to the GPU?", parts=("pci.numa_node",),
    priority="P2", source="sysfs numa_node",
    action="a setting of the firmware (NUMA, SRAT), in a virtual machine of the host; a captured profile accepts it",
)  # fmt: skip
def numa(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the NUMA node with the slot's; -1 is a firmware that does not tell."""
    pci, profile = ctx.pci(gpu), ctx.profile(gpu)
    if pci is None or pci.numa_node is None:
        return skipped("sysfs has no NUMA node for it")
    wanted = profile.slot(gpu).get("numa_node") if profile else None
    if wanted is not None:
        return [Judged(verdict(pci.numa_node != wanted, WARN), pci.numa_node, wanted)]
    return [Judged(verdict(pci.numa_node < 0, WARN), pci.numa_node, "0 or more")]


@check(
    "gpu.nvlink", GPU, "Are all NVLinks up?", ("nvlink_states",), priority="P0", source="the profile",
    action="nvidia-smi nvlink -s; see dmesg and the fabric manager; reset the GPU, then reseat or replace the board",
)  # fmt: skip
def nvlink(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the number of links that are up with the profile's, never with the binding's maximum."""
    states, profile = list(gpu.get("nvlink_states").value), ctx.profile(gpu)
    value: dict[str, Any] = {"active": sum(1 for state in states if state), "listed": len(states)}
    if profile is None or profile.nvlink_count is None:
        return no_profile(gpu, ctx, f"how many NVLinks it has ({value['active']} are up)")
    down = [number for number, state in enumerate(states) if not state]
    if down:
        value["down"] = down
    wanted, source = profile.nvlink_count, profile.source("nvlink_count")
    return [Judged(verdict(value["active"] < wanted), value, wanted, source=source)]


@check(
    "gpu.nvlink_errors", GPU, "Do the NVLinks run without errors?", ("nvlink_errors",), instead=(("nvlink5_errors",),),
    thresholds=(
        "nvlink_replays_per_minute", "nvlink_crc_warn_per_minute", "nvlink_crc_fail_per_minute",
        "nvlink5_symbols_per_minute", "window_s",
    ),
    source="DCGM: rates, not life-time counts", action="nvidia-smi nvlink -e; see dmesg; reseat or replace the board",
)  # fmt: skip
def nvlink_errors(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the rates of NVLink's error counters; the counts since the boot say nothing about now."""
    name = "nvlink_errors" if gpu.get("nvlink_errors").ok else "nvlink5_errors"
    counts, policy = gpu.get(name).value, ctx.policy
    rates = {kind: ctx.history.rate(gpu, f"{name}.{kind}") for kind in counts}
    per_minute = {kind: None if rate is None else round(rate.per_minute, 3) for kind, rate in rates.items()}
    value = {"counts": dict(counts), "per_minute": per_minute}
    replays, crc = policy.nvlink_replays_per_minute, policy.nvlink_crc_warn_per_minute
    symbols, least = policy.nvlink5_symbols_per_minute, 1e-9
    fails = {
        "replay": replays, "recovery": replays, "recovery_failed": least, "recovery_events": replays,
        "crc_flit": policy.nvlink_crc_fail_per_minute, "crc_data": policy.nvlink_crc_fail_per_minute,
    }  # fmt: skip
    warns = {"crc_flit": crc, "crc_data": crc, "symbol_errors": symbols, "effective_errors": least}
    for status, limits in ((FAIL, fails), (WARN, warns)):
        over = [
            kind
            for kind, rate in rates.items()
            if rate is not None and rate.delta > 0 and round(rate.per_minute, 3) >= limits.get(kind, float("inf"))
        ]
        if over:
            return [Judged(status, value, "below the rates of the policy", f"too many a minute: {', '.join(over)}")]
    if None in per_minute.values():
        return skipped(NO_HISTORY, value)
    return [Judged(OK, value, "below the rates of the policy")]


@check(
    "gpu.fabric", GPU, "Has the fabric manager set up the GPU's fabric?", ("fabric_state",),
    optional=("fabric_status", "fabric_cluster"), thresholds=("boot_grace_s",), priority="P0",
    source="NVSwitches on PCI, or the profile",
    action="systemctl status nvidia-fabricmanager (role nvidia_fabricmanager): CUDA does not start without the fabric",
)  # fmt: skip
def fabric(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the state of the fabric where there is one."""
    profile, state, status = ctx.profile(gpu), gpu.get("fabric_state").value, gpu.get("fabric_status")
    value = {"state": _FABRIC_STATES[state], "status": status.value}
    needed = ctx.requires(gpu, "fabric_state")
    if state == 0:
        if needed:
            return [Judged(FAIL, value, "completed", "", needed)]
        return skipped("this GPU is in no NVLink fabric", value)
    if state == 2 and ctx.snapshot.uptime_s < ctx.policy.boot_grace_s:
        return [Judged(WARN, value, "completed", "the fabric is being set up after the boot")]
    if state != 3 or (status.ok and status.value != 0):
        return [Judged(FAIL, value, "completed", source=needed)]
    cluster = gpu.get("fabric_cluster")
    if profile and profile.imex and not (cluster.ok and cluster.value.strip("0-")):
        hint = "the GPU belongs to no cluster, but the profile expects an IMEX domain: see nvidia-imex and the NMX"
        return [Judged(FAIL, {**value, "cluster": cluster.value}, "a cluster", hint, profile.source("imex"))]
    return [Judged(OK, value, "completed", source=needed)]


@check(
    "gpu.fabric_health", GPU, "Is the fabric of the GPU healthy?", ("fabric_health_mask",), source="DCGM",
    action="see the fabric manager's log; drain the node, reset the GPUs together",
)  # fmt: skip
def fabric_health(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge each part of the fabric's health that is told."""
    mask = gpu.get("fabric_health_mask").value
    parts = {name: mask >> shift & 3 for name, shift in _HEALTH_BITS}
    bad = [name for name, told in parts.items() if told not in (0, 2)]
    configuration = mask >> _CONFIGURATION_SHIFT & 15
    if configuration not in (0, 1):
        bad.append(f"incorrect_configuration {configuration}")
    if not bad and not configuration and not any(parts.values()):
        return skipped("nothing is told about the fabric's health", mask)
    return [Judged(verdict(bool(bad)), {"mask": mask, "bad": bad}, {"bad": []})]
