"""The result model: nothing unknown counts as good."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _results as results


def finding(status, **more):
    return results.Finding("driver.module", "6.1.0-57-amd64", status, hint="why", **more).as_dict()


def test_nothing_judged_is_an_error():
    assert results.worst([]) == results.ERROR


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [(["ok", "skipped"], "skipped"), (["warn", "ok"], "warn"), (["fail", "error"], "error"), (["ok"], "ok")],
)
def test_the_worst_status_wins(statuses, verdict):
    assert results.worst([finding(status) for status in statuses]) == verdict


def test_a_status_this_code_does_not_know_blocks_and_is_worst():
    strange = {"check": "x", "target": "y", "status": "great"}
    assert results.blockers([strange]) == [strange]
    assert results.worst([strange, finding("error")]) == "great"


def test_unknown_status_and_skip_without_reason_are_refused():
    with pytest.raises(ValueError, match="unknown status"):
        results.Finding("a", "b", "great")
    with pytest.raises(ValueError, match="without a reason"):
        results.Finding("a", "b", results.SKIPPED)


def test_a_finding_reads_as_one_line():
    line = results.describe(finding("fail", value=None, expected="535.261.03", source="nvidia_driver_version"))
    assert line == "driver.module [6.1.0-57-amd64]: null, wanted 535.261.03 (nvidia_driver_version). why"


def test_values_become_plain_data_whatever_container_they_came_in():
    class Lazy(list):
        """As Ansible's lazy list: it cannot be made from a generator."""

        def __init__(self):
            super().__init__(["a", {"b": ("c",)}])

    plain = finding("fail", value={"sources": Lazy()}).get("value")
    assert plain == {"sources": ["a", {"b": ["c"]}]}
    assert not isinstance(plain["sources"], Lazy)
