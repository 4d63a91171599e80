"""kernel_upgrade.yml on a machine that really boots: it cannot take the GPUs away; what succeeds is the new default."""

from __future__ import annotations

import json

from lab_conftest import wait_until

UPGRADE = "playbooks/kernel_upgrade.yml"
#: Where the power goes: a shell test on the machine that is true at that moment.
POINTS = {
    "while the kernel is unpacked": "grep -q ' status half-installed linux-image-6.12' /var/log/dpkg.log",
    "while the early boot image is written": "pgrep -f '[m]kinitramfs'",
}
#: Seconds that a state may take to appear; an emulated machine needs ten times as long as a container.
PATIENCE = 2400


def newer(machine) -> str:
    """Return the release that backports offer: no driver before 550 can be built for it."""
    machine.sh("apt-get -qq update")
    offered = machine.out("apt-cache show linux-image-amd64/bookworm-backports | sed -n 's/^Depends: //p'")
    return offered.split()[0].removeprefix("linux-image-")


def variables(machine, version: str, **more) -> dict[str, object]:
    """Return what every run on the machine is given."""
    return {"nvidia_driver_version": version, "nvidia_driver_flavour": machine.FLAVOUR, **more}


def state(machine) -> tuple[str, ...]:
    """Return what a kernel upgrade that failed has to leave as it was."""
    return machine.packages(), machine.out("apt-mark showhold"), machine.out("ls /boot/vmlinuz-* /lib/modules")


def serves(machine, version: str) -> bool:
    """The driver has the cards, and dpkg is in order."""
    return (
        machine.out("cat /sys/module/nvidia/version") == version
        and machine.out("ls /sys/bus/pci/drivers/nvidia").count("0000:") == 2
        and machine.out("dpkg --audit") == ""
    )


def test_krn_03_a_planned_kernel_that_the_driver_cannot_be_built_for_is_given_up(good):
    kernel, before, boot = good.kernel(), state(good), good.boot_id()
    wishes = variables(good, good.OLD, kernel_upgrade_release=newer(good))
    good.play(UPGRADE, **wishes).refused("was given up", f"driver {good.OLD} on kernel {kernel}")
    assert serves(good, good.OLD) and good.kernel() == kernel and state(good) == before
    # It was seen before a reboot that nothing was to be had.
    assert good.boot_id() == boot
    good.play(UPGRADE, **wishes).refused("was tried on this node and given up", "gpu_node_retry")


def test_krn_01_power_cuts_and_then_the_new_kernel_is_the_default(good_new, tmp_path):
    machine, kernel, release = good_new, good_new.kernel(), newer(good_new)
    wishes = variables(machine, machine.NEW, kernel_upgrade_release=release)
    for number, (point, reached) in enumerate(POINTS.items()):
        machine.sh("truncate -s 0 /var/log/dpkg.log")
        log = tmp_path / f"{number}.log"
        process = machine.start_play(UPGRADE, log, **wishes, gpu_node_retry=True)
        wait_until(
            point,
            lambda reached=reached: machine.sh(reached, check=False).returncode == 0,
            lambda process=process, log=log: process.poll() is not None and log.read_text()[-3000:],
            PATIENCE,
        )
        machine.cut_power(process)
        assert machine.kernel() == kernel, f"{point}: a kernel that was not tried boots by itself"
        assert machine.out("cat /sys/module/nvidia/version") == machine.NEW
    machine.play(UPGRADE, **wishes, gpu_node_retry=True).passed()
    assert machine.kernel() == release and serves(machine, machine.NEW)
    record = json.loads(machine.out("cat /var/lib/gpu_node/last_known_good/current/manifest.json"))
    assert (record["kernel"], record["driver"]["version"]) == (release, machine.NEW)
    machine.power_cut()
    assert machine.kernel() == release and serves(machine, machine.NEW)
