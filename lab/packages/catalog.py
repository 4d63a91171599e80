# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that the builder makes: repositories and the packages in them."""

from __future__ import annotations

from packages import cuda, debian, ubuntu
from packages.model import Package, Repository

DEBIAN_COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
# What the packages depend on and the lab takes from Debian itself.
REAL_PACKAGES = {
    "adduser",
    "debconf",
    "debconf-2.0",
    "dkms",
    "dpkg",
    "gcc",
    "init-system-helpers",
    "kmod",
    "libc6",
    "libssl3",
    "libssl3t64",
    "make",
    "pciutils",
    "libcuda1:i386",
}


NOT_INSTALLABLE = {"debconf-2.0", "libcuda1:i386"}


def component_repositories(
    base: str, suite: str, origin: str, label: str, packages: list[Package], components: tuple[str, ...]
) -> list[Repository]:
    """Return one repository entry for each component that has packages."""
    result = []
    for component in components:
        chosen = tuple(package for package in packages if package.component == component)
        if chosen:
            result.append(Repository(f"{base}/{suite}/{component}", "component", suite, origin, label, chosen))
    return result


def repositories(kernels: list[str] | None = None) -> list[Repository]:
    """Return all repositories; kernels are the releases that prebuilt modules exist for."""
    result: list[Repository] = []
    for suite, packages in debian.SUITES.items():
        label = "Debian-Security" if suite.endswith("-security") else "Debian"
        result += component_repositories("debian", suite, "Debian", label, packages, DEBIAN_COMPONENTS)
    for distro, packages in cuda.DISTRIBUTIONS.items():
        result.append(Repository(f"cuda/{distro}/x86_64", "flat", "/", "NVIDIA", "NVIDIA CUDA", tuple(packages)))
    for suite in ubuntu.SUITES:
        result += component_repositories(
            "ubuntu",
            suite,
            "Ubuntu",
            "Ubuntu",
            ubuntu.packages(suite, kernels or []),
            ("main", "restricted", "multiverse"),
        )
    return result
