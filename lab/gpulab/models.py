# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU models a lab node can have: lab/bin/simgpu knows them and writes their state file."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from . import paths
from .progress import output

SIMGPU = paths.LAB / "bin" / "simgpu"


def names() -> list[str]:
    """Model names, from simgpu's own table."""
    loader = SourceFileLoader("gpulab_simgpu", str(SIMGPU))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return sorted(module.MODELS)


def state(node: str, model: str, count: int, switches: int = 0) -> str:
    """The text of /var/lib/simgpu/state for a node with `count` cards and some NVSwitches."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        output(
            [sys.executable, str(SIMGPU), "--state", str(path), "init"]
            + ["--gpus", str(count), "--model", model, "--seed", node, "--nvswitches", str(switches)]
        )
        return path.read_text(encoding="utf-8")
