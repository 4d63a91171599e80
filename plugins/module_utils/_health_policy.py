# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Every threshold of the GPU health checks: its default, unit, range and where the default comes from. Nowhere else.

``Policy.from_mapping`` takes what an operator wrote in variables and names every mistake in it at once.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping

#: Sources that several thresholds share.
OURS = "this collection"
DCGM = "NVIDIA/DCGM 72fa3fe"


class PolicyError(ValueError):
    """A policy that cannot be used; the text names every mistake and what is allowed."""


def _field(default: Any, **about: Any) -> Any:
    # Its callers stand in a dataclass, which the linter cannot see from here.
    return dataclasses.field(default=default, metadata=about)  # pylint: disable=invalid-field-call


def _number(default: float, low: float, high: float, unit: str, about: str, source: str = OURS) -> Any:
    kind = "int" if isinstance(default, int) else "float"
    return _field(default, kind=kind, low=low, high=high, unit=unit, about=about, source=source)


def _choice(default: str, choices: tuple[str, ...], about: str, source: str = OURS) -> Any:
    return _field(default, kind="str", choices=choices, unit="", about=about, source=source)


def _flag(default: bool, about: str, source: str = OURS) -> Any:
    return _field(default, kind="bool", unit="", about=about, source=source)


def _names(about: str, source: str = OURS) -> Any:
    return _field((), kind="list", unit="", about=about, source=source)


@dataclasses.dataclass(frozen=True)
class Policy:
    """Thresholds and choices of the checks; the metadata of each field is its documentation."""

    expect_gpus: bool = _flag(True, "the node must have GPUs: without any, it fails instead of having nothing to judge")
    expected_gpus: int = _number(
        -1, -1, 64, "GPUs", "how many the node must have; -1: as many as its profile says, else as PCI shows"
    )
    unknown_model: str = _choice("warn", ("warn", "fail"), "verdict on a GPU that no profile describes")
    strict_pending: bool = _flag(False, "what a reset will mend (row remap, page retirement, repair) fails, not warns")
    # Software
    required_units: tuple[str, ...] = _names("systemd units that must be active, beside those that the profile needs")
    boot_grace_s: int = _number(300, 0, 3600, "s", "time after the boot in which a unit may still start", "NVSentinel")
    unit_restarts: int = _number(3, 1, 100, "", "restarts of a unit within unit_window_s that fail", "NVSentinel")
    unit_window_s: int = _number(600, 60, 86400, "s", "window of unit_restarts", "NVSentinel")
    # Memory
    ecc_corrected_max: int = _number(
        20_000_000, 1, 10**12, "", "corrected memory errors since the driver was loaded that warn", "Azure NHC 0e0a1ac"
    )
    remapped_rows_max: int = _number(512, 1, 100_000, "rows", "rows remapped for uncorrectable errors that warn", DCGM)
    retired_pages_max: int = _number(63, 1, 10_000, "pages", "retired pages that fail", DCGM)
    retired_double_bit_max: int = _number(15, 1, 10_000, "pages", "pages retired for double-bit errors that warn", DCGM)
    memory_total_percent: float = _number(
        95.0, 1.0, 100.0, "% of the profile", "less memory than this fails; drivers differ by some per cent"
    )
    memory_idle_mib: int = _number(512, 0, 10**7, "MiB", "memory in use without any process that warns")
    memory_warn_percent: float = _number(80.0, 1.0, 100.0, "%", "memory in use that warns; 100 turns it off")
    memory_high_percent: float = _number(90.0, 1.0, 100.0, "%", "memory in use that warns as nearly full; 100 = off")
    bar1_used_percent: float = _number(95.0, 1.0, 100.0, "%", "use of the BAR1 window that warns")
    # PCIe and NVLink
    replay_factor: float = _number(
        1.0, 0.1, 1000.0, "", "factor on the PCIe replays a minute that a bit error rate of 1e-12 gives", DCGM + " 4.6"
    )
    aer_correctable_per_minute: float = _number(10.0, 0.0, 10**6, "/min", "corrected PCIe errors (AER) that warn")
    nvlink_replays_per_minute: float = _number(1.0, 0.0, 10**6, "/min", "NVLink replays or recoveries that fail", DCGM)
    nvlink_crc_warn_per_minute: float = _number(1.0, 0.0, 10**6, "/min", "NVLink CRC errors that warn", DCGM)
    nvlink_crc_fail_per_minute: float = _number(
        6000.0, 0.0, 10**9, "/min", "NVLink CRC errors that fail (100 a second)", DCGM
    )
    nvlink5_symbols_per_minute: float = _number(
        1000.0, 0.0, 10**12, "/min", "symbol errors of NVLink 5 that warn; forward error correction mends them"
    )
    # Clocks, heat, power
    slowdown_warn_percent: float = _number(1.0, 0.0, 100.0, "% of the time", "share of slowed-down time that warns")
    slowdown_fail_percent: float = _number(
        10.0, 0.0, 100.0, "% of the time", "share of time slowed down by hardware that fails"
    )
    margin_warn_c: int = _number(5, 0, 50, "°C", "distance to the slowdown temperature that warns")
    power_limit_percent: float = _number(
        1.0, 0.0, 50.0, "%", "how far the enforced power limit may lie from the wanted one"
    )
    power_limit_w: int = _number(
        0, -1, 20_000, "W", "wanted power limit; 0: the profile's; -1: what is set on each card"
    )
    # Modes and processes
    persistence: str = _choice("warn", ("warn", "fail", "ignore"), "verdict on persistence mode being off")
    processes: str = _choice(
        "any", ("any", "listed", "none"), "processes that may use the GPUs: any, only units of allowed_units, or none"
    )
    allowed_units: tuple[str, ...] = _names("systemd units whose processes may use the GPUs (processes: listed)")
    # Time
    window_s: int = _number(600, 60, 86400, "s", "window over which rates of counters are taken")
    min_span_s: int = _number(30, 1, 3600, "s", "shortest distance of two samples that gives a rate")
    max_gap_s: int = _number(3600, 60, 604800, "s", "longest distance of two samples that gives a rate")
    history_samples: int = _number(30, 2, 500, "", "samples that are kept")
    confirm_bad: int = _number(3, 1, 100, "samples", "bad samples among confirm_window that make a damped check fail")
    confirm_window: int = _number(5, 1, 100, "samples", "samples that a damped check looks back on")
    dstate_bad: int = _number(
        5, 1, 100, "samples", "samples with processes stuck in the driver that fail", "gpud 4a8de33"
    )
    dstate_window: int = _number(5, 1, 100, "samples", "samples looked back on for stuck processes", "gpud 4a8de33")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | None) -> Policy:
        """Return the defaults with an operator's values over them.

        Args:
            values: Field names to values; None or empty means the defaults.

        Raises:
            PolicyError: for an unknown name, a value of the wrong type or out of range, or values that contradict
                each other. All mistakes are named.
        """
        if values is not None and not isinstance(values, Mapping):
            raise PolicyError(f"the health policy is a dictionary of thresholds, not {type(values).__name__}")
        known = {field.name: field for field in dataclasses.fields(cls)}
        problems, wanted = [], {}
        for name, value in (values or {}).items():
            if name not in known:
                problems.append(f"{name!r} is no threshold; known: {', '.join(sorted(known))}")
                continue
            problem, clean = _checked(known[name], value)
            problems += [problem] if problem else []
            wanted[name] = clean
        policy = cls() if problems else cls(**wanted)
        problems += [] if problems else policy.contradictions()
        if problems:
            raise PolicyError("health policy: " + "; ".join(problems))
        return policy

    def contradictions(self) -> list[str]:
        """Return which values do not go together."""
        pairs = (
            ("confirm_bad", "confirm_window"),
            ("dstate_bad", "dstate_window"),
            ("memory_warn_percent", "memory_high_percent"),
            ("slowdown_warn_percent", "slowdown_fail_percent"),
            ("nvlink_crc_warn_per_minute", "nvlink_crc_fail_per_minute"),
            ("min_span_s", "window_s"),
            ("window_s", "max_gap_s"),
        )
        found = [
            f"{low} ({getattr(self, low)}) is above {high} ({getattr(self, high)}); it may at most be equal"
            for low, high in pairs
            if getattr(self, low) > getattr(self, high)
        ]
        if self.processes == "listed" and not self.allowed_units:
            found.append("processes is 'listed', but allowed_units is empty: name the units, or say 'none'")
        return found


def _checked(field: Any, value: Any) -> tuple[str, Any]:
    """Return what is wrong with a value (empty when nothing is), and the value in its own type."""
    meta, name, kind = field.metadata, field.name, field.metadata["kind"]
    if kind == "bool":
        return ("", value) if isinstance(value, bool) else (f"{name} is {value!r}; allowed is true or false", None)
    if kind == "str":
        allowed = ", ".join(meta["choices"])
        return ("", value) if value in meta["choices"] else (f"{name} is {value!r}; allowed is one of {allowed}", None)
    if kind == "list":
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) and item for item in value):
            return "", tuple(value)
        return f"{name} is {value!r}; allowed is a list of unit names", None
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (kind == "int" and value != int(value)) or not meta["low"] <= value <= meta["high"]:
        what = "a whole number" if kind == "int" else "a number"
        unit = f" {meta['unit']}" if meta["unit"] else ""
        return f"{name} is {value!r}; allowed is {what} from {meta['low']:g} to {meta['high']:g}{unit}", None
    return "", int(value) if kind == "int" else float(value)


def describe() -> list[dict[str, Any]]:
    """Return name, default, unit, meaning, source and what is allowed of every threshold, in the order of the class."""
    rows = []
    for field in dataclasses.fields(Policy):
        meta = field.metadata
        if "choices" in meta:
            allowed = ", ".join(meta["choices"])
        elif "low" in meta:
            allowed = f"{meta['low']:g} to {meta['high']:g}"
        else:
            allowed = {"bool": "true, false", "list": "names"}[meta["kind"]]
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        rows.append({"name": field.name, "default": default, "allowed": allowed, **meta})
    return rows
