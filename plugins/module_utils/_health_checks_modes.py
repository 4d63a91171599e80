# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Checks of how a GPU is set up and who uses it: persistence, compute mode, MIG, processes."""

from __future__ import annotations

from typing import Any, Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import FAILED, NOT_REACHED, Gpu
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import (
    GPU,
    Context,
    Judged,
    check,
    skipped,
    verdict,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, WARN

_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
_PROHIBITED = 2


@check(
    "gpu.persistence_mode", GPU, "Does the driver stay loaded without a client?", ("persistence_mode",),
    thresholds=("persistence",), priority="P0", source="the profile, or the policy",
    action="run the role nvidia_persistenced: without it the first request after idle waits for the driver to start",
)  # fmt: skip
def persistence_mode(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the mode by NVML's word, which counts more than that of the daemon's unit."""
    profile, mode = ctx.profile(gpu), int(gpu.get("persistence_mode").value)
    if profile and profile.persistence_mode is not None:
        wanted = profile.persistence_mode
        return [Judged(verdict(mode != wanted), mode, wanted, source=profile.source("persistence_mode"))]
    if mode:
        return [Judged(OK, 1, 1)]
    if ctx.policy.persistence == "ignore":
        return skipped("the policy does not ask for it (persistence: ignore)", 0)
    return [Judged(FAIL if ctx.policy.persistence == "fail" else WARN, 0, 1)]


@check(
    "gpu.compute_mode", GPU, "May processes use the GPU as wanted?", ("compute_mode",), source="the profile",
    action="nvidia-smi -c 0: in mode 'prohibited' nothing can serve",
)  # fmt: skip
def compute_mode(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare the mode with the profile; a prohibited GPU serves nobody."""
    profile, mode = ctx.profile(gpu), gpu.get("compute_mode").value
    wanted = profile.compute_mode if profile else None
    if profile and wanted is not None:
        source = profile.source("compute_mode")
        return [Judged(verdict(mode != wanted), _COMPUTE_MODES[mode], _COMPUTE_MODES[wanted], source=source)]
    return [Judged(verdict(mode == _PROHIBITED), _COMPUTE_MODES[mode], "not prohibited")]


@check(
    "gpu.mig", GPU, "Is the GPU partitioned as wanted, and can its instances be read?",
    ("mig_mode_current", "mig_mode_pending"), optional=("mig_devices",), source="the profile",
    action="nvidia-smi mig -lgi; apply the layout with nvidia-mig-parted when nothing uses the GPU",
)  # fmt: skip
def mig(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Compare mode and layout with the wanted ones; each instance is listed with what was read of it."""
    profile = ctx.profile(gpu)
    current, pending = gpu.get("mig_mode_current").value, gpu.get("mig_mode_pending").value
    layout = sorted(device.profile_name for device in gpu.mig)
    devices, broken = [], []
    for device in gpu.mig:
        row: dict[str, Any] = {"index": device.index, "profile": device.profile_name, "memory_mib": device.memory_mib}
        row["readings"] = {name: item.value for name, item in device.readings.items() if item.ok}
        devices.append(row)
        failed = [name for name, item in device.readings.items() if item.why in (FAILED, NOT_REACHED)]
        broken += [f"{name} of instance {device.index}" for name in failed]
    value = {"current": current, "pending": pending, "instances": len(devices), "devices": devices}
    told = gpu.get("mig_devices")
    if told.ok and told.value != len(devices):
        return [Judged(FAIL, value, told.value, f"{told.value} instances are counted, {len(devices)} could be listed")]
    if broken:
        return [Judged(FAIL, value, "readable instances", f"could not be read: {', '.join(broken)}")]
    wanted = profile.mig_layout if profile else None
    if profile and wanted is not None and (bool(current) != bool(wanted) or layout != sorted(wanted)):
        return [Judged(FAIL, value, sorted(wanted) or "MIG off", "", profile.source("mig_layout"))]
    if current != pending:
        return [Judged(WARN, value, "no mode that waits", "another mode waits for a reset of the GPU")]
    if current and not devices:
        return [Judged(WARN, value, "instances", "MIG is on, but there is no instance: nothing can run on this GPU")]
    return [Judged(OK, value, None if wanted is None else sorted(wanted))]


@check(
    "gpu.processes", GPU, "Does nobody use the GPU who should not, and nobody who is gone?", ("processes",),
    thresholds=("processes", "allowed_units"), source="the policy",
    action="stop what should not be there (nothing is killed here); memory of a process that is gone needs a reset",
)  # fmt: skip
def processes(gpu: Gpu, ctx: Context) -> Iterable[Judged]:
    """Judge the users by the driver's word: those that are gone but hold memory, and those that are not allowed."""
    rows = [
        {"pid": item.pid, "name": item.name, "unit": item.unit, "used_mib": item.used_mib, "kind": item.kind}
        for item in gpu.processes
    ]
    told = gpu.get("processes").value
    gone = [item.pid for item in gpu.processes if not item.exists and item.used_mib != 0]
    if told != len(rows):
        return [Judged(FAIL, rows, told, f"{told} processes are counted, {len(rows)} could be listed")]
    if gone:
        hint = f"{', '.join(map(str, gone))} ended, but the GPU holds their memory: drain the node and reset it"
        return [Judged(FAIL, rows, "no memory of processes that are gone", hint)]
    mode = ctx.policy.processes
    foreign = [
        item
        for item in gpu.processes
        if mode == "none" or (mode == "listed" and item.unit not in ctx.policy.allowed_units)
    ]
    if foreign:
        named = ", ".join(f"{item.pid} {item.name} ({item.unit or 'no unit'})" for item in foreign)
        return [Judged(FAIL, rows, f"processes: {mode}", f"not allowed on this GPU now: {named}")]
    return [Judged(OK, rows, f"processes: {mode}")]
