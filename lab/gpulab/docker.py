# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker Engine: there, running, and asked through its command line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Collection

from . import paths
from .progress import LabError, locked, output, run, say, step

PIDFILE = paths.CACHE / "dockerd.pid"
LOGFILE = paths.LOGS / "dockerd.log"
MACHINE_LOCK = Path("/run/gpu-node-lab.lock")
ENGINE_PIDFILE = Path("/var/run/docker.pid")  # dockerd's own
ENGINE_TIMEOUT_S = 120.0
# (command that must exist, Debian package that brings it)
TOOLS = (
    ("dockerd", "docker.io"),
    ("docker", "docker.io"),
    ("mmdebstrap", "mmdebstrap"),
    ("gpg", "gnupg"),
    ("gcc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
    ("make", "make"),
    ("/usr/lib/x86_64-linux-gnu/libelf.so.1", "libelf1"),
    ("dpkg-deb", "dpkg"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("unshare", "util-linux"),
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
    ("/etc/ssl/certs/ca-certificates.crt", "ca-certificates"),
)


#: Of these packages, what the unit tests compile and pack with.
BUILD_TOOLS = ("gcc", "libc6-dev", "dpkg")


def _missing(wanted: Collection[str] = ()) -> list[str]:
    """Packages whose tools are not there: of the wanted ones, or of all."""
    found = []
    for what, package in TOOLS:
        if wanted and package not in wanted:
            continue
        there = Path(what).exists() if what.startswith("/") else shutil.which(what) is not None
        if not there and package not in found:
            found.append(package)
    return found


def ensure_host() -> None:
    """Tools and a running engine on this machine; one gpulab at a time, from whatever checkout."""
    if not _missing() and running():
        return
    if os.geteuid() != 0:
        lacks = _missing() or ["a running Docker Engine"]
        raise LabError(f"{', '.join(lacks)} missing: run `lab/bin/gpulab setup` as root, or provide it")
    with locked(MACHINE_LOCK, "this machine's tools"):
        _install_tools()
        if not running():
            _start_engine()


def ensure_tools(wanted: Collection[str]) -> None:
    """Tools of these packages on this machine; no engine."""
    missing = _missing(wanted)
    if not missing:
        return
    if os.geteuid() != 0:
        raise LabError(f"{', '.join(missing)} missing: run `lab/bin/gpulab tools` as root, or install it")
    with locked(MACHINE_LOCK, "this machine's tools"):
        _install_tools(wanted)


def _install_tools(wanted: Collection[str] = ()) -> None:
    missing = _missing(wanted)
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise LabError(f"{', '.join(missing)} missing, and this machine has no apt-get to install them")
    log = paths.LOGS / "host.log"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    apt = ["apt-get", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]
    try:
        run("refreshing this machine's package lists", [*apt, "update"], log, env)
    except LabError as error:  # one source that cannot be read must not stop us if the packages are to be had
        say(f"package lists only partly refreshed ({str(error).splitlines()[0]})")
    # Where the client is a package of its own, the engine only recommends it.
    if "docker.io" in missing and output(["apt-cache", "search", "--names-only", "^docker-cli$"], check=False).strip():
        missing.append("docker-cli")
    title = "installing on this machine: " + " ".join(missing)
    run(title, [*apt, "install", "-y", "--no-install-recommends", *missing], log, env)
    if _missing(wanted):
        raise LabError(
            f"{', '.join(_missing(wanted))} installed, but what the lab needs of it is still not found; see {log}"
        )


def running() -> bool:
    """Whether an engine answers."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False)
    return asked.returncode == 0 and bool(asked.stdout.strip())


def _clear_stale_pid() -> None:
    """dockerd refuses to start when its pid file names any living process, also one that is no dockerd."""
    try:
        pid = ENGINE_PIDFILE.read_text(encoding="ascii").strip()
    except OSError:
        return
    if not pid.isdigit() or _process_name(int(pid)) != "dockerd":
        say(f"removing {ENGINE_PIDFILE}, which an engine that is gone left behind")
        ENGINE_PIDFILE.unlink(missing_ok=True)


def _process_name(pid: int) -> str:
    """Empty when there is no such process, or it only waits to be reaped."""
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")
    except OSError:
        return ""
    return "" if tail.startswith("Z") else head.partition("(")[2]


def _start_engine() -> None:
    """By systemd where it is the init, else dockerd in the background."""
    child: subprocess.Popen[bytes] | None = None
    if Path("/run/systemd/system").is_dir():
        title = "starting the Docker service"
        output(["systemctl", "start", "docker"], timeout=120)
    else:
        title = f"starting dockerd in the background (log: {LOGFILE})"
        LOGFILE.parent.mkdir(parents=True, exist_ok=True)
        _clear_stale_pid()
        with LOGFILE.open("ab") as log:
            child = subprocess.Popen(
                ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        PIDFILE.write_text(f"{child.pid}\n", encoding="ascii")
    with step(title):
        end = time.monotonic() + ENGINE_TIMEOUT_S
        while not running():
            died = child is not None and child.poll() is not None
            if died or time.monotonic() > end:
                tail = LOGFILE.read_text(errors="replace")[-1500:] if child else "See `journalctl -u docker`."
                why = "ended at once" if died else f"did not answer within {ENGINE_TIMEOUT_S:.0f} s"
                raise LabError(f"the Docker Engine {why}.\n{tail}")
            time.sleep(0.5)
    say(f"Docker Engine {output(['docker', 'version', '--format', '{{.Server.Version}}']).strip()} runs")


def stop_engine() -> bool:
    """Stops the dockerd that this checkout started, no other one, and not while anything runs in it."""
    try:
        pid = int(PIDFILE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    if _process_name(pid) != "dockerd":
        PIDFILE.unlink()
        return False
    if running() and docker("ps", "-q").strip():
        say("the Docker Engine that the lab had started runs on: containers that are not this checkout's need it")
        return False
    PIDFILE.unlink()
    os.kill(pid, signal.SIGTERM)
    for _ in range(300):
        if not _process_name(pid):
            break
        time.sleep(0.1)
    return True


def docker(*arguments: str, check: bool = True, stdin: str | None = None, timeout: float | None = 600) -> str:
    """Output of one docker command."""
    return output(["docker", *arguments], check=check, stdin=stdin, timeout=timeout)


def image_exists(name: str) -> bool:
    """Whether the engine has this image."""
    asked = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False)
    return asked.returncode == 0
