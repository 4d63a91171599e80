# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""One snapshot of a GPU node: NVML in a child with a deadline, and what the kernel and systemd say beside it.

Only NVML can hang, and it is read in its own process; the rest is files of /proc and /sys and one systemctl.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from typing import Callable, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _driver_record,
    _gpu_occupants,
    _gpu_sysfs,
    _kernel_log,
    _nvml_child,
    _pci,
    _unit_states,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_info import library_facts
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, Nvml, PciGpu, Snapshot, Software
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._loaded_module import loaded_facts
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import read_installed

#: Where the role gpu_health puts the Python that has nvidia-ml-py.
NVML_PYTHON = "/opt/gpu_node/nvml/bin/python"

Probe = Callable[[], "tuple[Nvml, tuple[Gpu, ...]]"]


def nvml_python(wanted: str = "", root: str = "/") -> str:
    """Return the interpreter that reads NVML: the wanted one, else the role's, else the one that runs this."""
    if wanted:
        return wanted
    return NVML_PYTHON if os.path.exists(path_below(root, NVML_PYTHON)) else sys.executable


def collect(
    runner: Runner,
    root: str = "/",
    python: str = "",
    library: str = "",
    deadline_s: float = _nvml_child.DEADLINE_S,
    kmsg: str = _kernel_log.KMSG,
    since_s: float = 0.0,
    probe: Probe | None = None,
) -> Snapshot:
    """Read a node; changes nothing on it.

    Args:
        runner: Runs systemctl.
        root: Directory that stands for ``/`` in everything but NVML.
        python: Interpreter that reads NVML; empty for what ``nvml_python`` finds.
        library: Path of libnvidia-ml; empty for the one that the loader finds.
        deadline_s: Seconds until NVML is given up.
        kmsg: The kernel's log.
        since_s: Seconds since the boot; earlier records of the log do not count.
        probe: In place of the child; for tests.

    Returns:
        The snapshot.
    """
    started = time.time()
    if probe is not None:
        nvml, gpus = probe()
    else:
        nvml, gpus = _nvml_child.probe(nvml_python(python, root), deadline_s, library, root)
    pci = _gpu_sysfs.pci_gpus(root)
    gpus = tuple(_gpu_occupants.named(gpu, root) for gpu in placed(gpus, pci))
    uptime_s = uptime(root)
    log, log_error = _kernel_log.events(kmsg, root, since_s)
    return Snapshot(
        taken_at=round(started, 3),
        boot_id=(read_text(root, "proc/sys/kernel/random/boot_id") or "").strip(),
        uptime_s=uptime_s,
        root=os.geteuid() == 0,
        nvml=nvml,
        gpus=gpus,
        pci=pci,
        nvswitches=tuple(device.address for device in _pci.nvswitches(root)),
        software=software(root, nvml),
        units=_unit_states.units(runner, uptime_s),
        occupants=_gpu_occupants.occupants(gpus, root),
        log=log,
        log_error=log_error,
    )


def placed(gpus: Sequence[Gpu], pci: Sequence[PciGpu]) -> tuple[Gpu, ...]:
    """Return the GPUs with the addresses of those that NVML could not ask any more, where sysfs leaves no doubt.

    That is so when as many GPUs lack an address as PCI devices are unclaimed, and either it is one, or all are then in
    the order of their addresses, as NVML counts them.
    """
    claimed = {gpu.bus_id for gpu in gpus if gpu.bus_id}
    free = [device.address for device in pci if device.address not in claimed]
    nameless = [gpu for gpu in gpus if not gpu.bus_id]
    if not nameless or len(free) != len(nameless):
        return tuple(gpus)
    addresses = iter(free)
    found = [gpu if gpu.bus_id else dataclasses.replace(gpu, bus_id=next(addresses)) for gpu in gpus]
    in_order = [gpu.bus_id for gpu in found] == sorted(gpu.bus_id for gpu in found)
    return tuple(found) if in_order or len(free) == 1 else tuple(gpus)


def uptime(root: str = "/") -> float:
    """Return the seconds since the boot; 0 where the kernel does not tell."""
    try:
        return float((read_text(root, "proc/uptime") or "").split()[0])
    except (IndexError, ValueError):
        return 0.0


def software(root: str, nvml: Nvml) -> Software:
    """Return the software below NVML; the library is the one that was opened, else the newest on the disk."""
    library = library_facts(root)
    files = [str(path) for path in library["files"]]
    opened = os.path.realpath(nvml.library) if nvml.library else ""
    version = opened.rpartition(".so.")[2] if ".so." in opened else ""
    record = _driver_record.read_record(root)
    return Software(
        module_version=loaded_facts(root)["version"],
        library_path=opened or (files[-1] if files else ""),
        library_version=version if "." in version else library["version"],
        wanted_version=str(record["version"]) if record.get("version") else None,
        held=_held(root, list(_driver_record.members(record))),
        nouveau_loaded=os.path.isdir(path_below(root, "sys/module/nouveau")),
        device_nodes=_gpu_sysfs.device_nodes(root),
        cmdline=(read_text(root, "proc/cmdline") or "").strip(),
        iommu=_gpu_sysfs.iommu(root),
    )


def _held(root: str, names: Sequence[str]) -> bool | None:
    """Return whether each of these packages is held; None where there are none."""
    if not names:
        return None
    installed = read_installed(root, names.__contains__)
    return all(name in installed and installed[name].held for name in names)
