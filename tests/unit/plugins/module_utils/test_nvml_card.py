"""One GPU as the child reads it, with a binding of these tests: what each of NVML's answers means for a reading."""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as reading
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _nvml_lines, _nvml_probe
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading_names import READINGS
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_calls import Nvml, Out
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_tables import words

CODES = [*range(1, 30), 999]


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


class NVMLLibraryMismatchError(Exception):
    """As in the binding: not an NVMLError."""


class Struct(SimpleNamespace):
    """A structure that a call fills; ctypes.byref takes only its own kind, so the test replaces that."""


def field(number, value, kind=3, code=0):
    member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[kind]
    return SimpleNamespace(fieldId=number, nvmlReturn=code, valueType=kind, value=SimpleNamespace(**{member: value}))


#: Calls that answer with this number unless a test says otherwise.
ZERO = """
    MinorNumber InforomConfigurationChecksum NumaNodeId PersistenceMode ComputeMode TotalEccErrors VirtualizationMode
    PerformanceState RetiredPagesPendingStatus UnrepairableMemoryFlag_v1 MarginTemperature CurrentClocksEventReasons
    ClockInfo MaxClockInfo PowerUsage PowerManagementLimit EnforcedPowerLimit PowerManagementDefaultLimit
    PcieReplayCounter
"""
FIVE = """
    Architecture CurrPcieLinkGeneration MaxPcieLinkGeneration GpuMaxPcieLinkGeneration CurrPcieLinkWidth
    MaxPcieLinkWidth
"""


class Binding:
    """Answers of a healthy GPU; a test gives others by name: a value, an exception, or a function."""

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    NVML_NVLINK_MAX_LINKS = 36
    nvmlMemory_v2 = 0x2000028
    c_nvmlEccSramErrorStatus_v1_t = c_nvmlGpuFabricInfo_v3_t = c_nvmlGpuFabricInfo_v2_t = Struct
    c_nvmlGpuFabricInfo_t = Struct

    def __init__(self, fields=None, without=(), **answers):
        self.asked = []
        self.fields = dict(fields or {})
        self.without = without
        self.answers = {
            "HandleByIndex": "handle",
            "PciInfo": SimpleNamespace(busId=b"00000000:65:00.0"),
            "MigMode": [0, 0],
            "Name": "NVIDIA H100",
            "UUID": "GPU-0",
            "Serial": "1",
            "BoardPartNumber": "p",
            "VbiosVersion": "96",
            "InforomImageVersion": "G520",
            "GspFirmwareVersion": b"535.1",
            "GspFirmwareMode": [1, 1],
            "CudaComputeCapability": (9, 0),
            "EccMode": [1, 1],
            "RemappedRows": (0, 0, 0, 0),
            "RepairStatus": [0, 0],
            "PowerManagementLimitConstraints": [1000, 700000],
            "MemoryInfo": self.memory,
            "RowRemapperHistogram": SimpleNamespace(max=640, high=0, partial=0, low=0, none=0),
            "RetiredPages": [],
            "BAR1MemoryInfo": SimpleNamespace(bar1Total=1 << 30, bar1Used=1 << 20),
            "UtilizationRates": SimpleNamespace(gpu=1, memory=2),
            "NumFans": 0,
            "SramEccErrorStatus": lambda _handle, out: setattr(out, "bThresholdExceeded", 0),
            "GpuFabricInfoV": self.fabric,
            "GpuFabricInfo": self.fabric,
            "FieldValues": self.field_values,
            "NvLinkState": lambda _handle, link: 1 if link < 4 else self.fail(2),
            "NvLinkErrorCounter": lambda _handle, link, counter: 10 * counter + link,
            "ComputeRunningProcesses_v3": [],
            "GraphicsRunningProcesses_v3": [],
            "MPSComputeRunningProcesses_v3": [],
            **dict.fromkeys(words(ZERO), 0),
            "nvmlDeviceValidateInforom": None,
            **dict.fromkeys(words("TemperatureV Temperature TemperatureThreshold"), 40),
            **dict.fromkeys(words(FIVE), 5),
            **answers,
        }

    @staticmethod
    def fail(code):
        raise NVMLError(code)

    @staticmethod
    def memory(_handle, version=None):
        return SimpleNamespace(total=80 << 30, used=1 << 20 if version else 600 << 20, reserved=599 << 20)

    @staticmethod
    def fabric(_handle, out):
        out.state, out.status, out.cliqueId, out.clusterUuid, out.healthMask = 3, 0, 1, bytes(16), 0

    def field_values(self, _handle, ids):
        return [self.fields.get(one[0] if isinstance(one, tuple) else one) or field(one, 0) for one in ids]

    def __getattr__(self, name):
        short = name.replace("nvmlDeviceGet", "")
        if short in self.without or short not in self.answers:
            raise AttributeError(name)
        answer = self.answers[short]

        def call(*arguments):
            self.asked.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


@pytest.fixture(autouse=True)
def plain_reference(monkeypatch):
    monkeypatch.setattr("ctypes.byref", lambda made: made)


def read(binding=None, **answers):
    """Return the GPU that the parent makes of what the child writes of a binding."""
    binding = binding or Binding(**answers)
    read_end, write_end = os.pipe()
    out = Out(write_end)
    lines = _nvml_lines.Lines()
    lines.feed(b'{"nvml": {"count": 1}}\n')
    os.set_blocking(read_end, False)
    nvml = Nvml(binding, out)
    nvml.gpu = 0
    _nvml_probe.read_gpu(nvml, out, 0)
    out.flush()
    os.close(write_end)
    while True:
        data = os.read(read_end, 65536)
        if not data:
            break
        lines.feed(data)
    os.close(read_end)
    (gpu,) = lines.gpus("not read")
    return gpu


def test_a_healthy_gpu_has_every_reading():
    gpu = read()
    missing = {name: found for name, found in gpu.readings.items() if not found.ok}
    assert set(missing) == {"fan_speed"}
    assert set(gpu.readings) == set(READINGS)
    assert (gpu.bus_id, gpu.lost, gpu.lost_code) == ("0000:65:00.0", False, None)
    assert gpu.get("gsp_version").value == "535.1"
    assert gpu.get("compute_capability").value == "9.0"
    json.dumps(gpu.as_dict())


#: What no code may become; each reading is one of another way to ask.
ASKED = {
    "ecc_uncorrected_volatile": "TotalEccErrors",
    "remap_failure": "RemappedRows",
    "temperature_margin": "MarginTemperature",
    "memory_used_mib": "MemoryInfo",
    "nvlink_states": "NvLinkState",
    "nvlink_errors": "NvLinkErrorCounter",
    "fabric_state": "GpuFabricInfoV",
    "sram_threshold_exceeded": "SramEccErrorStatus",
    "recovery_action": "FieldValues",
    "processes": "ComputeRunningProcesses_v3",
    "inforom_valid": "nvmlDeviceValidateInforom",
    "clock_reasons": "CurrentClocksEventReasons",
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ASKED)
def test_hlt_06_no_error_becomes_a_value(name, code):
    # Without an older call to fall back to, which is what these two codes ask for.
    older = ("CurrentClocksThrottleReasons", "ComputeRunningProcesses_v2", "ComputeRunningProcesses")
    gpu = read(Binding(without=(*older, "GpuFabricInfo"), **{ASKED[name]: NVMLError(code)}))
    found = gpu.get(name)
    wanted = {3: reading.UNSUPPORTED, 4: reading.NO_PERMISSION, 13: reading.NO_SYMBOL}.get(code, reading.FAILED)
    if name == "nvlink_states" and code == 2:
        assert found.value == []  # the end of the list: this GPU has no link
    elif name == "inforom_valid" and code == 14:
        assert (found.value, found.code) == (False, 14)
    else:
        # A call that fell back tells the code of the oldest call, which is not there.
        assert found.why == (reading.NO_SYMBOL if code == 25 and "binding" in found.note else wanted)
        assert found.code == code or (code == 25 and found.code == 13)
        assert not found.ok
    assert (gpu.lost, gpu.lost_code) == ((True, code) if code in (15, 16, 28) else (False, None))


@pytest.mark.parametrize("code", CODES)
def test_hlt_06_a_field_value_fails_alone(code):
    gpu = read(fields={230: field(230, 0, code=code)})
    assert not gpu.get("recovery_action").ok
    assert gpu.get("recovery_action").code == code
    assert gpu.get("recovery_action").why in (
        {3: [reading.UNSUPPORTED], 4: [reading.NO_PERMISSION], 13: [reading.NO_SYMBOL]}.get(code, [reading.FAILED])
    )
    assert gpu.get("tlimit_slowdown").ok
    assert gpu.lost == (code in (15, 16, 28))


@pytest.mark.parametrize("code", [4, 8, 11, 15, 999])
def test_hlt_03_a_gpu_without_handle_is_lost_and_asked_nothing(code):
    binding = Binding(HandleByIndex=NVMLError(code))
    gpu = read(binding)
    assert (gpu.lost, gpu.lost_code, binding.asked) == (True, code, ["nvmlDeviceGetHandleByIndex"])
    assert {found.why for found in gpu.readings.values()} == {reading.NOT_REACHED}


def test_hlt_03_nothing_is_asked_after_the_call_that_says_lost():
    binding = Binding(PowerUsage=NVMLError(15))
    gpu = read(binding)
    assert binding.asked[-1] == "nvmlDeviceGetPowerUsage"
    assert gpu.get("power_mw").why == reading.FAILED
    assert gpu.get("name").ok
    assert gpu.get("utilization_gpu").why == reading.NOT_REACHED
    assert "lost" in gpu.get("utilization_gpu").note


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (NVMLLibraryMismatchError("x"), reading.NO_SYMBOL),
        (UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte"), reading.FAILED),
        (AttributeError("x"), reading.FAILED),
        (TypeError("x"), reading.FAILED),
        (OSError("x"), reading.FAILED),
    ],
    ids=lambda item: type(item).__name__,
)
def test_hlt_01_errors_of_the_binding_are_caught_too(fault, why):
    gpu = read(Name=fault)
    assert gpu.get("name").why == why
    assert gpu.get("uuid").ok


def test_hlt_01_a_binding_without_the_function():
    gpu = read(Binding(without=("Name", "UnrepairableMemoryFlag_v1")))
    assert gpu.get("name").why == gpu.get("unrepairable_memory").why == reading.NO_SYMBOL
    assert gpu.get("uuid").ok


@pytest.mark.parametrize("text", [b"\xff\xfe", b"ok\x00rest"])
def test_bytes_are_text_or_a_failure(text):
    found = read(GspFirmwareVersion=text).get("gsp_version")
    assert (found.value, found.why) == (("ok", "") if text.startswith(b"ok") else (None, reading.FAILED))


@pytest.mark.parametrize("margin", [-1, -2, 0, 50])
def test_hlt_16_a_margin_is_signed(margin):
    kept = {194: field(194, -2, kind=5)}
    gpu = read(fields=kept, MarginTemperature=margin)
    assert (gpu.get("temperature_margin").value, gpu.get("tlimit_slowdown").value) == (margin, -2)


@pytest.mark.parametrize("value", [65534, 4294967294, 4294967295, -32768, math.nan, math.inf, None])
def test_hlt_16_what_cannot_be_is_a_failed_reading(value):
    gpu = read(fields={194: field(194, value, kind=1)}, MarginTemperature=value)
    assert gpu.get("temperature_margin").why == reading.FAILED
    assert gpu.get("tlimit_slowdown").why == reading.FAILED
    assert gpu.get("name").ok


IMPOSSIBLE = {
    "pstate": ("PerformanceState", 32),
    "power_mw": ("PowerUsage", 0xFFFFFFFF),
    "ecc_corrected_volatile": ("TotalEccErrors", 0xFFFFFFFFFFFFFFFF),
    "remap_failure": ("RemappedRows", (0, 0, 0, 7)),
    "pcie_width": ("CurrPcieLinkWidth", 0),
    "ecc_mode_current": ("EccMode", [2, 1]),
    "memory_used_mib": ("MemoryInfo", SimpleNamespace(total=1 << 30, used=2 << 30)),
    "nvlink_states": ("NvLinkState", 2),
    "nvlink_errors": ("NvLinkErrorCounter", 0xFFFFFFFFFFFFFFFF),
    "power_max_mw": ("PowerManagementLimitConstraints", [1000]),
    "fabric_state": ("GpuFabricInfoV", lambda _handle, out: None),
    "utilization_gpu": ("UtilizationRates", SimpleNamespace(gpu=101, memory=0)),
    "architecture": ("Architecture", 0xFFFFFFFF),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_value_that_cannot_be_is_a_failed_reading(name):
    function, value = IMPOSSIBLE[name]
    gpu = read(Binding(**{function: value}))
    assert gpu.get(name).why == reading.FAILED
    assert gpu.get("uuid").ok


@pytest.mark.parametrize("kind", range(7))
def test_field_values_are_read_by_their_declared_type(kind):
    assert read(fields={94: field(94, 7, kind=kind)}).get("pcie_replay").value == 7


def test_a_field_value_of_a_type_that_is_not_known():
    odd = field(94, 7)
    odd.valueType = 7
    assert read(fields={94: odd}).get("pcie_replay").why == reading.FAILED


def test_the_replay_counter_has_an_older_call():
    gpu = read(fields={94: field(94, 0, code=3)}, PcieReplayCounter=12)
    assert gpu.get("pcie_replay").value == 12


def test_hlt_02_reserved_memory_is_not_used_memory():
    gpu = read()
    assert [gpu.get(f"memory_{name}_mib").value for name in ("used", "reserved")] == [1, 599]
    assert gpu.get("memory_used_mib").note == ""


@pytest.mark.parametrize("code", [13, 25])
def test_hlt_02_the_older_call_is_marked(code):
    def old_only(_handle, version=None):
        if version:
            raise NVMLError(code)
        return SimpleNamespace(total=80 << 30, used=600 << 20)

    gpu = read(MemoryInfo=old_only)
    assert (gpu.get("memory_used_mib").value, gpu.get("memory_used_mib").note) == (600, "includes reserved")
    assert gpu.get("memory_reserved_mib").why == reading.NO_SYMBOL


def links(states):
    return lambda _handle, link: states[link] if link < len(states) else Binding.fail(2)


@pytest.mark.parametrize("states", [[1] * 12, [1] * 11 + [0], [], [0, 0]])
def test_hlt_10_the_list_of_links_ends_where_the_gpu_says(states):
    gpu = read(NvLinkState=links(states))
    assert gpu.get("nvlink_states").value == states
    if sum(states):
        assert gpu.get("nvlink_errors").value["replay"] == sum(link for link, state in enumerate(states) if state)
    else:
        assert gpu.get("nvlink_errors").why == gpu.get("nvlink5_errors").why == reading.UNSUPPORTED


def test_hlt_10_a_card_without_nvlink_is_unsupported_and_not_linkless():
    gpu = read(NvLinkState=NVMLError(3))
    assert gpu.get("nvlink_states").why == gpu.get("nvlink_errors").why == reading.UNSUPPORTED
    gpu = read(NvLinkState=lambda _handle, link: 1 if link < 2 else Binding.fail(999))
    assert gpu.get("nvlink_states").why == gpu.get("nvlink_errors").why == reading.FAILED


def test_counters_that_a_generation_lacks_are_left_out():
    gpu = read(NvLinkErrorCounter=NVMLError(3), fields={221: field(221, 5), 219: field(219, 0, code=3)})
    assert gpu.get("nvlink_errors").why == reading.UNSUPPORTED
    assert gpu.get("nvlink5_errors").value == {"recovery_failed": 0, "recovery_events": 0, "symbol_errors": 20}


def test_hlt_07_no_fan_hides_nothing():
    gpu = read(NumFans=0)
    assert (gpu.get("fan_count").value, gpu.get("fan_speed").why) == (0, reading.UNSUPPORTED)
    assert read(NumFans=2, FanSpeed_v2=lambda _handle, fan: 30 + fan).get("fan_speed").value == [30, 31]
    assert read(NumFans=NVMLError(3)).get("fan_speed").why == reading.UNSUPPORTED
    assert read(NumFans=NVMLError(13), FanSpeed=33).get("fan_speed").value == [33]
    assert read(NumFans=1, FanSpeed_v2=4294967295).get("fan_speed").why == reading.FAILED


def used(pid, memory):
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def test_processes_of_all_kinds_and_memory_that_is_not_told():
    gpu = read(
        ComputeRunningProcesses_v3=[used(7, 5 << 20), used(8, None)],
        GraphicsRunningProcesses_v3=NVMLError(3),
        MPSComputeRunningProcesses_v3=[used(9, 0xFFFFFFFFFFFFFFFF)],
    )
    assert [(one.pid, one.used_mib, one.kind) for one in gpu.processes] == [
        (7, 5, "compute"),
        (8, None, "compute"),
        (9, None, "mps"),
    ]
    assert gpu.get("processes").value == 3


def test_processes_that_cannot_be_listed_are_not_no_processes():
    for kind in ("Compute", "Graphics", "MPSCompute"):
        gpu = read(**{f"{kind}RunningProcesses_v3": NVMLError(999)})
        assert (gpu.get("processes").why, gpu.processes) == (reading.FAILED, ())


def test_a_list_of_processes_that_grows_is_asked_again():
    answers = [NVMLError(7), NVMLError(7), [used(7, 0)]]

    def grow(_handle):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert read(ComputeRunningProcesses_v3=grow).get("processes").value == 1


def test_hlt_13_mig_devices_have_readings_of_their_own():
    names = {"first": "NVIDIA H100 MIG 1g.10gb", "second": NVMLError(3)}

    def name(handle):
        answer = names.get(handle, "NVIDIA H100")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def memory(handle, version=None):
        return SimpleNamespace(total=(80 if handle == "handle" else 10) << 30, used=0, reserved=0)

    gpu = read(
        MigMode=[1, 1],
        Name=name,
        MemoryInfo=memory,
        MaxMigDeviceCount=7,
        MigDeviceHandleByIndex=lambda _handle, place: {1: "first", 4: "second"}.get(place) or Binding.fail(6),
        GpuInstanceId=1,
        ComputeInstanceId=0,
        UtilizationRates=NVMLError(3),
        RemappedRows=NVMLError(3),
        RetiredPages=NVMLError(3),
    )
    assert [(one.index, one.profile_name, one.memory_mib) for one in gpu.mig] == [(1, "1g.10gb", 10240), (4, "", 10240)]
    assert gpu.mig[1].readings["name"].why == reading.UNSUPPORTED
    assert gpu.get("mig_devices").value == 2
    for hidden in ("utilization_gpu", "remap_pending"):
        assert (gpu.get(hidden).why, gpu.get(hidden).note.endswith("MIG is on")) == (reading.UNSUPPORTED, True)
    assert "MIG" not in gpu.get("retired_sbe").note


def test_hlt_13_mig_devices_that_cannot_be_listed_are_not_none():
    gpu = read(MigMode=[1, 1], MaxMigDeviceCount=2, MigDeviceHandleByIndex=NVMLError(999))
    assert (gpu.get("mig_devices").why, gpu.mig) == (reading.FAILED, ())
    assert read(MigMode=NVMLError(3)).get("mig_devices").value == 0


def test_older_versions_of_the_fabrics_structure():
    def old(_handle, out):
        out.state, out.status, out.cliqueId, out.clusterUuid = 3, 0, 1, bytes(range(16))

    gpu = read(GpuFabricInfoV=NVMLError(13), GpuFabricInfo=old)
    assert gpu.get("fabric_state").value == 3
    assert gpu.get("fabric_cluster").value == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert gpu.get("fabric_health_mask").why == reading.NO_SYMBOL


def test_a_missing_address_is_not_the_end():
    assert read(PciInfo=NVMLError(999)).bus_id == ""
    assert read(PciInfo=SimpleNamespace(busId="0000000A:6B:00.0")).bus_id == "000a:6b:00.0"
    assert read(PciInfo=SimpleNamespace(busId="?")).get("name").ok
