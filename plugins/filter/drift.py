# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on drift, for playbooks: facts of driver_info and drift_info in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _drift
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import as_dicts


def drift_findings(facts: Any, drift: Any, now: str) -> list[dict[str, Any]]:
    """Return what drifted."""
    if not isinstance(facts, Mapping) or "kernels" not in facts:
        raise AnsibleFilterError("drift_findings wants the key 'driver' of what the module driver_info returned")
    if not isinstance(drift, Mapping) or "last_known_good" not in drift:
        raise AnsibleFilterError("drift_findings wants the key 'drift' of what the module drift_info returned")
    return as_dicts(_drift.findings(facts, drift, now))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"drift_findings": drift_findings}
