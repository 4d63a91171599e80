"""The filter that decides whether a state may be recorded; the rule itself is tested with module_utils."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter.last_known_good import FilterModule

record_bars = FilterModule().filters()["record_bars"]


def test_drv_01_a_kernel_without_module_bars():
    findings = [{"check": "driver.module", "target": "6.1.0-57-amd64", "status": "fail"}]
    assert record_bars(iter(findings)) == ["driver.module"]
    assert record_bars([{**findings[0], "status": "ok"}]) == []


@pytest.mark.parametrize("wrong", ["text", {"check": "driver.module"}, 1])
def test_anything_else_than_a_list_is_refused(wrong):
    with pytest.raises(AnsibleFilterError, match="record_bars wants a list of findings"):
        record_bars(wrong)
