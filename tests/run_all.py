#!/usr/bin/env python3
"""Runs every check of the project in two lanes side by side and sums up.

The lanes share two cores: one is busy with containers (molecule and the fault tests), the other with everything that
needs none. Each step's output goes to reports/test/<step>.log; a step that fails shows the end of it here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "reports" / "test"
#: Steps of a lane run one after the other; a failing step does not stop the ones behind it.
LANES = (("images", "molecule", "lab-tests"), ("lint", "unit", "sanity"))
HEARTBEAT_S = 30.0
TAIL_LINES = 120

_print_lock = threading.Lock()


def say(text: str) -> None:
    """Print one piece of progress; lanes never interleave within it."""
    with _print_lock:
        print(text, flush=True)


def run_step(step: str, results: dict[str, tuple[int, float]]) -> None:
    """Run one make target, with a sign of life, and note its exit status and duration in seconds."""
    started = time.monotonic()
    log = LOGS / f"{step}.log"
    say(f"==> {step}: started (log: {log.relative_to(ROOT)})")
    with log.open("w", encoding="utf-8") as handle:
        process = subprocess.Popen(
            ["make", "--no-print-directory", step],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=subprocess.STDOUT,
        )
        while True:
            try:
                status = process.wait(HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                last = last_lines(log, 1)
                say(f"    {step}: {time.monotonic() - started:.0f} s: {last[:140]}")
    took = time.monotonic() - started
    results[step] = (status, took)
    if status != 0:
        say(f"==> {step}: FAILED after {took:.0f} s; the end of its log:\n{last_lines(log, TAIL_LINES)}")
    else:
        say(f"==> {step}: passed in {took:.0f} s")


def last_lines(path: Path, count: int) -> str:
    """Return the last non-empty lines of a log."""
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def run_lane(lane: tuple[str, ...], results: dict[str, tuple[int, float]]) -> None:
    """Run the steps of one lane in order."""
    for step in lane:
        run_step(step, results)


def main() -> int:
    """Run all lanes; 0 when every step passed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    results: dict[str, tuple[int, float]] = {}
    threads = [threading.Thread(target=run_lane, args=(lane, results)) for lane in LANES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\nstep         result  seconds")
    for lane in LANES:
        for step in lane:
            status, took = results.get(step, (1, 0.0))
            print(f"{step:<12} {'passed' if status == 0 else 'FAILED':<7} {took:7.0f}")
    missing = sum(len(lane) for lane in LANES) - len(results)
    failed = sum(1 for status, _ in results.values() if status != 0) + missing
    print(f"\n{len(results) + missing - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
