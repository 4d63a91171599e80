"""site.yml on a machine that really boots: drivers bind, sysctl is applied, a reboot changes nothing."""

from __future__ import annotations

import json


def test_the_bare_machine_believes_in_its_cards(bare):
    shown = bare.out("lspci -Dnn -d 10de:").splitlines()
    assert [line.split()[0] for line in shown] == ["0000:17:00.0", "0000:2a:00.0"]
    assert all("[0302]" in line and "[10de:2330]" in line for line in shown)
    assert bare.kernel().startswith("6.1.")
    assert bare.sh("test -e /sys/module/nvidia", check=False).returncode != 0
    # GRUB started this kernel, not QEMU: what it says of its image is in the command line.
    assert bare.out("cat /proc/cmdline").startswith("BOOT_IMAGE=/boot/vmlinuz-6.1.")


def test_site_takes_it_to_a_node_that_serves(bare):
    bare.converge()
    assert bare.out("cat /sys/module/nvidia/version") == bare.OLD
    assert bare.OLD in bare.out("cat /proc/driver/nvidia/version")
    drivers = bare.out("readlink -f /sys/bus/pci/devices/0000:17:00.0/driver /sys/bus/pci/devices/0000:2a:00.0/driver")
    assert {line.rpartition("/")[2] for line in drivers.splitlines()} == {"nvidia"}
    assert len(bare.out("nvidia-smi -L").splitlines()) == 2
    record = json.loads(bare.out("cat /var/lib/gpu_node/last_known_good/current/manifest.json"))
    assert record["kernel"] == bare.kernel()


def test_live_values_are_those_of_the_profile(bare):
    settings = bare.out("grep -hv '^#' /etc/sysctl.d/90-gpu-node.conf").splitlines()
    wanted = dict(line.split(" = ", 1) for line in settings if " = " in line)
    live = bare.out("sysctl " + " ".join(wanted))
    assert dict(line.split(" = ", 1) for line in live.splitlines()) == wanted
    assert bare.out("wc -l < /proc/swaps") == "1"


def test_after_a_reboot_everything_is_as_it_was(bare):
    bare.reboot()
    bare.verify().passed()
    assert "nouveau" not in bare.out("cut -d' ' -f1 /proc/modules").split()
