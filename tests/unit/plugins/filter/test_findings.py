"""Filters on findings: what every role's last task relies on."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter import findings as under_test

FILTERS = under_test.FilterModule().filters()


def finding(status, check="driver.module"):
    return {"check": check, "target": "node", "status": status, "value": 1, "expected": 2, "source": "s", "hint": "h"}


def test_blockers_keep_order_and_every_bad_or_unknown_status():
    given = [finding(status) for status in ("ok", "fail", "warn", "strange", "skipped", "error")]
    assert [item["status"] for item in FILTERS["blockers"](given)] == ["fail", "strange", "error"]


def test_describe_gives_one_line_each():
    assert FILTERS["describe_findings"]([finding("fail")]) == ["driver.module [node]: 1, wanted 2 (s). h"]


def test_worst_status_of_nothing_is_error():
    assert FILTERS["worst_status"]([]) == "error"
    assert FILTERS["worst_status"]([finding("ok"), finding("warn")]) == "warn"


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("wrong", ["text", {"check": "x"}, 3, None, ["text"]])
def test_something_else_than_findings_is_refused_by_name(name, wrong):
    with pytest.raises(AnsibleFilterError, match=name):
        FILTERS[name](wrong)
