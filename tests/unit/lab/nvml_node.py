# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of simulated GPUs that a test asks through the real nvidia-ml-py, each time in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from lab.nvml_build import environment, simgpu

# What a test asks is Python of its own: the words after PRELUDE, with "nvml" and "call".
PRELUDE = """
import json, os, sys
import pynvml as nvml

def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, (int, float, str)) else type(value).__name__

def call(function, *arguments):
    try:
        return plain(function(*arguments))
    except nvml.NVMLError as error:
        return "error %d" % error.value
    except (UnicodeDecodeError, nvml.NVMLLibraryMismatchError) as error:
        return type(error).__name__

def fields(handle, *ids):
    names = {0: "dVal", 1: "uiVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    return ["error %d" % one.nvmlReturn if one.nvmlReturn else getattr(one.value, names[one.valueType])
            for one in nvml.nvmlDeviceGetFieldValues(handle, list(ids))]

def show(result):
    print(json.dumps(result))

nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
"""


class Node:
    """Simulated GPUs in a folder, asked by a child process."""

    def __init__(self, folder, library, version="535.261.03", model="h100-sxm", gpus=2):
        self.state = folder / "state"
        self.environment = environment(folder, library, version)
        simgpu(self.state, "init", "--gpus", str(gpus), "--model", model, "--seed", "test")

    def set(self, *words):
        simgpu(self.state, "set", *words)

    def argv(self, program):
        return [sys.executable, "-c", PRELUDE + program]

    def ask(self, program, data=None):
        """Return what a program shows; data is its ``json.loads(sys.argv[1])``."""
        argv = [*self.argv(program), json.dumps(data)]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
