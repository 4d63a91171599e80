"""gpu_info hands its options on, returns a snapshot, and changes nothing; also as Ansible packs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as reading
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading_names as names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_snapshot
from ansible_collections.aiinfra.gpu_node.plugins.modules import gpu_info

from lab import nvml_build

ROOT = Path(__file__).resolve().parents[4]


def call(capsys, arguments):
    with patch_module_args(arguments), pytest.raises(SystemExit):
        gpu_info.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("check", [True, False])
def test_options_are_handed_on_in_check_mode_too(capsys, monkeypatch, check):
    seen = {}
    given = reading.Snapshot(1.0, "b", 2.0, True, reading.Nvml("ok"), gpus=(reading.Gpu(0),))
    monkeypatch.setattr(_gpu_snapshot, "collect", lambda _runner, **more: seen.update(more) or given)
    options = {"nvml_python": "/p", "nvml_library": "/l", "deadline": 2.5, "kernel_log": "/k"}
    result = call(capsys, {**options, "_ansible_check_mode": check})
    assert seen == {"python": "/p", "library": "/l", "deadline_s": 2.5, "kmsg": "/k"}
    assert (result["changed"], result["snapshot"]) == (False, given.as_dict())


@pytest.mark.parametrize("deadline", [0, 0.5, 301, -1])
def test_a_deadline_out_of_range_is_refused(capsys, deadline):
    result = call(capsys, {"deadline": deadline})
    assert result["failed"]
    assert "1 to 300 seconds" in result["msg"]


def documented(entries):
    return {key: documented(entry["contains"]) if "contains" in entry else None for key, entry in entries.items()}


def test_every_field_is_documented_and_nothing_else():
    told = documented(yaml.safe_load(gpu_info.RETURN))["snapshot"]

    def fields(cls):
        return set(cls.__dataclass_fields__)

    assert set(told) == fields(reading.Snapshot)
    for key, cls in (
        ("nvml", reading.Nvml),
        ("gpus", reading.Gpu),
        ("pci", reading.PciGpu),
        ("software", reading.Software),
        ("units", reading.Unit),
        ("log", reading.LogEvent),
    ):
        assert set(told[key]) == fields(cls), key
    assert set(told["gpus"]["readings"]) == fields(reading.Reading)
    assert set(told["gpus"]["processes"]) == fields(reading.Process)
    assert set(told["gpus"]["mig"]) == fields(reading.MigDevice)
    for name in names.READINGS:
        assert f"C({name})" in gpu_info.RETURN, name


def test_the_packed_module_carries_the_childs_program(tmp_path, nvml_library):
    """In the zip file that Ansible sends there are no files to start, so the child's text comes from the loader."""
    nvml_build.simgpu(tmp_path / "state", "init", "--gpus", "2")
    environment = nvml_build.environment(tmp_path, nvml_library())
    environment["ANSIBLE_COLLECTIONS_PATH"] = str(ROOT / "collections")
    options = {"nvml_python": sys.executable, "deadline": 60, "kernel_log": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "adhoc", "localhost", "-c", "local", "-m", "aiinfra.gpu_node.gpu_info"]
        + ["-a", json.dumps(options), "-e", f"ansible_python_interpreter={sys.executable}", "--check"],
        env={**os.environ, **environment, "ANSIBLE_STDOUT_CALLBACK": "json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"state": "ok"' in done.stdout
    assert "NVIDIA H100" in done.stdout
