"""A writer that is stopped at any step leaves the former record in force, and the next run clears up after it."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _lkg_store

from tests.unit.plugins.module_utils.good_node import GoodNode, recorder

ROOM = 4096 << 20
OLD, NEW, OLDEST = "535.2", "535.3", "535.1"
STEPS = (
    "directory made",
    "packages gathered",
    "modules packed",
    "files written",
    "manifest written",
    "generation in place",
    "link made",
    "link in place",
    "generation set aside",
)


@pytest.fixture
def node(tmp_path):
    """A node with two generations that has a third one to record, for which one has to go."""
    found = GoodNode(tmp_path)
    for version in (OLDEST, OLD):
        found.driver(version)
        found.system()
        recorder(found).record(2, ROOM)
    found.driver(NEW)
    found.system()
    return found


def names(node):
    """Return every name in the record but those of generations that are whole."""
    top = node.root / _lkg_store.DIRECTORY
    return [path.name for path in [*top.iterdir(), *(top / "generations").iterdir()] if path.name.startswith(".")]


def killed(node, step):
    """Record in a child process that is gone, without any clearing up, when it comes to a step."""
    child = os.fork()
    if child == 0:
        try:
            recorder(node, checkpoint=lambda name: os._exit(9) if name == step else None).record(2, ROOM)
        finally:
            os._exit(0)
    _pid, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 9, f"the writer never came to {step!r}"


def assert_whole(node):
    for one in _lkg_store.generations(str(node.root)):
        assert one.damage(contents=True) == []


@pytest.mark.parametrize("step", STEPS)
def test_drv_10_a_kill_at_any_step_leaves_a_whole_record_and_the_next_run_clears_up(node, step):
    killed(node, step)
    after = STEPS.index(step) >= STEPS.index("link in place")
    assert _lkg_store.load(str(node.root)).version == (NEW if after else OLD)
    assert_whole(node)

    result = recorder(node).record(2, ROOM)
    assert result["changed"] is True
    assert _lkg_store.load(str(node.root)).version == NEW
    assert [one["version"] for one in result["generations"]] == [NEW, OLD]
    assert_whole(node)
    assert names(node) == []
    assert recorder(node).record(2, ROOM)["changed"] is False


@pytest.mark.parametrize("step", STEPS[:7])
def test_drv_10_a_failure_at_any_step_before_the_last_keeps_the_old_record_and_leaves_nothing(node, step):
    def fail(name):
        if name == step:
            raise OSError(28, "No space left on device")

    result = recorder(node, checkpoint=fail).record(2, ROOM)
    (finding,) = result["findings"]
    assert finding["status"] == "warn" and "No space left on device" in finding["hint"]
    assert _lkg_store.load(str(node.root)).version == OLD
    assert_whole(node)
    if step != "link made":
        assert names(node) == []


def test_a_kill_while_all_is_removed_leaves_no_half_record(node):
    (node.root / _lkg_store.CURRENT).unlink()
    assert _lkg_store.load(str(node.root)) is None
    assert _lkg_store.explain(str(node.root)) == "nothing is recorded"
