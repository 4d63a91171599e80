"""simgpu: what a card can be made to show, what a power cycle takes away, kernel log and PCI tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.nvml_build import simgpu


def values(state: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in state.read_text(encoding="utf-8").splitlines() if "=" in line)


@pytest.fixture(name="state")
def _state(tmp_path) -> Path:
    path = tmp_path / "state"
    simgpu(path, "init", "--gpus", "8", "--model", "h100-sxm", "--seed", "test")
    return path


PROFILES = [
    ("v100", "1db5", "3", 6), ("t4", "1eb8", "3", 0), ("a10", "2236", "4", 0), ("a30", "20b7", "4", 0),
    ("a40", "2235", "4", 0), ("a100", "20b2", "4", 12), ("l4", "27b8", "4", 0), ("l40s", "26b9", "4", 0),
    ("h100-pcie", "2331", "5", 0), ("h100-sxm", "2330", "5", 18), ("h100-nvl", "2321", "5", 12),
    ("h200-sxm", "2335", "5", 18), ("b200", "2901", "5", 18), ("gb200", "2941", "5", 18),
]  # fmt: skip


@pytest.mark.parametrize(("model", "device", "generation", "links"), PROFILES)
def test_each_profile_has_a_model_with_its_links_and_its_way_of_replacing_memory(
    tmp_path, model, device, generation, links
):
    simgpu(tmp_path / "state", "init", "--gpus", "1", "--model", model)
    card = {key[6:]: value for key, value in values(tmp_path / "state").items() if key.startswith("gpu.0.")}
    assert (card["device_id"], card["pcie_gen_max"], card["pcie_width"]) == (device, generation, "16")
    assert card.get("nvlink_states", "").count("1") == links
    assert int(card.get("nvlink_count", "0")) == links
    pages = model in ("v100", "t4")
    assert ("retired_dbe" in card, "remap_failure" in card) == (pages, not pages)
    limits = model.startswith(("l4", "h", "b", "gb"))
    assert ("tlimit_slowdown" in card, "temperature_slowdown" in card) == (limits, not limits)


def test_numbers_may_be_negative_or_refused_and_a_wrong_name_is_found(state):
    simgpu(
        state,
        "set",
        "gpu=1",
        "temperature_margin=-1",
        "temperature=!unsupported",
        "power_mw=!999",
        "clock_reasons=0x40",
    )
    card = values(state)
    assert card["gpu.1.temperature_margin"] == "-1"
    assert card["gpu.1.temperature"] == "!unsupported"
    for wrong in ("temprature=3", "temperature=!broken", "temperature=1e3"):
        with pytest.raises(AssertionError, match="temp"):
            simgpu(state, "set", "gpu=1", wrong)
    assert values(state) == card


def test_a_power_cycle_brings_back_what_lived_in_the_driver_and_keeps_what_is_on_the_card(state):
    lasting = {"remap_failure": "1", "ecc_uncorrected_aggregate": "3", "remap_uncorrectable": "2", "temperature": "80"}
    gone = {"ecc_uncorrected_volatile": "3", "remap_pending": "1", "recovery_action": "2", "pcie_replay": "9"}
    words = [f"{key}={value}" for key, value in {**lasting, **gone}.items()]
    simgpu(
        state, "set", "gpu=2", "lost=1", "processes=1:2:compute", "mig_mode_pending=1", "nvlink_errors=1,2,3,4", *words
    )
    simgpu(state, "set", "gpu=3", "lost=2", "pcie_replay=!999", "gpu.3.rc.nvmlDeviceGetName=999")
    simgpu(state, "boot")
    card = values(state)
    assert {key: card[f"gpu.2.{key}"] for key in lasting} == lasting
    assert {card[f"gpu.2.{key}"] for key in gone} == {"0"}
    assert card["gpu.2.nvlink_errors"] == "0,0,0,0"
    assert card["gpu.2.mig_mode_current"] == "1"
    assert not {"gpu.2.lost", "gpu.2.processes"} & set(card)
    assert (card["gpu.3.lost"], card["gpu.3.pcie_replay"], card["gpu.3.rc.nvmlDeviceGetName"]) == ("2", "!999", "999")


def test_a_card_without_retired_pages_gets_none_by_a_power_cycle(state):
    simgpu(state, "boot")
    assert "gpu.0.retired_pending" not in values(state)


def records(path: Path) -> list[str]:
    """Return the texts, after a look at what stands before them."""
    found = [re.fullmatch(r"3,(\d+),(\d+),-;(.*)", line) for line in path.read_text(encoding="ascii").splitlines()]
    assert all(found), path.read_text(encoding="ascii")
    assert [int(match[1]) for match in found] == list(range(1, len(found) + 1))
    return [match[3] for match in found]


LINES = [
    "NVRM: The NVIDIA GPU 0000:2a:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]
XID = "NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], LINES),
        (["--with-xid", "before"], [XID, *LINES]),
        (["--with-xid", "after"], [*LINES, XID]),
        (["--with-xid", "inline"], [XID]),
        (["--joined"], ["\\x0a".join(LINES)]),
    ],
)
def test_hlt_08_a_card_falls_off_the_bus_in_each_of_its_ways(state, tmp_path, options, expected):
    simgpu(state, "off-bus", "gpu=1", "--kmsg", str(tmp_path / "kmsg"), *options)
    assert records(tmp_path / "kmsg") == expected
    assert values(state)["gpu.1.lost"] == "1"


def test_hlt_14_an_xid_has_the_time_that_was_asked_for(state, tmp_path):
    log = str(tmp_path / "kmsg")
    before = state.read_bytes()
    simgpu(state, "xid", "gpu=0", "79", "--at", "40", "--kmsg", log)
    simgpu(state, "xid", "gpu=3", "13", "Graphics Exception: ESR 0x505648=0x8", "--kmsg", log)
    assert records(tmp_path / "kmsg") == [
        "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>",
        "NVRM: Xid (PCI:0000:5e:00): 13, Graphics Exception: ESR 0x505648=0x8",
    ]
    assert (tmp_path / "kmsg").read_text(encoding="ascii").startswith("3,1,40000000,-;")
    assert state.read_bytes() == before


@pytest.mark.parametrize("words", [["xid", "79"], ["xid", "gpu=all", "79"], ["xid", "gpu=0"], ["xid", "gpu=9", "79"]])
def test_an_xid_needs_one_card_and_a_number(state, tmp_path, words):
    with pytest.raises(AssertionError, match="simgpu: "):
        simgpu(state, *words, "--kmsg", str(tmp_path / "kmsg"))
    assert not (tmp_path / "kmsg").exists()


def test_the_pci_tree_follows_the_state(state, tmp_path):
    simgpu(
        state, "set", "gpu=1", "pcie_width=8", "pcie_gen=1", "pcie_fatal=2", "pcie_port_width_max=8", "pci_numa_node=-1"
    )
    simgpu(state, "set", "gpu=4", "on_bus=0", "nvswitch.count=2")
    simgpu(state, "sysfs", "--root", str(tmp_path), "--driver", "nvidia")
    devices = tmp_path / "sys/bus/pci/devices"
    assert len(list(devices.iterdir())) == 9
    card = devices / "0000:2a:00.0"

    def text(path):
        return path.read_text(encoding="ascii").strip()

    assert [text(card / name) for name in ("current_link_width", "max_link_width")] == ["8", "16"]
    assert [text(card / f"{name}_link_speed") for name in ("current", "max")] == ["2.5 GT/s PCIe", "32.0 GT/s PCIe"]
    assert [text(card / name) for name in ("vendor", "device", "class", "numa_node")] == [
        "0x10de",
        "0x2330",
        "0x030200",
        "-1",
    ]
    assert text(card / "aer_dev_fatal").splitlines()[-1] == "TOTAL_ERR_FATAL 2"
    assert text(card / "aer_dev_correctable").splitlines()[-1] == "TOTAL_ERR_COR 0"
    assert text(card.resolve().parent / "max_link_width") == "8"
    assert text(card.resolve().parent / "class") == "0x060400"
    assert (card / "driver").resolve() == tmp_path / "sys/bus/pci/drivers/nvidia"
    assert text(devices / "0000:c1:00.0/class") == "0x068000"
    assert (devices / "0000:c1:00.0/driver").resolve().name == "nvidia-nvswitch"
    simgpu(state, "set", "gpu=1", "pcie_width=4")
    simgpu(state, "sysfs", "--root", str(tmp_path))
    assert text(card / "current_link_width") == "4"


def test_the_pci_tree_needs_a_place_outside_of_a_lab_node(state):
    with pytest.raises(AssertionError, match="no lab node"):
        simgpu(state, "sysfs")


def test_what_fails_belongs_to_the_card_that_was_named_before_it(state):
    simgpu(
        state,
        "set",
        "rc.nvmlDeviceGetUUID=1",
        "gpu=1",
        "rc.nvmlDeviceGetName=3",
        "field.94.rc=999",
        "nvml.init_error=9",
    )
    card = values(state)
    assert (card["rc.nvmlDeviceGetUUID"], card["nvml.init_error"]) == ("1", "9")
    assert (card["gpu.1.rc.nvmlDeviceGetName"], card["gpu.1.field.94.rc"]) == ("3", "999")
    assert "rc.nvmlDeviceGetName" not in card
