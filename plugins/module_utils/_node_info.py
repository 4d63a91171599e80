# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Read-only facts about a node before anything is done to it. Nothing here judges, writes, or needs the network.

Files are read where they say enough; commands are run only where no file does.
"""

from __future__ import annotations

import datetime
import fcntl
import importlib
import os
import re
import struct
import sys
import time
from typing import Any, Callable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _clock,
    _dpkg,
    _fstab,
    _os_release,
    _pci,
    _reach,
    _secureboot,
    _transaction_state,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._repo_login import join_login
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, list_dir, path_below, read_text

SYSTEM_PYTHON = "/usr/bin/python3"

_CPU = "sys/devices/system/cpu"
_CPU_NAME = re.compile(r"^cpu[0-9]+$")
_KERNEL_GCC = re.compile(r"\bgcc(?:-\d+)?\b[^,\n]*?(\d+)\.\d+\.\d+")
_GCC_LINK = re.compile(r"gcc-(\d+)$")
#: DMI product or vendor to the name of the virtual machine monitor.
_MONITORS = (
    ("kvm", "kvm"),
    ("qemu", "qemu"),
    ("vmware", "vmware"),
    ("virtualbox", "virtualbox"),
    ("microsoft corporation virtual machine", "hyperv"),
    ("xen", "xen"),
    ("amazon ec2", "kvm"),
    ("google compute engine", "kvm"),
)


def collect(
    runner: Runner, root: str = "/", kernel_clock: Callable[[], bool | None] = _clock.kernel_clock
) -> dict[str, Any]:
    """Return everything that the verdicts of preflight need, apart from the reachability of addresses.

    Args:
        runner: Runs the few commands (mokutil; chronyc and timedatectl when the kernel's answer is not enough).
        root: Directory that stands for ``/``.
        kernel_clock: Asks the kernel about its clock.
    """
    secure_boot = _secureboot.secure_boot(runner, root)
    if secure_boot["enforced"]:
        secure_boot["keys"] = _secureboot.signing_keys(runner, root)
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "os": _os_release.read(root),
        "architecture": os.uname().machine,
        "kernel": os.uname().release,
        "virtualisation": virtualisation(root),
        "interpreter": interpreter(runner),
        "memory_mib": memory_mib(root),
        "cpu": cpu(root),
        "root_fs": file_system(path_below(root, "/")),
        "packages": packages(root),
        "clock": _clock.clock(runner, kernel_clock()),
        "secure_boot": secure_boot,
        "gpus": [device.as_dict() for device in _pci.gpus(root)],
        "nvswitches": [device.as_dict() for device in _pci.nvswitches(root)],
        "fstab": _fstab.problems(read_text(root, "etc/fstab") or ""),
        "compiler": compiler(root),
    }


def everything(runner: Runner, params: Mapping[str, Any], root: str = "/") -> dict[str, Any]:
    """Return the facts of ``collect`` and whether the package sources answer, by the options of module node_info."""
    sources: dict[str, Any] = {"entries": [], "error": ""}
    addresses = None
    if params["check_addresses"]:
        sources = _reach.package_sources(runner)
        further = [
            {"uri": join_login(one["uri"], one.get("login") or ""), "suite": one["suite"], "origin": one["origin"]}
            for one in params["addresses"]
        ]
        addresses = _reach.check_all(
            [*sources["entries"], *further],
            _reach.apt_proxies(runner),
            root,
            params["timeout"],
            params["deadline"],
        )
    lock = wait_for_lock(root, params["lock_wait"])
    facts = dict(collect(runner, root), sources_error=sources["error"], addresses=addresses)
    facts["packages"]["lock"] = lock
    return facts


def virtualisation(root: str) -> dict[str, str | None]:
    """Return the kind of ``container`` and of virtual ``machine`` that this node is; None for a real one."""
    return {"container": _container(root), "machine": _machine(root)}


def interpreter(
    runner: Runner,
    executable: str = sys.executable,
    load: Callable[[str], Any] = importlib.import_module,
) -> dict[str, Any]:
    """Return the Python that runs this module and whether it can use apt.

    The system's Python is tried only where this one cannot, so that the hint can be exact: another interpreter, or a
    package that is missing.
    """
    facts: dict[str, Any] = {
        "path": executable,
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "apt": True,
        "reason": "",
        "system_python_has_apt": None,
    }
    try:
        load("apt_pkg")
    except ImportError as error:
        tried = runner.run([SYSTEM_PYTHON, "-c", "import apt_pkg"], timeout=20)
        facts.update(apt=False, reason=str(error), system_python_has_apt=tried.ok)
    return facts


def memory_mib(root: str) -> int | None:
    """Return the memory that the kernel manages, a few percent below what is installed; None where unreadable."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", read_text(root, "proc/meminfo") or "", re.MULTILINE)
    return int(found.group(1)) // 1024 if found else None


def cpu(root: str) -> dict[str, Any]:
    """Return ``threads``, ``cores`` (physical, all sockets) and ``source``; cores is None where nothing tells it."""
    siblings = []
    for name in list_dir(root, _CPU):
        if _CPU_NAME.match(name):
            text = read_text(root, f"{_CPU}/{name}/topology/thread_siblings_list")
            # A processor that is switched off has no topology.
            if text:
                siblings.append(text.strip())
    if siblings:
        return {"threads": len(siblings), "cores": len(set(siblings)), "source": "sysfs"}
    return _cpuinfo(read_text(root, "proc/cpuinfo") or "")


def file_system(path: str, statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> dict[str, Any]:
    """Return size and use of a file system as df counts them (blocks reserved for root are neither used nor free)."""
    try:
        found = statvfs(path)
    except OSError as error:
        return {"size_mib": None, "used_percent": None, "inodes_percent": None, "reason": str(error)}
    used = found.f_blocks - found.f_bfree
    files = found.f_files - found.f_ffree
    return {
        "size_mib": found.f_blocks * found.f_frsize // 1048576,
        "free_mib": found.f_bavail * found.f_frsize // 1048576,
        "used_percent": _percent(used, used + found.f_bavail),
        # btrfs and others make inodes as they need them and report none.
        "inodes_percent": _percent(files, files + found.f_favail) if found.f_files else None,
    }


def packages(root: str) -> dict[str, Any]:
    """Return what a run left undone in dpkg's database, our own mark of one in flight, and who works on it now."""
    return {
        "readable": read_text(root, _dpkg.STATUS_FILE) is not None,
        "unfinished": [{"name": one.name, "status": one.status} for one in _dpkg.unfinished(root)],
        "interrupted": _dpkg.interrupted(root),
        "transaction": _transaction_state.read_json(root, _transaction_state.MARK),
        "lock": lock_holder(root),
    }


def lock_holder(root: str) -> dict[str, Any] | None:
    """Return the process that holds dpkg's lock, or None. The lock is only looked at, never taken."""
    try:
        with open(path_below(root, _transaction_state.DPKG_LOCK), "rb") as handle:
            # struct flock on 64-bit Linux: type, whence, start, length, pid.
            wish = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _whence, _start, _length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(handle, fcntl.F_GETLK, wish))
    except OSError:
        return None
    if kind == fcntl.F_UNLCK:
        return None
    command = (read_text("/", f"proc/{pid}/cmdline") or "").replace("\0", " ")
    return {"pid": pid, "command": " ".join(command.split())[:200]}


def wait_for_lock(
    root: str,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any] | None:
    """Return who still holds dpkg's lock after at most ``seconds``; None as soon as nobody does."""
    end = clock() + seconds
    holder = lock_holder(root)
    while holder is not None and clock() < end:
        sleep(0.5)
        holder = lock_holder(root)
    return dict(holder, waited=seconds) if holder else None


def compiler(root: str) -> dict[str, int | None]:
    """Return the major version of the gcc that built the running ``kernel`` and of the node's ``default`` gcc."""
    kernel = _KERNEL_GCC.search(read_text(root, "proc/version") or "")
    try:
        link = _GCC_LINK.search(os.readlink(path_below(root, "usr/bin/gcc")))
    except OSError:
        link = None
    return {"kernel": int(kernel.group(1)) if kernel else None, "default": int(link.group(1)) if link else None}


def _container(root: str) -> str | None:
    named = (read_text(root, "run/systemd/container") or "").strip()
    if named:
        return named
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(path_below(root, path)):
            return name
    found = re.search(r"(?:^|\0)container=([^\0]*)", read_text(root, "proc/1/environ") or "")
    return (found.group(1) or "container") if found else None


def _machine(root: str) -> str | None:
    dmi = "sys/class/dmi/id/"
    text = " ".join((read_text(root, dmi + name) or "").strip() for name in ("sys_vendor", "product_name")).lower()
    for needle, name in _MONITORS:
        if needle in text:
            return name
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", read_text(root, "proc/cpuinfo") or "", re.MULTILINE)
    return "other" if flags else None


def _cpuinfo(text: str) -> dict[str, Any]:
    cores = set()
    threads = 0
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^(processor|physical id|core id)\s*:\s*(\d+)$", block, re.MULTILINE))
        if "processor" not in fields:
            continue
        threads += 1
        if "core id" in fields:
            cores.add((fields.get("physical id", "0"), fields["core id"]))
    return {"threads": threads or None, "cores": len(cores) or None, "source": "cpuinfo"}


def _percent(part: int, whole: int) -> int:
    """Return a percentage rounded up, as df does, so that a limit is never passed unseen."""
    return -(-100 * part // whole) if whole else 0
