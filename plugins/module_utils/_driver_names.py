# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The names of the driver's packages: one table by packaging, branch, module flavour and component.

Four packagings share names but not structure: Debian's, Ubuntu's, and NVIDIA's own for Debian and for Ubuntu. Where the
names change (branches 470, 515, 550, 560, 580, 590, 615) is written here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import re

DEBIAN = "debian"
UBUNTU = "ubuntu"
CUDA_DEBIAN = "cuda_debian"
CUDA_UBUNTU = "cuda_ubuntu"

SOURCES = ("distro", "cuda_repo", "local_repo")
FLAVOURS = ("open", "proprietary")
COMPONENTS = ("compute", "video", "mps", "fabricmanager", "imex")

#: First branch with open kernel modules, and the first without proprietary ones.
OPEN_FROM = 515
OPEN_ONLY_FROM = 615
#: From here the vendor's Ubuntu packages have no branch in their name; Fabric Manager and its kin earlier.
BARE_FROM = 590
BARE_COMPANIONS_FROM = 580
IMEX_FROM = 550
NVSDM_FROM = 560

_DRIVER_VERSION = re.compile(r"^[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?$")

#: Names that belong to a driver, of whatever origin and branch.
_FAMILY = re.compile(
    r"^(?:"
    r"libcuda1|libcudadebugger1|libnvcuvid1|libnvoptix1|libnvsdm(?:-[0-9]+)?|libxnvctrl(?:0|-dev)|"
    r"lib(?:egl|gl1|gles|glx)-nvidia.*|libnvidia-.+|"
    r"firmware-nvidia(?:-tesla)?(?:-[0-9]+)?-gsp|xserver-xorg-video-nvidia.*|"
    r"cuda-drivers(?:-.+)?|linux-(?:modules|objects|signatures)-nvidia-.+|"
    r"nvidia-(?:alternative|cuda-mps|detect|legacy-check|libopencl1|modprobe|persistenced|powerd|smi|suspend-common|"
    r"vdpau-driver|xconfig|settings(?:-.+)?|egl-(?:common|icd)|opencl-(?:common|icd)|vulkan-(?:common|icd)|"
    r"kernel-.+|open(?:-.+)?|driver(?:-.+)?|tesla-.+|headless-.+|utils(?:-[0-9].*)?|compute-utils(?:-.+)?|dkms(?:-.+)?|"
    r"firmware(?:-.+)?|fabricmanager(?:-.+)?|fabric-manager|imex(?:-.+)?)"
    r")$"
)
#: Names that look like the driver's and are not: they follow toolkits, containers, or nothing.
_STRANGERS = re.compile(
    r"^(?:libnvidia-(?:container.*|egl-.+|ml-dev|vaapi-driver.*)|"
    r"nvidia-driver-(?:pinning-.+|assistant)|nvidia-openjdk-.+)$"
)
_MODULE_CARRIER = re.compile(
    r"^(?:nvidia-(?:open-)?kernel-(?:open-)?dkms|nvidia-tesla(?:-[0-9]+)?-kernel-dkms|nvidia-dkms(?:-.+)?|"
    r"linux-modules-nvidia-.+)$"
)
#: Packages of one module flavour: when they are not part of a set, they must not stay beside it.
_FLAVOURED = re.compile(r"-kernel-(?:open-)?(?:support|source|dkms)|^nvidia-(?:headless|dkms)(?:-|$)")
_PREBUILT = re.compile(r"^linux-(?:modules|objects|signatures)-nvidia-")
_BRANCH_IN_NAME = re.compile(r"-(?P<branch>[0-9]{3})(?=-|$)")

#: Packages of the family whose version is their own, by packaging: they follow the driver loosely or not at all.
_INDEPENDENT = {
    DEBIAN: re.compile(
        r"^(?:nvidia-(?:legacy-check|modprobe|persistenced|xconfig|settings(?:-.+)?)|libxnvctrl(?:0|-dev))$"
    ),
    UBUNTU: re.compile(r"^(?:nvidia-(?:modprobe|settings|xconfig)|libxnvctrl(?:0|-dev))$"),
    # The vendor builds its companions for each driver release: there is nothing loose here.
    CUDA_DEBIAN: re.compile(r"^$"),
    CUDA_UBUNTU: re.compile(r"^$"),
}


@dataclasses.dataclass(frozen=True)
class Roots:
    """The packages that are asked for; what they depend on follows.

    Args:
        module: The DKMS package of the kernel module.
        required: Packages without which the set is not whole.
        optional: Packages that are taken where the repository has them at the wanted version.
        any_of: Component name to packages of which at least one must exist.
        metas: Meta packages that stand for the same driver, for messages.
        dkms_name: Name under which DKMS knows the module.
        prebuilt: Name of the prebuilt module of a kernel, with ``{kernel}`` in it; empty where there is none.
    """

    module: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    any_of: tuple[tuple[str, tuple[str, ...]], ...]
    metas: tuple[str, ...]
    dkms_name: str
    prebuilt: str = ""


def is_family(name: str) -> bool:
    """Whether a package name belongs to a driver; toolkits, the container toolkit and the like do not."""
    return bool(_FAMILY.match(name)) and not _STRANGERS.match(name)


def is_driver_version(upstream: str) -> bool:
    """Whether an upstream version names one driver release: ``535.261.03``, not ``535`` and not ``20220217+3``."""
    return bool(_DRIVER_VERSION.match(upstream))


def is_independent(packaging: str, name: str) -> bool:
    """Whether a package of the family has a version of its own in this packaging."""
    return bool(_INDEPENDENT[packaging].match(name))


def is_prebuilt(name: str) -> bool:
    """Whether a package belongs to modules that the distribution built and signed for one kernel."""
    return bool(_PREBUILT.match(name))


def carries_module(name: str) -> bool:
    """Whether a package brings a kernel module, as source for DKMS or built."""
    return bool(_MODULE_CARRIER.match(name))


def is_flavoured(name: str) -> bool:
    """Whether a package belongs to one flavour of the kernel module only."""
    return bool(_FLAVOURED.search(name))


def branch_of(version: str) -> int:
    """Return the branch of a version, 535 for ``535.261.03``; 0 for what is not a version."""
    head = version.split(".", 1)[0]
    return int(head) if head.isdigit() else 0


def renamed(name: str, branch: int) -> str:
    """Return a package name with another branch in it: ``libnvidia-gl-535`` for 580 is ``libnvidia-gl-580``."""
    return _BRANCH_IN_NAME.sub(f"-{branch}", name, count=1)


def name_branch(name: str) -> int:
    """Return the branch that a package name carries; 0 for a name without one."""
    match = _BRANCH_IN_NAME.search(name)
    return int(match.group("branch")) if match else 0


def packagings(source: str, system: str) -> tuple[str, ...]:
    """Return the packagings a source may use on a system (``ID`` of its os-release), the likeliest first."""
    ubuntu = system == "ubuntu"
    distro = UBUNTU if ubuntu else DEBIAN
    vendor = CUDA_UBUNTU if ubuntu else CUDA_DEBIAN
    return {"distro": (distro,), "cuda_repo": (vendor,), "local_repo": (vendor, distro)}[source]


def has_flavour(branch: int, flavour: str) -> bool:
    """Whether a branch has kernel modules of a flavour at all."""
    return branch >= OPEN_FROM if flavour == "open" else branch < OPEN_ONLY_FROM


def variants(packaging: str, branch: int) -> tuple[str, ...]:
    """Return the name variants of a branch within a packaging, the preferred one first."""
    if packaging == UBUNTU:
        return ("-server", "")
    if packaging == DEBIAN:
        return ("", f"tesla-{branch}", "tesla")
    return ("",)


def roots(packaging: str, branch: int, flavour: str, components: tuple[str, ...], variant: str = "") -> Roots:
    """Return what to ask for.

    Args:
        packaging: One of the four packagings.
        branch: Driver branch, e.g. 535.
        flavour: ``open`` or ``proprietary``.
        components: Names out of ``COMPONENTS``.
        variant: One of ``variants()``.
    """
    if packaging == DEBIAN:
        return _debian(flavour, components, variant)
    if packaging == UBUNTU:
        return _ubuntu(branch, flavour, components, variant)
    if packaging == CUDA_DEBIAN:
        return _cuda_debian(branch, flavour, components)
    return _cuda_ubuntu(branch, flavour, components)


def _wanted(components: tuple[str, ...], table: dict[str, tuple[str, ...]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, table.get(name, ())) for name in components if name != "compute")


def _debian(flavour: str, components: tuple[str, ...], variant: str) -> Roots:
    if variant:
        stem, library = f"nvidia-{variant}", f"libnvidia-{variant}"
        module = f"{stem}-kernel-dkms" if flavour == "proprietary" else f"{stem}-open-kernel-dkms"
        names = {"video": (f"{library}-nvcuvid1", f"{library}-encode1"), "mps": ()}
        required = (f"{library}-cuda1", f"{stem}-smi", "nvidia-persistenced")
        optional = (f"{library}-nvvm4", f"{library}-cfg1")
        return Roots(module, required, optional, _wanted(components, names), (f"{stem}-driver",), stem)
    names = {"video": ("libnvcuvid1", "libnvidia-encode1"), "mps": ("nvidia-cuda-mps",)}
    return Roots(
        module="nvidia-open-kernel-dkms" if flavour == "open" else "nvidia-kernel-dkms",
        required=("libcuda1", "nvidia-smi", "nvidia-persistenced"),
        optional=("libnvidia-nvvm4", "libnvidia-cfg1"),
        any_of=_wanted(components, names),
        metas=("nvidia-driver",),
        dkms_name="nvidia-current-open" if flavour == "open" else "nvidia-current",
    )


def _ubuntu(branch: int, flavour: str, components: tuple[str, ...], variant: str) -> Roots:
    suffix = f"-{branch}{variant}"
    module_suffix = suffix + ("-open" if flavour == "open" else "")
    names = {
        "video": (f"libnvidia-decode{suffix}", f"libnvidia-encode{suffix}"),
        "mps": (f"nvidia-compute-utils{suffix}",),
        # Canonical keeps the branch in these names, also where NVIDIA dropped it.
        "fabricmanager": (f"nvidia-fabricmanager-{branch}",),
        "imex": (f"nvidia-imex-{branch}",) if branch >= IMEX_FROM else (),
    }
    return Roots(
        module=f"nvidia-dkms{module_suffix}",
        required=(f"nvidia-headless-no-dkms{module_suffix}", f"nvidia-utils{suffix}"),
        optional=(),
        any_of=_wanted(components, names),
        metas=(f"nvidia-driver{module_suffix}", f"nvidia-headless{module_suffix}"),
        dkms_name="nvidia-srv" if variant == "-server" and flavour == "proprietary" else "nvidia",
        prebuilt=f"linux-modules-nvidia{module_suffix}-{{kernel}}",
    )


def _companions(branch: int) -> dict[str, tuple[str, ...]]:
    tail = "" if branch >= BARE_COMPANIONS_FROM else f"-{branch}"
    fabric = [f"nvidia-fabricmanager{tail}", f"libnvidia-nscq{tail}"]
    if branch >= NVSDM_FROM:
        fabric.append(f"libnvsdm{tail}")
    return {"fabricmanager": tuple(fabric), "imex": (f"nvidia-imex{tail}",) if branch >= IMEX_FROM else ()}


def _cuda_debian(branch: int, flavour: str, components: tuple[str, ...]) -> Roots:
    names: dict[str, tuple[str, ...]] = {
        "video": ("libnvcuvid1", "libnvidia-encode1"),
        "mps": ("nvidia-cuda-mps", "nvidia-driver-cuda"),
    }
    names.update(_companions(branch))
    return Roots(
        module="nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms",
        required=("nvidia-driver-cuda",),
        optional=("nvidia-persistenced", "nvidia-modprobe"),
        any_of=_wanted(components, names),
        metas=("cuda-drivers", "nvidia-open"),
        dkms_name="nvidia",
    )


def _cuda_ubuntu(branch: int, flavour: str, components: tuple[str, ...]) -> Roots:
    tail = "" if branch >= BARE_FROM else f"-{branch}"
    flavour_tail = "-open" if flavour == "open" else ""
    names: dict[str, tuple[str, ...]] = {
        "video": (f"libnvidia-decode{tail}", f"libnvidia-encode{tail}"),
        "mps": (f"nvidia-compute-utils{tail}", "nvidia-cuda-mps", f"libnvidia-compute{tail}"),
    }
    names.update(_companions(branch))
    # Up to 580 persistenced comes inside compute-utils, as in Ubuntu; from 590 it is a package of its own.
    tools: tuple[str, ...] = (f"nvidia-utils{tail}",)
    optional: tuple[str, ...] = (f"nvidia-compute-utils{tail}", "nvidia-modprobe")
    if branch >= BARE_FROM:
        optional = (*tools, "nvidia-persistenced", *optional)
        tools = ()
    metas = ("cuda-drivers", "nvidia-open")
    return Roots(
        module=f"nvidia-dkms{tail}{flavour_tail}",
        required=(f"libnvidia-compute{tail}", *tools),
        optional=optional,
        any_of=_wanted(components, names),
        metas=(*(f"{meta}{tail}" for meta in metas if tail), *metas),
        dkms_name="nvidia",
    )
