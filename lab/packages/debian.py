# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's driver packages: names, sections, source packages and relations as in bookworm and trixie.

Relations are templates: {v} full version, {u} upstream version, {b} branch, {m} the branch that nvidia-modprobe has to
reach, {ssl} the suite's libssl package, {dkms} the dkms version asked for. README.md says what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from packages.model import LIBDIR, Entry, Package, branch, directory, library, link, program, script, text

SOURCE = "nvidia-graphics-drivers"
OPEN_SOURCE = "nvidia-open-gpu-kernel-modules"
CURRENT = f"{LIBDIR}/nvidia/current"
KERNEL_ANY = "nvidia-kernel-dkms (= {v}) | nvidia-kernel-{u} | nvidia-open-kernel-{u}"
GSP = "firmware-nvidia-gsp (= {u}) | firmware-nvidia-gsp-{u}"
ALTERNATIVE = "nvidia-alternative (= {v})"
LIBC = "libc6 (>= 2.34)"
# libcuda1 provides libcuda-X.Y-1 for each CUDA version that it can run.
CUDA_MINORS = {
    "5": (0, 5),
    "6": (0, 5),
    "7": (0, 5),
    "8": (0,),
    "9": (0, 1, 2),
    "10": (0, 1, 2),
    "11": tuple(range(9)),
    "12": (0, 1, 2),
}

# name: (section, summary, relations). Everything is built from nvidia-graphics-drivers, or where the name says open
# from nvidia-open-gpu-kernel-modules, and carries the driver's version.
DRIVER: dict[str, tuple[str, str, dict[str, str]]] = {
    "nvidia-kernel-dkms": (
        "non-free/kernel",
        "NVIDIA binary kernel module DKMS source",
        {
            "Provides": "nvidia-kernel-{u}, nvidia-kernel-dkms-any (= {u})",
            "Pre-Depends": "nvidia-installer-cleanup",
            "Depends": GSP + ", nvidia-kernel-support--v1, dkms (>= {dkms})",
            "Recommends": "nvidia-driver (>= {u}) | libcuda1 (>= {u})",
        },
    ),
    "nvidia-open-kernel-dkms": (
        "contrib/kernel",
        "NVIDIA open kernel module DKMS source",
        {
            "Provides": "nvidia-open-kernel-{u}, nvidia-open-kernel-dkms-any (= {u})",
            "Pre-Depends": "nvidia-installer-cleanup",
            "Depends": GSP + ", nvidia-open-kernel-support--v1, dkms (>= {dkms})",
        },
    ),
    "nvidia-kernel-support": (
        "non-free/kernel",
        "NVIDIA binary kernel module support files",
        {
            "Provides": "nvidia-kernel-support--v1, nvidia-kernel-support-any",
            "Depends": ALTERNATIVE + ", nvidia-alternative--kmod-alias, nvidia-kernel-common (>= 20151021), "
            "nvidia-modprobe (>= {m})",
        },
    ),
    "nvidia-open-kernel-support": (
        "contrib/kernel",
        "NVIDIA open kernel module support files",
        {
            "Provides": "nvidia-kernel-support-any, nvidia-open-kernel-support--v1, nvidia-open-kernel-support-{u}",
            "Conflicts": "nvidia-open-kernel-support-{u}",
            "Depends": "nvidia-alternative-{u}, nvidia-kernel-common (>= 20151021), nvidia-modprobe (>= {m})",
        },
    ),
    "firmware-nvidia-gsp": (
        "non-free-firmware/kernel",
        "NVIDIA GSP firmware",
        {"Provides": "firmware-nvidia-gsp (= {u}), firmware-nvidia-gsp-{u}", "Conflicts": "firmware-nvidia-gsp-{u}"},
    ),
    "nvidia-alternative": (
        "non-free/libs",
        "allows the selection of NVIDIA as GLX provider",
        {
            "Provides": "nvidia-alternative--kmod-alias, nvidia-alternative-{u}, nvidia-alternative-any",
            "Pre-Depends": "dpkg (>= 1.17.21), nvidia-legacy-check (>= 495)",
            "Depends": "glx-alternative-nvidia (>= 1.2)",
            "Conflicts": "nvidia-legacy-340xx-alternative, nvidia-tesla-510-alternative",
        },
    ),
    "nvidia-legacy-check": (
        "non-free/libs",
        "check for NVIDIA GPUs requiring a legacy driver",
        {
            "Pre-Depends": "debconf | debconf-2.0, pciutils, nvidia-installer-cleanup (>= 20151021)",
            "Depends": "debconf (>= 0.5) | debconf-2.0",
        },
    ),
    "libcuda1": (
        "non-free/libs",
        "NVIDIA CUDA Driver Library",
        {
            "Provides": ", ".join(
                f"libcuda-{major}.{minor}-1" for major, minors in CUDA_MINORS.items() for minor in minors
            )
            + ", libcuda.so.1 (= {u}), libcuda1-any",
            "Pre-Depends": "nvidia-legacy-check (>= 495)",
            "Depends": "nvidia-support, " + ALTERNATIVE + ", libnvidia-ptxjitcompiler1 (= {v}), "
            "libnvidia-pkcs11-openssl3 (= {v}), " + LIBC,
            "Recommends": KERNEL_ANY + ", nvidia-smi, libnvidia-cfg1 (= {v}), nvidia-persistenced (>= {b}), "
            "libcuda1:i386 (= {v})",
            "Suggests": "nvidia-cuda-mps, nvidia-kernel-dkms (>= {u})",
        },
    ),
    "libnvidia-ml1": (
        "non-free/libs",
        "NVIDIA Management Library (NVML) runtime library",
        {"Provides": "libnvidia-ml.so.1 (= {u})", "Depends": ALTERNATIVE + ", " + LIBC},
    ),
    "libnvidia-ptxjitcompiler1": ("non-free/libs", "NVIDIA PTX JIT Compiler library", {"Depends": LIBC}),
    "libnvidia-pkcs11-openssl3": (
        "non-free/libs",
        "NVIDIA PKCS #11 Library (OpenSSL 3)",
        {
            "Provides": "libnvidia-pkcs11-openssl3-{u}",
            "Conflicts": "libnvidia-pkcs11-openssl3-{u}",
            "Depends": ALTERNATIVE + ", libc6 (>= 2.2.5), {ssl} (>= 3.0.0)",
        },
    ),
    "libnvidia-cfg1": (
        "non-free/libs",
        "NVIDIA binary OpenGL/GLX configuration library",
        {"Provides": "libnvidia-cfg.so.1 (= {u}), libnvidia-cfg1-any", "Depends": ALTERNATIVE + ", " + LIBC},
    ),
    "libnvidia-nvvm4": ("non-free/libs", "NVIDIA NVVM Compiler library", {"Depends": LIBC}),
    "libcudadebugger1": (
        "non-free/libs",
        "NVIDIA CUDA Debugger Library",
        {"Depends": ALTERNATIVE + ", libcuda1 (= {v}), " + LIBC},
    ),
    "libnvcuvid1": (
        "non-free/libs",
        "NVIDIA CUDA Video Decoder runtime library",
        {"Depends": "libcuda1 (= {v}), " + LIBC},
    ),
    "libnvidia-encode1": (
        "non-free/libs",
        "NVENC Video Encoding runtime library",
        {"Depends": "libc6 (>= 2.3), libnvcuvid1 (>= 260)"},
    ),
    "libnvidia-opticalflow1": (
        "non-free/libs",
        "NVIDIA Optical Flow runtime library",
        {"Depends": "libc6 (>= 2.2.5), libnvcuvid1 (>= 260)"},
    ),
    "nvidia-smi": (
        "non-free/utils",
        "NVIDIA System Management Interface",
        {"Depends": ALTERNATIVE + ", libnvidia-ml1 (= {v}), " + LIBC, "Recommends": KERNEL_ANY},
    ),
    "nvidia-cuda-mps": ("non-free/utils", "NVIDIA CUDA Multi Process Service (MPS)", {"Depends": LIBC}),
    "nvidia-driver-bin": (
        "non-free/x11",
        "NVIDIA driver support binaries",
        {
            "Provides": "nvidia-driver-bin-{u}",
            "Conflicts": "nvidia-driver-bin-{u}",
            "Depends": ALTERNATIVE + ", libnvidia-ml1 (>= 319) | libnvidia-ml.so.1 (>= 319)",
            "Recommends": "nvidia-driver",
        },
    ),
    "nvidia-driver-libs": (
        "non-free/libs",
        "NVIDIA metapackage (OpenGL/GLX/EGL/GLES libraries)",
        {
            "Provides": "nvidia-driver-libs-any",
            "Depends": ALTERNATIVE,
            "Recommends": "libnvidia-cfg1 (= {v}), libnvidia-encode1 (= {v})",
        },
    ),
    "nvidia-vdpau-driver": (
        "non-free/video",
        "Video Decode and Presentation API for Unix - NVIDIA driver",
        {"Depends": ALTERNATIVE},
    ),
    "xserver-xorg-video-nvidia": (
        "non-free/x11",
        "NVIDIA binary Xorg driver",
        {
            "Pre-Depends": "nvidia-installer-cleanup, nvidia-legacy-check (>= 495)",
            "Provides": "xserver-xorg-video-nvidia-any",
            "Depends": ALTERNATIVE + ", nvidia-support",
            "Recommends": "nvidia-driver (>= {u}), " + KERNEL_ANY + ", nvidia-settings (>= {b})",
        },
    ),
    "nvidia-driver": (
        "non-free/x11",
        "NVIDIA metapackage",
        {
            "Provides": "nvidia-driver-any, nvidia-glx-any",
            "Pre-Depends": "nvidia-installer-cleanup, nvidia-legacy-check (>= 495)",
            "Depends": "nvidia-driver-libs (= {v}), nvidia-driver-bin (= {v}), xserver-xorg-video-nvidia (= {v}), "
            "nvidia-vdpau-driver (= {v}), " + ALTERNATIVE + ", " + KERNEL_ANY + ", nvidia-support",
            "Recommends": "nvidia-settings (>= {b}), libnvidia-cfg1 (= {v}), nvidia-persistenced (>= {b})",
        },
    ),
}
OPEN_PACKAGES = ("nvidia-open-kernel-dkms", "nvidia-open-kernel-support")
SONAMES = {
    "libnvidia-ptxjitcompiler1": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-cfg1": "libnvidia-cfg.so.1",
    "libnvidia-nvvm4": "libnvidia-nvvm.so.4",
    "libcudadebugger1": "libcudadebugger.so.1",
    "libnvcuvid1": "libnvcuvid.so.1",
    "libnvidia-encode1": "libnvidia-encode.so.1",
    "libnvidia-opticalflow1": "libnvidia-opticalflow.so.1",
}
MULTI_ARCH_SAME = {"libcuda1", "libnvidia-ml1", "libnvidia-pkcs11-openssl3", "nvidia-driver-libs", *SONAMES}

# Packages with versions of their own, by suite: the four of glx-alternatives and the three of nvidia-support.
HELPERS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "update-glx": (
        "glx-alternatives",
        "contrib/x11",
        "utility for switching the GLX implementation",
        {"Pre-Depends": "dpkg (>= 1.17.21)"},
    ),
    "glx-diversions": (
        "glx-alternatives",
        "contrib/libs",
        "prepare for using accelerated GLX implementations",
        {"Pre-Depends": "nvidia-installer-cleanup", "Depends": "glx-alternative-mesa (= {v})"},
    ),
    "glx-alternative-mesa": (
        "glx-alternatives",
        "contrib/libs",
        "allows the selection of MESA as GLX provider",
        {"Pre-Depends": "dpkg (>= 1.17.21)", "Depends": "update-glx (= {v})", "Recommends": "glx-diversions"},
    ),
    "glx-alternative-nvidia": (
        "glx-alternatives",
        "contrib/libs",
        "allows the selection of NVIDIA as GLX provider",
        {
            "Pre-Depends": "dpkg (>= 1.17.21)",
            "Depends": "update-glx (= {v}), glx-diversions (= {v}), glx-alternative-mesa",
        },
    ),
    "nvidia-installer-cleanup": (
        "nvidia-support",
        "contrib/misc",
        "cleanup after the nvidia-installer",
        {
            "Depends": "debconf (>= 0.5) | debconf-2.0",
            "Conflicts": "nvidia-current, nvidia-current-updates, nvidia-driver-binary",
        },
    ),
    "nvidia-support": (
        "nvidia-support",
        "contrib/misc",
        "NVIDIA binary graphics driver support files",
        {"Depends": "debconf (>= 0.5) | debconf-2.0"},
    ),
    "nvidia-kernel-common": (
        "nvidia-support",
        "contrib/kernel",
        "NVIDIA binary kernel module support files",
        {"Breaks": "nvidia-kernel-support (<< 470.86)"},
    ),
}
HELPER_VERSIONS = {
    "bookworm": {"glx-alternatives": "1.2.2", "nvidia-support": "20220217+3~deb12u1"},
    "trixie": {"glx-alternatives": "1.2.2", "nvidia-support": "20240109+1"},
}

MODPROBE_CONF = """\
# The modules are installed as nvidia-current*.ko: say what their usual names mean.
install nvidia modprobe -i {prefix} $CMDLINE_OPTS
install nvidia-modeset modprobe nvidia ; modprobe -i {prefix}-modeset $CMDLINE_OPTS
install nvidia-uvm modprobe nvidia ; modprobe -i {prefix}-uvm $CMDLINE_OPTS
remove nvidia modprobe -r -i nvidia-modeset nvidia-uvm nvidia
alias char-major-195* nvidia
"""
NOUVEAU_CONF = '# Run "update-initramfs -u" after a change here.\nblacklist nouveau\n'
UDEV_RULES = 'KERNEL=="nvidia", RUN+="/usr/bin/nvidia-modprobe -c 0"\n'


def kernel_support(folder: str, prefix: str) -> list[Entry]:
    """Return the configuration of the kernel module, as conffiles in /etc/nvidia/current*."""
    return [
        text(f"/etc/nvidia/{folder}/nvidia-blacklists-nouveau.conf", NOUVEAU_CONF),
        text(f"/etc/nvidia/{folder}/nvidia-load.conf", "nvidia-modeset\n"),
        text(f"/etc/nvidia/{folder}/nvidia-modprobe.conf", MODPROBE_CONF.format(prefix=prefix)),
        text(f"/etc/nvidia/{folder}/nvidia-options.conf", f"#options {prefix} NVreg_RestrictProfilingToAdminUsers=0\n"),
    ]


def shell_stand_in(name: str) -> str:
    """Return a program that says what it is and does nothing."""
    return f'#!/bin/sh\n# Stand-in.\necho "{name} (lab stand-in): does nothing"\n'


def add_files(package: Package) -> None:
    """Give a package of the driver its files and maintainer scripts."""
    name, upstream = package.name, package.upstream
    if name in ("nvidia-kernel-dkms", "nvidia-open-kernel-dkms"):
        flavour, module = ("open", "nvidia-current-open") if "open" in name else ("proprietary", "nvidia-current")
        package.entries.append(
            Entry(f"/usr/src/{module}-{upstream}", "tree", f"dkms:{module}:{upstream}:{flavour}:{module}")
        )
        for kind in ("postinst", "prerm"):
            package.scripts[kind] = script(f"dkms.{kind}", NAME=module, VERSION=upstream)
    elif name == "nvidia-kernel-support":
        package.entries += [
            *kernel_support("current", "nvidia-current"),
            link(f"/etc/nvidia/nvidia-{upstream}", "current"),
        ]
    elif name == "nvidia-open-kernel-support":
        package.entries += [
            *kernel_support("current-open", "nvidia-current-open"),
            link(f"/etc/nvidia/{upstream}-open", "current-open"),
        ]
    elif name == "firmware-nvidia-gsp":
        for chip in ("ga10x", "tu10x"):
            package.entries.append(text(f"/lib/firmware/nvidia/{upstream}/gsp_{chip}.bin", f"stand-in {upstream}\n"))
    elif name == "nvidia-alternative":
        package.entries += [
            directory(path)
            for path in ("/usr/lib/nvidia/current", "/usr/lib/nvidia/current-open", CURRENT, "/etc/nvidia")
        ]
        values = {"VERSION": upstream, "BRANCH": str(branch(upstream))}
        package.scripts = {"postinst": script("alternative.postinst", **values), "prerm": script("alternative.prerm")}
        package.triggers = [
            f"interest-await {what}"
            for what in (
                "register-nvidia-alternative",
                "/etc/nvidia/current",
                "/etc/nvidia/current-open",
                f"/etc/nvidia/nvidia-{upstream}",
                f"/etc/nvidia/{upstream}-open",
                "/usr/lib/nvidia/current",
                CURRENT,
            )
        ]
    elif name == "libcuda1":
        package.entries += library(CURRENT, "libcuda.so.1", f"libcuda.so.{upstream}", f"cuda:{upstream}")
    elif name == "libnvidia-ml1":
        package.entries += library(CURRENT, "libnvidia-ml.so.1", f"libnvidia-ml.so.{upstream}", f"nvml:{upstream}")
    elif name == "nvidia-smi":
        package.entries.append(program("/usr/lib/nvidia/current/nvidia-smi", "tool:nvidia-smi"))
    elif name == "nvidia-cuda-mps":
        package.entries += [
            text(f"/usr/{folder}/{tool}", shell_stand_in(tool), 0o755)
            for folder, tool in (("bin", "nvidia-cuda-mps-control"), ("sbin", "nvidia-cuda-mps-server"))
        ]
    elif name == "xserver-xorg-video-nvidia":
        package.entries.append(text("/usr/lib/nvidia/current/nvidia_drv.so", "stand-in\n"))
    elif name in SONAMES:
        soname = SONAMES[name]
        package.entries += library(CURRENT, soname, f"{soname.split('.so')[0]}.so.{upstream}", f"stub:{soname}")
    if name in MULTI_ARCH_SAME:
        package.triggers = ["activate-noawait ldconfig"]
    if name.endswith("kernel-support"):
        package.scripts["postrm"] = script("trigger-alternative.postrm")


def fill(relations: Mapping[str, str], **values: str) -> dict[str, str]:
    """Return the relations with their templates filled."""
    return {kind: value.format(**values) for kind, value in relations.items()}


def driver(version: str, suite: str, modprobe: str = "", skip: tuple[str, ...] = ()) -> list[Package]:
    """Return all packages of one driver version; modprobe is the branch that nvidia-modprobe has to reach."""
    upstream = version.rsplit("-", 1)[0]
    values = {
        "v": version,
        "u": upstream,
        "b": str(branch(upstream)),
        "m": modprobe or str(branch(upstream)),
        "ssl": "libssl3t64" if suite == "trixie" else "libssl3",
        "dkms": "3.0.11" if suite == "trixie" else "3.0.3-4~",
    }
    packages = []
    for name, (section, summary, relations) in DRIVER.items():
        if name in skip:
            continue
        package = Package(
            name,
            version,
            section,
            summary,
            OPEN_SOURCE if name in OPEN_PACKAGES else SOURCE,
            relations=fill(relations, **values),
            fields={"Multi-Arch": "same" if name in MULTI_ARCH_SAME else "foreign"},
        )
        add_files(package)
        packages.append(package)
    return packages


def helpers(suite: str) -> list[Package]:
    """Return the packages that carry versions of their own and no driver."""
    packages = []
    for name, (source, section, summary, relations) in HELPERS.items():
        version = HELPER_VERSIONS[suite][source]
        package = Package(
            name,
            version,
            section,
            summary,
            source,
            relations=fill(relations, v=version),
            fields={} if name == "nvidia-kernel-common" else {"Multi-Arch": "foreign"},
        )
        if name == "glx-alternative-nvidia":
            hook = script("initramfs-hook")
            package.entries = [
                directory("/usr/lib/nvidia"),
                directory("/etc/modprobe.d"),
                directory("/etc/modules-load.d"),
                text("/usr/share/initramfs-tools/hooks/zz_nvidia-blacklists-nouveau", hook, 0o755),
            ]
            package.scripts = {"postinst": script("glx.postinst"), "prerm": script("glx.prerm")}
            package.triggers = ["interest-await register-glx-alternative-nvidia", "activate-noawait update-initramfs"]
        if name == "nvidia-kernel-common":
            package.entries = [text("/lib/udev/rules.d/60-nvidia-kernel-common.rules", UDEV_RULES)]
        packages.append(package)
    return packages


def modprobe(version: str) -> Package:
    """Return nvidia-modprobe, whose version follows the driver's only loosely."""
    return Package(
        "nvidia-modprobe",
        version,
        "contrib/utils",
        "utility to load NVIDIA kernel modules and create device nodes",
        relations={"Depends": LIBC},
        fields={"Multi-Arch": "foreign"},
        entries=[text("/usr/bin/nvidia-modprobe", shell_stand_in("nvidia-modprobe"), 0o755)],
    )


def settings(version: str) -> Package:
    """Return nvidia-settings, without the desktop libraries."""
    values = {"u": version.rsplit("-", 1)[0]}
    return Package(
        "nvidia-settings",
        version,
        "contrib/x11",
        "tool for configuring the NVIDIA graphics driver",
        relations=fill(
            {
                "Provides": "nvidia-settings-gtk-{u}",
                "Conflicts": "nvidia-settings-gtk-{u}",
                "Pre-Depends": "nvidia-installer-cleanup",
                "Depends": "nvidia-alternative, libc6",
            },
            **values,
        ),
        entries=[text("/usr/lib/nvidia/current/nvidia-settings", shell_stand_in("nvidia-settings"), 0o755)],
    )


def persistenced(version: str, suite: str) -> Package:
    """Return nvidia-persistenced with Debian's unit, which runs as nvpd."""
    systemd = "/usr/lib/systemd/system" if suite == "trixie" else "/lib/systemd/system"
    return Package(
        "nvidia-persistenced",
        version,
        "contrib/utils",
        "daemon to maintain persistent software state in the NVIDIA driver",
        relations={
            "Pre-Depends": "init-system-helpers (>= 1.54~)",
            "Depends": "libnvidia-cfg1 | libnvidia-cfg.so.1 | libnvidia-cfg1-any, adduser, " + LIBC,
        },
        fields={"Multi-Arch": "foreign"},
        entries=[
            program("/usr/bin/nvidia-persistenced", f"persistenced:{version.rsplit('-', 1)[0]}"),
            text(f"{systemd}/nvidia-persistenced.service", script("persistenced-debian.service")),
        ],
        scripts={
            "postinst": script("persistenced.postinst", USER="nvpd"),
            "prerm": script("persistenced.prerm"),
            "postrm": script("persistenced.postrm"),
        },
    )


NO_OPEN_IN_SECURITY = OPEN_PACKAGES
SUITES: dict[str, list[Package]] = {
    "bookworm": [
        *helpers("bookworm"),
        *driver("535.183.06-1~deb12u1", "bookworm"),
        *driver("535.261.03-1", "bookworm"),
        # Debian has no 550 in bookworm; this one takes the nvidia-modprobe that is there.
        *driver("550.163.01-1~lab", "bookworm", modprobe="535"),
        modprobe("535.161.07-1~deb12u1"),
        persistenced("535.171.04-1~deb12u1", "bookworm"),
        settings("535.247.01-1~deb12u1"),
    ],
    "bookworm-security": [
        *driver("535.309.01-0+deb12u1", "bookworm", skip=NO_OPEN_IN_SECURITY),
        modprobe("535.309.01-0+deb12u1"),
        settings("535.309.01-0+deb12u1"),
    ],
    "trixie": [
        *helpers("trixie"),
        *driver("535.261.03-1~lab", "trixie"),
        *driver("550.163.01-2", "trixie"),
        modprobe("570.133.07-1"),
        persistenced("550.163.01-1", "trixie"),
        settings("550.163.01-1"),
    ],
}
