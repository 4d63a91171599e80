# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated GPUs and NVSwitches of /var/lib/simgpu/state, and which driver can drive which."""

from __future__ import annotations

from dataclasses import dataclass

PRE_TURING_END = 0x1E00
_OPEN_ONLY = (0x2342, 0x2348)  # Grace Hopper
_BLACKWELL_FROM = 0x2901
# (first id, last id, first driver branch)
_FIRST_BRANCH = (
    (0x1E00, 0x21FF, 418),
    (0x2080, 0x25FF, 450),
    (0x2302, 0x2348, 525),
    (0x2684, 0x28F8, 525),
    (0x2901, 0x3FFF, 570),
)


@dataclass
class Gpu:
    """One PCI function with a GPU or an NVSwitch."""

    index: int
    address: str
    device: int
    pci_class: int = 0x030200
    vendor: int = 0x10DE
    subsystem_vendor: int = 0x10DE
    subsystem_device: int = 0
    numa_node: int = 0
    name: str = ""
    uuid: str = ""


def parse_state(text: str) -> dict[str, str]:
    """key=value lines; `#` starts a comment line."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#") and "=" in line:
            key, value = line.split("=", 1)
            found[key.strip()] = value.strip()
    return found


def _number(text: str, default: int, base: int = 16) -> int:
    try:
        return int(text, base)
    except ValueError:
        return default


def gpus(state: dict[str, str]) -> list[Gpu]:
    """The GPUs of the state file that are on the bus."""
    found = []
    for index in range(_number(state.get("gpu.count", "0"), 0, 10)):
        prefix = f"gpu.{index}."

        def get(key: str, default: str = "", prefix: str = prefix) -> str:
            return state.get(prefix + key, default)

        if get("on_bus", "1") == "0":
            continue
        found.append(
            Gpu(
                index=_number(get("minor", str(index)), index, 10),
                address=get("pci", "0000:%02x:00.0" % (0x17 + index)).lower(),
                device=_number(get("device_id"), 0x2330),
                pci_class=_number(get("class"), 0x030200),
                vendor=_number(get("vendor"), 0x10DE),
                subsystem_vendor=_number(get("subsystem_vendor"), 0x10DE),
                subsystem_device=_number(get("subsystem_id"), 0),
                numa_node=_number(get("numa_node", "0"), 0, 10),
                name=get("name", "NVIDIA H100 80GB HBM3"),
                uuid=get("uuid"),
            )
        )
    return found


def nvswitches(state: dict[str, str]) -> list[Gpu]:
    """The NVSwitches of the state file: bridges of class 0680 with NVIDIA's vendor id."""
    return [
        Gpu(
            index=index,
            address="0000:%02x:00.0" % (0xC1 + index),
            device=_number(state.get("nvswitch.device_id", ""), 0x22A3),
            pci_class=0x068000,
            name="NVSwitch",
        )
        for index in range(_number(state.get("nvswitch.count", "0"), 0, 10))
    ]


def refusal(gpu: Gpu, version: str, flavour: str) -> str:
    """Why this driver does not bind to this GPU; "" when it does."""
    branch = _number(version.split(".")[0], 0, 10)
    if gpu.device < PRE_TURING_END:
        if flavour == "open":
            return "open kernel modules need a GSP, which GPUs before Turing do not have"
        return f"branch {branch} no longer knows GPUs before Turing" if branch > 580 else ""
    if flavour == "proprietary" and (gpu.device >= _BLACKWELL_FROM or gpu.device in _OPEN_ONLY):
        return "this GPU needs the open kernel modules"
    for first, last, since in _FIRST_BRANCH:
        if first <= gpu.device <= last and branch < since:
            return f"needs driver branch {since} or later"
    return ""


def version_text(version: str, flavour: str, built: str, compiler: str) -> str:
    """/proc/driver/nvidia/version as the driver writes it."""
    if flavour == "open":
        first = (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (root@build)  {built}"
        )
    else:
        first = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  {built}"
    return f"{first}\nGCC version:  {compiler}\n"


def config_space(gpu: Gpu) -> bytes:
    """The first 256 bytes of PCI configuration space, enough for lspci."""
    space = bytearray(256)
    space[0:2] = gpu.vendor.to_bytes(2, "little")
    space[2:4] = gpu.device.to_bytes(2, "little")
    space[4:6] = (0x0406).to_bytes(2, "little")
    space[6:8] = (0x0010).to_bytes(2, "little")
    space[8] = 0xA1
    space[9:12] = gpu.pci_class.to_bytes(3, "little")
    space[0x2C:0x2E] = gpu.subsystem_vendor.to_bytes(2, "little")
    space[0x2E:0x30] = gpu.subsystem_device.to_bytes(2, "little")
    return bytes(space)
