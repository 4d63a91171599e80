"""The lab's nodes are what they say: booted, bare, with the GPUs that were asked for."""

from __future__ import annotations


def suite(host):
    return host.run(". /etc/os-release; echo $VERSION_CODENAME").stdout.strip()


def test_the_node_has_booted_and_is_bare(host):
    assert host.run("systemctl is-system-running").stdout.strip() == "running"
    assert not host.package("dkms").is_installed
    assert not [line for line in host.run("dpkg-query -W -f '${Package}\\n'").stdout.split() if "nvidia" in line]


def test_the_running_kernel_is_one_that_is_installed(host):
    release = host.run("uname -r").stdout.strip()
    assert host.file(f"/boot/vmlinuz-{release}").exists
    assert release.startswith("6.1." if suite(host) == "bookworm" else "6.12.")


def test_gpus_are_on_pci_as_asked(host):
    devices = host.run("cat /sys/bus/pci/devices/*/device").stdout.split()
    expected = 1 if suite(host) == "bookworm" else 0
    assert devices.count("0x1db5") == expected, devices
