# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the kernel itself shows of the GPUs: their PCIe links and errors, their memory's place, their device nodes.

None of it asks the driver, so it answers for a GPU that has fallen off the bus too.
"""

from __future__ import annotations

import os
import re

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _pci
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import PciGpu
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text

_DEVICES = "sys/bus/pci/devices"
_SPEED = re.compile(r"^([0-9]+(?:\.[0-9]+)?) GT/s")
_NODE = re.compile(r"^nvidia(?:[0-9]+|ctl|-uvm|-uvm-tools|-modeset|-nvlink|-nvswitch.*)$")
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
#: Widths that PCIe has; a link that is down shows 0, a device that is gone 63 or 255.
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)


def pci_gpus(root: str = "/") -> tuple[PciGpu, ...]:
    """Return the NVIDIA GPUs on PCI in the order of their addresses."""
    return tuple(_gpu(root, device) for device in _pci.gpus(root))


def _gpu(root: str, device: _pci.PciDevice) -> PciGpu:
    base = f"{_DEVICES}/{device.address}"
    port = _port(root, base)
    return PciGpu(
        address=device.address,
        device_id=device.device,
        subsystem=f"{device.subsystem_vendor}:{device.subsystem_device}" if device.subsystem_vendor else "",
        driver=device.driver,
        link_width=_width(root, base + "/current_link_width"),
        max_link_width=_width(root, base + "/max_link_width"),
        link_speed_gts=_speed(root, base + "/current_link_speed"),
        max_link_speed_gts=_speed(root, base + "/max_link_speed"),
        port_max_width=_width(root, port + "/max_link_width") if port else None,
        numa_node=_number(root, base + "/numa_node"),
        aer=_aer(root, base),
        port_aer=_aer(root, port) if port else None,
    )


def _port(root: str, base: str) -> str:
    """Return the directory of the port above a device, as a path below root; empty where it hangs from a root bus."""
    place = os.path.dirname(os.path.realpath(path_below(root, base)))
    if not _ADDRESS.match(os.path.basename(place)):
        return ""
    return os.path.relpath(place, os.path.realpath(root))


def _number(root: str, path: str) -> int | None:
    try:
        return int((read_text(root, path) or "").strip())
    except ValueError:
        return None


def _width(root: str, path: str) -> int | None:
    found = _number(root, path)
    return found if found in _WIDTHS else None


def _speed(root: str, path: str) -> float | None:
    """Return GT/s of a text such as ``32.0 GT/s PCIe``; None for ``Unknown`` and where there is none."""
    match = _SPEED.match((read_text(root, path) or "").strip())
    return float(match.group(1)) if match else None


def _aer(root: str, base: str) -> dict[str, int] | None:
    """Return the errors that a device counted, by severity; None where the kernel keeps no such count."""
    found = {}
    for kind in ("correctable", "nonfatal", "fatal"):
        text = read_text(root, f"{base}/aer_dev_{kind}")
        if text is None:
            continue
        counts = dict(line.rsplit(None, 1) for line in text.splitlines() if len(line.split()) == 2)
        total = next((value for name, value in counts.items() if name.startswith("TOTAL_ERR")), None)
        try:
            found[kind] = int(total) if total is not None else sum(int(value) for value in counts.values())
        except ValueError:
            continue
    return found or None


def device_nodes(root: str = "/") -> tuple[str, ...]:
    """Return the driver's device nodes that are there."""
    nodes = [f"/dev/{name}" for name in list_dir(root, "dev") if _NODE.match(name)]
    nodes += [f"/dev/nvidia-caps/{name}" for name in list_dir(root, "dev/nvidia-caps")]
    return tuple(nodes)


def iommu(root: str = "/") -> bool | None:
    """Return whether devices are in IOMMU groups; None where the kernel does not tell."""
    if not os.path.isdir(path_below(root, "sys/kernel/iommu_groups")):
        return None
    return bool(list_dir(root, "sys/kernel/iommu_groups"))
