# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that every role uses on its list of findings; see module_utils/_results.py for the model."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _results


def _checked(findings: Any, name: str) -> list[dict[str, Any]]:
    """Return the findings as plain dictionaries, or say which filter got something else."""
    if isinstance(findings, (str, bytes, Mapping)) or not hasattr(findings, "__iter__"):
        raise AnsibleFilterError(f"{name} wants a list of findings, not {type(findings).__name__}")
    plain = list(findings)
    for finding in plain:
        if not isinstance(finding, Mapping):
            raise AnsibleFilterError(f"{name} wants a list of dictionaries, but one item is {finding!r}")
    return [dict(finding) for finding in plain]


def blockers(findings: Any) -> list[dict[str, Any]]:
    """Return the findings that keep a node from serving."""
    return _results.blockers(_checked(findings, "blockers"))


def describe_findings(findings: Any) -> list[str]:
    """Return one line for people per finding."""
    return [_results.describe(finding) for finding in _checked(findings, "describe_findings")]


def worst_status(findings: Any) -> str:
    """Return the worst status in a list of findings; ``error`` when nothing was judged."""
    return _results.worst(_checked(findings, "worst_status"))


class FilterModule:
    """Offer the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {"blockers": blockers, "describe_findings": describe_findings, "worst_status": worst_status}
