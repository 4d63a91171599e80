# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""NVML read in a child process with a deadline: a driver that hangs is a result, never a caller that hangs.

A hung driver blocks in an ioctl, where no signal handler of Python's runs and where even SIGKILL waits. So the child is
watched from outside, killed at the deadline, waited for half a second, and then left: nothing here waits for a process
that cannot die. What it had read until then is kept.
"""

from __future__ import annotations

import dataclasses
import math
import os
import select
import signal
import subprocess
import time
from typing import Any, Callable, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _nvml_calls,
    _nvml_card,
    _nvml_probe,
    _nvml_tables,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, Nvml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_lines import Lines
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, read_text

#: Seconds. The validator of NVIDIA's operator has none and nhc's watchdog 30; ours runs from a timer each minute.
DEADLINE_S = 10.0
#: Seconds that a killed child is waited for.
REAP_S = 0.5
#: Children of earlier runs that could not be killed: with so many there is no sense in one more.
MAX_STUCK = 3
#: A whole node is some 100 KiB; more than this is no answer.
MAX_BYTES = 16 << 20
#: What is kept of standard error, for the message.
KEPT_ERRORS = 4096
_CHUNK = 65536
#: How often, in seconds, it is looked whether a silent child has ended.
_TICK_S = 0.2

#: How long lines are let to gather in the pipe, in seconds; it holds some hundred of them.
_GATHER_S = 0.002

Reap = Callable[["subprocess.Popen[bytes]", float], bool]

# Children that were left; asked for their end at each new reading, so that a caller that lives long keeps no zombie.
_left: list[subprocess.Popen[bytes]] = []


def reap(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait at most so long for the end of a child; returns whether it has ended."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def source() -> str:
    """Return the program of the child: modules of this collection, as texts.

    Inside an Ansible module they are in a zip file, which only their loader can read.
    """
    texts = []
    for module in (_nvml_tables, _nvml_calls, _nvml_card, _nvml_probe):
        loader: Any = module.__spec__.loader if module.__spec__ else None
        texts.append((module.__name__, str(loader.get_source(module.__name__))))
    return (
        "import sys, types\n"
        f"for name, text in {texts!r}:\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(text, name, 'exec'), sys.modules[name].__dict__)\n"
        "sys.modules[name].main(sys.argv[1], int(sys.argv[2]))\n"
    )


def command(python: str, library: str = "") -> list[str]:
    """Return the command line of the child: isolated from the environment, and writing no bytecode."""
    return [python, "-I", "-B", "-c", source(), library, str(os.getpid())]


def probe(
    python: str,
    deadline_s: float = DEADLINE_S,
    library: str = "",
    root: str = "/",
    argv: Sequence[str] | None = None,
    wait: Reap = reap,
) -> tuple[Nvml, tuple[Gpu, ...]]:
    """Read NVML.

    Args:
        python: Interpreter that has pynvml.
        deadline_s: Seconds until the child is killed; the call returns within one second more.
        library: Path of libnvidia-ml; empty for the one that the loader finds.
        root: Where /proc is looked for, for children that hang since earlier.
        argv: Command in place of the usual child; for tests.
        wait: In place of ``reap``; for tests.

    Returns:
        NVML as a whole, and its GPUs in the order of their index. A hang, a crash and a missing library are in it.

    Raises:
        ValueError: when the deadline is not above zero.
    """
    if math.isnan(deadline_s) or deadline_s <= 0:
        raise ValueError(f"the deadline must be above 0 s, not {deadline_s}")
    started = time.monotonic()
    _left[:] = [process for process in _left if not wait(process, 0)]
    stuck = stuck_children(root)
    if len(stuck) >= MAX_STUCK:
        text = "readings of earlier runs hang in the driver and cannot be killed (pids {}): reboot the node"
        named = ", ".join(str(pid) for pid in stuck)
        return Nvml("timeout", text=text.format(named), hung_in="an earlier reading"), ()
    lines = Lines()
    watch = _Watch(lines, started + deadline_s)
    try:
        process = subprocess.Popen(
            list(argv or command(python, library)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Nvml("no_binding", text=f"{python} does not start: {error.strerror or error}"), ()
    try:
        watch.run(process)
    finally:
        _end(process, wait, killed=not lines.done)
    return _result(lines, watch, process, deadline_s, time.monotonic() - started)


class _Watch:
    """Reads both pipes of a child until its answer is complete, it ends, it floods, or the time is over."""

    def __init__(self, lines: Lines, until: float) -> None:
        self.lines, self.until = lines, until
        self.errors = b""
        self.late = False
        self.flood = False
        self._seen = 0

    def run(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is None or process.stderr is None:
            return
        answer, errors = process.stdout.fileno(), process.stderr.fileno()
        poll = select.poll()
        for descriptor in (answer, errors):
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        opened = {answer, errors}
        while answer in opened and not self.lines.done and not self.flood:
            rest = self.until - time.monotonic()
            if rest <= 0:
                self.late = True
                return
            ready = poll.poll(min(rest, _TICK_S) * 1000)
            if ready:
                # The child writes a line before each call; to wake for every one would cost more than to read them.
                time.sleep(min(rest, _GATHER_S))
            for descriptor, _event in ready:
                if not self._take(descriptor, descriptor == answer):
                    poll.unregister(descriptor)
                    opened.discard(descriptor)
            if not ready and _ended(process):
                # It has ended, yet somebody holds its pipe, a child of its own perhaps.
                return

    def _take(self, descriptor: int, answer: bool) -> bool:
        """Read what is there, once; returns whether there may be more."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if answer:
            self._seen += len(data)
            self.flood = self._seen > MAX_BYTES
            self.lines.feed(data)
        else:
            self.errors = (self.errors + data)[-KEPT_ERRORS:]
        return bool(data)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a child has ended, without collecting it: until then its number stays its own."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(process: subprocess.Popen[bytes], wait: Reap, killed: bool) -> None:
    """Make sure that nothing of the child is left, as far as that can be done without waiting for it."""
    if killed or not wait(process, REAP_S):
        # Its whole group: NVML starts nvidia-modprobe. The child was not waited for, so its number is still its own.
        try:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        if not wait(process, REAP_S):
            _left.append(process)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _result(
    lines: Lines, watch: _Watch, process: subprocess.Popen[bytes], deadline_s: float, took: float
) -> tuple[Nvml, tuple[Gpu, ...]]:
    """Return what was read, with the reason for what was not."""
    facts: dict[str, Any] = {"state": "error", "text": "", **lines.nvml}
    why = ""
    if lines.done:
        pass
    elif watch.late:
        why = f"{lines.where} did not return within the deadline of {deadline_s:g} s"
        facts.update(state="timeout", hung_in=lines.where, text=why)
    elif watch.flood:
        why = f"the child wrote more than {MAX_BYTES >> 20} MiB, which is no answer"
        facts.update(state="error", text=why)
    else:
        why = f"the child ended in {lines.where} without an answer ({_ending(process.returncode)})"
        said = watch.errors.decode("utf-8", "replace").strip().splitlines()
        facts.update(state="error", text=why + (f": {said[-1]}" if said else ""))
    facts.update(duration_s=round(took, 3), calls=lines.calls)
    known = {field.name for field in dataclasses.fields(Nvml)}
    nvml = Nvml(**{key: value for key, value in facts.items() if key in known})
    return nvml, lines.gpus(why or "the child did not read it")


def _ending(code: int | None) -> str:
    if code is None:
        return "it does not end"
    if code < 0:
        try:
            return "signal " + signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit status {code}"


def stuck_children(root: str = "/") -> list[int]:
    """Return the children of earlier runs that wait in the driver and cannot be killed."""
    found = []
    for pid in list_dir(root, "proc"):
        if not pid.isdigit() or (read_text(root, f"proc/{pid}/comm") or "").strip() != _nvml_tables.COMM:
            continue
        state = (read_text(root, f"proc/{pid}/stat") or "").rpartition(")")[2].split()[:1]
        pending = _pending_kill(read_text(root, f"proc/{pid}/status") or "")
        if state == ["D"] and pending:
            found.append(int(pid))
    return sorted(found)


def _pending_kill(status: str) -> bool:
    """Whether SIGKILL waits to be delivered: a child that merely works is in state D for moments too."""
    for line in status.splitlines():
        key, _colon, value = line.partition(":")
        if key in ("SigPnd", "ShdPnd"):
            try:
                if int(value, 16) >> (signal.SIGKILL - 1) & 1:
                    return True
            except ValueError:
                continue
    return False
