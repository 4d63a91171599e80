#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs inside the finished image: everything that can change without kernel and boot loader being installed again.
set -eu
. /usr/lib/gpu-node-lab/functions.sh

pretend_disk
mkdir -p $lab/kmod
for tool in modprobe rmmod lsmod; do
    ln -sf "$(command -v kmod)" "$lab/kmod/$tool"
    for path in $(dpkg -L kmod | grep "bin/$tool\$"); do
        divert "$path" "$lab/$tool"
    done
done
echo $lab/libuname.so > /etc/ld.so.preload
systemctl enable --quiet lab-boot.service
# A real machine remounts its root here; a container's root is an overlay that fstab does not describe.
systemctl mask --quiet systemd-remount-fs.service
# Their random delay would take the package lock in the middle of a test.
systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer
# For these two options systemd 252 mounts a /proc of the service's own, which lacks the faces that lab-boot puts over the
# container's; a machine's /proc has none.
case $(systemctl --version) in
"systemd 252 "*)
    mkdir -p /usr/lib/systemd/system/gpu-node-health.service.d
    printf '[Service]\nProtectControlGroups=no\nProtectKernelTunables=no\n' > /usr/lib/systemd/system/gpu-node-health.service.d/lab.conf
    ;;
esac
mkdir -p /var/lib/simgpu
[ -s /boot/grub/grubenv ] || grub-editenv /boot/grub/grubenv create
update-grub
apt-get update
