"""Processes at the GPUs, from trees of /proc."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_occupants as occupants
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, Process


def process(root, pid, name, state="S", cgroup="", *targets):
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(name + "\n")
    (folder / "stat").write_text(f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 4194560\n")
    (folder / "cgroup").write_text(cgroup)
    for number, target in enumerate(targets):
        os.symlink(target, folder / "fd" / str(number))


def test_who_waits_uninterruptibly_in_the_driver(tmp_path):
    process(tmp_path, 10, "nvidia-smi", "D")
    process(tmp_path, 11, "python3", "D", "", "/dev/nvidia0")
    process(tmp_path, 12, "irq/130-nvidia", "D")
    process(tmp_path, 13, "gpu-node-nvml", "D")
    process(tmp_path, 20, "jbd2/sda1-8", "D")
    process(tmp_path, 21, "python3", "S", "", "/dev/nvidia0")
    process(tmp_path, 9, "odd) R (name", "D", "", "/dev/nvidiactl")
    found = occupants.occupants((), str(tmp_path))
    assert [(one["pid"], one["name"]) for one in found.dstate] == [
        (9, "odd) R (name"),
        (10, "nvidia-smi"),
        (11, "python3"),
        (12, "irq/130-nvidia"),
        (13, "gpu-node-nvml"),
    ]
    assert [holder["pid"] for holder in found.holders] == [9, 11, 21]


def test_users_that_have_ended_hold_what_nobody_gives_back(tmp_path):
    process(tmp_path, 10, "python3", "Z")
    process(tmp_path, 11, "python3", "Z")
    process(tmp_path, 12, "triton", "S", "0::/system.slice/triton.service\n")
    gpu = Gpu(0, processes=(Process(10), Process(12), Process(999, 64), Process(10, kind="mps")))
    assert [one["pid"] for one in occupants.occupants((gpu,), str(tmp_path)).zombies] == [10]
    found = occupants.named(gpu, str(tmp_path)).processes
    assert [(one.pid, one.exists, one.name, one.unit) for one in found] == [
        (10, True, "python3", ""),
        (12, True, "triton", "triton.service"),
        (999, False, "", ""),
        (10, True, "python3", ""),
    ]
    assert (found[2].used_mib, found[3].kind) == (64, "mps")


@pytest.mark.parametrize("text", ["", "7", "7 (x", "7 (x)", "7 (x) "])
def test_a_process_that_goes_while_it_is_read(tmp_path, text):
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/stat").write_text(text)
    assert occupants.status(str(tmp_path), 7) is None


def test_neither_command_line_nor_memory_map_is_opened(tmp_path, monkeypatch):
    """Both wait for a process that hangs in the driver."""
    process(tmp_path, 10, "python3", "D", "", "/dev/nvidia0")
    opened = []
    real = open

    def spy(path, *arguments, **more):
        opened.append(os.path.basename(str(path)))
        return real(path, *arguments, **more)

    monkeypatch.setattr("builtins.open", spy)
    occupants.occupants((Gpu(0, processes=(Process(10),)),), str(tmp_path))
    assert set(opened) <= {"stat", "comm", "cgroup"}
    assert "stat" in opened


def test_this_machine():
    assert isinstance(occupants.occupants(()).dstate, tuple)
    assert occupants.status("/", os.getpid()).state == "R"
