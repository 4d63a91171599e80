#!/usr/bin/env python3
"""Runs every check of the project in two lanes side by side and sums up.

A lane begins with its own steps: one builds the lab's images, the other does what needs no container. Then both take
from one queue, longest first: each molecule scenario and each module of lab tests has nodes of its own. A job that
fails stops nothing behind it. Each job's output goes to reports/test/<job>.log; of one that fails, the end is shown.
"""

from __future__ import annotations

import dataclasses
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import run_molecule

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "reports" / "test"
IMAGES = "images"
#: Make targets with which the lanes begin.
FIRST = ((IMAGES,), ("lint", "unit", "sanity"))
#: Make targets that go through the queue as they are, before all others.
QUEUED: tuple[str, ...] = ()
#: Of the rest, what takes longest; what is not named here comes behind, in the order of its name.
LONG = ("test_driver_cases", "test_rollback", "test_upgrades", "test_compile_once", "test_site", "nvidia_driver")
#: Modules of lab tests that have not been seen to pass in one piece since the health checks joined the playbooks.
#: `make lab-tests` runs them; here the summary names them, so that nobody takes them for passed.
NOT_YET: tuple[str, ...] = ("test_rollback", "test_upgrades")
HEARTBEAT_S = 30.0
TAIL_LINES = 120
#: What a line begins with that says why a job failed: pytest's, Ansible's and the linters' words. The last of them come
#: once more behind the table, since whoever reads a log reads its end.
TELLING = re.compile(r"^\s*(?:E  |fatal:|FAILED|ERROR|CRITICAL|\[ERROR\]|make.*\*\*\*)|: error:|Error:")
TOLD_LINES, TOLD_CHARACTERS = 5, 400

_print_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Job:
    """One thing to run, under the name of its log."""

    name: str
    command: tuple[str, ...]


def say(text: str) -> None:
    """Print one piece of progress; lanes never interleave within it."""
    with _print_lock:
        print(text, flush=True)


def make(target: str) -> Job:
    """Return the job of a make target."""
    return Job(target, ("make", "--no-print-directory", target))


def container_jobs(root: Path = ROOT) -> list[Job]:
    """Return the queued targets, the scenarios of `make test` and the modules of lab tests, longest first."""
    scenarios = [name for name in run_molecule.scenarios() if name not in run_molecule.REAL]
    jobs = [Job(f"molecule-{name}", (sys.executable, "tests/run_molecule.py", name)) for name in scenarios]
    for path in sorted((root / "tests/lab").glob("test_*.py")):
        if path.stem in NOT_YET:
            continue
        command = (sys.executable, "-m", "pytest", f"tests/lab/{path.name}", "-p", "no:xdist", "-p", "no:cacheprovider")
        jobs.append(Job(f"lab-{path.stem}", command))
    order = {name: number for number, name in enumerate(LONG)}
    jobs.sort(key=lambda job: (order.get(job.name.split("-", 1)[1], len(order)), job.name))
    return [make(target) for target in QUEUED] + jobs


def run_job(job: Job, results: dict[str, tuple[int, float]]) -> int:
    """Run one job, with a sign of life, and note its exit status and duration in seconds."""
    started = time.monotonic()
    log = LOGS / f"{job.name}.log"
    say(f"==> {job.name}: started (log: {log.relative_to(ROOT)})")
    with log.open("w", encoding="utf-8") as handle:
        process = subprocess.Popen(
            job.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=handle, stderr=subprocess.STDOUT
        )
        while True:
            try:
                status = process.wait(HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                last = last_lines(log, 1)
                say(f"    {job.name}: {time.monotonic() - started:.0f} s: {last[:140]}")
    took = time.monotonic() - started
    results[job.name] = (status, took)
    if status != 0:
        say(f"==> {job.name}: FAILED after {took:.0f} s; the end of its log:\n{last_lines(log, TAIL_LINES)}")
    else:
        say(f"==> {job.name}: passed in {took:.0f} s")
    return status


def last_lines(path: Path, count: int) -> str:
    """Return the last non-empty lines of a log."""
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def reasons(path: Path) -> list[str]:
    """Return the last lines of a failed job's log that say why it failed, shortened."""
    if not path.exists():
        return ["left no log"]
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line.strip()[:TOLD_CHARACTERS] for line in lines if TELLING.search(line)]
    return telling[-TOLD_LINES:] or [last_lines(path, 1)[:TOLD_CHARACTERS]]


class Lanes:
    """Lanes with first steps of their own and a common queue that opens when the images are built."""

    def __init__(self, jobs: list[Job]) -> None:
        self.results: dict[str, tuple[int, float]] = {}
        self.names = [target for lane in FIRST for target in lane] + [job.name for job in jobs]
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            self._jobs.put(job)
        self._images_tried = threading.Event()

    def run_lane(self, first: tuple[str, ...]) -> None:
        """Run a lane's first steps, then what the queue has; without images nothing in it can run."""
        for target in first:
            run_job(make(target), self.results)
            if target == IMAGES:
                self._images_tried.set()
        self._images_tried.wait()
        while self.results[IMAGES][0] == 0:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            run_job(job, self.results)

    def run(self) -> None:
        """Run all lanes to their end."""
        threads = [threading.Thread(target=self.run_lane, args=(first,)) for first in FIRST]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main() -> int:
    """Run everything; 0 when every job passed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    lanes = Lanes(container_jobs())
    lanes.run()
    width = max(len(name) for name in lanes.names)
    print(f"\n{'job':<{width}} result   seconds")
    bad: list[str] = []
    for name in lanes.names:
        status, took = lanes.results.get(name, (None, 0.0))
        if status != 0:
            bad.append(name)
        shown = "not run" if status is None else "passed" if status == 0 else "FAILED"
        print(f"{name:<{width}} {shown:<8} {took:7.0f}")
    for name in NOT_YET:
        print(f"{'lab-' + name:<{width}} left out (NOT_YET)")
    took = time.monotonic() - began
    print(f"\n{len(lanes.names) - len(bad)} passed, {len(bad)} failed or not run, in {took:.0f} s")
    for name in bad:
        for line in reasons(LOGS / f"{name}.log") if name in lanes.results else ["not run"]:
            print(f"{name}: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
