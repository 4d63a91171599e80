# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What health checks are asked by, and their findings as a role adds them to the report: plain data in and out."""

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


def gpu_health_thresholds(thresholds: Any, power_limit: Any = None, strict: bool = False) -> dict[str, Any]:
    """Return the thresholds with what other variables say of the wanted power limit.

    One limit for every card is the wanted one. Where cards have limits of their own, the role tuning judges what is
    set, and here each card has to keep it.

    Raises:
        AnsibleFilterError: for thresholds that are no dictionary.
    """
    if not isinstance(thresholds, Mapping):
        raise AnsibleFilterError("gpu_health_thresholds: a dictionary of thresholds by name is wanted")
    wanted: dict[str, Any] = {}
    if isinstance(power_limit, Mapping):
        wanted = {"power_limit_w": -1} if power_limit else {}
    elif str(power_limit or "").isdigit() and int(power_limit) > 0:
        wanted = {"power_limit_w": int(power_limit)}
    return {**wanted, **thresholds, **({"strict_pending": True} if strict else {})}


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {"gpu_health_findings": gpu_health_findings, "gpu_health_thresholds": gpu_health_thresholds}
