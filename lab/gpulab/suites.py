# SPDX-License-Identifier: GPL-3.0-or-later
"""What each Debian suite of the lab consists of: data for the image and for the local repository."""

from __future__ import annotations

from dataclasses import dataclass

# Part of the image from the first second, as on a machine that an installer left behind.
BASE_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "udev",
    "python3",
    "python3-apt",
    "ca-certificates",
    "iproute2",
    "procps",
    "kmod",
    "sudo",
    "zstd",
)

# Installed in a second step, from the local repository, over the grub-probe stand-in.
NODE_PACKAGES = ("initramfs-tools", "linux-image-amd64", "grub-pc", "grub2-common", "lsb-release")

# Offered by the local repository for what roles install later; their closure comes along.
OFFERED_PACKAGES = (
    "linux-headers-amd64",
    "dkms",
    "gcc",
    "make",
    "libc6-dev",
    "dpkg-dev",
    "initramfs-tools",
    "kmod",
    "grub-common",
    "grub2-common",
    "grub-pc",
    "grub-pc-bin",
    "unattended-upgrades",
    "needrestart",
    "mokutil",
    "linux-cpupower",
    "zram-tools",
    "gpgv",
    "gnupg",
    "chrony",
    "pciutils",
    "lsb-release",
    "debconf-utils",
    "apt-utils",
    "patch",
    "python3-pip",
    "adduser",
    "curl",
    "openssh-server",
)


@dataclass(frozen=True)
class Suite:
    """One Debian release."""

    name: str
    version: str
    extra_packages: tuple[str, ...]
    alone_packages: tuple[str, ...]  # offered too, but not installable beside the others
    kernel_suites: tuple[str, ...]  # where linux-image-amd64 is taken from, the first is the one installed

    @property
    def archives(self) -> tuple[str, ...]:
        """Suite names of a node's apt sources."""
        return (self.name, self.name + "-updates", self.name + "-security", self.name + "-backports")


SUITES = {
    "bookworm": Suite(
        "bookworm",
        "12",
        ("cpufrequtils",),
        ("systemd-timesyncd",),
        ("bookworm-security", "bookworm", "bookworm-backports"),
    ),
    "trixie": Suite("trixie", "13", (), ("systemd-timesyncd",), ("trixie-security", "trixie")),
}

# What a lab node's kernel keeps of its modules (dependencies come along): the free GPU driver, what the tuning and
# cluster roles load, and what an initramfs needs.
KERNEL_MODULES = (
    "nouveau",
    "ext4",
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_scsi",
    "nvme",
    "ahci",
    "sd_mod",
    "overlay",
    "br_netfilter",
    "vxlan",
    "nf_conntrack",
    "ip_tables",
    "iptable_nat",
    "xt_conntrack",
    "xt_comment",
    "veth",
    "loop",
    "squashfs",
    "vfat",
    "nls_ascii",
    "nls_cp437",
    "zram",
    "crc32c_generic",
    "libcrc32c",
    "fuse",
    "dm_mod",
    "msr",
    "acpi_cpufreq",
    "ipmi_devintf",
)
