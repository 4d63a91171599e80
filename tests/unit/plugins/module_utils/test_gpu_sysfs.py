"""What the kernel shows of the GPUs, from trees as it writes them."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_sysfs as sysfs

from lab import nvml_build

BASE = "sys/devices/pci0000:29/0000:29:01.0/0000:2a:00.0"


@pytest.fixture
def tree(tmp_path):
    """Two cards below a port each, and a function to change a file of the second one, or of its port."""
    state = tmp_path / "state"
    nvml_build.simgpu(state, "init", "--gpus", "2", "--model", "h100-sxm")
    nvml_build.simgpu(state, "set", "gpu=1", "pcie_width=8", "pcie_correctable=5")
    nvml_build.simgpu(state, "sysfs", "--root", str(tmp_path), "--driver", "nvidia")

    def write(name, text, port=False):
        folder = tmp_path / BASE
        ((folder.parent if port else folder) / name).write_text(text)

    return tmp_path, write


def second(root):
    return sysfs.pci_gpus(str(root))[1]


def test_a_card_with_its_link_errors_and_place(tree):
    root, write = tree
    write("numa_node", "1\n")
    first, other = sysfs.pci_gpus(str(root))
    assert (first.address, first.device_id, first.subsystem) == ("0000:17:00.0", "2330", "10de:16c1")
    assert (first.link_width, first.max_link_width, first.port_max_width) == (16, 16, 16)
    assert (first.link_speed_gts, first.max_link_speed_gts) == (32.0, 32.0)
    assert (first.aer, first.port_aer) == ({"correctable": 0, "nonfatal": 0, "fatal": 0}, None)
    assert (other.link_width, other.numa_node, other.aer["correctable"]) == (8, 1, 5)


def test_the_port_has_counters_of_its_own(tree):
    root, write = tree
    write("aer_dev_nonfatal", "Undefined 1\nTOTAL_ERR_NONFATAL 1\n", port=True)
    write("max_link_width", "8\n", port=True)
    found = second(root)
    assert (found.port_aer, found.port_max_width) == ({"nonfatal": 1}, 8)
    assert found.aer["nonfatal"] == 0


@pytest.mark.parametrize("text", ["0\n", "63\n", "255\n", "", "x\n"])
def test_a_device_that_is_gone_has_no_width(tree, text):
    root, write = tree
    write("current_link_width", text)
    assert second(root).link_width is None


@pytest.mark.parametrize(("text", "speed"), [("2.5 GT/s PCIe\n", 2.5), ("16 GT/s\n", 16.0), ("Unknown\n", None)])
def test_speeds(tree, text, speed):
    root, write = tree
    write("current_link_speed", text)
    assert second(root).link_speed_gts == speed


def test_a_kernel_without_error_reporting_and_counters_without_a_total(tree):
    root, write = tree
    write("aer_dev_fatal", "Undefined 2\nDLP 1\n")
    assert second(root).aer["fatal"] == 3
    write("aer_dev_fatal", "TOTAL_ERR_FATAL many\n")
    assert "fatal" not in second(root).aer
    for kind in ("fatal", "nonfatal", "correctable"):
        (root / BASE / f"aer_dev_{kind}").unlink()
    assert second(root).aer is None


def test_a_card_on_a_root_bus_has_no_port(tmp_path):
    place = tmp_path / "sys/devices/pci0000:00/0000:00:05.0"
    place.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
        (place / name).write_text(text + "\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    os.symlink("../../../devices/pci0000:00/0000:00:05.0", tmp_path / "sys/bus/pci/devices/0000:00:05.0")
    (found,) = sysfs.pci_gpus(str(tmp_path))
    assert (found.port_max_width, found.port_aer, found.numa_node) == (None, None, None)


def test_device_nodes_and_iommu(tmp_path):
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "nvme0", "nvidiafb"):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).write_text("")
    found = sysfs.device_nodes(str(tmp_path))
    assert set(found) == {
        "/dev/nvidia0",
        "/dev/nvidia12",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-caps/nvidia-cap1",
    }
    assert sysfs.iommu(str(tmp_path)) is None
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert sysfs.iommu(str(tmp_path)) is False
    (tmp_path / "sys/kernel/iommu_groups/0").mkdir()
    assert sysfs.iommu(str(tmp_path)) is True
