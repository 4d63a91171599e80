"""What is recorded of real GPUs: nothing tells whose machine it was, and the checks judge it as before."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _nvml_child

from lab import nvml_build

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/real_gpu"))
record = __import__("record")
redaction = record.redaction

HOST = "gpu-17.rack4.example.com"
NAMES = (HOST, "gpu-17")
POD = "3f0f2c1e-5a77-4d0a-9a52-0c1f7c0a9e11"
CONTAINER = "9c" * 32
MIG = "MIG-7f3e5c1a-0b6d-5e2f-8a94-1c2d3e4f5a6b"
#: What must not be in a fixture, whatever place it came from.
SECRETS = (
    "gpu-17", "rack4", POD, CONTAINER, MIG[4:], "5e1f7a70", "31337", "31338", "trainer", "payroll", "secret-job",
    "10.20.30.40", "d8:5e:d3:01:02:03", "2001:db8::7", "alice", "Q7Z-55",
)  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory, nvml_library):
    """Return a node of two simulated GPUs as the real code reads them, with users, a log and all that is private."""
    folder = tmp_path_factory.mktemp("node")
    nvml_build.simgpu(folder / "state", "init", "--gpus", "2", "--model", "h100-sxm")
    nvml_build.simgpu(folder / "state", "set", "gpu=0", "persistence_mode=1", "processes=31337:1000:compute")
    nvml_build.simgpu(folder / "state", "set", "gpu=1", "persistence_mode=1")
    environment = nvml_build.environment(folder, nvml_library())
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        for name, value in environment.items():
            context.setenv(name, value)
        nvml, gpus = _nvml_child.probe(sys.executable, 60.0)
    assert nvml.state == "ok" and len(gpus) == 2
    user = r.Process(31337, 1000, name="trainer", unit="payroll.service")
    first = dataclasses.replace(gpus[0], processes=(user,), mig=(r.MigDevice(0, MIG, "1g.10gb", 9728),))
    second = dataclasses.replace(
        gpus[1],
        readings={
            **gpus[1].readings,
            "serial": r.Reading("Q7Z-55"),
            "vbios": r.Reading(None, r.FAILED, 999, f"at {HOST}"),
        },
    )
    holder = {
        "pid": 31337, "name": "trainer", "devices": ["/dev/nvidia0"], "unit": "payroll.service", "container": CONTAINER,
        "pod": {"uid": POD, "namespace": "payroll", "name": "secret-job-0"}, "service": False,
    }  # fmt: skip
    daemon = {**holder, "pid": 31338, "name": "nvidia-persiste", "unit": "nvidia-persistenced.service", "pod": None}
    whole = make.snapshot(gpus=(first, second))
    return dataclasses.replace(
        whole,
        nvml=nvml,
        software=dataclasses.replace(
            whole.software,
            library_path="/srv/alice/libnvidia-ml.so.1",
            cmdline=f"BOOT_IMAGE=/vmlinuz root=UUID={POD} ip=10.20.30.40::{HOST} iommu=pt hostname=gpu-17 pci=realloc",
        ),
        occupants=r.Occupants(dstate=({"pid": 31337, "name": "trainer"},), holders=(holder, daemon)),
        log=(
            r.LogEvent(12.5, "xid", 13, make.bus(0), f"Xid 13, pid=31337, name=trainer, Ch 00000008 0x{'ab' * 4}"),
            r.LogEvent(13.5, "off_bus", None, "", f"gpu-17 d8:5e:d3:01:02:03 2001:db8::7 {first.get('serial').value}"),
        ),
    )


@pytest.fixture(scope="module")
def recorded(node):
    return record.fixture(node, NAMES, good=True)


def test_nothing_of_the_machine_survives(node, recorded):
    text = json.dumps(recorded)
    private = [gpu.get(name).value for gpu in node.gpus for name in ("uuid", "serial")]
    assert len(set(private)) == 4
    assert [word for word in (*SECRETS, *private, *(one.removeprefix("GPU-") for one in private)) if word in text] == []
    # By the looks, not by the redaction's own patterns: UUIDs and serial numbers that are no placeholders.
    assert {found[:27] for found in re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", text)} <= {
        "00000000-0000-4000-8000-000", "00000000-0000-0000-0000-000",
    }  # fmt: skip
    assert all(found.startswith("0000000") for found in re.findall(r'"[^"]*?(\d{13})[^"]*"', text))


def test_what_tells_how_the_gpus_are_stays(node, recorded):
    before, after = node.as_dict(), recorded["snapshot"]
    for old, new in zip(before["gpus"], after["gpus"]):
        changed = {name for name in old["readings"] if old["readings"][name] != new["readings"][name]}
        assert changed <= {"uuid", "serial", "vbios"}
        assert (old["bus_id"], old["index"]) == (new["bus_id"], new["index"])
    assert before["pci"] == json.loads(json.dumps(after["pci"]))
    assert after["software"]["cmdline"] == "redacted redacted redacted iommu=pt redacted pci=realloc"
    assert "Xid 13, pid=900001, name=process-1, Ch 00000008 0xabababab" in after["log"][0]["text"]
    assert after["occupants"]["holders"][1]["name"] == "nvidia-persiste"


def test_two_stay_two_and_one_stays_one(recorded):
    gpus, occupants = recorded["snapshot"]["gpus"], recorded["snapshot"]["occupants"]
    for name in ("uuid", "serial"):
        assert gpus[0]["readings"][name]["value"] != gpus[1]["readings"][name]["value"]
    assert gpus[0]["readings"]["uuid"]["value"].startswith("GPU-00000000-")
    first, second = occupants["holders"]
    assert gpus[0]["processes"][0]["pid"] == first["pid"] == occupants["dstate"][0]["pid"] != second["pid"]
    assert gpus[0]["processes"][0]["name"] == first["name"] == occupants["dstate"][0]["name"] == "process-1"
    assert gpus[0]["processes"][0]["unit"] == first["unit"] == "unit-1.service"


def test_redacting_twice_changes_nothing(recorded):
    snapshot = recorded["snapshot"]
    assert redaction.Redactor(NAMES).data(snapshot) == snapshot


def test_the_checks_judge_it_as_before(node, recorded):
    before = make.judge(node, wanted=make.profiles())[0]
    after = make.judge(r.Snapshot.from_dict(recorded["snapshot"]), wanted=make.profiles())[0]
    statuses = [[item.check, item.target, item.status] for item in before.findings]
    assert statuses == [[item.check, item.target, item.status] for item in after.findings]
    assert recorded["health"]["findings"] == statuses


@pytest.mark.parametrize(
    "text",
    [
        "GPU-7f3e5c1a-0b6d-5e2f-8a94-1c2d3e4f5a6b", "serial 1650023000001.", "at 192.0.2.7.",
        f"unit docker-{CONTAINER}.scope", "in /srv/models/x", "mac d8:5e:d3:01:02:03", "from 2001:db8::7", "on GPU-17:",
    ],
)  # fmt: skip
def test_what_is_left_is_found_and_nothing_is_recorded(node, monkeypatch, text):
    assert redaction.survivors([{"note": text}], NAMES)
    assert redaction.survivors([{"note": redaction.Redactor(NAMES).text(text)}], NAMES) == []
    monkeypatch.setattr(redaction.Redactor, "text", lambda _self, _text: text)
    with pytest.raises(record.RecordError, match="redaction left"):
        record.fixture(node, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "0000:17:00.0", "2000:65:00.0", "PCI:0000:17:00", "12.535.261.03", "13.580.105.08", "96.00.99.00.01", "N/A",
        "G520.0200.00.05", "692-2G520-0200-000", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03", "/dev/nvidia0",
        "00000000-0000-0000-0000-000000000000", "Driver/library version mismatch", "10de:16c1", "NVIDIA H100 80GB HBM3",
        "/opt/gpu_node/nvml/bin/python", "0x0000000012345678",
    ],
)  # fmt: skip
def test_what_is_nobodys_stays_and_is_no_alarm(text):
    assert redaction.Redactor(NAMES).text(text) == text
    assert redaction.survivors([text], NAMES) == []


@pytest.mark.parametrize("changes", [{"nvml": r.Nvml("timeout", hung_in="nvmlInit")}, {"gpus": ()}])
def test_a_machine_that_was_not_read_is_not_recorded(node, changes):
    with pytest.raises(record.RecordError, match="GPUs were read"):
        record.fixture(dataclasses.replace(node, **changes), NAMES)


def test_the_script_as_it_is_run(tmp_path, nvml_library):
    """On simulated GPUs, with the machine's own sysfs and log; only that no real GPU is there is missing."""
    nvml_build.simgpu(tmp_path / "state", "init", "--gpus", "2", "--model", "h200-sxm")
    before = (tmp_path / "state").read_bytes()
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/real_gpu/record.py"), "simulated", "--out", str(tmp_path / "out")],
        env=nvml_build.environment(tmp_path, nvml_library()),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out/simulated.json").read_text(encoding="utf-8"))
    assert [gpu["readings"]["name"]["value"] for gpu in content["snapshot"]["gpus"]] == ["NVIDIA H200"] * 2
    assert redaction.survivors(content["snapshot"], record.machine_names()) == []
    assert (tmp_path / "state").read_bytes() == before, "a setting was changed"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["simulated.json"]
