# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which packages are a kernel, by name: Debian's and Ubuntu's with all its flavours. Written here and nowhere else."""

from __future__ import annotations

import re

#: Flavours whose name alone is a meta that pulls image and headers, such as linux-aws or linux-generic-hwe-22.04.
FLAVOURS = (
    "aws",
    "aws-fips",
    "azure",
    "azure-fde",
    "azure-fips",
    "fips",
    "gcp",
    "gcp-fips",
    "generic",
    "gke",
    "gkeop",
    "ibm",
    "intel",
    "intel-iotg",
    "kvm",
    "lowlatency",
    "nvidia",
    "oem",
    "oracle",
    "raspi",
    "realtime",
    "server",
    "virtual",
)
_IMAGE = re.compile(r"^linux-(?:image|modules)-")
#: Modules that the distribution built for the driver, or for what belongs to it (nvidia-fs).
_DRIVER_MODULES = "linux-modules-nvidia-"
#: What follows is a release or a wish about it, never another kind of package: linux-aws-headers-6.8.0-1009 is none.
_META = re.compile(
    r"^linux-(?:"
    + "|".join(sorted(FLAVOURS, key=len, reverse=True))
    + r")(?:-64k|-lts|-hwe|-edge|-tegra|-classic|-[0-9][0-9.a-z]*)*$"
)
#: Ubuntu's headers of one release come in two packages, of which one begins with the source's name.
_HEADERS = re.compile(r"^linux-(?:[a-z0-9.-]+-)?headers-")


def is_kernel(name: str) -> bool:
    """Whether a package is a kernel image, a kernel's own modules, or a meta package that pulls one."""
    return bool(_META.match(name) or (_IMAGE.match(name) and not name.startswith(_DRIVER_MODULES)))


def is_headers(name: str) -> bool:
    """Whether a package has a kernel's headers, or pulls them."""
    return bool(_HEADERS.match(name))


def is_kernel_package(name: str) -> bool:
    """Whether a package belongs to a kernel: image, modules, headers and the metas of them."""
    return is_kernel(name) or is_headers(name)
