"""The parent of the child that reads NVML: whatever the child does, an answer comes in time and nothing is left.

The children are small programs of these tests, and the deadlines are short; bounds are those of the promise (deadline
and one second), with what a loaded machine needs to start Python on top.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _nvml_child as child
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import NOT_REACHED
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_tables import COMM

#: Two GPUs, of which one is read and the other hangs in the call that comes last.
TWO = """
import json, os, signal, sys, time
def say(**line):
    os.write(1, (json.dumps(line) + "\\n").encode())
say(nvml={"count": 2, "driver_version": "535.1", "library": "/x"})
say(gpu=0, bus_id="0000:17:00.0")
say(call="nvmlDeviceGetName", gpu=0)
say(gpu=0, set={"name": ["H100", "", None, ""], "serial": [None, "unsupported", 3, "n"]})
say(gpu=0, processes=[{"pid": 7, "used_mib": None, "kind": "compute"}], mig=[])
say(call="nvmlDeviceGetPowerUsage", gpu=1)
"""
DONE = 'say(nvml={"state": "ok"}); say(done=True)\n'
HANG = "time.sleep(600)\n"
#: As python -I starts, isolated and without site, which is all these programs need.
QUICK = [sys.executable, "-I", "-S", "-B", "-c"]


def run(program, deadline_s=5.0, **more):
    """Return (nvml, gpus, seconds) of a child that runs a program."""
    started = time.monotonic()
    nvml, gpus = child.probe(sys.executable, deadline_s, argv=[*QUICK, program], **more)
    return nvml, gpus, time.monotonic() - started


def children():
    """Return the children of this process that are there, zombies too."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as handle:
        return set(handle.read().split())


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_an_answer_is_complete_and_the_rest_is_not_reached():
    nvml, gpus, took = run(TWO + DONE)
    assert (nvml.state, nvml.count, nvml.calls, nvml.hung_in) == ("ok", 2, 2, "")
    assert gpus[0].get("name").value == "H100"
    assert gpus[0].get("serial").code == 3
    assert gpus[1].get("name").why == NOT_REACHED
    assert gpus[0].processes[0].pid == 7
    assert took < 5


IGNORES_TERM = "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})\n"
HANGS = {
    "a call that does not return": HANG,
    "and SIGTERM is ignored": IGNORES_TERM + HANG,
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)\n" + HANG,
    "and a child of its own holds the pipes": "import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + HANG,
    "half a line": 'os.write(1, b\'{"gpu": 1, "set": \')\n' + HANG,
    "standard error is full": "while True: os.write(2, b'x' * 65536)\n",
    "standard output is full of other lines": "while True: os.write(1, b'x' * 99 + b'\\n'); time.sleep(0.0001)\n",
    "closed pipes": "os.close(1); os.close(2)\n" + HANG,
}


@pytest.mark.parametrize("ending", HANGS.values(), ids=HANGS)
def test_hlt_04_a_hang_ends_at_the_deadline_and_keeps_what_was_read(ending):
    before = children()
    nvml, gpus, took = run(TWO + ending, deadline_s=2.0)
    assert took < 3.0
    if "os.close" in ending:
        assert nvml.state == "error"
    else:
        assert (nvml.state, nvml.hung_in) == ("timeout", "nvmlDeviceGetPowerUsage of GPU 1")
        assert "deadline of 2 s" in nvml.text
    assert (nvml.count, nvml.driver_version) == (2, "535.1")
    assert gpus[0].get("name").value == "H100"
    assert gpus[0].bus_id == "0000:17:00.0"
    assert gpus[1].get("power_mw").why == NOT_REACHED
    assert nvml.text.partition(" (")[0] in gpus[1].get("power_mw").note
    assert children() == before


def test_hlt_04_a_hang_before_the_first_call_is_named_too():
    nvml, gpus, took = run("import time\n" + HANG, deadline_s=0.5)
    assert (nvml.state, nvml.hung_in, gpus, nvml.count) == ("timeout", "the start of Python", (), None)
    assert took < 1.5


def test_hlt_04_a_child_that_cannot_be_killed_is_left_and_no_zombie_stays():
    before = children()
    asked = []

    def never(process, seconds):
        asked.append(process)
        return False

    nvml, gpus, took = run(TWO + HANG, deadline_s=0.7, wait=never)
    assert took < 1.7
    assert (nvml.state, gpus[0].get("name").value) == ("timeout", "H100")
    left = asked[-1]
    assert child._left == [left]
    assert left.stdout.closed and left.stderr.closed
    assert {str(left.pid)} == children() - before
    # It dies at last; the next reading collects it.
    subprocess.run(
        ["timeout", "60", "sh", "-c", f"while ! grep -q '^State:.Z' /proc/{left.pid}/status; do :; done"], check=True
    )
    run(TWO + DONE)
    assert child._left == []
    assert children() == before


def test_a_flood_is_no_answer(monkeypatch):
    monkeypatch.setattr(child, "MAX_BYTES", 1 << 20)
    nvml, _gpus, took = run(TWO + "while True: os.write(1, b'x' * 65536)\n", deadline_s=60)
    assert (nvml.state, "no answer" in nvml.text) == ("error", True)
    assert took < 50


def test_a_crash_names_the_call_and_what_was_said_last():
    nvml, gpus, _took = run(TWO + "sys.stderr.write('one\\ntwo\\n'); sys.exit(3)\n")
    assert nvml.state == "error"
    assert "nvmlDeviceGetPowerUsage of GPU 1" in nvml.text
    assert "exit status 3" in nvml.text
    assert nvml.text.endswith(": two")
    assert gpus[0].get("name").ok
    nvml, _gpus, _took = run(TWO + "os.kill(os.getpid(), signal.SIGSEGV)\n")
    assert "signal SIGSEGV" in nvml.text


def test_a_crash_of_which_a_child_of_its_own_holds_the_pipes_is_seen_before_the_deadline():
    before = children()
    ending = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, file=sys.stderr)\nsys.exit(4)\n"
    nvml, _gpus, took = run(TWO + ending, deadline_s=60)
    assert (nvml.state, "exit status 4" in nvml.text, took < 50) == ("error", True, True)
    assert children() == before
    # Killed with its group; whoever inherits it may take its time to collect it.
    pid = nvml.text.rsplit(" ", 1)[1]
    gone = f"while grep -q '^State:.[^ZX]' /proc/{pid}/status 2>/dev/null; do sleep 0.05; done"
    subprocess.run(["timeout", "60", "sh", "-c", gone], check=True)


def test_a_caller_that_ignores_its_childrens_end():
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(TWO + DONE)[0].state == "ok"
        nvml, _gpus, took = run(TWO + HANG, deadline_s=1.0)
        assert (nvml.state, took < 2.0) == ("timeout", True)
        assert child._left == []
    finally:
        signal.signal(signal.SIGCHLD, ignored)


def test_a_python_that_is_not_there(tmp_path):
    nvml, gpus = child.probe(str(tmp_path / "python"), 5)
    assert (nvml.state, gpus) == ("no_binding", ())
    assert "No such file" in nvml.text


def test_an_answer_counts_although_the_child_does_not_end():
    before = children()
    nvml, _gpus, took = run(TWO + DONE + IGNORES_TERM + HANG, deadline_s=60)
    assert (nvml.state, took < 50) == ("ok", True)
    assert children() == before


@pytest.mark.parametrize("deadline", [0, -1, float("nan")])
def test_a_deadline_is_above_zero(deadline):
    with pytest.raises(ValueError, match="deadline"):
        child.probe(sys.executable, deadline)


def test_the_child_dies_with_its_parent(tmp_path):
    """A module that is killed leaves nothing: the real child, held at the import of the binding."""
    (tmp_path / "pynvml.py").write_text("import time\ntime.sleep(600)\n")
    held = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    program = (
        "import sys, subprocess\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _nvml_child as child\n"
        "argv = child.command(sys.executable)\n"
        f"argv[4] = {held!r} + argv[4]\n"
        "started = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "print(started.pid, started.stdout.readline().decode().strip(), flush=True)\n"
        "started.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid, call = parent.stdout.readline().split(" ", 1)
    assert "import pynvml" in call
    with open(f"/proc/{pid}/comm", encoding="ascii") as handle:
        assert handle.read().strip() == COMM
    parent.kill()
    parent.communicate()
    # Whoever inherits it may take its time to collect it, so a zombie counts as gone.
    gone = f"while grep -q '^State:.[^ZX]' /proc/{pid}/status 2>/dev/null; do sleep 0.05; done"
    subprocess.run(["timeout", "60", "sh", "-c", gone], check=True)


def process(root, pid, state="D", name=COMM, pending="0000000000000100"):
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(name + "\n")
    (folder / "stat").write_text(f"{pid} ({name}) {state} 1 1 0")
    (folder / "status").write_text(f"Name:\t{name}\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n")


def test_hlt_04_children_that_hang_for_ever_do_not_pile_up(tmp_path):
    for pid in (30, 10, 20):
        process(tmp_path, pid)
    process(tmp_path, 40, state="S")
    process(tmp_path, 50, name="python3")
    process(tmp_path, 60, pending="0000000000000000")
    assert child.stuck_children(str(tmp_path)) == [10, 20, 30]
    nvml, gpus, _took = run(TWO + DONE, root=str(tmp_path))
    assert (nvml.state, gpus) == ("timeout", ())
    assert "10, 20, 30" in nvml.text
    (tmp_path / "proc/30/comm").unlink()
    assert run(TWO + DONE, root=str(tmp_path))[0].state == "ok"


def test_two_hundred_readings_leave_no_descriptor_process_or_memory(tmp_path):
    programs = [TWO + DONE, TWO + "sys.exit(1)\n"]
    for program in programs * 3:
        run(program, deadline_s=60)
    gc.collect()
    before, had, peak = descriptors(), children(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(200):
        child.probe(sys.executable, 60, argv=[*QUICK, programs[number % 2]], root=str(tmp_path))
    assert descriptors() == before
    assert children() == had
    assert child._left == []
    # KiB; one answer is a few KiB, so that 200 that stay would be seen.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 4096


def test_readings_that_hang_leave_nothing_either():
    run(TWO + HANG, deadline_s=0.3)
    before, had = descriptors(), children()
    for _number in range(10):
        run(TWO + IGNORES_TERM + HANG, deadline_s=0.2)
    assert (descriptors(), children(), child._left) == (before, had, [])
