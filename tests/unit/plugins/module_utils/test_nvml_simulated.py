"""The whole way: the real binding in the real child, on the simulated library of the lab."""

from __future__ import annotations

import os
import sys
import time

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as reading
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _nvml_child as child

from lab import nvml_build

#: Seconds; no test waits for it but those of a hang, which have their own.
LONG = 60.0


class Node:
    """A node with simulated GPUs."""

    def __init__(self, folder, library, monkeypatch):
        self.folder, self.library, self.monkeypatch = folder, library, monkeypatch

    def start(self, *init, version=nvml_build.DEFAULT_VERSION, hide=(), loaded=True):
        path = self.library(version, hide)
        nvml_build.simgpu(self.folder / "state", "init", *init)
        for key, value in nvml_build.environment(self.folder, path, version, loaded).items():
            self.monkeypatch.setenv(key, value)
        return self

    def set(self, *words):
        nvml_build.simgpu(self.folder / "state", "set", *words)
        return self

    def line(self, text):
        with open(self.folder / "state", "a", encoding="ascii") as handle:
            handle.write(text + "\n")
        return self

    @staticmethod
    def read(deadline_s=LONG, library=""):
        return child.probe(sys.executable, deadline_s, library)


@pytest.fixture
def node(tmp_path, nvml_library, monkeypatch):
    return Node(tmp_path, nvml_library, monkeypatch)


def test_eight_healthy_gpus(node):
    nvml, gpus = node.start("--gpus", "8", "--model", "h100-sxm").read()
    assert (nvml.state, nvml.count, len(gpus), nvml.driver_version) == ("ok", 8, 8, nvml_build.DEFAULT_VERSION)
    assert os.path.basename(nvml.library) == "libnvidia-ml.so.1"
    for gpu in gpus:
        assert not [name for name, found in gpu.readings.items() if found.why in (reading.FAILED, reading.NOT_REACHED)]
    assert [gpu.bus_id for gpu in gpus] == sorted(gpu.bus_id for gpu in gpus)
    assert gpus[0].get("nvlink_states").value == [1] * 18
    # The budget is 250 ms for 8 GPUs, and a call on hardware is some tens of microseconds.
    assert nvml.calls < 8 * 200


def test_hlt_01_an_old_driver_answers_what_it_can(node):
    nvml, gpus = node.start("--gpus", "2", version="470.256.02").read()
    assert (nvml.state, nvml.driver_version) == ("ok", "470.256.02")
    lacking = {name for name, found in gpus[0].readings.items() if found.why == reading.NO_SYMBOL}
    assert {"memory_reserved_mib", "gsp_version", "repair_tpc_pending"} <= lacking
    assert not [name for name, found in gpus[0].readings.items() if found.why == reading.FAILED]
    for name in ("temperature", "memory_used_mib", "clock_reasons", "processes", "ecc_uncorrected_volatile"):
        assert gpus[0].get(name).ok, name


def test_hlt_01_single_symbols_are_absent(node):
    hide = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetRemappedRows")
    node.start("--gpus", "1", hide=hide).set("gpu=0", "processes=4242:64:compute")
    nvml, (gpu,) = node.read()
    assert nvml.state == "ok"
    assert gpu.get("remap_pending").why == reading.NO_SYMBOL
    assert [one.pid for one in gpu.processes] == [4242]
    assert gpu.get("memory_used_mib").note == "includes reserved"


@pytest.mark.parametrize("hide", [(), ("nvmlDeviceGetMemoryInfo_v2",)], ids=["new", "old"])
def test_hlt_02_used_memory(node, hide):
    node.start("--gpus", "1", hide=hide).set("gpu=0", "memory_used_mib=1", "memory_reserved_mib=599")
    _nvml, (gpu,) = node.read()
    used = gpu.get("memory_used_mib")
    assert (used.value, used.note) == ((600, "includes reserved") if hide else (1, ""))


def test_hlt_03_a_lost_gpu_hides_no_other(node):
    nvml, gpus = node.start("--gpus", "8").set("gpu=3", "lost=1").read()
    assert (nvml.state, len(gpus)) == ("ok", 8)
    assert [gpu.index for gpu in gpus if gpu.lost] == [3]
    assert gpus[3].lost_code == 15
    assert all(gpu.get("temperature").ok for gpu in gpus if gpu.index != 3)


def test_hlt_03_a_gpu_that_needs_a_reset_keeps_what_was_read_before(node):
    _nvml, gpus = node.start("--gpus", "2").line("gpu.1.rc.nvmlDeviceGetPowerUsage=16").read()
    assert (gpus[1].lost, gpus[1].lost_code) == (True, 16)
    assert gpus[1].get("name").ok
    assert gpus[1].bus_id
    assert gpus[0].get("utilization_gpu").ok


HANGS = {
    "hang.nvmlInitWithFlags": ("nvmlInit", 0),
    "hang.nvmlDeviceGetCount_v2": ("nvmlDeviceGetCount", 0),
    "gpu.1.hang.nvmlDeviceGetHandleByIndex_v2": ("nvmlDeviceGetHandleByIndex of GPU 1", 1),
    "gpu.1.hang.nvmlDeviceGetName": ("nvmlDeviceGetName of GPU 1", 1),
    "gpu.1.hang.nvmlDeviceGetFieldValues": ("nvmlDeviceGetFieldValues of GPU 1", 1),
    "gpu.1.hang.nvmlDeviceGetComputeRunningProcesses_v3": ("nvmlDeviceGetComputeRunningProcesses_v3 of GPU 1", 1),
}


@pytest.mark.parametrize("how", ["1", "2"], ids=["sleeps", "blocks signals"])
@pytest.mark.parametrize("key", HANGS)
def test_hlt_04_a_hang_is_a_result_that_names_its_call(node, key, how):
    where, complete = HANGS[key]
    node.start("--gpus", "3").line(f"{key}={how}")
    # Long enough for the start on a loaded machine; the hang lasts until the deadline whatever it is.
    deadline = 4.0
    started = time.monotonic()
    nvml, gpus = node.read(deadline)
    assert time.monotonic() - started < deadline + 1
    assert (nvml.state, nvml.hung_in) == ("timeout", where)
    assert len([gpu for gpu in gpus if gpu.get("processes").ok]) == complete
    if complete:
        assert len(gpus) == 3
        assert all(found.why != reading.NOT_REACHED for found in gpus[0].readings.values())
        assert {found.why for found in gpus[2].readings.values()} == {reading.NOT_REACHED}


@pytest.mark.parametrize("code", [*range(1, 30), 999])
def test_hlt_06_initialisation_fails_with_every_code(node, code):
    node.start("--gpus", "1").set(f"nvml.init_error={code}")
    nvml, gpus = node.read()
    assert nvml.state == {9: "not_loaded", 12: "absent", 18: "mismatch"}.get(code, "error")
    assert (nvml.code, gpus) == (code, ())
    assert nvml.text


def test_hlt_06_unknown_errors_of_one_gpu_stay_with_it(node):
    node.start("--gpus", "2").line("gpu.1.rc.nvmlDeviceGetTotalEccErrors=999")
    node.line("gpu.1.rc.nvmlDeviceGetRemappedRows=999")
    _nvml, gpus = node.read()
    for name in ("ecc_uncorrected_volatile", "remap_pending"):
        assert (gpus[1].get(name).why, gpus[1].get(name).code) == (reading.FAILED, 999)
        assert gpus[0].get(name).ok
    assert gpus[1].get("utilization_gpu").ok


def test_hlt_06_no_library_no_driver_and_a_wrong_library(node, tmp_path):
    node.start("--gpus", "1", loaded=False)
    assert node.read()[0].state == "not_loaded"
    nvml, _gpus = node.read(library=str(tmp_path / "libnvidia-ml.so.1"))
    assert (nvml.state, nvml.code) == ("absent", 12)
    assert "No such file" in nvml.text
    (tmp_path / "broken.so").write_bytes(b"\x7fELF" + bytes(100))
    nvml, _gpus = node.read(library=str(tmp_path / "broken.so"))
    assert (nvml.state, nvml.code) == ("absent", 12)
    assert "broken.so" in nvml.text and "No such file" not in nvml.text


def test_a_module_of_another_version(node, tmp_path):
    node.start("--gpus", "1")
    (tmp_path / "version").write_text(nvml_build.BANNER.format("535.183.06"))
    nvml, _gpus = node.read()
    assert (nvml.state, nvml.code) == ("mismatch", 18)


def test_a_library_by_its_path(node, nvml_library):
    node.start("--gpus", "1")
    path = str(nvml_library("580.65.06"))
    node.folder.joinpath("version").write_text(nvml_build.BANNER.format("580.65.06"))
    nvml, _gpus = node.read(library=path)
    assert (nvml.state, nvml.library, nvml.driver_version) == ("ok", path, "580.65.06")


def test_no_gpus(node):
    nvml, gpus = node.start("--gpus", "0").read()
    assert (nvml.state, nvml.count, gpus) == ("ok", 0, ())


@pytest.mark.parametrize(("states", "model"), [("1," * 11 + "1", "h100-sxm"), ("1," * 11 + "0", "h100-sxm")])
def test_hlt_10_twelve_links(node, states, model):
    node.start("--gpus", "1", "--model", model).set("gpu=0", f"nvlink_states={states}")
    _nvml, (gpu,) = node.read()
    assert gpu.get("nvlink_states").value == [int(state) for state in states.split(",")]


def test_hlt_10_a_card_without_nvlink(node):
    _nvml, (gpu,) = node.start("--gpus", "1", "--model", "l4").read()
    assert gpu.get("nvlink_states").why == reading.UNSUPPORTED


def test_hlt_13_mig(node):
    node.start("--gpus", "2").set(
        "gpu=1", "mig_mode_current=1", "mig_mode_pending=1", "mig=MIG-a:1g.10gb:9856,MIG-b:2g.20gb:19968"
    )
    _nvml, gpus = node.read()
    assert [(one.uuid, one.profile_name, one.memory_mib) for one in gpus[1].mig] == [
        ("MIG-a", "1g.10gb", 9856),
        ("MIG-b", "2g.20gb", 19968),
    ]
    for name in ("utilization_gpu", "remap_failure"):
        assert gpus[1].get(name).why == reading.UNSUPPORTED
        assert "MIG is on" in gpus[1].get(name).note
    assert gpus[0].get("remap_failure").ok


@pytest.mark.parametrize(("margin", "why"), [("-1", ""), ("-2", ""), ("65534", reading.FAILED)])
def test_hlt_16_margins(node, margin, why):
    _nvml, (gpu,) = node.start("--gpus", "1").set("gpu=0", f"temperature_margin={margin}", "tlimit_slowdown=-2").read()
    assert gpu.get("temperature_margin").why == why
    assert why or gpu.get("temperature_margin").value == int(margin)
    assert gpu.get("tlimit_slowdown").value == -2


def test_a_name_that_is_no_text(node):
    _nvml, (gpu,) = node.start("--gpus", "1").line("gpu.0.name_hex=4e56fffe").read()
    assert (gpu.get("name").why, gpu.get("uuid").ok) == (reading.FAILED, True)
    assert "UTF-8" in gpu.get("name").note


def test_not_root(node):
    _nvml, (gpu,) = node.start("--gpus", "1").line("nvml.root=0").read()
    assert gpu.get("sram_threshold_exceeded").why == reading.NO_PERMISSION


@pytest.mark.parametrize("model", ["t4", "v100", "a100", "h200-sxm", "b200"])
def test_no_model_has_a_failed_reading(node, model):
    _nvml, gpus = node.start("--gpus", "1", "--model", model, version="580.65.06").read()
    assert [name for name, found in gpus[0].readings.items() if found.why == reading.FAILED] == []
