"""A run that is killed at any moment can be run again: site.yml then converges.

Each run below starts on what the killed one before left, so that every kill lands on a node that is already hurt; the
last run must bring all to the wanted state, and the one after it must change nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.lab.conftest import wait_until

#: Where a run is killed: a shell test on the node that is true at that moment, and what dies.
POINTS = {
    "while the node is tuned": ("test -e /etc/sysctl.d/90-gpu-node.conf", "ansible"),
    "while build tools are unpacked": ("grep -q ' status half-installed ' /var/log/dpkg.log", "node"),
    "while the driver is unpacked": (
        "grep -Eq ' status (half-installed|unpacked) (libcuda1|nvidia-kernel-dkms)' /var/log/dpkg.log",
        "ansible and its children",
    ),
    "while DKMS compiles the module": ("pgrep -f '/[d]kms.* (build|autoinstall|install)'", "node"),
    "while the initramfs is written": ("pgrep -f '[m]kinitramfs'", "node"),
}


def kill(what, node, process):
    """Kill the run: the controller's process group, the node, or the controller and what it runs on the node."""
    if what == "node":
        subprocess.run(["docker", "kill", node.name], check=True, stdout=subprocess.DEVNULL)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if what == "ansible and its children":
        node.sh("pkill -KILL -x apt-get; pkill -KILL -x dpkg; true")
    if what == "node":
        subprocess.run(["docker", "start", node.name], check=True, stdout=subprocess.DEVNULL)
        # Degraded will do: half an installation may well leave a unit that fails.
        state = "systemctl is-system-running --wait"
        wait_until("systemd", lambda: node.sh(state, check=False).stdout.strip() in ("running", "degraded"))


def test_killed_at_five_points_and_run_again(lab_node, tmp_path):
    for number, (point, (reached, what)) in enumerate(POINTS.items()):
        log = tmp_path / f"run-{number}.log"
        process = lab_node.start_play("site.yml", log)

        def ended(process=process, log=log):
            return process.poll() is not None and f"the run ended first:\n{log.read_text()[-4000:]}"

        wait_until(point, lambda reached=reached: lab_node.sh(reached, check=False).returncode == 0, ended)
        kill(what, lab_node, process)

    lab_node.play("site.yml").passed()
    assert lab_node.out("dpkg --audit") == ""
    assert lab_node.sh("test -e /var/lib/gpu_node/transaction.json", check=False).returncode != 0
    again = lab_node.play("site.yml").passed()
    assert again.changed(lab_node.name) == 0, again.output[-4000:]


if __name__ == "__main__":
    pytest.main([__file__])
