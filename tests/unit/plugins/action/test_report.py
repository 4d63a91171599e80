"""The report action: writes whole files, prints, and fails only when asked to."""

from __future__ import annotations

import json
import stat

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.aiinfra.gpu_node.plugins.action import report as under_test

GOOD = {"check": "a.b", "target": "node", "status": "ok"}
BAD = {"check": "a.b", "target": "node", "status": "fail", "hint": "do this"}


class Task:
    """What the action needs of a task."""

    def __init__(self, args, check_mode, diff):
        self.args, self.check_mode, self.async_val, self.action = args, check_mode, 0, "aiinfra.gpu_node.report"
        self.diff, self.no_log, self.delegate_to = diff, False, None


class Shell:
    """A connection's shell that has no temporary directory to remove."""

    tmpdir = None


class Connection:
    """A connection that must not be used."""

    _shell = Shell()


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Return a function that runs the action: result, what was printed."""

    def run(findings, check_mode=False, diff=False, **args):
        printed = []
        monkeypatch.setattr(under_test.display, "display", lambda text, **_color: printed.append(text))
        task = Task(
            {"path": str(tmp_path / "new/reports"), "hosts": list(findings), "findings": findings, **args},
            check_mode,
            diff,
        )
        action = under_test.ActionModule(task, Connection(), None, None, None, None)
        return action.run(task_vars={}), "\n".join(printed)

    return run


def test_files_are_whole_readable_and_replaced(act, tmp_path):
    for findings in ([GOOD], [BAD]):
        result, printed = act({"a": findings})
    files = sorted(path.name for path in (tmp_path / "new/reports").iterdir())
    assert files == ["junit.xml", "report.json"]
    path = tmp_path / "new/reports/report.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert json.loads(path.read_text())["verdict"] == result["verdict"] == "FAIL"
    assert result["changed"] is False and not result.get("failed")
    assert result["paths"]["report.json"] == str(path)
    assert printed.endswith("VERDICT: FAIL (0 of 1 nodes pass)")


def test_enforce_fails_and_names_the_nodes(act):
    result, _printed = act({"a": [GOOD], "b": [BAD]}, enforce=True)
    assert result["failed"] is True
    assert "1 node(s) may not serve: b" in result["msg"]
    result, _printed = act({"a": [GOOD]}, enforce=True)
    assert not result.get("failed")


def test_check_mode_judges_and_prints_but_writes_nothing(act, tmp_path):
    result, printed = act({"a": [BAD]}, check_mode=True, enforce=True)
    assert result["failed"] is True and result["written"] is False
    assert "VERDICT a: FAIL (1 fail)" in printed
    assert not (tmp_path / "new").exists()


def test_a_directory_that_cannot_be_made_is_named_after_the_verdict(act, tmp_path):
    (tmp_path / "new").write_text("a file in the way")
    with pytest.raises(AnsibleActionFail, match="cannot be written to .*gpu_node_report_path"):
        act({"a": [GOOD]})


def test_a_start_that_is_no_time_is_refused(act):
    with pytest.raises(AnsibleActionFail, match="started is 'yesterday'"):
        act({"a": [GOOD]}, started="yesterday")
    result, _printed = act({"a": [GOOD]}, started="2026-01-31T10:00:00Z")
    assert result["verdict"] == "PASS"


def test_the_version_is_the_collections_own():
    assert under_test.collection_version().count(".") == 2


def test_diff_shows_what_changed_since_the_last_run(act, tmp_path):
    _result, printed = act({"a": [GOOD]}, diff=True)
    assert "There is no earlier report in " in printed
    result, printed = act({"a": [BAD]}, diff=True)
    assert "Changed since the report of 20" in printed and "~ a: a.b [node]: ok -> fail" in printed
    assert [change["kind"] for change in result["changes"]] == ["status"] and result["compared_with"].endswith("Z")
    assert result["changed"] is False
    _result, printed = act({"a": [BAD]}, diff=True)
    assert "Nothing changed since the report of 20" in printed


def test_changes_are_returned_but_not_printed_without_diff(act):
    act({"a": [GOOD]})
    result, printed = act({"a": [BAD]})
    assert len(result["changes"]) == 1 and "since the report" not in printed


def test_check_mode_compares_with_the_report_that_stays(act):
    act({"a": [GOOD]})
    for _again in range(2):
        _result, printed = act({"a": [BAD]}, check_mode=True, diff=True)
        assert "ok -> fail" in printed


def test_an_earlier_report_that_is_none_stops_nothing(act, tmp_path):
    (tmp_path / "new/reports").mkdir(parents=True)
    (tmp_path / "new/reports/report.json").write_bytes(b"\xff{")
    result, printed = act({"a": [GOOD]}, diff=True)
    assert "cannot be compared" in printed and result["written"] and result["compared_with"] == ""
