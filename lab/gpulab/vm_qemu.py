# SPDX-License-Identifier: GPL-3.0-or-later
"""QEMU: there, with or without KVM, and its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import docker, paths
from .progress import LabError, locked, output, run, say

TOOLS = (
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("mke2fs", "e2fsprogs"),
)
MEMORY_MIB = 3072
# mov al, 16; out 0xf4, al; hlt: the debug exit device then ends QEMU with exit status 33.
_PROOF = b"\xb0\x10\xe6\xf4\xf4".ljust(510, b"\0") + b"\x55\xaa"
_PROOF_STATUS = 33
_PROOF_TIMEOUT_S = 20.0


def missing() -> list[str]:
    """Debian packages that this machine lacks."""
    found: list[str] = []
    for tool, package in TOOLS:
        if shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None and package not in found:
            found.append(package)
    return found


def ensure_host() -> None:
    """Installs what is missing."""
    lacks = missing()
    if not lacks:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LabError(f"missing on this machine: {', '.join(lacks)}; install them, or run this as root where apt is")
    with locked(docker.MACHINE_LOCK, "this machine's tools"):
        log = paths.LOGS / "host.log"
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        apt = ["apt-get", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]
        try:
            run("refreshing this machine's package lists", [*apt, "update"], log, env)
        except LabError as error:
            say(f"package lists only partly refreshed ({str(error).splitlines()[0]})")
        lacks = missing()
        title = "installing on this machine: " + " ".join(lacks)
        run(title, [*apt, "install", "-y", "--no-install-recommends", *lacks], log, env)
        if missing():
            raise LabError(f"{', '.join(missing())} installed, but its commands are still not found; see {log}")


def virtualises(cpuinfo: str) -> bool:
    """Whether the processor can; where it cannot, some kernels offer a KVM that emulates half a machine."""
    rows = [line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags")]
    return bool(rows) and bool({"vmx", "svm"} & set(rows[0]))


def kvm_works() -> bool:
    """Whether a virtual processor really runs: a device file alone proves nothing inside a virtual machine."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    if not virtualises(Path("/proc/cpuinfo").read_text(encoding="utf-8")):
        return False
    with tempfile.NamedTemporaryFile(suffix=".img") as sector:
        sector.write(_PROOF)
        sector.flush()
        argv = ["qemu-system-x86_64", "-accel", "kvm", "-m", "32", "-nodefaults", "-display", "none", "-no-reboot"]
        argv += ["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-drive", f"file={sector.name},format=raw"]
        try:
            done = subprocess.run(argv, capture_output=True, check=False, timeout=_PROOF_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == _PROOF_STATUS


def machine(kvm: bool) -> list[str]:
    """Processor and memory. Under emulation one processor only: kernel 6.12 dies on two (QEMU 7.2)."""
    argv = ["qemu-system-x86_64", "-nodefaults", "-vga", "std", "-display", "none", "-rtc", "base=utc"]
    argv += ["-m", str(MEMORY_MIB)]
    if kvm:
        return [*argv, "-machine", "q35,accel=kvm", "-cpu", "host", "-smp", "2"]
    return [*argv, "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max", "-smp", "1"]


def disk(path: Path, form: str) -> list[str]:
    """A disk; what a killed QEMU has not yet written stays in the host's memory, which does not die with it."""
    return ["-drive", f"file={_quoted(path)},if=virtio,format={form},cache=unsafe"]


def network(port: int) -> list[str]:
    """A network that leads nowhere: only ssh from this machine gets in."""
    return ["-nic", f"user,model=virtio-net-pci,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"]


def console(path: Path) -> list[str]:
    """The first serial port, appended to a file."""
    return ["-chardev", f"file,id=console,path={_quoted(path)},append=on", "-serial", "chardev:console"]


def daemon(pidfile: Path) -> list[str]:
    """In the background once the devices are there."""
    return ["-daemonize", "-pidfile", str(pidfile)]


def _quoted(path: Path) -> str:
    """QEMU separates options by commas, and doubles them where they are meant."""
    return str(path).replace(",", ",,")


def overlay(base: Path, target: Path) -> None:
    """A disk that holds only what differs from its base."""
    output(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw" if base.suffix == ".raw" else "qcow2",
            "-b", str(base), str(target)])  # fmt: skip
