"""Planned changes of driver and kernel on one node, in order: each test leaves the node as the next one wants it.

Kernel 6.12 is one that driver 535.183.06 cannot be compiled for, as in life; 550.163.01 can.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess

import pytest

from tests.lab.conftest import gpu_holder, wait_until

NODE_UP = ("--suite", "bookworm", "--gpus", "2")
OLD, NEW = "535.183.06", "550.163.01"
UPGRADE, UPDATE = "playbooks/kernel_upgrade.yml", "playbooks/driver_update.yml"
PLACES = "/etc /boot /var/lib/dpkg /var/lib/gpu_node /lib/modules"
#: All files with their times; what the health checks' timer writes at any moment counts for nothing.
SNAPSHOT = (
    f"find {PLACES} -xdev -type f ! -path '/var/lib/gpu_node/health/*' -printf '%p %s %T@\\n' 2>/dev/null | "
    "sort | sha256sum"
)
#: Plays a driver whose module does not stay: what NVML then answers is 9, DRIVER_NOT_LOADED.
UNIT = f"""[Unit]
After=lab-boot.service
Before=nvidia-persistenced.service
[Service]
Type=oneshot
ExecStart=-/bin/sh -c 'grep -q {NEW} /sys/module/nvidia/version && rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia'
[Install]
WantedBy=multi-user.target
"""


def upgrade(node, release, *arguments, driver=OLD, **more):
    return node.play(UPGRADE, *arguments, kernel_upgrade_release=release, nvidia_driver_version=driver, **more)


def update(node, version, *arguments, **more):
    return node.play(UPDATE, *arguments, nvidia_driver_version=version, **more)


def state(node):
    """Return all that a change may touch and a failed one has to bring back."""
    return {
        "packages": node.packages(),
        "holds": node.out("apt-mark showhold"),
        "kernels": node.out("ls /boot/vmlinuz-*"),
        "modules": node.out("ls /lib/modules"),
        "good": node.out("readlink /var/lib/gpu_node/last_known_good/current"),
    }


def serves(node, driver, kernel):
    """The node runs this driver on this kernel, boots it by default, and its package database is in order."""
    assert node.out("uname -r") == kernel
    assert node.out("cat /sys/module/nvidia/version") == driver
    assert node.out("dpkg --audit") == ""
    assert node.sh("test -e /var/lib/gpu_node/transaction.json", check=False).returncode != 0
    environment = dict(line.split("=", 1) for line in node.out("grub-editenv - list").splitlines())
    # GRUB leaves the name of the entry for one boot, empty, when it has booted it.
    assert kernel in environment["saved_entry"] and not environment.get("next_entry")


def good(node):
    manifest = json.loads(node.out("cat /var/lib/gpu_node/last_known_good/current/manifest.json"))
    return manifest["driver"]["version"], manifest["kernel"]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Releases of the kernel that the node runs, and of one of a series that only the newer driver can be built for."""

    good: str
    next: str


@pytest.fixture(scope="module")
def kernels(lab_node):
    offers = lab_node.offers()
    return Kernels(offers.security.release, offers.backports.release)


@pytest.fixture(scope="module", autouse=True)
def start(lab_node, kernels):
    lab_node.play("site.yml", nvidia_driver_version=OLD).passed()
    # nouveau has the cards until the first reboot.
    lab_node.reboot()
    lab_node.play("playbooks/verify.yml", nvidia_driver_version=OLD).passed()
    assert good(lab_node) == (OLD, kernels.good)


@pytest.fixture
def worker(lab_node):
    with gpu_holder(lab_node) as shown:
        yield shown


def test_drv_11_a_change_is_refused_while_gpus_are_in_use_and_names_who_uses_them(lab_node, worker, kernels):
    before = lab_node.out(SNAPSHOT)
    upgrade(lab_node, kernels.next).refused("GPUs are in use", worker, "gpu_node_allow_drain: true")
    update(lab_node, NEW).refused("GPUs are in use", worker, "gpu_node_allow_drain: true")
    assert lab_node.out(SNAPSHOT) == before


def test_an_unknown_kernel_lists_those_on_offer(lab_node, kernels):
    before = lab_node.out(SNAPSHOT)
    upgrade(lab_node, "6.99.1-amd64").refused("kernel 6.99.1-amd64 is neither on this node nor on offer", kernels.next)
    assert lab_node.out(SNAPSHOT) == before


def test_krn_08_a_node_that_has_the_newest_kernel_is_left_alone(lab_node):
    before = lab_node.out(SNAPSHOT)
    assert upgrade(lab_node, "newest").passed().changed(lab_node.name) == 0
    assert lab_node.out(SNAPSHOT) == before


def test_a_dry_run_tells_and_changes_nothing(lab_node, kernels):
    before = lab_node.out(SNAPSHOT)
    play = upgrade(lab_node, kernels.next, "--check", "--diff").passed()
    assert f"+linux-headers-{kernels.next}" in play.output and f"+linux-image-{kernels.next}" in play.output
    play = update(lab_node, NEW, "--check", "--diff").passed()
    assert f"+nvidia-smi {NEW}" in play.output and f"-nvidia-smi {OLD}" in play.output
    assert lab_node.out(SNAPSHOT) == before


def test_krn_03_a_kernel_without_a_module_is_given_up_and_leaves_nothing(lab_node, kernels):
    before = state(lab_node)
    upgrade(lab_node, kernels.next).refused(
        f"kernel {kernels.next} was given up", f"driver {OLD} on kernel {kernels.good}", "make.log"
    )
    serves(lab_node, OLD, kernels.good)
    assert state(lab_node) == before
    lab_node.play("playbooks/verify.yml", nvidia_driver_version=OLD).passed()


def test_drv_10_it_is_not_tried_again_by_itself(lab_node, kernels):
    before = lab_node.out(SNAPSHOT)
    upgrade(lab_node, kernels.next).refused(
        f"kernel {kernels.next} was tried on this node and given up", "gpu_node_retry"
    )
    assert lab_node.out(SNAPSHOT) == before


def test_drv_10_a_driver_that_does_not_serve_is_rolled_back_and_not_tried_again(lab_node, kernels):
    before = state(lab_node)
    lab_node.sh(f"cat >/etc/systemd/system/lab-break.service <<'END'\n{UNIT}END\nsystemctl enable -q lab-break")
    try:
        update(lab_node, NEW).refused(f"driver {NEW} was given up; the node rolled back to driver {OLD}")
        serves(lab_node, OLD, kernels.good)
        assert {**state(lab_node), "good": before["good"]} == before
        note = json.loads(lab_node.out("cat /var/lib/gpu_node/rollback.json"))
        assert note["attempted"]["driver"] == NEW and note["active"]["driver"] == OLD and note["reason"]
    finally:
        lab_node.sh("systemctl disable -q lab-break; rm /etc/systemd/system/lab-break.service")
    unchanged = lab_node.out(SNAPSHOT)
    for play in (update(lab_node, NEW), lab_node.play("site.yml", nvidia_driver_version=NEW)):
        play.refused(f"driver {NEW} was tried on this node and given up", "gpu_node_retry")
    assert lab_node.out(SNAPSHOT) == unchanged


def test_drv_04_the_driver_goes_to_another_branch_and_back(lab_node, kernels):
    update(lab_node, NEW, gpu_node_retry=True).passed()
    serves(lab_node, NEW, kernels.good)
    assert good(lab_node) == (NEW, kernels.good)
    assert lab_node.sh("test -e /var/lib/gpu_node/rollback.json", check=False).returncode != 0
    assert update(lab_node, NEW).passed().changed(lab_node.name) == 0
    update(lab_node, OLD).passed()
    serves(lab_node, OLD, kernels.good)


#: Where a run is cut off, and what dies.
POINTS = {
    UPDATE: {
        "while packages are unpacked": "grep -Eq ' status half-installed (libcuda1|nvidia-kern)' /var/log/dpkg.log",
        "while the module is compiled": "pgrep -f '/[d]kms.* (build|autoinstall|install)'",
    },
    UPGRADE: {
        "while the boot loader is pinned": "grep -q saved /etc/default/grub.d/gpu-node.cfg",
        "while the kernel is unpacked": "grep -q ' status half-installed linux-image-6.12' /var/log/dpkg.log",
        "while the module is compiled": "pgrep -f '/[d]kms.* (build|autoinstall|install)'",
    },
}


def cut_off(node, playbook, tmp_path, kernel, **variables):
    """Start a playbook again and again and pull the plug at each point."""
    for number, (point, reached) in enumerate(POINTS[playbook].items()):
        node.sh("truncate -s 0 /var/log/dpkg.log")
        log = tmp_path / f"{number}.log"
        process = node.start_play(playbook, log, **variables)

        def ended(process=process, log=log):
            return process.poll() is not None and f"the run ended first:\n{log.read_text()[-4000:]}"

        wait_until(point, lambda reached=reached: node.sh(reached, check=False).returncode == 0, ended)
        subprocess.run(["docker", "kill", node.name], check=True, stdout=subprocess.DEVNULL)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        node.reboot(whole=False)
        # A kernel that was not tried never boots by itself.
        assert node.out("uname -r") == kernel


def test_a_driver_update_that_was_cut_off_goes_on(lab_node, tmp_path, kernels):
    cut_off(lab_node, UPDATE, tmp_path, kernels.good, nvidia_driver_version=NEW)
    update(lab_node, NEW).passed()
    serves(lab_node, NEW, kernels.good)


def test_a_kernel_that_dies_at_boot_is_left_by_the_next_power_cycle(lab_node, kernels):
    before = state(lab_node)
    lab_node.sh(f"echo 'boot.panic={kernels.next}' >>/var/lib/simgpu/state")
    try:
        upgrade(lab_node, kernels.next, driver=NEW).refused(f"kernel {kernels.next} was given up", kernels.good)
        serves(lab_node, NEW, kernels.good)
        assert {**state(lab_node), "good": before["good"]} == before
    finally:
        lab_node.sh("sed -i '/^boot.panic=/d' /var/lib/simgpu/state")


def test_krn_01_a_kernel_upgrade_that_was_cut_off_goes_on_and_ends_with_the_new_default(lab_node, tmp_path, kernels):
    variables = {"kernel_upgrade_release": kernels.next, "nvidia_driver_version": NEW, "gpu_node_retry": True}
    cut_off(lab_node, UPGRADE, tmp_path, kernels.good, **variables)
    lab_node.play(UPGRADE, **variables).passed()
    serves(lab_node, NEW, kernels.next)
    assert good(lab_node) == (NEW, kernels.next)
    assert upgrade(lab_node, kernels.next, driver=NEW).passed().changed(lab_node.name) == 0
    assert lab_node.play("site.yml", nvidia_driver_version=NEW).passed().changed(lab_node.name) == 0


if __name__ == "__main__":
    pytest.main([__file__])
