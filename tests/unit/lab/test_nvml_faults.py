"""How the simulated NVML library fails: absent symbols, lost cards, codes, calls that do not return."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from lab.nvml_build import simgpu

SYMBOLS = {
    "nvmlDeviceGetRemappedRows": 450,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 470,
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 510,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetGspFirmwareMode": 510,
    "nvmlDeviceGetGspFirmwareVersion": 510,
    "nvmlDeviceGetCurrentClocksEventReasons": 535,
    "nvmlDeviceGetPlatformInfo": 560,
    "nvmlDeviceGetTemperatureV": 580,
}


@pytest.mark.parametrize(
    "version", ["440.118.02", "450.248.02", "470.256.02", "510.108.03", "535.261.03", "560.35.05", "580.126.20"]
)
def test_hlt_01_a_symbol_is_absent_before_its_branch_and_there_from_it_on(nvml_library, version):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(nvml_library(version))], capture_output=True, text=True, check=True
    )
    there = {line.split()[-1] for line in listed.stdout.splitlines()}
    branch = int(version.split(".")[0])
    assert {name: name in there for name in SYMBOLS} == {name: since <= branch for name, since in SYMBOLS.items()}
    assert {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo"} <= there
    assert not [name for name in there if not name.startswith("nvml")], "nothing but the interface is exported"


def test_hlt_01_calls_on_an_old_library_raise_what_they_raise_on_a_real_one(node):
    node = node("470.256.02", hide=("nvmlDeviceGetFanSpeed_v2",))
    assert node.ask(
        "show([call(nvml.nvmlDeviceGetMemoryInfo, gpu, nvml.nvmlMemory_v2),\n"
        "      call(nvml.nvmlDeviceGetComputeRunningProcesses, gpu),\n"
        "      call(nvml.nvmlDeviceGetFanSpeed_v2, gpu, 0), call(nvml.nvmlDeviceGetName, gpu)])"
    ) == ["error 13", "NVMLLibraryMismatchError", "error 13", "NVIDIA H100 80GB HBM3"]


def test_hlt_03_one_lost_card_of_sixteen_does_not_touch_the_others(node):
    node = node(gpus=16)
    late = "gpu = nvml.nvmlDeviceGetHandleByIndex(3)\nos.system('echo gpu.3.lost=1 >>$SIMGPU_STATE')\n"
    names = "show([call(nvml.nvmlDeviceGetName, gpu)] + [call(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(17)])"
    found = node.ask(late + names)
    assert found[0] == "error 15", "a handle from before is lost too"
    assert [index - 1 for index, value in enumerate(found) if value == "error 15" and index] == [3]
    assert found[17] == "error 2"


def test_codes_for_one_card_for_one_call_and_for_every_call_of_a_card(node):
    node = node()
    node.set(
        "gpu.0.rc.nvmlDeviceGetName=999", "gpu.1.rc=16", "rc.nvmlDeviceGetSerial=4", "gpu.1.rc.nvmlDeviceGetUUID=17"
    )
    found = node.ask(
        "other = nvml.nvmlDeviceGetHandleByIndex(1)\n"
        "calls = (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetSerial, nvml.nvmlDeviceGetUUID)\n"
        "show([call(function, card) for card in (gpu, other) for function in calls])"
    )
    assert found[0] == "error 999" and found[1] == "error 4" and found[2].startswith("GPU-")
    assert found[3:] == ["error 16", "error 4", "error 17"]


def test_a_name_that_is_not_text_raises_what_the_binding_raises(node):
    node = node()
    node.set("gpu=0", "name_hex=4e56fffe")
    assert node.ask("show(call(nvml.nvmlDeviceGetName, gpu))") == "UnicodeDecodeError"


@pytest.mark.parametrize(("how", "ends_by_term"), [("1", True), ("2", False)])
def test_hlt_04_a_call_hangs_on_one_card_and_may_ignore_every_signal_but_kill(node, how, ends_by_term):
    node = node()
    node.set(f"gpu.1.hang.nvmlDeviceGetTemperature={how}")
    program = (
        "print(call(nvml.nvmlDeviceGetTemperature, gpu, 0), flush=True)\n"
        "call(nvml.nvmlDeviceGetTemperature, nvml.nvmlDeviceGetHandleByIndex(1), 0)\nprint('went on', flush=True)\n"
    )
    with subprocess.Popen(node.argv(program), env=node.environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "34\n"
        waited = f"/proc/{child.pid}/status"
        blocked = wait_for(lambda: signals(waited, "SigBlk") if how == "2" else 1)
        assert blocked
        child.send_signal(signal.SIGTERM)
        if ends_by_term:
            assert child.wait(timeout=60) == -signal.SIGTERM
        else:
            assert wait_for(lambda: signals(waited, "ShdPnd")), "the signal is pending, not delivered"
            assert child.poll() is None
            simgpu(node.state, "unset", "gpu.1.hang.nvmlDeviceGetTemperature")
            assert child.wait(timeout=60) == -signal.SIGTERM, "it gets through when the driver lets go"


def signals(path, line):
    """Return the bits of SIGTERM in a line of /proc/PID/status."""
    with open(path, encoding="ascii") as handle:
        found = next(text for text in handle if text.startswith(line + ":"))
    return int(found.split()[1], 16) & (1 << (signal.SIGTERM - 1))


def wait_for(condition, limit=30.0):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return condition()
