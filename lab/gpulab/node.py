# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes: containers that boot systemd and play a machine."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from . import build, models, paths
from .docker import docker, running
from .progress import LabError, say, short, step

BOOT_TIMEOUT_S = 180.0
LIKE = {"ubuntu-22.04": "bookworm", "ubuntu-24.04": "trixie"}
# No --privileged: it asks for CAP_SYS_RESOURCE, which is withheld inside many virtual machines and containers.
RUN_FLAGS = (
    "--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined", "--cgroupns=private",
    "--tmpfs", "/run:exec,mode=755", "--tmpfs", "/tmp:exec,mode=1777",
    "--restart", "unless-stopped", "--stop-signal", "SIGRTMIN+3",
)  # fmt: skip


@dataclass(frozen=True)
class Wish:
    """What a node shall be."""

    name: str
    suite: str
    like: str = ""
    gpus: int = 0
    model: str = "h100-sxm"
    image: str = ""
    switches: int = 0


def _inspect(name: str, template: str) -> str:
    return docker("inspect", "--format", template, name, check=False).strip()


def exists(name: str) -> bool:
    """Whether there is a container of that name."""
    return bool(_inspect(name, "{{.Id}}"))


def _label(name: str, key: str) -> str:
    return _inspect(name, f'{{{{index .Config.Labels "{paths.LABEL}{key}"}}}}')


def _check_ours(name: str) -> None:
    """Refuses what is no node of this checkout; a node whose checkout is gone belongs to whoever asks."""
    if _label(name, "") != "1":
        raise LabError(f"container {name} is none of the lab's; it stays as it is. Choose another name")
    root = _label(name, ".root")
    if root != str(paths.ROOT) and Path(root).is_dir():
        raise LabError(
            f"node {name} belongs to the checkout {root}: choose another name (`make lab LAB_NODE=NAME`),"
            f" or remove it there with `lab/bin/gpulab down {name}`"
        )


def inside(name: str, *argv: str, check: bool = True, stdin: str | None = None) -> str:
    """Output of a command in the node."""
    flags = ["-i"] if stdin is not None else []
    return docker("exec", *flags, name, *argv, check=check, stdin=stdin)


class BootReport(NamedTuple):
    """What the simulated boot says about itself; empty before it ran."""

    kernel: str = ""
    boot_id: str = ""
    loaded: tuple[str, ...] = ()


def boot_report(name: str) -> BootReport:
    """The report of the node's present boot."""
    text = inside(name, "cat", "/run/lab/boot.json", check=False)
    try:
        found = json.loads(text)
    except ValueError:
        return BootReport()
    return BootReport(found["kernel"], found["boot_id"], tuple(found["loaded"]))


def _failure(name: str, why: str) -> LabError:
    text = inside(name, "sh", "-c", "systemctl --failed --no-legend --plain; cat /run/lab/boot.log", check=False)
    units = [row.split()[0] for row in text.splitlines() if " failed " in row]
    journal = "".join(
        "\n--- {}\n{}".format(unit, inside(name, "journalctl", "--no-pager", "-n", "15", "-u", unit, check=False))
        for unit in units[:3]
    )
    logs = docker("logs", "--tail", "15", name, check=False) if not text.strip() else ""
    return LabError(f"node {name}: {why}\n{text.strip()}{journal}{logs}")


def wait_running(name: str, before: str = "") -> None:
    """Waits until systemd says running, in a boot other than `before`."""
    end = time.monotonic() + BOOT_TIMEOUT_S
    told = time.monotonic()
    said = ""
    while time.monotonic() < end:
        if time.monotonic() - told > 10:
            say("{} is booting: {}".format(name, said or "no answer yet"))
            told = time.monotonic()
        if _inspect(name, "{{.State.Status}}") in ("exited", "dead"):
            raise _failure(name, "the container stopped")
        said = inside(name, "systemctl", "is-system-running", check=False).strip()
        if said == "degraded":
            raise _failure(name, "booted, but units failed")
        if said == "running" and boot_report(name).boot_id not in ("", before):
            return
        time.sleep(0.2)
    raise _failure(name, f"not up within {BOOT_TIMEOUT_S:.0f} s (systemd says {said!r})")


def _resume(wish: Wish, key: str) -> None:
    if _label(wish.name, ".wish") != key:
        raise LabError(f"node {wish.name} exists with other properties: `lab/bin/gpulab down {wish.name}` first")
    if _inspect(wish.name, "{{.State.Running}}") != "true":
        docker("start", wish.name)
    wait_running(wish.name)
    say(f"{wish.name} already exists and runs")


def up(wish: Wish) -> None:
    """Makes and boots a node; a node of that name and wish that already runs is left alone."""
    suite = LIKE.get(wish.like, wish.suite)
    key = f"{suite}/{wish.like}/{wish.gpus}/{wish.model}/{wish.image}"
    key += f"/{wish.switches}" if wish.switches else ""
    if exists(wish.name):
        _check_ours(wish.name)
        if _label(wish.name, ".root") == str(paths.ROOT):
            _resume(wish, key)
            return
        say(f"{wish.name} is left over from a checkout that is gone; it is replaced")
        docker("rm", "-f", "-v", wish.name)
    ready = build.ensure([suite])[suite]
    began = time.monotonic()
    try:
        docker(
            "create", "--name", wish.name, "--hostname", wish.name, "--label", paths.LABEL + "=1",
            "--label", f"{paths.LABEL}.wish={key}", "--label", f"{paths.LABEL}.root={paths.ROOT}",
            "--label", f"{paths.LABEL}.repository={ready.repository}", *RUN_FLAGS,
            "-v", f"{ready.repository}:/srv/lab:ro", wish.image or ready.image,
        )  # fmt: skip
        _copy_state(wish)
        docker("start", wish.name)
        wait_running(wish.name)
        if wish.like:
            inside(wish.name, "/usr/lib/gpu-node-lab/like.sh", wish.like)
    except BaseException as error:
        # What never came up is not left behind, also when the operator interrupts; its story is in the error.
        if not isinstance(error, LabError) or "units failed" not in str(error):
            docker("rm", "-f", "-v", wish.name, check=False)
        raise
    report = boot_report(wish.name)
    say(f"{wish.name} is up after {time.monotonic() - began:.1f} s: kernel {report.kernel}")


def _copy_state(wish: Wish) -> None:
    import io
    import tarfile

    text = models.state(wish.name, wish.model, wish.gpus, wish.switches).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("state")
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text))
    done = short(["docker", "cp", "-", wish.name + ":/var/lib/simgpu"], input=buffer.getvalue())
    if done.returncode != 0:
        raise LabError("placing the GPU state failed: {}".format(done.stderr.decode("utf-8", "replace")))


def down(name: str) -> None:
    """Removes a node."""
    if not exists(name):
        say(f"{name} does not exist")
        return
    _check_ours(name)
    docker("rm", "-f", "-v", name)
    say(f"{name} is gone")


def reboot(name: str) -> None:
    """Restarts a node; returns when the new boot is up."""
    if not exists(name):
        raise LabError(f"there is no node {name}")
    _check_ours(name)
    before = boot_report(name).boot_id
    began = time.monotonic()
    with step(f"restarting {name}"):
        docker("restart", "--time", "30", name)
    wait_running(name, before)
    report = boot_report(name)
    say(f"{name} is back after {time.monotonic() - began:.1f} s: kernel {report.kernel}")


def names() -> list[str]:
    """Nodes of this checkout."""
    if not running():
        return []
    filters = ["--filter", f"label={paths.LABEL}=1", "--filter", f"label={paths.LABEL}.root={paths.ROOT}"]
    return sorted(docker("ps", "-a", *filters, "--format", "{{.Names}}").split())
