# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of NVIDIA's network repositories, for debian12 and ubuntu2204.

Names have the branch in them up to 580 on Ubuntu, from 590 on they have not; Fabric Manager and its like lost it at 580
already. Relations inside a driver are open-ended ("at least"), as they are there.
"""

from __future__ import annotations

from packages import fabric
from packages.debian import NOUVEAU_CONF, shell_stand_in
from packages.model import LIBDIR, Entry, Package, branch, library, program, script, text
from packages.ubuntu import Style, add_daemon, family

FLOATING = "610.57.04"
EMPTY_META = "615.71.09"
PIN_FILE = """\
Package: *
Pin: release l=NVIDIA CUDA
Pin-Priority: 600

Package: nsight-*
Pin: release o=Ubuntu
Pin-Priority: -1
"""
PINNED_NAMES = (
    "nvidia-* libnvidia-* cuda-drivers* libcuda1 libcudadebugger1 libnvcuvid1 libnvsdm* firmware-nvidia-* "
    "xserver-xorg-video-nvidia*"
)


def pinning(name: str, pattern: str, version: str) -> Package:
    """Return nvidia-driver-pinning-*: a preferences file and nothing else."""
    content = f"Package: {PINNED_NAMES}\nPin: version {pattern}\nPin-Priority: 1001\n"
    return Package(
        f"nvidia-driver-pinning-{name}",
        version,
        "utils",
        f"Pins the NVIDIA driver to {name}",
        architecture="all",
        relations=dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-driver-pinning"),
        entries=[text(f"/etc/apt/preferences.d/nvidia-driver-pinning-{name}", content)],
    )


def modprobe(version: str) -> Package:
    """Return nvidia-modprobe: one name for all branches, so the newest one is what everybody gets."""
    return Package(
        "nvidia-modprobe",
        version,
        "utils",
        "Load the NVIDIA kernel driver and create device files",
        relations={"Depends": "libc6 (>= 2.34)"},
        entries=[text("/usr/bin/nvidia-modprobe", shell_stand_in("nvidia-modprobe"), 0o755)],
    )


def settings(version: str) -> Package:
    """Return nvidia-settings, without the desktop libraries."""
    return Package(
        "nvidia-settings",
        version,
        "x11",
        "Tool for configuring the NVIDIA graphics driver",
        entries=[text("/usr/bin/nvidia-settings", shell_stand_in("nvidia-settings"), 0o755)],
    )


def persistenced(version: str) -> Package:
    """Return nvidia-persistenced as a package of its own, with NVIDIA's unit."""
    item = Package(
        "nvidia-persistenced", version, "utils", "NVIDIA persistence daemon", relations={"Depends": "libc6 (>= 2.34)"}
    )
    add_daemon(item, version.rsplit("-", 1)[0], "cuda")
    return item


def toolkit() -> list[Package]:
    """Return a CUDA toolkit, which has nothing to do with the driver and must survive its removal."""
    version = "12.4.1-1"
    compiler = '#!/bin/sh\necho "nvcc (lab stand-in): release 12.4, V12.4.131"\n'
    nvcc = Package(
        "cuda-nvcc-12-4",
        "12.4.131-1",
        "devel",
        "CUDA nvcc",
        entries=[text("/usr/local/cuda-12.4/bin/nvcc", compiler, 0o755)],
    )
    cudart = Package(
        "cuda-cudart-12-4",
        "12.4.127-1",
        "libs",
        "CUDA runtime",
        entries=library(
            "/usr/local/cuda-12.4/lib64", "libcudart.so.12", "libcudart.so.12.4.127", "stub:libcudart.so.12"
        ),
    )
    meta = Package(
        "cuda-toolkit-12-4",
        version,
        "devel",
        "CUDA Toolkit 12.4 meta-package",
        relations={"Depends": "cuda-nvcc-12-4 (>= 12.4.131), cuda-cudart-12-4 (>= 12.4.127)"},
    )
    return [nvcc, cudart, meta]


def keyring(distro: str) -> Package:
    """Return cuda-keyring: it brings its own source file (with the place in a node) and a pin."""
    source = f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] file:/srv/lab/cuda/{distro}/x86_64/ /\n"
    return Package(
        "cuda-keyring",
        "1.1-1",
        "utils",
        "GPG keyring and source for the CUDA repository",
        architecture="all",
        entries=[
            Entry("/usr/share/keyrings/cuda-archive-keyring.gpg", "artifact", "key:cuda"),
            text(f"/etc/apt/sources.list.d/cuda-{distro}-x86_64.list", source),
            text("/etc/apt/preferences.d/cuda-repository-pin-600", PIN_FILE),
        ],
    )


def ubuntu_style(suffix: str, version: str) -> Style:
    """Return the style of NVIDIA's repository for Ubuntu."""
    bare = not suffix
    return Style(suffix, version, "", "nvidia-graphics-drivers", False, "nvidia", "cuda", not bare, bare)


def ubuntu_driver(upstream: str, revision: str, suffix: str) -> list[Package]:
    """Return a driver of the Ubuntu repository with its metas."""
    version = f"{upstream}-{revision}"
    style = ubuntu_style(suffix, version)
    result = [*family(style), *fabric.vendor(upstream), modprobe(version), settings(version)]
    if suffix:
        result += [
            Package(
                f"cuda-drivers-{suffix}",
                version,
                "libs",
                f"CUDA driver meta-package, branch {suffix}",
                relations={"Depends": f"nvidia-driver-{suffix} (>= {upstream})"},
            ),
            Package(
                "cuda-drivers",
                version,
                "libs",
                "CUDA driver meta-package",
                relations={"Depends": f"cuda-drivers-{suffix} (>= {upstream})"},
            ),
        ]
    else:
        result += [
            persistenced(version),
            Package(
                "cuda-drivers",
                version,
                "libs",
                "CUDA driver meta-package",
                relations={"Depends": f"nvidia-driver (>= {upstream})"},
            ),
        ]
    if branch(upstream) >= 560:
        result.append(
            Package(
                "nvidia-open",
                version,
                "libs",
                "Open driver meta-package",
                relations={"Depends": f"{style.name('nvidia-driver', '-open')} (>= {upstream})"},
            )
        )
        if suffix:
            result.append(
                Package(
                    f"nvidia-open-{suffix}",
                    version,
                    "libs",
                    "Open driver meta-package, one branch",
                    relations={"Depends": f"nvidia-driver-{suffix}-open (>= {upstream})"},
                )
            )
    return result


def debian_driver(upstream: str) -> list[Package]:
    """Return a driver of the Debian repository: Debian's names, another structure."""
    version = f"{upstream}-1"
    at_least = f"(>= {upstream})"
    exact = f"(= {version})"

    def make(name: str, summary: str, entries: list[Entry] | None = None, **relations: str) -> Package:
        kinds = {kind.replace("_", "-").title(): value for kind, value in relations.items()}
        return Package(name, version, "utils", summary, "nvidia-driver", relations=kinds, entries=entries or [])

    def shared(name: str, soname: str, artifact: str, depends: str = "libc6 (>= 2.34)") -> Package:
        item = make(
            name,
            f"NVIDIA {name} library",
            library(LIBDIR, soname, f"{soname.split('.so')[0]}.so.{upstream}", artifact),
            Depends=depends,
        )
        item.triggers = ["activate-noawait ldconfig"]
        return item

    dkms = []
    for name, flavour, other in (
        ("nvidia-kernel-dkms", "proprietary", "nvidia-kernel-open-dkms"),
        ("nvidia-kernel-open-dkms", "open", "nvidia-kernel-dkms"),
    ):
        item = make(
            name,
            f"NVIDIA kernel module DKMS source ({flavour})",
            [Entry(f"/usr/src/nvidia-{upstream}", "tree", f"dkms:nvidia:{upstream}:{flavour}:nvidia")],
            Provides=f"nvidia-kernel-{upstream}",
            Conflicts=other,
            Replaces=other,
            Depends=f"nvidia-kernel-support {at_least}, dkms, gcc, make",
        )
        for kind in ("postinst", "prerm"):
            item.scripts[kind] = script(f"dkms.{kind}", NAME="nvidia", VERSION=upstream)
        dkms.append(item)
    module = f"nvidia-kernel-dkms {exact} | nvidia-kernel-open-dkms {exact}"
    return [
        *dkms,
        make(
            "nvidia-kernel-support",
            "NVIDIA kernel module support files",
            [text("/etc/modprobe.d/nvidia.conf", NOUVEAU_CONF)],
            Depends=f"firmware-nvidia-gsp {exact}, nvidia-modprobe (>= {branch(upstream)})",
        ),
        make(
            "firmware-nvidia-gsp",
            "NVIDIA GSP firmware",
            [text(f"/lib/firmware/nvidia/{upstream}/gsp_ga10x.bin", f"stand-in {upstream}\n")],
        ),
        shared("libnvidia-ml1", "libnvidia-ml.so.1", f"nvml:{upstream}"),
        shared(
            "libcuda1", "libcuda.so.1", f"cuda:{upstream}", f"libnvidia-ptxjitcompiler1 {at_least}, libc6 (>= 2.34)"
        ),
        shared("libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so.1", "stub:libnvidia-ptxjitcompiler.so.1"),
        shared("libnvidia-cfg1", "libnvidia-cfg.so.1", "stub:libnvidia-cfg.so.1"),
        shared("libnvcuvid1", "libnvcuvid.so.1", "stub:libnvcuvid.so.1", f"libcuda1 {at_least}, libc6 (>= 2.34)"),
        shared(
            "libnvidia-encode1",
            "libnvidia-encode.so.1",
            "stub:libnvidia-encode.so.1",
            f"libnvcuvid1 {at_least}, libc6 (>= 2.34)",
        ),
        make(
            "nvidia-driver-cuda",
            "NVIDIA driver, compute part",
            [program("/usr/bin/nvidia-smi", "tool:nvidia-smi")],
            Conflicts="nvidia-smi",
            Replaces="nvidia-smi",
            Depends=f"libcuda1 {at_least}, libnvidia-ml1 {at_least}, libnvidia-cfg1 {at_least}, "
            f"nvidia-persistenced {at_least}, {module}",
        ),
        make("nvidia-driver", "NVIDIA driver, desktop part", Depends=f"nvidia-kernel-support {at_least}, {module}"),
        make(
            "cuda-drivers",
            "CUDA driver meta-package",
            Depends=f"nvidia-driver {at_least}, nvidia-driver-cuda {at_least}, nvidia-kernel-dkms {at_least}",
        ),
        make(
            "nvidia-open",
            "Open driver meta-package",
            Depends=f"nvidia-driver {at_least}, nvidia-driver-cuda {at_least}, nvidia-kernel-open-dkms {at_least}",
        ),
        *fabric.vendor(upstream),
        modprobe(version),
        settings(version),
        persistenced(version),
    ]


def pins(*versions: str) -> list[Package]:
    """Return the pinning packages of branches and full versions."""
    result = [pinning(version, f"{version}-*", f"{version}-1") for version in versions]
    for number in sorted({branch(version) for version in versions}):
        newest = [version for version in versions if branch(version) == number][-1]
        result.append(pinning(str(number), f"{number}.*", f"{newest}-1"))
    return result


def floating(revision: str) -> list[Package]:
    """Return what is newer than every driver here: it lands on nodes that pin only the top package."""
    return [
        modprobe(f"{FLOATING}-{revision}"),
        settings(f"{FLOATING}-{revision}"),
        Package("cuda-drivers", f"{EMPTY_META}-{revision}", "libs", "CUDA driver meta-package that needs nothing"),
    ]


DISTRIBUTIONS = {
    "debian12": [
        *debian_driver("535.183.06"),
        *debian_driver("535.261.03"),
        *debian_driver("580.126.20"),
        *pins("535.183.06", "535.261.03", "580.126.20"),
        *floating("1"),
        *toolkit(),
        keyring("debian12"),
    ],
    "ubuntu2204": [
        *ubuntu_driver("535.183.06", "0ubuntu1", "535"),
        *ubuntu_driver("535.261.03", "0ubuntu1", "535"),
        *ubuntu_driver("535.288.01", "0ubuntu1", "535"),
        *ubuntu_driver("580.126.20", "0ubuntu1", "580"),
        *ubuntu_driver("590.48.01", "1ubuntu1", ""),
        *pins("535.183.06", "535.261.03", "535.288.01", "580.126.20", "590.48.01"),
        *floating("0ubuntu1"),
        *toolkit(),
        keyring("ubuntu2204"),
    ],
}
