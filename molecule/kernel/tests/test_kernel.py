"""What the role kernel leaves on a node, looked at without the role's own eyes."""

from __future__ import annotations

import json

import pytest

METAS = {"linux-image-amd64", "linux-headers-amd64"}


@pytest.fixture
def policy(host):
    return "hold" if "trixie" in host.run("cat /etc/os-release").stdout else "gate"


def held(host):
    return set(host.run("apt-mark showhold").stdout.split())


def kernels(host):
    return [name for name in host.run("ls /lib/modules").stdout.split() if host.file(f"/boot/vmlinuz-{name}").exists]


def test_every_bootable_kernel_has_headers(host):
    assert kernels(host)
    for release in kernels(host):
        assert host.file(f"/lib/modules/{release}/build/include").exists, release
    assert host.package("linux-headers-amd64").is_installed


def test_no_kernel_came_or_went(host):
    # One kernel is in the image; dpkg also knows names that packages merely provide, which have no version.
    installed = host.run("dpkg-query -W -f '${Package} ${Version}\\n' 'linux-image-[0-9]*'").stdout.splitlines()
    images = [line.split()[0] for line in installed if len(line.split()) == 2]
    assert images == [f"linux-image-{release}" for release in kernels(host)]
    assert len(images) == 1


def test_krn_06_the_hold_is_opt_in_dated_and_says_what_it_holds(host, policy):
    record = host.file("/var/lib/gpu_node/kernel_hold.json")
    if policy == "gate":
        assert not held(host) & METAS
        assert not record.exists
        return
    assert held(host) >= METAS
    content = json.loads(record.content_string)
    assert set(content["held"]) >= METAS
    assert content["since"].endswith("Z")
    assert "skipped" in content
