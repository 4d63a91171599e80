"""Ubuntu's names on stand-ins: prebuilt modules first, DKMS for the rest, firmware with the version in its name."""

from __future__ import annotations

import json


def record(host):
    return json.loads(host.file("/var/lib/gpu_node/driver.json").content_string)


def jammy(host):
    return "22.04" in host.file("/etc/os-release").content_string


def test_server_branch_and_open_flavour(host):
    found = record(host)
    branch = "535" if jammy(host) else "580"
    assert found["packaging"] == "ubuntu" and found["flavour"] == "open"
    assert f"nvidia-headless-no-dkms-{branch}-server-open" in found["packages"]
    assert f"nvidia-utils-{branch}-server" in found["packages"]
    assert f"nvidia-firmware-{branch}-server-{found['version']}" in found["packages"]


def test_drv_02_an_allowed_redirect_is_taken_and_recorded_as_what_it_is(host):
    """The refusal without the switch is in the scenario's preparation."""
    if jammy(host):
        assert record(host)["version"] == "535.288.01"
        return
    found = record(host)
    assert found["version"] == "580.126.20"
    assert {version.split("-")[0] for version in found["packages"].values()} == {"580.126.20"}
    assert not [name for name in found["packages"] if "-570-" in name]


def test_prebuilt_modules_are_preferred(host):
    found = record(host)
    kernel = host.check_output("uname -r")
    if jammy(host):
        assert f"linux-modules-nvidia-535-server-open-{kernel}" in found["packages"]
        assert not host.package("dkms").is_installed
    else:
        assert "nvidia-dkms-580-server-open" in found["packages"]
        assert f"nvidia/{found['version']}" in host.check_output("dkms status")


def test_held_as_a_whole(host):
    found = record(host)
    assert set(found["packages"]) <= set(host.check_output("apt-mark showhold").split())


def test_krn_07_the_kernels_are_the_ones_from_before(host):
    assert host.check_output("ls /boot/vmlinuz-*").split() == ["/boot/vmlinuz-" + host.check_output("uname -r")]
