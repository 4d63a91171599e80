# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the tuning role: what it wants, what is pending, and the verdict, all without a trip to the node."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _results, _tuning_plan, _tuning_verdict
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._sysctl_plan import ProfileError


def tuning_profile(
    profile: Any, overrides: Any = None, shmmax_min_bytes: int = 0, page_size: int = 4096
) -> dict[str, Any]:
    """Return the profile of kernel settings with an inventory's overrides merged in, key by key."""
    for name, value in (("tuning_sysctl", profile), ("tuning_sysctl_overrides", overrides or {})):
        if not isinstance(value, Mapping):
            raise AnsibleFilterError(f"{name} is a dictionary of kernel settings, not {type(value).__name__}")
    return _tuning_plan.profile(profile, overrides or {}, int(shmmax_min_bytes), int(page_size))


def tuning_largest_card(facts: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> int:
    """Return the bytes of memory of the largest GPU on PCI; 0 when the table of cards knows none of them."""
    return _tuning_plan.largest_card_bytes(facts, cards)


def tuning_plan(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the errors in the wishes, the files, and what is pending."""
    return _tuning_plan.plan(facts, wants)


def tuning_not_applied(facts: Mapping[str, Any], wants: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Return one line on what cannot be applied on this machine; empty when everything could be."""
    entries = _tuning_plan.not_applied(facts, wants, *results)
    return _tuning_plan.describe_not_applied(entries) if entries else ""


def tuning_findings(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings on host tuning."""
    try:
        return _results.as_dicts(_tuning_verdict.findings(facts, wants))
    except ProfileError as fault:
        raise AnsibleFilterError(str(fault)) from fault


class FilterModule:
    """Offer the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {
            "tuning_findings": tuning_findings,
            "tuning_largest_card": tuning_largest_card,
            "tuning_not_applied": tuning_not_applied,
            "tuning_plan": tuning_plan,
            "tuning_profile": tuning_profile,
        }
