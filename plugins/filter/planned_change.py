# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for playbooks/kernel_upgrade.yml and driver_update.yml: what is to be done, and what forbids it."""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _kernel_offers, _planned_change


def _mapping(value: Any, name: str, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise AnsibleFilterError(f"{name} wants {what}, not {type(value).__name__}")
    return dict(value)


def kernel_upgrade_plan(facts: Any, offers: Any, release: str, without_fallback: bool = False) -> dict[str, Any]:
    """Return what an upgrade to a kernel release means on a node."""
    node = _mapping(facts, "kernel_upgrade_plan", "the facts of driver_info")
    known = _mapping(offers, "kernel_upgrade_plan", "the offers of kernel_offer_info")
    return _kernel_offers.plan(node, known, release, without_fallback)


def change_obstacles(
    facts: Any,
    good: Any,
    version: str,
    kernel: str,
    cluster: Any = None,
    allow_drain: bool = False,
    retry: bool = False,
    reboots: bool = True,
    pins: bool = False,
) -> list[str]:
    """Return why a planned change must not begin on a node."""
    node = _mapping(facts, "change_obstacles", "the facts of driver_info")
    record = _mapping(good, "change_obstacles", "the current last known good state") if good else None
    membership = _mapping(cluster or {}, "change_obstacles", "the result of cluster_node")
    found = _planned_change.obstacles(node, record, membership, allow_drain, version, kernel, reboots, pins)
    present = {"driver": (node["record"] or {}).get("version"), "kernel": None if reboots else node["running_kernel"]}
    for kind, wanted in (("driver", version), ("kernel", kernel)):
        found.append(_planned_change.rolled_back(node["rollback"], kind, wanted, present[kind], retry))
    return [text for text in found if text]


def gpu_users(facts: Any) -> list[str]:
    """Return the processes that would lose the GPUs of a node, in words."""
    return _planned_change.users(_mapping(facts, "gpu_users", "the facts of driver_info"))


def note_given_up(rollback: Any, attempted: Any, active: Any, reason: str, time: str) -> dict[str, Any]:
    """Return the record of what was given up with one more attempt."""
    record = _mapping(rollback or {}, "note_given_up", "the key rollback of driver_info's facts")
    tried = _mapping(attempted, "note_given_up", "what was tried, by kind")
    serves = _mapping(active, "note_given_up", "what serves, by kind")
    return _planned_change.note_given_up(record, tried, serves, str(reason), str(time))


def forget_given_up(rollback: Any, kind: str) -> dict[str, Any]:
    """Return the record of what was given up without what it has of one kind."""
    if kind not in _planned_change.KINDS:
        raise AnsibleFilterError(f"forget_given_up: kind is driver or kernel, not {kind!r}")
    record = _mapping(rollback or {}, "forget_given_up", "the key rollback of driver_info's facts")
    return _planned_change.forget_given_up(record, kind)


def cluster_node(
    listing: Any, names: Sequence[str], kubelet: bool = False, known: bool = True, error: str = ""
) -> dict[str, Any]:
    """Return what a cluster knows of a machine, from the output of kubectl get nodes -o json."""
    if error or not known:
        return _planned_change.cluster_node({}, list(names), kubelet, known, str(error))
    try:
        nodes = json.loads(listing) if isinstance(listing, str) else listing
    except ValueError as fault:
        raise AnsibleFilterError(f"cluster_node wants the JSON of kubectl get nodes -o json: {fault}") from fault
    return _planned_change.cluster_node(_mapping(nodes, "cluster_node", "a list of nodes"), list(names), kubelet)


def cordon_patch(cordon: bool) -> str:
    """Return the patch, as JSON, that sets or lifts a cordon of ours."""
    return json.dumps(_planned_change.cordon_patch(cordon))


class FilterModule:
    """Offer the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {
            "kernel_upgrade_plan": kernel_upgrade_plan,
            "change_obstacles": change_obstacles,
            "gpu_users": gpu_users,
            "note_given_up": note_given_up,
            "forget_given_up": forget_given_up,
            "cluster_node": cluster_node,
            "cordon_patch": cordon_patch,
        }
