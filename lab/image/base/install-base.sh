#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs inside the base image, before kernel and boot loader come: the disk that they find, and who tells them of it.
set -eu
. /usr/lib/gpu-node-lab/functions.sh

pretend_disk
divert /usr/sbin/grub-probe $lab/grub-probe
divert /usr/bin/systemd-detect-virt $lab/systemd-detect-virt
cat > /etc/fstab << END
# /etc/fstab: static file system information.
# <file system> <mount point>   <type>  <options>       <dump>  <pass>
UUID=$LAB_ROOT_UUID /               ext4    errors=remount-ro 0       1
END
