# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the tuning role plans from and what its verification looks at: one read of the machine, nothing changed."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _pci, _swap, _sysctl, _tuning_power
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, list_dir, path_below, read_text

THP = "/sys/kernel/mm/transparent_hugepage/enabled"
ASPM = "/sys/module/pcie_aspm/parameters/policy"
CPUFREQ = "/sys/devices/system/cpu/cpufreq"
GOVERNOR = CPUFREQ + "/policy*/scaling_governor"
I915 = "/sys/module/i915"
READ_ONLY_SYS = "read-only /sys"
HOST_SYS = _sysctl.HOST_KEY

#: Files that set systemd's defaults; drop-ins are sorted by name over all directories, the main file comes first.
_MANAGER_DIRECTORIES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
_LIMITS = ("DefaultLimitMEMLOCK", "DefaultLimitNOFILE")
_LIMIT_LINE = re.compile(r"\s*(DefaultLimit(?:MEMLOCK|NOFILE))\s*=\s*(\S.*?)\s*\Z")

#: ACS extended capability and the two control bits that send peer traffic up to the root complex.
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECT = 0x0004 | 0x0008
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")


def collect(
    runner: Runner,
    sysctl: Sequence[str],
    files: Sequence[str],
    own_sysctl_file: str,
    root: str = "/",
    ask_power: bool = False,
) -> dict[str, Any]:
    """Return all facts.

    Args:
        runner: Runs ``systemctl show`` for the limits that the running systemd uses.
        sysctl: Names of the kernel settings of interest.
        files: Files of the role whose text is wanted.
        own_sysctl_file: The role's file in /etc/sysctl.d.
        root: Directory that stands for ``/``.
        ask_power: Whether the driver is asked for the power limits of the GPUs.
    """
    container = _sysctl.container_kind(root)
    return {
        "container": container,
        "virtual": is_virtual(root),
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        "nr_open": _whole(read_text(root, "/proc/sys/fs/nr_open")),
        "sysctl": sysctl_facts(sysctl, own_sysctl_file, root, container),
        "swap": _swap.collect(root).as_dict(),
        "thp": choice(root, THP, container),
        "aspm": choice(root, ASPM, container),
        "governor": governor(root, container),
        "limits": limits(runner, root),
        "i915": i915(root),
        "files": {path: read_text(root, path) for path in files},
        "pci": pci(root),
        "power": _tuning_power.read(runner, root, ask_power),
    }


def sysctl_facts(names: Sequence[str], own_file: str, root: str, container: str) -> dict[str, Any]:
    """Return for each setting its live value, why it cannot be written here, and who decides it at boot."""
    tree = _sysctl.Tree(root, own_file)
    live = _sysctl.Live(root, container)
    orders = {order: tree.assignments(order) for order in (_sysctl.BOOT, _sysctl.SYSCTL_SYSTEM)}
    found = {}
    for name in names:
        path = _sysctl.to_path(name)
        entry: dict[str, Any] = {"live": live.read(path), "obstacle": live.obstacle(path)}
        for order, assignments in orders.items():
            winner = _sysctl.decide(assignments, path)
            entry[order] = None if winner is None else {"file": winner.file, "line": winner.line, "value": winner.value}
        found[_sysctl.to_name(path)] = entry
    return found


def choice(root: str, path: str, container: str) -> dict[str, Any] | None:
    """Return the state of a sysfs file such as ``always [madvise] never``; None where this machine has none."""
    text = read_text(root, path)
    if text is None:
        return None
    chosen = re.search(r"\[([^\]]+)\]", text)
    return {
        "available": text.replace("[", "").replace("]", "").split(),
        "current": chosen.group(1) if chosen else None,
        "obstacle": sys_obstacle(root, path, container),
    }


def sys_obstacle(root: str, path: str, container: str) -> str | None:
    """Return why a file below /sys cannot be written here; None when it can."""
    file = path_below(root, path)
    if os.statvfs(file).f_flag & os.ST_RDONLY:
        return READ_ONLY_SYS
    if container:
        return HOST_SYS
    return None if os.access(file, os.W_OK) else "the kernel offers the file read-only"


def governor(root: str, container: str) -> dict[str, Any] | None:
    """Return how many frequency policies use which governor; None on a machine without frequency scaling."""
    policies = [name for name in list_dir(root, CPUFREQ) if name.startswith("policy")]
    current: dict[str, int] = {}
    available: list[str] | None = None
    obstacle = None
    for name in policies:
        text = read_text(root, f"{CPUFREQ}/{name}/scaling_governor")
        if text is None:
            continue
        current[text.strip()] = current.get(text.strip(), 0) + 1
        if available is None:
            offered = read_text(root, f"{CPUFREQ}/{name}/scaling_available_governors")
            available = (offered or "").split()
            obstacle = sys_obstacle(root, f"{CPUFREQ}/{name}/scaling_governor", container)
    if not current:
        return None
    return {"available": available or [], "current": current, "obstacle": obstacle}


def limits(runner: Runner, root: str) -> dict[str, Any]:
    """Return systemd's default limits: what runs now (None without systemd) and what files set."""
    files = []
    for path in _manager_files(root):
        for number, line in enumerate((read_text(root, path) or "").split("\n"), start=1):
            match = _LIMIT_LINE.match(line)
            if match:
                files.append({"file": path, "line": number, "name": match.group(1), "value": match.group(2)})
    manager: dict[str, str] | None = None
    if os.path.isdir(path_below(root, "/run/systemd/system")):
        properties = ",".join(name + suffix for name in _LIMITS for suffix in ("", "Soft"))
        shown = runner.run(["systemctl", "show", "--property=" + properties], timeout=10)
        if shown.ok:
            manager = dict(line.split("=", 1) for line in shown.out.splitlines() if "=" in line)
    return {"manager": manager, "files": files}


def _manager_files(root: str) -> list[str]:
    main = [
        path
        for path in (directory + "/system.conf" for directory in _MANAGER_DIRECTORIES)
        if os.path.exists(path_below(root, path))
    ][:1]
    drop_ins: dict[str, str] = {}
    for directory in _MANAGER_DIRECTORIES:
        for name in list_dir(root, directory + "/system.conf.d"):
            if name.endswith(".conf"):
                drop_ins.setdefault(name, f"{directory}/system.conf.d/{name}")
    return main + [drop_ins[name] for name in sorted(drop_ins)]


def i915(root: str) -> dict[str, Any]:
    """Return whether the Intel graphics driver is loaded, and its parameters."""
    if not os.path.isdir(path_below(root, I915)):
        return {"present": False, "parameters": {}}
    names = list_dir(root, I915 + "/parameters")
    values = {name: (read_text(root, f"{I915}/parameters/{name}") or "").strip() for name in names}
    return {"present": True, "parameters": values}


def is_virtual(root: str) -> bool:
    """Whether this is a virtual machine: the processor says so, or the firmware's maker does."""
    try:
        with open(path_below(root, "/proc/cpuinfo"), encoding="ascii", errors="replace") as handle:
            first = handle.read(8192).split("\n\n", 1)[0]
    except OSError:
        first = ""
    flags = re.search(r"^flags\s*:(.*)$", first, re.MULTILINE)
    if flags:
        return "hypervisor" in flags.group(1).split()
    vendor = (read_text(root, "/sys/class/dmi/id/sys_vendor") or "").strip()
    product = (read_text(root, "/sys/class/dmi/id/product_name") or "").strip()
    if vendor == "Amazon EC2":
        return not product.endswith(".metal")
    return vendor in ("QEMU", "VMware, Inc.", "Xen", "Google", "innotek GmbH", "Red Hat", "OpenStack Foundation") or (
        vendor == "Microsoft Corporation" and product == "Virtual Machine"
    )


def pci(root: str) -> dict[str, Any]:
    """Return the GPUs with what stands between two of them: bridges that redirect peer traffic, and translation."""
    devices = []
    for gpu in _pci.gpus(root):
        bridges = bridges_above(root, gpu.address)
        redirecting: list[str] | None = []
        for bridge in bridges:
            redirect = acs_redirect(root, bridge)
            if redirect is None:
                redirecting = None
                break
            if redirect and redirecting is not None:
                redirecting.append(bridge)
        group = read_text(root, f"/sys/bus/pci/devices/{gpu.address}/iommu_group/type")
        devices.append(
            {
                "address": gpu.address,
                "device": gpu.device,
                "driver": gpu.driver,
                "acs_redirect": redirecting,
                "iommu": None if group is None else group.strip(),
            }
        )
    return {
        "gpus": devices,
        "iommus": list_dir(root, "/sys/class/iommu"),
        "cmdline": (read_text(root, "/proc/cmdline") or "").split(),
    }


def bridges_above(root: str, address: str) -> list[str]:
    """Return the PCI functions above a device, the root port first."""
    real = os.path.realpath(path_below(root, "/sys/bus/pci/devices/" + address))
    return [part for part in real.split(os.sep)[:-1] if _PCI_ADDRESS.match(part)]


def acs_redirect(root: str, address: str) -> bool | None:
    """Return whether a bridge sends peer requests or completions up to the root complex.

    None: its extended configuration space cannot be read (it takes root), so nothing is known.
    """
    try:
        with open(path_below(root, f"/sys/bus/pci/devices/{address}/config"), "rb") as handle:
            space = handle.read(4096)
    except OSError:
        return None
    if len(space) <= 64:
        return None
    offset = 0x100
    seen = set()
    while offset >= 0x100 and offset + 8 <= len(space) and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(space[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == _ACS_CAPABILITY:
            return bool(int.from_bytes(space[offset + 6 : offset + 8], "little") & _ACS_REDIRECT)
        offset = header >> 20
    return False


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def gpu_device_ids(facts: Mapping[str, Any]) -> list[str]:
    """Return the PCI device ids of the GPUs in the facts, in upper case."""
    return [str(gpu["device"]).upper() for gpu in facts.get("pci", {}).get("gpus", [])]
