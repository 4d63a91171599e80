# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reboot gate for playbooks: facts of driver_info in, findings out."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _boot_gate
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import as_dicts


def boot_gate_findings(
    facts: Any, wanted: Any, kernel: Any = None, flavour: Any = None, next_boot: bool = False
) -> list[dict[str, Any]]:
    """Return whether a kernel may be booted, as findings."""
    if not isinstance(facts, Mapping) or "kernels" not in facts:
        raise AnsibleFilterError("boot_gate_findings wants the key 'driver' of what the module driver_info returned")
    if flavour not in (None, "", "auto", "open", "proprietary"):
        raise AnsibleFilterError(f"boot_gate_findings: flavour is open, proprietary or auto, not {flavour!r}")
    asked = str(flavour) if flavour in ("open", "proprietary") else None
    version, release = str(wanted) if wanted else None, str(kernel) if kernel else None
    return as_dicts(_boot_gate.gate(facts, version, release, asked, bool(next_boot)))


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {"boot_gate_findings": boot_gate_findings}
