"""The quarantine by a file and a target of systemd; hlt_15: what somebody else has set is never lifted."""

from __future__ import annotations

import json
import os
import stat

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _quarantine_file as quarantine
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

TARGET = "gpu-node-quarantined.target"


class Systemd:
    """A target that can be started, stopped and asked; ``broken`` is a verb that fails."""

    def __init__(self, active=False, broken=""):
        self.active, self.broken, self.calls = active, broken, []

    def run(self, argv, timeout=60.0, env=None, stdin=None):
        _program, verb, name = argv
        assert name == TARGET
        if verb == "is-active":
            return CommandResult(0 if self.active else 3, "active\n" if self.active else "inactive\n")
        self.calls.append(verb)
        if verb == self.broken:
            return CommandResult(5, err="Unit is not found.")
        self.active = verb == "start"
        return CommandResult(0)


@pytest.fixture
def node(tmp_path):
    """Return node(healthy, ...): one change below a root of its own; ``node.path`` is the file."""
    boot = tmp_path / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("boot-1\n", encoding="ascii")

    def change(healthy, reason="gpu1 is lost", systemd=None, **options):
        options.setdefault("target", TARGET if systemd else "")
        return quarantine.change(systemd or Systemd(), healthy, reason, 1000.0, root=str(tmp_path), **options)

    change.path = tmp_path / "run/gpu_node/quarantine"
    change.boot = boot / "boot_id"
    return change


def test_set_keep_update_lift(node):
    taken = node(False)
    assert (taken["changed"], taken["action"], taken["quarantined"]) == (True, "take", True)
    assert stat.S_IMODE(node.path.stat().st_mode) == 0o644
    mark = json.loads(node.path.read_text())
    assert (mark["owner"], mark["reason"], mark["boot_id"]) == ("aiinfra.gpu_node", "gpu1 is lost", "boot-1")
    kept = node(False)
    assert (kept["changed"], kept["action"], kept["diff"], kept["quarantined"]) == (False, "keep", [], True)
    updated = node(False, "gpu2 is lost")
    assert (updated["action"], json.loads(node.path.read_text())["reason"]) == ("update", "gpu2 is lost")
    lifted = node(True)
    assert (lifted["changed"], lifted["action"], lifted["quarantined"], lifted["owner"]) == (True, "release", False, "")
    assert not node.path.exists()
    assert not node(True)["changed"]
    assert os.listdir(node.path.parent) == []


@pytest.mark.parametrize(
    "content", ["maintenance by ops\n", "", '{"owner": "other.tool", "reason": "x"}', "[1]", "\x00"]
)
def test_hlt_15_a_mark_of_somebody_else_stays(node, content):
    node.path.parent.mkdir(parents=True)
    node.path.write_text(content, encoding="utf-8")
    for healthy in (True, False, True):
        result = node(healthy)
        assert (result["changed"], result["action"], result["quarantined"]) == (False, "leave", True)
        assert result["owner"] not in ("", "aiinfra.gpu_node")
    assert node.path.read_text(encoding="utf-8") == content


@pytest.mark.parametrize("healthy", [True, False])
def test_a_damaged_mark_of_ours_is_for_a_person(node, healthy):
    node.path.parent.mkdir(parents=True)
    node.path.write_text('{"owner": "aiinfra.gpu_node", "rea', encoding="utf-8")
    with pytest.raises(quarantine.QuarantineError, match="a person releases it"):
        node(healthy)
    assert node.path.exists()


def test_the_target_goes_with_the_mark(node):
    systemd = Systemd()
    assert node(False, systemd=systemd)["quarantined"] and systemd.active
    assert not node(False, systemd=systemd)["changed"]
    assert node(True, systemd=systemd)["changed"] and not systemd.active
    assert systemd.calls == ["start", "stop"]


def test_hlt_15_a_target_that_was_started_by_hand_is_not_stopped(node):
    systemd = Systemd(active=True)
    result = node(False, systemd=systemd)
    assert (result["changed"], result["quarantined"]) == (False, True)
    assert not node(True, systemd=systemd)["changed"]
    assert systemd.active and systemd.calls == []


def test_hlt_15_a_target_that_was_stopped_by_hand_is_not_started_again(node):
    systemd = Systemd()
    node(False, systemd=systemd)
    systemd.active = False
    assert node(False, systemd=systemd)["action"] == "leave"
    assert node(True, systemd=systemd)["action"] == "release"
    assert systemd.calls == ["start"]


def test_a_target_that_does_not_start_leaves_the_node_marked(node):
    systemd = Systemd(broken="start")
    with pytest.raises(quarantine.QuarantineError, match="Unit is not found"):
        node(False, systemd=systemd)
    assert json.loads(node.path.read_text())["ours"] == {}
    assert node(True, systemd=systemd)["action"] == "release"
    assert systemd.calls == ["start"] and not node.path.exists()


def test_a_target_that_does_not_stop_keeps_the_mark_for_the_next_run(node):
    systemd = Systemd()
    node(False, systemd=systemd)
    systemd.broken = "stop"
    with pytest.raises(quarantine.QuarantineError):
        node(True, systemd=systemd)
    assert node.path.exists()
    systemd.broken = ""
    assert node(True, systemd=systemd)["action"] == "release"


def test_check_mode_tells_and_does_nothing(node):
    systemd = Systemd()
    told = node(False, systemd=systemd, check_mode=True)
    assert told["changed"] and "gpu1 is lost" in told["diff"][0]["after"]
    assert not node.path.exists() and systemd.calls == []
    node(False, systemd=systemd)
    told = node(True, systemd=systemd, check_mode=True)
    assert told["changed"] and told["diff"][0]["after"] == "" and not told["quarantined"]
    assert node.path.exists() and systemd.active


def test_who_was_quicker_wins(node, monkeypatch):
    """Between the look and the mark somebody else marks the node: theirs stays."""
    real = quarantine._create

    def late(root, path, content):
        node.path.parent.mkdir(parents=True, exist_ok=True)
        node.path.write_text("ops", encoding="utf-8")
        real(root, path, content)

    monkeypatch.setattr(quarantine, "_create", late)
    assert node(False)["action"] == "leave"
    assert node.path.read_text(encoding="utf-8") == "ops"
    assert os.listdir(node.path.parent) == ["quarantine"]


def test_a_place_that_cannot_be_written_is_told(node):
    node.path.parent.parent.mkdir(parents=True)
    node.path.parent.write_text("a file where the directory should be", encoding="utf-8")
    with pytest.raises(quarantine.QuarantineError, match="quarantine cannot be"):
        node(False)


def test_a_unit_that_is_no_target_is_refused(node):
    with pytest.raises(quarantine.QuarantineError, match=r"ends in \.target"):
        node(False, target="nginx.service")
