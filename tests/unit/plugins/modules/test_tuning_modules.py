"""The modules hand their arguments on and turn a fault into one message."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _swap, _sysctl_plan
from ansible_collections.aiinfra.gpu_node.plugins.modules import managed_files, swap_off, sysctl_profile


def call(module, capsys, arguments):
    """Run a module's main and return its result."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


def test_a_boolean_survives_the_argument_spec_and_is_refused_by_name(capsys):
    result = call(sysctl_profile, capsys, {"profile": {"vm.swappiness": True}, "_ansible_check_mode": True})
    assert result["failed"]
    assert "vm.swappiness has the boolean value true" in result["msg"]


def test_sysctl_profile_hands_everything_on(capsys, monkeypatch):
    seen = {}
    monkeypatch.setattr(_sysctl_plan, "run", lambda profile, **more: seen.update(more) or {"changed": False})
    result = call(sysctl_profile, capsys, {"path": "/x", "state": "absent", "_ansible_check_mode": True})
    assert not result["changed"]
    assert seen == {"path": "/x", "state": "absent", "check_mode": True}


def test_a_swap_fault_is_one_message(capsys, monkeypatch):
    def refuse(*_args, **_more):
        raise _swap.SwapError("too much is swapped out")

    monkeypatch.setattr(_swap, "disable", refuse)
    assert call(swap_off, capsys, {})["msg"] == "too much is swapped out"


def test_managed_files(capsys, tmp_path):
    path = str(tmp_path / "d" / "a")
    arguments = {"files": [{"path": path, "content": "x\n"}, {"path": path + "-old"}]}
    assert call(managed_files, capsys, arguments)["changed_paths"] == [path]
    assert not call(managed_files, capsys, arguments)["changed"]
