"""What stands in the way of a planned change, and what a cluster knows of a node."""

from __future__ import annotations

import copy
import json

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.filter import planned_change
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_flavour, _planned_change

GOOD = {"version": "535.183.06", "kernel": "6.1.0-57-amd64"}
NEXT = "6.12.95+deb12-amd64"
FACTS = {
    "package_database": {"unfinished": {}, "interrupted": False, "transaction": None},
    "running_kernel": GOOD["kernel"],
    "record": {"version": GOOD["version"]},
    "loaded": {"version": GOOD["version"], "flavour": "proprietary"},
    "gpus": [{"address": "0000:17:00.0"}],
    "holders": [],
    "rollback": None,
}
HOLDER = {
    "pid": 900,
    "name": "python3",
    "devices": ["/dev/nvidia0"],
    "unit": "",
    "container": "",
    "pod": {"uid": "u", "namespace": "serving", "name": "resnet-7c9d"},
    "service": False,
}
ROLLBACK = {
    "attempted": {"driver": "550.163.01"},
    "active": {"driver": "535.183.06", "kernel": GOOD["kernel"]},
    "reason": "driver.loaded: NVML answers\n9",
    "time": "2026-11-20T01:02:03Z",
}
MEMBER = {"member": True, "name": "gpu1", "cordoned": False, "ours": False, "problem": ""}


def node(**changes):
    return {**copy.deepcopy(FACTS), **changes}


def ask(facts, good="recorded", version=GOOD["version"], kernel=NEXT, **more):
    known = GOOD if good == "recorded" else good
    return planned_change.change_obstacles(facts, known, version, kernel, **more)


def test_a_good_node_may_change():
    assert ask(node()) == []
    assert ask(node(), version="550.163.01", kernel=GOOD["kernel"]) == []


def test_drv_11_holders_block_and_are_listed_unless_the_operator_consents():
    daemon = {**HOLDER, "pid": 50, "name": "nvidia-persiste", "pod": None, "service": True}
    other = {**HOLDER, "pid": 901, "name": "tritonserver", "pod": None, "unit": "triton.service"}
    facts = node(holders=[daemon, HOLDER, other])
    (text,) = ask(facts)
    assert "900 python3 (pod serving/resnet-7c9d), 901 tritonserver (triton.service)" in text
    assert "gpu_node_allow_drain: true" in text and "persiste" not in text
    assert ask(facts, allow_drain=True) == []
    assert planned_change.gpu_users(facts) == [
        "900 python3 (pod serving/resnet-7c9d)",
        "901 tritonserver (triton.service)",
    ]
    # Nothing is interrupted by what is left to do.
    assert ask(facts, reboots=False) == []


def test_a_node_of_a_cluster_is_never_drained_by_surprise():
    (text,) = ask(node(), cluster=MEMBER)
    assert "node gpu1 of a cluster and would be cordoned and drained" in text
    assert ask(node(), cluster=MEMBER, allow_drain=True) == []


@pytest.mark.parametrize(
    "changes, fragment",
    [
        (
            {"package_database": {"unfinished": {"libcuda1": "unpacked"}, "interrupted": False, "transaction": None}},
            "libcuda1",
        ),
        ({"package_database": {"unfinished": {}, "interrupted": True, "transaction": None}}, "dpkg's journal"),
        ({"package_database": {"unfinished": {}, "interrupted": False, "transaction": {"started": "x"}}}, "killed run"),
        (
            {"running_kernel": "6.1.0-50-amd64"},
            "kernel 6.1.0-50-amd64 runs, while 6.1.0-57-amd64 is the last known good",
        ),
        ({"record": {"version": "525.1.1"}}, "driver 525.1.1 is installed"),
        ({"record": None}, "driver none is installed"),
        ({"loaded": {"version": None, "flavour": ""}}, "driver none is loaded"),
    ],
)
def test_a_node_that_is_not_good_is_left_alone(changes, fragment):
    (text,) = ask(node(**changes))
    assert fragment in text


def test_a_node_without_a_way_back_is_left_alone():
    (text,) = ask(node(), good=None)
    assert "no last known good state" in text and "verify.yml" in text


def test_a_change_that_was_cut_off_goes_on():
    tried = node(running_kernel=NEXT, loaded={"version": None, "flavour": ""})
    assert ask(tried, reboots=False) == []
    half = node(record={"version": "550.163.01"}, loaded={"version": None, "flavour": ""})
    assert ask(half, version="550.163.01", kernel=GOOD["kernel"]) == []


def test_a_kernel_without_a_module_is_not_made_the_default_by_a_driver_update():
    def surprised(following, installed=GOOD["version"], module=None):
        modules = [
            {"path": "nvidia.ko", "indexed": True, "exists": True, "fits": True, "version": module, "flavour": ""}
        ]
        kernel = {"release": NEXT, "modules": True, "headers": True, "nvidia": modules if module else []}
        loaded = {"version": module, "flavour": ""}
        more = {"kernels": [kernel], "boot": {"next_kernel": following}, "loaded": loaded}
        return node(running_kernel=NEXT, record={"version": installed}, **more)

    # Somebody chose it at the console: the default is still the good one.
    (text,) = ask(surprised(GOOD["kernel"]), version="550.163.01", pins=True)
    assert f"kernel {NEXT} runs and must not become the default (no nvidia module)" in text
    assert "6.1.0-57-amd64 is the last known good" in text and "playbooks/rollback.yml" in text
    assert ask(surprised(NEXT), version="550.163.01", pins=True)
    # It serves: to be the default is no risk.
    assert ask(surprised(GOOD["kernel"], module=GOOD["version"]), version="550.163.01", pins=True) == []
    # What was cut off there goes on, where it had begun.
    assert ask(surprised(NEXT, installed="550.163.01"), version="550.163.01", pins=True) == []
    assert ask(surprised(GOOD["kernel"], installed="550.163.01"), version="550.163.01", pins=True)


def test_drv_10_what_failed_is_not_tried_again_by_itself():
    facts = node(rollback=ROLLBACK)
    (text,) = ask(facts, version="550.163.01", kernel=GOOD["kernel"])
    assert "driver 550.163.01 was tried on this node and given up on 2026-11-20T01:02:03Z" in text
    assert "driver.loaded: NVML answers 9" in text and "535.183.06 serves instead" in text and "gpu_node_retry" in text
    assert ask(facts, version="550.163.01", kernel=GOOD["kernel"], retry=True) == []
    assert ask(facts, version="550.90.07", kernel=GOOD["kernel"]) == []
    kernel = node(rollback={**ROLLBACK, "attempted": {"kernel": NEXT}})
    assert "kernel_upgrade_release: kernel 6.12" in ask(kernel)[0]
    # It runs, so there is nothing to be tried.
    assert ask({**kernel, "running_kernel": NEXT}, reboots=False) == []


@pytest.mark.parametrize("record", [None, {}, {"unreadable": "not JSON"}, {"attempted": {}}, {"attempted": None}])
def test_a_record_of_nothing_forbids_nothing(record):
    assert _planned_change.rolled_back(record, "driver", "550.163.01", None, False) == ""


def test_drv_10_a_kernel_that_is_given_up_leaves_the_driver_that_was_given_up():
    kernel, serves = {"kernel": NEXT}, ROLLBACK["active"]
    note = planned_change.note_given_up(ROLLBACK, kernel, serves, "it panics", "2026-11-21T01:02:03Z")
    assert (note["attempted"], note["active"], note["reason"]) == (kernel, serves, "it panics")
    facts = node(rollback=note)
    driver, other = ask(facts, version="550.163.01")
    assert "driver 550.163.01 was tried" in driver and "NVML answers 9" in driver and "2026-11-20" in driver
    assert "535.183.06 serves instead" in driver
    assert f"kernel {NEXT} was tried" in other and "it panics" in other and GOOD["kernel"] + " serves instead" in other
    # The kernel serves in the end: the driver is given up all the same, also for those who read the attempt alone.
    left = planned_change.forget_given_up(note, "kernel")
    assert left["attempted"] == ROLLBACK["attempted"] and left["active"]["driver"] == "535.183.06"
    assert list(left["given_up"]) == ["driver"] and ask(node(rollback=left), version="550.163.01") == [driver]
    assert planned_change.forget_given_up(left, "kernel") == left
    assert planned_change.forget_given_up(left, "driver") == {}
    again = planned_change.note_given_up(left, ROLLBACK["attempted"], serves, "again", "2026-11-22T01:02:03Z")
    assert again["given_up"]["driver"]["reason"] == "again"


def test_a_record_that_is_none_is_forgotten():
    for record in (
        None,
        {},
        {"unreadable": "not JSON"},
        {"attempted": "550.163.01"},
        {"attempted": {}, "given_up": []},
    ):
        assert planned_change.forget_given_up(record, "kernel") == {}
        note = planned_change.note_given_up(record, {"kernel": NEXT}, ROLLBACK["active"], "why", "when")
        assert list(note["given_up"]) == ["kernel"]


def test_drv_10_site_yml_refuses_a_driver_that_was_rolled_back():
    wanted = {"version": "550.163.01", "source": "distro", "flavour": "auto", "components": ["compute"]}
    data = {"generations": [], "cards": [], "branches": []}
    system = {"id": "debian", "version": "12"}

    def problems(**more):
        return [
            text
            for text in _driver_flavour.decide({**wanted, **more}, [], data, system).problems
            if "was tried" in text
        ]

    assert problems(rollback=ROLLBACK, installed="535.183.06", retry=False)
    assert not problems(rollback=ROLLBACK, installed="535.183.06", retry=True)
    assert not problems(rollback=ROLLBACK, installed="550.163.01", retry=False)
    assert not problems()


# --- cluster ---------------------------------------------------------------------------------------------------------


def listing(*nodes):
    return json.dumps({"kind": "List", "items": list(nodes)})


def member(name, unschedulable=None, **annotations):
    spec = {} if unschedulable is None else {"unschedulable": unschedulable}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def test_a_cordon_is_ours_only_with_our_mark():
    ours = {_planned_change.ANNOTATION: _planned_change.CORDONED_BY}
    nodes = listing(member("gpu1"), member("gpu2", True), member("gpu3", True, **ours), member("gpu4", False, **ours))

    def look(name):
        found = planned_change.cluster_node(nodes, [name])
        return found["member"], found["cordoned"], found["ours"]

    assert look("gpu1") == (True, False, False)
    assert look("gpu2") == (True, True, False)
    assert look("gpu3") == (True, True, True)
    # A mark without a cordon says nothing.
    assert look("gpu4") == (True, False, False)
    assert look("gpu5") == (False, False, False)


def test_a_machine_with_a_kubelet_and_no_node_is_not_touched():
    nodes = listing(member("server"), member("gpu1"))
    assert planned_change.cluster_node(nodes, ["gpu1.example.com", "gpu1"], True)["name"] == "gpu1"
    assert planned_change.cluster_node(nodes, ["gpu9"], False)["problem"] == ""
    lost = planned_change.cluster_node(nodes, ["gpu9"], True)
    assert "gpu_node_cluster_name" in lost["problem"] and "gpu1, server" in lost["problem"]
    assert lost["problem"] in ask(node(), cluster=lost, allow_drain=True)


def test_a_kubelet_that_no_cluster_explains_is_a_problem_and_a_machine_without_one_is_not():
    def look(kubelet, **more):
        return planned_change.cluster_node("", ["gpu9"], kubelet, **more)

    unknown = look(True, known=False)
    assert "no group k3s_server" in unknown["problem"] and "gpu_node_ignore_kubelet: true" in unknown["problem"]
    silent = look(True, error="connection refused\nby 10.0.0.1")
    assert "cannot be asked (connection refused by 10.0.0.1)" in silent["problem"]
    assert "gpu_node_ignore_kubelet: true" in silent["problem"] and not silent["member"]
    assert look(False, known=False)["problem"] == look(False, error="connection refused")["problem"] == ""


def test_cordon_and_mark_change_together():
    on, off = (json.loads(planned_change.cordon_patch(value)) for value in (True, False))
    assert on == {
        "metadata": {"annotations": {"aiinfra.gpu_node/cordoned-by": "aiinfra.gpu_node"}},
        "spec": {"unschedulable": True},
    }
    # A merge patch takes away what it sets to null.
    assert off == {"metadata": {"annotations": {"aiinfra.gpu_node/cordoned-by": None}}, "spec": {"unschedulable": None}}
