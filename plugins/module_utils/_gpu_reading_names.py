# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The names of a GPU's readings: in a snapshot, in the state file of the simulated GPUs and in profiles."""

from __future__ import annotations

_AREAS = {
    "identity": """
        name uuid serial minor board_part vbios inforom_version inforom_checksum inforom_valid gsp_mode gsp_version
        architecture compute_capability numa_node
    """,
    "modes": """
        persistence_mode compute_mode ecc_mode_current ecc_mode_pending mig_mode_current mig_mode_pending
        virtualization_mode pstate
    """,
    "memory": """
        memory_total_mib memory_used_mib memory_reserved_mib bar1_total_mib bar1_used_mib ecc_uncorrected_volatile
        ecc_corrected_volatile ecc_uncorrected_aggregate ecc_corrected_aggregate sram_threshold_exceeded
        remap_correctable remap_uncorrectable remap_pending remap_failure remap_bank_max remap_bank_high
        remap_bank_partial remap_bank_low remap_bank_none retired_sbe retired_dbe retired_pending
        repair_channel_pending repair_tpc_pending unrepairable_memory recovery_action reset_status
    """,
    "pcie": """
        pcie_gen pcie_gen_max pcie_gen_gpu_max pcie_width pcie_width_max pcie_replay pcie_nonfatal pcie_fatal
        pcie_correctable pcie_bad_tlp pcie_lcrc
    """,
    "nvlink": """
        nvlink_states nvlink_count nvlink_errors nvlink5_errors fabric_state fabric_status fabric_clique
        fabric_cluster fabric_health_mask
    """,
    "heat_and_power": """
        temperature temperature_margin tlimit_slowdown tlimit_shutdown tlimit_mem memory_temperature
        temperature_slowdown temperature_mem_max power_mw power_limit_mw power_enforced_mw power_default_mw
        power_min_mw power_max_mw fan_count fan_speed clock_reasons clock_ns_sw_thermal clock_ns_hw_thermal
        clock_ns_hw_brake clock_sm_mhz clock_mem_mhz clock_sm_max_mhz utilization_gpu utilization_memory
    """,
    # How many there are, or why they could not be listed; the lists themselves are Gpu.processes and Gpu.mig.
    "occupants": "processes mig_devices",
}
#: By area; the units are in the names.
NAMES = {area: tuple(text.split()) for area, text in _AREAS.items()}
#: All of them, in order.
READINGS = tuple(name for names in NAMES.values() for name in names)
