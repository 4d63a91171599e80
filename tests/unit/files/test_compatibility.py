"""The compatibility data: every table ordered, unique, complete, and with the origin of each row."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

FILE = pathlib.Path(__file__).parents[3] / "files" / "compatibility.yml"
DATA = yaml.safe_load(FILE.read_text(encoding="utf-8"))

#: table: (mandatory keys, optional keys)
TABLES = {
    "cuda_releases": ({"release", "driver"}, {"note"}),
    "cuda_minimum_drivers": ({"major", "from", "driver"}, {"note"}),
    "branches": ({"branch", "type", "eol", "ended", "max_cuda", "flavours"}, {"note"}),
    "generations": (
        {"name", "title", "compute_capability", "first_branch", "last_branch", "first_cuda", "last_cuda_major"}
        | {"flavours", "recommended", "ranges"},
        {"note"},
    ),
    "cards": ({"device", "name", "generation", "memory_mib"}, {"subsystem", "hidden_nvswitch", "note"}),
    "cudnn": ({"first", "last", "cuda", "minimum_driver", "oldest_generation"}, {"note"}),
    "tensorrt": ({"release", "cuda", "cudnn", "cudnn_optional"}, {"note"}),
    "repository_keys": ({"distro", "file", "fingerprint"}, {"note"}),
    "revoked_repository_keys": ({"file", "fingerprint", "until"}, {"note"}),
    "operating_systems": ({"id", "version", "codename", "level", "cuda_repo", "architectures"}, {"note"}),
}
DRIVER = re.compile(r"^\d{3}\.\d{2,3}(\.\d{2})?$")
FINGERPRINT = re.compile(r"^[0-9A-F]{40}$")
DEVICE = re.compile(r"^[0-9A-F]{4}$")


def version(text):
    return tuple(int(part) for part in text.split("."))


@pytest.mark.parametrize("table", sorted(TABLES))
def test_rows_are_complete_and_say_where_they_come_from(table):
    mandatory, optional = TABLES[table]
    assert DATA[table]
    for row in DATA[table]:
        assert mandatory | {"source", "certainty"} <= set(row) <= mandatory | optional | {"source", "certainty"}, row
        assert row["source"] in DATA["sources"], row
        assert row["certainty"] in ("H", "M", "L", "P"), row


def test_no_unknown_tables_and_no_unused_source():
    plain = {"schema", "sources", "pci", "pre_turing_below", "pre_turing_last_branch", "pre_turing_last_cuda_major"}
    assert set(DATA) == set(TABLES) | plain
    used = {row["source"] for table in TABLES for row in DATA[table]}
    used |= {span["source"] for row in DATA["generations"] for span in row["ranges"]}
    # SHEET is the origin of the memory column of the cards, which carry the source of the id.
    assert used | {"SHEET"} == set(DATA["sources"])


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("cuda_releases", lambda row: version(row["release"])),
        ("cuda_minimum_drivers", lambda row: (row["major"], version(row["from"]))),
        ("branches", lambda row: row["branch"]),
        ("cards", lambda row: (int(row["device"], 16), row.get("subsystem", ""))),
        ("cudnn", lambda row: (version(row["first"]), row["cuda"])),
        ("tensorrt", lambda row: version(row["release"])),
        ("repository_keys", lambda row: row["distro"]),
        ("operating_systems", lambda row: (row["id"], version(row["version"]))),
    ],
)
def test_tables_are_ordered_and_unique(table, key):
    keys = [key(row) for row in DATA[table]]
    assert keys == sorted(keys)
    assert len({str(item) for item in keys}) == len(keys)


def test_cuda_releases_have_real_drivers_that_never_go_back():
    drivers = [row["driver"] for row in DATA["cuda_releases"]]
    assert all(DRIVER.match(driver) for driver in drivers)
    per_minor = {}
    for row in DATA["cuda_releases"]:
        per_minor.setdefault(row["release"].rsplit(".", 1)[0], []).append(version(row["driver"]))
    assert all(found == sorted(found) for found in per_minor.values())
    assert not [row for row in DATA["cuda_releases"] if row["release"].startswith("12.7")]


def test_cud_05_minimum_drivers_have_no_upper_bound():
    for row in DATA["cuda_minimum_drivers"]:
        assert set(row) <= {"major", "from", "driver", "source", "certainty", "note"}, "a bound crept in"
        assert DRIVER.match(row["driver"])
    drivers = [version(row["driver"]) for row in DATA["cuda_minimum_drivers"]]
    assert drivers == sorted(drivers)
    assert {row["major"] for row in DATA["cuda_minimum_drivers"]} == {
        version(row["release"])[0] for row in DATA["cuda_releases"]
    }


def test_minimum_is_never_above_the_bundled_driver():
    for release in DATA["cuda_releases"]:
        wanted = version(release["release"])
        rows = [
            row
            for row in DATA["cuda_minimum_drivers"]
            if row["major"] == wanted[0] and version(row["from"]) <= wanted[:2]
        ]
        assert version(rows[-1]["driver"]) <= version(release["driver"]), release


def test_branches_fit_the_cuda_table():
    branches = {row["branch"]: row for row in DATA["branches"]}
    for release in DATA["cuda_releases"]:
        branch = branches[version(release["driver"])[0]]
        assert version(branch["max_cuda"]) == version(release["release"])[:2], release
    for row in branches.values():
        assert row["type"] in ("LTSB", "PB", "NFB", "DEV")
        assert row["eol"] is None or re.match(r"^20\d\d-(0[1-9]|1[0-2])$", row["eol"])
        assert isinstance(row["ended"], bool)
        assert set(row["flavours"]) <= {"open", "proprietary"} and row["flavours"]
        assert row["ended"] or row["eol"] or row["type"] == "NFB", "a living branch has a date or is short-lived"


def test_generations_are_consistent():
    names = [row["name"] for row in DATA["generations"]]
    assert len(names) == len(set(names))
    branches = {row["branch"] for row in DATA["branches"]}
    for row in DATA["generations"]:
        assert row["recommended"] in row["flavours"]
        assert {row["first_branch"], row["last_branch"]} - {None} <= branches
        assert all(re.match(r"^\d+\.\d$", text) for text in row["compute_capability"])
        newest_before_turing = all(int(span["last"], 16) < int(DATA["pre_turing_below"], 16) for span in row["ranges"])
        assert newest_before_turing == (row["flavours"] == ["proprietary"]), row["name"]


def test_pci_ranges_do_not_overlap():
    spans = []
    for row in DATA["generations"]:
        for span in row["ranges"]:
            assert DEVICE.match(span["first"]) and DEVICE.match(span["last"])
            assert span["source"] in DATA["sources"] and span["certainty"] in ("H", "M")
            spans.append((int(span["first"], 16), int(span["last"], 16), row["name"]))
    spans.sort()
    assert all(first <= last for first, last, name in spans)
    for (_first, last, name), (following, _last, other) in zip(spans, spans[1:]):
        assert last < following, (name, other)


def test_cards_lie_in_a_range_of_their_generation():
    ranges = {row["name"]: row["ranges"] for row in DATA["generations"]}
    for card in DATA["cards"]:
        assert DEVICE.match(card["device"]) and DEVICE.match(card.get("subsystem", "0000"))
        spans = ranges[card["generation"]]
        assert any(span["first"] <= card["device"] <= span["last"] for span in spans), card
        assert card["memory_mib"] is None or 8 * 1024 <= card["memory_mib"] <= 512 * 1024
        assert card["memory_mib"] is not None or card.get("note")


def test_one_pci_id_for_two_cards_needs_subsystems():
    ids = [card["device"] for card in DATA["cards"]]
    for card in DATA["cards"]:
        assert ids.count(card["device"]) == 1 or card.get("subsystem"), card


def test_repository_keys():
    for row in DATA["repository_keys"] + DATA["revoked_repository_keys"]:
        assert row["fingerprint"] is None or FINGERPRINT.match(row["fingerprint"])
    trusted = {row["fingerprint"] for row in DATA["repository_keys"]}
    assert not trusted & {row["fingerprint"] for row in DATA["revoked_repository_keys"]}
    distros = {row["distro"]: row for row in DATA["repository_keys"]}
    for system in DATA["operating_systems"]:
        assert distros[system["cuda_repo"]]["fingerprint"], "a supported system needs a key to check against"


def test_operating_systems():
    for row in DATA["operating_systems"]:
        assert row["level"] in ("tested", "stand-in")
        assert row["architectures"]["x86_64"] == row["level"]
        assert set(row["architectures"].values()) <= {"tested", "stand-in", "untested"}


def test_tensorrt_and_cudnn_name_cuda_versions_and_generations_that_exist():
    names = {row["name"] for row in DATA["generations"]} | {None}
    for row in DATA["cudnn"]:
        assert version(row["first"]) <= version(row["last"])
        assert row["oldest_generation"] in names
    for row in DATA["tensorrt"]:
        assert isinstance(row["cudnn_optional"], bool)
        assert row["cudnn"] or row["cudnn_optional"]
        for span in row["cuda"]:
            assert version(span["first"]) <= version(span["last"])
