# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands inside a root file system, in a mount namespace of their own: nothing stays mounted whatever happens."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Mapping

from .progress import LabError, run, short

_PRELUDE = """set -eu
r={root}
mount -t tmpfs -o mode=755 lab-dev "$r/dev"
for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
    set -- $node
    mknod -m 666 "$r/dev/$1" c "$2" "$3"
done
ln -s /proc/self/fd "$r/dev/fd"
ln -s /proc/self/fd/0 "$r/dev/stdin"
ln -s /proc/self/fd/1 "$r/dev/stdout"
ln -s /proc/self/fd/2 "$r/dev/stderr"
mkdir -p "$r/dev/shm" "$r/dev/pts"
mount -t proc proc "$r/proc"
"""
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/root",
}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def _argv(root: Path, script: str, binds: Mapping[Path, str]) -> list[str]:
    text = _PRELUDE.format(root=shlex.quote(str(root)))
    for source, target in binds.items():
        inside = shlex.quote(str(root) + target)
        text += f"mkdir -p {inside}\nmount --bind {shlex.quote(str(source))} {inside}\n"
    text += f"exec chroot {shlex.quote(str(root))} /bin/sh -euc {shlex.quote(script)}\n"
    return [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
        "/bin/sh",
        "-c",
        text,
    ]


def _environment() -> dict[str, str]:
    return {**ENVIRONMENT, **{name: os.environ[name] for name in _PROXIES if name in os.environ}}


def inside(title: str, root: Path, script: str, log: Path, binds: Mapping[Path, str] | None = None) -> None:
    """Runs a shell script in the root file system, with its output in the log."""
    env = {**_environment(), "TERM": os.environ.get("TERM", "dumb")}
    run(title, _argv(root, script, binds or {}), log, env)


def ask(root: Path, script: str, binds: Mapping[Path, str] | None = None) -> str:
    """The script's standard output."""
    done = short(_argv(root, script, binds or {}), text=True, env=_environment(), timeout=600)
    if done.returncode != 0:
        raise LabError(f"in {root}: `{script.strip()[:200]}` failed: {done.stderr.strip()[-1500:]}")
    return str(done.stdout)
