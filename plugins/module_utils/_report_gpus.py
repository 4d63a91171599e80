# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which findings of a node speak of one and the same GPU, so that a report can tell GPU by GPU."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _results

_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_GPU = re.compile(rf"^gpu(\d+)(?: ({_ADDRESS}))?$")
_BARE = re.compile(rf"^{_ADDRESS}$")
#: Checks whose bare addresses are GPUs that NVML does not list. Elsewhere an address may be a bridge or a switch.
_OF_PCI = ("node.gpu_count", "node.pci_driver", "node.kernel_log")

Finding = Mapping[str, Any]


def by_gpu(findings: Sequence[Finding]) -> tuple[dict[str, list[Finding]], list[Finding]]:
    """Return the findings of each GPU, and those of nothing that is a GPU.

    Args:
        findings: Of one node, plain.

    Returns:
        Name of the GPU (``gpu3 0000:65:00.0``, without what is not known of it) to its findings, in the order of the
        GPUs with those that only PCI shows at the end; and the others in their order.
    """
    named = [_GPU.match(str(finding["target"])) for finding in findings]
    addresses = {match.group(1): match.group(2) for match in named if match and match.group(2)}
    indices = {address: index for index, address in addresses.items()}
    cards: dict[tuple[int, str], list[Finding]] = {}
    others: list[Finding] = []
    for finding, match in zip(findings, named):
        target = str(finding["target"])
        if match:
            index = match.group(1)
            address = match.group(2) or addresses.get(index, "")
        elif _BARE.match(target) and (target in indices or finding["check"] in _OF_PCI):
            index, address = indices.get(target, ""), target
        else:
            others.append(finding)
            continue
        cards.setdefault((int(index) if index else 1 << 30, address), []).append(finding)
    ordered = sorted(cards.items())
    return {_name(index, address): found for (index, address), found in ordered}, others


def _name(index: int, address: str) -> str:
    return address if index == 1 << 30 else f"gpu{index} {address}".strip()


def status_of(findings: Iterable[Finding]) -> str:
    """Return what a GPU's findings come to: the worst; ``skipped`` only where nothing else is there."""
    statuses = [str(finding["status"]) for finding in findings]
    judged = [status for status in statuses if status != _results.SKIPPED]
    return _results.worst([{"status": status} for status in judged or statuses])


def rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return each GPU with its status and how many of its findings have which one, for the report as data."""
    return [
        {
            "target": name,
            "status": status_of(found),
            "counts": {status: sum(item["status"] == status for item in found) for status in _ORDER},
        }
        for name, found in by_gpu(findings)[0].items()
    ]


#: The order of the report's counts.
_ORDER = (_results.OK, _results.SKIPPED, _results.WARN, _results.FAIL, _results.ERROR)
