"""GRUB's default and one-shot entry: what is written, in which order, and what is refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _boot_control, _boot_grub, _grub, _textfile
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_control import BootError, Grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

FIXTURES = Path(__file__).parent / "fixtures/grub"
UUID = "6b2e1d84-0c5f-4a39-9d27-51c3f0a8e6b7"
NEW, OLD = "6.1.0-57-amd64", "6.1.0-50-amd64"
ADVANCED = "gnulinux-advanced-" + UUID
OLD_ENTRY = f"{ADVANCED}>gnulinux-{OLD}-advanced-{UUID}"
NEW_ENTRY = f"{ADVANCED}>gnulinux-{NEW}-advanced-{UUID}"
SAVED = 'set default="${saved_entry}"'


def menu(settings):
    """Return the menu that grub-mkconfig writes for some settings: real ones, captured from a node with two kernels."""
    text = (FIXTURES / "captured-savedefault.cfg").read_text()
    if settings.get("GRUB_DISABLE_SUBMENU") == "y":
        text = (FIXTURES / "captured-no-submenu.cfg").read_text()
        text = text.replace('set default="0"', SAVED)
    elif settings.get("GRUB_SAVEDEFAULT") != "true":
        text = re.sub(r"^\s*savedefault\n", "", text, flags=re.MULTILINE)
    default = settings.get("GRUB_DEFAULT", "0")
    return text if default == "saved" else text.replace(SAVED, f'set default="{default}"')


class Node:
    """A tree with GRUB in it, and a grub-mkconfig that obeys its settings as the real one does."""

    def __init__(self, root, fake_runner, settings="GRUB_DEFAULT=0\n", environment="", fragments=None):
        self.root = str(root)
        self.path = root
        self.fragments = root / "etc/default/grub.d"
        self.fragments.mkdir(parents=True)
        (root / "etc/default/grub").write_text(settings)
        for name, text in (fragments or {}).items():
            (self.fragments / name).write_text(text)
        (root / "boot/grub").mkdir(parents=True)
        self.config = root / "boot/grub/grub.cfg"
        self.config.write_text(menu(self.settings()))
        self.config.chmod(0o600)
        self.block = root / "boot/grub/grubenv"
        if environment is not None:
            self.block.write_text(_grub.format_environment(dict(environment)))
        self.runner = fake_runner(
            {
                "grub-mkconfig": self.mkconfig,
                "grub-probe --target=abstraction": "\n",
                "grub-probe --target=fs": "ext2\n",
            }
        )
        self.grub = Grub(self.runner, self.root)

    def settings(self):
        names = ("GRUB_DEFAULT", "GRUB_SAVEDEFAULT", "GRUB_DISABLE_SUBMENU")
        found = {name: _grub.assignments(self.root, name) for name in names}
        return {name: values[-1][1] for name, values in found.items() if values}

    def mkconfig(self, argv):
        assert argv[1] == "-o"
        Path(argv[2]).write_text(menu(self.settings()))
        return CommandResult(0, err="Generating grub configuration file ...\ndone\n")

    def variables(self):
        return _grub.parse_environment(self.block.read_text())

    def menus_made(self):
        return len([call for call in self.runner.calls if call.startswith("grub-mkconfig")])


@pytest.fixture
def make(tmp_path, fake_runner):
    return lambda **arguments: Node(tmp_path, fake_runner, **arguments)


def test_krn_01_default_of_a_fresh_debian_is_pinned_and_stays(make):
    node = make()
    assert node.grub.default() == NEW
    assert node.grub.set_default(OLD) is True
    assert node.grub.default() == OLD
    assert node.variables() == {"saved_entry": OLD_ENTRY}
    text = (node.fragments / "gpu-node.cfg").read_text()
    assert text.startswith("# Managed by the aiinfra.gpu_node collection")
    assert _grub.parse_defaults(text) == "saved"
    assert len(node.block.read_bytes()) == 1024
    assert _grub.is_pinned(node.grub.facts())
    assert node.grub.set_default(OLD) is False
    assert node.menus_made() == 1
    assert sorted(item.name for item in node.config.parent.iterdir()) == ["grub.cfg", "grubenv"]
    assert node.config.stat().st_mode & 0o777 == 0o600


def test_menu_is_made_anew_only_where_it_does_not_use_the_saved_entry(make):
    node = make(settings='GRUB_DEFAULT="saved"\n', environment={"saved_entry": "0"})
    assert node.grub.set_default(NEW) is True
    assert node.variables()["saved_entry"] == NEW_ENTRY
    assert node.menus_made() == 0
    assert not (node.fragments / "gpu-node.cfg").exists()


def test_number_in_the_submenu_is_no_stable_default(make):
    node = make(settings="GRUB_DEFAULT=saved\n", environment={"saved_entry": "1>2"})
    assert node.grub.default() == OLD
    assert node.grub.set_default(OLD) is True
    assert node.variables()["saved_entry"] == OLD_ENTRY


def test_setting_that_the_next_update_would_obey_is_mended_although_the_menu_is_right(make):
    node = make(settings="GRUB_DEFAULT=saved\n", environment={"saved_entry": OLD_ENTRY})
    (node.path / "etc/default/grub").write_text("GRUB_DEFAULT=0\n")
    assert node.grub.set_default(OLD) is True
    assert _grub.configured_default(node.root) == "saved"
    assert node.menus_made() == 0


def test_without_submenus_the_entry_at_the_top_is_as_stable(make):
    node = make(settings="GRUB_DEFAULT=0\nGRUB_DISABLE_SUBMENU=y\n")
    assert node.grub.set_default(OLD) is True
    assert node.variables()["saved_entry"] == f"gnulinux-{OLD}-advanced-{UUID}"
    assert _grub.is_pinned(node.grub.facts())
    assert node.grub.set_default(OLD) is False


def test_krn_01_kernel_that_is_not_in_the_menu_is_refused_with_those_that_are(make):
    node = make()
    for change in (node.grub.set_default, node.grub.set_once):
        with pytest.raises(BootError, match=f"Kernel 5.10.0-1-amd64 is not in .* It has: {OLD}, {NEW}"):
            change("5.10.0-1-amd64")
    assert node.variables() == {}


def test_entry_that_moves_to_another_kernel_is_no_default(make):
    node = make()
    text = node.config.read_text()
    start = text.index("submenu ")
    node.config.write_text(text[:start])
    with pytest.raises(BootError, match="not its own"):
        node.grub.set_default(NEW)


def test_one_shot_leaves_the_default_and_the_settings_alone(make):
    node = make()
    assert node.grub.set_once(OLD) is True
    assert (node.grub.one_shot(), node.grub.default()) == (OLD, NEW)
    assert node.variables() == {"next_entry": OLD_ENTRY}
    assert node.menus_made() == 0
    assert node.grub.set_once(OLD) is False
    assert node.grub.clear_once() is True
    assert node.grub.one_shot() is None
    assert node.grub.clear_once() is False


def test_empty_variable_that_grub_leaves_behind_is_no_one_shot_entry(make):
    node = make(environment={"next_entry": "", "recordfail": "1"})
    assert node.grub.one_shot() is None
    assert node.grub.clear_once() is False
    node.grub.set_default(OLD)
    assert node.variables() == {"next_entry": "", "recordfail": "1", "saved_entry": OLD_ENTRY}


def test_default_set_by_an_older_grub_reboot_does_not_come_back(make):
    node = make(settings="GRUB_DEFAULT=saved\n", environment={"saved_entry": OLD_ENTRY, "prev_saved_entry": NEW_ENTRY})
    assert node.grub.set_default(OLD) is True
    assert node.variables() == {"saved_entry": OLD_ENTRY}


def test_default_and_one_shot_in_one_go(make):
    node = make(environment={"next_entry": "0"})
    result = _boot_control.manage(node.runner, NEW, OLD, root=node.root)
    assert result["changed"] is True
    assert (node.grub.default(), node.grub.one_shot()) == (NEW, OLD)
    assert result["boot"]["next_kernel"] == OLD


def test_without_an_environment_block_one_is_made(make):
    node = make(environment=None)
    assert node.grub.set_once(OLD) is True
    text = node.block.read_text()
    assert text.startswith("# GRUB Environment Block\n")
    assert len(text) == 1024
    assert node.grub.one_shot() == OLD


def test_torn_environment_block_is_made_anew(make):
    node = make(settings="GRUB_DEFAULT=saved\n")
    node.block.write_text("")
    node.grub.set_default(OLD)
    assert len(node.block.read_bytes()) == 1024


def test_environment_block_that_is_full_is_said(make):
    node = make(environment={"other": "x" * 980})
    with pytest.raises(BootError, match="do not fit into the 1024 bytes"):
        node.grub.set_default(OLD)
    assert node.variables() == {"other": "x" * 980}


def test_environment_block_outside_of_the_file_is_refused(make):
    node = make(environment={"env_block": "512+1"})
    with pytest.raises(BootError, match="outside of /boot/grub/grubenv"):
        node.grub.set_default(OLD)


def test_comments_of_the_block_survive_and_backslashes_are_doubled(make):
    node = make()
    warning = "# WARNING: Do not edit this file by tools other than grub-editenv!!!"
    body = f"# GRUB Environment Block\n{warning}\nname=a\\\\b\n"
    node.block.write_text(body + "#" * (1024 - len(body)))
    node.grub.set_once(OLD)
    lines = node.block.read_text().splitlines()
    assert lines[:3] == ["# GRUB Environment Block", warning, "name=a\\\\b"]


def test_default_that_follows_what_was_started_is_switched_off_and_said(make):
    node = make(settings="GRUB_DEFAULT=saved\nGRUB_SAVEDEFAULT=true\n", environment={"saved_entry": NEW_ENTRY})
    assert _grub.is_pinned(node.grub.facts()) is False
    result = _boot_control.manage(node.runner, None, OLD, root=node.root)
    assert "GRUB_SAVEDEFAULT was true" in result["notes"][0]
    assert _grub.saves_choice(node.config.read_text()) is False
    assert node.settings()["GRUB_SAVEDEFAULT"] == "false"
    assert (node.grub.default(), node.grub.one_shot()) == (NEW, OLD)
    assert node.grub.set_default(NEW) is False


def test_later_setting_that_would_win_is_refused_before_anything_is_written(make):
    node = make(fragments={"zz-site.cfg": "GRUB_DEFAULT=0\n"})
    with pytest.raises(BootError, match=r"/etc/default/grub.d/zz-site.cfg sets GRUB_DEFAULT=0"):
        node.grub.set_default(OLD)
    assert node.variables() == {}
    assert not (node.fragments / "gpu-node.cfg").exists()


@pytest.mark.parametrize(
    ("abstraction", "system", "clears"),
    [
        ("", "ext2", True),
        ("", "xfs", True),
        ("lvm", "ext2", False),
        ("diskfilter mdraid1x", "ext2", False),
        ("", "btrfs", False),
        ("", "zfs", False),
        ("cryptodisk luks2", "ext2", True),
    ],
)
def test_disks_that_grub_cannot_write_keep_the_one_shot_entry(make, abstraction, system, clears):
    node = make()
    node.runner.answers["grub-probe --target=abstraction"] = abstraction + "\n"
    node.runner.answers["grub-probe --target=fs"] = system + "\n"
    assert node.grub.one_shot_clears()[0] is clears
    notes = node.grub.plan(once=OLD).notes
    assert bool(notes) is not clears
    if not clears:
        assert "a kernel that dies is started again" in notes[0]


def test_disk_that_cannot_be_told_is_a_note_too(make):
    node = make()
    del node.runner.answers["grub-probe --target=abstraction"]
    assert node.grub.one_shot_clears()[0] is None
    assert "cannot be told" in node.grub.plan(once=OLD).notes[0]


def test_check_mode_writes_nothing_and_tells_what_will_be(make):
    node = make()
    before = {path: path.read_bytes() for path in node.path.rglob("*") if path.is_file()}
    result = _boot_control.manage(node.runner, OLD, NEW, check_mode=True, root=node.root)
    assert result["changed"] is True
    assert result["boot"]["next_kernel"] == NEW
    assert result["boot"]["default"]["kernel"] == OLD
    assert [entry["after_header"] for entry in result["diff"]] == ["boot loader", "/etc/default/grub.d/gpu-node.cfg"]
    assert f"default: {OLD} (Debian GNU/Linux, with Linux {OLD})" in result["diff"][0]["after"]
    assert before == {path: path.read_bytes() for path in node.path.rglob("*") if path.is_file()}


def test_nothing_asked_nothing_changed(make):
    node = make()
    result = _boot_control.manage(node.runner, None, None, root=node.root)
    assert (result["changed"], result["diff"], node.runner.calls) == (False, [], [])
    assert {item["kernel"] for item in result["boot"]["entries"]} == {OLD, NEW}


class PowerCut(BaseException):
    """The machine loses its power."""


SITUATIONS = {
    "fresh": {},
    "pinned": {"settings": "GRUB_DEFAULT=saved\n", "environment": {"saved_entry": NEW_ENTRY}},
    "follows": {
        "settings": "GRUB_DEFAULT=saved\nGRUB_SAVEDEFAULT=true\n",
        "environment": {"saved_entry": NEW_ENTRY, "next_entry": "0"},
    },
    "one-shot": {"environment": {"next_entry": OLD_ENTRY}},
}


@pytest.mark.parametrize("name", sorted(SITUATIONS))
@pytest.mark.parametrize("wish", [{"default": OLD}, {"default": OLD, "once": NEW}, {"default": OLD, "once": ""}])
def test_power_cut_at_every_step_leaves_the_old_default_or_the_new_one(tmp_path, fake_runner, monkeypatch, name, wish):
    real = _textfile.replace_file
    for steps in range(20):
        node = Node(tmp_path / str(steps), fake_runner, **SITUATIONS[name])
        left = itertools.count(steps, -1)

        def replace(*arguments, left=left):
            if next(left) == 0:
                raise PowerCut
            real(*arguments)

        def mkconfig(argv, node=node, left=left):
            if next(left) == 0:
                Path(argv[2] + ".new").write_text(menu(node.settings())[:2000])
                raise PowerCut
            return node.mkconfig(argv)

        monkeypatch.setattr(_boot_grub, "replace_file", replace)
        node.runner.answers["grub-mkconfig"] = mkconfig
        cut = False
        try:
            node.grub._carry_out(node.grub.plan(**wish))
        except PowerCut:
            cut = True
        facts = node.grub.facts()
        for choice in (facts["default"], facts["one_shot"]):
            assert choice is None or (choice["found"] and choice["kernel"] in (OLD, NEW))
        assert len(node.block.read_bytes()) == 1024
        monkeypatch.setattr(_boot_grub, "replace_file", real)
        node.runner.answers["grub-mkconfig"] = node.mkconfig
        node.grub._carry_out(node.grub.plan(**wish))
        assert node.grub.default() == OLD
        assert node.grub.plan(**wish).changes is False
        if not cut:
            assert steps > 0
            return
    raise AssertionError("the change never came to its end")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: "", "it has no kernel"),
        (lambda text: text.replace(SAVED, 'set default="0"'), "in spite of GRUB_DEFAULT=saved"),
        (lambda text: text.replace(f"gnulinux-{OLD}-advanced", "gnulinux-other-advanced"), "is not in it"),
    ],
)
def test_menu_that_would_not_boot_the_kernel_is_not_put_into_place(make, spoil, message):
    node = make()
    before = node.config.read_text()

    def broken(argv):
        Path(argv[2]).write_text(spoil(menu(node.settings())))
        return CommandResult(0)

    node.runner.answers["grub-mkconfig"] = broken
    with pytest.raises(BootError, match=message):
        node.grub.set_default(OLD)
    assert node.config.read_text() == before
    assert node.grub.default() == NEW
    assert not (node.config.parent / "gpu-node-draft.cfg").exists()


def test_menu_that_cannot_be_made_is_said_with_its_reason(make):
    node = make()
    node.runner.answers["grub-mkconfig"] = CommandResult(1, err="/usr/sbin/grub-probe: error: cannot find a device")
    with pytest.raises(BootError, match="cannot find a device"):
        node.grub.set_default(OLD)
    assert node.grub.default() == NEW


def test_boot_that_is_read_only_is_said(make, monkeypatch):
    node = make()

    def refuse(*_arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(_boot_grub, "replace_file", refuse)
    with pytest.raises(BootError, match=f"Read-only file system. The next boot starts {NEW}"):
        node.grub.set_default(OLD)


def test_what_was_set_is_taken_back(make):
    node = make()
    node.grub.set_default(OLD)
    assert _boot_control.release(node.runner, check_mode=True, root=node.root)["changed"] is True
    assert _boot_control.release(node.runner, root=node.root)["changed"] is True
    assert node.grub.default() == NEW
    assert node.variables() == {}
    assert not (node.fragments / "gpu-node.cfg").exists()
    assert _boot_control.release(node.runner, root=node.root)["changed"] is False


def test_what_somebody_else_saved_stays(make):
    node = make(settings="GRUB_DEFAULT=saved\n", environment={"saved_entry": OLD_ENTRY})
    assert _boot_control.release(node.runner, root=node.root)["changed"] is False
    assert node.variables() == {"saved_entry": OLD_ENTRY}


def test_taking_back_that_was_cut_off_goes_on(make):
    node = make()
    node.grub.set_default(OLD)
    (node.fragments / "gpu-node.cfg").unlink()
    assert _boot_control.release(node.runner, root=node.root)["changed"] is True
    assert node.grub.default() == NEW


def test_other_boot_loaders_are_refused(tmp_path, fake_runner):
    with pytest.raises(BootError, match="No boot loader that this collection can steer"):
        _boot_control.detect(fake_runner(), str(tmp_path))
