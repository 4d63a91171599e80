"""Look-ups in the compatibility data, against the data that ships."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _compat

DATA = yaml.safe_load((pathlib.Path(__file__).parents[4] / "files" / "compatibility.yml").read_text(encoding="utf-8"))


def gpu(device, subsystem="", class_code="030200"):
    return {"vendor": "10de", "device": device, "class": class_code, "subsystem": subsystem}


@pytest.mark.parametrize(
    ("device", "generation", "how", "card"),
    [
        ("102d", "kepler", "range", ""),
        ("17fd", "maxwell", "range", ""),
        ("1b38", "pascal", "card", "P40"),
        ("15f8", "pascal", "card", "P100 PCIe 16 GB"),
        ("1db6", "volta", "card", "V100 PCIe 32 GB"),
        ("1eb8", "turing", "card", "T4"),
        ("21c4", "turing", "range", ""),
        ("20b2", "ampere", "card", "A100 SXM4 80 GB"),
        ("2204", "ampere", "range", ""),
        ("2330", "hopper", "card", "H100 SXM 80 GB"),
        ("2342", "grace_hopper", "card", "GH200"),
        ("2348", "grace_hopper", "card", "GH200 144 GB"),
        ("2343", "hopper", "range", ""),
        ("2482", "ampere", "range", ""),
        ("2684", "ada", "range", ""),
        ("27b8", "ada", "card", "L4"),
        ("2901", "blackwell", "card", "B200"),
        ("2b85", "blackwell", "range", ""),
        ("2e12", "blackwell", "range", ""),
        ("31c2", "blackwell", "card", "GB300"),
        ("06d1", "pre_turing", "rule", ""),
        ("3500", "", "unknown", ""),
    ],
)
def test_drv_08_generation_by_pci_id(device, generation, how, card):
    found = _compat.match(DATA, device)
    assert (found.generation, found.how, found.card) == (generation, how, card)


def test_cards_that_share_an_id_are_told_apart_by_their_subsystem():
    assert _compat.match(DATA, "25b6", "157e").card == "A2"
    assert _compat.match(DATA, "25b6", "14a9").card == "A16"
    unknown_board = _compat.match(DATA, "25b6", "0001")
    assert unknown_board.how == "range" and unknown_board.generation == "ampere" and unknown_board.memory_mib is None


@pytest.mark.parametrize(
    ("device", "class_code"),
    [("10f8", "040300"), ("1ad7", "0c0330"), ("1aeb", "040300"), ("1af1", "068000"), ("22a3", "068000")],
)
def test_class_filter_keeps_audio_usb_and_nvswitch_out(device, class_code):
    """Their ids lie below the pre-Turing line or inside GA10x: without the filter the node would look like a V100."""
    assert _compat.matches(DATA, [gpu(device, class_code=class_code), gpu("20b2")])[0].generation == "ampere"
    assert len(_compat.matches(DATA, [gpu(device, class_code=class_code)])) == 0


def test_other_vendors_are_no_gpus():
    assert not _compat.is_gpu(DATA, "8086", "030000")
    assert _compat.is_gpu(DATA, "10DE", "0x030000")


@pytest.mark.parametrize(
    ("devices", "driver", "wanted", "flavour"),
    [
        (["2901"], "580.65.06", "auto", "open"),
        (["2342"], "580.65.06", "auto", "open"),
        (["1db6"], "535.261.03", "auto", "proprietary"),
        (["1db6", "2330"], "580.65.06", "auto", "proprietary"),
        (["2330"] * 8, "535.261.03", "auto", "open"),
        (["2330"], "535.261.03", "proprietary", "proprietary"),
        (["1eb8"], "470.256.02", "auto", "proprietary"),
        (["3500"], "580.65.06", "open", "open"),
        ([], "580.65.06", "auto", "open"),
        ([], "470.256.02", "auto", "proprietary"),
        (["2330"], "620.10.01", "auto", "open"),
    ],
)
def test_drv_08_flavour_of_possible_pairs(devices, driver, wanted, flavour):
    found = _compat.matches(DATA, [gpu(device) for device in devices])
    choice = _compat.choose_flavour(DATA, found, driver, wanted)
    assert (choice.flavour, choice.problems) == (flavour, ())


@pytest.mark.parametrize(
    ("devices", "driver", "wanted", "words"),
    [
        (["2901"], "580.65.06", "proprietary", ["B200", "10de:2901", "nvidia_driver_flavour", "open"]),
        (["31c2"], "580.65.06", "proprietary", ["GB300"]),
        (["1db6"], "535.261.03", "open", ["V100 PCIe 32 GB", "10de:1db6", "proprietary"]),
        (["1b38"], "535.261.03", "open", ["P40"]),
        (["1db6", "2901"], "580.65.06", "auto", ["V100", "B200", "10de:1db6", "10de:2901"]),
        (["3500"], "580.65.06", "auto", ["10de:3500", "nvidia_driver_flavour"]),
        (["2330"], "470.256.02", "open", ["470", "open"]),
        (["2330"], "620.10.01", "proprietary", ["620", "proprietary"]),
        (["2901"], "470.256.02", "auto", ["B200", "470"]),
        (["1db6"], "620.10.01", "auto", ["V100", "620"]),
    ],
)
def test_drv_08_impossible_pairs_are_refused_with_the_ids(devices, driver, wanted, words):
    found = _compat.matches(DATA, [gpu(device) for device in devices])
    choice = _compat.choose_flavour(DATA, found, driver, wanted)
    assert choice.flavour == ""
    text = " ".join(choice.problems)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("devices", "driver", "words"),
    [
        (["1db6"], "595.58.03", ["V100", "580", "595.58.03"]),
        (["102d"], "535.261.03", ["Kepler", "470"]),
        (["2901"], "535.261.03", ["B200", "570"]),
        (["2330", "2330", "2901"], "550.163.01", ["B200"]),
    ],
)
def test_branch_out_of_bounds(devices, driver, words):
    problems = _compat.branch_problems(_compat.matches(DATA, [gpu(device) for device in devices]), driver)
    assert len(problems) == 1
    assert all(word in problems[0] for word in words)


def test_branch_within_bounds():
    found = _compat.matches(DATA, [gpu("2330"), gpu("1db6"), gpu("3500")])
    assert _compat.branch_problems(found, "580.65.06") == []


@pytest.mark.parametrize("text", ["535.261.03", "580.65.06", "550.40.82", "570.26", "535.86.10"])
def test_exact_driver_versions(text):
    assert _compat.exact_driver(text)


@pytest.mark.parametrize(
    "text", ["", "535", "535.*", "535-server", "535.261.03-1", "1:535.261.03", "latest", "v535.261.03"]
)
def test_inexact_driver_versions(text):
    assert not _compat.exact_driver(text)


def test_branch_rows_and_their_end():
    row = _compat.branch_row(DATA, "580.178.04")
    assert row["type"] == "LTSB"
    assert not _compat.branch_ended(row, "2028-06-30")
    assert _compat.branch_ended(row, "2028-07-01")
    assert not _compat.branch_ended(row, "")
    assert _compat.branch_ended(_compat.branch_row(DATA, "550.163.01"), "2025-01-01")
    assert _compat.branch_row(DATA, "999.1.1") is None
    assert _compat.living_branches(DATA, "2026-11-30") == [580, 595, 620]
    assert _compat.living_branches(DATA, "2028-01-01") == [580, 620]


@pytest.mark.parametrize(
    ("cuda", "driver", "native"),
    [
        ("12.8", "570.158", True),
        ("12.9.1", "570.158", False),
        ("12.4", "595.58.03", True),
        ("11.8", "610.43.02", True),
        ("11.0.3", "450.36.06", True),
        ("12.2", "525.60.13", False),
        ("13.1", "580.65.06", False),
    ],
)
def test_cud_05_driver_runs_cuda_without_upper_bound(cuda, driver, native):
    verdict = _compat.check_cuda(DATA, cuda, driver)
    assert (verdict.ok, verdict.native, verdict.ways_out) == (True, native, "")


@pytest.mark.parametrize(
    ("cuda", "driver", "minimum", "words"),
    [
        ("13.0", "570.158", "580.65.06", ["580.65.06", "12.x", "nvidia_driver_version", "cuda-compat-13-0"]),
        ("12.4.1", "470.256.02", "525.60.13", ["11.x", "cuda-compat-12-4"]),
        ("11.1", "450.36.06", "450.80.02", ["450.80.02"]),
        ("12.0", "418.226.00", "525.60.13", ["525.60.13"]),
    ],
)
def test_cud_05_too_old_driver_is_refused_with_the_ways_out(cuda, driver, minimum, words):
    verdict = _compat.check_cuda(DATA, cuda, driver)
    assert not verdict.ok and verdict.minimum == minimum
    assert all(word in verdict.ways_out for word in words), verdict.ways_out


@pytest.mark.parametrize("cuda", ["14.0", "9.2"])
def test_cuda_outside_the_table_names_what_is_known(cuda):
    verdict = _compat.check_cuda(DATA, cuda, "580.65.06")
    assert not verdict.ok and "11, 12, 13" in verdict.ways_out


def test_old_gpu_stops_at_its_last_cuda_major():
    found = _compat.matches(DATA, [gpu("1db6"), gpu("2330")])
    assert "V100" in _compat.cuda_problems(found, "13.0")[0]
    assert _compat.cuda_problems(found, "12.9") == []


@pytest.mark.parametrize("text", ["12.4", "13.0.1"])
def test_cuda_release_is_well_formed(text):
    assert _compat.valid_release(text)


@pytest.mark.parametrize("text", ["12", "latest", "12-4", ""])
def test_cuda_release_is_malformed(text):
    assert not _compat.valid_release(text)


def test_supported_systems_ignore_point_releases():
    assert _compat.supported_system(DATA, "debian", "12")["level"] == "tested"
    assert _compat.supported_system(DATA, "debian", "12.9")["codename"] == "bookworm"
    assert _compat.supported_system(DATA, "ubuntu", "22.04")["level"] == "stand-in"
    assert _compat.supported_system(DATA, "debian", "11") is None
    assert _compat.supported_system(DATA, "debian", "120") is None
    assert _compat.supported_system(DATA, "rhel", "9.4") is None


def test_svc_04_only_some_boards_hide_their_nvswitches():
    def gpu(device):
        return {"vendor": "10de", "device": device, "class": "030200", "subsystem": ""}

    assert _compat.hidden_nvswitches(DATA, [gpu("2901"), gpu("2901")]) == ["B200 (10de:2901)"]
    assert _compat.hidden_nvswitches(DATA, [gpu("2330"), gpu("2941"), gpu("ffff")]) == []
