# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What stands in the way of a planned change of driver or kernel, judged from facts before anything is touched.

A planned change begins on a node that is as its last known good record says, or on one where a run of the same change
was cut off and goes on. Nothing that runs is interrupted, and nothing that failed is tried again, unless it is said.
"""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_holders
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_verdict import module_problem
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import REPAIR

CONSENT = "gpu_node_allow_drain: true"
RETRY = "gpu_node_retry: true"
ALONE = "gpu_node_ignore_kubelet: true"
KINDS = ("driver", "kernel")
#: Written on a node of the cluster together with the cordon, so that only a cordon of ours is ever lifted.
ANNOTATION = "aiinfra.gpu_node/cordoned-by"
CORDONED_BY = "aiinfra.gpu_node"


def obstacles(
    facts: Mapping[str, Any],
    good: Mapping[str, Any] | None,
    cluster: Mapping[str, Any],
    allow_drain: bool,
    version: str,
    kernel: str,
    reboots: bool = True,
    pins: bool = False,
) -> list[str]:
    """Return why a change must not begin, each reason with what to do; empty when it may.

    Args:
        facts: What driver_info returned, with check_holders.
        good: ``version`` and ``kernel`` of the last known good state; None where there is none.
        cluster: What ``cluster_node`` returned; an empty one where there is no cluster.
        allow_drain: Whether the operator lets work on the GPUs be interrupted.
        version: Driver version that the change leads to.
        kernel: Kernel release that the change leads to.
        reboots: Whether a reboot is still to come.
        pins: Whether the change begins with making ``kernel``, which runs, the boot loader's default.
    """
    found = [*_database(facts), *_not_good(facts, good, version, kernel, pins)]
    if cluster.get("problem"):
        found.append(str(cluster["problem"]))
    if not reboots or allow_drain:
        return found
    if cluster.get("member"):
        found.append(
            "it is node {} of a cluster and would be cordoned and drained; allow that with {}".format(
                cluster["name"], CONSENT
            )
        )
    lost = users(facts)
    if lost:
        found.append(
            "GPUs are in use and the reboot would take them away; stop what uses them, or allow that with {} "
            "(pid, name, unit or pod): {}".format(CONSENT, ", ".join(lost))
        )
    return found


def users(facts: Mapping[str, Any]) -> list[str]:
    """Return the processes that would lose the GPUs, in words; facts of driver_info, with check_holders."""
    return [_gpu_holders.describe(holder) for holder in facts["holders"] or [] if not holder["service"]]


def _database(facts: Mapping[str, Any]) -> list[str]:
    database = facts["package_database"]
    if database["transaction"] is not None:
        return ["a killed run left a package transaction unfinished; a run without --check repairs it first"]
    names = sorted(database["unfinished"]) or (["dpkg's journal"] if database["interrupted"] else [])
    if not names:
        return []
    return ["the package database is not in order (unfinished: {}); repair it: {}".format(", ".join(names), REPAIR)]


def _not_good(
    facts: Mapping[str, Any], good: Mapping[str, Any] | None, version: str, kernel: str, pins: bool
) -> list[str]:
    if good is None:
        return [
            "there is no last known good state to come back to; playbooks/verify.yml records one on a node that passes"
        ]
    found = []
    running = facts["running_kernel"]
    if running not in (good["kernel"], kernel):
        found.append("kernel {} runs, while {} is the last known good".format(running, good["kernel"]))
    installed = (facts["record"] or {}).get("version") or "none"
    problem = _unfit(facts, running, installed) if pins and running != good["kernel"] else ""
    # The same update, cut off on this kernel, has made it the default already, and goes on.
    if problem and not (installed == version != good["version"] and facts["boot"]["next_kernel"] == running):
        text = "kernel {} runs and must not become the default ({}), while {} is the last known good"
        found.append(text.format(running, problem, good["kernel"]))
    if installed not in (good["version"], version):
        found.append("driver {} is installed, while {} is the last known good".format(installed, good["version"]))
    loaded = facts["loaded"]["version"]
    # A change that was cut off may have left the node without a driver: going on mends that or ends in a rollback.
    cut_off = loaded is None and (version != good["version"] or running != good["kernel"])
    if facts["gpus"] and loaded not in (good["version"], version) and not cut_off:
        text = "driver {} is loaded, while {} is the last known good"
        found.append(text.format(loaded or "none", good["version"]))
    if not found:
        return []
    way = "playbooks/verify.yml records a node that passes as it is, playbooks/rollback.yml brings it back"
    return ["{}; {}".format(", and ".join(found), way)]


def _unfit(facts: Mapping[str, Any], release: str, version: str) -> str:
    kernel = next((one for one in facts["kernels"] if one["release"] == release), None)
    return "its image is not in /boot" if kernel is None else module_problem(kernel, version)


def rolled_back(rollback: Mapping[str, Any] | None, kind: str, wanted: str, present: str | None, retry: bool) -> str:
    """Return why a driver or kernel that failed before is not tried again; empty where it may be.

    Args:
        rollback: The record of the last way back; None where there is none.
        kind: ``driver`` or ``kernel``.
        wanted: Version or release that is wanted.
        present: The one that the node has; what is there already needs no try.
        retry: Whether the operator asks for another try.
    """
    slot = _slots(rollback).get(kind)
    if slot is None or slot["attempted"] != wanted:
        return ""
    if retry or wanted == present:
        return ""
    variable = {"driver": "nvidia_driver_version", "kernel": "kernel_upgrade_release"}[kind]
    return (
        f"{variable}: {kind} {wanted} was tried on this node and given up on {slot['time'] or 'an earlier day'} "
        f"({_one_line(slot['reason'])}); {slot['active'] or present or 'the former one'} serves instead. "
        f"It is not tried again by itself: set {RETRY} once the reason is gone, or want what serves"
    )


def _slots(rollback: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return what is given up by its kind, each as ``attempted``, ``active``, ``reason`` and ``time``.

    An older record has one attempt only, with both kinds in it.
    """
    record = rollback or {}
    slots = record.get("given_up")
    # Of the record itself each kind is asked for by its name.
    former = record if isinstance(record.get("attempted"), Mapping) else {}
    found = {}
    for kind in KINDS:
        slot = slots.get(kind) if isinstance(slots, Mapping) else None
        source = slot if isinstance(slot, Mapping) else former
        attempted = _of_kind(source.get("attempted"), kind)
        if attempted:
            active = _of_kind(source.get("active"), kind)
            more = {"reason": source.get("reason"), "time": source.get("time")}
            found[kind] = {"attempted": attempted, "active": active, **more}
    return found


def _of_kind(value: Any, kind: str) -> str | None:
    one = value.get(kind) if isinstance(value, Mapping) else value
    return str(one) if one else None


def note_given_up(
    rollback: Mapping[str, Any] | None,
    attempted: Mapping[str, str],
    active: Mapping[str, str],
    reason: str,
    time: str,
) -> dict[str, Any]:
    """Return the record of the last way back with one more attempt that was given up.

    Args:
        rollback: The record as it is; None where there is none.
        attempted: What was tried, by its kind.
        active: What serves instead, by its kind.
        reason: Why it was given up.
        time: When.
    """
    slots = _slots(rollback)
    for kind, wanted in attempted.items():
        slots[kind] = {"attempted": wanted, "active": active.get(kind), "reason": reason, "time": time}
    return {"attempted": dict(attempted), "active": dict(active), "reason": reason, "time": time, "given_up": slots}


def forget_given_up(rollback: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    """Return the record of the last way back without what was given up of one kind; empty where nothing is left."""
    slots = _slots(rollback)
    if kind not in slots:
        return dict(rollback or {}) if slots else {}
    del slots[kind]
    if not slots:
        return {}
    other, slot = next(iter(slots.items()))
    active = {**dict((rollback or {}).get("active") or {}), other: slot["active"]}
    return {
        "attempted": {other: slot["attempted"]},
        "active": active,
        "reason": slot["reason"],
        "time": slot["time"],
        "given_up": slots,
    }


def _one_line(reason: object) -> str:
    words = " ".join(str(reason or "no reason recorded").split())
    return words if len(words) <= 400 else words[:397] + "..."


def cluster_node(
    listing: Mapping[str, Any], names: list[str], kubelet: bool, known: bool = True, error: str = ""
) -> dict[str, Any]:
    """Return what the cluster knows of a machine.

    Args:
        listing: Nodes as ``kubectl get nodes -o json`` prints them.
        names: Names that the machine may have there, the likeliest first.
        kubelet: Whether the machine shows traces of a kubelet.
        known: Whether the inventory says which cluster there is.
        error: Why it could not be asked; empty where it was.

    Returns:
        ``member``, ``name``, ``cordoned``, ``ours`` (the cordon is one that we set) and ``problem`` (why the machine
        must not be touched; empty where it may).
    """
    nodes = {str(item["metadata"]["name"]): item for item in listing.get("items") or []}
    name = next((name for name in names if name in nodes), "")
    if not name:
        problem = ""
        if kubelet and not known:
            problem = (
                "it runs a kubelet (/var/lib/kubelet), and the inventory has no group k3s_server through which it "
                f"would be drained; add that group, or, once it is drained by hand, allow it with {ALONE}"
            )
        elif kubelet and error:
            problem = (
                f"it runs a kubelet, and the cluster of the group k3s_server cannot be asked ({_one_line(error)}); "
                f"mend that, or leave the cluster out of it with {ALONE}"
            )
        elif kubelet:
            problem = (
                "it runs a kubelet, and the cluster of the group k3s_server has no node named {}; set "
                "gpu_node_cluster_name to its name there (on offer: {})"
            ).format(" or ".join(names), ", ".join(sorted(nodes)) or "none")
        return {"member": False, "name": "", "cordoned": False, "ours": False, "problem": problem}
    node = nodes[name]
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    annotations = node["metadata"].get("annotations") or {}
    ours = cordoned and annotations.get(ANNOTATION) == CORDONED_BY
    return {"member": True, "name": name, "cordoned": cordoned, "ours": ours, "problem": ""}


def cordon_patch(cordon: bool) -> dict[str, Any]:
    """Return the one patch that sets a cordon with our mark, or takes both away: no kill can come between them."""
    mark = CORDONED_BY if cordon else None
    return {"metadata": {"annotations": {ANNOTATION: mark}}, "spec": {"unschedulable": cordon or None}}
