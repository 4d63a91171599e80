# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What was read of a GPU node, in types: one snapshot that checks judge and reports show.

Nothing is judged here. A value that could not be read says why it is not there, so that no check can take "unknown"
for "good". Every class turns into plain data (``as_dict``) and back (``from_dict``), for JSON files and modules.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping

# Why a value is not there.
UNSUPPORTED = "unsupported"  # NVML says 3, NOT_SUPPORTED
NO_SYMBOL = "no_symbol"  # the library of this driver has no such function (13, or the symbol is absent)
NO_PERMISSION = "no_permission"  # 4: the reader is not root
FAILED = "failed"  # any other code of NVML, text that is not UTF-8, a value that cannot be
NOT_REACHED = "not_reached"  # the child was stopped by the deadline before or in this call, or the GPU was lost before

#: Every reason that a reading without a value may give.
REASONS = frozenset({UNSUPPORTED, NO_SYMBOL, NO_PERMISSION, FAILED, NOT_REACHED})

#: States of NVML as a whole.
NVML_STATES = ("ok", "absent", "not_loaded", "mismatch", "timeout", "error", "no_binding")


def plain(value: Any) -> Any:
    """Return plain data (dictionaries, lists, numbers, texts, None) for a dataclass or a container of such."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _known(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are fields of a class: a file written by a newer version may hold more."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {key: value for key, value in data.items() if key in names}


class Plain:
    """What all classes here can do: become plain data, and come from it."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(plain(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Any:
        """Return the object that ``as_dict`` gave ``data`` for; entries that are unknown here are left out.

        Raises:
            TypeError: when a mandatory entry is missing.
        """
        return cls(**_known(cls, data))


@dataclasses.dataclass(frozen=True)
class Reading(Plain):
    """One value of NVML, or the reason why there is none.

    Args:
        value: Plain JSON data; None when ``why`` is set.
        why: Empty when it was read, else one of ``REASONS``.
        code: NVML's code where there is one.
        note: What has to be known about the value ("includes reserved"), or the text of the error.

    Raises:
        ValueError: for an unknown reason, or a value beside a reason.
    """

    value: Any = None
    why: str = ""
    code: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.why and self.why not in REASONS:
            raise ValueError(f"unknown reason {self.why!r} of a reading; known: {', '.join(sorted(REASONS))}")
        if self.why and self.value is not None:
            raise ValueError(f"a reading that is {self.why} has no value, but it holds {self.value!r}")

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return not self.why


@dataclasses.dataclass(frozen=True)
class Process(Plain):
    """A process that the driver names as a user of a GPU.

    Args:
        pid: Its id as the host counts.
        used_mib: GPU memory it holds in MiB; None where the driver does not tell (always so with MIG and in WSL).
        kind: ``compute``, ``graphics`` or ``mps``.
        exists: Whether /proc knows the pid; memory held by one that does not exist is lost until a reset.
        name: Its name (15 characters at most); empty where it does not exist.
        unit: Its systemd unit; empty where it is in none.
    """

    pid: int
    used_mib: int | None = None
    kind: str = "compute"
    exists: bool = True
    name: str = ""
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class MigDevice(Plain):
    """One MIG device of a GPU.

    Args:
        index: Its place on the GPU.
        uuid: ``MIG-...``; empty where it could not be read.
        profile_name: Such as ``1g.10gb``, from the device's name; empty where it could not be read.
        memory_mib: Its memory in MiB; None where it could not be read.
        readings: What else was read, under the names of a GPU's readings.
    """

    index: int
    uuid: str = ""
    profile_name: str = ""
    memory_mib: int | None = None
    readings: Mapping[str, Reading] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MigDevice:
        """Return the device that ``as_dict`` gave ``data`` for."""
        return cls(**{**_known(cls, data), "readings": _readings(data)})


@dataclasses.dataclass(frozen=True)
class Gpu(Plain):
    """One GPU as NVML counts them.

    Args:
        index: NVML's index; it says nothing about the slot.
        bus_id: PCI address as sysfs writes it (``0000:65:00.0``); empty where it could not be read.
        lost: There was no handle of it, or a call said that it is lost, gone, or needs a reset; nothing was asked
            after that.
        lost_code: The code that said so: 15 lost, 16 reset required, 28 not found; any other for a handle.
        readings: What was read, by name.
        processes: Its users by the driver's own word.
        mig: Its MIG devices; empty without MIG.
    """

    index: int
    bus_id: str = ""
    lost: bool = False
    lost_code: int | None = None
    readings: Mapping[str, Reading] = dataclasses.field(default_factory=dict)
    processes: tuple[Process, ...] = ()
    mig: tuple[MigDevice, ...] = ()

    def get(self, name: str) -> Reading:
        """Return a reading; one that was never asked for is ``NOT_REACHED``, never a value."""
        return self.readings.get(name) or Reading(why=NOT_REACHED, note=f"{name} was not read")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Gpu:
        """Return the GPU that ``as_dict`` gave ``data`` for."""
        rest = {
            "readings": _readings(data),
            "processes": tuple(Process.from_dict(item) for item in data.get("processes") or ()),
            "mig": tuple(MigDevice.from_dict(item) for item in data.get("mig") or ()),
        }
        return cls(**{**_known(cls, data), **rest})


@dataclasses.dataclass(frozen=True)
class Nvml(Plain):
    """NVML as a whole.

    Args:
        state: One of ``NVML_STATES``: ``absent`` (no library), ``not_loaded`` (no driver), ``mismatch`` (library and
            module of different versions), ``timeout`` (a call did not return), ``no_binding`` (the child's Python has
            no pynvml), ``error`` (anything else), ``ok``.
        code: NVML's code of the call that failed; None where there is none.
        text: What the error says; empty when ok.
        library: Path of the library that was opened.
        driver_version: By NVML's word.
        nvml_version: By NVML's word.
        cuda_version: Such as ``12.2``.
        count: GPUs that NVML counts; None where it did not tell.
        hung_in: Call, and GPU where there is one, that did not return before the deadline: ``nvmlInit``,
            ``nvmlDeviceGetName of GPU 3``.
        duration_s: Seconds from the start of the child to its end or the deadline.
        calls: NVML calls that were made.
    """

    state: str
    code: int | None = None
    text: str = ""
    library: str = ""
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    count: int | None = None
    hung_in: str = ""
    duration_s: float = 0.0
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class PciGpu(Plain):
    """One GPU as sysfs shows it; None where sysfs has no such file.

    Args:
        address: Such as ``0000:65:00.0``.
        device_id: Four hexadecimal digits.
        subsystem: Board as ``vendor:device``; empty where there is none.
        driver: Kernel driver that is bound to it.
        link_width: Lanes in use.
        max_link_width: Lanes that the GPU has.
        link_speed_gts: Speed in use, in GT/s; low while idle.
        max_link_speed_gts: Speed that the GPU can do.
        port_max_width: Lanes of the port above it.
        numa_node: Node of the memory next to it; -1 where the firmware does not tell.
        aer: Errors that it counted since the boot: ``correctable``, ``nonfatal``, ``fatal``.
        port_aer: The same of the port above it.
    """

    address: str
    device_id: str = ""
    subsystem: str = ""
    driver: str | None = None
    link_width: int | None = None
    max_link_width: int | None = None
    link_speed_gts: float | None = None
    max_link_speed_gts: float | None = None
    port_max_width: int | None = None
    numa_node: int | None = None
    aer: Mapping[str, int] | None = None
    port_aer: Mapping[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class Software(Plain):
    """The software below NVML.

    Args:
        module_version: Version of the loaded nvidia module; None where none is loaded.
        library_path: File of libnvidia-ml; empty where none was found.
        library_version: Its version, by its file name.
        wanted_version: Version that the role nvidia_driver recorded; None where it never ran.
        held: Whether every recorded package is held; None without a record.
        nouveau_loaded: Whether nouveau is loaded.
        device_nodes: ``/dev/nvidia*`` that are there.
        cmdline: The kernel's command line.
        iommu: Whether devices are in IOMMU groups; None where sysfs does not tell.
    """

    module_version: str | None = None
    library_path: str = ""
    library_version: str | None = None
    wanted_version: str | None = None
    held: bool | None = None
    nouveau_loaded: bool = False
    device_nodes: tuple[str, ...] = ()
    cmdline: str = ""
    iommu: bool | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Software:
        """Return the software that ``as_dict`` gave ``data`` for."""
        return cls(**{**_known(cls, data), "device_nodes": tuple(data.get("device_nodes") or ())})


@dataclasses.dataclass(frozen=True)
class Unit(Plain):
    """One systemd unit that serves the GPUs.

    Args:
        name: With its suffix.
        load_state: ``loaded``, ``not-found``, ``masked``; empty where systemd did not answer.
        active_state: ``active``, ``failed``, ``inactive``, ``activating``.
        sub_state: ``running``, ``dead`` and so on.
        restarts: How often systemd restarted it by itself.
        since_s: Seconds since it became active; None while it is not.
    """

    name: str
    load_state: str = ""
    active_state: str = ""
    sub_state: str = ""
    restarts: int = 0
    since_s: float | None = None


@dataclasses.dataclass(frozen=True)
class Occupants(Plain):
    """Processes at the GPUs by the kernel's word.

    Args:
        dstate: Those of the driver, or with one of its devices open, that wait uninterruptibly: ``pid`` and ``name``.
        holders: Those that have a device open, as ``_gpu_holders.holders`` tells them.
        zombies: Those that a GPU still counts as users but that have ended and were not collected: ``pid``, ``name``.
    """

    dstate: tuple[Mapping[str, Any], ...] = ()
    holders: tuple[Mapping[str, Any], ...] = ()
    zombies: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Occupants:
        """Return the occupants that ``as_dict`` gave ``data`` for."""
        return cls(*(tuple(data.get(key) or ()) for key in ("dstate", "holders", "zombies")))


@dataclasses.dataclass(frozen=True)
class LogEvent(Plain):
    """One thing that the driver wrote to the kernel's log, its lines joined.

    Args:
        at: Seconds since the boot.
        kind: ``xid`` (also a GPU off the bus for which there is a number, 79, beside the text), ``off_bus`` (the GPU
            has fallen off the bus, and no line has a number) or ``reset_required``.
        xid: The number; None where the lines have none.
        bus_id: PCI address as sysfs writes it; empty where the lines have none.
        text: The lines, joined.
        fatal: Severity in the text of NVLink 5 errors; None where it has none.
        injected: The error was injected for a test.
    """

    at: float
    kind: str
    xid: int | None = None
    bus_id: str = ""
    text: str = ""
    fatal: bool | None = None
    injected: bool = False


@dataclasses.dataclass(frozen=True)
class Snapshot(Plain):
    """A node at one instant.

    Args:
        taken_at: Seconds since the epoch.
        boot_id: The kernel's id of this boot.
        uptime_s: Seconds since the boot.
        root: Whether it was read as root; NVML keeps some values from others.
        nvml: NVML as a whole.
        gpus: GPUs that NVML counts.
        pci: GPUs that sysfs shows.
        nvswitches: Addresses of the NVSwitches on PCI.
        software: Driver, library, devices.
        units: systemd's units.
        occupants: Processes.
        log: Events in the kernel's log, oldest first.
        log_error: Why the log could not be read; empty when it could.
    """

    taken_at: float
    boot_id: str
    uptime_s: float
    root: bool
    nvml: Nvml
    gpus: tuple[Gpu, ...] = ()
    pci: tuple[PciGpu, ...] = ()
    nvswitches: tuple[str, ...] = ()
    software: Software = dataclasses.field(default_factory=Software)
    units: tuple[Unit, ...] = ()
    occupants: Occupants = dataclasses.field(default_factory=Occupants)
    log: tuple[LogEvent, ...] = ()
    log_error: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that ``as_dict`` gave ``data`` for."""
        rest = {
            "nvml": Nvml.from_dict(data["nvml"]),
            "gpus": _all(Gpu, data.get("gpus")),
            "pci": _all(PciGpu, data.get("pci")),
            "nvswitches": tuple(data.get("nvswitches") or ()),
            "software": Software.from_dict(data.get("software") or {}),
            "units": _all(Unit, data.get("units")),
            "occupants": Occupants.from_dict(data.get("occupants") or {}),
            "log": _all(LogEvent, data.get("log")),
        }
        return cls(**{**_known(cls, data), **rest})


def _all(cls: Any, items: Iterable[Mapping[str, Any]] | None) -> tuple[Any, ...]:
    return tuple(cls.from_dict(item) for item in items or ())


def _readings(data: Mapping[str, Any]) -> dict[str, Reading]:
    return {str(name): Reading.from_dict(item) for name, item in (data.get("readings") or {}).items()}
