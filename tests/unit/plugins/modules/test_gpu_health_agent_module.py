"""What the role's variables become on the node, and which mistakes are refused before anything changes."""

from __future__ import annotations

import json

import gpu_snapshots as gs
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_settings
from ansible_collections.aiinfra.gpu_node.plugins.modules import gpu_health_agent as module

DEFAULTS = {name: option.get("default") for name, option in module.ARGUMENT_SPEC["settings"]["options"].items()}


def params(**settings):
    shipped = list(gs.profile_data().values())
    return {"settings": {**DEFAULTS, **settings}, "profiles": shipped, "xid_policy": gs.xid_data()}


def test_the_defaults_are_those_of_the_code():
    _text, settings = module.configuration(params())
    assert (settings.interval_s, settings.deadline_s) == (_health_settings.INTERVAL_S, 10.0)
    assert settings.stale_after_s == 3 * 60 + 10 + 20
    assert len(settings.request.profiles) == len(gs.profile_data())


def test_the_file_is_read_back_as_it_was_meant():
    text, settings = module.configuration(
        params(expected="8", thresholds={"confirm_bad": 2}, skip=[{"check": "gpu.fan", "gpu": 3, "reason": "r"}])
    )
    again = _health_settings.parse(json.loads(text))
    assert again == settings
    assert again.request.policy.expected_gpus == 8 and again.request.policy.confirm_bad == 2


@pytest.mark.parametrize("profile", ["h100-sxm", "captured"])
def test_profiles_that_cannot_be_chosen_are_not_sent_to_be_read_each_minute(profile):
    wanted = profile if profile == "h100-sxm" else {**gs.profile_data()["h100-sxm"], "name": "mine"}
    text, settings = module.configuration(params(profile=wanted))
    assert [one["name"] for one in json.loads(text)["profiles"]] == (["h100-sxm"] if profile == "h100-sxm" else [])
    assert _health_settings.parse(json.loads(text)) == settings


def test_the_same_variables_give_the_same_file():
    assert module.configuration(params())[0] == module.configuration(params())[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"interval": 5}, "interval_s is 5; allowed are 10 to 1800 seconds"),
        ({"deadline": 0.5}, "deadline_s is 0.5; allowed are 1 to 300 seconds"),
        ({"thresholds": {"margin": 1}}, "'margin' is no threshold"),
        ({"thresholds": {"confirm_bad": 9}}, "confirm_bad .9. is above confirm_window .5."),
        ({"expected": "many"}, "allowed is auto or a whole number"),
        ({"profile": "h100"}, "profile 'h100' is not there"),
        ({"skip": [{"check": "node.nvml", "reason": "r"}]}, "node.nvml cannot be skipped"),
        ({"skip": [{"check": "gpu.fan"}]}, "needs a reason"),
        ({"xid_overrides": [{"code": 79, "verdict": "fine", "reason": "r"}]}, "the verdict is 'fine'"),
        ({"repaired_at": "yesterday"}, "since is 'yesterday'"),
        ({"repaired_at": "3600"}, "repaired_at is '3600'; allowed is a time such as"),
        ({"textfile_dir": "metrics"}, "textfile_dir is 'metrics'; allowed is an absolute path"),
    ],
)
def test_mistakes_are_refused(settings, said):
    with pytest.raises(_health_settings.SettingsError, match=said):
        module.configuration(params(**settings))


def test_all_mistakes_are_named_at_once():
    with pytest.raises(_health_settings.SettingsError, match="deadline_s.*interval_s.*no threshold.*expected is"):
        module.configuration(params(interval=1, deadline=0.0, thresholds={"x": 1}, expected="x"))
