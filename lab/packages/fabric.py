# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric manager and its kin: NVIDIA drops the branch from their names at 580, Ubuntu's archive keeps it."""

from __future__ import annotations

from packages.debian import shell_stand_in
from packages.model import LIBDIR, Package, branch, library, script, text

CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"


def manager(tail: str, version: str, section: str = "utils") -> Package:
    """Return nvidia-fabricmanager; tail is its ending with the branch, or empty."""
    upstream = version.rsplit("-", 1)[0]
    package = Package(
        f"nvidia-fabricmanager{tail}",
        version,
        section,
        "NVIDIA fabric manager",
        entries=[
            text("/usr/bin/nv-fabricmanager", script("nv-fabricmanager.sh", VERSION=upstream), 0o755),
            text("/lib/systemd/system/nvidia-fabricmanager.service", script("fabricmanager.service")),
            text(CONFIG, script("fabricmanager.cfg")),
        ],
        scripts={kind: script(f"fabricmanager.{kind}") for kind in ("postinst", "prerm")},
    )
    if tail:
        package.relations = dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-fabricmanager")
    return package


def vendor(version: str) -> list[Package]:
    """Return Fabric Manager, NSCQ and from 550 on IMEX of NVIDIA's repository; they have to equal the driver."""
    number = branch(version)
    tail = "" if number >= 580 else f"-{number}"
    result = [
        manager(tail, f"{version}-1"),
        Package(
            f"libnvidia-nscq{tail}",
            f"{version}-1",
            "libs",
            "NVIDIA NVSwitch configuration library",
            entries=library(LIBDIR, "libnvidia-nscq.so.2", f"libnvidia-nscq.so.{version}", "stub:libnvidia-nscq.so.2"),
        ),
    ]
    if number >= 550:
        result.append(
            Package(
                f"nvidia-imex{tail}",
                f"{version}-1",
                "utils",
                "NVIDIA IMEX daemon",
                entries=[text("/usr/bin/nvidia-imex", shell_stand_in("nvidia-imex"), 0o755)],
            )
        )
    return result


def archive(upstream: str, release: str) -> Package:
    """Return the fabric manager of Ubuntu's archive; release is 22.04 or 24.04."""
    return manager(f"-{branch(upstream)}", f"{upstream}-0ubuntu0.{release}.1", "restricted/utils")
