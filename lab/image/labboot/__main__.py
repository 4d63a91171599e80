# SPDX-License-Identifier: GPL-3.0-or-later
"""`python3 -m labboot boot | modprobe ... | rmmod ... | pci`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from . import grub, kernels, machine, modules
from .gpus import parse_state

GRUB = "/boot/grub"
CACHE = "/var/cache/gpu-node-lab/initramfs"
BOOT = machine.RUN + "/boot.json"


def _kernel_file(entry: grub.Entry) -> str:
    path = entry.linux if entry.linux.startswith("/boot/") else "/boot" + entry.linux
    return os.path.realpath(path)


def _usable(entry: grub.Entry) -> str:
    path = _kernel_file(entry)
    if not os.path.isfile(path):
        return f"file `{entry.linux}' not found"
    if kernels.kernel_banner(path) is None:
        return f"invalid magic number in `{entry.linux}'"
    return ""


def _pick() -> tuple[grub.Choice, dict[str, str], list[str]]:
    """The entry that comes up; a kernel the state file calls broken dies, and the power cycle after it boots again."""
    state = parse_state(machine.read(modules.STATE))
    menu = grub.parse_menu(machine.read(GRUB + "/grub.cfg"))
    environment = grub.parse_environment(machine.read(GRUB + "/grubenv"))
    notes: list[str] = []
    for _attempt in range(2):
        choice = grub.choose(menu, environment, _usable)
        if choice is None:
            raise SystemExit(f"lab-boot: no entry of {GRUB}/grub.cfg can start")
        if choice.environment != environment:
            machine.write(GRUB + "/grubenv", grub.format_environment(choice.environment))
        environment = choice.environment
        notes.extend(choice.notes)
        release = os.path.basename(_kernel_file(choice.entry)).partition("-")[2]
        if release not in state.get("boot.panic", "").split():
            return choice, state, notes
        notes.append(f"{release}: kernel panic, power cycle")
    raise SystemExit("lab-boot: kernel panic in the default kernel")


def _initramfs(release: str) -> tuple[bool, set[str]]:
    """Whether the kernel's initramfs carries nouveau, and the blacklist inside it; cached until the file changes."""
    image = "/boot/initrd.img-" + release
    try:
        stat = os.stat(image)
    except OSError:
        return False, set()
    key = f"{release} {stat.st_mtime_ns} {stat.st_size}"
    lines = machine.read(CACHE).splitlines()
    if lines and lines[0] == key:
        return lines[1] == "nouveau", set(lines[2].split())
    names = subprocess.run(["lsinitramfs", image], capture_output=True, text=True, check=False).stdout.splitlines()
    has = any(kernels.normalise(name) == "nouveau" and ".ko" in name for name in names)
    barred: set[str] = set()
    if has:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["unmkinitramfs", image, folder], capture_output=True, check=False)
            for where, _, files in os.walk(folder):
                if where.endswith("/modprobe.d"):
                    for name in files:
                        barred |= kernels.blacklist(machine.read(os.path.join(where, name)))
    machine.write(CACHE, "{}\n{}\n{}\n".format(key, "nouveau" if has else "-", " ".join(sorted(barred))))
    return has, barred


def _load_at_boot(release: str) -> list[str]:
    notes: list[str] = []
    if not modules.current_gpus():
        return notes
    shown = subprocess.run([modules.MODPROBE, "-c"], capture_output=True, text=True, check=False).stdout
    barred = kernels.blacklist(shown)
    early, early_barred = _initramfs(release)
    try:
        if early and "nouveau" not in early_barred:
            modules.load_nouveau(release)
            notes.append("nouveau was loaded from the initramfs")
    except modules.LoadError as error:
        notes.append(str(error))
    path = modules.candidates(release, "nvidia")
    if not path:
        notes.append("no nvidia module in the index of " + release)
    elif "nvidia" in barred or kernels.normalise(path) in barred:
        notes.append("nvidia is blacklisted")
    else:
        try:
            notes.extend(modules.load_family(release))
        except modules.LoadError as error:
            notes.append(str(error))
    if not modules.loaded() and "nouveau" not in barred:
        try:
            modules.load_nouveau(release)
        except modules.LoadError as error:
            notes.append(str(error))
    return notes


def boot() -> int:
    """Runs once at container start, before everything else."""
    choice, _state, notes = _pick()
    banner = kernels.kernel_banner(_kernel_file(choice.entry))
    assert banner is not None
    machine.make_disk()
    machine.cover_kernel(banner, (f"BOOT_IMAGE={choice.entry.linux} {choice.entry.arguments}").strip())
    machine.cover_log()
    machine.cover_modules()
    machine.cover_pci([*modules.current_gpus(), *modules.current_switches()])
    notes.extend(_load_at_boot(banner.release))
    machine.write_json(
        BOOT,
        {
            "kernel": banner.release,
            "entry": choice.path,
            "title": choice.entry.title,
            "one_shot": choice.one_shot,
            "loaded": modules.loaded(),
            "driver_version": machine.read("/sys/module/nvidia/version").strip(),
            "boot_id": machine.read("/proc/sys/kernel/random/boot_id").strip(),
            "notes": notes,
        },
    )
    return 0


def modprobe(arguments: list[str]) -> int:
    """`modprobe [-r] [-a] [-q] NAME...` for the simulated names."""
    flags = [word for word in arguments if word.startswith("-")]
    short = "".join(word[1:] for word in flags if not word.startswith("--"))
    quiet = "q" in short or "--quiet" in flags
    names = [word for word in arguments if not word.startswith("-")]
    remove = "r" in short or "--remove" in flags
    parameters: list[str] = []
    if not remove and not ("a" in short or "--all" in flags):
        names, parameters = names[:1], names[1:]
    release = os.uname().release
    for name in names:
        try:
            if remove:
                modules.unload(name, with_users=True)
            elif kernels.normalise(name) == "nouveau":
                modules.load_nouveau(release)
            elif modules.usual_name(name) == "nvidia":
                modules.load_nvidia(release, parameters)
            else:
                modules.load_helper(release, name)
        except modules.LoadError as error:
            if not quiet:
                print(f"modprobe: {error}", file=sys.stderr)
            return 1
    return 0


def rmmod(arguments: list[str]) -> int:
    """`rmmod NAME...` for the simulated names."""
    status = 0
    for name in arguments:
        if name.startswith("-"):
            continue
        try:
            modules.unload(name)
        except modules.LoadError as error:
            print(f"rmmod: {error}", file=sys.stderr)
            status = 1
    return status


def main(arguments: list[str]) -> int:
    """Dispatches the first word."""
    if not arguments or arguments[0] not in ("boot", "modprobe", "rmmod"):
        print("usage: labboot boot | modprobe ... | rmmod ...", file=sys.stderr)
        return 2
    if arguments[0] == "boot":
        return boot()
    return modprobe(arguments[1:]) if arguments[0] == "modprobe" else rmmod(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
