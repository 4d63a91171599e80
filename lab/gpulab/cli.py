# SPDX-License-Identifier: GPL-3.0-or-later
"""Command line of the lab."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import NoReturn

from . import build, docker, models, node, paths, vm, vm_cli
from .progress import LabError, say, stop_children
from .suites import SUITES


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpulab", description="Lab nodes with simulated GPUs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    setup = commands.add_parser("setup", help="Docker, images and repositories; does nothing when all is up to date")
    setup.add_argument("--suite", action="append", default=[], choices=sorted(SUITES), help="default: all")
    setup.add_argument("--prune", action="store_true", help="afterwards remove older images and repositories")

    up = commands.add_parser("up", help="make and boot a node")
    up.add_argument("name")
    up.add_argument("--suite", default="bookworm", choices=sorted(SUITES))
    up.add_argument("--like", default="", choices=["", *node.LIKE], help="stand-in for another distribution")
    up.add_argument("--gpus", type=int, default=0, help="number of simulated GPUs")
    up.add_argument("--no-gpu", action="store_true", help="the same as --gpus 0")
    up.add_argument("--gpu-model", default="h100-sxm", choices=models.names())
    up.add_argument("--nvswitches", type=int, default=0, help="number of NVSwitches on PCI")
    up.add_argument("--image", default="", help="another image than the one of the suite")

    down = commands.add_parser("down", help="remove nodes")
    down.add_argument("names", nargs="*")
    down.add_argument("--all", action="store_true", help="all nodes of this checkout")

    reboot = commands.add_parser("reboot", help="restart a node through the simulated boot loader")
    reboot.add_argument("names", nargs="+")

    commands.add_parser("list", help="nodes of this checkout with kernel and loaded modules")

    execute = commands.add_parser("exec", help="run a command in a node")
    execute.add_argument("name")
    execute.add_argument("argv", nargs=argparse.REMAINDER)

    boot = commands.add_parser("boot-report", help="what the last simulated boot did, as JSON")
    boot.add_argument("name")

    vm_cli.add_parser(commands)

    commands.add_parser("tools", help="install the compiler and packer that the unit tests need, and nothing else")
    commands.add_parser("teardown", help="remove nodes and images of this checkout, stop its Docker Engine")
    return parser


def _interrupted(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _dispatch(options: argparse.Namespace) -> int:
    if options.command == "setup":
        ready = build.ensure(build.check_names(options.suite))
        if options.prune:
            build.prune()
        for item in ready.values():
            say(f"{item.suite.name}: image {item.image}, repositories {item.repository.relative_to(paths.ROOT)}")
        return 0
    if options.command == "tools":
        docker.ensure_tools(docker.BUILD_TOOLS)
        return 0
    if options.command == "up":
        count = 0 if options.no_gpu else options.gpus
        node.up(
            node.Wish(
                options.name, options.suite, options.like, count, options.gpu_model, options.image, options.nvswitches
            )
        )
        return 0
    if options.command == "down":
        if not options.names and not options.all:
            raise LabError("name the nodes, or say --all")
        for name in node.names() if options.all else options.names:
            node.down(name)
        return 0
    if options.command == "reboot":
        for name in options.names:
            node.reboot(name)
        return 0
    if options.command == "list":
        for name in node.names():
            report = node.boot_report(name)
            print(f"{name:<24} {report.kernel:<24} {' '.join(report.loaded)}")
        return 0
    if options.command == "exec":
        words = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
        flags = ["-it"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]
        os.execvp("docker", ["docker", "exec", *flags, options.name, *(words or ["/bin/bash", "-l"])])
    if options.command == "vm":
        return vm_cli.dispatch(options)
    if options.command == "boot-report":
        print(node.inside(options.name, "cat", "/run/lab/boot.json"), end="")
        return 0
    vm.stop_all()
    for name in node.names():
        node.down(name)
    if docker.running():
        build.remove_images()
    if docker.stop_engine():
        say("the Docker Engine that the lab had started is stopped")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupted)
    try:
        return _dispatch(options)
    except LabError as error:
        print(f"gpulab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        stop_children()
        print("gpulab: interrupted; what was half made is removed", file=sys.stderr)
        return 130
