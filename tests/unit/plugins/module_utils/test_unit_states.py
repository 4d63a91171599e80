"""The units that serve the GPUs, from what systemctl prints."""

from __future__ import annotations

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _unit_states as states
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import TIMED_OUT, CommandResult

SHOWN = """NRestarts=2
Id=nvidia-persistenced.service
LoadState=loaded
ActiveState=active
SubState=running
ActiveEnterTimestampMonotonic=60000000

NRestarts=0
Id=nvidia-fabricmanager.service
LoadState=loaded
ActiveState=failed
SubState=failed
ActiveEnterTimestampMonotonic=50000000

Id=nvidia-imex.service
LoadState=not-found
ActiveState=inactive
SubState=dead
NRestarts=0
ActiveEnterTimestampMonotonic=0
"""


def test_units_by_their_name_whatever_the_order(fake_runner):
    runner = fake_runner({"systemctl show": SHOWN})
    found = {unit.name: unit for unit in states.units(runner, uptime_s=100.5)}
    assert list(found) == list(states.NAMES)
    first = found["nvidia-persistenced.service"]
    assert (first.active_state, first.restarts, first.since_s) == ("active", 2, 40.5)
    failed = found["nvidia-fabricmanager.service"]
    assert (failed.active_state, failed.sub_state, failed.since_s) == ("failed", "failed", None)
    assert found["nvidia-imex.service"].load_state == "not-found"
    assert found["nvidia-dcgm.service"].load_state == ""
    assert len(runner.calls) == 1


def test_systemd_that_does_not_answer_is_not_an_inactive_unit(fake_runner):
    for answers in ({}, {"systemctl show": CommandResult(TIMED_OUT)}):
        found = states.units(fake_runner(answers), 100.0)
        assert [(unit.load_state, unit.active_state, unit.since_s) for unit in found] == [("", "", None)] * 4
