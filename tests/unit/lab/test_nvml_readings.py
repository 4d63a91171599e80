"""Every reading of the simulated NVML library, through the real nvidia-ml-py, one process a scenario."""

from __future__ import annotations

import os

# One line a reading: state, the call, the answer.
READINGS = [
    ("board_part=900-X", "nvml.nvmlDeviceGetBoardPartNumber, gpu", "900-X"),
    ("vbios=96.1", "nvml.nvmlDeviceGetVbiosVersion, gpu", "96.1"),
    ("inforom_version=G1", "nvml.nvmlDeviceGetInforomImageVersion, gpu", "G1"),
    ("inforom_checksum=0x2c", "nvml.nvmlDeviceGetInforomConfigurationChecksum, gpu", 0x2C),
    ("inforom_valid=0", "nvml.nvmlDeviceValidateInforom, gpu", "error 14"),
    ("inforom_valid=1", "nvml.nvmlDeviceValidateInforom, gpu", None),
    ("gsp_mode=1,0", "nvml.nvmlDeviceGetGspFirmwareMode, gpu", [1, 0]),
    ("gsp_version=535.1", "nvml.nvmlDeviceGetGspFirmwareVersion, gpu", "535.1"),
    ("gsp_mode=1,1", "nvml.nvmlDeviceGetGspFirmwareVersion, gpu", "535.261.03"),
    ("architecture=9", "nvml.nvmlDeviceGetArchitecture, gpu", 9),
    ("compute_capability=10.3", "nvml.nvmlDeviceGetCudaComputeCapability, gpu", [10, 3]),
    ("numa_node=-1", "nvml.nvmlDeviceGetNumaNodeId, gpu", -1),
    ("minor=5", "nvml.nvmlDeviceGetMinorNumber, gpu", 5),
    ("persistence_mode=1", "nvml.nvmlDeviceGetPersistenceMode, gpu", 1),
    ("compute_mode=2", "nvml.nvmlDeviceGetComputeMode, gpu", 2),
    ("ecc_mode_pending=0", "nvml.nvmlDeviceGetEccMode, gpu", [1, 0]),
    ("ecc_mode_current=0", "nvml.nvmlDeviceGetTotalEccErrors, gpu, 1, 0", "error 3"),
    ("mig_mode_pending=1", "nvml.nvmlDeviceGetMigMode, gpu", [0, 1]),
    ("virtualization_mode=1", "nvml.nvmlDeviceGetVirtualizationMode, gpu", 1),
    ("pstate=8", "nvml.nvmlDeviceGetPerformanceState, gpu", 8),
    ("bar1_total_mib=256", "lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total >> 20", 256),
    ("bar1_used_mib=200", "lambda: nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Used >> 20", 200),
    ("ecc_uncorrected_volatile=7", "nvml.nvmlDeviceGetTotalEccErrors, gpu, 1, 0", 7),
    ("ecc_corrected_volatile=8", "nvml.nvmlDeviceGetTotalEccErrors, gpu, 0, 0", 8),
    ("ecc_uncorrected_aggregate=9", "nvml.nvmlDeviceGetTotalEccErrors, gpu, 1, 1", 9),
    ("ecc_corrected_aggregate=6", "nvml.nvmlDeviceGetTotalEccErrors, gpu, 0, 1", 6),
    ("ecc_corrected_aggregate=6", "nvml.nvmlDeviceGetMemoryErrorCounter, gpu, 0, 1, 2", 6),
    ("remap_correctable=1", "nvml.nvmlDeviceGetRemappedRows, gpu", [1, 0, 0, 0]),
    ("remap_uncorrectable=2", "nvml.nvmlDeviceGetRemappedRows, gpu", [0, 2, 0, 0]),
    ("remap_pending=1", "nvml.nvmlDeviceGetRemappedRows, gpu", [0, 0, 1, 0]),
    ("remap_failure=1", "nvml.nvmlDeviceGetRemappedRows, gpu", [0, 0, 0, 1]),
    ("remap_bank_none=3", "lambda: getattr(nvml.nvmlDeviceGetRowRemapperHistogram(gpu), 'none')", 3),
    ("remap_bank_max=9", "lambda: nvml.nvmlDeviceGetRowRemapperHistogram(gpu).max", 9),
    ("retired_dbe=3", "lambda: len(nvml.nvmlDeviceGetRetiredPages(gpu, 1))", 3),
    ("retired_sbe=0", "lambda: len(nvml.nvmlDeviceGetRetiredPages(gpu, 0))", 0),
    ("retired_dbe=2", "nvml.nvmlDeviceGetRetiredPages, gpu, 0", "error 3"),
    ("retired_pending=1", "nvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu", 1),
    ("pcie_gen=3", "nvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu", 3),
    ("pcie_gen_max=4", "nvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu", 4),
    ("pcie_gen_gpu_max=6", "nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration, gpu", 6),
    ("pcie_width=8", "nvml.nvmlDeviceGetCurrPcieLinkWidth, gpu", 8),
    ("pcie_width_max=4", "nvml.nvmlDeviceGetMaxPcieLinkWidth, gpu", 4),
    ("pcie_replay=77", "nvml.nvmlDeviceGetPcieReplayCounter, gpu", 77),
    ("nvlink_states=1,0", "nvml.nvmlDeviceGetNvLinkState, gpu, 1", 0),
    ("nvlink_states=1,0", "nvml.nvmlDeviceGetNvLinkState, gpu, 2", "error 2"),
    ("nvlink_states=", "nvml.nvmlDeviceGetNvLinkState, gpu, 0", "error 2"),
    ("nvlink_states=!unsupported", "nvml.nvmlDeviceGetNvLinkState, gpu, 0", "error 3"),
    ("nvlink_errors=1,2,3,4", "nvml.nvmlDeviceGetNvLinkErrorCounter, gpu, 0, 1", 2),
    ("nvlink_errors=1,2,3,4", "nvml.nvmlDeviceGetNvLinkErrorCounter, gpu, 1, 1", 0),
    ("temperature=92", "nvml.nvmlDeviceGetTemperature, gpu, 0", 92),
    ("temperature_margin=-1", "nvml.nvmlDeviceGetMarginTemperature, gpu", -1),
    ("temperature_slowdown=87", "nvml.nvmlDeviceGetTemperatureThreshold, gpu, 1", 87),
    ("temperature_mem_max=95", "nvml.nvmlDeviceGetTemperatureThreshold, gpu, 2", 95),
    ("fan_count=2", "nvml.nvmlDeviceGetNumFans, gpu", 2),
    ("fan_speed=30,31", "nvml.nvmlDeviceGetFanSpeed_v2, gpu, 1", 31),
    ("power_mw=100", "nvml.nvmlDeviceGetPowerUsage, gpu", 100),
    ("power_enforced_mw=300000", "nvml.nvmlDeviceGetEnforcedPowerLimit, gpu", 300000),
    ("power_limit_mw=500000", "nvml.nvmlDeviceGetPowerManagementLimit, gpu", 500000),
    ("power_default_mw=600000", "nvml.nvmlDeviceGetPowerManagementDefaultLimit, gpu", 600000),
    ("power_min_mw=100000", "nvml.nvmlDeviceGetPowerManagementLimitConstraints, gpu", [100000, 700000]),
    ("clock_reasons=0x48", "nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu", 0x48),
    ("clock_reasons=0x48", "nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu", 0x48),
    ("clock_sm_mhz=1200", "nvml.nvmlDeviceGetClockInfo, gpu, 1", 1200),
    ("clock_mem_mhz=1300", "nvml.nvmlDeviceGetClockInfo, gpu, 2", 1300),
    ("clock_sm_max_mhz=1400", "nvml.nvmlDeviceGetMaxClockInfo, gpu, 1", 1400),
    ("utilization_gpu=55", "lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu", 55),
]


# Each line is put behind the state for a moment, then what stands beside it is asked.
ONE_BY_ONE = """
state = os.environ["SIMGPU_STATE"]
original = open(state).read()
found = []
for line, question in json.loads(sys.argv[1]):
    open(state, "w").write(original + "gpu.0." + line + chr(10))
    found.append(eval(question))
open(state, "w").write(original)
show(found)
"""


def test_each_reading_is_what_the_state_says_and_can_be_refused(node):
    refused = [(line.split("=")[0] + "=!15", call) for line, call, *_rest in READINGS]
    answers = node().ask(
        ONE_BY_ONE, [(line, f"call({call})") for line, call in [case[:2] for case in READINGS] + refused]
    )
    for number, (line, call, expected) in enumerate(READINGS):
        assert answers[number] == expected, f"{line}: {call}"
        if not str(expected).startswith("error"):
            assert answers[number + len(READINGS)] == "error 15", f"{refused[number][0]}: {call}"


FIELDS = [
    ("ecc_corrected_volatile=5", 3, 5),
    ("ecc_uncorrected_volatile=6", 4, 6),
    ("memory_temperature=70", 82, 70),
    ("nvlink_count=12", 91, 12),
    ("pcie_replay=3", 94, 3),
    ("remap_correctable=1", 142, 1),
    ("remap_uncorrectable=2", 143, 2),
    ("remap_pending=1", 144, 1),
    ("remap_failure=1", 145, 1),
    ("pcie_correctable=4", 173, 4),
    ("pcie_bad_tlp=5", 176, 5),
    ("pcie_nonfatal=6", 179, 6),
    ("pcie_fatal=7", 180, 7),
    ("pcie_lcrc=8", 182, 8),
    ("tlimit_shutdown=-8", 193, -8),
    ("tlimit_slowdown=-2", 194, -2),
    ("tlimit_slowdown=65534", 194, 65534),
    ("tlimit_mem=-1", 195, -1),
    ("nvlink5_errors=1,2,3,4", 214, 1),
    ("nvlink5_errors=1,2,3,4", 215, 2),
    ("nvlink5_errors=1,2,3,4", 221, 3),
    ("nvlink5_errors=1,2,3,4", 219, 4),
    ("reset_status=1", 226, 1),
    ("recovery_action=7", 230, 7),
    ("clock_ns_sw_thermal=5000000000", 269, 5000000000),
    ("clock_ns_hw_thermal=6000000000", 270, 6000000000),
    ("clock_ns_hw_brake=1", 271, 1),
    ("field.174=9", 174, 9),
    ("field.999=-9", 999, -9),
    ("field.94.rc=999", 94, "error 999"),
    ("pcie_replay=!unsupported", 94, "error 3"),
]


def test_hlt_16_field_values_have_their_own_type_and_their_own_code(node):
    node = node()
    # the neighbours are read in the same call and stay readable
    answers = node.ask(ONE_BY_ONE, [(line, f"fields(gpu, {number}, 1, 1999)") for line, number, *_rest in FIELDS])
    for (line, number, expected), answer in zip(FIELDS, answers):
        assert answer == [expected, 1, "error 3"], f"{line}: field {number}"


def test_hlt_02_the_older_memory_call_counts_what_the_driver_reserves(node):
    node = node()
    node.set("gpu=0", "memory_used_mib=1", "memory_reserved_mib=599")
    used = "show([nvml.nvmlDeviceGetMemoryInfo(gpu, *version).used >> 20 for version in ([], [nvml.nvmlMemory_v2])])"
    assert node.ask(used) == [600, 1]


VERSIONED = """
def wrong(name, structure):
    structure.version = 0x09000001
    return nvml._nvmlGetFunctionPointer(name)(gpu, nvml.byref(structure))

show([wrong(*case) for case in (
    ("nvmlDeviceGetMemoryInfo_v2", nvml.c_nvmlMemory_v2_t()),
    ("nvmlDeviceGetMarginTemperature", nvml.c_nvmlMarginTemperature_v1_t()),
    ("nvmlDeviceGetSramEccErrorStatus", nvml.c_nvmlEccSramErrorStatus_v1_t()),
    ("nvmlDeviceGetGpuFabricInfoV", nvml.c_nvmlGpuFabricInfo_v2_t()),
    ("nvmlDeviceGetTemperatureV", nvml.c_nvmlTemperature_v1_t()),
    ("nvmlDeviceGetRepairStatus", nvml.c_nvmlRepairStatus_t()),
    ("nvmlDeviceGetUnrepairableMemoryFlag_v1", nvml.c_nvmlUnrepairableMemory_v1_t()),
)])
"""


def test_a_wrong_version_word_is_refused_by_every_versioned_structure(node):
    assert node("590.48.01").ask(VERSIONED) == [25] * 7


def test_the_newest_calls_read_their_values(node):
    node = node("590.48.01", model="b200")
    node.set(
        "gpu=0",
        "repair_tpc_pending=1",
        "unrepairable_memory=1",
        "temperature=-5",
        "sram_threshold_exceeded=1",
        "nvml.root=1",
    )
    assert node.ask(
        "status = nvml.c_nvmlEccSramErrorStatus_v1_t()\n"
        "nvml.nvmlDeviceGetSramEccErrorStatus(gpu, nvml.byref(status))\n"
        "show([call(nvml.nvmlDeviceGetRepairStatus, gpu), call(nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1, gpu),\n"
        "      call(nvml.nvmlDeviceGetTemperatureV1, gpu, 0), status.bThresholdExceeded])"
    ) == [[0, 1], 1, -5, 1]


def test_what_needs_root_says_so(node):
    node = node()
    node.set("nvml.root=0")
    status = "show(call(nvml.nvmlDeviceGetSramEccErrorStatus, gpu, nvml.byref(nvml.c_nvmlEccSramErrorStatus_v1_t())))"
    assert node.ask(status) == "error 4"
    assert node.ask("show(call(nvml.nvmlDeviceSetPowerManagementLimit, gpu, 400000))") == "error 4"


def test_the_fabric_in_each_version_of_its_structure(node):
    node = node(model="gb200")
    node.set("gpu=0", "fabric_state=2", "fabric_status=999", "fabric_clique=7", "fabric_health_mask=0x155")
    node.set("gpu=0", "fabric_cluster=00112233-4455-6677-8899-aabbccddeeff", "fabric_health_summary=2")
    program = """
found = []
for function, structure in (("GpuFabricInfo", "c_nvmlGpuFabricInfo_t"), ("GpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
                            ("GpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t")):
    info = getattr(nvml, structure)()
    getattr(nvml, "nvmlDeviceGet" + function)(gpu, nvml.byref(info))
    later = [getattr(info, name, None) for name in ("healthMask", "healthSummary")]
    found.append([bytes(info.clusterUuid).hex(), info.status, info.cliqueId, info.state, *later])
show(found)
"""
    common = ["00112233445566778899aabbccddeeff", 999, 7, 2]
    assert node.ask(program) == [[*common, None, None], [*common, 0x155, None], [*common, 0x155, 2]]


PROCESSES = """
found = [getattr(nvml, "nvmlDeviceGet%sRunningProcesses" % kind)(gpu) for kind in ("Compute", "Graphics", "MPSCompute")]
show([[[one.pid, one.usedGpuMemory and one.usedGpuMemory >> 20] for one in kind] for kind in found])
"""


def test_processes_of_each_kind_and_one_whose_memory_is_not_known(node):
    node = node()
    assert node.ask(PROCESSES) == [[], [], []]
    node.set("gpu=0", "processes=10:500:compute,11::compute,12:30:graphics,13:40:mps,14:0:compute")
    assert node.ask(PROCESSES) == [[[10, 500], [11, None], [14, 0]], [[12, 30]], [[13, 40]]]
    many = ",".join(f"{pid}:1:compute" for pid in range(1000, 1064))
    node.set("gpu=0", f"processes={many}")
    assert len(node.ask(PROCESSES)[0]) == 64
    node.set("gpu=0", "processes=!unsupported")
    assert node.ask("show(call(nvml.nvmlDeviceGetComputeRunningProcesses, gpu))") == "error 3"


MIG = """
found = []
for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
    try:
        mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
    except nvml.NVMLError as error:
        found.append("error %d" % error.value)
        continue
    memory = nvml.nvmlDeviceGetMemoryInfo(mig, nvml.nvmlMemory_v2)
    found.append([call(nvml.nvmlDeviceGetUUID, mig), call(nvml.nvmlDeviceGetName, mig),
                  memory.total >> 20, memory.used >> 20,
                  call(nvml.nvmlDeviceIsMigDeviceHandle, mig), call(nvml.nvmlDeviceGetGpuInstanceId, mig),
                  nvml.nvmlDeviceGetAttributes(mig).gpuInstanceSliceCount,
                  nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)),
                  [one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(mig)],
                  call(nvml.nvmlDeviceGetPowerUsage, mig),
                  nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(mig)))])
parent = [call(nvml.nvmlDeviceIsMigDeviceHandle, gpu), call(nvml.nvmlDeviceGetUtilizationRates, gpu),
          call(nvml.nvmlDeviceGetRemappedRows, gpu), *fields(gpu, 144, 94)]
show([found, parent])
"""


def test_hlt_13_mig_devices_and_what_their_parent_no_longer_answers(node):
    node = node(model="a100")
    none = node.ask(
        "show([call(nvml.nvmlDeviceGetMaxMigDeviceCount, gpu), call(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0)])"
    )
    assert none == [0, "error 3"]
    node.set("gpu=0", "mig_mode_current=1", "mig_mode_pending=1", "mig=MIG-a:3g.40gb:40192,MIG-b:1g.10gb:9728")
    node.set("gpu.0.mig.1.memory_used_mib=77", "gpu.0.mig.1.processes=42:70:compute")
    found, parent = node.ask(MIG)
    name = "NVIDIA A100-SXM4-80GB MIG"
    assert found[0] == ["MIG-a", f"{name} 3g.40gb", 40192, 0, 1, 1, 3, 0, [], "error 2", 0]
    assert found[1] == ["MIG-b", f"{name} 1g.10gb", 9728, 77, 1, 2, 1, 0, [42], "error 2", 1]
    assert found[2:] == ["error 6"] * 5
    assert parent == [0, "error 3", "error 3", "error 3", 0]


def test_a_change_is_seen_at_once_and_an_unchanged_file_is_not_parsed_again(node):
    node = node(gpus=8)
    os.utime(node.state, ns=(10**18, 10**18))
    program = """
import time
cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
best = 9.0
for _ in range(5):
    start = time.perf_counter()
    for card in cards:
        for _ in range(100):
            nvml.nvmlDeviceGetTemperature(card, 0)
    best = min(best, time.perf_counter() - start)
seen = []
for value in (50, 51, 52, 53, 54):
    open(os.environ["SIMGPU_STATE"], "a").write("gpu.0.temperature=%d\\n" % value)
    seen.append(nvml.nvmlDeviceGetTemperature(cards[0], 0))
state = open(os.environ["SIMGPU_STATE"], "r+b")
for digit in b"6789":
    state.seek(-2, 2)
    state.write(bytes([digit]))
    state.flush()
    seen.append(nvml.nvmlDeviceGetTemperature(cards[0], 0))
show([best, seen])
"""
    best, seen = node.ask(program)
    assert seen == [50, 51, 52, 53, 54, 56, 57, 58, 59], "also without a new size or a new second"
    assert best < 0.05, f"8 cards with 100 calls took {best * 1000:.0f} ms"
