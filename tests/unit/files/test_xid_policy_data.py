"""The Xid policy: a decision with reason, source and date for every code of the catalogue."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _xid_policy as xid

FILE = pathlib.Path(__file__).parents[3] / "files" / "xid_policy.yml"
DATA = yaml.safe_load(FILE.read_text(encoding="utf-8"))
ROWS = {row["code"]: row for row in DATA["codes"]}
DATE = re.compile(r"^20\d\d-\d\d-\d\d$")

#: NVIDIA's catalogue of 2025-10-29, by action; what is in no list is marked unused there.
CATALOGUE = {
    "RESTART_BM": [79],
    "RESTART_VM": [151],
    "RESET_GPU": [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
    "WORKFLOW_XID_45": [45],
    "WORKFLOW_XID_48": [48],
    "WORKFLOW_NVLINK_ERR": [74],
    "WORKFLOW_NVLINK5_ERR": range(144, 151),
    "CHECK_MECHANICALS": [54],
    "UPDATE_SWFW": [78],
    "CHECK_UVM": [159],
    "XID_154": [154],
    "RESTART_APP": [
        8,
        11,
        13,
        25,
        31,
        32,
        *range(39, 42),
        60,
        *range(68, 73),
        *range(75, 78),
        80,
        *range(82, 87),
        88,
        89,
    ]
    + [94, *range(96, 106), *range(126, 136), 139],
    "IGNORE": [14, 37, 38, 43, 44, 63, 66, 67, 92, 93, *range(106, 109), 121, 137, 141, 152, 153, 157, 160, 161],
    "NONE": range(162, 173),
}
#: Codes that must take a GPU out of service (a state of the GPU may turn some of them into history).
FAIL = {46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158}
#: Codes on which the sources disagree, so that a default would be no decision.
DISPUTED = {32, 38, 42, 44, 54, 60, 61, 65, 78, 81, 159}


def test_every_code_of_the_catalogue_has_one_decision():
    assert list(ROWS) == list(range(DATA["catalogue"]["first"], DATA["catalogue"]["last"] + 1))
    assert len(ROWS) == len(DATA["codes"]) == 172
    assert xid.problems_of(DATA) == []


def test_actions_are_those_of_the_catalogue():
    wanted = {code: action for action, codes in CATALOGUE.items() for code in codes}
    assert len(wanted) == 110
    assert {code: row["action"] for code, row in ROWS.items()} == {
        code: wanted.get(code, "CONTACT_SUPPORT") for code in ROWS
    }


@pytest.mark.parametrize("row", [*DATA["codes"], DATA["default"]], ids=lambda row: str(row.get("code", "default")))
def test_a_decision_says_why_from_where_and_when(row):
    assert {"verdict", "action", "reason", "source", "date"} <= set(row)
    assert row["verdict"] in xid.VERDICTS and len(row["reason"]) > 10
    assert row["source"] and set(row["source"]) <= set(DATA["sources"])
    assert DATE.match(row["date"]) and row["date"] >= DATA["catalogue"]["date"]


def test_every_source_is_used():
    assert {key for row in [*DATA["codes"], DATA["default"]] for key in row["source"]} == set(DATA["sources"])


def test_codes_that_end_service():
    failing = {code for code, row in ROWS.items() if row["verdict"] == "fail"}
    assert failing - DISPUTED == FAIL
    assert {code for code, row in ROWS.items() if row["verdict"] == "line"} == set(range(144, 151))
    assert [code for code, row in ROWS.items() if row["verdict"] == "state"] == [154]
    assert [code for code, row in ROWS.items() if row.get("follower")] == [45]
    assert not [code for code, row in ROWS.items() if row["verdict"] == "ignore"], "nothing is left out by default"


def test_disputed_codes_are_decided_by_this_collection():
    for code in DISPUTED:
        row = ROWS[code]
        assert "P" in row["source"] and row["date"] > DATA["catalogue"]["date"], code


def test_only_resets_of_a_gpu_are_cleared_by_its_state():
    for code, row in ROWS.items():
        assert ("cleared_by" in row) == (row["action"] == "RESET_GPU"), code
