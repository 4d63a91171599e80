#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs natively inside the machine's root file system, before there is a disk: what would take minutes under emulation.
set -eu
. /usr/lib/gpu-node-lab/functions.sh

undivert() { # PATH-IN-PACKAGE
    [ -e "$1.real" ] || [ -L "$1.real" ] || return 0
    rm -f "$1"
    dpkg-divert --quiet --local --rename --remove "$1"
}

# Stand-ins of a container node, where the file system comes from one: kernel and modules are real now.
from_container=
[ ! -e /etc/ld.so.preload ] || from_container=yes
rm -f /etc/ld.so.preload
for tool in modprobe rmmod lsmod; do
    for path in /sbin/$tool /bin/$tool /usr/sbin/$tool /usr/bin/$tool; do
        undivert $path
    done
done
rm -rf $lab/kmod $lab/labboot $lab/lab-boot $lab/lab-init $lab/lab-module $lab/modprobe $lab/rmmod $lab/lsmod
rm -f $lab/libuname.so $lab/install.sh $lab/like.sh
rm -f /etc/systemd/system/lab-boot.service /etc/systemd/system/sysinit.target.wants/lab-boot.service
systemctl unmask --quiet systemd-remount-fs.service
rm -f /var/lib/simgpu/state

pretend_disk
echo "grub-pc grub-pc/install_devices multiselect $LAB_DISK" | debconf-set-selections
apt-get update
apt-get install -y --no-install-recommends openssh-server pciutils dkms gcc make libc6-dev linux-headers-amd64
undivert /usr/sbin/grub-probe
undivert /usr/bin/systemd-detect-virt
rm -f $lab/grub-probe $lab/systemd-detect-virt $lab/install-base.sh
# The early boot images of a container hold its stand-in for modprobe.
[ -z "$from_container" ] || update-initramfs -u -k all
systemctl enable --quiet systemd-networkd.service gpu-node-lab-vm.service ssh.service
systemctl disable --quiet systemd-networkd-wait-online.service
# Their random delay would take the package lock in the middle of a test.
systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer
# Nobody looks at a terminal, and each costs an emulated processor seconds of every boot.
systemctl mask --quiet serial-getty@ttyS0.service getty@tty1.service e2scrub_reap.service e2scrub_all.timer \
    fstrim.timer dpkg-db-backup.timer modprobe@efi_pstore.service proc-sys-fs-binfmt_misc.automount \
    systemd-pstore.service
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
mkdir -p -m 700 /root/.ssh
mkdir -p /var/lib/simgpu
apt-get clean
: > /etc/machine-id
