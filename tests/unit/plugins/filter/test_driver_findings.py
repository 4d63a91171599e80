"""The filters on driver facts, as roles call them."""

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter.driver_findings import FilterModule
from node_facts import VERSION, healthy

FILTERS = FilterModule().filters()
NOW = "2026-11-30T12:00:00Z"


def test_each_filter_returns_plain_data():
    facts = healthy()
    for result in (
        FILTERS["driver_findings"](facts, {"version": VERSION}),
        FILTERS["kernel_plan"](facts, "gate"),
        FILTERS["kernel_hold_record"](facts, NOW),
        FILTERS["kernel_findings"](facts, "hold", NOW),
        FILTERS["persistenced_plan"](facts, True, "# x"),
        FILTERS["persistenced_findings"](facts, True, "# x"),
    ):
        assert json.loads(json.dumps(result)) == result


def test_wrong_input_is_named():
    with pytest.raises(AnsibleFilterError, match="driver_info"):
        FILTERS["driver_findings"]({"changed": False})
    with pytest.raises(AnsibleFilterError, match="gate, hold, none"):
        FILTERS["kernel_plan"](healthy(), "freeze")
