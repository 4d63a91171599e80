"""Profiles: matched by PCI ids, refused with every mistake named, captured from good nodes only."""

from __future__ import annotations

import dataclasses
import json

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_profile as profile
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import OK, WARN

GOOD = {"schema": 1, "name": "x", "device_ids": ["2330"]}


def test_a_gpu_is_matched_by_its_ids_whatever_it_is_called():
    pci = make.pci_gpu(0, device_id="2335")
    assert profile.match(make.profiles(), pci).name == "h200-sxm"
    assert profile.match(make.profiles(), make.pci_gpu(0, device_id="2342")) is None, "a GH200 is no H200"


def test_a_board_tells_two_cards_of_one_id_apart():
    a16 = profile.parse({**GOOD, "name": "a16", "device_ids": ["25b6"], "subsystem_ids": ["10de:14a9"]})
    a2 = profile.parse({**GOOD, "name": "a2", "device_ids": ["25b6"], "subsystem_ids": ["10de:157e"]})
    pci = make.pci_gpu(0, device_id="25B6", subsystem="10de:157E")
    assert profile.match((a16, a2), pci) is a2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema is 2"),
        ({"device_ids": []}, "device_ids is missing"),
        ({"device_ids": [2330]}, "device_ids is .*quotes"),
        ({"device_ids": ["0x2330"]}, "device_ids"),
        ({"device_ids": "2330"}, "device_ids"),
        ({"name": "H100 SXM"}, "name is"),
        ({"memory_gb": 80}, "unknown keys memory_gb"),
        ({"memory_mib": "80"}, "memory_mib"),
        ({"nvlink_count": True}, "nvlink_count"),
        ({"pcie": {"width": 16}}, "pcie"),
        ({"pcie": 16}, "pcie"),
        ({"power_limit_w": {"default": 800, "max": 700}}, "power_limit_w"),
        ({"must_have": ["fans"]}, "must_have"),
        ({"memory_repair": "rows"}, "row_remap"),
        ({"slots": {"65:00": {}}}, "slots"),
        ({"slots": {"0000:65:00.0": {"color": 1}}}, "slots"),
        ({"sources": {"ecc": {"source": "x", "certainty": "sure"}}}, "sources"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(profile.ProfileError, match=f"my file: .*{message}"):
        profile.parse({**GOOD, **change}, "my file")


@pytest.mark.parametrize("nothing", [None, [], "text"])
def test_what_is_no_dictionary_is_refused(nothing):
    with pytest.raises(profile.ProfileError, match="is a dictionary"):
        profile.parse(nothing)


def test_a_captured_profile_finds_its_own_node_healthy():
    node = make.snapshot(count=2)
    data = json.loads(json.dumps(profile.capture(node, "golden", make.shipped("h100-sxm"))))
    golden = profile.parse(data)
    verdict = make.judge(node, make.settled(), wanted=(golden, *make.profiles()))[0]
    assert verdict.status == OK, verdict.bad
    assert golden.gpu_count == 2 and golden.nvswitch == 2 and golden.nvlink_count == 18
    assert golden.slots[make.bus(1)] == {
        "pcie_width": 16,
        "pcie_generation": 5,
        "vbios": "96.00.99.00.01",
        "numa_node": 0,
    }
    assert golden.must_have == make.shipped("h100-sxm").must_have
    assert set(data["sources"]) >= {"memory_mib", "gpu_count", "pcie"}


def test_drift_from_the_captured_node_is_seen():
    golden = profile.parse(profile.capture(make.snapshot(), "golden", make.shipped("h100-sxm")))
    changed = make.snapshot([make.gpu(0, vbios="new"), make.gpu(1, vbios="new")])
    verdict = make.judge(changed, make.settled(), wanted=(golden,))[0]
    assert [item.status for item in make.only(verdict, "gpu.vbios")] == [WARN, WARN]


def test_identities_are_kept_only_when_asked_for():
    text = json.dumps(profile.capture(make.snapshot(), "golden"))
    assert "GPU-0000" not in text and "serial" not in text
    slots = profile.capture(make.snapshot(), "golden", identities=True)["slots"]
    assert slots[make.bus(0)]["uuid"] == "GPU-00000000"


def test_mig_is_captured_with_its_layout():
    parts = (r.MigDevice(0, "MIG-0", "3g.40gb"), r.MigDevice(1, "MIG-1", "1g.10gb"))
    gpus = [make.gpu(0, mig_mode_current=1, mig_mode_pending=1, mig=parts, mig_devices=2)]
    assert profile.capture(make.snapshot(gpus), "golden")["mig_layout"] == ["1g.10gb", "3g.40gb"]
    assert profile.capture(make.snapshot(), "golden")["mig_layout"] == []


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (make.snapshot([]), "has no GPU"),
        (make.snapshot(nvml=r.Nvml("timeout", text="hung")), "NVML is timeout"),
        (make.snapshot([make.gpu(0), make.gpu(1, lost=True)]), "is lost"),
        (make.snapshot(pci=(make.pci_gpu(0), make.pci_gpu(1, device_id="2331"))), "several models"),
        (make.snapshot(pci=(make.pci_gpu(0),)), "PCI shows"),
        (make.snapshot([make.gpu(0, power_mw=make.unread(r.FAILED, 999, "boom"))]), "power_mw of GPU 0"),
    ],
)
def test_a_node_that_is_not_good_is_no_model_for_others(node, message):
    with pytest.raises(profile.ProfileError, match=message):
        profile.capture(node, "golden")


def test_a_value_in_which_the_gpus_differ_is_not_captured():
    gpus = [make.gpu(0), make.gpu(1, compute_mode=3)]
    assert "compute_mode" not in profile.capture(make.snapshot(gpus), "golden")


def test_a_profile_goes_through_its_mapping_unchanged():
    for shipped in make.profiles():
        assert profile.parse(profile.as_mapping(shipped)) == shipped
    assert dataclasses.replace(make.shipped("t4"), name="x") != make.shipped("t4")
