# SPDX-License-Identifier: GPL-3.0-or-later
"""Lab machines: virtual machines that really boot, through GRUB, with simulated GPUs on PCI."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from . import models, overlay, paths, vm_image, vm_qemu, vm_ssh
from .progress import LabError, run, say

MACHINES = vm_image.FOLDER / "machines"
DISKS = vm_image.FOLDER / "saved"
#: Under emulation, on a machine that is busy with other things, a boot takes minutes.
BOOT_TIMEOUT_S = 1200.0
STOP_TIMEOUT_S = 300.0
_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Wish:
    """What a machine shall be; disk names a saved one, "" is the bare one."""

    name: str
    gpus: int = 0
    model: str = "h100-sxm"
    disk: str = ""


def folder(name: str) -> Path:
    """Everything that belongs to one machine."""
    return MACHINES / name


def names() -> list[str]:
    """Machines of this checkout."""
    return sorted(path.parent.name for path in MACHINES.glob("*/machine.json"))


def pid_of(name: str) -> int:
    """The machine's process, 0 when it does not run. A pid that another program has by now does not count."""
    try:
        pid = int((folder(name) / "pid").read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if any(os.fsencode(str(folder(name))) in word for word in words) else 0


def _note(name: str) -> dict[str, object]:
    try:
        data: dict[str, object] = json.loads((folder(name) / "machine.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"there is no machine {name}; `lab/bin/gpulab vm list` shows those that are") from error
    return data


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def seed(wish: Wish) -> bytes:
    """What makes this machine differ from others of the same disk: unpacked over its root at the first boot."""
    public = vm_ssh.ensure_key().with_suffix(".pub").read_bytes()
    content: overlay.Contents = {
        "etc/hostname": (f"{wish.name}\n".encode(), 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n127.0.1.1 {wish.name}\n".encode(), 0o644),
        "root/.ssh/authorized_keys": (public, 0o600),
        "var/lib/simgpu/state": (models.state(wish.name, wish.model, wish.gpus).encode(), 0o644),
    }
    return overlay.archive(content)


def command(name: str, port: int, kvm: bool) -> list[str]:
    """The QEMU command line of a machine."""
    place = folder(name)
    return [
        *vm_qemu.machine(kvm),
        *("-name", f"gpulab-{name}"),
        *vm_qemu.disk(place / "disk.qcow2", "qcow2"),
        *vm_qemu.disk(place / "seed.tar", "raw"),
        *vm_qemu.network(port),
        *vm_qemu.console(place / "console.log"),
        *vm_qemu.daemon(place / "pid"),
    ]


def _start(name: str) -> None:
    note = _note(name)
    kvm = vm_qemu.kvm_works()
    note["port"] = _free_port()
    (folder(name) / "machine.json").write_text(json.dumps(note), encoding="utf-8")
    vm_ssh.write_config({machine: int(str(_note(machine)["port"])) for machine in names()})
    run(f"starting {name} {'with KVM' if kvm else 'under emulation'}", command(name, int(str(note["port"])), kvm),
        folder(name) / "qemu.log")  # fmt: skip


def _console_end(name: str) -> str:
    try:
        text = (folder(name) / "console.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(line for line in text.replace("\r", "").splitlines() if line.strip())[-1500:]


def _failure(name: str, why: str) -> LabError:
    failed = vm_ssh.ask(name, "systemctl --failed --no-legend --plain; journalctl -b -p warning --no-pager -n 30")
    return LabError(f"machine {name}: {why}\n{failed}\nThe end of its console:\n{_console_end(name)}")


def wait_running(name: str, before: str = "", timeout: float = BOOT_TIMEOUT_S) -> str:
    """Waits until the machine has finished a boot other than `before`; returns its id."""
    end = time.monotonic() + timeout
    told = time.monotonic()
    while time.monotonic() < end:
        if time.monotonic() - told > 15:
            last = _console_end(name).rpartition("\n")[2][-90:]
            say(f"{name} is booting: {last}")
            told = time.monotonic()
        if not pid_of(name):
            raise LabError(f"machine {name} has stopped. The end of its console:\n{_console_end(name)}")
        boot = vm_ssh.ask(name, _BOOT_ID) if vm_ssh.answers(int(str(_note(name)["port"]))) else ""
        if boot and boot != before:
            state = vm_ssh.ask(name, "systemctl is-system-running --wait")
            if state == "running":
                return boot
            if state == "degraded":
                raise _failure(name, "booted, but units failed")
        time.sleep(0.5)
    raise _failure(name, f"not up within {timeout:.0f} s")


def up(wish: Wish) -> None:
    """Makes and boots a machine; one of that name and wish is left alone, or started again when it is off."""
    place = folder(wish.name)
    began = time.monotonic()
    if (place / "machine.json").exists():
        if _note(wish.name)["wish"] != asdict(wish):
            raise LabError(f"machine {wish.name} exists with other properties: `gpulab vm down {wish.name}` first")
        if not pid_of(wish.name):
            _start(wish.name)
        wait_running(wish.name)
        say(f"{wish.name} already exists and runs")
        return
    base = saved(wish.disk) if wish.disk else vm_image.ensure()
    vm_ssh.ensure_key()
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / "base").write_text(_root_disk(base), encoding="utf-8")
        (place / "seed.tar").write_bytes(seed(wish))
        vm_qemu.overlay(base, place / "disk.qcow2")
        (place / "machine.json").write_text(json.dumps({"wish": asdict(wish), "port": 0}), encoding="utf-8")
        _start(wish.name)
        wait_running(wish.name)
    except BaseException as error:
        # What never came up is not left behind, also when the operator interrupts; its story is in the error.
        if not isinstance(error, LabError) or "units failed" not in str(error):
            down(wish.name)
        raise
    kernel = vm_ssh.ask(wish.name, "uname -r")
    say(f"{wish.name} is up after {time.monotonic() - began:.1f} s: kernel {kernel}")


def kill(name: str) -> None:
    """Cuts the power."""
    pid = pid_of(name)
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _gone(name, pid)
    (folder(name) / "pid").unlink(missing_ok=True)


def _gone(name: str, pid: int) -> None:
    end = time.monotonic() + STOP_TIMEOUT_S
    while pid_of(name) == pid:
        if time.monotonic() > end:
            raise LabError(f"machine {name} (process {pid}) does not stop")
        time.sleep(0.05)


def down(name: str) -> None:
    """Removes a machine."""
    if not folder(name).is_dir():
        say(f"{name} does not exist")
        return
    kill(name)
    vm_ssh.hang_up(name)
    shutil.rmtree(folder(name))
    say(f"{name} is gone")


def reboot(name: str, hard: bool = False) -> None:
    """An orderly reboot, or a power cut and a new start; returns when the new boot is up."""
    _note(name)
    began = time.monotonic()
    before = ""
    if hard:
        kill(name)
        vm_ssh.hang_up(name)
        _start(name)
    else:
        before = vm_ssh.ask(name, _BOOT_ID)
        if not before:
            raise LabError(f"machine {name} does not answer; `--hard` cuts its power instead")
        vm_ssh.ask(name, "systemctl reboot")
        vm_ssh.hang_up(name)
    wait_running(name, before)
    say(f"{name} is back after {time.monotonic() - began:.1f} s: kernel {vm_ssh.ask(name, 'uname -r')}")


def saved(name: str) -> Path:
    """A disk that `save` or `disk` kept."""
    for path in (DISKS / f"{name}.qcow2", DISKS / f"{name}.raw"):
        if path.exists():
            return path
    raise LabError(f"there is no saved disk {name}")


def disk_from_container(container: str, disk: str) -> None:
    """Keeps a node of the container level as a disk to start from; the node is stopped."""
    vm_image.from_container(container, DISKS / f"{disk}.raw")
    say(f"{container} is off; what was on it is kept as {disk}")


def _root_disk(base: Path) -> str:
    """The disk that this one is, or differs from: it may not be cleaned up as long as somebody needs it."""
    note = base.with_suffix(".base")
    return note.read_text(encoding="utf-8").strip() if note.exists() else str(base)


def save(name: str, disk: str) -> None:
    """Shuts a machine down and keeps its disk, for other machines to start from."""
    _note(name)
    pid = pid_of(name)
    if pid:
        vm_ssh.ask(name, "rm -f /var/lib/simgpu/state; systemctl poweroff")
        vm_ssh.hang_up(name)
        _gone(name, pid)
    DISKS.mkdir(parents=True, exist_ok=True)
    target = DISKS / f"{disk}.qcow2"
    # The copy stays a difference to its base, so that it is quick and small.
    shutil.copy(folder(name) / "disk.qcow2", target.with_suffix(".part"))
    shutil.copy(folder(name) / "base", target.with_suffix(".base"))
    target.with_suffix(".part").rename(target)
    say(f"{name} is off; its disk is kept as {disk}")


def listing() -> list[str]:
    """One line a machine."""
    rows = []
    for name in names():
        pid = pid_of(name)
        kernel = vm_ssh.ask(name, "uname -r") if pid else "off"
        how = f"ssh -F {vm_ssh.CONFIG.relative_to(paths.ROOT)} {name}"
        rows.append(f"{name:<24} {kernel or 'does not answer':<24} {how}")
    return rows


def execute(name: str, words: list[str]) -> NoReturn:
    """Becomes ssh."""
    _note(name)
    os.execvp("ssh", [*vm_ssh.command(), *(["-t"] if not words else []), name, *words])


def stop_all() -> None:
    """Removes every machine of this checkout, also what a killed start left."""
    for path in sorted(MACHINES.glob("*")) if MACHINES.is_dir() else []:
        down(path.name)
