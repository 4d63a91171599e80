"""What one read of a machine finds; fixture trees in the shape of /proc, /sys and /etc."""

from __future__ import annotations

import struct

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _tuning_info
from tuning_tree import OWN, Tree

BRIDGE = "0000:00:01.0"
SWITCH = "0000:01:00.0"
GPU = "0000:17:00.0"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def collect(tree, runner, names=()):
    return _tuning_info.collect(runner, names, ["/etc/x.conf"], OWN, tree.root)


def config_space(control=None):
    """Return 4096 bytes of configuration space, with an ACS capability behind another one when control is given."""
    space = bytearray(4096)
    if control is not None:
        struct.pack_into("<I", space, 0x100, 0x0001 | (1 << 16) | (0x150 << 20))
        struct.pack_into("<IHH", space, 0x150, 0x000D | (1 << 16), 0x5F, control)
    return bytes(space)


def pci_tree(tree, controls, group="identity", driver="nvidia"):
    """Put one GPU below a root port and a switch."""
    base = f"/sys/devices/pci0000:00/{BRIDGE}/{SWITCH}/{GPU}"
    for name, text in (("vendor", "0x10de\n"), ("device", "0x2330\n"), ("class", "0x030200\n")):
        tree.write(f"{base}/{name}", text)
    if group:
        tree.write(f"{base}/iommu_group/type", group + "\n")
    tree.link(f"{base}/driver", f"/sys/bus/pci/drivers/{driver}")
    tree.write(f"/sys/devices/pci0000:00/{BRIDGE}/config", controls[0])
    tree.write(f"/sys/devices/pci0000:00/{BRIDGE}/{SWITCH}/config", controls[1])
    links = {
        GPU: f"../../../devices/pci0000:00/{BRIDGE}/{SWITCH}/{GPU}",
        SWITCH: f"../../../devices/pci0000:00/{BRIDGE}/{SWITCH}",
        BRIDGE: f"../../../devices/pci0000:00/{BRIDGE}",
    }
    for address, target in links.items():
        tree.link(f"/sys/bus/pci/devices/{address}", target)
    return tree


def test_an_empty_machine_has_nothing_and_no_error(tree, fake_runner):
    facts = collect(tree, fake_runner(), ["vm.swappiness"])
    assert facts["sysctl"]["vm.swappiness"]["live"] is None
    assert (facts["thp"], facts["governor"], facts["aspm"]) == (None, None, None)
    assert facts["limits"] == {"manager": None, "files": []}
    assert facts["files"] == {"/etc/x.conf": None}
    assert facts["pci"]["gpus"] == []


def test_choices_of_sysfs(tree, fake_runner):
    tree.write(_tuning_info.THP, "[always] madvise never\n")
    tree.write(_tuning_info.ASPM, "default performance [powersave] powersupersave \n")
    facts = collect(tree, fake_runner())
    assert facts["thp"] == {"available": ["always", "madvise", "never"], "current": "always", "obstacle": None}
    assert facts["aspm"]["current"] == "powersave"


def test_in_a_container_sysfs_is_the_hosts(tree, fake_runner):
    tree.write(_tuning_info.THP, "[always] madvise never\n").write("/.dockerenv", "")
    assert collect(tree, fake_runner())["thp"]["obstacle"] == "belongs to the host of this container"


def test_governors_are_counted(tree, fake_runner):
    for number, name in enumerate(("powersave", "powersave", "performance")):
        base = f"/sys/devices/system/cpu/cpufreq/policy{number}"
        tree.write(base + "/scaling_governor", name + "\n")
        tree.write(base + "/scaling_available_governors", "performance powersave\n")
    found = collect(tree, fake_runner())["governor"]
    assert found == {
        "available": ["performance", "powersave"],
        "current": {"powersave": 2, "performance": 1},
        "obstacle": None,
    }


def test_limits_of_the_running_systemd_and_of_files_in_reading_order(tree, fake_runner):
    tree.write("/run/systemd/system/.keep", "")
    tree.write("/etc/systemd/system.conf", "[Manager]\n#DefaultLimitNOFILE=1\n DefaultLimitMEMLOCK = 1G\n")
    tree.write("/usr/lib/systemd/system.conf.d/99-a.conf", "[Manager]\nDefaultLimitNOFILE=4096:8192\n")
    tree.write("/etc/systemd/system.conf.d/10-b.conf", "[Manager]\nDefaultLimitNOFILE=1024\n")
    runner = fake_runner({"systemctl show": "DefaultLimitNOFILE=524288\nDefaultLimitNOFILESoft=1024\n"})
    found = collect(tree, runner)["limits"]
    assert found["manager"] == {"DefaultLimitNOFILE": "524288", "DefaultLimitNOFILESoft": "1024"}
    assert [(line["file"], line["value"]) for line in found["files"]] == [
        ("/etc/systemd/system.conf", "1G"),
        ("/etc/systemd/system.conf.d/10-b.conf", "1024"),
        ("/usr/lib/systemd/system.conf.d/99-a.conf", "4096:8192"),
    ]


def test_i915_only_where_it_is_loaded(tree, fake_runner):
    assert collect(tree, fake_runner())["i915"] == {"present": False, "parameters": {}}
    tree.write("/sys/module/i915/parameters/enable_dc", "-1\n")
    assert collect(tree, fake_runner())["i915"] == {"present": True, "parameters": {"enable_dc": "-1"}}


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "virtual"),
    [
        ("processor\t: 0\nflags\t\t: fpu vme hypervisor\n\nprocessor\t: 1\n", "", "", True),
        ("processor\t: 0\nflags\t\t: fpu vme\n\n", "QEMU", "", False),
        ("", "QEMU", "Standard PC", True),
        ("", "Amazon EC2", "p5.48xlarge", True),
        ("", "Amazon EC2", "m7g.metal", False),
        ("", "Microsoft Corporation", "Virtual Machine", True),
        ("", "Supermicro", "SYS-821GE", False),
    ],
)
def test_virtual_machines(tree, cpuinfo, vendor, product, virtual):
    tree.write("/proc/cpuinfo", cpuinfo).write("/sys/class/dmi/id/sys_vendor", vendor + "\n")
    tree.write("/sys/class/dmi/id/product_name", product + "\n")
    assert _tuning_info.is_virtual(tree.root) is virtual


def test_tun_04_bridges_that_redirect_are_named(tree):
    pci_tree(tree, [config_space(0x001D), config_space(0x0001)])
    gpu = _tuning_info.pci(tree.root)["gpus"][0]
    assert _tuning_info.bridges_above(tree.root, GPU) == [BRIDGE, SWITCH]
    assert gpu["acs_redirect"] == [BRIDGE]
    assert gpu["iommu"] == "identity"


def test_tun_04_a_bridge_without_the_capability_redirects_nothing(tree):
    pci_tree(tree, [config_space(), config_space(0)])
    assert _tuning_info.pci(tree.root)["gpus"][0]["acs_redirect"] == []


def test_tun_04_an_unreadable_configuration_space_is_unknown(tree):
    pci_tree(tree, [config_space()[:64], config_space(0)])
    assert _tuning_info.pci(tree.root)["gpus"][0]["acs_redirect"] is None


def test_a_chain_of_capabilities_that_bites_its_tail_ends(tree):
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | (0x100 << 20))
    pci_tree(tree, [bytes(space), config_space(0)])
    assert _tuning_info.acs_redirect(tree.root, BRIDGE) is False


def test_names_come_back_in_dotted_form(tree, fake_runner):
    tree.sysctl("vm.swappiness", 60).write("/etc/sysctl.conf", "vm.swappiness=1\n")
    facts = collect(tree, fake_runner(), ["vm/swappiness"])
    assert facts["sysctl"]["vm.swappiness"]["sysctl_system"] == {"file": "/etc/sysctl.conf", "line": 1, "value": "1"}
    assert facts["sysctl"]["vm.swappiness"]["boot"] is None
