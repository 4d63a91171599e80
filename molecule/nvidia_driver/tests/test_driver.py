"""What the role nvidia_driver leaves on a node, looked at without the role's own eyes."""

from __future__ import annotations

import json
import re

import pytest

FILES = [
    "/etc/apt/sources.list.d/gpu-node-nvidia.sources",
    "/etc/apt/preferences.d/gpu-node-nvidia.pref",
    "/etc/apt/apt.conf.d/52gpu-node-nvidia",
    "/etc/modprobe.d/gpu-node-nouveau.conf",
]


def record(host):
    return json.loads(host.file("/var/lib/gpu_node/driver.json").content_string)


def members(host):
    found = record(host)
    return {**found["packages"], **found["independent"]}


def wanted(host):
    return "550.163.01" if host.system_info.codename == "trixie" else "535.261.03"


@pytest.mark.parametrize("path", FILES)
def test_files_say_whose_they_are(host, path):
    file = host.file(path)
    text = file.content_string.splitlines()[0]
    assert text.endswith("Managed by the aiinfra.gpu_node collection (role nvidia_driver): changes here are lost.")
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)


def test_drv_03_every_package_is_at_its_version_and_held(host):
    found = record(host)
    assert found["version"] == wanted(host) and found["flavour"] == "open"
    assert {version.split("-")[0] for version in found["packages"].values()} == {wanted(host)}
    held = host.check_output("apt-mark showhold").split()
    for name, version in members(host).items():
        assert host.package(name).version == version
        assert name in held
    if host.system_info.codename == "trixie":
        assert found["independent"]["nvidia-modprobe"].startswith("570.133.07")
    else:
        assert found["independent"]["nvidia-modprobe"].startswith("535.161.07")
        assert "libnvidia-encode1" in found["packages"]


def test_drv_06_a_full_upgrade_moves_nothing_of_it_even_without_holds(host):
    names = members(host)
    host.run_expect([0], "apt-mark unhold {}".format(" ".join(names)))
    try:
        moved = re.findall(r"^Inst (\S+)", host.check_output("apt-get -s dist-upgrade"), re.MULTILINE)
        assert not set(moved) & set(names)
        for name, version in names.items():
            assert f"Candidate: {version}" in host.check_output(f"apt-cache policy {name}")
    finally:
        host.run_expect([0], "apt-mark hold {}".format(" ".join(names)))


def test_every_bootable_kernel_has_the_module_in_its_index(host):
    kernels = [name.split("vmlinuz-", 1)[1] for name in host.check_output("ls -d /boot/vmlinuz-*").split()]
    assert kernels
    for kernel in kernels:
        index = host.file(f"/lib/modules/{kernel}/modules.dep").content_string
        assert "nvidia" in index
        path = re.search(r"^(\S*/nvidia(?:-current(?:-open)?)?\.ko\S*):", index, re.MULTILINE).group(1)
        assert host.check_output(f"modinfo -F version /lib/modules/{kernel}/{path}") == wanted(host)


def test_krn_04_nouveau_is_blacklisted_in_every_image(host):
    assert "blacklist nouveau" in host.file(FILES[3]).content_string
    for image in host.check_output("ls /boot/initrd.img-*").split():
        listing = host.check_output(f"lsinitramfs {image}")
        assert "etc/modprobe.d/gpu-node-nouveau.conf" in listing
        assert "nouveau.ko" not in listing


def test_the_package_database_is_in_order_and_no_mark_is_left(host):
    assert host.check_output("dpkg --audit") == ""
    assert not host.file("/var/lib/gpu_node/transaction.json").exists
