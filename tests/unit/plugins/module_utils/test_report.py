"""The report as data: it keeps to its published schema and fails closed."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import jsonschema
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report

SCHEMA = Path(__file__).resolve().parents[4] / "docs/report.schema.json"
START = datetime.datetime(2026, 1, 31, 10, 0, 0, tzinfo=datetime.timezone.utc)


def finding(status="ok", **more):
    return {"check": "driver.module", "target": "node", "status": status, "hint": "because", **more}


def build(findings, hosts=None):
    meta = _report.Meta("0.1.0", START, START + datetime.timedelta(seconds=2.5), hosts or list(findings))
    return _report.build(findings, meta)


def nasty():
    """Return findings with everything that JSON or XML cannot carry as it is."""
    return [
        finding("fail", value={"a": [1, float("nan"), None, {"x"}, b"\xff\x00"], 3: ("t", 2.5)}, expected=float("inf")),
        finding("error", check="driver.\udcff\x1b", target="\x00 <node> & \ud800 \U0001f600", hint="]]>\x0b\ufffe"),
        finding("skipped", hint="control \x01 and quotes \"'"),
        finding("warn", value="é"),
    ]


def test_the_report_keeps_to_the_published_schema():
    report = build({"a": [finding(), finding("warn")], "b": nasty(), "c": None, "d": ["junk", {}], "e": "junk"})
    text = _report.as_json(report)
    text.encode("ascii")
    jsonschema.validate(json.loads(text, parse_constant=pytest.fail), json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert json.loads(text) == report


def test_bytes_that_are_no_text_are_shown_escaped():
    report = build({"a": nasty()})
    assert report["nodes"][0]["findings"][0]["value"] == {"a": [1, "nan", None, ["x"], "\\xff\x00"], "3": ["t", 2.5]}
    assert report["nodes"][0]["findings"][1]["check"] == "driver.\\xff\x1b"


def test_times_are_utc_and_the_duration_is_told():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    meta = _report.Meta("0.1.0", START.astimezone(zone), START + datetime.timedelta(seconds=2.5), ["a"])
    report = _report.build({"a": [finding()]}, meta)
    assert (report["started"], report["ended"], report["duration_s"]) == (
        "2026-01-31T10:00:00Z",
        "2026-01-31T10:00:02Z",
        2.5,
    )


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_a_node_without_findings_is_an_error(nothing):
    report = build({"a": [finding()], "b": nothing})
    assert report["verdict"] == "FAIL"
    assert _report.bad_nodes(report) == ["b"]
    assert report["nodes"][1]["findings"][0]["status"] == "error"
    assert report["nodes"][1]["findings"][0]["hint"]


def test_an_expected_node_is_never_missing_and_keeps_its_place():
    report = build({"x": [finding()], "b": [finding()]}, hosts=["c", "b", "b"])
    assert [node["name"] for node in report["nodes"]] == ["c", "b", "x"]
    assert _report.bad_nodes(report) == ["c"]


def test_no_node_at_all_is_no_success():
    assert build({})["verdict"] == "FAIL"


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        None,
        {"status": "ok"},
        {"check": "a", "status": "ok"},
        finding("great"),
        finding(None),
        finding(["ok"]),
        finding("skipped", hint=""),
        finding("skipped", hint=None),
    ],
)
def test_what_is_no_proper_finding_is_an_error(wrong):
    report = build({"a": [finding(), wrong]})
    assert report["verdict"] == "FAIL"
    assert report["counts"] == {"ok": 1, "skipped": 0, "warn": 0, "fail": 0, "error": 1}


@pytest.mark.parametrize(
    ("status", "verdict"), [("ok", "PASS"), ("skipped", "PASS"), ("warn", "PASS"), ("fail", "FAIL")]
)
def test_the_verdict_follows_the_worst(status, verdict):
    report = build({"a": [finding("ok"), finding(status)]})
    assert (report["verdict"], report["nodes"][0]["worst"]) == (verdict, status)
