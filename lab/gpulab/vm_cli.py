# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpulab vm`: the commands for machines that really boot."""

from __future__ import annotations

import argparse
from typing import Any

from . import models, paths, vm, vm_image
from .progress import LabError, say


def add_parser(commands: Any) -> None:
    """Adds `vm` with its own commands."""
    group = commands.add_parser("vm", help="machines that really boot: virtual, through GRUB, with SSH")
    verbs = group.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    verbs.add_parser("setup", help="QEMU and the disk that machines start from; does nothing when all is up to date")

    up = verbs.add_parser("up", help="make and boot a machine")
    up.add_argument("name")
    up.add_argument("--gpus", type=int, default=0, help="number of simulated GPUs")
    up.add_argument("--gpu-model", default="h100-sxm", choices=models.names())
    up.add_argument("--disk", default="", help="start from a saved disk instead of the bare one")

    down = verbs.add_parser("down", help="remove machines")
    down.add_argument("names", nargs="*")
    down.add_argument("--all", action="store_true", help="all machines of this checkout")

    reboot = verbs.add_parser("reboot", help="reboot a machine and wait for it")
    reboot.add_argument("name")
    reboot.add_argument("--hard", action="store_true", help="cut its power instead of asking it")

    kill = verbs.add_parser("kill", help="cut a machine's power; `up` starts it again")
    kill.add_argument("name")

    save = verbs.add_parser("save", help="shut a machine down and keep its disk for `up --disk`")
    save.add_argument("name")
    save.add_argument("disk")

    disk = verbs.add_parser("disk", help="stop a container node and keep what is on it as a disk for `up --disk`")
    disk.add_argument("container")
    disk.add_argument("disk")

    verbs.add_parser("list", help="machines of this checkout")

    execute = verbs.add_parser("exec", help="run a command on a machine, through ssh")
    execute.add_argument("name")
    execute.add_argument("argv", nargs=argparse.REMAINDER)


def dispatch(options: argparse.Namespace) -> int:
    """Carries one of them out."""
    if options.verb == "setup":
        say(f"machines start from {vm_image.ensure().relative_to(paths.ROOT)}")
    elif options.verb == "up":
        vm.up(vm.Wish(options.name, options.gpus, options.gpu_model, options.disk))
    elif options.verb == "down":
        if not options.names and not options.all:
            raise LabError("name the machines, or say --all")
        if options.all:
            vm.stop_all()
        for name in options.names:
            vm.down(name)
    elif options.verb == "reboot":
        vm.reboot(options.name, options.hard)
    elif options.verb == "kill":
        vm.kill(options.name)
    elif options.verb == "save":
        vm.save(options.name, options.disk)
    elif options.verb == "disk":
        vm.disk_from_container(options.container, options.disk)
    elif options.verb == "list":
        print("".join(row + "\n" for row in vm.listing()), end="")
    else:
        vm.execute(options.name, options.argv[1:] if options.argv[:1] == ["--"] else options.argv)
    return 0
