# SPDX-License-Identifier: GPL-3.0-or-later
# Sourced by the scripts that run inside an image while it is built.
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
