# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the fabric manager is needed, what it needs and the verdict on it: facts of driver_info in, plain data out."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _fabricmanager
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import as_dicts


def _facts(facts: Any, name: str) -> Mapping[str, Any]:
    """Return the facts, or say what is missing."""
    if not isinstance(facts, Mapping) or "fabricmanager" not in facts:
        raise AnsibleFilterError(f"{name} wants the key 'driver' of what the module driver_info returned")
    return facts


def _settings(settings: Any) -> Mapping[str, Any]:
    problems = _fabricmanager.config_problems(settings or {})
    if problems:
        raise AnsibleFilterError("; ".join(problems))
    return dict(settings or {})


def fabricmanager_need(facts: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a node needs the fabric manager, and why."""
    return _fabricmanager.need(_facts(facts, "fabricmanager_need"), data)


def fabricmanager_plan(facts: Any, need: Mapping[str, Any], enabled: bool, config: Any = None) -> dict[str, Any]:
    """Return what the fabric manager needs on this node."""
    return _fabricmanager.plan(_facts(facts, "fabricmanager_plan"), need, bool(enabled), _settings(config))


def fabricmanager_findings(
    facts: Any, need: Mapping[str, Any], enabled: bool, config: Any = None, pending_reboot: str = "fail"
) -> list[dict[str, Any]]:
    """Return findings about package, unit and configuration of the fabric manager."""
    checked = _facts(facts, "fabricmanager_findings")
    return as_dicts(_fabricmanager.findings(checked, need, bool(enabled), _settings(config), pending_reboot))


class FilterModule:
    """Offer the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {
            "fabricmanager_need": fabricmanager_need,
            "fabricmanager_plan": fabricmanager_plan,
            "fabricmanager_findings": fabricmanager_findings,
        }
