"""What the power limit of the role tuning means for the health checks."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter.gpu_health import gpu_health_thresholds


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        (450, {"power_limit_w": 450}),
        ("450", {"power_limit_w": 450}),
        ({"GPU-1": 400, "*": 450}, {"power_limit_w": -1}),
        ({}, {}),
        ("", {}),
        (None, {}),
        (0, {}),
    ],
)
def test_tun_05_the_limit_that_is_set_is_the_one_that_is_wanted(limit, wanted):
    assert gpu_health_thresholds({}, limit) == wanted
    assert gpu_health_thresholds({"margin_warn_c": 3}, limit) == {**wanted, "margin_warn_c": 3}


def test_what_is_said_for_the_checks_comes_first():
    assert gpu_health_thresholds({"power_limit_w": 300}, 450) == {"power_limit_w": 300}
    assert gpu_health_thresholds({"strict_pending": False}, None, True) == {"strict_pending": True}
    assert gpu_health_thresholds({}, None, True) == {"strict_pending": True}


def test_a_mistake_is_named():
    with pytest.raises(AnsibleFilterError, match="gpu_health_thresholds"):
        gpu_health_thresholds(["margin_warn_c"], None)
