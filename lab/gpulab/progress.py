# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress on the screen: one line a step with the elapsed seconds, and a sign of life when a step takes long."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

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


def go_on(title: str) -> None:
    """Raises when the run is being stopped."""
    if _stopping.is_set():
        raise LabError(f"{title}: not done, because the run is being stopped")


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """A line for a step made of many small commands, and every ten seconds a sign of life until it is done."""
    go_on(title)
    say(title)
    began = time.monotonic()
    done = threading.Event()

    def tell() -> None:
        while not done.wait(HEARTBEAT_S):
            say(f"{title} ... {time.monotonic() - began:.0f} s")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


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
    go_on(title)
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


def short(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """A short command that a Ctrl-C at the terminal does not reach; an interrupted `docker exec` reports success."""
    return subprocess.run(argv, capture_output=True, check=False, start_new_session=True, **options)


def output(argv: Sequence[str], check: bool = True, stdin: str | None = None, timeout: float | None = 600) -> str:
    """Standard output of a short command."""
    try:
        done = short(argv, text=True, input=stdin, timeout=timeout)
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]} is missing; run `lab/bin/gpulab setup` first") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(argv)[:300]}` gave no answer within {timeout:.0f} s") from error
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-1500:]
        raise LabError(f"`{' '.join(argv)[:300]}` failed (exit {done.returncode}): {said}")
    return str(done.stdout)


def stop_children() -> None:
    """Ends what `run` started and lets it start nothing more; called when a step failed or the operator interrupts."""
    _stopping.set()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must not stop the cleaning up
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
def locked(path: Path, what: str) -> Iterator[None]:
    """Only one process at a time; says so while it waits. The lock goes with its process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        told = 0.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - told >= HEARTBEAT_S:
                    say(f"another gpulab works on {what}; waiting")
                    told = time.monotonic()
                time.sleep(0.5)
        yield
