# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The systemd units that serve the GPUs: whether they run, since when, and how often they were restarted."""

from __future__ import annotations

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Unit
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner

NAMES = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
)
#: Seconds; systemd answers at once, or hangs itself.
TIMEOUT_S = 5.0
_SHOWN = "Id,LoadState,ActiveState,SubState,NRestarts,ActiveEnterTimestampMonotonic"


def units(runner: Runner, uptime_s: float) -> tuple[Unit, ...]:
    """Return the units; where systemd does not answer their states are empty, which is not "inactive".

    Args:
        runner: Runs systemctl, once.
        uptime_s: Seconds since the boot, from which systemd's times are counted.
    """
    shown = runner.run(["systemctl", "show", *NAMES, "--property", _SHOWN], timeout=TIMEOUT_S)
    blocks = {}
    for text in shown.out.split("\n\n"):
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        blocks[said.get("Id", "")] = said
    return tuple(_unit(name, blocks.get(name, {}), uptime_s) for name in NAMES)


def _unit(name: str, said: dict[str, str], uptime_s: float) -> Unit:
    entered = said.get("ActiveEnterTimestampMonotonic", "")
    active = said.get("ActiveState", "")
    since = None
    if active == "active" and entered.isdigit() and int(entered):
        since = round(max(0.0, uptime_s - int(entered) / 1e6), 3)
    restarts = said.get("NRestarts", "")
    return Unit(
        name=name,
        load_state=said.get("LoadState", ""),
        active_state=active,
        sub_state=said.get("SubState", ""),
        restarts=int(restarts) if restarts.isdigit() else 0,
        since_s=since,
    )
