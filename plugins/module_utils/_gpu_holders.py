# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Who holds the GPUs: processes with an NVIDIA device open, and the unit, container or pod that each belongs to.

Open descriptors and control groups are read, nothing else: the driver is not asked, since it may hang, and no memory
map is opened, since that waits for a process that hangs in the driver.
"""

from __future__ import annotations

import os
import re
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_tables import COMM
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text

_DEVICE = re.compile(r"^/dev/nvidia(?:[0-9]+|ctl|-uvm|-modeset|-nvlink|-nvswitch.*|-caps/.*)(?: \(deleted\))?$")
#: Daemons that serve the GPUs rather than use them: stopped or restarted with the driver, no work is lost. The kernel
#: keeps 15 characters of a name.
SERVICES = (
    "nvidia-persiste",
    "nv-fabricmanage",
    "nv-hostengine",
    "dcgm-exporter",
    "nvidia-device-p",
    # The reader of our own health checks, each minute for some tenths of a second.
    COMM,
)
_UID = r"([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})"
# kubepods-burstable-pod<uid>.slice by systemd's driver, kubepods/burstable/pod<uid> by the other one.
_POD = re.compile(rf"kubepods[^:]*?[-/]pod{_UID}")
# docker-<id>.scope, cri-containerd-<id>.scope, libpod-<id>.scope, and /docker/<id>.
_CONTAINER = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
#: Kubelet names the directory of a pod's logs <namespace>_<name>_<uid>.
_POD_LOGS = "var/log/pods"


def holders(root: str = "/") -> list[dict[str, Any]]:
    """Return the processes that have an NVIDIA device open, in the order of their ids.

    Returns:
        For each: ``pid``, ``name``, ``devices``, ``unit`` (systemd's, empty where there is none), ``container`` (its
        id), ``pod`` (``uid``, ``namespace`` and ``name``, the last two empty where the kubelet left no trace; None for
        a process outside Kubernetes) and ``service`` (a daemon of ``SERVICES``).
    """
    pods: dict[str, tuple[str, str]] | None = None
    found = []
    for pid in sorted((name for name in list_dir(root, "proc") if name.isdigit()), key=int):
        devices = _devices(root, pid)
        if not devices:
            continue
        name = (read_text(root, f"proc/{pid}/comm") or "").strip()
        place = parse_cgroup(read_text(root, f"proc/{pid}/cgroup") or "")
        pod = None
        if place["pod"]:
            pods = pod_names(root) if pods is None else pods
            namespace, pod_name = pods.get(place["pod"], ("", ""))
            pod = {"uid": place["pod"], "namespace": namespace, "name": pod_name}
        found.append(
            {
                "pid": int(pid),
                "name": name,
                "devices": devices,
                "unit": place["unit"],
                "container": place["container"],
                "pod": pod,
                "service": name in SERVICES,
            }
        )
    return found


def users(root: str = "/") -> list[str]:
    """Return the processes that would lose their work with the driver, in words; ``SERVICES`` do not count."""
    return [describe(holder) for holder in holders(root) if not holder["service"]]


def describe(holder: Mapping[str, Any]) -> str:
    """Return a holder as ``pid name (pod namespace/name)``, with its unit or container where there is no pod."""
    return "{pid} {name}".format(**holder) + (f" ({_place(holder)})" if _place(holder) else "")


def _place(holder: Mapping[str, Any]) -> str:
    pod = holder["pod"]
    if pod:
        return "pod " + ("{namespace}/{name}".format(**pod) if pod["name"] else str(pod["uid"]))
    if holder["container"]:
        return "container {}".format(holder["container"][:12])
    return str(holder["unit"])


def parse_cgroup(text: str) -> dict[str, str]:
    """Return ``unit``, ``container`` and ``pod`` (uid) that a process's control groups name, each empty where none is.

    Both hierarchies are understood: one line in the unified one, a line for each controller in the old one.
    """
    found = {"unit": "", "container": "", "pod": ""}
    for line in text.splitlines():
        _number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        pod, container = _POD.search(path), _CONTAINER.search(path)
        if pod:
            found["pod"] = pod.group(1).replace("_", "-")
        if container:
            found["container"] = container.group(1)
        if controllers in ("", "name=systemd"):
            units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
            # The innermost one: user@1000.service holds services of its own.
            found["unit"] = units[-1] if units else found["unit"]
    return found


def pod_names(root: str = "/") -> dict[str, tuple[str, str]]:
    """Return namespace and name of the pods on this node, by uid."""
    found = {}
    for entry in list_dir(root, _POD_LOGS):
        parts = entry.split("_")
        if len(parts) == 3:
            found[parts[2]] = (parts[0], parts[1])
    return found


def _devices(root: str, pid: str) -> list[str]:
    folder = path_below(root, f"proc/{pid}/fd")
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return []
    found = set()
    for descriptor in descriptors:
        try:
            target = os.readlink(os.path.join(folder, descriptor))
        except OSError:
            # Closed since the directory was read.
            continue
        if _DEVICE.match(target):
            found.add(target)
    return sorted(found)
