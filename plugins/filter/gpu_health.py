# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of a health check as a role adds them to the report: the module's result in, plain data out."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_pending


def gpu_health_findings(result: Any, awaits_reboot: bool = False) -> list[dict[str, Any]]:
    """Return the findings; what only a loaded driver can answer warns while a reboot is due.

    Raises:
        AnsibleFilterError: for what is not the result of gpu_health.
    """
    if not isinstance(result, Mapping) or not isinstance(result.get("findings"), (list, tuple)):
        raise AnsibleFilterError("gpu_health_findings wants what the module gpu_health returned")
    nvml = str((result.get("summary") or {}).get("nvml") or "")
    return _health_pending.softened(list(result["findings"]), nvml, bool(awaits_reboot))


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {"gpu_health_findings": gpu_health_findings}
