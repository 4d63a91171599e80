"""Enterprise Linux's boot loader, on texts in the form that grubby writes; no machine has run this."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _boot_control
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_control import BootError, Grubby
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_grubby import parse_info

INFO = (Path(__file__).parent / "fixtures/grub/grubby-info-el9.txt").read_text()
NEW, OLD = "5.14.0-503.21.1.el9_5.x86_64", "5.14.0-503.14.1.el9_5.x86_64"
MACHINE = "9a1f0b4c5d6e47f8a1b2c3d4e5f60718"


class Machine:
    """Answers the boot loader's commands and keeps what was set."""

    def __init__(self, fake_runner, root):
        self.default, self.variables, self.root = NEW, {"boot_success": "1"}, root
        self.runner = fake_runner(
            {
                "grubby --info=ALL": INFO,
                "grubby --default-kernel": lambda argv: f"/boot/vmlinuz-{self.default}\n",
                f"grubby --set-default=/boot/vmlinuz-{OLD}": self.set_default,
                f"grubby --set-default=/boot/vmlinuz-{NEW}": self.set_default,
                "grub2-editenv list": lambda argv: "".join(f"{k}={v}\n" for k, v in self.variables.items()),
                "grub2-editenv - unset next_entry": self.clear,
                "grub2-reboot": self.once,
            }
        )
        (root / "usr/sbin").mkdir(parents=True)
        (root / "usr/sbin/grubby").write_text("")
        (root / "boot/loader/entries").mkdir(parents=True)
        (root / f"boot/loader/entries/{MACHINE}-{NEW}.conf").write_text("")
        self.control = _boot_control.detect(self.runner, str(root))

    def set_default(self, argv):
        self.default = argv[1].partition("vmlinuz-")[2]
        return ""

    def clear(self, argv):
        del self.variables["next_entry"]
        return ""

    def once(self, argv):
        self.variables["next_entry"] = argv[1]
        return ""


@pytest.fixture
def machine(fake_runner, tmp_path):
    return Machine(fake_runner, tmp_path)


def test_entries_of_grubby():
    assert [(item["index"], item["kernel"]) for item in parse_info(INFO)] == [
        ("0", NEW),
        ("1", OLD),
        ("2", ""),
        ("3", ""),
    ]


def test_same_interface(machine):
    control = machine.control
    assert isinstance(control, Grubby)
    assert [item["kernel"] for item in control.entries()] == [NEW, OLD]
    assert (control.default(), control.one_shot()) == (NEW, None)
    assert control.set_default(OLD) is True
    assert control.default() == OLD
    assert control.set_default(OLD) is False


def test_one_shot_and_back(machine):
    assert machine.control.set_once(OLD) is True
    assert machine.variables["next_entry"] == f"{MACHINE}-{OLD}"
    assert machine.control.facts()["next_kernel"] == OLD
    assert machine.control.set_once(OLD) is False
    assert machine.control.clear_once() is True
    assert machine.control.clear_once() is False


def test_check_mode_runs_only_what_reads(machine):
    result = _boot_control.manage(machine.runner, OLD, NEW, check_mode=True, root=str(machine.root))
    assert (result["changed"], result["boot"]["next_kernel"], machine.default) == (True, NEW, NEW)
    assert {call.split()[0] + " " + call.split()[1] for call in machine.runner.calls} == {
        "grubby --info=ALL",
        "grubby --default-kernel",
        "grub2-editenv list",
    }


def test_kernel_that_is_not_there(machine):
    with pytest.raises(BootError, match=rf"It has: {OLD}, {NEW}"):
        machine.control.set_default("4.18.0-553.el8_10.x86_64")


def test_setting_that_makes_each_new_kernel_the_default_is_said(machine):
    (machine.root / "etc/sysconfig").mkdir(parents=True)
    (machine.root / "etc/sysconfig/kernel").write_text("UPDATEDEFAULT=yes\nDEFAULTKERNEL=kernel-core\n")
    assert "UPDATEDEFAULT=yes" in machine.control.plan(default=OLD).notes[0]


def test_command_that_fails(machine):
    del machine.runner.answers["grub2-editenv list"]
    with pytest.raises(BootError, match="grub2-editenv list failed"):
        machine.control.facts()


def test_command_without_effect_is_found_out(machine):
    machine.runner.answers[f"grubby --set-default=/boot/vmlinuz-{OLD}"] = ""
    with pytest.raises(BootError, match=f"starts {NEW} although {OLD} was set"):
        machine.control.set_default(OLD)
