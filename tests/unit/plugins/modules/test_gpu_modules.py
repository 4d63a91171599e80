"""The modules gpu_health and gpu_profile: what they return and when they fail; the reading has its own tests."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_snapshots as make
import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_profile, _gpu_snapshot, _health_request
from ansible_collections.aiinfra.gpu_node.plugins.modules import gpu_health, gpu_profile

from lab import nvml_build

ROOT = Path(__file__).resolve().parents[4]


def shipped(**arguments):
    return {"profiles": list(make.profile_data().values()), "xid_policy": make.xid_data(), **arguments}


@pytest.fixture
def call(capsys, monkeypatch):
    """Return call(module, node, arguments): the result of a module on a node, which ``seen`` tells how it was read."""

    def run(module, node, arguments, seen=None):
        told = {} if seen is None else seen
        monkeypatch.setattr(_gpu_snapshot, "collect", lambda _runner, **options: told.update(options) or node)
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return run


BAD = make.snapshot(gpus=[make.gpu(0), dataclasses.replace(make.gpu(1), lost=True, lost_code=15, readings={})])


def test_a_bad_node_does_not_fail_the_task_by_itself(call):
    result = call(gpu_health, BAD, shipped())
    assert not result.get("failed") and not result["changed"]
    assert result["verdict"] == "fail" and not result["may_serve"]
    assert "snapshot" not in result


def test_enforce_fails_with_the_findings_and_returns_the_same(call):
    result = call(gpu_health, BAD, shipped(enforce=True, _ansible_check_mode=True))
    assert result["failed"]
    assert "gpu.lost" in result["msg"] and make.bus(1) in result["msg"]
    plain = call(gpu_health, BAD, shipped())
    assert {key: result[key] for key in ("verdict", "counts", "bad", "gpus")} == {
        key: plain[key] for key in ("verdict", "counts", "bad", "gpus")
    }


def test_enforce_passes_a_good_node(call):
    result = call(gpu_health, make.snapshot(), shipped(enforce=True, expected=2, return_snapshot=True))
    assert not result.get("failed") and result["may_serve"]
    assert result["snapshot"] == json.loads(json.dumps(make.snapshot().as_dict()))


def test_hlt_06_a_missing_library_on_a_gpu_node_is_never_good(call):
    node = make.snapshot(gpus=[], nvml=make.r.Nvml("absent", text="libnvidia-ml.so.1 is not there"))
    assert not call(gpu_health, node, shipped())["may_serve"]


def test_what_cannot_be_judged_by_is_one_message(call):
    result = call(gpu_health, make.snapshot(), shipped(expected="lots", deadline=900))
    assert result["failed"] and "lots" in result["msg"]
    assert "1 to 300" in call(gpu_health, make.snapshot(), shipped(deadline=900))["msg"]


def test_without_the_policy_of_xids_nothing_is_judged(call):
    """The controller sends it; a caller that does not must not get a verdict that ignores the kernel's log."""
    result = call(gpu_health, make.snapshot(), {"profiles": list(make.profile_data().values())})
    assert result["failed"] and "Xid policy" in result["msg"]


def test_the_readers_options_are_handed_on(call):
    seen = {}
    arguments = {"nvml_python": "/p", "nvml_library": "/l", "deadline": 3, "kernel_log": "/k"}
    assert call(gpu_health, make.snapshot(), shipped(**arguments), seen)["nvml_python"] == "/p"
    assert seen == {"python": "/p", "library": "/l", "deadline_s": 3.0, "kmsg": "/k"}


def test_history_of_the_timer_counts_and_is_left_as_it_is(call, tmp_path):
    """Two bad samples that the timer saw and this one make three: what would warn alone fails."""
    path, slow = tmp_path / "history.json", {"clock_reasons": 0x40}
    history = None
    for minutes in (-3, -2, -1):
        node = make.snapshot(gpus=[make.gpu(0, **slow)], minutes=minutes)
        _verdict, history = make.judge(node, history)
    path.write_text(json.dumps(history.as_dict()))
    before = path.read_bytes()
    node = make.snapshot(gpus=[make.gpu(0, **slow)])

    def status(**more):
        result = call(gpu_health, node, shipped(**more))
        return next(row["status"] for row in result["findings"] if row["check"] == "gpu.clock_reasons")

    assert (status(history=str(path)), status(history=""), status(history=str(tmp_path / "none"))) == (
        "fail", "warn", "warn",
    )  # fmt: skip
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"schema": 99}'])
def test_a_history_that_cannot_be_read_is_told(call, tmp_path, content):
    path = tmp_path / "history.json"
    path.write_bytes(content)
    result = call(gpu_health, make.snapshot(), shipped(history=str(path)))
    found = next(row for row in result["findings"] if row["check"] == "node.history")
    assert found["status"] == "warn" and result["may_serve"]


def test_a_captured_profile_fits_the_node_and_refuses_one_with_a_gpu_less(call):
    result = call(gpu_profile, make.snapshot(count=8), {"name": "good", "profiles": shipped()["profiles"]})
    profile = result["profile"]
    assert (profile["name"], profile["gpu_count"], result["base"]) == ("good", 8, "h100-sxm")
    assert "uuid" not in json.dumps(profile)
    assert call(gpu_health, make.snapshot(count=8), shipped(profile=profile))["may_serve"]
    less = call(gpu_health, make.snapshot(count=7), shipped(profile=profile))
    assert [row["status"] for row in less["findings"] if row["check"] == "node.gpu_count"] == ["fail"]


def test_identities_only_where_they_are_asked_for(call):
    result = call(gpu_profile, make.snapshot(), {"name": "x", "identities": True, "profiles": shipped()["profiles"]})
    assert result["profile"]["slots"][make.bus(0)]["uuid"] == "GPU-00000000"


@pytest.mark.parametrize(
    ("node", "arguments", "word"),
    [
        (BAD, {}, "lost"),
        (make.snapshot(gpus=[]), {}, "no GPU"),
        (make.snapshot(), {"base": "t4"}, "does not describe"),
        (make.snapshot(), {"base": "gtx"}, "'gtx' is not there"),
        (make.snapshot(), {"name": "No Name"}, "name"),
        (make.snapshot(), {"deadline": 0}, "deadline"),
    ],
)
def test_what_no_profile_is_made_of(call, node, arguments, word):
    result = call(gpu_profile, node, {"name": "x", "profiles": shipped()["profiles"], **arguments})
    assert result["failed"] and word in result["msg"]


def test_without_a_base_only_what_the_node_tells(call):
    result = call(gpu_profile, make.snapshot(), {"name": "x", "base": "none", "profiles": shipped()["profiles"]})
    assert result["base"] == "" and "must_have" not in result["profile"]
    assert _gpu_profile.problems_of(result["profile"]) == []


def test_the_documented_defaults_are_the_ones_that_count():
    assert gpu_health.ARGUMENT_SPEC["history"]["default"] == _health_request.HISTORY


def documented(module, name):
    """Return the keys that a module's documentation names for a return value."""
    return set(yaml.safe_load(module.RETURN)[name]["contains"])


def test_every_return_value_is_documented_and_nothing_else(call):
    result = call(gpu_health, BAD, shipped(return_snapshot=True))
    assert set(yaml.safe_load(gpu_health.RETURN)) == set(result) - {"changed", "invocation"}
    assert documented(gpu_health, "findings") == set(result["findings"][0])
    assert documented(gpu_health, "gpus") == set(result["gpus"][0])
    assert documented(gpu_health, "summary") == set(result["summary"])
    captured = call(gpu_profile, make.snapshot(), {"name": "x", "profiles": shipped()["profiles"]})
    assert set(yaml.safe_load(gpu_profile.RETURN)) == set(captured) - {"changed", "invocation"}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory, nvml_library):
    """Return ask(deadline, words): the module as Ansible packs and runs it, on two GPUs that ``simgpu`` sets."""
    folder = tmp_path_factory.mktemp("simulated")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}

    def ask(deadline, *words):
        nvml_build.simgpu(folder / "state", "init", "--gpus", "2", "--model", "h100-sxm")
        if words:
            nvml_build.simgpu(folder / "state", "set", *words)
        options = {
            "nvml_python": sys.executable,
            "nvml_library": str(nvml_library()),
            "deadline": deadline,
            "kernel_log": str(folder / "none"),
            "history": "",
        }
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ansible"), "localhost", "-i", "localhost,", "-c", "local"]
            + ["-m", "aiinfra.gpu_node.gpu_health", "-a", json.dumps(options)]
            + ["-e", f"ansible_python_interpreter={sys.executable}"],
            env={
                **environment,
                **nvml_build.environment(folder, nvml_library()),
                "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
                "ANSIBLE_LOCAL_TEMP": str(folder / "ansible"),
                "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
                "ANSIBLE_NOCOLOR": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "=> {" in done.stdout, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.index("=> {") + 3 :])

    return ask


def test_as_ansible_runs_it_every_gpu_is_read_and_judged(simulated):
    result = simulated(60)
    assert [gpu["name"] for gpu in result["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2
    assert result["summary"]["nvml"] == "ok" and result["calls"] > 100
    # The machine of this test has no such GPUs on PCI, which is seen.
    assert not result["may_serve"]
    assert "profiles" not in json.dumps(result.get("invocation", {}))


def test_hlt_04_as_ansible_runs_it_a_hang_is_a_verdict_in_time(simulated):
    result = simulated(3, "gpu=1", "hang.nvmlDeviceGetTemperatureV=1", "hang.nvmlDeviceGetTemperature=1")
    assert result["verdict"] in ("fail", "error") and not result["may_serve"]
    assert result["summary"]["nvml"] == "timeout" and "GetTemperature" in result["summary"]["hung_in"]
    assert 3 <= result["duration_s"] <= 4
    # What was read before stays: the first GPU has its name.
    assert result["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
