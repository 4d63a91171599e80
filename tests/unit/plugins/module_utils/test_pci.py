"""Devices from a sysfs tree."""

from __future__ import annotations

import os

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _pci


def add(root, address, vendor, device, class_code, driver=None, subsystem=None):
    base = root / "sys/bus/pci/devices" / address
    base.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("class", class_code)):
        (base / name).write_text(f"0x{value}\n")
    if subsystem:
        (base / "subsystem_vendor").write_text(f"0x{subsystem[0]}\n")
        (base / "subsystem_device").write_text(f"0x{subsystem[1]}\n")
    if driver:
        os.symlink("../../../bus/pci/drivers/" + driver, str(base / "driver"))


def test_only_display_controllers_of_nvidia_are_gpus(tmp_path):
    add(tmp_path, "0000:00:1f.6", "8086", "15fa", "020000", "e1000e")
    add(tmp_path, "0000:02:00.0", "1a03", "2000", "030000", "ast")
    add(tmp_path, "0000:17:00.0", "10DE", "2330", "030200", "nvidia", ("10de", "16c1"))
    add(tmp_path, "0000:65:00.0", "10de", "1eb8", "030200")
    add(tmp_path, "0000:66:00.0", "10de", "2204", "030000", "nouveau")
    add(tmp_path, "0000:66:00.1", "10de", "1aef", "040300", "snd_hda_intel")
    add(tmp_path, "0000:c0:00.0", "10de", "22a3", "068000", "nvidia-nvswitch")
    found = _pci.gpus(str(tmp_path))
    assert [(gpu.address, gpu.device, gpu.driver) for gpu in found] == [
        ("0000:17:00.0", "2330", "nvidia"),
        ("0000:65:00.0", "1eb8", None),
        ("0000:66:00.0", "2204", "nouveau"),
    ]
    assert found[0].as_dict() == {
        "address": "0000:17:00.0",
        "vendor": "10de",
        "device": "2330",
        "class": "030200",
        "subsystem": "10de:16c1",
        "driver": "nvidia",
    }
    assert [switch.address for switch in _pci.nvswitches(str(tmp_path))] == ["0000:c0:00.0"]


def test_svc_08_a_node_without_pci_has_none(tmp_path):
    assert _pci.gpus(str(tmp_path)) == []
    assert _pci.nvswitches(str(tmp_path)) == []
