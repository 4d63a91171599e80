# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The variables of all roles against the roles' own argument specs, on the controller and before any role has begun."""

from __future__ import annotations

import copy
from typing import Any, Collection, Mapping

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, Finding

CHECK = "inventory.variables"


def options(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the options of all roles.

    Args:
        specs: Role to the content of its ``meta/argument_specs.yml``.

    Returns:
        Variable to ``{role, spec}``.
    """
    found: dict[str, dict[str, Any]] = {}
    for role, content in sorted(specs.items()):
        for name, spec in content["argument_specs"]["main"].get("options", {}).items():
            found.setdefault(name, {"role": role, "spec": spec})
    return found


def findings(
    values: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]], judged_elsewhere: Collection[str] = ()
) -> list[Finding]:
    """Judge what the inventory gives.

    Args:
        values: Variable to value; None is one that is not set.
        known: What ``options`` returned.
        judged_elsewhere: Variables that another check tells more about.

    Returns:
        One finding for each variable that its role would refuse, or one that all is well.
    """
    found = []
    given = {name: value for name, value in values.items() if value is not None and name in known}
    for name in sorted(frozenset(given) - frozenset(judged_elsewhere)):
        role, spec = known[name]["role"], known[name]["spec"]
        result = ArgumentSpecValidator({name: spec}).validate(copy.deepcopy({name: given[name]}))
        if not result.error_messages:
            continue
        allowed = ", ".join(str(choice) for choice in spec.get("choices", [])) or str(spec.get("type", "str"))
        # A value without choices may be a secret in the wrong place.
        value = given[name] if spec.get("choices") else None
        hint = "; ".join(result.error_messages) if spec.get("choices") else "the value has another type"
        found.append(Finding(CHECK, name, FAIL, value, allowed, f"role {role}", hint))
    return found or [Finding(CHECK, "node", OK, len(given), None, "argument specs of the roles")]
