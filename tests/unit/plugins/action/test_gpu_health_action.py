"""The actions send the shipped data along, read captured profiles on the controller, and keep results short."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.aiinfra.gpu_node.plugins.action import gpu_health, gpu_profile


class Task:
    """What the actions need of a task."""

    check_mode = diff = no_log = False
    delegate_to = None
    async_val = 0

    def __init__(self, action, args):
        self.action, self.args = action, args


class Shell:
    """A connection's shell that has no temporary directory to remove."""

    tmpdir = None


class Connection:
    """A connection that must not be used."""

    _shell = Shell()


@pytest.fixture
def act(monkeypatch):
    """Return a function that runs an action: what was sent, and the result."""

    def run(plugin, **args):
        sent = {}

        def execute(_self, **options):
            sent.update(options)
            return {"changed": False, "invocation": {"module_args": dict(options["module_args"])}}

        monkeypatch.setattr(plugin.ActionModule, "_execute_module", execute)
        name = "aiinfra.gpu_node." + plugin.__name__.rpartition(".")[2]
        action = plugin.ActionModule(Task(name, args), Connection(), None, None, None, None)
        return sent, action.run(task_vars={})

    return run


def test_shipped_data_goes_along_but_not_into_the_result(act):
    sent, result = act(gpu_health, expected=8)
    assert sent["module_name"] == "aiinfra.gpu_node.gpu_health"
    assert "h100-sxm" in [profile["name"] for profile in sent["module_args"]["profiles"]]
    assert sent["module_args"]["xid_policy"]["codes"]
    assert result["invocation"]["module_args"] == {"expected": 8}


def test_what_the_task_gives_wins(act):
    sent, _result = act(gpu_health, xid_policy={"schema": 1}, profiles=None)
    assert sent["module_args"]["xid_policy"] == {"schema": 1}
    assert len(sent["module_args"]["profiles"]) > 10


def test_the_capture_gets_no_policy(act):
    sent, _result = act(gpu_profile, name="x")
    assert set(sent["module_args"]) == {"name", "profiles"}
    assert sent["module_name"] == "aiinfra.gpu_node.gpu_profile"


def test_a_captured_profile_is_read_on_the_controller(act, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.yml").write_text("---\nschema: 1\nname: x\n", encoding="utf-8")
    sent, _result = act(gpu_health, profile="node.yml")
    assert sent["module_args"]["profile"] == {"schema": 1, "name": "x"}


@pytest.mark.parametrize("content", [None, "a: [", "\x00"])
def test_a_profile_that_cannot_be_read_says_who_writes_it(act, tmp_path, content):
    path = tmp_path / "node.yml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match="capture_profile"):
        act(gpu_health, profile=str(path))
