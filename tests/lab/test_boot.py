"""What boots, and what may be booted: the module boot_entry and the reboot gate, on a node whose menu the real
grub-mkconfig writes and whose boot loader obeys it."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.lab.conftest import wait_until

ENTRY, REBOOT, DRIVER = "tests/lab/boot_entry.yml", "tests/lab/gated_reboot.yml", "tests/lab/driver.yml"
#: A script of grub-mkconfig that waits while the file is there, so that the power can go in the middle of it.
HOLD = """#!/bin/sh
[ -e /run/hold-menu ] || exit 0
touch /run/menu-in-the-making
while [ -e /run/hold-menu ]; do sleep 0.1; done
"""


def install(node, *packages):
    node.sh(
        "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install {} >/tmp/apt.log 2>&1 "
        "|| {{ cat /tmp/apt.log; false; }}".format(" ".join(packages))
    )


def kernel(node):
    return node.out("uname -r")


def boot_id(node):
    return node.out("cat /proc/sys/kernel/random/boot_id")


def boot_files(node):
    files = "/boot/grub/grub.cfg /boot/grub/grubenv"
    return node.out(f"sha256sum {files}; ls -A /boot/grub /etc/default/grub.d")


@pytest.fixture(scope="module")
def releases(lab_node):
    """The kernel in the image, an older one, and one of a series that the driver cannot be compiled for."""
    offers = lab_node.offers()
    return offers.security.release, offers.stable.release, offers.backports.release


def test_krn_01_boot_entries_and_power_cuts(lab_node, releases, tmp_path):
    new, old, _ = releases
    install(lab_node, "linux-image-" + old)
    before = boot_files(lab_node)
    lab_node.play(ENTRY, boot_default="5.10.0-1-amd64").refused(f"It has: {old}, {new}")
    dry = lab_node.play(ENTRY, "--check", "--diff", boot_default=old, boot_once=new).passed()
    assert dry.changed(lab_node.name) == 1
    for line in (f"+default: {old}", "-next boot only: none", f"+next boot only: {new}", "+GRUB_DEFAULT=saved"):
        assert line in dry.output, dry.output
    assert boot_files(lab_node) == before

    # The power goes after the saved entry and the settings were written, while the menu is being made.
    lab_node.sh(f"cat >/etc/grub.d/06_hold <<'END'\n{HOLD}END\nchmod +x /etc/grub.d/06_hold; touch /run/hold-menu")
    process = lab_node.start_play(ENTRY, tmp_path / "cut.log", boot_default=old)
    wait_until(
        "the menu to be made",
        lambda: lab_node.sh("test -e /run/menu-in-the-making", check=False).returncode == 0,
        lambda: process.poll() is not None and (tmp_path / "cut.log").read_text(),
    )
    subprocess.run(["docker", "kill", lab_node.name], check=True, stdout=subprocess.DEVNULL)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    lab_node.reboot()
    assert kernel(lab_node) == new
    assert old in lab_node.out("grub-editenv list")

    lab_node.play(ENTRY, boot_default=old).passed()
    assert lab_node.play(ENTRY, boot_default=old).passed().changed(lab_node.name) == 0
    assert lab_node.sh("ls /boot/grub/gpu-node-draft*", check=False).returncode != 0
    lab_node.reboot()
    assert kernel(lab_node) == old
    # A kernel that comes, or a menu that is made again, moves nothing.
    lab_node.sh("update-grub")
    assert lab_node.play(ENTRY, boot_default=old, boot_once="").passed().changed(lab_node.name) == 0

    # Once, and back.
    lab_node.play(ENTRY, boot_once=new).passed()
    assert lab_node.play(ENTRY, boot_once=new).passed().changed(lab_node.name) == 0
    lab_node.reboot()
    assert kernel(lab_node) == new
    assert lab_node.play(ENTRY, boot_once="").passed().changed(lab_node.name) == 0
    lab_node.reboot()
    assert kernel(lab_node) == old

    # Once, and it dies: the power cycle is the way back.
    lab_node.sh(f"echo 'boot.panic={new}' >>/var/lib/simgpu/state")
    lab_node.play(ENTRY, boot_once=new).passed()
    lab_node.reboot()
    assert kernel(lab_node) == old
    lab_node.sh("sed -i '/^boot.panic=/d' /var/lib/simgpu/state")

    assert lab_node.play(ENTRY, boot_unpin=True).passed().changed(lab_node.name) == 1
    assert lab_node.play(ENTRY, boot_unpin=True).passed().changed(lab_node.name) == 0
    assert lab_node.sh("test -e /etc/default/grub.d/gpu-node.cfg", check=False).returncode != 0
    lab_node.reboot()
    assert kernel(lab_node) == new


def test_krn_01_krn_04_krn_08_reboots_go_through_the_gate(lab_node, releases):
    new, old, unfit = releases
    install(lab_node, "linux-image-" + old)
    # With nothing installed nothing needs a reboot, and one that is asked for is refused.
    assert "rebooted: False" in lab_node.play(REBOOT).passed().output
    lab_node.play(REBOOT, gpu_node_reboot_only_if_required=False).refused("No reboot was done", "no nvidia module")

    lab_node.play(DRIVER).passed()
    before = boot_id(lab_node)
    dry = lab_node.play(REBOOT, "--check").passed()
    assert f"would reboot into {new}, because: " in " ".join(dry.output.split())
    assert boot_id(lab_node) == before
    assert "rebooted: True" in lab_node.play(REBOOT).passed().output
    assert boot_id(lab_node) != before
    assert lab_node.out("cat /sys/module/nvidia/version") == "535.261.03"
    before = boot_id(lab_node)
    assert "rebooted: False" in lab_node.play(REBOOT).passed().output
    assert boot_id(lab_node) == before

    # A kernel arrives by itself, without headers, so without a module; it would boot next.
    install(lab_node, "linux-image-" + unfit)
    dry = lab_node.play(REBOOT, "--check").passed()
    assert f"would reboot into {unfit}" in " ".join(dry.output.split())
    assert "the gate would refuse that" in " ".join(dry.output.split())
    lab_node.play(REBOOT).refused(
        f"No reboot was done: {unfit} would come up without driver 535.261.03",
        f"boot_gate.module [{unfit}]",
        "no nvidia module, and no headers to build one",
    )
    # Another kernel is wanted, lacks this and that, and is not the next one: each thing is named.
    parts = f"boot/initrd.img-{old} lib/modules/{old}/updates"
    lab_node.sh(f"cd / && tar -cf /root/kept.tar {parts} && rm -r {parts} && depmod {old}")
    lab_node.play(REBOOT, gpu_node_gate_kernel=old, gpu_node_gate_flavour="open").refused(
        f"boot_gate.entry [{old}]",
        f"choose {old} with the module boot_entry",
        f"update-initramfs -c -k {old}",
        f"boot_gate.module [{old}]",
    )
    assert boot_id(lab_node) == before
    # The default goes back to the kernel that runs, and nothing asks for a reboot any more.
    lab_node.play(ENTRY, boot_default=new).passed()
    assert "rebooted: False" in lab_node.play(REBOOT).passed().output
    assert boot_id(lab_node) == before

    # A kernel that was chosen once and died: the play says which kernel runs instead, and the node is back.
    lab_node.sh(f"tar -C / -xf /root/kept.tar && depmod {old}")
    lab_node.sh(f"echo 'boot.panic={old}' >>/var/lib/simgpu/state")
    lab_node.play(ENTRY, boot_once=old).passed()
    lab_node.play(REBOOT, gpu_node_gate_kernel=old).refused(
        f"Kernel {new} runs after the reboot instead of {old}",
    )
    assert kernel(lab_node) == new
    assert boot_id(lab_node) != before


if __name__ == "__main__":
    pytest.main([__file__])
