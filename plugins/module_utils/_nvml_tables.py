# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the child asks NVML for, and what an answer can be: tables alone, for ``_nvml_probe``.

The texts of ``_nvml_tables``, ``_nvml_calls``, ``_nvml_card`` and ``_nvml_probe`` run in the child, which has the
standard library and pynvml and nothing of this collection: they import only each other.
"""

from __future__ import annotations

from typing import Any

#: The child's name in /proc, by which later runs know one that could not be killed; 15 characters at most.
COMM = "gpu-node-nvml"

_CODE_TEXTS = """
    success; not initialised; invalid argument; not supported; insufficient permissions; already initialised;
    not found; insufficient size; insufficient external power; driver not loaded; timeout; interrupt request issue;
    library not found; function not found; corrupted infoROM; GPU is lost; GPU requires a reset;
    blocked by the operating system; versions of library and driver differ; GPU is in use; insufficient memory;
    no data; ECC not supported with this vGPU; insufficient resources; frequency not supported;
    argument version mismatch; deprecated; not ready; GPU not found; invalid state
"""
#: What NVML's codes mean. Its own texts would take one more call into a library that may hang.
CODES = {**dict(enumerate(text.strip() for text in _CODE_TEXTS.split(";"))), 999: "unknown error"}
#: Codes that are no failure of the GPU. Every other one is.
WHY = {3: "unsupported", 4: "no_permission", 13: "no_symbol"}
#: After these a GPU is asked nothing more: lost, reset required, not found.
LOST = (15, 16, 28)
#: What these codes of the initialisation mean for NVML as a whole.
STATES = {9: "not_loaded", 12: "absent", 18: "mismatch"}

#: Readings that one call gives, in its order, with arguments after the handle. The modes come first, since MIG
#: explains what the rest lacks.
ROWS: tuple[tuple[Any, ...], ...] = (
    ("mig_mode_current mig_mode_pending", "nvmlDeviceGetMigMode"),
    ("name", "nvmlDeviceGetName"),
    ("uuid", "nvmlDeviceGetUUID"),
    ("serial", "nvmlDeviceGetSerial"),
    ("minor", "nvmlDeviceGetMinorNumber"),
    ("board_part", "nvmlDeviceGetBoardPartNumber"),
    ("vbios", "nvmlDeviceGetVbiosVersion"),
    ("inforom_version", "nvmlDeviceGetInforomImageVersion"),
    ("inforom_checksum", "nvmlDeviceGetInforomConfigurationChecksum"),
    ("gsp_version", "nvmlDeviceGetGspFirmwareVersion"),
    ("architecture", "nvmlDeviceGetArchitecture"),
    ("numa_node", "nvmlDeviceGetNumaNodeId"),
    ("persistence_mode", "nvmlDeviceGetPersistenceMode"),
    ("compute_mode", "nvmlDeviceGetComputeMode"),
    ("ecc_mode_current ecc_mode_pending", "nvmlDeviceGetEccMode"),
    ("virtualization_mode", "nvmlDeviceGetVirtualizationMode"),
    ("pstate", "nvmlDeviceGetPerformanceState"),
    ("ecc_uncorrected_volatile", "nvmlDeviceGetTotalEccErrors", 1, 0),
    ("ecc_corrected_volatile", "nvmlDeviceGetTotalEccErrors", 0, 0),
    ("ecc_uncorrected_aggregate", "nvmlDeviceGetTotalEccErrors", 1, 1),
    ("ecc_corrected_aggregate", "nvmlDeviceGetTotalEccErrors", 0, 1),
    ("remap_correctable remap_uncorrectable remap_pending remap_failure", "nvmlDeviceGetRemappedRows"),
    ("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    ("repair_channel_pending repair_tpc_pending", "nvmlDeviceGetRepairStatus"),
    ("unrepairable_memory", "nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    ("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"),
    ("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    ("pcie_gen_gpu_max", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    ("temperature_margin", "nvmlDeviceGetMarginTemperature"),
    ("temperature_slowdown", "nvmlDeviceGetTemperatureThreshold", 1),
    ("temperature_mem_max", "nvmlDeviceGetTemperatureThreshold", 2),
    ("power_mw", "nvmlDeviceGetPowerUsage"),
    ("power_limit_mw", "nvmlDeviceGetPowerManagementLimit"),
    ("power_enforced_mw", "nvmlDeviceGetEnforcedPowerLimit"),
    ("power_default_mw", "nvmlDeviceGetPowerManagementDefaultLimit"),
    ("power_min_mw power_max_mw", "nvmlDeviceGetPowerManagementLimitConstraints"),
    ("clock_sm_mhz", "nvmlDeviceGetClockInfo", 1),
    ("clock_mem_mhz", "nvmlDeviceGetClockInfo", 2),
    ("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", 1),
)

#: Readings that one call for many field values gives, by NVML's field id.
FIELDS = {
    "memory_temperature": 82, "nvlink_count": 91, "pcie_replay": 94, "pcie_correctable": 173, "pcie_bad_tlp": 176,
    "pcie_nonfatal": 179, "pcie_fatal": 180, "pcie_lcrc": 182, "tlimit_shutdown": 193, "tlimit_slowdown": 194,
    "tlimit_mem": 195, "reset_status": 226, "recovery_action": 230, "clock_ns_sw_thermal": 269,
    "clock_ns_hw_thermal": 270, "clock_ns_hw_brake": 271,
}  # fmt: skip
#: Counters of a link: before NVLink 5 by number, from then on as field values with the link as their scope.
NVLINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}
NVLINK5_ERRORS = {"recovery_failed": 214, "recovery_events": 215, "symbol_errors": 221, "effective_errors": 219}


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


#: Readings that are texts.
TEXTS = frozenset(
    words("name uuid serial board_part vbios inforom_version gsp_version compute_capability fabric_cluster")
)
#: Readings that NVML tells as 0 or 1 and that are true or false here.
FLAGS = frozenset(
    words(
        "remap_pending remap_failure retired_pending repair_channel_pending repair_tpc_pending unrepairable_memory "
        "sram_threshold_exceeded"
    )
)
#: Readings that a GPU with MIG devices does not have, though it has them without.
HIDDEN_BY_MIG = ("remap_", "utilization_", "ecc_", "sram_", "nvlink")
_DEGREES = (
    "temperature temperature_margin tlimit_slowdown tlimit_shutdown tlimit_mem memory_temperature "
    "temperature_slowdown temperature_mem_max"
)
_MILLIWATTS = "power_mw power_limit_mw power_enforced_mw power_default_mw power_min_mw power_max_mw"
_SWITCHES = "persistence_mode ecc_mode_current ecc_mode_pending mig_mode_current mig_mode_pending"
#: What a number can be: what NVML's header defines, or bounds far outside of what hardware does.
RANGES = {
    **dict.fromkeys(words(_SWITCHES), (0, 1)),
    **dict.fromkeys(words(_DEGREES), (-100, 200)),
    **dict.fromkeys(words(_MILLIWATTS), (0, 10_000_000)),
    **dict.fromkeys(words("clock_sm_mhz clock_mem_mhz clock_sm_max_mhz"), (0, 20_000)),
    **dict.fromkeys(words("pcie_gen pcie_gen_max pcie_gen_gpu_max"), (1, 10)),
    **dict.fromkeys(words("pcie_width pcie_width_max"), (1, 32)),
    **dict.fromkeys(words("utilization_gpu utilization_memory"), (0, 100)),
    **dict.fromkeys(FLAGS, (0, 1)),
    "compute_mode": (0, 3),
    "pstate": (0, 15),
    "numa_node": (-1, 4095),
    "fan_count": (0, 64),
    "nvlink_count": (0, 1000),
    "inforom_checksum": (0, 0xFFFFFFFF),
    "fabric_state": (0, 3),
    "fabric_clique": (0, 0xFFFFFFFF),
    "memory_total_mib": (1, 1 << 24),
    **dict.fromkeys(words("memory_used_mib memory_reserved_mib bar1_total_mib bar1_used_mib"), (0, 1 << 24)),
}
#: All bits set: what a bus answers when nobody is there, and NVML's own "not available".
ALL_ONES = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
