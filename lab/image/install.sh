#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs inside an image while it is built: `early` before kernel and boot loader come, `late` in the finished image.
set -eu
lab=/usr/lib/gpu-node-lab
. $lab/disk.conf

divert() { # PATH-IN-PACKAGE STAND-IN
    dpkg-divert --quiet --local --rename --divert "$1.real" --add "$1"
    ln -sf "$2" "$1"
}

pretend_disk() {
    mkdir -p /dev/disk/by-uuid /dev/disk/by-partuuid
    : >> "$LAB_DISK"
    : >> "$LAB_ROOT_DEVICE"
    ln -sf "../../${LAB_ROOT_DEVICE#/dev/}" "/dev/disk/by-uuid/$LAB_ROOT_UUID"
    ln -sf "../../${LAB_ROOT_DEVICE#/dev/}" "/dev/disk/by-partuuid/$LAB_ROOT_PARTUUID"
}

stand_ins() {
    divert /usr/sbin/grub-probe $lab/grub-probe
    divert /usr/bin/systemd-detect-virt $lab/systemd-detect-virt
    mkdir -p $lab/kmod
    for tool in modprobe rmmod lsmod; do
        ln -sf "$(command -v kmod)" "$lab/kmod/$tool"
        for path in $(dpkg -L kmod | grep "bin/$tool\$"); do
            divert "$path" "$lab/$tool"
        done
    done
}

pretend_disk
case ${1:-late} in
    early)
        stand_ins
        cat > /etc/fstab << END
# /etc/fstab: static file system information.
# <file system> <mount point>   <type>  <options>       <dump>  <pass>
UUID=$LAB_ROOT_UUID /               ext4    errors=remount-ro 0       1
END
        ;;
    late)
        stand_ins
        echo $lab/libuname.so > /etc/ld.so.preload
        systemctl enable --quiet lab-boot.service
        # A real machine remounts its root here; a container's root is an overlay that fstab does not describe.
        systemctl mask --quiet systemd-remount-fs.service
        # Their random delay would take the package lock in the middle of a test.
        systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer
        mkdir -p /var/lib/simgpu
        [ -s /boot/grub/grubenv ] || grub-editenv /boot/grub/grubenv create
        update-grub
        apt-get update
        ;;
esac
