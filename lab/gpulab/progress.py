# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress on the screen: one line a step with the elapsed seconds, and a sign of life when a step takes long."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Iterator, Sequence

HEARTBEAT_S = 10.0
_start = time.monotonic()
_lock = threading.Lock()
_stopping = threading.Event()
_children: set[subprocess.Popen[bytes]] = set()


class LabError(Exception):
    """Something the operator has to know; the text says what to do."""


def say(text: str) -> None:
    """One line with the seconds since start."""
    with _lock:
        print(f"[{time.monotonic() - _start:4.0f} s] {text}", file=sys.stderr, flush=True)


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - 600))
            lines = handle.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:90] for line in reversed(lines) if line.strip()), "")


def run(
    title: str,
    argv: Sequence[str],
    log: Path,
    env: dict[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
) -> None:
    """Runs a long command: output to the log, every ten seconds its last line to the screen, the tail on failure."""
    if _stopping.is_set():
        raise LabError(f"{title}: not begun, because the run is being stopped")
    log.parent.mkdir(parents=True, exist_ok=True)
    say(title)
    began = time.monotonic()
    with log.open("ab") as out:
        out.write(("\n### {}\n".format(" ".join(argv)[:2000])).encode())
        out.flush()
        child = subprocess.Popen(
            argv, stdin=stdin, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
    _children.add(child)
    try:
        while True:
            try:
                rc = child.wait(timeout=HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                say(f"{title} ... {time.monotonic() - began:.0f} s: {_last_line(log)}")
    finally:
        _children.discard(child)
    if rc != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
        raise LabError(f"{title} failed (exit {rc}). The end of {log}:\n{tail}")


def output(argv: Sequence[str], check: bool = True, stdin: str | None = None, timeout: float | None = 600) -> str:
    """Standard output of a short command."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, input=stdin, check=False, timeout=timeout)
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]} is missing; run `lab/bin/gpulab setup` first") from error
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-1500:]
        raise LabError(f"`{' '.join(argv)[:300]}` failed (exit {done.returncode}): {said}")
    return done.stdout


def stop_children() -> None:
    """Ends what `run` started and lets it start nothing more; called when the operator interrupts."""
    _stopping.set()
    for child in list(_children):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGTERM)
    for child in list(_children):
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one setup at a time in a checkout; says so while it waits."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        waited = 0.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited % HEARTBEAT_S == 0:
                    say("another gpulab works in this checkout; waiting")
                time.sleep(0.5)
                waited += 0.5
        yield
