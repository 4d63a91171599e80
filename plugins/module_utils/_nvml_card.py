# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""One GPU in the child: all its readings, each with a value or the reason why there is none."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_calls import Miss, Noted, Nvml, checked, miss
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_tables import (
    ALL_ONES,
    FIELDS,
    HIDDEN_BY_MIG,
    LOST,
    NVLINK5_ERRORS,
    NVLINK_ERRORS,
    ROWS,
)

_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_NONE = Miss("unsupported", 3)


class Card:
    """One GPU or MIG device."""

    def __init__(self, nvml: Nvml, handle: Any, put: Callable[[Mapping[str, Any]], None]) -> None:
        """Take a handle and where readings go: entries by name, ``[value, why, code, note]``."""
        self.nvml, self.handle, self.put = nvml, handle, put
        self.mig_on = False
        self.processes: list[dict[str, Any]] = []
        self.mig: list[dict[str, Any]] = []

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function with the handle."""
        return self.nvml.call(name, self.handle, *arguments)

    def take(self, names: str, ask: Callable[[], Any]) -> list[Any]:
        """Ask once and put one reading for each name.

        Returns:
            The values, and the reason as a ``Miss`` in place of each that is not there.

        Raises:
            Miss: when the GPU is lost.
        """
        wanted = names.split()
        try:
            got = ask()
            values = list(got) if len(wanted) > 1 else [got]
            if len(values) != len(wanted):
                raise Miss("failed", None, f"{len(values)} values in place of {len(wanted)}")
        except Miss as error:
            values = [error] * len(wanted)
        except Exception as error:  # a structure that is not what this code knows
            values = [Miss("failed", None, f"{type(error).__name__}: {error}")] * len(wanted)
        values = [self._checked(name, value) for name, value in zip(wanted, values)]
        self.put({name: self._entry(name, value) for name, value in zip(wanted, values)})
        for value in values:
            if isinstance(value, Miss) and value.code in LOST:
                raise value
        return [value.value if isinstance(value, Noted) else value for value in values]

    @staticmethod
    def _checked(name: str, value: Any) -> Any:
        if isinstance(value, (Miss, dict, list, bool)):
            return value
        try:
            if isinstance(value, Noted):
                return Noted(checked(name, value.value), value.note, value.code)
            return checked(name, value)
        except Miss as error:
            return error
        except (ValueError, TypeError, OverflowError) as error:
            return Miss("failed", None, f"{name}: {error}")

    def _entry(self, name: str, value: Any) -> list[Any]:
        if isinstance(value, Miss):
            hidden = self.mig_on and value.why == "unsupported" and name.startswith(HIDDEN_BY_MIG)
            return [None, value.why, value.code, value.note + ("; MIG is on" if hidden else "")]
        if isinstance(value, Noted):
            return [value.value, "", value.code, value.note]
        return [value, "", None, ""]

    def read(self) -> None:
        """Put all readings.

        Raises:
            Miss: when the GPU is lost.
        """
        for names, function, *arguments in ROWS:
            values = self.take(names, functools.partial(self.ask, function, *arguments))
            if names.startswith("mig_mode"):
                self.mig_on = values[0] == 1
        self.take_memory()
        self._identity()
        self._faults()
        self._speed()
        self._fields()
        self._nvlink()
        self._fabric()
        self.take("processes", self.take_processes)
        self.take("mig_devices", self._mig_devices)

    # ---- what one row of the table cannot say ----

    def take_memory(self) -> None:
        """Put total, used and reserved memory."""

        def new() -> Any:
            version = getattr(self.nvml.binding, "nvmlMemory_v2", None)
            if version is None:
                raise Miss("no_symbol", 13, "the binding has no nvmlMemory_v2")
            return self.ask("nvmlDeviceGetMemoryInfo", version)

        def ask() -> list[Any]:
            info = self.nvml.first(new, lambda: self.ask("nvmlDeviceGetMemoryInfo"))
            total, used, reserved = info.total, info.used, getattr(info, "reserved", None)
            if used > total:
                raise Miss("failed", None, f"{used} of {total} bytes in use cannot be")
            if reserved is None:
                # Since driver 510 the old call counts what the driver keeps for itself as used.
                old = Miss("no_symbol", 13, "nvmlDeviceGetMemoryInfo_v2: function not found")
                return [total >> 20, Noted(used >> 20, "includes reserved"), old]
            return [total >> 20, used >> 20, reserved >> 20]

        self.take("memory_total_mib memory_used_mib memory_reserved_mib", ask)

    def _identity(self) -> None:
        def valid() -> Any:
            try:
                self.ask("nvmlDeviceValidateInforom")
            except Miss as error:
                if error.code != 14:
                    raise
                return Noted(False, error.note, 14)
            return True

        def gsp() -> dict[str, bool]:
            enabled, default = self.ask("nvmlDeviceGetGspFirmwareMode")
            return {"enabled": bool(enabled), "default": bool(default)}

        def capability() -> Any:
            return ".".join(str(int(part)) for part in self.ask("nvmlDeviceGetCudaComputeCapability"))

        self.take("inforom_valid", valid)
        self.take("gsp_mode", gsp)
        self.take("compute_capability", capability)

    def _faults(self) -> None:
        ask, struct = self.ask, self.nvml.struct

        def sram() -> Any:
            return struct("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t", self.handle)

        def banks() -> list[int]:
            found = ask("nvmlDeviceGetRowRemapperHistogram")
            return [found.max, found.high, found.partial, found.low, found.none]

        self.take("sram_threshold_exceeded", lambda: sram().bThresholdExceeded)
        self.take("remap_bank_max remap_bank_high remap_bank_partial remap_bank_low remap_bank_none", banks)
        self.take("retired_sbe", lambda: len(ask("nvmlDeviceGetRetiredPages", 0)))
        self.take("retired_dbe", lambda: len(ask("nvmlDeviceGetRetiredPages", 1)))

    def _speed(self) -> None:
        ask, first = self.ask, self.nvml.first

        def bar1() -> list[int]:
            found = ask("nvmlDeviceGetBAR1MemoryInfo")
            return [found.bar1Total >> 20, found.bar1Used >> 20]

        def busy() -> list[int]:
            found = ask("nvmlDeviceGetUtilizationRates")
            return [found.gpu, found.memory]

        def fans() -> Any:
            if count == 0:
                return Miss("unsupported", None, "no fan")
            if isinstance(count, Miss):
                return count if count.why != "no_symbol" else [int(ask("nvmlDeviceGetFanSpeed"))]
            speeds = [int(ask("nvmlDeviceGetFanSpeed_v2", fan)) for fan in range(count)]
            odd = [speed for speed in speeds if not 0 <= speed <= 200]
            return Miss("failed", None, f"a fan at {odd[0]} % cannot be") if odd else speeds

        self.take("bar1_total_mib bar1_used_mib", bar1)
        self.take("utilization_gpu utilization_memory", busy)
        count = self.take("fan_count", lambda: ask("nvmlDeviceGetNumFans"))[0]
        self.take("fan_speed", fans)
        reasons = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        self.take("clock_reasons", lambda: first(lambda: ask(reasons[0]), lambda: ask(reasons[1])))
        sensors = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        self.take("temperature", lambda: first(lambda: ask(sensors[0], 0), lambda: ask(sensors[1], 0)))

    def _values(self, ids: Iterable[Any]) -> list[Any]:
        """Return field values by their declared type, a ``Miss`` for each that is not there."""
        found: list[Any] = []
        for item in self.ask("nvmlDeviceGetFieldValues", list(ids)):
            if item.nvmlReturn:
                found.append(miss(int(item.nvmlReturn), f"field {item.fieldId}"))
            elif item.valueType >= len(_TYPES):
                found.append(Miss("failed", None, f"field {item.fieldId} is of the unknown type {item.valueType}"))
            else:
                found.append(getattr(item.value, _TYPES[item.valueType]))
        return found

    def _fields(self) -> None:
        def ask() -> list[Any]:
            values = self._values(FIELDS.values())
            place = list(FIELDS).index("pcie_replay")
            if isinstance(values[place], Miss) and values[place].why in ("unsupported", "no_symbol"):
                try:
                    values[place] = self.ask("nvmlDeviceGetPcieReplayCounter")
                except Miss as error:
                    values[place] = error
            return values

        self.take(" ".join(FIELDS), ask)

    def _nvlink(self) -> None:
        most = max(36, int(getattr(self.nvml.binding, "NVML_NVLINK_MAX_LINKS", 36)))

        def states() -> list[int]:
            found: list[int] = []
            while len(found) < most:
                try:
                    state = int(self.ask("nvmlDeviceGetNvLinkState", len(found)))
                except Miss as error:
                    if error.code == 2:  # INVALID_ARGUMENT: there is no such link
                        break
                    if found and error.code not in LOST:
                        raise Miss("failed", error.code, f"link {len(found)}: {error.note}") from None
                    raise
                if state not in (0, 1):
                    raise Miss("failed", None, f"link {len(found)} cannot be in state {state}")
                found.append(state)
            return found

        def old() -> Any:
            return summed(NVLINK_ERRORS, [self._counters(active, one) for one in NVLINK_ERRORS.values()])

        def new() -> Any:
            found = self._values([(one, link) for one in NVLINK5_ERRORS.values() for link in active])
            step = len(active)
            return summed(NVLINK5_ERRORS, [found[i * step : (i + 1) * step] for i in range(len(NVLINK5_ERRORS))])

        links = self.take("nvlink_states", states)[0]
        active = [] if isinstance(links, Miss) else [link for link, state in enumerate(links) if state]
        without = links if isinstance(links, Miss) else Miss("unsupported", None, "no NVLink is active")
        self.take("nvlink_errors", lambda: old() if active else without)
        self.take("nvlink5_errors", lambda: new() if active else without)

    def _counters(self, links: Iterable[int], counter: int) -> list[Any]:
        """Return a counter of each link, or the one reason why this kind of GPU has none."""
        found: list[Any] = []
        for link in links:
            try:
                found.append(self.ask("nvmlDeviceGetNvLinkErrorCounter", link, counter))
            except Miss as error:
                if error.why not in ("unsupported", "no_symbol"):
                    raise
                return [error]
        return found

    def _fabric(self) -> None:
        struct = self.nvml.struct
        new, old = "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"

        def ask() -> list[Any]:
            info = self.nvml.first(
                lambda: struct(new, "c_nvmlGpuFabricInfo_v3_t", self.handle),
                lambda: struct(new, "c_nvmlGpuFabricInfo_v2_t", self.handle),
                lambda: struct(old, "c_nvmlGpuFabricInfo_t", self.handle),
            )
            mask = getattr(info, "healthMask", Miss("no_symbol", 13, f"{old} has no health mask"))
            return [info.state, info.status, info.cliqueId, _uuid(bytes(info.clusterUuid)), mask]

        self.take("fabric_state fabric_status fabric_clique fabric_cluster fabric_health_mask", ask)

    # ---- occupants ----

    def take_processes(self) -> int:
        """List the processes and return how many there are."""
        found = []
        for kind, word in (("compute", "Compute"), ("graphics", "Graphics"), ("mps", "MPSCompute")):
            name = f"nvmlDeviceGet{word}RunningProcesses"
            asks = [functools.partial(self._listed, name + version) for version in ("_v3", "_v2", "")]
            try:
                listed = self.nvml.first(*asks)
            except Miss as error:
                if kind == "compute" or error.why not in ("unsupported", "no_symbol"):
                    raise
                continue
            for item in listed:
                used = item.usedGpuMemory
                used = None if used is None or int(used) in ALL_ONES else int(used) >> 20
                found.append({"pid": int(item.pid), "used_mib": used, "kind": kind})
        self.processes = found
        return len(found)

    def _listed(self, name: str) -> Any:
        """Return a list of processes; the driver says 7 when it grew between the two calls that it takes."""
        for _attempt in range(2):
            try:
                return self.ask(name)
            except Miss as error:
                if error.code != 7:
                    raise
        return self.ask(name)

    def _mig_devices(self) -> int:
        if not self.mig_on:
            return 0
        for index in range(int(self.ask("nvmlDeviceGetMaxMigDeviceCount"))):
            try:
                handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
            except Miss as error:
                if error.code == 6:  # NOT_FOUND: a place that is free
                    continue
                if error.code == 2:
                    break
                raise
            self.mig.append(mig_device(self.nvml, handle, index))
        return len(self.mig)


def _uuid(data: bytes) -> str:
    """Return sixteen bytes as a UUID is written; the module of that name costs the child milliseconds."""
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def mig_device(nvml: Nvml, handle: Any, index: int) -> dict[str, Any]:
    """Return what a MIG device tells."""
    entries: dict[str, Any] = {}
    card = Card(nvml, handle, entries.update)
    name = card.take("name", lambda: card.ask("nvmlDeviceGetName"))[0]
    own_uuid = card.take("uuid", lambda: card.ask("nvmlDeviceGetUUID"))[0]
    card.take("gpu_instance", lambda: card.ask("nvmlDeviceGetGpuInstanceId"))
    card.take("compute_instance", lambda: card.ask("nvmlDeviceGetComputeInstanceId"))
    card.take_memory()
    card.take("processes", card.take_processes)
    return {
        "index": index,
        "uuid": own_uuid if isinstance(own_uuid, str) else "",
        "profile_name": name.rpartition("MIG ")[2] if isinstance(name, str) and "MIG " in name else "",
        "memory_mib": entries["memory_total_mib"][0],
        "readings": entries,
    }


def summed(names: Iterable[str], values: list[list[Any]]) -> Any:
    """Return the sum over the links for each counter; one that no link has is left out.

    Returns:
        Sums by name, or a ``Miss`` when there is none at all.

    Raises:
        Miss: when a counter that exists could not be read, or cannot be.
    """
    found = {}
    last = _NONE
    for name, row in zip(names, values):
        missing = [value for value in row if isinstance(value, Miss)]
        for error in missing:
            last = error
            if error.why not in ("unsupported", "no_symbol"):
                raise error
        if not missing:
            found[name] = sum(int(checked("counter", value)) for value in row)
    return found or last
