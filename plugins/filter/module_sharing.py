# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over the controller's cache of compiled modules."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _module_sharing


def module_archives(
    kernels: Sequence[str], directory: str, dkms_name: str, version: str, machine: str, node_directory: str
) -> list[dict[str, Any]]:
    """Return which archives kernels need, and which of them the cache has."""
    plain = [str(kernel) for kernel in kernels]
    return _module_sharing.entries(
        plain, str(directory), str(dkms_name), str(version), str(machine), str(node_directory)
    )


def module_work(lacking: Mapping[str, Sequence[str]], host: str) -> dict[str, Any]:
    """Return what a node of a batch compiles for the others, or for whom it waits."""
    if not isinstance(lacking, Mapping):
        raise AnsibleFilterError("module_work: wanted is a dictionary, the lacking archives by node")
    plain = {str(name): [str(archive) for archive in archives] for name, archives in lacking.items()}
    return _module_sharing.work(plain, str(host))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"module_archives": module_archives, "module_work": module_work}
