# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker Engine: there, running, and asked through its command line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from . import paths
from .progress import LabError, output, run, say

PIDFILE = paths.CACHE / "dockerd.pid"
LOGFILE = paths.LOGS / "dockerd.log"
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


def _missing() -> list[str]:
    found = []
    for what, package in TOOLS:
        there = Path(what).exists() if what.startswith("/") else shutil.which(what) is not None
        # Debian's docker.io recommends docker-cli since trixie, and it must come along without recommendations.
        if not there and package not in found:
            found.append(package)
    return found


def ensure_tools() -> None:
    """Installs what is missing on this machine, through apt."""
    missing = _missing()
    if not missing:
        return
    if os.geteuid() != 0:
        raise LabError("{} missing: run `gpulab setup` as root, or install them".format(", ".join(missing)))
    if shutil.which("apt-get") is None:
        raise LabError("{} missing, and this machine has no apt-get to install them".format(", ".join(missing)))
    log = paths.LOGS / "host.log"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        run("refreshing this machine's package lists", ["apt-get", "update"], log, env)
    except LabError as error:  # one unreachable source must not stop us if the packages are to be had
        say(f"package lists only partly refreshed ({str(error).splitlines()[0]})")
    if "docker.io" in missing and output(["apt-cache", "search", "--names-only", "^docker-cli$"], check=False).strip():
        missing.append("docker-cli")
    run(
        "installing on this machine: " + " ".join(missing),
        ["apt-get", "install", "-y", "--no-install-recommends", *missing],
        log,
        env,
    )


def running() -> bool:
    """Whether an engine answers."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False)
    return asked.returncode == 0 and bool(asked.stdout.strip())


def ensure_engine() -> None:
    """Starts dockerd when none runs: by systemd where it is the init, else in the background."""
    if running():
        return
    if os.geteuid() != 0:
        raise LabError("no Docker Engine answers: start it, or run `gpulab setup` as root")
    if Path("/run/systemd/system").is_dir():
        say("starting the Docker service")
        subprocess.run(["systemctl", "start", "docker"], check=False)
    else:
        say(f"starting dockerd in the background (log: {LOGFILE})")
        LOGFILE.parent.mkdir(parents=True, exist_ok=True)
        stale = Path("/var/run/docker.pid")
        if stale.exists() and not Path("/proc/{}".format(stale.read_text(encoding="ascii").strip())).exists():
            stale.unlink()
        with LOGFILE.open("ab") as log:
            child = subprocess.Popen(
                ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        PIDFILE.write_text(f"{child.pid}\n", encoding="ascii")
    began = time.monotonic()
    while not running():
        if time.monotonic() - began > 120:
            tail = LOGFILE.read_text(errors="replace")[-1500:] if LOGFILE.exists() else ""
            raise LabError(f"the Docker Engine did not start within 120 s.\n{tail}")
        time.sleep(0.5)
    say("Docker Engine {} runs".format(output(["docker", "version", "--format", "{{.Server.Version}}"]).strip()))


def _alive(pid: int) -> bool:
    """Whether the process still runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][:1]
    except OSError:
        return False
    return state != "Z"


def stop_engine() -> bool:
    """Stops the dockerd that ensure_engine started, no other one."""
    if not PIDFILE.exists():
        return False
    pid = int(PIDFILE.read_text(encoding="ascii").strip() or 0)
    PIDFILE.unlink()
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except OSError:
        return False
    if name != "dockerd":
        return False
    os.kill(pid, signal.SIGTERM)
    for _ in range(300):
        if not _alive(pid):
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
