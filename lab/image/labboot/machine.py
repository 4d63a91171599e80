# SPDX-License-Identifier: GPL-3.0-or-later
"""The faces of /proc, /sys and /dev that the simulated boot puts over the container's own."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import uuid
from typing import Any

from .gpus import Gpu, config_space
from .kernels import Banner

RUN = "/run/lab"
FACES = RUN + "/faces"
HOST_MODULES = RUN + "/host-modules"
NVIDIA_MAJOR = 195
SIMGPU = "/usr/local/bin/simgpu"
KERNEL_LOG = "/run/simgpu/kmsg"


def write(path: str, text: str) -> None:
    """Writes in place, so that a bind mount of the file keeps showing it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)


def read(path: str) -> str:
    """The text of a file, "" when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def write_json(path: str, data: Any) -> None:
    """Atomically, because other processes wait for this file to change."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as handle:
        json.dump(data, handle, indent=2)
        handle.write("\n")
    os.replace(path + ".new", path)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _cover_file(path: str, text: str) -> None:
    face = FACES + path
    write(face, text)
    if os.path.exists(path):
        _mount("--bind", face, path)


def cover_kernel(banner: Banner, command_line: str) -> None:
    """uname, /proc/version, /proc/cmdline, a boot id of its own."""
    write(RUN + "/uname", f"{banner.release}\n{banner.version}\n")
    _cover_file("/proc/sys/kernel/osrelease", banner.release + "\n")
    _cover_file("/proc/sys/kernel/version", banner.version + "\n")
    _cover_file("/proc/sys/kernel/random/boot_id", str(uuid.uuid4()) + "\n")
    _cover_file("/proc/version", f"Linux version {banner.text}\n")
    _cover_file("/proc/cmdline", command_line + "\n")


def cover_log() -> None:
    """A kernel log of this boot where the container has none: the file to which simgpu appends records."""
    if not os.path.lexists("/dev/kmsg"):
        write(KERNEL_LOG, "")
        os.symlink(KERNEL_LOG, "/dev/kmsg")


def cover_modules() -> None:
    """A /sys/module and /proc/modules to which simulated modules can be added; the host's stay visible."""
    os.makedirs(HOST_MODULES, exist_ok=True)
    _mount("--bind", "/sys/module", HOST_MODULES)
    _mount("-t", "tmpfs", "-o", "mode=755", "lab-modules", "/sys/module")
    for name in os.listdir(HOST_MODULES):
        os.symlink(os.path.join(HOST_MODULES, name), os.path.join("/sys/module", name))
    write(RUN + "/host-proc-modules", read("/proc/modules"))
    _cover_file("/proc/modules", read("/proc/modules"))
    _mount("-t", "tmpfs", "-o", "mode=755", "lab-driver", "/proc/driver")


def cover_pci(found: list[Gpu]) -> None:
    """/sys/bus/pci with the simulated GPUs and NVSwitches and nothing else."""
    bus = FACES + "/sys/bus/pci"
    shutil.rmtree(bus, ignore_errors=True)
    for folder in ("devices", "drivers"):
        os.makedirs(os.path.join(bus, folder))
    if os.path.isdir("/sys/bus/pci"):
        _mount("--bind", bus, "/sys/bus/pci")
    else:
        host = RUN + "/host-bus"
        os.makedirs(host, exist_ok=True)
        _mount("--bind", "/sys/bus", host)
        _mount("-t", "tmpfs", "-o", "mode=755", "lab-bus", "/sys/bus")
        for name in os.listdir(host):
            os.symlink(os.path.join(host, name), os.path.join("/sys/bus", name))
        os.makedirs("/sys/bus/pci")
        _mount("--bind", bus, "/sys/bus/pci")
    for gpu in found:
        add_device(gpu)
    if os.access(SIMGPU, os.X_OK):  # link width and speed, AER counters
        subprocess.run([SIMGPU, "sysfs"], check=False)


def device_path(gpu: Gpu) -> str:
    """Where the simulated device lives."""
    return "/sys/bus/pci/devices/" + gpu.address


def add_device(gpu: Gpu) -> None:
    """One PCI function as sysfs shows it."""
    path = device_path(gpu)
    os.makedirs(path, exist_ok=True)
    code = f"{gpu.pci_class:06X}"
    alias = (
        f"pci:v{gpu.vendor:08X}d{gpu.device:08X}sv{gpu.subsystem_vendor:08X}sd{gpu.subsystem_device:08X}"
        f"bc{code[:2]}sc{code[2:4]}i{code[4:]}"
    )
    for name, text in {
        "vendor": f"0x{gpu.vendor:04x}",
        "device": f"0x{gpu.device:04x}",
        "class": f"0x{gpu.pci_class:06x}",
        "subsystem_vendor": f"0x{gpu.subsystem_vendor:04x}",
        "subsystem_device": f"0x{gpu.subsystem_device:04x}",
        "revision": "0xa1",
        "numa_node": str(gpu.numa_node),
        "irq": "0",
        "enable": "1",
        "modalias": alias,
        "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
    }.items():
        write(os.path.join(path, name), text + "\n")
    with open(os.path.join(path, "config"), "wb") as handle:
        handle.write(config_space(gpu))


def bind(gpu: Gpu, driver: str) -> None:
    """driver links in both directions."""
    folder = "/sys/bus/pci/drivers/" + driver
    os.makedirs(folder, exist_ok=True)
    for link, target in (
        (device_path(gpu) + "/driver", "../../drivers/" + driver),
        (os.path.join(folder, gpu.address), "../../devices/" + gpu.address),
    ):
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(target, link)


def bound_driver(gpu: Gpu) -> str:
    """Name of the driver a device is bound to, "" when none."""
    try:
        return os.path.basename(os.readlink(device_path(gpu) + "/driver"))
    except OSError:
        return ""


def unbind_all(driver: str) -> None:
    """Takes a driver away from all devices."""
    folder = "/sys/bus/pci/drivers/" + driver
    for address in os.listdir(folder) if os.path.isdir(folder) else []:
        link = f"/sys/bus/pci/devices/{address}/driver"
        if os.path.lexists(link) and os.path.basename(os.readlink(link)) == driver:
            os.unlink(link)
    shutil.rmtree(folder, ignore_errors=True)


def make_nodes(minors: list[int], control: bool, uvm: bool) -> None:
    """/dev/nvidia*: true character devices, which the container may not open."""
    wanted = {f"/dev/nvidia{minor}": (NVIDIA_MAJOR, minor) for minor in minors}
    if control:
        wanted["/dev/nvidiactl"] = (NVIDIA_MAJOR, 255)
    if uvm:
        wanted["/dev/nvidia-uvm"] = (511, 0)
        wanted["/dev/nvidia-uvm-tools"] = (511, 1)
    for path, (major, minor) in wanted.items():
        if not os.path.exists(path):
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            os.chmod(path, 0o666)


def drop_nodes() -> None:
    """Removes /dev/nvidia*."""
    for name in os.listdir("/dev"):
        if name.startswith("nvidia") and not os.path.isdir("/dev/" + name):
            os.unlink("/dev/" + name)


def make_disk() -> None:
    """The names of the pretended root disk; plain files, so nothing can be written to a real one."""
    conf = dict(
        line.split("=", 1)
        for line in read("/usr/lib/gpu-node-lab/disk.conf").splitlines()
        if line and not line.startswith("#")
    )
    for name in (conf["LAB_DISK"], conf["LAB_ROOT_DEVICE"]):
        if not os.path.exists(name):
            write(name, "")
    for folder, ident in (("by-uuid", conf["LAB_ROOT_UUID"]), ("by-partuuid", conf["LAB_ROOT_PARTUUID"])):
        link = f"/dev/disk/{folder}/{ident}"
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            os.symlink("../../" + os.path.basename(conf["LAB_ROOT_DEVICE"]), link)
