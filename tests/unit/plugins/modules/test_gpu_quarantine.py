"""gpu_quarantine as a module: its arguments, and the example of its documentation."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.aiinfra.gpu_node.plugins.modules import gpu_quarantine


@pytest.fixture
def call(capsys, tmp_path):
    """Return call(arguments): the result of the module on a mark of its own."""

    def run(**arguments):
        with patch_module_args({"path": str(tmp_path / "mark"), **arguments}), pytest.raises(SystemExit):
            gpu_quarantine.main()
        return json.loads(capsys.readouterr().out)

    return run


def test_out_of_service_and_back(call, tmp_path):
    assert call(reason="a\nb  c", _ansible_check_mode=True)["changed"] and not (tmp_path / "mark").exists()
    assert call(reason="a\nb  c")["changed"]
    assert json.loads((tmp_path / "mark").read_text())["reason"] == "a b c"
    result = call(state="absent")
    assert result["action"] == "release" and not result["quarantined"]


@pytest.mark.parametrize("arguments", [{}, {"reason": " "}])
def test_nobody_is_taken_out_of_service_without_a_reason(call, arguments):
    result = call(**arguments)
    assert result["failed"] and "reason" in result["msg"]


def test_a_fault_is_one_message(call):
    assert "no target of systemd" in call(reason="x", target="a.service")["msg"]
