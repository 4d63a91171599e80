"""uninstall.yml leaves the files and packages of a node as they were; drift.yml reads and changes nothing."""

from __future__ import annotations

import json

NODE_UP = ["--suite", "bookworm", "--gpus", "2"]
DRIVER = "535.183.06"
#: What Debian's own tools write on their own account: caches, logs, random seeds, what udev and systemd generate.
NOT_OURS = ("/etc/ld.so.cache", "/etc/machine-id", "/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/etc/mtab")


def files(node) -> dict[str, str]:
    """Every file and link below /etc and /var/lib/gpu_node, with its content's checksum or its target.

    What the health checks' timer writes at any moment counts with its folder only.
    """
    text = node.out(
        "find /etc /var/lib/gpu_node -type f ! -path '/var/lib/gpu_node/health/*' -exec sha256sum {} + 2>/dev/null; "
        "find /etc /var/lib/gpu_node -type l -printf '%l  %p\\n' 2>/dev/null; "
        "find /etc /var/lib/gpu_node -type d -printf 'd  %p\\n' 2>/dev/null"
    )
    found = dict(reversed(line.split("  ", 1)) for line in text.splitlines())
    return {path: what for path, what in found.items() if path not in NOT_OURS}


def test_drv_09_uninstall_leaves_the_node_as_it_was(lab_node, tmp_path):
    node = lab_node
    node.sh("apt-get update -qq && apt-get install -y -qq make mokutil && apt-mark hold mokutil")
    node.sh("echo '/dev/sdz none swap sw 0 0' >> /etc/fstab; mkdir -p /opt/cuda-12.4")
    node.sh("echo '# mine' > /etc/modprobe.d/nvidia-mine.conf")
    before, packages = files(node), node.packages()
    node.play("site.yml", nvidia_driver_version=DRIVER).passed()
    node.reboot()
    node.play("playbooks/verify.yml", nvidia_driver_version=DRIVER).passed()
    assert node.packages() != packages

    # Read only, whatever there is to tell.
    node.sh("apt-mark unhold libnvidia-ml1")
    state = files(node), node.packages()
    wishes = {"nvidia_driver_version": DRIVER, "gpu_node_report_path": str(tmp_path)}
    drift = node.play("playbooks/drift.yml", **wishes).passed()
    assert "libnvidia-ml1" in drift.output and (files(node), node.packages()) == state
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    checks = {one["check"]: one["status"] for host in found["nodes"] for one in host["findings"]}
    assert checks["drift.last_known_good"] == "ok" and checks["drift.boot_default"] == "ok"
    node.play("playbooks/drift.yml", **wishes, gpu_node_enforce=True).refused("libnvidia-ml1")

    foreseen = node.play("playbooks/uninstall.yml", "--check", "--diff", nvidia_driver_version=DRIVER).passed()
    assert "nvidia-smi" in foreseen.output and (files(node), node.packages()) == state
    pid = node.out("(exec 9</dev/nvidia0; exec sleep infinity) >/dev/null 2>&1 & echo $!")
    node.play("playbooks/uninstall.yml").refused(pid)
    assert (files(node), node.packages()) == state
    node.sh(f"kill {pid}")

    node.play("playbooks/uninstall.yml").passed()
    assert node.packages() == packages
    after = files(node)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == set()
    assert node.play("playbooks/uninstall.yml").passed().changed(node.name) == 0
    assert node.out("test -d /opt/cuda-12.4 && cat /etc/modprobe.d/nvidia-mine.conf") == "# mine"
