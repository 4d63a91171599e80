# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The program of the child that asks NVML: the standard library and pynvml, nothing else.

``_nvml_child`` starts it and reads its JSON lines. What was read goes out, in one write, together with the name of the
next call, so that a call that never returns loses nothing. The lines, with ``gpu`` null where none is meant:

``{"call": "nvmlDeviceGetName", "gpu": 3}``, ``{"nvml": {"count": 8}}`` (part of the state of NVML as a whole),
``{"gpu": 3, "bus_id": "0000:65:00.0"}``, ``{"gpu": 3, "set": {"temperature": [41, "", null, ""]}}`` (value, why there
is none, NVML's code, note), ``{"gpu": 3, "lost": 15}``, ``{"gpu": 3, "processes": [...], "mig": [...]}`` and, at the
end of everything, ``{"done": true}``.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_calls import Miss, Nvml, Out
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_card import Card
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_tables import COMM, LOST, STATES

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def main(library: str, parent: int) -> None:
    """Read everything, write it to standard output, and end the process.

    Args:
        library: Path of the library; empty for the one that the loader finds.
        parent: Id of the process that waits for the answer: without it there is nobody to tell.
    """
    # Lines of the library's own on standard output must not come between ours, nor its children hold our pipe.
    out = Out(os.dup(1))
    os.dup2(2, 1)
    _settle(parent)
    read_all(out, library)
    out.add({"done": True})
    out.flush()
    # No nvmlShutdown and no destructors: one call less that can hang, and the kernel gives everything back.
    os._exit(0)


def _settle(parent: int) -> None:
    """Take a name that others know, die with the parent, and leave no core dump."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, COMM.encode("ascii"), 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_all(out: Out, library: str) -> None:
    """Load binding and library, and read every GPU."""

    def tell(**entries: Any) -> None:
        out.add({"nvml": entries})

    out.before("import pynvml", None)
    try:
        # Only here, and by name: the parent has this module too, but not the binding.
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        tell(state="no_binding", text=f"{error}: install nvidia-ml-py for the Python that reads NVML")
        return
    out.before("dlopen", None)
    try:
        # Not left to the binding: it says "not found" of a library that is broken as well.
        pynvml.nvmlLib = ctypes.CDLL(library or "libnvidia-ml.so.1")
    except OSError as error:
        tell(state="absent", code=12, text=str(error))
        return
    tell(library=opened())
    nvml = Nvml(pynvml, out)
    try:
        nvml.call("nvmlInit")
    except Miss as error:
        tell(state=STATES.get(error.code or 0, "error"), code=error.code, text=error.note)
        return
    try:
        tell(**versions(nvml))
        count = int(nvml.call("nvmlDeviceGetCount"))
    except Miss as error:
        tell(state="error", code=error.code, text=error.note)
        return
    tell(count=count)
    for index in range(count):
        nvml.gpu = index
        read_gpu(nvml, out, index)
    tell(state="ok", text="")


def versions(nvml: Nvml) -> dict[str, str]:
    """Return the versions that NVML tells; empty those that it does not."""
    found = {}
    for name, function in (("driver_version", "DriverVersion"), ("nvml_version", "NVMLVersion")):
        try:
            found[name] = _text(nvml.call("nvmlSystemGet" + function))
        except Miss:
            found[name] = ""
    try:
        calls = ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")
        cuda = int(nvml.first(lambda: nvml.call(calls[0]), lambda: nvml.call(calls[1])))
        found["cuda_version"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    except Miss:
        found["cuda_version"] = ""
    return found


def read_gpu(nvml: Nvml, out: Out, index: int) -> None:
    """Read one GPU; one that is lost hides no other."""
    try:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        card = Card(nvml, handle, lambda entries: out.add({"gpu": index, "set": entries}))
        out.add({"gpu": index, "bus_id": bus_id(card)})
        card.read()
    except Miss as error:
        out.add({"gpu": index, "lost": error.code, "text": error.note})
    else:
        out.add({"gpu": index, "processes": card.processes, "mig": card.mig, "read": True})


def bus_id(card: Card) -> str:
    """Return the PCI address as sysfs writes it; empty where the driver does not tell.

    Raises:
        Miss: when the GPU is lost.
    """
    try:
        info = card.ask("nvmlDeviceGetPciInfo")
        domain, rest = _text(info.busId).rstrip("\0").split(":", 1)
        # NVML writes eight digits of the domain and capitals.
        return f"{int(domain, 16):04x}:{rest.lower()}"
    except Miss as error:
        if error.code in LOST:
            raise
        return ""
    except (AttributeError, ValueError):
        return ""


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def opened() -> str:
    """Return the file of the library that was loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            path = line.rstrip("\n").partition("/")[2]
            if "libnvidia-ml" in path:
                return "/" + path
    return ""
