"""The fabric manager runs where NVSwitches are, at the driver's version, and is out of the way elsewhere."""

from __future__ import annotations

import json

import pytest

UNIT = "nvidia-fabricmanager.service"
PACKAGE = "nvidia-fabricmanager-535"


@pytest.fixture
def switches(host):
    return host.run("cat /sys/bus/pci/devices/*/class").stdout.split().count("0x068000")


def test_svc_03_same_version_in_the_same_set_and_held(host, switches):
    if not switches:
        pytest.skip("this machine has no driver, and a fabric manager that nobody asked for")
    record = json.loads(host.file("/var/lib/gpu_node/driver.json").content_string)
    assert host.package(PACKAGE).version == record["packages"][PACKAGE]
    assert record["packages"][PACKAGE].startswith(record["version"] + "-")
    assert PACKAGE in host.run("apt-mark showhold").stdout.split()


def test_svc_04_with_switches_it_is_enabled_and_runs(host, switches):
    if not switches:
        pytest.skip("this machine has no NVSwitch: see the next test")
    assert host.run(f"systemctl is-enabled {UNIT}").stdout.strip() == "enabled"
    assert host.run(f"systemctl is-active {UNIT}").stdout.strip() == "active"


def test_svc_04_without_switches_it_is_disabled_and_not_failed(host, switches):
    if switches:
        pytest.skip("this machine has NVSwitches: see the test above")
    assert host.run(f"systemctl is-enabled {UNIT}").stdout.strip() == "disabled"
    assert host.run(f"systemctl is-active {UNIT}").stdout.strip() == "inactive"
    assert host.run("systemctl is-system-running").stdout.strip() == "running"


def test_only_given_settings_differ_from_the_packages(host, switches):
    lines = host.file("/usr/share/nvidia/nvswitch/fabricmanager.cfg").content_string.splitlines()
    assert f"LOG_LEVEL={3 if switches else 4}" in lines
    assert "FABRIC_MODE=0" in lines and len([line for line in lines if line.startswith("LOG_LEVEL")]) == 1
