"""GRUB's menu, default and one-shot entry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _grub

FIXTURES = Path(__file__).parent / "fixtures/grub"
UUID = "6c5bb1b8-6c1e-4d5e-9f5e-1e4ad9a6b2f3"
NEW, OLD = "6.12.57+deb12-amd64", "6.1.0-41-amd64"
ADVANCED = "gnulinux-advanced-" + UUID
OLD_ENTRY = f"{ADVANCED}>gnulinux-{OLD}-advanced-{UUID}"


def config():
    return (FIXTURES / "bookworm-two-kernels.cfg").read_text()


def node(root, text=None, environment="", defaults=None, fragments=None):
    (root / "boot/grub").mkdir(parents=True)
    (root / "boot/grub/grub.cfg").write_text(config() if text is None else text)
    block = "# GRUB Environment Block\n" + environment
    (root / "boot/grub/grubenv").write_text(block + "#" * (1024 - len(block)))
    (root / "etc/default/grub.d").mkdir(parents=True)
    if defaults is not None:
        (root / "etc/default/grub").write_text(defaults)
    for name, content in (fragments or {}).items():
        (root / "etc/default/grub.d" / name).write_text(content)
    return str(root)


def test_menu_with_its_submenu():
    menu = _grub.parse_menu(config())
    assert [(entry.title, entry.kernel, entry.children is None) for entry in menu] == [
        ("Debian GNU/Linux", NEW, True),
        ("Advanced options for Debian GNU/Linux", "", False),
        ("UEFI Firmware Settings", "", True),
    ]
    assert [entry.kernel for entry in _grub.leaves(menu)] == [NEW, NEW, NEW, OLD, OLD, ""]


@pytest.mark.parametrize(
    ("spec", "kernel", "found"),
    [
        ("0", NEW, True),
        ("1>2", OLD, True),
        ("1", NEW, True),
        ("Debian GNU/Linux", NEW, True),
        ("Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux " + OLD, OLD, True),
        (OLD_ENTRY, OLD, True),
        (f"1>gnulinux-{OLD}-advanced-{UUID}", OLD, True),
        # GRUB does not look into submenus for a bare name: it boots the first entry.
        (f"gnulinux-{OLD}-advanced-{UUID}", NEW, False),
        ("gnulinux-5.10.0-1-amd64", NEW, False),
        (ADVANCED + ">gnulinux-5.10.0-1-amd64", NEW, False),
        ("9", NEW, False),
    ],
)
def test_entries_are_found_as_grub_finds_them(spec, kernel, found):
    entry, exact = _grub.find(_grub.parse_menu(config()), spec)
    assert (entry.kernel, exact) == (kernel, found)


def test_krn_01_saved_default_is_the_next_kernel(tmp_path):
    facts = _grub.boot_facts(node(tmp_path, environment=f"saved_entry={OLD_ENTRY}\n", defaults="GRUB_DEFAULT=saved\n"))
    assert facts["configured"] == "saved"
    assert facts["default"] == {
        "spec": OLD_ENTRY,
        "found": True,
        "entry": OLD_ENTRY,
        "title": "Debian GNU/Linux, with Linux " + OLD,
        "kernel": OLD,
    }
    assert facts["one_shot"] is None
    assert facts["next_kernel"] == OLD


def test_one_shot_entry_wins_once(tmp_path):
    environment = f"saved_entry={OLD_ENTRY}\nnext_entry=0\n"
    facts = _grub.boot_facts(node(tmp_path, environment=environment))
    assert facts["default"]["kernel"] == OLD
    assert facts["one_shot"]["kernel"] == NEW
    assert facts["next_kernel"] == NEW


def test_nothing_saved_boots_the_first_entry(tmp_path):
    facts = _grub.boot_facts(node(tmp_path))
    assert (facts["default"]["spec"], facts["next_kernel"]) == ("0", NEW)


def test_saved_entry_of_a_removed_kernel_is_told(tmp_path):
    facts = _grub.boot_facts(node(tmp_path, environment="saved_entry=gnulinux-advanced-x>gnulinux-5.10.0-1-amd64\n"))
    assert (facts["default"]["found"], facts["next_kernel"]) == (False, NEW)


def test_default_in_the_generated_file_counts_not_the_wish(tmp_path):
    text = config().replace('set default="${saved_entry}"', 'set default="1>2"')
    facts = _grub.boot_facts(
        node(tmp_path, text=text, environment="saved_entry=0\n", defaults='GRUB_DEFAULT="saved" # later\n')
    )
    assert (facts["configured"], facts["effective"], facts["next_kernel"]) == ("saved", "1>2", OLD)


def test_title_that_update_grub_corrects_for_the_user(tmp_path):
    title = "Debian GNU/Linux, with Linux " + OLD
    text = config().replace('set default="${saved_entry}"', f'set default="{title}"')
    text += f"if [ x\"$default\" = '{title}' ]; then default='Advanced options for Debian GNU/Linux>{title}'; fi;\n"
    assert _grub.boot_facts(node(tmp_path, text=text))["next_kernel"] == OLD


def test_last_fragment_wins(tmp_path):
    root = node(
        tmp_path,
        defaults="GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\n",
        fragments={"10-a.cfg": "GRUB_DEFAULT='1>2'\n", "20-b.cfg": "GRUB_TIMEOUT=1\n", "30-c.bak": "GRUB_DEFAULT=9\n"},
    )
    assert _grub.configured_default(root) == "1>2"


def test_entry_for_a_kernel_is_its_own_not_the_one_that_moves(tmp_path):
    facts = _grub.boot_facts(node(tmp_path))
    assert _grub.entry_for(facts, OLD) == OLD_ENTRY
    assert re.match(r"gnulinux-advanced-.*>gnulinux-6\.12\.57\+deb12-amd64-advanced-", _grub.entry_for(facts, NEW))
    assert _grub.entry_for(facts, "5.10.0-1-amd64") is None


def test_greater_sign_in_a_title_is_doubled(tmp_path):
    text = "menuentry 'a>b' {\n linux /vmlinuz-6.1.0-41-amd64\n}\n"
    text += "menuentry 'c' --id=cc {\n linux /boot/vmlinuz-6.12-amd64\n}\n"
    menu = _grub.parse_menu(text)
    entry, found = _grub.find(menu, "a>>b")
    assert (entry.kernel, found) == (OLD, True)
    assert _grub.path_of(menu, entry) == "a>>b"
    assert _grub.find(menu, "cc")[0].kernel == "6.12-amd64"


def test_without_grub_nothing_is_claimed(tmp_path):
    facts = _grub.boot_facts(str(tmp_path))
    assert (facts["loader"], facts["default"], facts["next_kernel"]) == ("unknown", None, None)


def test_menu_captured_from_a_node_with_two_kernels():
    text = (FIXTURES / "captured-bookworm.cfg").read_text()
    menu = _grub.parse_menu(text)
    assert [entry.kernel for entry in _grub.leaves(menu) if entry.kernel] == [
        "6.1.0-57-amd64",
        "6.1.0-57-amd64",
        "6.1.0-57-amd64",
        "6.1.0-50-amd64",
        "6.1.0-50-amd64",
    ]
    assert _grub.default_in_config(text) == ("0", True)
    assert _grub.find(menu, "1>2")[0].kernel == "6.1.0-50-amd64"
