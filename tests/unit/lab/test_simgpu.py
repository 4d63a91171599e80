"""simgpu: the state file of the simulated GPUs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[3] / "lab" / "bin" / "simgpu"


def load():
    loader = SourceFileLoader("simgpu_program", str(PATH))
    module = module_from_spec(spec_from_loader("simgpu_program", loader))
    loader.exec_module(module)
    return module


simgpu = load()


def call(state: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(PATH), "--state", str(state), *words], capture_output=True, text=True, check=False
    )


def values(state: Path) -> dict:
    return simgpu.parse(state.read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", sorted(simgpu.MODELS))
def test_init_writes_every_model(tmp_path, model):
    state = tmp_path / "new" / "state"
    assert call(state, "init", "--gpus", "2", "--model", model, "--seed", "a").returncode == 0
    found = values(state)
    assert found["gpu.count"] == "2"
    assert found["gpu.1.name"] == simgpu.MODELS[model].name
    assert re.fullmatch(r"[0-9a-f]{4}", found["gpu.0.device_id"])
    assert found["gpu.0.class"] == "030200"
    assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:00\.0", found["gpu.0.pci"])
    assert found["gpu.0.uuid"] != found["gpu.1.uuid"]


def test_sixteen_cards_have_sixteen_addresses():
    found = simgpu.initial(16, "t4", "a")
    assert len({found[f"gpu.{card}.pci"] for card in range(16)}) == 16


def test_nvswitches_are_those_of_the_board(tmp_path):
    state = tmp_path / "state"
    assert call(state, "init", "--gpus", "8", "--model", "a100", "--nvswitches", "6").returncode == 0
    found = values(state)
    assert (found["nvswitch.count"], found["nvswitch.device_id"]) == ("6", "1af1")
    assert "nvswitch.count" not in simgpu.initial(8, "h100-sxm", "a")
    refused = call(state, "init", "--model", "l4", "--nvswitches", "4")
    assert refused.returncode == 2 and "no NVSwitch on PCI" in refused.stderr
    assert call(state, "init", "--model", "a100", "--nvswitches", "9").returncode == 2


def test_uuids_stay_with_the_node():
    assert simgpu.initial(2, "l4", "one") == simgpu.initial(2, "l4", "one")
    assert simgpu.gpu_uuid("one", 0) != simgpu.gpu_uuid("two", 0)


def test_a_node_without_gpu(tmp_path):
    state = tmp_path / "state"
    assert call(state, "init", "--gpus", "0").returncode == 0
    assert values(state)["gpu.count"] == "0"


def test_set_one_card_all_cards_and_a_full_key(tmp_path):
    state = tmp_path / "state"
    call(state, "init", "--gpus", "2")
    assert call(state, "set", "gpu=1", "temperature=92", "nvml.init_error=18").returncode == 0
    assert call(state, "set", "gpu=all", "utilization_gpu=50").returncode == 0
    found = values(state)
    assert (found["gpu.0.temperature"], found["gpu.1.temperature"]) == ("34", "92")
    assert found["nvml.init_error"] == "18"
    assert found["gpu.0.utilization_gpu"] == found["gpu.1.utilization_gpu"] == "50"


def test_set_leaves_other_keys_and_no_temporary_file(tmp_path):
    state = tmp_path / "state"
    call(state, "init", "--gpus", "1")
    before = values(state)
    call(state, "set", "rc.nvmlDeviceGetName=999")
    assert {**values(state), "rc.nvmlDeviceGetName": None} == {**before, "rc.nvmlDeviceGetName": None}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "state.lock"]
    assert state.stat().st_mode & 0o777 == 0o644


def test_unset_and_boot(tmp_path):
    state = tmp_path / "state"
    call(state, "init", "--gpus", "2")
    call(state, "set", "gpu=all", "persistence_mode=1", "memory_used_mib=900", "nvml.init_error=9")
    assert call(state, "boot").returncode == 0
    assert call(state, "unset", "nvml.init_error").returncode == 0
    found = values(state)
    assert found["gpu.1.persistence_mode"] == found["gpu.1.memory_used_mib"] == "0"
    assert "nvml.init_error" not in found


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["init", "--model", "h900"], "unknown model h900; known: a10, a100"),
        (["init", "--gpus", "17"], "0 to 16"),
        (["set", "temperature=5"], "gpu=N"),
        (["set", "gpu=2", "temperature=5"], "2 simulated GPUs"),
        (["set", "gpu=0", "temperature=hot"], "whole number"),
        (["set", "gpu=0"], "nothing to set"),
        (["set", "temperature"], "not key=value"),
        (["set", "gpu.0;x=1"], "not a key"),
        (["unset", "nvml.nothing"], "not in"),
    ],
)
def test_wrong_words_get_one_clear_line_and_change_nothing(tmp_path, words, part):
    state = tmp_path / "state"
    call(state, "init", "--gpus", "2")
    before = state.read_bytes()
    result = call(state, *words)
    assert result.returncode == 2
    assert part in result.stderr
    assert result.stderr.count("\n") == 1
    assert state.read_bytes() == before


def test_show_prints_the_file_or_says_what_to_do(tmp_path):
    state = tmp_path / "state"
    assert "run simgpu init" in call(state, "show").stderr
    call(state, "init", "--gpus", "1")
    assert call(state, "show").stdout == state.read_text(encoding="utf-8")


def test_last_line_of_a_key_wins():
    assert simgpu.parse("# x=1\na=1\na=2\nno separator\n") == {"a": "2"}
