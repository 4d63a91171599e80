# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What every reading of a GPU may hold: type and bounds. A value outside was misread, and no verdict rests on it.

The bounds are those of sense, not of health: a temperature of 110 is hot, one of 65534 is a signed number read wrongly.
"""

from __future__ import annotations

import math
from typing import Any, Callable

_BIG = 2**63


def _int(low: int, high: int) -> Callable[[Any], str]:
    def problem(value: Any) -> str:
        if not isinstance(value, int) or isinstance(value, bool):
            return f"{_short(value)} is no whole number"
        return "" if low <= value <= high else f"{value} is not within {low} and {high}"

    return problem


def _number(low: float, high: float) -> Callable[[Any], str]:
    def problem(value: Any) -> str:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            return f"{_short(value)} is no number"
        return "" if low <= value <= high else f"{value} is not within {low:g} and {high:g}"

    return problem


def _flag(value: Any) -> str:
    return (
        "" if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)) else f"{_short(value)} is no flag"
    )


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else f"{_short(value)} is no text"


def _list_of(item: Callable[[Any], str]) -> Callable[[Any], str]:
    def problem(value: Any) -> str:
        if not isinstance(value, (list, tuple)):
            return f"{_short(value)} is no list"
        return next((text for text in map(item, value) if text), "")

    return problem


def _counts(*names: str) -> Callable[[Any], str]:
    def problem(value: Any) -> str:
        if not isinstance(value, dict) or set(value) - set(names) or not value:
            return f"{_short(value)} is no set of the counters {', '.join(names)}"
        return next((text for text in map(_int(0, _BIG), value.values()) if text), "")

    return problem


def _mode(value: Any) -> str:
    return "" if isinstance(value, dict) and "enabled" in value else f"{_short(value)} is no mode"


def _short(value: Any) -> str:
    return repr(value)[:60]


_COUNT, _MIB, _WATT = _int(0, _BIG), _int(0, 2**24), _int(0, 20_000_000)
_DEGREES, _SIGNED = _int(-60, 200), _int(-150, 200)

#: Name of a reading to a function that says what is wrong with its value; empty when nothing is.
READINGS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(
        ("name", "uuid", "serial", "board_part", "vbios", "inforom_version", "gsp_version", "compute_capability"), _text
    ),
    **dict.fromkeys(("fabric_cluster",), _text),
    **dict.fromkeys(("minor", "architecture", "virtualization_mode", "inforom_checksum"), _COUNT),
    "numa_node": _int(-1, 2**32),
    "gsp_mode": _mode,
    **dict.fromkeys(("inforom_valid", "sram_threshold_exceeded", "remap_pending", "remap_failure"), _flag),
    **dict.fromkeys(("retired_pending", "repair_channel_pending", "repair_tpc_pending", "unrepairable_memory"), _flag),
    **dict.fromkeys(("persistence_mode", "ecc_mode_current", "ecc_mode_pending"), _flag),
    **dict.fromkeys(("mig_mode_current", "mig_mode_pending"), _flag),
    "compute_mode": _int(0, 3),
    # 32 is NVML's "unknown", which is not a state to judge by.
    "pstate": _int(0, 15),
    **dict.fromkeys(
        ("memory_total_mib", "memory_used_mib", "memory_reserved_mib", "bar1_total_mib", "bar1_used_mib"), _MIB
    ),
    **dict.fromkeys(("ecc_uncorrected_volatile", "ecc_corrected_volatile"), _COUNT),
    **dict.fromkeys(("ecc_uncorrected_aggregate", "ecc_corrected_aggregate"), _COUNT),
    **dict.fromkeys(("remap_correctable", "remap_uncorrectable"), _COUNT),
    **dict.fromkeys(
        ("remap_bank_max", "remap_bank_high", "remap_bank_partial", "remap_bank_low", "remap_bank_none"), _COUNT
    ),
    **dict.fromkeys(("retired_sbe", "retired_dbe", "recovery_action", "reset_status"), _COUNT),
    **dict.fromkeys(("pcie_gen", "pcie_gen_max", "pcie_gen_gpu_max"), _int(1, 10)),
    **dict.fromkeys(("pcie_width", "pcie_width_max"), _int(1, 64)),
    **dict.fromkeys(("pcie_replay", "pcie_nonfatal", "pcie_fatal", "pcie_correctable"), _COUNT),
    **dict.fromkeys(("pcie_bad_tlp", "pcie_lcrc"), _COUNT),
    "nvlink_states": _list_of(_flag),
    "nvlink_count": _int(0, 1024),
    "nvlink_errors": _counts("replay", "recovery", "crc_flit", "crc_data"),
    "nvlink5_errors": _counts("recovery_failed", "recovery_events", "symbol_errors", "effective_errors"),
    "fabric_state": _int(0, 3),
    **dict.fromkeys(("fabric_status", "fabric_clique", "fabric_health_mask"), _COUNT),
    **dict.fromkeys(("temperature", "memory_temperature", "temperature_slowdown", "temperature_mem_max"), _DEGREES),
    **dict.fromkeys(("temperature_margin", "tlimit_slowdown", "tlimit_shutdown", "tlimit_mem"), _SIGNED),
    **dict.fromkeys(("power_mw", "power_limit_mw", "power_enforced_mw", "power_default_mw"), _WATT),
    **dict.fromkeys(("power_min_mw", "power_max_mw"), _WATT),
    "fan_count": _int(0, 64),
    "fan_speed": _list_of(_int(0, 300)),
    "clock_reasons": _COUNT,
    **dict.fromkeys(("clock_ns_sw_thermal", "clock_ns_hw_thermal", "clock_ns_hw_brake"), _COUNT),
    **dict.fromkeys(("clock_sm_mhz", "clock_mem_mhz", "clock_sm_max_mhz"), _int(0, 100_000)),
    **dict.fromkeys(("utilization_gpu", "utilization_memory"), _number(0, 100)),
    **dict.fromkeys(("processes", "mig_devices"), _int(0, 1_000_000)),
}


def misread(name: str, value: Any) -> str:
    """Return why a value cannot be that of a reading; empty when it can.

    Args:
        name: The reading. One that is not known here cannot be vouched for.
        value: What was read.
    """
    problem = READINGS.get(name)
    return f"no reading is called {name}" if problem is None else problem(value)
