#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# STAND-IN: turns a lab node into the shape of an Ubuntu node (os-release, lsb-release, apt sources). The user space
# stays Debian's. Usage: like.sh ubuntu-22.04 | ubuntu-24.04
set -eu
case ${1:-} in
    ubuntu-22.04) version=22.04 point=22.04.5 codename=jammy title='Jammy Jellyfish' ;;
    ubuntu-24.04) version=24.04 point=24.04.3 codename=noble title='Noble Numbat' ;;
    *) echo "like.sh: ubuntu-22.04 or ubuntu-24.04" >&2; exit 2 ;;
esac
rm -f /etc/os-release
cat > /etc/os-release << END
PRETTY_NAME="Ubuntu $point LTS"
NAME="Ubuntu"
VERSION_ID="$version"
VERSION="$point LTS ($title)"
VERSION_CODENAME=$codename
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=$codename
END
cat > /etc/lsb-release << END
DISTRIB_ID=Ubuntu
DISTRIB_RELEASE=$version
DISTRIB_CODENAME=$codename
DISTRIB_DESCRIPTION="Ubuntu $point LTS"
END
rm -f /etc/apt/sources.list.d/debian.sources /etc/debian_version
cat > /etc/apt/sources.list.d/ubuntu.sources << END
Types: deb
URIs: file:/srv/lab/ubuntu
Suites: $codename
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/gpu-node-lab-ubuntu.asc
END
apt-get update -qq
update-grub
