# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Profiles: what a healthy GPU of a model answers, and what a good node looked like when it was captured.

A shipped profile (files/gpu_profiles) describes a model; ``capture`` makes a golden one from a good node, which adds
the number of GPUs and what each slot had. A GPU is matched by its PCI ids, never by a part of its name: "H200" is in
"GH200" as well.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, PciGpu, Snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_readings import READINGS, misread

SCHEMA = 1
ROW_REMAP, RETIRED_PAGES, NO_REPAIR = "row_remap", "retired_pages", "none"
_REPAIRS = (ROW_REMAP, RETIRED_PAGES, NO_REPAIR)
_DEVICE = re.compile(r"^[0-9a-f]{4}$")
_BOARD = re.compile(r"^[0-9a-f]{4}:[0-9a-f]{4}$")
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


class ProfileError(ValueError):
    """A profile that cannot be used, or a node of which none can be made; the text names every mistake."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """What is expected of a GPU, and of its node; None always means "not established", and the check is skipped.

    Args:
        name: Short name, also that of the file.
        device_ids: PCI device ids, four lower-case hexadecimal digits.
        title: For people.
        subsystem_ids: Boards (``vendor:device``), only where one device id is used for several cards.
        memory_mib: What NVML reports as total, in MiB.
        power_limit_w: ``default`` and ``max`` in W.
        pcie: ``width`` (lanes) and ``generation`` that the card itself can do.
        nvlink_count: NVLinks that must be active; 0 for a card without.
        nvswitch: Whether its boards have NVSwitches, or how many of them PCI shows.
        fabric: Whether the fabric must be set up; None: it must where PCI shows NVSwitches.
        ecc: Whether ECC must be on.
        memory_repair: ``row_remap``, ``retired_pages`` or ``none``.
        must_have: Readings that may not be unsupported.
        tlimit_slowdown_offset: Margin in °C at which the GPU slows down, mostly below zero.
        mig_capable: Whether it can be partitioned.
        bar1_mib: Size of its BAR1 window in MiB.
        persistence_mode: Wanted mode, 0 or 1.
        compute_mode: Wanted mode, 0 to 3 as NVML counts.
        mig_layout: Profiles of the MIG devices that each GPU must have, sorted; empty: MIG off.
        imex: Whether the node belongs to an IMEX domain.
        gsp_version: Version of the GSP firmware, where it is pinned.
        gpu_count: GPUs of this profile in the node.
        slots: PCI address to what the slot had when captured: ``pcie_width``, ``pcie_generation``, ``vbios``,
            ``numa_node``, and ``serial`` and ``uuid`` where they were asked for.
        sources: Fact to where it comes from: ``source`` and ``certainty``.
    """

    name: str
    device_ids: tuple[str, ...]
    title: str = ""
    subsystem_ids: tuple[str, ...] = ()
    memory_mib: int | None = None
    power_limit_w: Mapping[str, int] | None = None
    pcie: Mapping[str, int] | None = None
    nvlink_count: int | None = None
    nvswitch: Any = None
    fabric: bool | None = None
    ecc: bool | None = None
    memory_repair: str | None = None
    must_have: tuple[str, ...] = ()
    tlimit_slowdown_offset: int | None = None
    mig_capable: bool | None = None
    bar1_mib: int | None = None
    persistence_mode: int | None = None
    compute_mode: int | None = None
    mig_layout: tuple[str, ...] | None = None
    imex: bool | None = None
    gsp_version: str | None = None
    gpu_count: int | None = None
    slots: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    sources: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    def source(self, fact: str) -> str:
        """Return where a fact comes from, for a finding."""
        origin = self.sources.get(fact) or {}
        return f"profile {self.name}" + (f": {origin['source']}" if origin.get("source") else "")

    def slot(self, gpu: Gpu) -> Mapping[str, Any]:
        """Return what the slot of a GPU had when the profile was captured; empty where nothing is known."""
        return self.slots.get(gpu.bus_id) or {}

    def matches(self, pci: PciGpu) -> bool:
        """Whether a PCI function is a GPU of this profile."""
        if pci.device_id.lower() not in self.device_ids:
            return False
        return not self.subsystem_ids or pci.subsystem.lower() in self.subsystem_ids


def parse(data: Any, where: str = "profile") -> Profile:
    """Return the profile that a mapping describes.

    Args:
        data: What a YAML or JSON file holds.
        where: Name of the file or variable, for the message.

    Raises:
        ProfileError: naming every mistake.
    """
    problems = problems_of(data)
    if problems:
        raise ProfileError(f"{where}: " + "; ".join(problems))
    known = {field.name for field in dataclasses.fields(Profile)}
    values = {key: value for key, value in data.items() if key in known and value is not None}
    for key in ("device_ids", "subsystem_ids", "must_have", "mig_layout"):
        if key in values:
            values[key] = tuple(values[key])
    return Profile(**values)


def problems_of(data: Any) -> list[str]:
    """Return what is wrong with the mapping of a profile; empty when nothing is."""
    if not isinstance(data, Mapping):
        return [f"a profile is a dictionary, not {type(data).__name__}"]
    problems = (
        [] if data.get("schema") == SCHEMA else [f"schema is {data.get('schema')!r}; this version reads {SCHEMA}"]
    )
    unknown = sorted(str(key) for key in data if key not in _FIELDS and key != "schema")
    if unknown:
        problems.append(f"unknown keys {', '.join(unknown)}; known: {', '.join(sorted(_FIELDS))}")
    problems += [f"{key} is missing" for key in ("name", "device_ids") if data.get(key) in (None, "", [])]
    for key, (test, allowed) in _FIELDS.items():
        if data.get(key) is not None and not _holds(test, data[key]):
            problems.append(f"{key} is {data[key]!r}; allowed is {allowed}")
    return problems


def _holds(test: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(test(value))
    except (TypeError, KeyError, AttributeError):
        return False


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _all(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(test(item) for item in value)


def _exactly(keys: Sequence[str], test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: set(value) == set(keys) and all(test(value[key]) for key in keys)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or _whole(0, 64)(value)


def _is_slots(value: Any) -> bool:
    keys = {"pcie_width", "pcie_generation", "vbios", "numa_node", "serial", "uuid"}
    return all(_ADDRESS.match(address) and not set(slot) - keys for address, slot in value.items())


def _is_sources(value: Any) -> bool:
    return all(set(row) == {"source", "certainty"} and row["certainty"] in "HMLP" for row in value.values())


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: bool(_NAME.match(value)), "lower-case letters, digits, '.', '_' and '-'"),
    "title": (_is_text, "a text"),
    "device_ids": (
        lambda value: bool(value) and _all(lambda item: bool(_DEVICE.match(item)))(value),
        'PCI device ids in quotes, four lower-case hexadecimal digits each, such as ["2330"]',
    ),
    "subsystem_ids": (_all(lambda item: bool(_BOARD.match(item))), 'boards such as ["10de:16c1"]'),
    "memory_mib": (_whole(1, 2**24), "MiB, a whole number"),
    "power_limit_w": (
        lambda value: _exactly(("default", "max"), _whole(1, 20_000))(value) and value["default"] <= value["max"],
        "{default: W, max: W}",
    ),
    "pcie": (
        lambda value: _exactly(("width", "generation"), _whole(1, 64))(value) and value["generation"] <= 10,
        "{width: lanes, generation: 1 to 10}",
    ),
    "nvlink_count": (_whole(0, 1024), "a whole number, 0 for none"),
    "nvswitch": (_is_switch, "true, false or their number on PCI"),
    "fabric": (_is_bool, "true or false"),
    "ecc": (_is_bool, "true or false"),
    "memory_repair": (lambda value: value in _REPAIRS, "one of " + ", ".join(_REPAIRS)),
    "must_have": (_all(lambda item: item in READINGS), "names of readings (docs/health-checks.md)"),
    "tlimit_slowdown_offset": (_whole(-50, 50), "°C, mostly below zero"),
    "mig_capable": (_is_bool, "true or false"),
    "bar1_mib": (_whole(1, 2**24), "MiB, a whole number"),
    "persistence_mode": (_whole(0, 1), "0 or 1"),
    "compute_mode": (_whole(0, 3), "0 to 3"),
    "mig_layout": (_all(_is_text), 'MIG profiles such as ["1g.10gb"]; an empty list: MIG off'),
    "imex": (_is_bool, "true or false"),
    "gsp_version": (_is_text, "a text"),
    "gpu_count": (_whole(0, 64), "a whole number"),
    "slots": (_is_slots, "PCI addresses with pcie_width, pcie_generation, vbios, numa_node, serial, uuid"),
    "sources": (_is_sources, "for each fact {source: text, certainty: H, M, L or P}"),
}


def match(profiles: Iterable[Profile], pci: PciGpu) -> Profile | None:
    """Return the first profile that describes a PCI function; None when none does.

    Args:
        profiles: In the order of their right: golden ones before shipped ones.
        pci: The function.
    """
    return next((profile for profile in profiles if profile.matches(pci)), None)


def capture(snapshot: Snapshot, name: str, base: Profile | None = None, identities: bool = False) -> dict[str, Any]:
    """Return the golden profile of a good node, as the mapping that ``parse`` reads.

    Args:
        snapshot: Of a node that is as it should be.
        name: Name of the new profile.
        base: Profile of the model; what the snapshot cannot tell (what must exist, offsets) is taken from it.
        identities: Whether serial numbers and UUIDs of the GPUs are kept.

    Raises:
        ProfileError: when the node has no GPU, GPUs of several models, a GPU that is lost or that cannot be read, or
            when PCI and NVML disagree: such a node is no model for others.
    """
    problems = _unfit(snapshot)
    if problems:
        raise ProfileError("no profile can be made of this node: " + "; ".join(problems))
    found = {**(as_mapping(base) if base else {}), "schema": SCHEMA, "name": name}
    found.update(
        device_ids=sorted({pci.device_id.lower() for pci in snapshot.pci}),
        gpu_count=len(snapshot.gpus),
        nvswitch=len(snapshot.nvswitches) or (base.nvswitch if base else None),
        slots={gpu.bus_id: _slot(gpu, snapshot, identities) for gpu in snapshot.gpus},
    )
    first = snapshot.gpus[0]
    found["title"] = str(_common(snapshot, "name") or (base.title if base else "") or name)
    for fact, reading in _CAPTURED.items():
        value = _common(snapshot, reading)
        if value is not None:
            found[fact] = bool(value) if fact == "ecc" else value
    default, highest = _common(snapshot, "power_default_mw"), _common(snapshot, "power_max_mw")
    if default and highest:
        found["power_limit_w"] = {"default": default // 1000, "max": highest // 1000}
    width, generation = _common(snapshot, "pcie_width"), _common(snapshot, "pcie_gen_max")
    if width and generation:
        found["pcie"] = {"width": width, "generation": generation}
    links = [sum(states) for states in (gpu.get("nvlink_states").value for gpu in snapshot.gpus) if states]
    if links:
        found["nvlink_count"] = max(links)
    if _common(snapshot, "mig_mode_current") is not None:
        found["mig_layout"] = sorted(device.profile_name for device in first.mig)
    origin = {"source": "captured from a good node", "certainty": "H"}
    kept = dict(base.sources) if base else {}
    unchanged = as_mapping(base) if base else {}
    found["sources"] = {
        fact: dict(kept[fact]) if fact in kept and unchanged.get(fact) == value else origin
        for fact, value in found.items()
        if fact not in ("schema", "name", "sources", "title") and value is not None
    }
    return {key: value for key, value in found.items() if value is not None}


#: Fact of a profile to the reading it is taken from.
_CAPTURED = {
    "memory_mib": "memory_total_mib",
    "bar1_mib": "bar1_total_mib",
    "ecc": "ecc_mode_current",
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode",
    "tlimit_slowdown_offset": "tlimit_slowdown",
}


def as_mapping(profile: Profile) -> dict[str, Any]:
    """Return a profile as the mapping that ``parse`` reads, without what is not established."""
    found: dict[str, Any] = {"schema": SCHEMA}
    for field in dataclasses.fields(profile):
        value = getattr(profile, field.name)
        if value is None or (field.name in ("subsystem_ids", "must_have", "slots", "sources") and not value):
            continue
        if isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = {key: dict(item) if isinstance(item, Mapping) else item for key, item in value.items()}
        found[field.name] = value
    return found


def _unfit(snapshot: Snapshot) -> list[str]:
    if snapshot.nvml.state != "ok":
        return [f"NVML is {snapshot.nvml.state}: {snapshot.nvml.text}"]
    if not snapshot.gpus:
        return ["it has no GPU"]
    problems = [f"GPU {gpu.index} ({gpu.bus_id or 'no address'}) is lost" for gpu in snapshot.gpus if gpu.lost]
    ids = sorted({pci.device_id for pci in snapshot.pci})
    if len(ids) > 1:
        problems.append(f"it has GPUs of several models ({', '.join(ids)}): one profile describes one model")
    listed, counted = sorted(pci.address for pci in snapshot.pci), sorted(gpu.bus_id for gpu in snapshot.gpus)
    if listed != counted:
        problems.append(f"PCI shows {', '.join(listed) or 'no GPU'}, NVML {', '.join(counted)}")
    for gpu in snapshot.gpus:
        for reading, value in gpu.readings.items():
            if value.why in ("failed", "not_reached"):
                problems.append(f"{reading} of GPU {gpu.index} could not be read ({value.note or value.why})")
    return problems


def _slot(gpu: Gpu, snapshot: Snapshot, identities: bool) -> dict[str, Any]:
    node = next((pci.numa_node for pci in snapshot.pci if pci.address == gpu.bus_id), None)
    wanted = {"pcie_width": "pcie_width", "pcie_generation": "pcie_gen_max", "vbios": "vbios"}
    wanted.update({"serial": "serial", "uuid": "uuid"} if identities else {})
    slot = {key: gpu.get(reading).value for key, reading in wanted.items()}
    return {key: value for key, value in {**slot, "numa_node": node}.items() if value is not None}


def _common(snapshot: Snapshot, reading: str) -> Any:
    """Return the value that all GPUs have; None where they differ or one has none."""
    values = [gpu.get(reading).value for gpu in snapshot.gpus]
    same = all(value == values[0] for value in values)
    return values[0] if same and values[0] is not None and not misread(reading, values[0]) else None
