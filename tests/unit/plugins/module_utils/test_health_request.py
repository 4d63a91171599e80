"""What is asked of a health check: every mistake at once, and what each option makes of a verdict."""

from __future__ import annotations

import dataclasses
import datetime

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_profile, _health_request
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_request import RequestError


def asked(**values):
    return _health_request.parse(
        {"profiles": list(make.profile_data().values()), "xid_policy": make.xid_data(), **values}
    )


def judged(node, history=None, **values):
    return _health_request.judge(asked(**values), node, history)[0]


def test_a_healthy_node_by_default():
    verdict = judged(make.snapshot(count=8))
    assert verdict.may_serve, [finding for finding in verdict.findings if finding.status in ("fail", "error")]


def test_all_mistakes_are_named_at_once():
    with pytest.raises(RequestError) as error:
        asked(
            profile="h200",
            expected="many",
            thresholds={"margin_warn_c": 99, "no_such": 1},
            xid_overrides=[{"code": 79, "verdict": "maybe", "reason": "x"}],
            skip=[{"check": "node.nvml", "reason": "x"}, {"check": "gpu.numa", "reason": " "}],
            since="yesterday",
        )
    words = (
        "'h200' is not there", "h200-sxm", "'many'", "margin_warn_c", "no_such", "maybe", "node.nvml", "gpu.numa",
        "'yesterday'",
    )  # fmt: skip
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("values", [{"profile": "t4"}, {"profile": _gpu_profile.as_mapping(make.shipped("t4"))}])
def test_a_named_profile_refuses_another_gpu(values):
    findings = make.only(judged(make.snapshot(), **values), "gpu.profile")
    assert [finding.status for finding in findings] == ["fail", "fail"]
    # A site may want the warning all the same, and says so.
    softer = judged(make.snapshot(), thresholds={"unknown_model": "warn"}, **values)
    assert {finding.status for finding in make.only(softer, "gpu.profile")} == {"warn"}


def test_a_name_alone_decides_by_the_pci_id():
    assert judged(make.snapshot(), profile="h100-sxm").may_serve


@pytest.mark.parametrize(
    ("expected", "status"), [(2, "ok"), ("2", "ok"), (3, "fail"), (1, "warn"), ("auto", "ok"), (None, "ok")]
)
def test_the_number_of_gpus(expected, status):
    found = make.one(judged(make.snapshot(count=2), expected=expected), "node.gpu_count")
    assert found.status == status
    if expected == 3:
        assert (found.expected, found.source) == (3, "expected_gpus")


def test_no_gpu_is_right_only_where_none_is_expected():
    bare = make.snapshot(gpus=[], pci=(), nvswitches=(), nvml=make.r.Nvml("absent", text="no library"))
    assert make.one(judged(bare), "node.gpu_count").status == "fail"
    assert make.one(judged(bare, expected=0), "node.gpu_count").status == "skipped"


@pytest.mark.parametrize("value", [-1, 65, 1.5, True, "8x"])
def test_numbers_of_gpus_that_cannot_be(value):
    with pytest.raises(RequestError, match="from 0 to 64"):
        _health_request.expected_gpus(value)


@pytest.mark.parametrize("gpu", ["1", "gpu1", make.bus(1), f"gpu1 {make.bus(1)}"])
def test_a_skip_for_one_gpu(gpu):
    skip = [{"check": "gpu.temperature", "reason": "sensor is broken", "gpu": gpu}]
    hot = make.snapshot(gpus=[make.gpu(index, temperature_margin=-3) for index in range(2)])
    found = make.only(judged(hot, skip=skip), "gpu.temperature")
    assert [finding.status for finding in found] == ["fail", "skipped"]
    assert "sensor is broken" in found[1].hint


def xid(at):
    return make.r.LogEvent(at=at, kind="xid", xid=79, bus_id=make.bus(0), text="Xid 79")


@pytest.mark.parametrize(
    ("since", "status"),
    [
        (None, "fail"),
        (39, "fail"),
        ("41", "ok"),
        (datetime.datetime.fromtimestamp(make.START - make.UPTIME + 41, datetime.timezone.utc).isoformat(), "ok"),
        ("2001-01-31T10:00:00Z", "fail"),
    ],
)
def test_hlt_14_events_count_from_an_instant_on(since, status):
    node = make.snapshot(log=(xid(40.0),))
    first = judged(node, since=since)
    assert make.one(first, "node.kernel_log", make.bus(0)).status == status
    assert make.one(judged(node, since=since), "node.kernel_log", make.bus(0)).status == status


def test_an_instant_without_a_zone_is_utc():
    assert _health_request.parse_since("2026-01-31T10:00:00") == _health_request.parse_since("2026-01-31T10:00:00Z")


@pytest.mark.parametrize("value", ["-5", "nan", "inf", "10:00"])
def test_instants_that_cannot_be(value):
    with pytest.raises(RequestError, match="seconds since the boot"):
        _health_request.parse_since(value)


def test_the_answer_is_plain_and_complete():
    node = make.snapshot(gpus=[make.gpu(0), dataclasses.replace(make.gpu(1), lost=True, lost_code=15)])
    verdict = judged(node)
    found = _health_request.answer(node, verdict)
    assert [(row["index"], row["lost"], row["status"]) for row in found["gpus"]] == [
        (0, False, "ok"),
        (1, True, "fail"),
    ]
    assert not found["may_serve"] and found["verdict"] == "fail"
    assert any("gpu.lost" in line and make.bus(1) in line for line in found["bad"])
    assert sum(found["counts"].values()) == len(found["findings"])
    assert found["summary"]["nvml_gpus"] == 2 and found["summary"]["pci_gpus"] == 2


def test_deadlines():
    _health_request.check_deadline(1)
    with pytest.raises(RequestError, match="deadline is 0.5"):
        _health_request.check_deadline(0.5)
