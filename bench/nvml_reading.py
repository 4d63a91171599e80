"""How long the child that reads NVML works for eight GPUs, beyond the start of Python, and how many calls it makes.

The library is the lab's, which answers from a file: what is measured is our own work, not the driver's. On hardware a
call takes some tens of microseconds on top.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import ROOT, machine, write_section

for place in ("collections", "lab", "tests/unit"):
    sys.path.insert(0, str(ROOT / place))

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _nvml_child  # noqa: E402 the paths above come first

from lab import nvml_build  # noqa: E402 the paths above come first

GPUS = 8
DRIVER = "580.65.06"
#: What the child may take beyond the start of its interpreter, in seconds, on two cores.
BUDGET_S = 0.25
#: A hang has to end within this beyond the deadline.
HANG_MARGIN_S = 1.0
HANG_DEADLINE_S = 1.0


def processor() -> float:
    """Return the processor seconds of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_of_python() -> tuple[float, float]:
    """Return wall and processor seconds of an interpreter that does nothing, started as the child is."""
    before, started = processor(), time.monotonic()
    subprocess.run([sys.executable, "-I", "-B", "-c", "pass"], check=True)
    return time.monotonic() - started, processor() - before


def reading() -> tuple[float, float, int]:
    """Return wall and processor seconds, and calls, of one complete reading.

    Raises:
        SystemExit: when it is not complete: its time would say nothing.
    """
    before, started = processor(), time.monotonic()
    nvml, gpus = _nvml_child.probe(sys.executable, 60.0)
    took = time.monotonic() - started
    if nvml.state != "ok" or len(gpus) != GPUS:
        sys.exit(f"NVML was not read: {nvml}")
    return took, processor() - before, nvml.calls


def hang(state: Path) -> float:
    """Return the seconds beyond the deadline of a reading that hangs with all signals blocked."""
    with state.open("a", encoding="ascii") as handle:
        handle.write("gpu.4.hang.nvmlDeviceGetPowerUsage=2\n")
    started = time.monotonic()
    nvml, _gpus = _nvml_child.probe(sys.executable, HANG_DEADLINE_S)
    if nvml.state != "timeout":
        sys.exit(f"a hang was not seen: {nvml}")
    return time.monotonic() - started - HANG_DEADLINE_S


def milliseconds(values: list[float]) -> str:
    """Return median and range in milliseconds."""
    low, middle, high = (1000 * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def measure(runs: int) -> bool:
    """Measure and write the section; returns whether the budgets were kept."""
    bare: list[float] = []
    whole: list[float] = []
    beyond: list[float] = []
    cpu: list[float] = []
    calls = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        library = nvml_build.library(folder / "library", DRIVER)
        nvml_build.simgpu(folder / "state", "init", "--gpus", str(GPUS), "--model", "h100-sxm")
        os.environ.update(nvml_build.environment(folder, library, DRIVER))
        reading()
        for _ in range(runs):
            start, start_used = start_of_python()
            took, used, calls = reading()
            bare.append(start)
            whole.append(took)
            # Pair by pair, since a shared machine is not equally fast all the time.
            beyond.append(took - start)
            cpu.append(used - start_used)
        late = [hang(folder / "state") for _ in range(3)]
    # The fastest run: what else the machine does can only add to it.
    kept = min(beyond) < BUDGET_S and max(late) < HANG_MARGIN_S
    write_section(
        f"reading NVML of {GPUS} simulated GPUs (driver {DRIVER}; {machine()})",
        "| what | milliseconds | runs |\n|---|---|---|\n"
        f"| start of Python alone | {milliseconds(bare)} | {runs} |\n"
        f"| a complete reading, as the parent sees it | {milliseconds(whole)} | {runs} |\n"
        f"| of that beyond the start | {milliseconds(beyond)} | {runs} |\n"
        f"| processor time of the child beyond the start | {milliseconds(cpu)} | {runs} |\n"
        f"| a hang, beyond its deadline | {milliseconds(late)} | {len(late)} |\n\n"
        f"- Budget: {1000 * BUDGET_S:.0f} ms beyond the start in the fastest run, since other work on the machine only "
        f"adds to it, and {1000 * HANG_MARGIN_S:.0f} ms beyond the deadline.\n"
        f"- NVML calls for a GPU with 18 NVLinks: {calls / GPUS:.0f}, more than half of them for the links.\n",
    )
    return kept
