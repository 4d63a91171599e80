"""The shipped profiles: complete, with the source of each fact, and no card in two of them."""

from __future__ import annotations

import itertools
import pathlib

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_profile as profile

FILES = pathlib.Path(__file__).parents[3] / "files"
PATHS = sorted((FILES / "gpu_profiles").glob("*.yml"))
DATA = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PATHS}
CARDS = yaml.safe_load((FILES / "compatibility.yml").read_text(encoding="utf-8"))["cards"]

#: Facts that every shipped profile states, be it as "not established" (null).
FACTS = {
    "device_ids",
    "memory_mib",
    "power_limit_w",
    "pcie",
    "nvlink_count",
    "nvswitch",
    "fabric",
    "ecc",
    "memory_repair",
    "mig_capable",
    "tlimit_slowdown_offset",
    "bar1_mib",
    "must_have",
}
#: What only a captured profile says.
OF_A_NODE = {"gpu_count", "slots", "mig_layout", "persistence_mode", "compute_mode", "imex", "gsp_version"}
WANTED = {"v100", "t4", "a10", "a30", "a40", "a100", "l4", "l40s", "h100-pcie", "h100-sxm", "h100-nvl", "h200", "b200"}
WANTED |= {"gb200"}


@pytest.mark.parametrize("name", sorted(DATA))
def test_a_profile_can_be_read_and_is_called_like_its_file(name):
    found = profile.parse(DATA[name], name)
    assert found.name == name and found.title
    assert not OF_A_NODE & set(DATA[name])
    assert found.device_ids and found.power_limit_w and found.pcie and found.must_have


@pytest.mark.parametrize("name", sorted(DATA))
def test_every_fact_says_where_it_comes_from(name):
    data = DATA[name]
    assert set(data) == FACTS | {"schema", "name", "title", "sources"}
    assert set(data["sources"]) == FACTS
    for fact, row in data["sources"].items():
        assert set(row) == {"source", "certainty"} and len(row["source"]) > 8, fact
        assert row["certainty"] in ("H", "M", "L", "P"), fact


def test_all_models_are_there():
    assert {
        wanted for wanted in WANTED if any(name == wanted or name.startswith(wanted + "-") for name in DATA)
    } == WANTED


def test_no_card_is_in_two_profiles():
    for (one, first), (two, second) in itertools.combinations(DATA.items(), 2):
        shared = set(first["device_ids"]) & set(second["device_ids"])
        boards = [set(data.get("subsystem_ids") or ()) for data in (first, second)]
        assert not shared or (all(boards) and not boards[0] & boards[1]), (one, two, shared)


@pytest.mark.parametrize("name", sorted(DATA))
def test_ids_and_memory_agree_with_the_table_of_cards(name):
    cards = {row["device"].lower(): row for row in CARDS if "subsystem" not in row}
    for device in DATA[name]["device_ids"]:
        nominal = cards[device]["memory_mib"]
        # NVML reports the nominal size less what ECC and the firmware take.
        assert 0.9 * nominal <= DATA[name]["memory_mib"] <= nominal, cards[device]["name"]
        generation = cards[device]["generation"]
        old = generation in ("volta", "turing")
        assert DATA[name]["memory_repair"] == ("retired_pages" if old else "row_remap")


@pytest.mark.parametrize("name", sorted(DATA))
def test_facts_fit_each_other(name):
    data = DATA[name]
    must = set(data["must_have"])
    assert ("remap_failure" in must) == (data["memory_repair"] == "row_remap")
    assert ("retired_pending" in must) == (data["memory_repair"] == "retired_pages")
    assert ("nvlink_states" in must) == bool(data["nvlink_count"])
    assert not data["fabric"] or data["nvlink_count"], "a fabric without links"
    assert data["pcie"]["width"] == 16
    assert data["tlimit_slowdown_offset"] is None or data["tlimit_slowdown_offset"] < 0
