"""A word that a role would refuse is told in preflight, for the variables of every role."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter import preflight_findings as filters

ROLES = Path(__file__).parents[4] / "roles"
KNOWN = filters.role_options(str(ROLES))


def test_every_role_has_its_options_there():
    assert {entry["role"] for entry in KNOWN.values()} == {path.name for path in ROLES.iterdir() if path.is_dir()}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("kernel_policy", "hodl", "gate, hold, none"),
        ("nvidia_driver_state", "absnet", "present, absent"),
        ("nvidia_driver_pending_reboot", "warning", "warn, fail"),
        ("tuning_thp", "sometimes", "madvise"),
        ("tuning_swap_off", "perhaps", "bool"),
        ("preflight_cuda_releases", {"a": 1}, "list"),
    ],
)
def test_a_wrong_word_is_told_with_the_variable_and_what_is_allowed(name, value, allowed):
    (found,) = filters.variable_findings({name: value, "kernel_hold_warn_days": None}, KNOWN)
    assert found["status"] == "fail" and found["target"] == name and allowed in found["expected"]
    assert found["source"] == "role " + KNOWN[name]["role"]


def test_every_choice_of_every_role_is_judged():
    wrong = {name: "no such word" for name, entry in KNOWN.items() if "choices" in entry["spec"]}
    assert len(wrong) > 5
    found = filters.variable_findings(wrong, KNOWN)
    assert [one["target"] for one in found if one["status"] == "fail"] == sorted(wrong)


def test_right_words_unset_and_unknown_variables_and_those_with_a_check_of_their_own_pass():
    values = {
        "kernel_policy": "hold",
        "nvidia_driver_state": None,
        "nvidia_driver_flavour": "best",
        "nvidia_driver_components": ["compute", "video"],
        "somebody_else": "x",
        "tuning_swap_off": "yes",
    }
    (found,) = filters.variable_findings(values, KNOWN, ["nvidia_driver_flavour"])
    assert found["status"] == "ok" and found["check"] == "inventory.variables"


def test_a_value_without_choices_is_not_shown():
    (found,) = filters.variable_findings({"preflight_ram_min_gib": "https://u:secret@m/"}, KNOWN)
    assert found["status"] == "fail" and "secret" not in str(found)


def test_a_directory_without_roles_is_an_error(tmp_path):
    with pytest.raises(AnsibleFilterError, match="no role in"):
        filters.role_options(str(tmp_path))
