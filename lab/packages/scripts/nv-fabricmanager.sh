#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Stand-in of the fabric manager: refuses to start where the real one does, then stays and does nothing.
version=@VERSION@
config=/usr/share/nvidia/nvswitch/fabricmanager.cfg
if [ "$1" = --version ]; then
	echo "nv-fabricmanager $version (lab stand-in)"
	exit 0
fi
if [ ! -r $config ]; then
	echo "nv-fabricmanager: no configuration $config" >&2
	exit 1
fi
if ! ls -d /proc/driver/nvidia-nvswitch/devices/* >/dev/null 2>&1; then
	echo "nv-fabricmanager: no NVSwitch found" >&2
	exit 1
fi
loaded=$(cat /sys/module/nvidia/version)
if [ "$loaded" != $version ]; then
	echo "nv-fabricmanager: made for driver $version, but driver $loaded is loaded" >&2
	exit 1
fi
mkdir -p /run/nvidia-fabricmanager
sleep infinity &
echo $! >/run/nvidia-fabricmanager/nv-fabricmanager.pid
