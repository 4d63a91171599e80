"""Persistence as the driver reports it, and a unit that never fails."""

from __future__ import annotations

import pytest

UNIT = "nvidia-persistenced.service"


@pytest.fixture
def gpus(host):
    return len(host.run("cat /sys/bus/pci/devices/*/class").stdout.split())


def test_svc_01_the_unit_is_unmasked_and_enabled(host):
    assert host.run(f"systemctl is-enabled {UNIT}").stdout.strip() == "enabled"


def test_svc_01_persistence_is_on_for_every_gpu(host, gpus):
    if not gpus:
        pytest.skip("this machine has no GPU: see the next test")
    assert host.run(f"systemctl is-active {UNIT}").stdout.strip() == "active"
    modes = host.run("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").stdout.split()
    assert modes == ["Enabled"] * gpus


def test_svc_08_without_a_gpu_the_unit_is_enabled_and_not_failed(host, gpus):
    if gpus:
        pytest.skip("this machine has GPUs: see the test above")
    assert host.run(f"systemctl is-active {UNIT}").stdout.strip() == "inactive"
    host.run_expect([0, 1], f"systemctl start {UNIT}")
    assert host.run(f"systemctl is-active {UNIT}").stdout.strip() == "inactive"
    assert host.run("systemctl is-system-running").stdout.strip() == "running"
