# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The texts that keep a driver where it is: apt preferences, the updater's blacklist, and their neighbours."""

from __future__ import annotations

import re
from typing import Iterable, Mapping

HEADER = "{} Managed by the aiinfra.gpu_node collection (role nvidia_driver): changes here are lost.\n"

SOURCES_PATH = "/etc/apt/sources.list.d/gpu-node-nvidia.sources"
AUTH_PATH = "/etc/apt/auth.conf.d/gpu-node-nvidia.conf"
KEY_PATH = "/etc/apt/keyrings/gpu-node-nvidia.asc"
PINS_PATH = "/etc/apt/preferences.d/gpu-node-nvidia.pref"
BLACKLIST_PATH = "/etc/apt/apt.conf.d/52gpu-node-nvidia"
NEEDRESTART_PATH = "/etc/needrestart/conf.d/gpu-node.conf"
NOUVEAU_PATH = "/etc/modprobe.d/gpu-node-nouveau.conf"
#: Ending of another package's source file that defines our repository a second time; apt passes over it silently.
DIVERTED = ".gpu-node.disabled"

#: Services that work on GPUs: restarting them behind the back of running work is what needrestart must not do.
GPU_SERVICES = (
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "nvidia-imex",
    "nvidia-dcgm",
    "containerd",
    "k3s",
    "k3s-agent",
)

NOUVEAU_TEXT = (
    HEADER.format("#")
    + "# The kernel's own drivers for NVIDIA cards would take the GPUs before the nvidia module can.\n"
    + "blacklist nouveau\n"
    + "options nouveau modeset=0\n"
    + "blacklist nova_core\n"
    + "blacklist nova_drm\n"
)


#: The same file on its way out: an early boot image that is older than it has the blacklist inside.
NOUVEAU_GONE_TEXT = (
    HEADER.format("#") + "# Nothing is kept away any more. It goes once the early boot images are built again.\n"
)


def sources_text(stanzas: str) -> str:
    """Return the sources file; empty when nothing is to be added."""
    return HEADER.format("#") + "\n" + stanzas if stanzas else ""


def pins_text(members: Mapping[str, str], foreign: Iterable[tuple[str, str]]) -> str:
    """Return the preferences.

    Args:
        members: Name to exact version, of all packages of the set.
        foreign: (name, pin) of driver packages that another origin offers, e.g. ``release o=NVIDIA,l=NVIDIA CUDA``.
    """
    parts = [HEADER.format("#")]
    by_pin: dict[str, list[str]] = {}
    for name, pin in foreign:
        # By its version alone another origin's package cannot be told from the member.
        if name not in members or not pin.startswith("version "):
            by_pin.setdefault(pin, []).append(name)
    # apt takes the first record that fits a version. Another origin may have the very version of a member, as other
    # files, so its packages are put away first; then the exact versions, before the record for everything else.
    for pin, names in sorted(by_pin.items()):
        parts.append(_record("Driver packages come from one origin, which is not this one.", names, pin, -1))
    by_version: dict[str, list[str]] = {}
    for name, version in members.items():
        by_version.setdefault(version, []).append(name)
    for version, names in sorted(by_version.items()):
        parts.append(_record("The installed driver, and only this version of it.", names, f"version {version}", 1001))
    if members:
        parts.append(_record("No other version of it is a candidate.", members, "version *", -1))
    return "\n".join(parts)


def blacklist_text(names: Iterable[str]) -> str:
    """Return apt configuration that takes packages out of unattended upgrades.

    The entries are regular expressions matched at the start, so each is closed with a dollar sign. apt merges the list
    with those of other files.
    """
    lines = "".join(f'    "^{_escaped(name)}$";\n' for name in sorted(names))
    return HEADER.format("//") + f"Unattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"


def needrestart_text() -> str:
    """Return the needrestart drop-in."""
    lines = "".join(f"$nrconf{{override_rc}}{{qr(^{_escaped(name)}\\.service$)}} = 0;\n" for name in GPU_SERVICES)
    return (
        HEADER.format("#")
        + "# Services that work on GPUs are restarted by whoever changes the driver, not after any package run.\n"
        + lines
    )


def _record(why: str, names: Iterable[str], pin: str, priority: int) -> str:
    return f"Explanation: {why}\nPackage: {' '.join(sorted(names))}\nPin: {pin}\nPin-Priority: {priority}\n"


def _escaped(name: str) -> str:
    return re.sub(r"([.+])", r"\\\1", name)
