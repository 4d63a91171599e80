# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk that lab machines start from: Debian with the lab's repositories, GRUB and a module for simulated cards.

Made from the base image and the repositories of the container level; whatever can be done natively in a chroot is.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Callable

from . import build, chroot, docker, overlay, paths, vm_qemu
from .hashing import digest, files_below
from .plan import Plan
from .progress import LabError, locked, run, step
from .suites import SUITES

SUITE = "bookworm"
SOURCES = paths.IMAGE / "vm"
FOLDER = paths.CACHE / "vm"
BASES = FOLDER / "base"
WORK = FOLDER / "work"
DISK_MIB = 6144
FIRST_SECTOR = 2048
SECTOR = 512
PREPARED = "GPULAB PREPARED"
PREPARE_TIMEOUT_S = 1800.0
KEPT = 2
_CODE = ("vm_image.py", "chroot.py")
_MODULES = """
cd /usr/lib/gpu-node-lab/pci-source
for headers in /usr/src/lab-headers/usr/src/linux-headers-*-amd64; do
    release=${headers##*/linux-headers-}
    common=${headers%-amd64}-common
    make -s -C "$common" O="$headers" M="$PWD" CC=gcc-12 KCFLAGS=-g0 CONFIG_DEBUG_INFO_BTF_MODULES= modules
    mkdir -p "../pci/$release"
    mv simgpu_pci.ko "../pci/$release/"
    make -s -C "$common" O="$headers" M="$PWD" clean
done
cd .. && rm -r pci-source
"""


def files(suite: str = SUITE) -> overlay.Contents:
    """What the lab puts into the machine's root file system, beside what its base image has."""
    prefix = overlay.PREFIX
    places = {
        "gpu-node-lab-vm.service": "etc/systemd/system/gpu-node-lab-vm.service",
        "20-lab.network": "etc/systemd/network/20-lab.network",
        "grub.cfg": "etc/default/grub.d/lab-vm.cfg",
        "simgpu_pci.c": f"{prefix}/pci-source/simgpu_pci.c",
        "Kbuild": f"{prefix}/pci-source/Kbuild",
    }
    found: overlay.Contents = {}
    for path in files_below(SOURCES):
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        found[places.get(path.name, f"{prefix}/{path.name}")] = (path.read_bytes(), mode)
    found["etc/apt/sources.list.d/debian.sources"] = (overlay.sources(SUITES[suite]).encode(), 0o644)
    found["usr/local/bin/simgpu"] = (overlay.SIMGPU.read_bytes(), 0o755)
    return found


def key(wish: Plan) -> str:
    """Hash over what decides the disk's content."""
    here = Path(__file__).parent
    inputs = [*(here / name for name in _CODE), *files_below(SOURCES), overlay.SIMGPU]
    return digest(inputs, paths.LAB, wish.base_key, wish.repository_key, str(DISK_MIB))


def path_of(wish: Plan) -> Path:
    """Where the finished disk lies."""
    return BASES / f"{wish.suite.name}-{key(wish)}.raw"


def ident() -> dict[str, str]:
    """The disk's names, the same that the container level pretends."""
    rows = (paths.IMAGE / "base" / "disk.conf").read_text(encoding="utf-8").splitlines()
    return dict(row.split("=", 1) for row in rows if row and not row.startswith("#"))


def partition_table(signature: int, sectors: int) -> bytes:
    """A master boot record with one bootable Linux partition; boot code comes from grub-install."""
    size = sectors - FIRST_SECTOR
    entry = struct.pack("<B3sB3sII", 0x80, b"\x20\x21\x00", 0x83, b"\xfe\xff\xff", FIRST_SECTOR, size)
    return b"\0" * 440 + struct.pack("<IH", signature, 0) + entry + b"\0" * 48 + b"\x55\xaa"


def ensure() -> Path:
    """The disk for today's sources, built when it is not there."""
    vm_qemu.ensure_host()
    wish = build.ensure([SUITE])[SUITE]
    target = path_of(wish)
    if target.exists():
        return target
    with locked(FOLDER / "build.lock", "the disk of this checkout's machines"):
        if not target.exists():
            _build(wish, target)
            _prune(target)
    return target


def _build(wish: Plan, target: Path) -> None:
    def export(root: Path) -> None:
        name = docker.docker("create", "--label", f"{build.BUILD_LABEL}={paths.ROOT}", wish.base_image, "/bin/true")
        try:
            _export(name.strip(), root)
        finally:
            docker.docker("rm", "-f", name.strip(), check=False)

    _make(wish, target, export)


def from_container(container: str, target: Path) -> None:
    """A disk from a container node, with what was done there; its stand-ins give way to the real things."""
    vm_qemu.ensure_host()
    wish = build.ensure([SUITE])[SUITE]
    with locked(FOLDER / "build.lock", "the disk of this checkout's machines"):
        docker.docker("stop", "--time", "60", container)
        _make(wish, target, lambda root: _export(container, root))


def _make(wish: Plan, target: Path, export: Callable[[Path], None]) -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    root = WORK / "root"
    log = paths.LOGS / "vm-disk.log"
    root.mkdir(parents=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = WORK / "disk.raw"
    before = key(wish)
    try:
        with step("[vm] root file system from the container"):
            export(root)
        with step("[vm] the lab's repositories and files"):
            shutil.copytree(wish.repository, root / "srv" / "lab", symlinks=True, dirs_exist_ok=True)
            overlay.apply_to_tree(files(wish.suite.name), root, log)
        install = f"/{overlay.PREFIX}/install-vm.sh"
        chroot.inside("[vm] ssh and the tool chain, natively", root, install, log)
        _modules(wish, root, log)
        kernel, initrd = _kernel(root)
        for source, name in ((kernel, "vmlinuz"), (initrd, "initrd")):
            shutil.copy(source, WORK / name)
        _disk(root, part, log)
        _prepare(part, log)
        if key(wish) != before:
            raise LabError("files of the lab changed while they were being used; run it again")
        part.rename(target)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


def _export(container: str, root: Path) -> None:
    with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE, start_new_session=True) as source:
        argv = ["tar", "-C", str(root), "--numeric-owner", "--exclude=dev/*", "--exclude=.dockerenv", "-x"]
        unpacked = subprocess.run(argv, stdin=source.stdout, check=False, start_new_session=True)
    if source.returncode != 0 or unpacked.returncode != 0:
        raise LabError(f"unpacking {container} into {root} failed")


def _modules(wish: Plan, root: Path, log: Path) -> None:
    """The simulated cards' module for every kernel that the repository offers."""
    where = WORK / "headers"
    names = re.compile(r"linux-(headers-\d.*-(amd64|common)|kbuild-\d.*)_")
    for deb in sorted((wish.base_folder / "pool").rglob("linux-*.deb")):
        if names.match(deb.name):
            run(f"unpacking {deb.name}", ["dpkg-deb", "-x", str(deb), str(where)], log)
    title = "[vm] the module for simulated cards, for each kernel"
    chroot.inside(title, root, _MODULES, log, {where: "/usr/src/lab-headers"})
    (root / "usr/src/lab-headers").rmdir()


def _kernel(root: Path) -> tuple[Path, Path]:
    found = sorted((root / "boot").glob("vmlinuz-*"))
    if len(found) != 1:
        raise LabError(f"the base image has {len(found)} kernels, not one")
    return found[0], found[0].with_name(found[0].name.replace("vmlinuz-", "initrd.img-"))


def _disk(root: Path, disk: Path, log: Path) -> None:
    sectors = DISK_MIB * 1024 * 1024 // SECTOR
    names = ident()
    with disk.open("wb") as handle:
        handle.write(partition_table(int(names["LAB_ROOT_PARTUUID"].partition("-")[0], 16), sectors))
        handle.truncate(sectors * SECTOR)
    # One block group less would do; whole mebibytes keep it simple.
    argv = ["mke2fs", "-q", "-F", "-t", "ext4", "-U", names["LAB_ROOT_UUID"], "-d", str(root)]
    argv += ["-E", f"offset={FIRST_SECTOR * SECTOR},root_owner=0:0", str(disk), f"{DISK_MIB - 2}m"]
    run("[vm] the disk with its file system", argv, log)


def _prepare(disk: Path, log: Path) -> None:
    """The one boot without boot loader, which installs it."""
    console = WORK / "console.log"
    argv = [*vm_qemu.machine(vm_qemu.kvm_works()), *vm_qemu.disk(disk, "raw"), *vm_qemu.console(console), "-no-reboot"]
    append = f"root=/dev/vda1 ro quiet console=ttyS0 panic=-1 init=/{overlay.PREFIX}/prepare"
    argv += ["-kernel", str(WORK / "vmlinuz"), "-initrd", str(WORK / "initrd"), "-append", append]
    title = "[vm] first boot: grub-install and update-grub on the real disk"
    run(title, ["timeout", f"{PREPARE_TIMEOUT_S:.0f}", *argv], log)
    said = console.read_text(encoding="utf-8", errors="replace")
    with log.open("a", encoding="utf-8") as out:
        out.write(said)
    if PREPARED not in said:
        raise LabError(f"the boot loader was not installed. The end of {log}:\n{said[-1500:]}")


def _prune(current: Path) -> None:
    """Older disks, but not those that a machine or a saved disk still needs."""
    used = set()
    for note in [*FOLDER.glob("machines/*/base"), *FOLDER.glob("saved/*.base")]:
        used.add(Path(note.read_text(encoding="utf-8").strip()))
    disks = sorted(BASES.glob("*.raw"), key=lambda path: -path.stat().st_mtime)
    for path in disks[KEPT:]:
        if path != current and path not in used:
            path.unlink()
