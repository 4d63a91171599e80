"""How long rollback.yml takes without the boot: from a next boot into another kernel, and from a replaced driver.

Neither needs a reboot here, since the good kernel runs and the good module is loaded all the time.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from batch import on_node
from figures import gpulab, machine, playbook, recap, spread, write_inventory, write_section

NODE = "gpu-bench-way-back"
GOOD, OTHER = "535.183.06", "535.261.03"
ROLLBACK = "playbooks/rollback.yml"
#: The outcome promised for a node is two minutes and a boot.
BUDGET_S = 120.0
OTHER_KERNEL = """
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y -t bookworm-backports linux-image-amd64 >/dev/null 2>&1
ls -1 /boot/vmlinuz-6.12.* | sed 's,.*vmlinuz-,,'
"""


def other_driver() -> None:
    """Another version of the driver comes behind our back."""
    packages = json.loads(on_node(NODE, "cat /var/lib/gpu_node/driver.json"))["packages"]
    offers = on_node(NODE, "apt-cache madison libnvidia-ml1 | cut -d'|' -f2").split()
    revision = next(version for version in offers if version.startswith(OTHER))
    wanted = " ".join(f"{name}={revision}" for name in packages)
    on_node(NODE, "rm -f /etc/apt/preferences.d/gpu-node-nvidia.pref")
    on_node(NODE, f"apt-get install -qq -y --allow-change-held-packages {wanted} >/dev/null 2>&1")


def measure(runs: int) -> bool:
    """Measure and write the section; returns whether the budget was kept."""
    entry: list[float] = []
    packages: list[float] = []
    nothing: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        inventory = write_inventory(Path(scratch) / "node.yml", NODE)

        def roll_back(changes: bool) -> float:
            took, output = playbook(ROLLBACK, inventory, [NODE])
            if bool(recap(output, NODE)["changed"]) != changes:
                raise SystemExit(f"{ROLLBACK} was to change {'something' if changes else 'nothing'}:\n{output[-3000:]}")
            print(f"{ROLLBACK}: {took:.1f} s", flush=True)
            return took

        try:
            gpulab("down", NODE)
            gpulab("up", NODE, "--suite", "bookworm", "--gpus", "2")
            playbook("site.yml", inventory, [NODE], nvidia_driver_version=GOOD)
            gpulab("reboot", NODE)
            playbook("playbooks/verify.yml", inventory, [NODE], nvidia_driver_version=GOOD)
            on_node(NODE, OTHER_KERNEL)
            roll_back(changes=True)
            for _ in range(runs):
                on_node(NODE, "rm -f /etc/default/grub.d/gpu-node.cfg; update-grub >/dev/null 2>&1")
                entry.append(roll_back(changes=True))
                other_driver()
                packages.append(roll_back(changes=True))
                nothing.append(roll_back(changes=False))
        finally:
            gpulab("down", NODE)

    kept = max(entry + packages) < BUDGET_S
    write_section(
        f"rollback.yml without the boot (bookworm; {machine()})",
        "| from | seconds | runs |\n|---|---|---|\n"
        f"| the boot loader's default is another kernel | {spread(entry)} | {len(entry)} |\n"
        f"| the driver's packages were replaced | {spread(packages)} | {len(packages)} |\n"
        f"| as last known good: nothing to do | {spread(nothing)} | {len(nothing)} |\n\n"
        f"- Budget: {BUDGET_S:.0f} s and one boot. The driver is a stand-in; the real one is 400 MiB to unpack.\n",
    )
    return kept
