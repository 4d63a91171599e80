"""The private apt state: the node's own is read and never written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._apt_universe import (
    AptState,
    AptUniverse,
    RepositoryError,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, Runner
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._universe import Relation, parse_relations

PACKAGES = """Package: base-files
Version: 12

Package: libcuda1
Version: 535.261.03-1
Pre-Depends: nvidia-legacy-check (>= 495)
Depends: nvidia-alternative (= 535.261.03-1), libc6 (>= 2.34),
 a | b:any (<< 2)
Provides: libcuda.so.1 (= 535.261.03)

Package: bash
Version: 5
"""
TARGET = """MetaKey: non-free/binary-amd64/Packages
Filename: {file}
Origin: Debian
Label: Debian
Suite: stable
Codename: bookworm
Architecture: amd64
Repo-URI: file:/srv/debian/
Site: file:/srv/debian

MetaKey: main/binary-i386/Packages
Filename: /nowhere
Architecture: i386
"""


class Apt(Runner):
    """Answers apt's programs and keeps what they were called with."""

    def __init__(self, target, update=None):
        self.target = target
        self.update = update or CommandResult(0)
        self.calls = []

    def run(self, argv, timeout=60.0, env=None, stdin=None):
        self.calls.append(list(argv))
        if "indextargets" in argv:
            return CommandResult(0, self.target)
        if "update" in argv:
            return self.update
        return CommandResult(0, "Inst libcuda1 (535.261.03-1 Debian:12/stable [amd64])\n")

    def option(self, name, call=-1):
        return [word.partition("=")[2] for word in self.calls[call] if word.startswith(name + "=")][0]


@pytest.fixture
def root(tmp_path):
    """A node with one list, one foreign source, and files of ours that are out of date."""
    files = {
        "var/lib/apt/lists/x_non-free_binary-amd64_Packages": PACKAGES,
        "var/lib/dpkg/status": "Package: libcuda1\nStatus: hold ok installed\nVersion: 1\nArchitecture: amd64\n",
        "etc/apt/sources.list": "deb file:/srv/debian bookworm main\n",
        "etc/apt/sources.list.d/other.list": "deb file:/o /\n",
        "etc/apt/sources.list.d/twice.list": "deb file:/t /\n",
        _apt_prefs.SOURCES_PATH.lstrip("/"): "old",
        _apt_prefs.PINS_PATH.lstrip("/"): "old",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def apt(root, **more):
    return Apt(TARGET.format(file=root / "var/lib/apt/lists/x_non-free_binary-amd64_Packages"), **more)


def snapshot(root):
    return {path: path.read_text() for path in root.rglob("*") if path.is_file()}


def test_offers_are_read_with_relations_and_origin(root):
    runner = apt(root)
    with AptState(runner, str(root)) as state:
        universe = AptUniverse(state, state.targets(), str(root))
    (offer,) = universe.offers("libcuda1")
    assert offer.origin.title == "Debian stable" and offer.origin.uri == "file:/srv/debian/"
    assert offer.depends[0] == (Relation("nvidia-legacy-check", ">=", "495"),)
    assert offer.depends[3] == (Relation("a"), Relation("b", "<<", "2"))
    assert universe.providers(Relation("libcuda.so.1", "=", "535.261.03")) == [offer]
    assert universe.providers(Relation("libcuda.so.1", ">>", "535.261.03")) == []
    assert universe.names() == ["libcuda1"] and universe.distribution == {"Debian"}


def test_a_simulation_sees_new_pins_and_lifted_holds_and_leaves_the_node_alone(root):
    runner, before = apt(root), snapshot(root)
    with AptState(runner, str(root), "Signed-By: " + _apt_prefs.KEY_PATH, "key", ["twice.list"]) as state:
        universe = AptUniverse(state, state.targets(), str(root))
        simulation = universe.simulate(["install", "libcuda1=535.261.03-1"], "new pins", ["libcuda1"])
        parts = runner.option("Dir::Etc::sourceparts")
        assert sorted(os.listdir(parts)) == [os.path.basename(_apt_prefs.SOURCES_PATH), "other.list"]
        text = Path(parts, os.path.basename(_apt_prefs.SOURCES_PATH)).read_text()
        assert Path(text.split()[-1]).read_text() == "key"
        pins = os.path.join(runner.option("Dir::Etc::preferencesparts"), os.path.basename(_apt_prefs.PINS_PATH))
        assert Path(pins).read_text() == "new pins"
        assert "Status: install ok" in Path(runner.option("Dir::State::status")).read_text()
        directory = os.path.dirname(parts)
    assert simulation.installs == {"libcuda1": ("", "535.261.03-1")}
    assert not os.path.exists(directory)
    assert snapshot(root) == before


def test_only_our_source_is_read_where_the_node_has_lists(root):
    runner = apt(root)
    with AptState(runner, str(root), "Types: deb") as state:
        state.update()
    assert runner.option("Dir::Etc::sourcelist") == "/dev/null"
    for path in (root / "var/lib/apt/lists").iterdir():
        path.unlink()
    with AptState(runner, str(root), "Types: deb") as state:
        state.update()
    assert runner.option("Dir::Etc::sourcelist") == str(root / "etc/apt/sources.list")


def test_logins_of_the_node_and_of_our_source_are_at_hand(root):
    folder = root / "etc/apt/auth.conf.d"
    folder.mkdir(parents=True)
    (folder / "mine.conf").write_text("machine a login b password c\n")
    ours = os.path.basename(_apt_prefs.AUTH_PATH)
    (folder / ours).write_text("old")
    runner = apt(root)
    with AptState(runner, str(root), "Types: deb", auth_text="new") as state:
        state.update()
        parts = Path(runner.option("Dir::Etc::netrcparts"))
        assert sorted(path.name for path in parts.iterdir()) == sorted([ours, "mine.conf"])
        assert (parts / ours).read_text() == "new" and (parts / ours).stat().st_mode & 0o777 == 0o600
    with AptState(runner, str(root), "Types: deb") as state:
        state.update()
        assert [path.name for path in Path(runner.option("Dir::Etc::netrcparts")).iterdir()] == ["mine.conf"]


def test_cud_01_a_repository_that_does_not_answer_is_an_error_with_apts_words(root):
    runner = apt(root, update=CommandResult(100, "", "E: The repository 'file:/x  Release' is not signed."))
    with AptState(runner, str(root), "Types: deb") as state, pytest.raises(RepositoryError, match="is not signed"):
        state.update()


@pytest.mark.parametrize(
    ("release", "lacks"),
    [
        (None, True),
        (" {} 12 non-free/binary-amd64/Packages\n", True),
        (" {} 0 non-free/binary-amd64/Packages\n", False),
    ],
)
def test_lists_that_were_never_read_are_noticed_but_empty_ones_are_not(root, release, lacks):
    path = root / "var/lib/apt/lists/y_non-free_binary-amd64_Packages"
    if release:
        (root / "var/lib/apt/lists/y_InRelease").write_text("SHA256:\n" + release.format("0" * 64))
    with AptState(Apt(TARGET.format(file=path)), str(root), "Types: deb") as state:
        assert state.lacks_lists() is lacks


def test_relations_are_parsed_across_lines():
    assert parse_relations("a (>= 1:2-3), b | c (= 1) ,\n d:any") == (
        (Relation("a", ">=", "1:2-3"),),
        (Relation("b"), Relation("c", "=", "1")),
        (Relation("d"),),
    )
