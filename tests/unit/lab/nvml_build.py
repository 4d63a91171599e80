# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiles the simulated NVML library for one driver version; for tests of everything that reads through it.

Which keys the state file has: lab/packages/README.md. One scenario per process: a program that has loaded the library
keeps it, so tests run their reading in a child with ``environment()``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

LAB = Path(__file__).resolve().parents[3] / "lab"
if str(LAB) not in sys.path:  # lab's packages are found by pytest's own path setting, not by other programs
    sys.path.insert(0, str(LAB))

from packages.artifacts import build_nvml  # noqa: E402

DEFAULT_VERSION = "535.261.03"
BANNER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Stand-in Build\n"


def library(folder: Path, version: str = DEFAULT_VERSION, hide: Iterable[str] = ()) -> Path:
    """Compile ``libnvidia-ml.so.1`` of a driver version into a folder.

    Args:
        folder: Where it goes; made when it is missing. Nothing is compiled when the library is there already.
        version: Any driver version; its branch decides which symbols exist ("470.256.02" has no MemoryInfo_v2).
        hide: Further symbols that shall be absent, not stubs.

    Returns:
        Path of the library; its folder is what LD_LIBRARY_PATH needs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libnvidia-ml.so.1"
    if not path.exists():
        build_nvml(version, path, hide=hide)
    return path


def simgpu(state: Path, *words: str) -> None:
    """Run lab/bin/simgpu on a state file: ``simgpu(state, "set", "gpu=1", "temperature=92")``."""
    argv = [sys.executable, str(LAB / "bin" / "simgpu"), "--state", str(state), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def environment(
    folder: Path, library_path: Path, version: str = DEFAULT_VERSION, loaded: bool = True
) -> dict[str, str]:
    """Return the environment of a node: the library, ``folder/state``, and a loaded module of this version (or none).

    The state file itself is made with ``simgpu(folder / "state", "init", "--gpus", "8", "--model", "h100-sxm")``.
    """
    banner = folder / "version"
    if loaded:
        banner.write_text(BANNER.format(version), encoding="ascii")
    elif banner.exists():
        banner.unlink()
    inherited: Mapping[str, str] = os.environ
    return {
        **inherited,
        "LD_LIBRARY_PATH": str(library_path.parent),
        "SIMGPU_STATE": str(folder / "state"),
        "SIMGPU_PROC_VERSION": str(banner),
        "SIMGPU_KMSG": str(folder / "kmsg"),
        "SIMGPU_RUN": str(folder / "run"),
    }
