"""rollback.yml from every state that it promises to lead out of, without network and without a compiler.

One node goes from one calamity to the next; each test ends as it began, as last known good.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import pytest

from tests.lab.conftest import gpu_holder, wait_until

NODE_UP = ["--suite", "bookworm", "--gpus", "2"]
DRIVER, OTHER = "535.183.06", "535.261.03"
ROLLBACK = "playbooks/rollback.yml"
RECORD = "/var/lib/gpu_node/last_known_good"


@pytest.fixture(scope="module")
def good(lab_node):
    """A node whose driver has passed a verification, and the kernel on which it did."""
    lab_node.play("site.yml", nvidia_driver_version=DRIVER).passed()
    # nouveau holds the GPUs until then, and what is not in force is not recorded.
    lab_node.reboot()
    verify(lab_node).passed()
    manifest = json.loads(lab_node.out(f"cat {RECORD}/current/manifest.json"))
    assert manifest["kernel"] == running(lab_node)
    return lab_node


#: Brings kernel 6.12, for which DKMS cannot build this driver.
NEW_KERNEL = "DEBIAN_FRONTEND=noninteractive apt-get install -y -t bookworm-backports"


def running(node) -> str:
    return node.out("uname -r")


def verify(node):
    return node.play("playbooks/verify.yml", nvidia_driver_version=DRIVER)


@contextlib.contextmanager
def cut_off(node):
    """Take away what a rollback must not need: the network, every package source, compiler and make."""
    subprocess.run(["docker", "network", "disconnect", "bridge", node.name], check=True)
    node.sh("mv /usr/bin/make /usr/bin/make.away; mv /usr/bin/gcc-12 /usr/bin/gcc-12.away")
    node.sh("mv /etc/apt/sources.list.d /etc/apt/away; mv /var/lib/apt/lists /var/lib/apt/away; apt-get clean")
    try:
        assert node.out("ls /sys/class/net") == "lo"
        yield
    finally:
        node.sh("mv /usr/bin/make.away /usr/bin/make; mv /usr/bin/gcc-12.away /usr/bin/gcc-12")
        node.sh("rm -rf /etc/apt/sources.list.d /var/lib/apt/lists")
        node.sh("mv /etc/apt/away /etc/apt/sources.list.d; mv /var/lib/apt/away /var/lib/apt/lists")
        subprocess.run(["docker", "network", "connect", "bridge", node.name], check=True)


def go_back(node, **variables):
    """Roll back in seclusion, twice: the second run finds nothing to do. Then the node passes."""
    with cut_off(node):
        done = node.play(ROLLBACK, **variables).passed()
        assert node.play(ROLLBACK).passed().changed(node.name) == 0
    verify(node).passed()
    return done


def replace_driver(node) -> None:
    """Another version of the driver comes behind our back, as an updater or a person would bring it."""
    packages = json.loads(node.out("cat /var/lib/gpu_node/driver.json"))["packages"]
    wanted = " ".join(f"{name}={version.replace(DRIVER, OTHER)}" for name, version in packages.items())
    node.sh("mv /etc/apt/preferences.d/gpu-node-nvidia.pref /root/")
    offers = node.out("apt-cache madison libnvidia-ml1 | cut -d'|' -f2").split()
    revision = next(version for version in offers if version.startswith(OTHER))
    wanted = " ".join(f"{name}={revision}" for name in packages)
    node.sh(f"apt-get install -y --allow-change-held-packages {wanted}")


def test_drv_10_an_update_that_was_cut_off_while_unpacking_is_led_back(good, tmp_path):
    """The newer half of the driver lies unpacked beside the older other half, which dpkg alone can never configure."""
    log = tmp_path / "update.log"
    good.sh("truncate -s 0 /var/log/dpkg.log")
    update = good.start_play("playbooks/driver_update.yml", log, nvidia_driver_version=OTHER)
    unpacked = f"grep -q ' status unpacked nvidia-smi:amd64 {OTHER}' /var/log/dpkg.log"
    wait_until(
        "an unpacked nvidia-smi",
        lambda: good.sh(unpacked, check=False).returncode == 0,
        lambda: log.read_text()[-3000:] if update.poll() is not None else "",
    )
    subprocess.run(["docker", "kill", good.name], check=True, capture_output=True)
    update.wait()
    good.reboot(whole=False)
    # In which order apt unpacks is its own affair; this is what a cut between the two leaves.
    good.sh(f"dpkg --auto-deconfigure --unpack {RECORD}/current/debs/libnvidia-ml1_*.deb")
    assert good.sh("dpkg --configure nvidia-smi", check=False).returncode != 0
    assert good.out("dpkg --audit") and good.sh("test -e /var/lib/gpu_node/transaction.json")
    go_back(good, gpu_node_rollback_reason="an update was cut off")
    assert good.out("dpkg --audit") == "" and good.out("cat /sys/module/nvidia/version") == DRIVER
    assert good.sh("test -e /var/lib/gpu_node/transaction.json", check=False).returncode != 0
    # With the repositories back, the next transaction finds nothing to complain of.
    good.play("playbooks/site.yml", nvidia_driver_version=DRIVER).passed()


def test_krn_01_a_surprise_kernel_that_takes_the_gpus_away(good):
    kernel = running(good)
    # As where DKMS does not get to build: were it asked, the packages would be left half configured (another test).
    good.sh("touch /etc/dkms/no-autoinstall; apt-get update -qq")
    good.sh(f"{NEW_KERNEL} linux-image-amd64 linux-headers-amd64; rm /etc/dkms/no-autoinstall")
    good.reboot(whole=False)
    assert running(good).startswith("6.12.")
    before = good.packages()
    verify(good).refused("no nvidia module")
    with cut_off(good):
        shown = good.play(ROLLBACK, "--check", "--diff").passed()
        assert f"+next boot: {kernel}" in shown.output and running(good).startswith("6.12.")
        assert good.packages() == before
        assert not good.sh("grep -r saved /etc/default/grub.d/", check=False).stdout
    go_back(good, gpu_node_rollback_reason="kernel 6.12 has no module")
    assert running(good) == kernel and good.out("dpkg --audit") == ""
    record = json.loads(good.out("cat /var/lib/gpu_node/rollback.json"))
    assert record["attempted"]["kernel"].startswith("6.12.") and record["active"] == {
        "driver": DRIVER,
        "kernel": kernel,
    }
    assert record["reason"] == "kernel 6.12 has no module"
    good.reboot()
    assert running(good) == kernel


def test_drv_06_a_replaced_driver_comes_back_without_a_reboot(good):
    replace_driver(good)
    booted = good.out("cat /proc/sys/kernel/random/boot_id")
    verify(good).refused(OTHER)
    go_back(good)
    # The good module was loaded all the time, so that nothing had to be interrupted.
    assert good.out("cat /proc/sys/kernel/random/boot_id") == booted
    assert set(good.out("apt-mark showhold").split()) >= {"libnvidia-ml1", "nvidia-smi"}


def test_drv_07_another_driver_that_is_loaded_needs_a_reboot(good):
    replace_driver(good)
    good.reboot()
    assert good.out("cat /sys/module/nvidia/version") == OTHER
    go_back(good)
    assert good.out("cat /sys/module/nvidia/version") == DRIVER


def test_krn_03_a_kernel_that_is_half_configured_for_lack_of_a_module_is_finished(good):
    kernel = running(good)
    # With its headers there, DKMS tries, fails, and takes the kernel's own package scripts along.
    headers = good.out("dpkg-query -W -f '${Package}\\n' 'linux-headers-6.12*-amd64'")
    assert good.sh(f"{NEW_KERNEL} --reinstall {headers}", check=False).returncode != 0
    assert good.out("dpkg --audit")
    verify(good).refused("linux-headers-6.12")
    go_back(good)
    assert running(good) == kernel and good.out("dpkg --audit") == ""


def test_krn_03_unpacked_packages_are_finished(good):
    good.sh(f"dpkg --unpack {RECORD}/current/debs/libnvidia-ml1_*.deb {RECORD}/current/debs/nvidia-smi_*.deb")
    assert good.out("dpkg --audit")
    verify(good).refused("unpacked")
    go_back(good)
    assert good.out("dpkg --audit") == ""


def test_a_removed_module_comes_back_compiled(good):
    kernel = running(good)
    good.sh("dkms remove nvidia-current-open/" + DRIVER + " -k " + kernel)
    verify(good).refused("no nvidia module")
    go_back(good)
    assert "installed" in good.out(f"dkms status -k {kernel}")


def test_drv_11_processes_on_the_gpus_block_a_reboot(good):
    replace_driver(good)
    good.reboot()
    before = good.packages()
    with gpu_holder(good) as shown:
        good.play(ROLLBACK).refused("gpu_node_allow_drain", shown)
    assert good.packages() == before
    go_back(good)


def test_a_damaged_record_is_refused_before_anything_changes(good):
    replace_driver(good)
    before = good.packages()
    good.sh(f"cd {RECORD}/current/debs && cp nvidia-smi_*.deb /root/ && printf x >> nvidia-smi_*.deb")
    good.play(ROLLBACK).refused("nvidia-smi_", "bytes instead of")
    assert good.packages() == before
    good.sh(f"mv /root/nvidia-smi_*.deb {RECORD}/current/debs/")
    go_back(good)


def test_a_node_without_a_record_says_so(good):
    good.sh(f"mv {RECORD} {RECORD}.away")
    good.play(ROLLBACK).refused("no last known good state", "playbooks/verify.yml")
    good.sh(f"rm -rf {RECORD}; mv {RECORD}.away {RECORD}")


def test_a_rollback_that_a_power_cut_ended_is_run_again(good, tmp_path):
    """The machine dies while packages are put back, and once more while the module is."""
    for moment in ("test -e /var/lib/gpu_node/transaction.json", "test -e /etc/dkms/no-autoinstall"):
        replace_driver(good)
        log = tmp_path / "play.log"
        play = good.start_play(ROLLBACK, log)
        wait_until(
            moment,
            lambda moment=moment: good.sh(moment, check=False).returncode == 0,
            lambda play=play, log=log: log.read_text()[-3000:] if play.poll() is not None else "",
        )
        subprocess.run(["docker", "kill", good.name], check=True, capture_output=True)
        play.wait()
        good.reboot(whole=False)
        go_back(good)
        assert not good.sh("ls /etc/dkms/no-autoinstall", check=False).stdout
        assert Path(log).exists()


def test_krn_02_the_modules_of_every_kernel_that_had_one_come_back(good):
    """Packages that are put back throw away what DKMS has for every kernel, not for the running one alone."""
    kernel, other = running(good), good.offers().stable.release
    if other == kernel:
        pytest.skip("Debian offers one kernel of this series today")
    good.sh(f"DEBIAN_FRONTEND=noninteractive apt-get install -y linux-image-{other} linux-headers-{other}")
    verify(good).passed()
    assert sorted(json.loads(good.out(f"cat {RECORD}/current/manifest.json"))["kernels"]) == sorted([kernel, other])
    replace_driver(good)
    go_back(good)
    for release in (kernel, other):
        assert f"{DRIVER}, {release}" in good.out("dkms status")
        assert good.out(f"modinfo -k {release} -F version nvidia-current-open") == DRIVER
