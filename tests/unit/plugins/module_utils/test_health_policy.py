"""Thresholds: each has a source, and a mistake in a variable is named, not swallowed."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_policy as policy


def test_every_threshold_says_what_it_is_and_where_it_comes_from():
    for row in policy.describe():
        assert row["about"] and row["source"] and row["allowed"], row["name"]
        assert policy.Policy.from_mapping({row["name"]: row["default"]}) == policy.Policy()


@pytest.mark.parametrize("values", [None, {}])
def test_nothing_given_is_the_default(values):
    assert policy.Policy.from_mapping(values) == policy.Policy()


def test_values_are_taken_in_their_own_type():
    found = policy.Policy.from_mapping({"margin_warn_c": 8.0, "replay_factor": 2, "allowed_units": ["a.service"]})
    assert (found.margin_warn_c, found.replay_factor, found.allowed_units) == (8, 2.0, ("a.service",))
    assert isinstance(found.margin_warn_c, int)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"margin": 5}, "'margin' is no threshold; known: .*margin_warn_c"),
        ({"margin_warn_c": 51}, "margin_warn_c is 51; allowed is a whole number from 0 to 50 °C"),
        ({"margin_warn_c": 5.5}, "whole number"),
        ({"margin_warn_c": "5"}, "margin_warn_c is '5'"),
        ({"margin_warn_c": True}, "margin_warn_c is True"),
        ({"replay_factor": float("nan")}, "replay_factor is nan"),
        ({"strict_pending": "yes"}, "strict_pending is 'yes'; allowed is true or false"),
        ({"persistence": "error"}, "allowed is one of warn, fail, ignore"),
        ({"required_units": "a.service"}, "allowed is a list of unit names"),
        ({"confirm_bad": 6}, r"confirm_bad \(6\) is above confirm_window \(5\)"),
        ({"memory_warn_percent": 95}, "memory_warn_percent .* is above memory_high_percent"),
        ({"processes": "listed"}, "allowed_units is empty"),
        (["margin_warn_c"], "is a dictionary of thresholds, not list"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(policy.PolicyError, match=message):
        policy.Policy.from_mapping(values)


def test_all_mistakes_are_named_at_once():
    with pytest.raises(policy.PolicyError) as caught:
        policy.Policy.from_mapping({"margin": 5, "window_s": 1})
    assert "margin" in str(caught.value) and "window_s" in str(caught.value)
