# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict of the preflight role, judged on the controller."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _preflight, _results

#: Wishes that are numbers; from the command line they arrive as text.
_NUMBERS = (
    "ram_min_gib",
    "ram_per_gpu_memory",
    "ram_reserved_percent",
    "gpu_memory_mib",
    "cores_per_gpu_min",
    "cores_per_gpu_recommended",
    "root_fs_max_percent",
)


def preflight_findings(
    facts: Mapping[str, Any], expected: Mapping[str, Any], data: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return all findings about a node: its facts against what the inventory wants and the compatibility data."""
    unknown = sorted(set(expected) - set(_preflight.DEFAULTS))
    if unknown:
        raise AnsibleFilterError(f"preflight_findings does not know the wishes {', '.join(unknown)}")
    wishes = dict(expected)
    for name in _NUMBERS:
        if name in wishes:
            wishes[name] = _number(name, wishes[name])
    return _results.as_dicts(_preflight.findings(facts, wishes, data))


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or number < 0:
        raise AnsibleFilterError(f"preflight_{name} is {value!r}; allowed is a number that is not negative")
    return int(number) if number.is_integer() else number


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {"preflight_findings": preflight_findings}
