"""A snapshot survives the way through JSON, and what was not read never looks like a value."""

from __future__ import annotations

import json

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as reading
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading_names as names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _nvml_tables as tables

SNAPSHOT = reading.Snapshot(
    taken_at=1764579600.5,
    boot_id="b",
    uptime_s=12.5,
    root=True,
    nvml=reading.Nvml("timeout", text="x", count=1, hung_in="nvmlDeviceGetName of GPU 0", calls=3),
    gpus=(
        reading.Gpu(
            0,
            "0000:65:00.0",
            True,
            15,
            {"name": reading.Reading("H100"), "fan_speed": reading.Reading(why=reading.UNSUPPORTED, code=3, note="n")},
            (reading.Process(7, None, "mps", False),),
            (reading.MigDevice(1, "MIG-a", "1g.10gb", 9856, {"name": reading.Reading("x")}),),
        ),
    ),
    pci=(reading.PciGpu("0000:65:00.0", aer={"fatal": 1}, link_speed_gts=32.0),),
    nvswitches=("0000:05:00.0",),
    software=reading.Software("535.1", device_nodes=("/dev/nvidia0",), held=False),
    units=(reading.Unit("a.service", "loaded", "active", "running", 2, 4.5),),
    occupants=reading.Occupants(({"pid": 1, "name": "a"},), (), ({"pid": 2, "name": "b"},)),
    log=(reading.LogEvent(1.5, "xid", 79, "0000:65:00.0", "text", None, True),),
    log_error="e",
)


def test_a_snapshot_comes_back_from_json_as_it_was():
    assert reading.Snapshot.from_dict(json.loads(json.dumps(SNAPSHOT.as_dict()))) == SNAPSHOT


def test_what_a_newer_version_wrote_beside_it_is_left_out():
    data = SNAPSHOT.as_dict()
    data["later"] = data["nvml"]["later"] = data["gpus"][0]["later"] = data["software"]["later"] = 1
    data["gpus"][0]["readings"]["name"]["later"] = data["gpus"][0]["mig"][0]["later"] = 1
    assert reading.Snapshot.from_dict(data) == SNAPSHOT


def test_a_reading_that_was_never_asked_for_is_not_reached():
    found = SNAPSHOT.gpus[0].get("temperature")
    assert (found.ok, found.why, found.value) == (False, reading.NOT_REACHED, None)
    assert SNAPSHOT.gpus[0].get("name").ok


@pytest.mark.parametrize("broken", [{"why": "odd"}, {"why": reading.FAILED, "value": 0}, {"value": 1, "why": "x"}])
def test_a_reading_without_a_known_reason_cannot_be_made(broken):
    with pytest.raises(ValueError, match="reading"):
        reading.Reading(**broken)


def test_zero_and_false_are_values():
    assert reading.Reading(0).ok
    assert reading.Reading(False).ok


def test_each_name_is_there_once_and_the_child_speaks_the_same_words():
    assert len(names.READINGS) == len(set(names.READINGS)) == sum(len(area) for area in names.NAMES.values())
    assert set(tables.WHY.values()) < reading.REASONS
    asked = {name for row in tables.ROWS for name in row[0].split()} | set(tables.FIELDS)
    assert asked < set(names.READINGS)
    assert set(names.READINGS) > tables.FLAGS
