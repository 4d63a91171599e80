"""Module node_info from end to end: argument spec in, plain data out, and the filter that judges it."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.module_utils.testing import patch_module_args
from ansible_collections.aiinfra.gpu_node.plugins.filter import preflight_findings
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _node_info
from ansible_collections.aiinfra.gpu_node.plugins.modules import node_info

DATA = yaml.safe_load((pathlib.Path(__file__).parents[4] / "files" / "compatibility.yml").read_text(encoding="utf-8"))
JUDGE = preflight_findings.FilterModule().filters()["preflight_findings"]


def run(capsys, **arguments):
    """Run the module on this machine and return what it prints, as Ansible would read it."""
    with patch_module_args(arguments), pytest.raises(SystemExit) as end:
        node_info.main()
    return end.value.code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("mode", [{}, {"_ansible_check_mode": True}])
def test_facts_are_plain_data_and_nothing_changed(capsys, mode):
    code, result = run(capsys, check_addresses=False, **mode)
    assert (code, result["changed"]) == (0, False)
    assert result["node"]["addresses"] is None
    assert result["node"]["packages"]["lock"] is None or result["node"]["packages"]["lock"]["pid"] >= 0


def test_every_documented_fact_is_there(capsys):
    _code, result = run(capsys, check_addresses=False)
    documented = yaml.safe_load(node_info.RETURN)["node"]["contains"]
    assert set(result["node"]) == set(documented)


def test_addresses_are_asked_with_the_options_given(monkeypatch, capsys, tmp_path, fake_runner):
    (tmp_path / "dists" / "stable").mkdir(parents=True)
    (tmp_path / "dists" / "stable" / "InRelease").write_text("")
    monkeypatch.setattr(node_info, "SystemRunner", fake_runner)
    addresses = [{"uri": f"file:{tmp_path}", "suite": "stable", "origin": "x"}, {"uri": "file:/nowhere"}]
    _code, result = run(capsys, addresses=addresses)
    assert [one["reachable"] for one in result["node"]["addresses"]] == [True, False]
    assert "apt-get" in result["node"]["sources_error"]


def test_unknown_option_is_refused(capsys):
    code, result = run(capsys, colour="green")
    assert code != 0 and "colour" in result["msg"]


def test_filter_judges_what_the_module_returns(capsys):
    _code, result = run(capsys, check_addresses=False)
    found = JUDGE(result["node"], {"driver_version": "580.65.06"}, DATA)
    assert {one["check"] for one in found} >= {"node.os", "node.ram", "node.gpus", "driver.version"}
    assert all(set(one) == {"check", "target", "status", "value", "expected", "source", "hint"} for one in found)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("value", "ok"), [("64", True), (1.5, True), (0, True), (-1, False), ("many", False), (True, False)]
)
def test_filter_takes_numbers_as_the_command_line_gives_them(capsys, fake_runner, tmp_path, value, ok):
    facts = dict(_node_info.collect(fake_runner(), str(tmp_path), lambda: True), sources_error="", addresses=None)
    if ok:
        assert JUDGE(facts, {"ram_min_gib": value}, DATA)
    else:
        with pytest.raises(AnsibleFilterError, match="preflight_ram_min_gib"):
            JUDGE(facts, {"ram_min_gib": value}, DATA)


def test_filter_refuses_wishes_that_it_does_not_know():
    with pytest.raises(AnsibleFilterError, match="colour"):
        JUDGE({}, {"colour": "green"}, DATA)


def test_machine_that_tells_nothing_is_never_ok(fake_runner, tmp_path):
    """An empty tree: every fact is missing, so nothing but skipped, failed and unknown may come out."""
    facts = dict(_node_info.collect(fake_runner(), str(tmp_path), lambda: None), sources_error="", addresses=None)
    found = {one["check"]: one["status"] for one in JUDGE(facts, {"driver_version": "580.65.06"}, DATA)}
    assert found["node.os"] == "fail"
    assert found["node.ram"] == found["node.packages"] == found["node.clock"] == "error"
    assert found["node.gpus"] == "fail"
