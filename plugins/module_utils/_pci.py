# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""PCI devices as sysfs shows them: which NVIDIA GPUs and NVSwitches a node has, and which driver holds each.

Only sysfs is read: no lspci, no pci.ids, no driver. A GPU that its driver cannot initialise is still listed here.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text

NVIDIA = "10de"
#: PCI base class 03 is "display controller": 0300 VGA, 0302 3D controller (data-centre cards), 0380 other.
DISPLAY_CLASS = "03"
#: NVSwitches are bridges of class 0680 ("other bridge") with NVIDIA's vendor id.
SWITCH_CLASS = "0680"

_DEVICES = "sys/bus/pci/devices"


@dataclasses.dataclass(frozen=True)
class PciDevice:
    """One PCI function; ids are lower-case hexadecimal without ``0x``, the class has six digits.

    Args:
        address: Domain, bus, slot and function, e.g. ``0000:17:00.0``.
        vendor: Vendor id, e.g. ``10de``.
        device: Device id, e.g. ``2330``.
        class_code: Class, subclass and programming interface, e.g. ``030200``.
        subsystem_vendor: Vendor id of the board maker, empty where sysfs has none.
        subsystem_device: Board id.
        driver: Kernel driver bound to the device, e.g. ``nvidia``, ``nouveau``, ``vfio-pci``; None when none is.
    """

    address: str
    vendor: str
    device: str
    class_code: str
    subsystem_vendor: str = ""
    subsystem_device: str = ""
    driver: str | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether this is an NVIDIA display controller; audio functions and bridges of the card are not."""
        return self.vendor == NVIDIA and self.class_code.startswith(DISPLAY_CLASS)

    @property
    def is_nvswitch(self) -> bool:
        """Whether this is an NVSwitch."""
        return self.vendor == NVIDIA and self.class_code.startswith(SWITCH_CLASS)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for module results."""
        return {
            "address": self.address,
            "vendor": self.vendor,
            "device": self.device,
            "class": self.class_code,
            "subsystem": f"{self.subsystem_vendor}:{self.subsystem_device}" if self.subsystem_vendor else "",
            "driver": self.driver,
        }


def nvidia_devices(root: str = "/") -> list[PciDevice]:
    """Return NVIDIA's PCI devices in the order of their addresses."""
    found = []
    for address in list_dir(root, _DEVICES):
        base = f"{_DEVICES}/{address}"
        if _hex(root, base + "/vendor") != NVIDIA:
            continue
        found.append(
            PciDevice(
                address=address,
                vendor=NVIDIA,
                device=_hex(root, base + "/device"),
                class_code=_hex(root, base + "/class"),
                subsystem_vendor=_hex(root, base + "/subsystem_vendor"),
                subsystem_device=_hex(root, base + "/subsystem_device"),
                driver=_driver(root, base),
            )
        )
    return found


def gpus(root: str = "/") -> list[PciDevice]:
    """Return the NVIDIA GPUs."""
    return [device for device in nvidia_devices(root) if device.is_gpu]


def nvswitches(root: str = "/") -> list[PciDevice]:
    """Return the NVSwitches."""
    return [device for device in nvidia_devices(root) if device.is_nvswitch]


def _hex(root: str, path: str) -> str:
    text = (read_text(root, path) or "").strip().lower()
    return text[2:] if text.startswith("0x") else text


def _driver(root: str, base: str) -> str | None:
    try:
        return os.path.basename(os.readlink(path_below(root, base + "/driver")))
    except OSError:
        return None
