"""Files are replaced in one step and only when they differ."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _textfile
from tuning_tree import Tree


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def ensure(tree, *files, check_mode=False):
    return _textfile.ensure_files(tree.root, files, check_mode)


def test_create_change_remove_and_each_again(tree):
    for content in ("a\n", "b\n", None):
        wanted = {"path": "/etc/x.d/a.conf", "content": content}
        assert ensure(tree, wanted, check_mode=True)["changed"]
        assert ensure(tree, wanted)["changed_paths"] == ["/etc/x.d/a.conf"]
        assert not ensure(tree, wanted)["changed"]
        assert not ensure(tree, wanted, check_mode=True)["changed"]
    assert not tree.exists("/etc/x.d/a.conf")


def test_the_last_drop_in_of_a_unit_takes_its_directory_along(tree):
    tree.write("/etc/systemd/system/x.service.d/a.conf", "a\n").write("/etc/systemd/system/x.service.d/b.conf", "b\n")
    tree.write("/etc/modprobe.d/a.conf", "a\n")
    gone = [{"path": f"/etc/systemd/system/x.service.d/{name}.conf", "content": None} for name in "ab"]
    ensure(tree, gone[0])
    assert tree.exists("/etc/systemd/system/x.service.d/b.conf")
    ensure(tree, gone[1], {"path": "/etc/modprobe.d/a.conf", "content": None})
    assert not tree.exists("/etc/systemd/system/x.service.d")
    assert tree.exists("/etc/systemd/system") and tree.exists("/etc/modprobe.d"), "a package's may be empty"


def test_a_wrong_mode_is_a_difference_and_shows(tree):
    tree.write("/a", "x\n")
    (tree.path / "a").chmod(0o600)
    result = ensure(tree, {"path": "/a", "content": "x\n"})
    assert result["diff"][0]["before"] == "mode 0600\n"
    assert not ensure(tree, {"path": "/a", "content": "x\n"})["changed"]


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tree, monkeypatch):
    tree.write("/a", "old\n")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        ensure(tree, {"path": "/a", "content": "new\n"})
    assert tree.read("/a") == "old\n"
    assert [file.name for file in tree.path.iterdir()] == ["a"]


def test_a_link_is_followed(tree):
    tree.write("/real", "old\n").link("/a", "real")
    ensure(tree, {"path": "/a", "content": "new\n"})
    assert (tree.path / "a").is_symlink()
    assert tree.read("/real") == "new\n"


def test_a_file_for_its_owner_alone_is_never_shown(tree):
    secret = {"path": "/s", "secret_content": "secret\n", "mode": "0600"}
    results = [ensure(tree, secret)]
    assert tree.read("/s") == "secret\n" and (tree.path / "s").stat().st_mode & 0o777 == 0o600
    assert not ensure(tree, secret)["changed"]
    results.append(ensure(tree, {"path": "/s", "content": "other secret\n", "mode": "0600"}))
    results.append(ensure(tree, {"path": "/s", "content": None}))
    assert all(result["changed"] and "secret" not in str(result["diff"]) for result in results)
    assert "not shown" in results[0]["diff"][0]["after"] and results[0]["diff"][0]["before"] == ""
    assert "not shown" in results[2]["diff"][0]["before"] and results[2]["diff"][0]["after"] == ""
    assert not tree.exists("/s")
