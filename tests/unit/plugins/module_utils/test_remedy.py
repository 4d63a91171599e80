"""The next step that would mend a GPU: limited by the driver's word, never a reset of a GPU in use."""

from __future__ import annotations

import itertools

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _remedy as remedy

JOB = make.r.Process(pid=700, used_mib=900, name="python3", unit="job.service")
HOLDER = {"pid": 800, "name": "server", "devices": ["/dev/nvidia0"], "service": False}
DAEMON = {"pid": 2, "name": "nv-hostengine", "devices": ["/dev/nvidia0"], "service": True}


def step(gpu, **node):
    """Return the remedy for the first GPU of a node of two."""
    found = remedy.remedy(gpu, make.snapshot(gpus=[gpu, make.gpu(1)], **node))
    return found.step, found.then, [user["pid"] for user in found.users]


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, "none"), (1, "reset"), (2, "reboot"), (3, "drain"), (4, "reset"), (5, "person"), (6, "person"), (7, "reboot"),
     (8, "person"), (99, "person"), (-1, "person")],
)  # fmt: skip
def test_the_drivers_word_is_the_step(code, expected):
    assert step(make.gpu(0, recovery_action=code)) == (expected, "", [])


@pytest.mark.parametrize("code", [1, 2, 4, 7])
def test_what_is_in_use_is_drained_first(code):
    wanted = {1: "reset", 4: "reset", 2: "reboot", 7: "reboot"}[code]
    assert step(make.gpu(0, recovery_action=code, processes_list=(JOB,))) == ("drain", wanted, [700])
    held = make.r.Occupants(holders=(HOLDER, DAEMON))
    assert step(make.gpu(0, recovery_action=code), occupants=held) == ("drain", wanted, [800])


def test_daemons_of_the_driver_are_no_users():
    assert step(make.gpu(0, recovery_action=1), occupants=make.r.Occupants(holders=(DAEMON,)))[0] == "reset"


def test_users_of_another_gpu_stop_a_reboot_and_no_reset():
    other = make.r.Occupants(holders=({**HOLDER, "devices": ["/dev/nvidia1"]},))
    assert step(make.gpu(0, recovery_action=1), occupants=other)[0] == "reset"
    assert step(make.gpu(0, recovery_action=2), occupants=other) == ("drain", "reboot", [800])


@pytest.mark.parametrize(
    ("changes", "node"),
    [
        ({"processes": make.unread("unsupported", 3)}, {}),
        ({"processes": make.unread("not_reached")}, {}),
        ({"minor": make.unread("failed", 999)}, {}),
        ({}, {"root": False}),
        ({}, {"occupants": make.r.Occupants(dstate=({"pid": 9, "name": "python3"},))}),
    ],
)
def test_where_the_users_are_not_known_nothing_is_reset(changes, node):
    assert step(make.gpu(0, recovery_action=1, **changes), **node) == ("drain", "reset", [])


@pytest.mark.parametrize("why", ["unsupported", "no_symbol", "failed", "not_reached"])
def test_without_the_drivers_word_nothing_is_proposed(why):
    silent = {"recovery_action": make.unread(why), "remap_pending": True, "reset_status": 1}
    assert step(make.gpu(0, **silent))[0] == "none"
    assert step(make.gpu(0, lost=True, lost_code=16, **silent))[0] == "person"


def test_no_state_of_a_gpu_in_use_leads_to_a_reset_or_a_reboot_next():
    for code, minor, root in itertools.product(range(-1, 12), (0, make.unread("failed")), (True, False)):
        card = make.gpu(0, recovery_action=code, minor=minor, processes_list=(JOB,))
        assert step(card, root=root)[0] in ("none", "drain", "person")


def test_it_is_plain_data():
    found = remedy.remedy(make.gpu(0, recovery_action=1, processes_list=(JOB,)), make.snapshot()).as_dict()
    assert set(found) == {"step", "then", "reason", "users"} and found["users"] == [{"pid": 700, "name": "python3"}]
    assert "in use" in found["reason"]
