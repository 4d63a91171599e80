"""Debian 13's own driver 550.163.01 and the kernel that backports offer: a real build that truly fails.

Some 300 MB to download and a real driver to compile twice, so not part of `make test`. GPU_NODE_REAL_MIRROR and
GPU_NODE_REAL_SECURITY name the mirrors; without them the controller's own apt sources do.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.lab.conftest import running_node

DRIVER = "550.163.01"
#: The series that the driver cannot be compiled for.
SERIES = "7."
SOURCES = """Types: deb
URIs: {mirror}
Suites: trixie trixie-updates trixie-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: {security}
Suites: trixie-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
WISHES = {
    "nvidia_driver_version": DRIVER,
    "nvidia_driver_flavour": "proprietary",
    "preflight_expect_gpus": False,
}


def mirrors() -> dict[str, str]:
    """Return the addresses of a Debian mirror and of its security archive."""
    own = Path("/etc/apt/sources.list.d/debian.sources")
    found = re.findall(r"(?m)^URIs:\s*(\S+)", own.read_text()) if own.exists() else []
    wanted = {"mirror": "GPU_NODE_REAL_MIRROR", "security": "GPU_NODE_REAL_SECURITY"}
    addresses = {}
    for name, variable in wanted.items():
        listed = [uri for uri in found if ("security" in uri) == (name == "security")]
        addresses[name] = os.environ.get(variable) or next(iter(listed), "")
    missing = [wanted[name] for name, uri in addresses.items() if not uri]
    assert not missing, f"set {', '.join(missing)}: this machine's apt sources name no mirror"
    return addresses


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node with Debian's own repositories; a stand-in's cards would need a stand-in's library, so it has none."""
    with running_node(tmp_path_factory.mktemp("lab"), "gpu-test-real", "--suite", "trixie", "--gpus", "0") as node:
        text = SOURCES.format(**mirrors())
        node.sh("cd /etc/apt/sources.list.d && mv debian.sources debian.sources.disabled")
        node.sh(f"cat >/etc/apt/sources.list.d/real.sources <<'END'\n{text}END")
        node.sh("apt-get -q update")
        node.play("site.yml", **WISHES).passed()
        node.reboot()
        node.play("playbooks/verify.yml", **WISHES).passed()
        yield node


def test_krn_03_a_kernel_that_the_driver_does_not_compile_for_is_given_up(node):
    kernel = node.out("uname -r")
    assert kernel.startswith("6.12.")
    assert f"nvidia-current/{DRIVER}, {kernel}, x86_64: installed" in node.out("dkms status")
    depends = node.out("apt-cache show linux-image-amd64/trixie-backports | sed -n 's/^Depends: //p'")
    offered = depends.split()[0].removeprefix("linux-image-")
    assert offered.startswith(SERIES)
    before = node.packages(), node.out("apt-mark showhold"), node.out("ls /boot/vmlinuz-* /lib/modules")
    play = node.play("playbooks/kernel_upgrade.yml", kernel_upgrade_release=offered, **WISHES)
    play.refused(f"kernel {offered} was given up", f"driver {DRIVER} on kernel {kernel}", "make.log")
    assert node.out("dpkg --audit") == "" and node.out("uname -r") == kernel
    assert (node.packages(), node.out("apt-mark showhold"), node.out("ls /boot/vmlinuz-* /lib/modules")) == before
    assert kernel in node.out("grub-editenv - list | grep ^saved_entry=")
    good = json.loads(node.out("cat /var/lib/gpu_node/last_known_good/current/manifest.json"))
    assert (good["kernel"], good["driver"]["version"]) == (kernel, DRIVER)
    node.reboot()
    assert node.out("uname -r") == kernel
    node.play("playbooks/verify.yml", **WISHES).passed()
