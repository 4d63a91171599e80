# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Checks of the node: is everything there, does the software fit together, what does the kernel say."""

from __future__ import annotations

from typing import Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, LogEvent, Unit
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import (
    NODE,
    Context,
    Judged,
    check,
    gpu_target,
    skipped,
    verdict,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED, WARN
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._xid_policy import judge as judge_events

_OURS = "this collection"
_NO_GPU = "this node has no GPU, and none is expected"
_NVML_HINTS = {
    "absent": "libnvidia-ml is not there: install the driver (role nvidia_driver)",
    "not_loaded": "the nvidia module is not loaded: modprobe nvidia, and see dmesg for why it is not",
    "mismatch": "library and module are of different versions: reboot, or reload the module when nothing uses the GPUs",
    "no_binding": "the Python of the reader has no pynvml: run the role gpu_health",
    "timeout": "a call to the driver did not return: drain the node and reboot it; see dmesg",
    "error": "NVML failed: see dmesg, then reboot",
}


@check(
    "node.nvml", NODE, "Does NVML load and answer before the deadline?", parts=("nvml.state", "nvml.hung_in"),
    priority="P0", source="NVML", action="see dmesg, then reboot the node", essential=True,
)  # fmt: skip
def nvml(ctx: Context) -> Iterable[Judged]:
    """Judge NVML as a whole: a library that is missing or hangs on a GPU node is a failure."""
    found = ctx.snapshot.nvml
    value = {"state": found.state, "code": found.code, "text": found.text, "library": found.library}
    if found.state == "ok":
        return [Judged(OK, "ok", "ok")]
    if not ctx.gpus_expected() and found.state in ("absent", "not_loaded", "no_binding"):
        return skipped(_NO_GPU, value)
    hint = _NVML_HINTS.get(found.state, _NVML_HINTS["error"])
    if found.hung_in:
        value["hung_in"] = found.hung_in
        hint = f"probe timeout in {found.hung_in}: {hint}"
    return [Judged(FAIL, value, "ok", hint)]


@check(
    "node.gpu_count", NODE, "Do PCI, NVML and the profile count the same GPUs?",
    parts=("pci", "nvml.count", "gpus", "profile.gpu_count"), thresholds=("expect_gpus", "expected_gpus"),
    priority="P0", source="PCI, NVML and the profile", essential=True,
    action="a GPU is missing: see dmesg; reseat or replace it when a power cycle does not bring it back",
)  # fmt: skip
def gpu_count(ctx: Context) -> Iterable[Judged]:
    """Compare three counts; each GPU that PCI shows and NVML does not is named."""
    snapshot, expected = ctx.snapshot, ctx.expected_gpus()
    value = {"pci": len(snapshot.pci), "nvml": snapshot.nvml.count, "read": len(snapshot.gpus)}
    source = "expected_gpus" if ctx.policy.expected_gpus >= 0 else "profile" if expected is not None else "PCI"
    wanted = len(snapshot.pci) if expected is None else expected
    if not snapshot.pci and not snapshot.gpus and not wanted:
        if ctx.policy.expect_gpus:
            return [Judged(FAIL, value, "at least 1", "no GPU at all: not on PCI, not in NVML", "expect_gpus")]
        return skipped(_NO_GPU, value)
    if snapshot.nvml.state != "ok" or snapshot.nvml.count is None:
        hint = "NVML did not count to the end: see node.nvml"
        return [Judged(FAIL if len(snapshot.pci) < wanted else ERROR, value, wanted, hint, source)]
    known = {gpu.bus_id for gpu in snapshot.gpus}
    missing = [pci.address for pci in snapshot.pci if pci.address not in known]
    found = [
        Judged(FAIL, "on PCI, not in NVML", "in NVML", "the driver does not take this GPU: see dmesg", target=address)
        for address in missing
    ]
    if len(snapshot.gpus) != snapshot.nvml.count:
        return [*found, Judged(ERROR, value, wanted, "the enumeration of the GPUs did not come to its end", source)]
    if min(len(snapshot.pci), snapshot.nvml.count) < wanted or missing:
        return [Judged(FAIL, value, wanted, "", source), *found]
    if len(snapshot.pci) != snapshot.nvml.count or snapshot.nvml.count > wanted:
        return [Judged(WARN, value, wanted, "more GPUs than expected: capture the profile anew", source)]
    return [Judged(OK, value, wanted, source=source)]


@check(
    "node.pci_driver", NODE, "Has the nvidia driver taken every GPU?", parts=("pci.driver",),
    priority="P0", source="sysfs",
    action="another driver, or none, holds the GPU: see dmesg, and vfio-pci or nouveau in /etc/modprobe.d",
)  # fmt: skip
def pci_driver(ctx: Context) -> Iterable[Judged]:
    """Judge which kernel driver is bound to each GPU."""
    if not ctx.snapshot.pci:
        return _nothing_on_pci(ctx)
    return [
        Judged(verdict(pci.driver != "nvidia"), pci.driver or "none", "nvidia", target=pci.address)
        for pci in ctx.snapshot.pci
    ]


def _nothing_on_pci(ctx: Context) -> list[Judged]:
    if ctx.gpus_expected():
        return [Judged(FAIL, "no GPU on PCI", "GPUs", "no GPU answers on PCI: power, seating, firmware settings")]
    return skipped(_NO_GPU)


@check(
    "node.driver_match", NODE, "Are loaded module, library and NVML of one version?",
    parts=("software.module_version", "software.library_version", "nvml.driver_version"), priority="P0",
    source="the driver accepts only its own version",
    action="reboot, or reload the module when nothing uses the GPUs: the packages were changed under a running driver",
)  # fmt: skip
def driver_match(ctx: Context) -> Iterable[Judged]:
    """Compare the versions of the parts of the driver."""
    software, found = ctx.snapshot.software, ctx.snapshot.nvml
    value = {
        "module": software.module_version,
        "library": software.library_version,
        "nvml": found.driver_version or None,
    }
    if not ctx.gpus_expected() and not software.module_version:
        return skipped(_NO_GPU, value)
    if not software.module_version:
        return [Judged(FAIL, value, "one version", "no nvidia module is loaded: modprobe nvidia, see dmesg")]
    known = {version for version in value.values() if version}
    if len(known) > 1 or found.state == "mismatch":
        seen = ", ".join(f"{part} {version}" for part, version in value.items() if version)
        return [Judged(FAIL, value, "one version", f"{seen}: reboot, or reload the module when nothing uses the GPUs")]
    if not value["library"] or not value["nvml"]:
        part = "library" if not value["library"] else "NVML's driver"
        return [Judged(ERROR, value, "one version", f"the version of {part} could not be read: see node.nvml")]
    return [Judged(OK, value, "one version")]


@check(
    "node.driver_pin", NODE, "Is the loaded driver the wanted one, and held?",
    parts=("software.module_version", "software.wanted_version", "software.held"), priority="P0",
    source="record of the role nvidia_driver", action="run the role nvidia_driver, then reboot when it says so",
)  # fmt: skip
def driver_pin(ctx: Context) -> Iterable[Judged]:
    """Compare the loaded driver with the recorded one."""
    software = ctx.snapshot.software
    value = {"loaded": software.module_version, "held": software.held}
    if software.wanted_version is None:
        return skipped("the role nvidia_driver has not recorded a version on this node", value)
    if software.module_version != software.wanted_version:
        return [Judged(FAIL, value, software.wanted_version)]
    if software.held is not True:
        return [Judged(WARN, value, software.wanted_version, "its packages are not held: an update may take it away")]
    return [Judged(OK, value, software.wanted_version)]


@check(
    "node.nouveau", NODE, "Is nouveau kept away?", parts=("software.nouveau_loaded",), priority="P0",
    source="DCGM diagnostic level 1", action="blacklist nouveau (role nvidia_driver), rebuild the initramfs and reboot",
)  # fmt: skip
def nouveau(ctx: Context) -> Iterable[Judged]:
    """Judge whether nouveau is loaded."""
    loaded = ctx.snapshot.software.nouveau_loaded
    return [Judged(verdict(loaded), "loaded" if loaded else "not loaded", "not loaded")]


@check(
    "node.device_nodes", NODE, "Are the device nodes there?", parts=("software.device_nodes", "minor"),
    source="DCGM diagnostic level 1", action="nvidia-modprobe -u -c0, or start nvidia-persistenced; see udev's rules",
)  # fmt: skip
def device_nodes(ctx: Context) -> Iterable[Judged]:
    """Judge which of /dev/nvidia* are there."""
    if not ctx.snapshot.gpus:
        return skipped("NVML lists no GPU that would need one: see node.gpu_count")
    minors = [gpu.get("minor") for gpu in ctx.snapshot.gpus if not gpu.lost]
    wanted = {"/dev/nvidiactl", "/dev/nvidia-uvm"} | {f"/dev/nvidia{minor.value}" for minor in minors if minor.ok}
    missing = sorted(wanted - set(ctx.snapshot.software.device_nodes))
    if not all(minor.ok for minor in minors):
        return [Judged(WARN, sorted(ctx.snapshot.software.device_nodes), sorted(wanted), "a minor could not be read")]
    return [Judged(verdict(bool(missing), WARN), {"missing": missing}, sorted(wanted))]


@check(
    "node.units", NODE, "Do the services that the GPUs need run?", parts=("units",),
    thresholds=("required_units", "boot_grace_s", "unit_restarts", "unit_window_s"), source="NVSentinel's monitor",
    action="systemctl status and journalctl -u of the unit",
)  # fmt: skip
def units(ctx: Context) -> Iterable[Judged]:
    """Judge required units, and any unit of the GPUs that failed or restarts again and again."""
    found = {unit.name: unit for unit in ctx.snapshot.units}
    required = _required_units(ctx)
    judged = [
        item
        for name in sorted({*found, *required})
        for item in [_unit(ctx, found.get(name) or Unit(name), required.get(name, ""))]
        if item
    ]
    return judged or skipped("no unit is required here, and none has failed", sorted(found))


def _required_units(ctx: Context) -> dict[str, str]:
    required = dict.fromkeys(ctx.policy.required_units, "required_units")
    profiles = ctx.node_profiles()
    if ctx.snapshot.nvswitches:
        required.setdefault("nvidia-fabricmanager.service", "NVSwitches on PCI")
    for profile in profiles:
        if profile.nvswitch:
            required.setdefault("nvidia-fabricmanager.service", f"profile {profile.name}")
        if profile.imex:
            required.setdefault("nvidia-imex.service", f"profile {profile.name}")
    return required


def _unit(ctx: Context, unit: Unit, required: str) -> Judged | None:
    value = {"load": unit.load_state, "active": unit.active_state, "sub": unit.sub_state, "restarts": unit.restarts}
    name, expected = unit.name, "active" if required else "not failed"
    flapping = unit.restarts >= ctx.policy.unit_restarts and (
        unit.since_s is None or unit.since_s < ctx.policy.unit_window_s
    )
    if flapping:
        hint = f"restarted {unit.restarts} times: journalctl -u {name}"
        return Judged(FAIL if required else WARN, value, expected, hint, required, name)
    if unit.active_state == "active":
        return Judged(OK, value, expected, source=required, target=name)
    if required:
        if not unit.load_state and not unit.active_state:
            return Judged(ERROR, value, expected, "systemd did not tell its state", required, name)
        grace = ctx.snapshot.uptime_s < ctx.policy.boot_grace_s and unit.load_state == "loaded"
        hint = f"it may still be starting, {ctx.snapshot.uptime_s:.0f} s after the boot" if grace else ""
        return Judged(WARN if grace and unit.active_state != "failed" else FAIL, value, expected, hint, required, name)
    if unit.active_state == "failed":
        return Judged(WARN, value, expected, f"systemctl status {name}; systemctl reset-failed when unwanted", "", name)
    return None


@check(
    "node.iommu", NODE, "Is the IOMMU out of the way of peer-to-peer traffic?",
    parts=("software.iommu", "software.cmdline"), priority="P2", source="NCCL's documentation",
    action="iommu=pt on the kernel's command line (role tuning), reboot",
)  # fmt: skip
def iommu(ctx: Context) -> Iterable[Judged]:
    """Judge the IOMMU's mode where several GPUs may talk to each other."""
    software = ctx.snapshot.software
    if software.iommu is None:
        return skipped("sysfs does not tell whether an IOMMU is in use")
    if len(ctx.snapshot.pci) < 2:
        return skipped("a single GPU has no peer")
    words = software.cmdline.split()
    through = any(word in ("iommu=pt", "iommu.passthrough=1") for word in words)
    off = not software.iommu or any(word.endswith("iommu=off") for word in words)
    value = {"iommu": software.iommu, "passthrough": through}
    return [Judged(verdict(not (through or off), WARN), value, "passthrough or off")]


@check(
    "node.nvswitches", NODE, "Are all NVSwitches on PCI?", parts=("nvswitches", "profile.nvswitch"),
    source="the profile", action="an NVSwitch is missing: see dmesg; a power cycle of the whole board, then the vendor",
)  # fmt: skip
def nvswitches(ctx: Context) -> Iterable[Judged]:
    """Compare the NVSwitches that PCI shows with the profile."""
    wanted = [profile for profile in ctx.node_profiles() if profile.nvswitch is not None]
    seen = len(ctx.snapshot.nvswitches)
    if not wanted:
        return skipped("no profile says how many NVSwitches PCI shows", seen)
    found = []
    for profile in wanted:
        exact = isinstance(profile.nvswitch, int) and not isinstance(profile.nvswitch, bool)
        bad = seen != profile.nvswitch if exact else bool(profile.nvswitch) != bool(seen)
        status = FAIL if bad and (profile.nvswitch or exact) else WARN if bad else OK
        found.append(Judged(status, seen, profile.nvswitch, source=profile.source("nvswitch")))
    return found


@check(
    "node.kernel_log", NODE, "Did the driver log errors (Xid, fallen off the bus, reset required)?",
    parts=("log", "recovery_action", "reset_status"), priority="P0", source="files/xid_policy.yml",
    action="see the policy's reason; drain the node, then reset the GPU or reboot",
)  # fmt: skip
def kernel_log(ctx: Context) -> Iterable[Judged]:
    """Judge the errors of this boot, GPU by GPU, since the instant that counts."""
    if ctx.snapshot.log_error:
        hint = f"the kernel's log could not be read ({ctx.snapshot.log_error}): errors of the driver would not be seen"
        return [Judged(ERROR, ctx.snapshot.log_error, "readable", hint)]
    events: dict[str, list[LogEvent]] = {gpu.bus_id: [] for gpu in ctx.snapshot.gpus if gpu.bus_id}
    events.update({pci.address: [] for pci in ctx.snapshot.pci})
    for event in ctx.snapshot.log:
        if event.at >= ctx.since_s:
            events.setdefault(event.bus_id, []).append(event)
    gpus = {gpu.bus_id: gpu for gpu in ctx.snapshot.gpus}
    found = [_events(ctx, events[address], gpus.get(address), address) for address in sorted(events)]
    return found or skipped("no GPU and no event")


def _events(ctx: Context, events: list[LogEvent], gpu: Gpu | None, address: str) -> Judged:
    judged = judge_events(ctx.xids, events, gpu)
    target = gpu_target(gpu) if gpu else address or "node"
    return Judged(judged.status, judged.value, "no error", judged.hint, judged.source, target)


@check(
    "node.dstate", NODE, "Is no process stuck in the driver?", parts=("occupants.dstate",),
    thresholds=("dstate_bad", "dstate_window"), source="gpud: 5 samples in a row",
    damped=("dstate_bad", "dstate_window"),
    action="nothing ends such a process: drain the node and reboot it; see dmesg",
)  # fmt: skip
def dstate(ctx: Context) -> Iterable[Judged]:
    """Judge processes of the driver that wait uninterruptibly."""
    stuck = [dict(process) for process in ctx.snapshot.occupants.dstate]
    return [Judged(verdict(bool(stuck)), stuck, [])]


@check(
    "node.zombies", NODE, "Does no ended process hold a GPU?", parts=("occupants.zombies",),
    thresholds=("confirm_bad", "confirm_window"), source=_OURS, damped=("confirm_bad", "confirm_window"),
    action="its parent does not collect it: restart the parent (a container's init), else reboot",
)  # fmt: skip
def zombies(ctx: Context) -> Iterable[Judged]:
    """Judge processes that ended, were not collected and still count as users of a GPU."""
    found = [dict(process) for process in ctx.snapshot.occupants.zombies]
    return [Judged(verdict(bool(found)), found, [])]


@check(
    "node.history", NODE, "Could earlier runs be read?", parts=("history",), source=_OURS,
    action="nothing, when it does not come again: rates start anew with this run",
)  # fmt: skip
def history(ctx: Context) -> Iterable[Judged]:
    """Judge whether the history and the instant from which events count can be used."""
    problems = [text for text in (ctx.history.history.problem, ctx.since_problem) if text]
    if problems:
        return [Judged(WARN, "; ".join(problems), "usable")]
    samples = len(ctx.history.history.samples)
    return [Judged(OK if samples else SKIPPED, {"samples": samples}, hint="" if samples else "this is the first run")]
