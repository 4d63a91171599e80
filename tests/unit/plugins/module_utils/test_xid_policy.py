"""Errors in the kernel's log: consequences follow their cause, counts escalate nothing, state outranks events."""

from __future__ import annotations

import dataclasses

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _xid_policy as xid
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, WARN


def event(code, at=10.0, kind="xid", index=0, **more):
    return r.LogEvent(at, kind, code, make.bus(index), f"NVRM: Xid {code}", **more)


def judge(events, gpu=None, policy=None):
    return xid.judge(policy or make.xids(), events, gpu or make.gpu(0))


#: A GPU that does not tell a recovery action, so that events stand alone.
MUTE = make.gpu(0, recovery_action=make.unread(r.UNSUPPORTED, 3))


def test_hlt_08_fallen_off_the_bus_is_one_finding_in_every_form():
    forms = {
        "number only": [event(79)],
        "text only": [event(None, kind="off_bus")],
        "both in one line": [event(79, kind="off_bus")],
        "both in sequence": [event(79), event(None, 11.0, kind="off_bus")],
    }
    for form, events in forms.items():
        node = make.snapshot(log=tuple(events))
        found = [
            item for item in make.only(make.judge(node, make.settled())[0], "node.kernel_log") if item.status != OK
        ]
        assert len(found) == 1, form
        assert found[0].status == FAIL and found[0].value["xid"] == 79
        assert make.bus(0) in found[0].target


def test_hlt_08_a_gpu_that_only_the_log_still_knows_is_named_by_its_address():
    node = make.snapshot(log=(event(None, kind="off_bus", index=5),))
    found = [item for item in make.only(make.judge(node)[0], "node.kernel_log") if item.status == FAIL]
    assert [item.target for item in found] == [make.bus(5)]


def test_hlt_09_aborted_jobs_warn_once_for_each_gpu():
    log = tuple(event(45, at=number * 7.0, index=number % 8) for number in range(500))
    node = make.snapshot(count=8, log=log)
    verdict = make.judge(node, make.settled(8))[0]
    found = make.only(verdict, "node.kernel_log")
    assert [item.status for item in found] == [WARN] * 8
    assert sum(item.value["count"] for item in found) == 500
    assert verdict.may_serve


def test_hlt_09_consequences_are_attached_to_their_cause():
    events = [event(48), *(event(45, at=11.0 + number) for number in range(20))]
    found = judge(events)
    assert (found.status, found.value["xid"], found.value["others"]) == (FAIL, 48, {"45": 20})
    assert judge(list(reversed(events))) == found, "the order of the lines does not matter"


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_the_number_of_lines_escalates_nothing(count):
    assert judge([event(31, at=float(number)) for number in range(count)]).status == WARN


@pytest.mark.parametrize(("fatal", "expected"), [(True, FAIL), (False, WARN), (None, FAIL)])
def test_nvlink_5_errors_are_judged_by_the_word_in_the_line(fatal, expected):
    assert judge([event(145, fatal=fatal)]).status == expected
    assert judge([event(145, fatal=False), event(145, 11.0, fatal=fatal)]).status == expected, "the worst line counts"


@pytest.mark.parametrize(
    ("action", "expected"),
    [(0, OK), (1, FAIL), (make.unread(r.UNSUPPORTED, 3), FAIL), (make.unread(r.FAILED, 999), FAIL)],
)
def test_154_is_decided_by_the_recovery_action_and_fails_where_it_is_unknown(action, expected):
    assert judge([event(154)], make.gpu(0, recovery_action=action)).status == expected


def test_state_outranks_events_where_it_is_known():
    found = judge([event(119)])
    assert found.status == WARN and "history" in found.hint
    assert judge([event(119)], MUTE).status == FAIL
    assert judge([event(119)], make.gpu(0, recovery_action=1)).status == FAIL
    assert xid.judge(make.xids(), [event(119)], None).status == FAIL, "NVML does not know the GPU"
    lost = dataclasses.replace(make.gpu(0), lost=True)
    assert judge([event(119)], lost).status == FAIL
    assert judge([event(79)]).status == FAIL, "a reset does not bring a card back to the bus"


def test_a_line_that_asks_for_a_reset_has_no_number():
    events = [event(None, kind="reset_required")]
    assert judge(events, MUTE).status == FAIL
    assert judge(events).status == WARN


def test_injected_errors_only_inform():
    found = judge([event(79, injected=True)])
    assert (found.status, found.value["xid"]) == (OK, 79)
    assert judge([event(79, injected=True), event(79, 11.0)]).status == FAIL
    assert judge([event(48, injected=True), event(45, 11.0)]).status == WARN


def test_a_code_that_nobody_knows_warns():
    found = judge([event(999)])
    assert found.status == WARN and "look it up" in found.hint


def test_a_site_decides_otherwise_with_a_reason():
    policy = xid.parse(
        make.xid_data(),
        [
            {"code": 31, "verdict": "fail", "reason": "our applications do not fault"},
            {"code": 119, "verdict": "fail", "reason": "no second chance"},
            {"code": 43, "verdict": "ignore", "reason": "too loud"},
            {"code": 500, "verdict": "fail", "reason": "new"},
        ],
    )
    assert judge([event(31)], policy=policy).status == FAIL
    assert judge([event(119)], policy=policy).status == FAIL, "what softened the old row does not soften the new one"
    assert judge([event(43)], policy=policy) == xid.Judgement(OK, {"events": 0})
    assert judge([event(500)], policy=policy).status == FAIL
    assert judge([event(13)], policy=policy).status == WARN
    assert judge([event(31)], policy=policy).source == "files/xid_policy.yml (gpu_health_xid_overrides)"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"code": 31, "verdict": "fail"}], "needs a reason"),
        ([{"code": 31, "verdict": "red", "reason": "x"}], "the verdict is 'red'"),
        ([{"code": "31", "verdict": "fail", "reason": "x"}], "the code is a whole number"),
        ([{"code": 31, "verdict": "fail", "reason": "x", "why": "y"}], "unknown key 'why'"),
        ([{"code": 1, "verdict": "fail", "reason": "x"}] * 2, "there twice"),
        ("31", "is a list of rows"),
        ([31], "a row is a dictionary"),
    ],
)
def test_overrides_with_mistakes_are_refused(rows, message):
    with pytest.raises(xid.XidPolicyError, match=message):
        xid.parse(make.xid_data(), rows)


def test_a_table_without_a_decision_for_the_unknown_is_refused():
    data = {key: value for key, value in make.xid_data().items() if key != "default"}
    with pytest.raises(xid.XidPolicyError, match="unknown codes"):
        xid.parse(data)
    with pytest.raises(xid.XidPolicyError, match="may not be ignored"):
        xid.parse({**make.xid_data(), "default": {"verdict": "ignore", "reason": "x"}})
    for nothing in (None, [], {}, {"codes": []}):
        with pytest.raises(xid.XidPolicyError):
            xid.parse(nothing)
