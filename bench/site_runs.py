"""site.yml on one lab node: first run, second run, and the floor.

The floor is a play with as many no-op tasks (``ping``) as the second run had tasks, over the same connection: what
Ansible itself costs. The second run and the floor alternate, so that a machine whose speed drifts moves both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from figures import gpulab, machine, playbook, recap, spread, write_inventory, write_section

NODE = "gpu-bench-1"
#: Budgets of the design: the second run against the floor, and its tasks a node.
MAX_RATIO = 1.5
#: 60 for the layers up to the driver's daemons, 8 for the health checks.
MAX_TASKS = 60 + 8


def write_floor(path: Path, tasks: int) -> None:
    """Write a play of ``tasks`` no-op tasks."""
    lines = ["- name: Floor", "  hosts: gpu_nodes", "  gather_facts: false", "  tasks:"]
    for number in range(tasks):
        lines += [f"    - name: Do nothing {number}", "      ansible.builtin.ping:"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(suite: str, first_runs: int, second_runs: int) -> bool:
    """Measure and write the section; returns whether the budgets are kept."""
    first: list[float] = []
    second: list[float] = []
    floor: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        inventory = write_inventory(Path(scratch) / "bench.yml", NODE)
        floor_play = Path(scratch) / "floor.yml"
        try:
            for _ in range(first_runs):
                gpulab("down", NODE)
                gpulab("up", NODE, "--suite", suite, "--gpus", "2")
                took, _ = playbook("site.yml", inventory, [NODE])
                first.append(took)
                print(f"first run: {took:.1f} s", flush=True)
            took, output = playbook("site.yml", inventory, [NODE])
            counts = recap(output, NODE)
            tasks = counts["ok"] + counts["skipped"]
            if counts["changed"]:
                sys.exit(f"the second run changed {counts['changed']} tasks: not idempotent")
            write_floor(floor_play, tasks)
            for _ in range(second_runs):
                second.append(playbook("site.yml", inventory, [NODE])[0])
                floor.append(playbook(str(floor_play), inventory, [NODE])[0])
                print(f"second run: {second[-1]:.1f} s, floor of {tasks} tasks: {floor[-1]:.1f} s", flush=True)
        finally:
            gpulab("down", NODE)

    ratio = statistics.median(a / b for a, b in zip(second, floor))
    write_section(
        f"site.yml on one simulated node ({suite}; {machine()})",
        f"""| what | seconds | runs |
|---|---|---|
| first run on a bare node | {spread(first)} | {len(first)} |
| second run, changed=0 | {spread(second)} | {len(second)} |
| floor: {tasks} no-op tasks | {spread(floor)} | {len(floor)} |

- Second run against the floor, pair by pair: median {ratio:.2f} (budget {MAX_RATIO}).
- Tasks a node in the second run: {tasks} ({counts["ok"]} run, {counts["skipped"]} skipped; budget {MAX_TASKS}).
""",
    )
    return ratio <= MAX_RATIO and tasks <= MAX_TASKS
