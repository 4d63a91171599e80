"""The stand-in NVML library, through the real nvidia-ml-py, and the programs that go with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packages.artifacts import Artifacts

LAB = Path(__file__).resolve().parents[3] / "lab"
DRIVER = "535.261.03"
BANNER = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Stand-in Build\n"
LISTING = """
import json
import pynvml as nvml

def call(function, *arguments):
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        return {"error": error.value, "text": str(error)}

result = {"init": call(nvml.nvmlInit)}
if result["init"] is None:
    result["driver"] = nvml.nvmlSystemGetDriverVersion()
    result["nvml"] = nvml.nvmlSystemGetNVMLVersion()
    result["cuda"] = nvml.nvmlSystemGetCudaDriverVersion_v2()
    result["gpus"] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = call(nvml.nvmlDeviceGetHandleByIndex, index)
        if isinstance(gpu, dict):
            result["gpus"].append(gpu)
            continue
        pci = nvml.nvmlDeviceGetPciInfo(gpu)
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        result["gpus"].append({
            "name": call(nvml.nvmlDeviceGetName, gpu), "uuid": nvml.nvmlDeviceGetUUID(gpu), "bus": pci.busId,
            "legacy": pci.busIdLegacy, "device": pci.pciDeviceId, "total": nvml.nvmlDeviceGetMemoryInfo(gpu).total,
            "used_v1": nvml.nvmlDeviceGetMemoryInfo(gpu).used,
            "used_v2": nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).used,
            "wrong_version": call(nvml.nvmlDeviceGetMemoryInfo, gpu, 0x03000028),
            "persistence": nvml.nvmlDeviceGetPersistenceMode(gpu), "temperature": nvml.nvmlDeviceGetTemperature(gpu, 0),
            "power": nvml.nvmlDeviceGetPowerUsage(gpu), "utilization": rates.gpu,
            "fan": call(nvml.nvmlDeviceGetFanSpeed, gpu), "repair": call(nvml.nvmlDeviceGetTemperatureV1, gpu, 0),
            "again": nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(pci.busId.lower()[4:])),
        })
    nvml.nvmlShutdown()
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, build_tools):
    """Return a folder with the library under its soname and the programs."""
    folder = tmp_path_factory.mktemp("nvml")
    artifacts = Artifacts(folder / "artifacts")
    shutil.copyfile(artifacts.get(f"nvml:{DRIVER}"), folder / "libnvidia-ml.so.1")
    for name, artifact in (("nvidia-smi", "tool:nvidia-smi"), ("nvidia-persistenced", "persistenced:535.171.04")):
        shutil.copyfile(artifacts.get(artifact), folder / name)
        (folder / name).chmod(0o755)
    return folder


class Machine:
    """A node of two GPUs in a folder."""

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder = folder
        self.compiled = compiled
        self.module = folder / "version"
        self.module.write_text(BANNER)
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(compiled),
            "SIMGPU_STATE": str(folder / "state"),
            "SIMGPU_PROC_VERSION": str(self.module),
            "SIMGPU_RUN": str(folder / "run"),
        }
        self.simgpu("init", "--gpus", "2", "--model", "h100-sxm", "--seed", "test")

    def simgpu(self, *words: str) -> None:
        self.run([sys.executable, str(LAB / "bin/simgpu"), *words], check=True)

    def run(self, argv, check=False):
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=check, timeout=60)

    def tool(self, name, *words):
        return self.run([str(self.compiled / name), *words])

    def nvml(self) -> dict:
        return json.loads(self.run([sys.executable, "-c", LISTING], check=True).stdout)


@pytest.fixture
def machine(tmp_path, compiled):
    return Machine(tmp_path, compiled)


def test_nvidia_ml_py_lists_the_gpus(machine):
    machine.simgpu("set", "gpu=1", "temperature=92", "utilization_gpu=40", "memory_used_mib=1000")
    found = machine.nvml()
    assert (found["driver"], found["nvml"], found["cuda"]) == (DRIVER, f"12.{DRIVER}", 12020)
    first, second = found["gpus"]
    assert first["name"] == "NVIDIA H100 80GB HBM3"
    assert first["uuid"].startswith("GPU-")
    assert first["uuid"] != second["uuid"]
    assert (first["bus"], first["legacy"]) == ("00000000:17:00.0", "0000:17:00.0")
    assert first["device"] == 0x233010DE
    assert first["total"] == 81559 << 20
    assert (second["used_v1"] - second["used_v2"]) >> 20 == 512
    assert (second["temperature"], second["utilization"]) == (92, 40)
    assert first["persistence"] == 0
    assert [first["again"], second["again"]] == [0, 1]


def test_what_the_library_does_not_know_is_unsupported_wrong_or_absent(machine):
    first = machine.nvml()["gpus"][0]
    assert first["fan"]["error"] == 3, "cards for servers have no fan"
    assert first["wrong_version"]["error"] == 25
    assert first["repair"]["error"] == 13, "TemperatureV came with 580 and must not be in a 535 library"


def test_error_9_when_the_module_is_not_loaded(machine):
    machine.module.unlink()
    assert machine.nvml()["init"]["error"] == 9


def test_drv_07_error_18_when_the_loaded_module_is_another_version(machine):
    machine.module.write_text(BANNER.replace(DRIVER, "535.183.06"))
    assert machine.nvml()["init"]["error"] == 18


def test_the_open_modules_banner_is_read_too(machine):
    machine.module.write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n")
    assert machine.nvml()["driver"] == DRIVER


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["nvml.init_error=999"], ("init", "error")),
        (["rc.nvmlInitWithFlags=999"], ("init", "error")),
    ],
)
def test_the_state_can_make_initialisation_fail(machine, words, path):
    machine.simgpu("set", *words)
    assert machine.nvml()[path[0]][path[1]] == 999


def test_a_lost_gpu_does_not_hide_the_other(machine):
    machine.simgpu("set", "gpu=0", "lost=1")
    first, second = machine.nvml()["gpus"]
    assert first["error"] == 15
    assert second["name"].startswith("NVIDIA")


def test_nvidia_smi_stand_in_lists_and_queries(machine):
    listed = machine.tool("nvidia-smi", "-L")
    assert listed.returncode == 0
    assert re.fullmatch(r"GPU 0: NVIDIA H100 80GB HBM3 \(UUID: GPU-[0-9a-f-]+\)", listed.stdout.splitlines()[0])
    query = machine.tool(
        "nvidia-smi",
        "--query-gpu=index,pci.bus_id,memory.total,driver_version,persistence_mode",
        "--format=csv,noheader",
    )
    assert query.stdout.splitlines()[1] == f"1, 00000000:2A:00.0, 81559 MiB, {DRIVER}, Disabled"
    assert "stand-in" in machine.tool("nvidia-smi", "--help").stdout
    assert "stand-in" in machine.tool("nvidia-smi", "--version").stdout
    assert machine.tool("nvidia-smi", "--query-gpu=nothing", "--format=csv").returncode == 2


def power(machine, fields="power.limit", *words):
    done = machine.tool("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", *words)
    return [line.split(", ") for line in done.stdout.splitlines()]


def test_tun_05_power_limits_are_set_on_each_card_or_on_one_and_within_its_range(machine):
    range_and_default = "power.min_limit,power.max_limit,power.default_limit"
    assert power(machine, range_and_default) == [["200.00", "700.00", "700.00"]] * 2
    uuid = machine.nvml()["gpus"][1]["uuid"]
    for card in ("1", uuid, "00000000:2A:00.0"):
        machine.simgpu("boot")
        done = machine.tool("nvidia-smi", "-i", card, "-pl", "450")
        assert done.returncode == 0, done.stdout
        assert "GPU 00000000:2A:00.0 was set to 450.00 W from 700.00 W" in done.stdout
        assert power(machine, "power.limit,enforced.power.limit") == [["700.00", "700.00"], ["450.00", "450.00"]]
    assert machine.tool("nvidia-smi", "-pl", "500").returncode == 0
    assert power(machine) == [["500.00"], ["500.00"]]
    done = machine.tool("nvidia-smi", "-pl", "900")
    assert done.returncode == 2 and "between 200.00 W and 700.00 W" in done.stdout
    assert power(machine) == [["500.00"], ["500.00"]]
    machine.simgpu("set", "gpu=0", "power_enforced_mw=300000")
    assert power(machine, "power.limit,enforced.power.limit", "-i", "0") == [["500.00", "300.00"]]
    machine.simgpu("boot")
    assert power(machine) == [["700.00"], ["700.00"]]
    assert machine.tool("nvidia-smi", "-i", "GPU-none", "-pl", "450").returncode == 6


def test_nvidia_smi_stand_in_says_what_is_wrong(machine):
    machine.module.write_text(BANNER.replace(DRIVER, "535.183.06"))
    result = machine.tool("nvidia-smi")
    assert (result.returncode, "Driver/library version mismatch" in result.stdout) == (18, True)
    assert result.stdout.endswith("NVML library version: 535.261\n"), "as NVIDIA's own writes it: tests/real"
    machine.module.unlink()
    result = machine.tool("nvidia-smi")
    assert result.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in result.stdout


def persistence(machine):
    return [gpu["persistence"] for gpu in machine.nvml()["gpus"]]


def stop_daemon(machine):
    """End the daemon and wait until it has cleaned up: it removes its pid file last."""
    pid_file = machine.folder / "run/nvidia-persistenced.pid"
    pid = int(pid_file.read_text())
    os.kill(pid, 15)
    subprocess.run(["timeout", "60", "sh", "-c", f"while [ -e {pid_file} ]; do sleep 0.05; done"], check=True)


@pytest.mark.parametrize(
    ("option", "mode"),
    [
        ("--persistence-mode", 1),
        ("--verbose", 1),
        ("--no-persistence-mode", 0),
    ],
)
def test_persistence_daemon_sets_the_mode_and_takes_it_back(machine, option, mode):
    result = machine.tool("nvidia-persistenced", option)
    assert result.returncode == 0
    try:
        assert persistence(machine) == [mode, mode]
    finally:
        stop_daemon(machine)
    assert persistence(machine) == [0, 0]


def test_svc_08_persistence_daemon_refuses_to_start_without_a_driver(machine):
    machine.module.unlink()
    result = machine.tool("nvidia-persistenced")
    assert result.returncode == 1
    assert "Failed to query NVIDIA devices" in result.stderr
    assert "failed to initialize. Check syslog for more details." in result.stderr
