# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node's findings allow that its state is kept as the last known good."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._lkg_state import bars


def record_bars(findings: Any) -> list[str]:
    """Return the checks that keep a state from being recorded."""
    if isinstance(findings, (str, bytes, Mapping)) or not hasattr(findings, "__iter__"):
        raise AnsibleFilterError(f"record_bars wants a list of findings, not {type(findings).__name__}")
    return bars([dict(finding) for finding in findings])


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {"record_bars": record_bars}
