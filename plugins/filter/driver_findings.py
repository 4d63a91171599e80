# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and verdicts on driver, kernel and persistence, for roles: facts of driver_info in, findings or a plan out."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_verdict, _kernel_policy, _persistenced
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import as_dicts


def _facts(facts: Any, name: str) -> Mapping[str, Any]:
    """Return the facts, or say what is missing."""
    if not isinstance(facts, Mapping) or "kernels" not in facts:
        raise AnsibleFilterError(f"{name} wants the key 'driver' of what the module driver_info returned")
    return facts


def driver_findings(facts: Any, expected: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return findings about the driver."""
    wanted = dict(expected or {})
    return as_dicts(_driver_verdict.findings(_facts(facts, "driver_findings"), wanted))


def kernel_plan(facts: Any, policy: str) -> dict[str, Any]:
    """Return what the kernel's policy asks for on this node."""
    return _kernel_policy.plan(_facts(facts, "kernel_plan"), _policy(policy, "kernel_plan"))


def kernel_hold_record(facts: Any, now: str) -> dict[str, Any]:
    """Return the record of a kernel hold."""
    checked = _facts(facts, "kernel_hold_record")
    return _kernel_policy.record(checked, _kernel_policy.plan(checked, _kernel_policy.HOLD), now)


def kernel_findings(facts: Any, policy: str, now: str, hold_warn_days: int = 90) -> list[dict[str, Any]]:
    """Return findings about headers, boot default and hold."""
    expected = {"policy": _policy(policy, "kernel_findings"), "now": now, "hold_warn_days": int(hold_warn_days)}
    return as_dicts(_kernel_policy.findings(_facts(facts, "kernel_findings"), expected))


def persistenced_plan(facts: Any, enabled: bool, header: str) -> dict[str, Any]:
    """Return what nvidia-persistenced needs on this node."""
    return _persistenced.plan(_facts(facts, "persistenced_plan"), bool(enabled), header)


def persistenced_findings(facts: Any, enabled: bool, header: str) -> list[dict[str, Any]]:
    """Return findings about the unit of nvidia-persistenced and the persistence mode of the GPUs."""
    return as_dicts(_persistenced.findings(_facts(facts, "persistenced_findings"), bool(enabled), header))


def _policy(policy: str, name: str) -> str:
    if policy not in _kernel_policy.POLICIES:
        raise AnsibleFilterError(
            "{}: kernel_policy is one of {}, not {!r}".format(name, ", ".join(_kernel_policy.POLICIES), policy)
        )
    return policy


class FilterModule:
    """Offer the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {
            "driver_findings": driver_findings,
            "kernel_plan": kernel_plan,
            "kernel_hold_record": kernel_hold_record,
            "kernel_findings": kernel_findings,
            "persistenced_plan": persistenced_plan,
            "persistenced_findings": persistenced_findings,
        }
