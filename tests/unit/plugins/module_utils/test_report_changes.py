"""What changed between two reports, and what did not."""

from __future__ import annotations

import json

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report_changes as changes

from .test_report import build, finding, nasty


def between(before, after):
    """Return the changes as tuples, from reports that went through their files."""
    old, new = (changes.last_report(_report.as_json(build(findings))) for findings in (before, after))
    return [tuple(change.values()) for change in changes.changes(old, new)]


def test_the_same_findings_are_no_change():
    node = {"a": [*nasty(), finding(), finding()], "b": None}
    assert between(node, node) == []


@pytest.mark.parametrize("status", ["ok", "skipped"])
def test_readings_that_move_while_all_is_well_are_no_change(status):
    assert between({"a": [finding(status, value=41)]}, {"a": [finding(status, value=42)]}) == []


def test_each_kind_of_change():
    before = [
        finding("ok", target="x"),
        finding("ok", target="y", expected="535"),
        finding("fail", target="z", value=3),
        finding("warn", target="went"),
        finding("ok", target="hint", hint="old words"),
    ]
    after = [
        finding("fail", target="x", value="changed as well"),
        finding("ok", target="y", expected="580"),
        finding("fail", target="z", value=5),
        finding("error", target="came"),
        finding("ok", target="hint", hint="new words"),
    ]
    check = "driver.module"
    assert between({"a": before}, {"a": after}) == [
        ("a", check, "x", "status", "ok", "fail"),
        ("a", check, "y", "expected", "535", "580"),
        ("a", check, "z", "value", 3, 5),
        ("a", check, "came", "new", None, "error"),
        ("a", check, "went", "gone", "warn", None),
    ]


def test_nodes_that_come_and_go():
    assert between({"a": [finding()], "b": [finding("fail")]}, {"a": [finding()], "c": [finding()]}) == [
        ("c", "", "", "new", None, "PASS"),
        ("b", "", "", "gone", "FAIL", None),
    ]


def test_findings_of_one_name_are_told_apart():
    assert between({"a": [finding(), finding()]}, {"a": [finding(), finding("warn")]}) == [
        ("a", "driver.module", "node", "status", "ok", "warn")
    ]


def test_lines_for_the_screen():
    before, after = (
        build({"a": [finding("ok"), finding(target="t")], "b": [finding()]}),
        build({"a": [finding("fail")]}),
    )
    found = changes.changes(before, after)
    assert changes.lines([*found, {**found[0], "kind": "value", "before": [1], "after": "x" * 500}])[:3] == [
        "~ a: driver.module [node]: ok -> fail",
        "- a: driver.module [t]: no longer judged, was ok",
        "- b: not verified this time, was PASS",
    ]
    long = changes.lines([{**found[0], "kind": "value", "before": [1], "after": "x" * 500}])[0]
    assert long.startswith("~ a: driver.module [node]: seen [1] -> xxx") and len(long) < 200


def test_a_report_of_the_version_before_can_be_compared():
    old = build({"a": [finding()]})
    for node in old["nodes"]:
        del node["gpus"]
    old["schema_version"] = 1
    assert changes.changes(changes.last_report(json.dumps(old)), build({"a": [finding()]})) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema_version": 99, "nodes": []}', '{"schema_version": 2}',
             '{"schema_version": 2, "nodes": [{"name": "a"}], "ended": "x"}',
             '{"schema_version": 2, "nodes": [{"findings": []}], "ended": "x"}',
             '{"schema_version": 2, "nodes": [{"name": "a", "findings": [1]}], "ended": "x"}'],
)  # fmt: skip
def test_what_is_no_report_is_said_to_be_none(text):
    with pytest.raises(changes.LastReportError):
        changes.last_report(text)
