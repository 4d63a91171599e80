# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of a verification on the controller; documented in plugins/modules/report.py."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report, _report_changes, _report_forms

display = Display()

ARGUMENT_SPEC = {
    "path": {"type": "path", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "findings": {"type": "dict", "required": True},
    "started": {"type": "str"},
    "enforce": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Runs on the controller only; it never contacts the node it is called for."""

    _supports_check_mode = True
    _requires_connection = False
    TRANSFERS_FILES = False

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        """Judge, write, print, and return the verdict."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validated, args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        ended = datetime.datetime.now(datetime.timezone.utc)
        meta = _report.Meta(collection_version(), _moment(args["started"]) or ended, ended, args["hosts"])
        report = _report.build(args["findings"], meta)
        bad = _report.bad_nodes(report)
        paths = {name: os.path.join(os.path.abspath(args["path"]), name) for name in ("report.json", "junit.xml")}
        # Before it is replaced.
        changes, since, problem = since_last(paths["report.json"], report)
        result.update(
            changed=False,
            changes=changes,
            compared_with=since,
            verdict=report["verdict"],
            counts=report["counts"],
            bad_nodes=bad,
            paths=paths,
            written=not self._task.check_mode,
        )
        display.display("\n" + _report_forms.as_table(report))
        if self._task.diff:
            display.display("\n".join(["", *told_changes(changes, since, problem)]))
        try:
            if self._task.check_mode:
                display.display("No report written in check mode")
            else:
                write_all(
                    {paths["report.json"]: _report.as_json(report), paths["junit.xml"]: _report_forms.as_junit(report)}
                )
                display.display(f"Report: {paths['report.json']}, for CI: {paths['junit.xml']}")
        finally:
            # Whatever happens to the files, the verdicts are the last that the operator sees of the report.
            for line in _report_forms.verdict_lines(report):
                display.display(line, color="green" if f": {_report.PASS} (" in line else "red")
        if args["enforce"] and report["verdict"] != _report.PASS:
            result.update(failed=True, msg=_why(bad, paths["report.json"], written=result["written"]))
        return result


def _why(bad: list[str], path: str, written: bool) -> str:
    nodes = (
        f"{len(bad)} node(s) may not serve: {', '.join(bad)}" if bad else "No node was verified: does the group exist?"
    )
    return f"{nodes}. The table above says why and what to do" + (f"; {path} has every detail" if written else "")


def since_last(path: str, report: dict[str, Any]) -> tuple[list[dict[str, Any]], str, str]:
    """Return what changed since the report that a file holds, when that one was made, and why nothing is known."""
    try:
        with open(path, encoding="utf-8") as handle:
            last = _report_changes.last_report(handle.read())
    except FileNotFoundError:
        return [], "", f"There is no earlier report in {path}: nothing to compare with"
    except (OSError, UnicodeDecodeError, _report_changes.LastReportError) as error:
        return [], "", f"The earlier report in {path} cannot be compared: {error}"
    return _report_changes.changes(last, report), str(last["ended"]), ""


def told_changes(changes: list[dict[str, Any]], since: str, problem: str) -> list[str]:
    """Return the lines for the screen."""
    if problem:
        return [problem]
    head = f"Changed since the report of {since}:" if changes else f"Nothing changed since the report of {since}"
    return [head, *(_report_forms.plain_line(line) for line in _report_changes.lines(changes))]


def _moment(text: str | None) -> datetime.datetime | None:
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise AnsibleActionFail(f"started is {text!r}, but wants a time like 2026-01-31T10:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)


def collection_version() -> str:
    """Return the version of the collection that this file belongs to, installed or a checkout."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        with open(os.path.join(root, "MANIFEST.json"), encoding="utf-8") as handle:
            return str(json.load(handle)["collection_info"]["version"])
    except FileNotFoundError:
        with open(os.path.join(root, "galaxy.yml"), encoding="utf-8") as handle:
            return str(yaml.safe_load(handle)["version"])


def write_all(texts: dict[str, str]) -> None:
    """Write files so that a reader sees the old or the new text, never half of one; make their directory."""
    for path, text in texts.items():
        directory = os.path.dirname(path)
        temporary = ""
        try:
            os.makedirs(directory, mode=0o755, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".report-", dir=directory)
            with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
                handle.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except OSError as error:
            if temporary and os.path.exists(temporary):
                os.unlink(temporary)
            raise AnsibleActionFail(
                f"The report cannot be written to {path}: {error.strerror or error}."
                " Set gpu_node_report_path (option path) to a directory on the controller that you may write to"
            ) from error
