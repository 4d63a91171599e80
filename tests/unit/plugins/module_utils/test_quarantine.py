"""A quarantine belongs to who set it: we release only what we took, to the values that we found."""

from __future__ import annotations

import json

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _quarantine as quarantine

WANTED = {"unschedulable": "true", "label": "quarantined"}
FREE = {"unschedulable": None, "label": "batch"}


def decide(marker, current, healthy, reason="gpu3 is lost", boot_id="b1", wanted=None):
    return quarantine.plan(marker, current, wanted or WANTED, healthy, reason, boot_id, 1000.0)


def taken():
    return decide(None, FREE, False).marker


def test_hlt_15_a_sick_node_is_taken_and_what_was_there_is_remembered():
    plan = decide(None, FREE, False)
    assert plan.action == quarantine.TAKE and plan.values == WANTED
    marker = quarantine.parse(plan.marker.text())
    assert marker == plan.marker
    assert (marker.owner, marker.reason, marker.boot_id) == (quarantine.OWNER, "gpu3 is lost", "b1")
    assert marker.before == FREE


def test_hlt_15_our_own_is_released_to_the_values_that_we_found():
    plan = decide(taken(), WANTED, True)
    assert plan.action == quarantine.RELEASE and plan.values == FREE


@pytest.mark.parametrize("text", ['{"owner": "jane", "reason": "new fans"}', "maintenance by jane", "[1]", '"x"'])
def test_hlt_15_a_foreign_mark_stays_whatever_the_health_is(text):
    marker = quarantine.parse(text)
    for healthy in (True, False):
        plan = decide(marker, WANTED, healthy)
        assert plan.action == quarantine.LEAVE and not plan.values


def test_hlt_15_a_cordon_without_a_marker_is_somebody_elses():
    assert decide(None, WANTED, True).action == quarantine.LEAVE
    assert decide(None, WANTED, False).action == quarantine.LEAVE
    partly = decide(None, {"unschedulable": "true", "label": "batch"}, False)
    assert partly.action == quarantine.TAKE and partly.values == {"label": "quarantined"}
    released = decide(partly.marker, WANTED, True)
    assert released.values == {"label": "batch"}, "the cordon of the other one stays"


def test_hlt_15_a_value_that_was_changed_since_is_not_overwritten():
    plan = decide(taken(), {"unschedulable": "true", "label": "spare"}, True)
    assert plan.action == quarantine.RELEASE and plan.values == {"unschedulable": None}
    lifted = decide(taken(), {"unschedulable": None, "label": "quarantined"}, False)
    assert lifted.action == quarantine.LEAVE and "unschedulable" in lifted.reason


def test_a_node_that_stays_sick_keeps_its_mark_and_what_was_found():
    assert decide(taken(), WANTED, False).action == quarantine.KEEP
    plan = decide(taken(), WANTED, False, "gpu1 is hot", "b2")
    assert plan.action == quarantine.UPDATE and not plan.values
    assert (plan.marker.reason, plan.marker.boot_id, plan.marker.before) == ("gpu1 is hot", "b2", FREE)
    assert decide(plan.marker, WANTED, True).values == FREE


def test_a_healthy_node_without_a_mark_is_left_alone():
    assert decide(None, FREE, True).action == quarantine.LEAVE
    assert quarantine.parse(None) is None and quarantine.parse("  ") is None


@pytest.mark.parametrize(
    "text",
    [
        '{"owner": "aiinfra.gpu_node"',
        '{"owner": "aiinfra.gpu_node", "reason": "x"}',
        json.dumps(
            {"owner": quarantine.OWNER, "reason": "x", "boot_id": "b", "set_at": "then", "before": {}, "ours": {}}
        ),
        json.dumps({"owner": quarantine.OWNER, "reason": "x", "boot_id": "b", "set_at": 1, "before": [], "ours": {}}),
    ],
)
def test_our_own_mark_that_is_damaged_is_released_by_no_machine(text):
    with pytest.raises(quarantine.MarkerError, match="a person releases it"):
        quarantine.parse(text)
