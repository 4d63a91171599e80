# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ubuntu's driver packages: one family of names a branch, transitional branches, prebuilt modules.

Also the shape of the family that NVIDIA's own repository has for Ubuntu; cuda.py uses it with other relations.
"""

from __future__ import annotations

from dataclasses import dataclass

from packages import fabric
from packages.debian import shell_stand_in
from packages.model import DRIVERS, LIBDIR, Entry, Package, branch, library, program, script, text

BLACKLIST = (
    "# Stand-in of the driver's own file.\nblacklist nouveau\nblacklist lbm-nouveau\nalias nouveau off\n"
    "alias lbm-nouveau off\n"
)
UDEV_RULES = """\
# Stand-in: loads the further modules and starts the persistence daemon when the first module comes.
ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia", RUN+="/sbin/modprobe nvidia-modeset"
ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia", RUN+="/sbin/modprobe nvidia-uvm"
ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia", TAG+="systemd", ENV{SYSTEMD_WANTS}+="nvidia-persistenced.service"
"""
# Canonical declares how long a branch lives in the field Support, and from 575 on which flavour to prefer.
SUPPORT = {"535": "PB", "535-server": "LTSB", "580-server": "LTSB"}


@dataclass(frozen=True)
class Style:
    """How a family is named and wired.

    exact: relations inside the family are "at least U and at most U-1" (Ubuntu); else "at least U" (NVIDIA's).
    """

    suffix: str
    version: str
    section: str
    source: str
    exact: bool
    dkms: str
    daemon: str
    has_firmware_name: bool = True
    separate_tools: bool = False

    @property
    def upstream(self) -> str:
        """Return the driver version."""
        return self.version.rsplit("-", 1)[0]

    def name(self, stem: str, tail: str = "") -> str:
        """Return libnvidia-compute-535-server for libnvidia-compute, with an ending such as -open."""
        return stem + (f"-{self.suffix}" if self.suffix else "") + tail

    def needs(self, *stems: str) -> str:
        """Return the relation to other members of the family; a stem may end in +open."""
        parts = []
        for stem in stems:
            name = self.name(stem[:-5], "-open") if stem.endswith("+open") else self.name(stem)
            parts.append(
                f"{name} (<= {self.upstream}-1), {name} (>= {self.upstream})"
                if self.exact
                else f"{name} (>= {self.upstream})"
            )
        return ", ".join(parts)

    def only_one(self, stem: str, *also: str) -> dict[str, str]:
        """Return the relations by which members of two branches exclude each other."""
        names = [*([stem] if self.suffix else []), *also]
        return dict.fromkeys(("Provides", "Conflicts", "Replaces"), ", ".join(names))


def package(style: Style, stem: str, section: str, summary: str, tail: str = "", **relations: str) -> Package:
    """Return a member of the family; pre_depends becomes Pre-Depends."""
    fields = {}
    support = SUPPORT.get(style.suffix)
    if support and stem == "nvidia-driver":
        fields["Support"] = support
        if branch(style.upstream) >= 575:
            fields["Prefer-Variant"] = "Open"
    kinds = {kind.replace("_", "-").title(): value for kind, value in relations.items() if value}
    return Package(
        style.name(stem, tail),
        style.version,
        style.section + section,
        summary,
        style.source,
        relations=kinds,
        fields=fields,
    )


def libraries(style: Style) -> list[Package]:
    """Return the user-space libraries."""
    u = style.upstream
    compute = package(style, "libnvidia-compute", "libs", "NVIDIA libcompute package", depends="libc6 (>= 2.34)")
    compute.relations.update(style.only_one("libnvidia-compute", "libcuda1", "libnvidia-ml1"))
    compute.relations["Provides"] += f", libcuda.so.1 (= {u}), libnvidia-ml.so.1 (= {u})"
    for soname, artifact in (
        ("libnvidia-ml.so.1", f"nvml:{u}"),
        ("libcuda.so.1", f"cuda:{u}"),
        ("libnvidia-ptxjitcompiler.so.1", "stub:libnvidia-ptxjitcompiler.so.1"),
    ):
        compute.entries += library(LIBDIR, soname, f"{soname.split('.so')[0]}.so.{u}", artifact)
    if style.separate_tools:
        compute.entries.append(program("/usr/bin/nvidia-smi", "tool:nvidia-smi"))
    result = [compute]
    for stem, soname, needs in (
        ("libnvidia-decode", "libnvcuvid.so.1", "libnvidia-compute"),
        ("libnvidia-encode", "libnvidia-encode.so.1", "libnvidia-decode"),
        ("libnvidia-cfg1", "libnvidia-cfg.so.1", ""),
        ("libnvidia-fbc1", "libnvidia-fbc.so.1", "libnvidia-decode"),
        ("libnvidia-gl", "libGLX_nvidia.so.0", "libnvidia-common"),
        ("libnvidia-extra", "libnvidia-tls-extra.so.1", "libnvidia-common"),
    ):
        item = package(
            style,
            stem,
            "libs",
            f"NVIDIA {stem.rsplit('-', 1)[1]} libraries",
            depends=", ".join(filter(None, (style.needs(needs) if needs else "", "libc6 (>= 2.34)"))),
        )
        item.relations.update(style.only_one(stem))
        item.entries = library(LIBDIR, soname, f"{soname.split('.so')[0]}.so.{u}", f"stub:{soname}")
        result.append(item)
    common = package(style, "libnvidia-common", "libs", "Shared files used by the NVIDIA libraries")
    common.relations.update(style.only_one("libnvidia-common"))
    for item in result:
        item.triggers = ["activate-noawait ldconfig"]
    return [*result, common]


def tools(style: Style) -> list[Package]:
    """Return nvidia-utils (nvidia-smi) and nvidia-compute-utils (persistence daemon, MPS), where a branch has them."""
    if style.separate_tools:
        return []
    u = style.upstream
    utils = package(
        style,
        "nvidia-utils",
        "utils",
        "NVIDIA driver support binaries",
        depends=style.needs("libnvidia-compute") + ", libc6 (>= 2.34)",
    )
    utils.relations.update(style.only_one("nvidia-utils", "nvidia-smi"))
    utils.entries = [program("/usr/bin/nvidia-smi", "tool:nvidia-smi")]
    compute = package(
        style,
        "nvidia-compute-utils",
        "utils",
        "NVIDIA compute utilities",
        depends=style.needs("libnvidia-compute") + ", adduser, libc6 (>= 2.34)",
    )
    compute.relations.update(style.only_one("nvidia-compute-utils"))
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        compute.entries.append(text(f"/usr/bin/{name}", shell_stand_in(name), 0o755))
    add_daemon(compute, u, style.daemon)
    return [utils, compute]


def add_daemon(item: Package, upstream: str, daemon: str) -> None:
    """Put the persistence daemon into a package, with the unit of one packaging (ubuntu or cuda)."""
    item.entries += [
        program("/usr/bin/nvidia-persistenced", f"persistenced:{upstream}"),
        text("/lib/systemd/system/nvidia-persistenced.service", script(f"persistenced-{daemon}.service")),
    ]
    item.scripts = {
        "postinst": script(f"{daemon}-persistenced.postinst"),
        "prerm": script("persistenced.prerm"),
        "postrm": script("persistenced.postrm"),
    }


def kernel_side(style: Style, flavours: tuple[str, ...]) -> list[Package]:
    """Return kernel-common, firmware, and source and dkms for each flavour."""
    u = style.upstream
    firmware_name = f"{style.name('nvidia-firmware')}-{u}" if style.has_firmware_name else "nvidia-firmware"
    firmware = Package(
        firmware_name, style.version, style.section + "libs", "Firmware files used by the kernel module", style.source
    )
    firmware.entries = [
        text(f"/lib/firmware/nvidia/{u}/gsp_{chip}.bin", f"stand-in {u}\n") for chip in ("ga10x", "tu10x")
    ]
    common = package(
        style,
        "nvidia-kernel-common",
        "utils",
        "Shared files used with the kernel module",
        depends=f"{firmware_name} (= {style.version}), kmod",
    )
    common.relations.update(style.only_one("nvidia-kernel-common"))
    if style.suffix:
        common.relations["Provides"] += f", {style.name('nvidia-kernel-common')}-{u}"
    common.entries = [
        text("/lib/modprobe.d/nvidia-graphics-drivers.conf", BLACKLIST),
        text("/lib/udev/rules.d/71-nvidia.rules", UDEV_RULES),
    ]
    result = [firmware, common]
    for flavour in flavours:
        tail = "-open" if flavour == "open" else ""
        name = style.dkms if flavour == "proprietary" else "nvidia"
        source = package(style, "nvidia-kernel-source", "kernel", f"NVIDIA kernel source package ({flavour})", tail)
        source.relations.update(dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-kernel-source-any"))
        source.entries = [Entry(f"/usr/src/{name}-{u}", "tree", f"dkms:{name}:{u}:{flavour}:nvidia")]
        dkms = package(
            style,
            "nvidia-dkms",
            "kernel",
            f"NVIDIA DKMS package ({flavour})",
            tail,
            depends=style.needs("nvidia-kernel-common", "nvidia-kernel-source" + ("+open" if tail else ""))
            + ", dkms (>= 2.1.1.2-5), make, gcc",
        )
        dkms.relations.update(dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-dkms-kernel"))
        for kind in ("postinst", "prerm"):
            dkms.scripts[kind] = script(f"dkms.{kind}", NAME=name, VERSION=u)
        result += [source, dkms]
    return result


def metas(style: Style, flavours: tuple[str, ...]) -> list[Package]:
    """Return nvidia-headless-no-dkms, nvidia-headless and nvidia-driver for each flavour."""
    result = []
    compute_utils, utils = ([], []) if style.separate_tools else (["nvidia-compute-utils"], ["nvidia-utils"])
    for flavour in flavours:
        tail = "-open" if flavour == "open" else ""
        plus = "+open" if tail else ""
        compute = [
            "nvidia-kernel-common",
            "nvidia-kernel-source" + plus,
            "libnvidia-compute",
            "libnvidia-cfg1",
            *compute_utils,
        ]
        extra = f", nvidia-modprobe (>= {branch(style.upstream)})" if not style.exact else ""
        if style.separate_tools:
            extra += f", nvidia-persistenced (>= {style.upstream})"
        result += [
            package(
                style,
                "nvidia-headless-no-dkms",
                "libs",
                f"NVIDIA headless metapackage, no DKMS ({flavour})",
                tail,
                depends=style.needs(*compute) + extra,
            ),
            package(
                style,
                "nvidia-headless",
                "libs",
                f"NVIDIA headless metapackage ({flavour})",
                tail,
                depends=style.needs(*compute, "nvidia-dkms" + plus) + extra,
            ),
            package(
                style,
                "nvidia-driver",
                "libs",
                f"NVIDIA driver metapackage ({flavour})",
                tail,
                depends=style.needs(
                    *compute,
                    "nvidia-dkms" + plus,
                    "libnvidia-gl",
                    "libnvidia-extra",
                    *utils,
                    "libnvidia-decode",
                    "libnvidia-encode",
                    "libnvidia-fbc1",
                )
                + extra,
            ),
        ]
    return result


def family(style: Style, flavours: tuple[str, ...] = ("proprietary", "open")) -> list[Package]:
    """Return all packages of one branch at one version."""
    return [*libraries(style), *tools(style), *kernel_side(style, flavours), *metas(style, flavours)]


def archive_style(suffix: str, upstream: str, release: str) -> Style:
    """Return the style of Ubuntu's archive; release is 22.04 or 24.04."""
    return Style(
        suffix,
        f"{upstream}-0ubuntu0.{release}.1",
        "restricted/",
        f"nvidia-graphics-drivers-{suffix}",
        True,
        "nvidia-srv" if suffix.endswith("-server") else "nvidia",
        "ubuntu",
    )


def transitional(old: str, style: Style) -> list[Package]:
    """Return the names of a retired branch: empty packages with the new branch's version that depend on its names."""
    result = []
    for item in family(style):
        if item.name.startswith(("nvidia-firmware-", "nvidia-kernel-source-")):
            continue
        name = item.name.replace(style.suffix, old)
        result.append(
            Package(
                name,
                item.version,
                "restricted/oldlibs",
                f"Transitional package for {item.name}",
                item.source,
                relations={"Depends": item.name},
            )
        )
    return result


# Prebuilt modules: (suffix, driver, flavours). The kernels are Debian's, as the lab's nodes have them.
PREBUILT = (("535-server", "535.288.01", ("proprietary", "open")), ("580-server", "580.126.20", ("open",)))
PREBUILT_FILES = ("nvidia.ko",)
# A kernel that no node runs, for the case that a driver package would bring a new kernel along.
NEWER_KERNEL = "6.14.0-37-generic"


def knows(driver: str, release: str) -> bool:
    """Return whether a driver compiles for a kernel release."""
    numbers = tuple(int(part) for part in release.split("-")[0].split("+")[0].split(".")[:2])
    return DRIVERS[driver].first <= numbers < DRIVERS[driver].beyond


def prebuilt(suffix: str, driver: str, flavour: str, release: str) -> list[Package]:
    """Return linux-modules-nvidia-* for one kernel, and for the proprietary flavour linux-objects and -signatures."""
    tail = "-open" if flavour == "open" else ""
    version = release.rsplit("-", 1)[0] + ".1"
    name = f"{suffix}{tail}-{release}"
    folder = f"/lib/modules/{release}/kernel/nvidia-{suffix.replace('-server', 'srv')}{tail}"
    files = [
        Entry(f"{folder}/{file}", "artifact", f"module:{release}:{driver}:{flavour}:{file}") for file in PREBUILT_FILES
    ]
    common = f"nvidia-kernel-common-{suffix}"
    needs = f"linux-image-{release}, {common} (<= {driver}-1), {common} (>= {driver})"
    provides = f"nvidia-prebuilt-kernel, linux-modules-nvidia-{release}"
    modules = Package(
        f"linux-modules-nvidia-{name}",
        version,
        "restricted/kernel",
        f"Linux kernel nvidia modules for {release}",
        "linux-restricted-modules",
        relations={"Depends": needs, "Provides": provides},
        scripts={kind: script(f"depmod.{kind}", RELEASE=release) for kind in ("postinst", "postrm")},
    )
    if tail:
        modules.entries = files
        return [modules]
    objects = Package(
        f"linux-objects-nvidia-{name}",
        version,
        "restricted/kernel",
        f"Linux kernel nvidia modules for {release} (objects)",
        "linux-restricted-modules",
        entries=files,
    )
    modules.relations["Depends"] += f", {objects.name} (= {version}), linux-signatures-nvidia-{release} (= {version})"
    return [modules, objects]


def signatures(release: str) -> Package:
    """Return linux-signatures-nvidia-*, one a kernel."""
    return Package(
        f"linux-signatures-nvidia-{release}",
        release.rsplit("-", 1)[0] + ".1",
        "restricted/kernel",
        f"Linux kernel signatures for nvidia modules for {release}",
        "linux-restricted-signatures",
    )


def module_meta(suffix: str, tail: str, release: str) -> Package:
    """Return linux-modules-nvidia-<branch>-generic, which follows a kernel."""
    return Package(
        f"linux-modules-nvidia-{suffix}{tail}-generic",
        release.rsplit("-", 1)[0] + ".1",
        "restricted/kernel",
        "Extra drivers for nvidia for the generic flavour",
        "linux-restricted-modules",
        relations={"Depends": f"linux-modules-nvidia-{suffix}{tail}-{release}"},
    )


def newer_kernel() -> list[Package]:
    """Return the packages by which installing a driver would bring a kernel that nobody asked for."""
    version = NEWER_KERNEL.rsplit("-", 1)[0] + ".1"
    return [
        Package(f"linux-image-{NEWER_KERNEL}", version, "kernel", "Linux kernel image, empty", "linux-signed"),
        Package(
            f"linux-modules-nvidia-580-server-{NEWER_KERNEL}",
            version,
            "restricted/kernel",
            f"Linux kernel nvidia modules for {NEWER_KERNEL}, empty",
            "linux-restricted-modules",
            relations={"Depends": f"linux-image-{NEWER_KERNEL}, nvidia-kernel-common-580-server (>= 580.126.20)"},
        ),
        module_meta("580-server", "", NEWER_KERNEL),
    ]


SUITES = {"jammy": "22.04", "noble": "24.04"}


def packages(suite: str, kernels: list[str]) -> list[Package]:
    """Return all packages of one Ubuntu release."""
    release = SUITES[suite]
    new = archive_style("580-server", "580.126.20", release)
    result = [
        *family(archive_style("535", "535.288.01", release)),
        *family(archive_style("535-server", "535.274.02", release)),
        *family(archive_style("535-server", "535.288.01", release)),
        *family(new),
        *(fabric.archive(upstream, release) for upstream in ("535.274.02", "535.288.01", "580.126.20")),
        *transitional("570-server", new),
        *newer_kernel(),
    ]
    for kernel in kernels:
        result.append(signatures(kernel))
    for suffix, driver, flavours in PREBUILT:
        known = [kernel for kernel in kernels if knows(driver, kernel)]
        for flavour in flavours:
            for kernel in known:
                result += prebuilt(suffix, driver, flavour, kernel)
            if known and (suffix, flavour) != ("580-server", "proprietary"):
                result.append(module_meta(suffix, "-open" if flavour == "open" else "", known[-1]))
    return result
