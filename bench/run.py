#!/usr/bin/env python3
"""Measures site.yml on lab nodes: first run, second run, and the floor, and writes bench/RESULTS.md.

The floor is a play with as many no-op tasks (``ping``) as the second run had tasks, over the same connection: what
Ansible itself costs. The second run and the floor alternate, so that a machine whose speed drifts moves both.
Medians and ratios are what counts; single times on a shared machine are not.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NODE = "gpu-bench-1"
#: Budgets of the design: the second run against the floor, and its tasks a node.
MAX_RATIO = 1.5
MAX_TASKS = 60

RECAP = re.compile(r"^(?P<host>\S+)\s*: ok=(?P<ok>\d+)\s+changed=(?P<changed>\d+)\s+.*skipped=(?P<skipped>\d+)", re.M)


def gpulab(*arguments: str) -> None:
    """Run the lab's command line; its progress stays on the screen."""
    subprocess.run([str(ROOT / "lab" / "bin" / "gpulab"), *arguments], check=True)


def playbook(path: str, inventory: Path, **extra: str) -> tuple[float, str]:
    """Run a playbook on the bench node; returns seconds and the text it printed.

    Raises:
        SystemExit: when the play fails, with the end of its output: a failed run has no time worth noting.
    """
    command = ["ansible-playbook", path, "-i", "inventories/lab", "-i", str(inventory), "--limit", NODE]
    for name, value in extra.items():
        command += ["-e", f"{name}={value}"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    took = time.monotonic() - started
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    return took, done.stdout


def recap(output: str) -> dict[str, int]:
    """Return the bench node's counts from the play recap."""
    for match in RECAP.finditer(output):
        if match["host"] == NODE:
            return {name: int(match[name]) for name in ("ok", "changed", "skipped")}
    sys.exit(f"no recap of {NODE} in:\n{output[-2000:]}")


def write_floor(path: Path, tasks: int) -> None:
    """Write a play of ``tasks`` no-op tasks."""
    lines = ["- name: Floor", "  hosts: gpu_nodes", "  gather_facts: false", "  tasks:"]
    for number in range(tasks):
        lines += [f"    - name: Do nothing {number}", "      ansible.builtin.ping:"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def spread(values: list[float]) -> str:
    """Return median and range, in seconds."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> int:
    """Measure and write the results; 1 when a budget is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--first-runs", type=int, default=3)
    parser.add_argument("--second-runs", type=int, default=5)
    options = parser.parse_args()

    first: list[float] = []
    second: list[float] = []
    floor: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        inventory = Path(scratch) / "bench.yml"
        inventory.write_text(f"gpu_nodes:\n  hosts:\n    {NODE}:\n", encoding="utf-8")
        floor_play = Path(scratch) / "floor.yml"
        try:
            for _ in range(options.first_runs):
                gpulab("down", NODE)
                gpulab("up", NODE, "--suite", options.suite, "--gpus", "2")
                took, _ = playbook("site.yml", inventory)
                first.append(took)
                print(f"first run: {took:.1f} s", flush=True)
            took, output = playbook("site.yml", inventory)
            counts = recap(output)
            tasks = counts["ok"] + counts["skipped"]
            if counts["changed"]:
                sys.exit(f"the second run changed {counts['changed']} tasks: not idempotent")
            write_floor(floor_play, tasks)
            for _ in range(options.second_runs):
                second.append(playbook("site.yml", inventory)[0])
                floor.append(playbook(str(floor_play), inventory)[0])
                print(f"second run: {second[-1]:.1f} s, floor of {tasks} tasks: {floor[-1]:.1f} s", flush=True)
        finally:
            gpulab("down", NODE)

    ratio = statistics.median(a / b for a, b in zip(second, floor))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {datetime.date.today():%Y-%m-%d}"
    (ROOT / "bench" / "RESULTS.md").write_text(
        f"""# Measured figures

Written by `make bench`. Seconds are medians with the range in brackets; compare ratios, not seconds.

## site.yml on one simulated node ({options.suite}; {machine})

| what | seconds | runs |
|---|---|---|
| first run on a bare node | {spread(first)} | {len(first)} |
| second run, changed=0 | {spread(second)} | {len(second)} |
| floor: {tasks} no-op tasks | {spread(floor)} | {len(floor)} |

- Second run against the floor, pair by pair: median {ratio:.2f} (budget {MAX_RATIO}).
- Tasks a node in the second run: {tasks} ({counts["ok"]} run, {counts["skipped"]} skipped; budget {MAX_TASKS}).
""",
        encoding="utf-8",
    )
    print((ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8"))
    return 0 if ratio <= MAX_RATIO and tasks <= MAX_TASKS else 1


if __name__ == "__main__":
    sys.exit(main())
