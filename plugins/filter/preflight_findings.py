# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdicts of the preflight role, judged on the controller."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _preflight, _results, _role_variables

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


def role_options(directory: str) -> dict[str, dict[str, Any]]:
    """Return the options of all roles in a directory, by variable."""
    return _role_options(str(directory))


@functools.lru_cache(maxsize=None)
def _role_options(directory: str) -> dict[str, dict[str, Any]]:
    files = sorted(Path(directory).glob("*/meta/argument_specs.yml"))
    if not files:
        raise AnsibleFilterError(f"role_options: no role in {directory} has a meta/argument_specs.yml")
    specs = {file.parts[-3]: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}
    return _role_variables.options(specs)


def variable_findings(
    values: Mapping[str, Any], known: Mapping[str, Any], judged_elsewhere: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return findings about variables that a role would refuse."""
    plain = _results.as_dicts([_results.Finding("", "", _results.OK, dict(values))])[0]["value"]
    return _results.as_dicts(_role_variables.findings(plain, known, judged_elsewhere))


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
        return {
            "preflight_findings": preflight_findings,
            "role_options": role_options,
            "variable_findings": variable_findings,
        }
