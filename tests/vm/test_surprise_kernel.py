"""A kernel that the driver cannot be built for arrives behind our back, and the machine really boots it.

One machine goes through all of it, in order; each test ends as it began, as last known good.
"""

from __future__ import annotations

import json

import pytest

ROLLBACK = "playbooks/rollback.yml"
APT = "DEBIAN_FRONTEND=noninteractive apt-get install -y -q -t bookworm-backports"


def assert_serves(machine) -> None:
    """The good kernel runs, and its driver has the cards."""
    assert machine.kernel().startswith("6.1.")
    assert machine.out("cat /sys/module/nvidia/version") == machine.OLD
    assert machine.out("ls /sys/bus/pci/drivers/nvidia").count("0000:") == 2
    assert machine.out("dpkg --audit") == ""


def bring(machine, packages: str) -> str:
    """Install from backports as an administrator would; return the kernel that was there."""
    before = machine.kernel()
    machine.sh(f"{APT} {packages}", check=False)
    return before


def go_back(machine) -> None:
    """Roll back without compiler and package sources."""
    machine.sh("mv /usr/bin/gcc-12 /root/; mv /usr/bin/make /root/; mv /srv/lab /srv/away")
    try:
        machine.play(ROLLBACK, gpu_node_rollback_reason="no module").passed()
    finally:
        machine.sh("mv /root/gcc-12 /root/make /usr/bin/; mv /srv/away /srv/lab")
    assert_serves(machine)


@pytest.mark.short
def test_krn_01_a_kernel_without_headers_takes_the_gpus_and_rollback_brings_them_back(good):
    assert_serves(good)
    # The image alone: its meta brings headers along, and with them DKMS fails (that is the last test).
    kernel = bring(good, "$(apt-cache pkgnames linux-image-6.12 | grep -v -e dbg -e unsigned)")
    good.reboot_without_driver()
    assert good.kernel().startswith("6.12.")
    assert good.sh("test -e /sys/module/nvidia", check=False).returncode != 0
    # The cards are there all the same: only the driver is missing.
    assert len(good.out("lspci -d 10de:").splitlines()) == 2
    good.verify().refused("no nvidia module")
    go_back(good)
    assert good.kernel() == kernel
    record = json.loads(good.out("cat /var/lib/gpu_node/rollback.json"))
    assert record["attempted"]["kernel"].startswith("6.12.")
    assert record["active"] == {"driver": good.OLD, "kernel": kernel}


def test_the_good_kernel_stays_over_a_power_cut(good):
    good.power_cut()
    assert_serves(good)
    good.verify().passed()


def test_krn_03_a_kernel_whose_module_build_fails_leaves_no_half_way_node(good):
    # With its headers there, DKMS tries, fails, and takes the packages' own scripts along: dpkg is left half-way.
    kernel = bring(good, "linux-image-amd64 linux-headers-amd64")
    good.reboot()
    assert good.kernel() == kernel and good.out("dpkg --audit")
    good.verify().refused("linux-headers-6.12")
    go_back(good)
    good.verify().passed()
