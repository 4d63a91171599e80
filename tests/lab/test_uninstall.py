"""uninstall.yml leaves the files and packages of a node as they were; drift.yml reads and changes nothing."""

from __future__ import annotations

import json

from tests.lab.conftest import gpu_holder

NODE_UP = ["--suite", "bookworm", "--gpus", "2"]
DRIVER = "535.183.06"
#: What Debian's own tools write on their own account: caches, logs, random seeds, what udev and systemd generate.
NOT_OURS = ("/etc/ld.so.cache", "/etc/machine-id", "/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/etc/mtab")
#: Accounts, and tools' copies of them. That of a package's daemon outlives the package on Debian, lest its number be
#: given to somebody else while files of it are left; all others are compared line by line.
ACCOUNTS = tuple(f"/etc/{name}{end}" for name in ("passwd", "group", "shadow", "gshadow") for end in ("", "-"))
DAEMON = "nvpd"


def files(node) -> dict[str, str]:
    """Every file and link below /etc and /var/lib/gpu_node, with its content's checksum or its target.

    What the health checks' timer writes at any moment counts with its folder only.
    """
    places = node.out("ls -d /etc /var/lib/gpu_node 2>/dev/null || true").replace("\n", " ")
    text = node.out(
        f"find {places} -type f ! -path '/var/lib/gpu_node/health/*' -exec sha256sum {{}} +; "
        f"find {places} -type l -printf '%l  %p\\n'; find {places} -type d -printf 'd  %p\\n'"
    )
    found = dict(reversed(line.split("  ", 1)) for line in text.splitlines())
    return {path: what for path, what in found.items() if path not in (*NOT_OURS, *ACCOUNTS)}


def accounts(node) -> list[str]:
    """Every account and group but the daemon's own."""
    lines = node.out("cat /etc/passwd /etc/group /etc/shadow /etc/gshadow").splitlines()
    return [line for line in lines if line.split(":")[0] != DAEMON]


def test_drv_09_uninstall_leaves_the_node_as_it_was(lab_node, tmp_path):
    node = lab_node
    node.sh("apt-get update -qq && apt-get install -y -qq make mokutil && apt-mark hold mokutil")
    node.sh("echo '/dev/sdz none swap sw 0 0' >> /etc/fstab; mkdir -p /opt/cuda-12.4")
    node.sh("echo '# mine' > /etc/modprobe.d/nvidia-mine.conf")
    before, packages, people = files(node), node.packages(), accounts(node)
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
    with gpu_holder(node) as shown:
        node.play("playbooks/uninstall.yml").refused(shown)
    assert (files(node), node.packages()) == state

    node.play("playbooks/uninstall.yml").passed()
    assert node.packages() == packages
    after = files(node)
    differ = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    assert not differ, "\n".join(f"{path}: {before.get(path)} before, {after.get(path)} after" for path in differ)
    assert accounts(node) == people
    assert node.play("playbooks/uninstall.yml").passed().changed(node.name) == 0
    assert node.out("test -d /opt/cuda-12.4 && cat /etc/modprobe.d/nvidia-mine.conf") == "# mine"
