"""The filters of the tuning role say what they want."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter import tuning


def test_every_filter_is_offered_under_its_name():
    offered = tuning.FilterModule().filters()
    assert all(name == function.__name__ for name, function in offered.items())


@pytest.mark.parametrize(("profile", "overrides", "name"), [([], {}, "tuning_sysctl"), ({}, [1], "tuning_sysctl_over")])
def test_a_profile_that_is_no_dictionary_is_refused_by_name(profile, overrides, name):
    with pytest.raises(AnsibleFilterError, match=name):
        tuning.tuning_profile(profile, overrides)


def test_a_bad_profile_reaches_the_person_as_text():
    with pytest.raises(AnsibleFilterError, match="vm.x has the boolean value true"):
        tuning.tuning_findings({"sysctl": {}}, {"sysctl": {"vm.x": True}})
