"""Task files of planned changes and of the way back, with stand-ins for the collection's modules.

A stand-in answers from ``answers/MODULE.json`` (a list: one answer a call, the last one again and again), and writes
down what it was asked.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = """#!/usr/bin/python
# WANT_JSON
import json, os, sys
name, place = os.path.basename(__file__).split(".")[0].replace("AnsiballZ_", ""), {place!r}
given = json.load(open(sys.argv[1]))
asked = {{key: value for key, value in given.items() if not key.startswith("_ansible")}}
with open(os.path.join(place, "calls"), "a") as log:
    log.write(json.dumps([name, asked, bool(given.get("_ansible_check_mode"))]) + "\\n")
path = os.path.join(place, name + ".json")
answers = json.load(open(path)) if os.path.exists(path) else [{{}}]
if answers[1:]:
    json.dump(answers[1:], open(path, "w"))
print(json.dumps({{"changed": False, **answers[0]}}))
"""
MODULES = ("apt_transaction", "boot_entry", "driver_info", "driver_rollback", "managed_files")
MODULES += ("kernel_offer_info", "last_known_good")
GOOD, NEXT = "6.1.0-57-amd64", "6.12.95+deb12-amd64"
HOLDER = {"pid": 900, "name": "python3", "devices": ["/dev/nvidia0"], "unit": "serving.service", "container": ""}
HOLDER.update(pod=None, service=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the collection, whose stand-ins answer from the folder beside it."""
    place = tmp_path_factory.mktemp("change")
    found = place / "ansible_collections/aiinfra/gpu_node"
    found.mkdir(parents=True)
    for name in ("plugins", "meta"):
        shutil.copytree(ROOT / name, found / name)
    shutil.copy(ROOT / "galaxy.yml", found)
    (place / "answers").mkdir()
    for name in MODULES:
        (found / f"plugins/modules/{name}.py").write_text(STAND_IN.format(place=str(place / "answers")))
    return found


@pytest.fixture
def play(copy):
    """Return a function that runs tasks beside the real task files."""
    place = copy.parents[2]
    shutil.rmtree(place / "answers")
    shutil.rmtree(copy / "playbooks", ignore_errors=True)
    (place / "answers").mkdir()
    shutil.copytree(ROOT / "playbooks", copy / "playbooks")

    def run(tasks, *arguments, answers=None, variables=None, stubs=None):
        log = place / "answers/calls"
        log.unlink(missing_ok=True)
        for name, answer in (answers or {}).items():
            (place / f"answers/{name}.json").write_text(json.dumps(answer if isinstance(answer, list) else [answer]))
        for name, text in (stubs or {}).items():
            (copy / f"playbooks/tasks/{name}.yml").write_text(yaml.safe_dump(text, sort_keys=False))
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        hosts = {"all": {"hosts": {"node": {**local, **(variables or {})}}}}
        (place / "hosts.yml").write_text(yaml.safe_dump(hosts))
        text = [{"hosts": "all", "gather_facts": False, "tasks": tasks}]
        (copy / "playbooks/play.yml").write_text(yaml.safe_dump(text, sort_keys=False))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        environment.update(
            ANSIBLE_COLLECTIONS_PATH=str(place), ANSIBLE_NOCOLOR="1", ANSIBLE_LOCAL_TEMP=str(place / "tmp")
        )
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(place / "hosts.yml"), *arguments]
        done = subprocess.run(
            [*command, str(copy / "playbooks/play.yml")],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return types.SimpleNamespace(
            passed=done.returncode == 0,
            output=" ".join((done.stdout + done.stderr).split()),
            asked=lambda name: [asked for called, asked, _check in calls if called == name],
        )

    return run


@pytest.fixture
def role(copy):
    """A role nvidia_driver whose plan is the variable that it would set."""
    tasks = copy / "roles/nvidia_driver/tasks"
    tasks.mkdir(parents=True, exist_ok=True)
    (tasks / "plan_only.yml").write_text("- name: Plan\n  ansible.builtin.meta: noop\n")


def facts(**changes):
    """Facts of a node on which the gate is open for the kernel that runs."""
    entry = {"spec": "e", "found": True, "entry": f"e{GOOD}", "title": "Linux", "kernel": GOOD}
    module = {"path": "nvidia.ko", "indexed": True, "exists": True, "fits": True, "version": "550.163.01"}
    module.update(flavour="open", signer="")
    kernel = {"release": GOOD, "image": f"/boot/vmlinuz-{GOOD}", "modules": True, "headers": True, "running": True}
    kernel.update(nvidia=[module], initramfs={"image": "/boot/initrd", "nouveau": [], "blacklists": ["x"], "error": ""})
    return {
        "running_kernel": GOOD,
        "kernels": [kernel],
        "boot": {"default": entry, "one_shot": None, "next_kernel": GOOD, "entries": [entry]},
        "secure_boot": {"enforced": False, "state": "disabled", "source": "mokutil"},
        "reboot": {"required": True, "reasons": ["module 535 is loaded, library 550 is installed"]},
        "holders": [],
        **changes,
    }


# --- the plan of a driver update -------------------------------------------------------------------------------------

UPDATE = [
    {"name": "Plan", "ansible.builtin.include_tasks": "tasks/driver_update_plan.yml"},
    {
        "name": "Tell",
        "ansible.builtin.debug": {"msg": "BOOT={{ __gpu_node_driver.boot }} ALREADY={{ __gpu_node_driver.already }}"},
    },
]


def update(play, loaded, planned="open", recorded="open", changes=False, **more):
    driver = {"version": "550.163.01", "flavour": recorded}
    node = facts(
        package_database={"unfinished": {}, "interrupted": False, "transaction": None},
        record={"version": "550.163.01", "flavour": planned if not changes else recorded},
        loaded={"version": "550.163.01", "flavour": loaded},
        gpus=[{"address": "0000:17:00.0"}],
        rollback=None,
        **more,
    )
    return play(
        UPDATE,
        variables={
            "__gpu_node_info": {"driver": node},
            "__gpu_node_way_home": {
                "current": {"version": "550.163.01", "kernel": GOOD},
                "manifest": {"driver": driver},
            },
            "__gpu_node_cluster": {},
            "__nvidia_driver_planned": {
                "plan": {
                    "version": "550.163.01",
                    "flavour": planned,
                    "changes": changes,
                    "to_install": {},
                    "to_remove": [],
                }
            },
        },
    )


def test_another_flavour_of_the_same_version_takes_a_reboot_and_so_blocks_on_work(play, role):
    assert "BOOT=False ALREADY=True" in update(play, "open").output
    assert "BOOT=False ALREADY=False" in update(play, "open", changes=True).output
    assert "BOOT=True ALREADY=False" in update(play, "proprietary", recorded="proprietary", changes=True).output
    busy = update(play, "proprietary", recorded="proprietary", changes=True, holders=[HOLDER])
    assert not busy.passed and "900 python3 (serving.service)" in busy.output
    # Cut off before the reboot, and before the record.
    assert "BOOT=True ALREADY=False" in update(play, "proprietary", recorded="proprietary").output
    assert "BOOT=False ALREADY=False" in update(play, "open", recorded="proprietary").output
    # The module does not tell its flavour.
    assert "BOOT=False ALREADY=True" in update(play, "").output
    assert "BOOT=True" in update(play, "", recorded="proprietary", changes=True).output


# --- the reboot ------------------------------------------------------------------------------------------------------

REBOOT = [
    {
        "name": "Reboot",
        "ansible.builtin.include_tasks": "tasks/gated_reboot.yml",
        "vars": {"gpu_node_gate_version": "550.163.01"},
    }
]
#: What the module reboot says where the node is the controller itself: the gate was open.
OPEN = "would reboot the control node"


def test_drv_11_work_that_began_after_the_plan_is_not_killed_by_the_reboot(play):
    busy = {"driver": facts(holders=[HOLDER])}
    done = play(REBOOT, answers={"driver_info": busy})
    assert not done.passed and OPEN not in done.output
    assert "No reboot was done: GPUs are in use" in done.output and "900 python3 (serving.service)" in done.output
    assert done.asked("driver_info")[0]["check_holders"] is True
    assert OPEN in play(REBOOT, answers={"driver_info": busy}, variables={"gpu_node_allow_drain": True}).output
    service = {**HOLDER, "service": True}
    assert OPEN in play(REBOOT, answers={"driver_info": {"driver": facts(holders=[service])}}).output


def test_a_dry_run_tells_of_work_that_the_reboot_would_take_the_gpus_from(play):
    done = play(REBOOT, "--check", answers={"driver_info": {"driver": facts(holders=[HOLDER])}})
    assert "would reboot into" in done.output and "No reboot was done" not in done.output
    assert "the gate would refuse that" in done.output and "900 python3 (serving.service) uses the GPUs" in done.output
    idle = facts(holders=[HOLDER], reboot={"required": False, "reasons": []})
    assert "would not reboot" in play(REBOOT, "--check", answers={"driver_info": {"driver": idle}}).output
    assert play(REBOOT, answers={"driver_info": {"driver": idle}}).passed


# --- the way back of a node of a cluster ------------------------------------------------------------------------------

BACK = [
    {"name": "Ask", "ansible.builtin.include_tasks": "tasks/cluster_facts.yml"},
    {"name": "Tell", "ansible.builtin.debug": {"msg": "MEMBER={{ __gpu_node_cluster.member }}"}},
    {
        "name": "Take another answer",
        "ansible.builtin.set_fact": {"__gpu_node_cluster": "{{ cluster }}"},
        "when": "cluster is defined",
    },
    {
        "name": "Go back",
        "ansible.builtin.include_tasks": "tasks/roll_back.yml",
        "vars": {"gpu_node_rollback_drains": True},
    },
]
WAY = {
    "plan": {"symptoms": [], "kernel": GOOD, "reboot": True},
    "steps": [],
    "good": {"driver": "550.163.01", "kernel": GOOD, "time": "then", "source": "distro", "flavour": "open"},
}
MEMBER = {"member": True, "name": "gpu1", "cordoned": True, "ours": False, "problem": ""}


def back(play, way=None, **variables):
    stubs = {"cordon": [{"name": "Drain", "ansible.builtin.fail": {"msg": "DRAINED"}}]}
    return play(BACK, stubs=stubs, answers={"driver_rollback": {**WAY, **(way or {})}}, variables=variables)


def test_a_node_of_a_cluster_is_drained_before_the_way_back_reboots_it(play):
    refused = back(play, cluster=MEMBER)
    assert "Nothing was changed" in refused.output and "it is node gpu1 of a cluster" in refused.output
    assert len(refused.asked("driver_rollback")) == 1
    drained = back(play, cluster=MEMBER, gpu_node_allow_drain=True)
    assert "DRAINED" in drained.output and len(drained.asked("driver_rollback")) == 1
    lost = back(play, cluster={**MEMBER, "member": False, "problem": "it runs a kubelet"}, gpu_node_allow_drain=True)
    assert "Nothing was changed" in lost.output and "it runs a kubelet" in lost.output
    # Without a reboot nothing has to leave.
    still = back(play, {"plan": {**WAY["plan"], "reboot": False}}, cluster=MEMBER)
    assert len(still.asked("driver_rollback")) == 2


def test_a_machine_of_its_own_goes_back_without_a_cluster(play):
    alone = back(play)
    assert "MEMBER=False" in alone.output and len(alone.asked("driver_rollback")) == 2
    (rollback,) = yaml.safe_load((ROOT / "playbooks/rollback.yml").read_text(encoding="utf-8"))
    assert rollback["serial"] == "{{ gpu_node_serial | default(1) }}"


# --- what failed, and what serves ------------------------------------------------------------------------------------

NOTE = "/var/lib/gpu_node/rollback.json"
ATTEMPT = [
    {
        "name": "Try",
        "block": [
            {"name": "Come so far", "ansible.builtin.set_fact": {"__gpu_node_stage": "{{ stage }}"}},
            {"name": "Try it", "ansible.builtin.fail": {"msg": "it does not serve"}},
        ],
        "rescue": [
            {
                "name": "Come back",
                "ansible.builtin.include_tasks": "tasks/change_failed.yml",
                "vars": {"gpu_node_attempted": {"kernel": NEXT}, "gpu_node_attempted_owner": f"kernel_upgrade {NEXT}"},
            }
        ],
    }
]
#: In place of roll_back.yml: what it leaves for others.
WENT_BACK = [
    {
        "name": "Go back",
        "ansible.builtin.set_fact": {
            "gpu_node_rollback_result": "rolled back",
            "__gpu_node_way_back": {"plan": {"kernel": "{{ back_in }}"}},
        },
    }
]


def attempt(play, *arguments, stage="booted", back_in=GOOD, rollback=None, stubs=True, **more):
    return play(
        ATTEMPT,
        *arguments,
        stubs={"roll_back": WENT_BACK} if stubs else {},
        variables={
            "stage": stage,
            "back_in": back_in,
            "gpu_node_health_gate": "off",
            "__gpu_node_info": {"driver": facts(rollback=rollback)},
            "__gpu_node_way_home": {"current": {"version": "550.163.01", "kernel": GOOD}},
            "__gpu_node_cluster": {"ours": False},
            **more,
        },
    )


def noted(done):
    """Return what was written of what was tried; None where the record goes."""
    (files,) = [asked["files"] for asked in done.asked("managed_files")]
    (file,) = files
    assert file["path"] == NOTE
    return json.loads(file["content"]) if "content" in file else None


def test_a_failed_kernel_goes_and_is_remembered_beside_the_driver_that_failed(play):
    former = {"attempted": {"driver": "570.1.1"}, "active": {"driver": "550.163.01"}, "reason": "no", "time": "then"}
    done = attempt(play, rollback=former)
    assert not done.passed and f"kernel {NEXT} was given up; the node rolled back" in done.output
    assert [asked["owner"] for asked in done.asked("apt_transaction")] == [f"kernel_upgrade {NEXT}"]
    note = noted(done)
    assert note["attempted"] == {"kernel": NEXT} and "it does not serve" in note["reason"]
    assert note["given_up"]["driver"] == {
        "attempted": "570.1.1",
        "active": "550.163.01",
        "reason": "no",
        "time": "then",
    }


def test_the_kernel_that_runs_and_boots_is_never_removed(play):
    done = attempt(play, back_in=NEXT)
    assert not done.passed and done.asked("apt_transaction") == [] and noted(done)["attempted"] == {"kernel": NEXT}


def test_a_failed_kernel_is_left_whatever_a_rollback_would_prefer(play):
    for arguments in ((), ("-e", "gpu_node_rollback_prefer=driver")):
        done = attempt(play, *arguments, stubs=False, gpu_node_rollback_prefer="driver")
        assert done.asked("driver_rollback")[0]["prefer"] == "kernel"


def test_work_that_began_meanwhile_puts_a_change_off_and_does_not_give_it_up(play):
    done = attempt(play, gpu_node_reboot_denied=["900 python3"])
    assert f"kernel {NEXT} was put off" in done.output and noted(done) is None
    former = {"attempted": {"driver": "570.1.1"}, "reason": "no"}
    assert noted(attempt(play, gpu_node_reboot_denied=["900 python3"], rollback=former)) == former
    assert noted(attempt(play, stage="draining")) is None


KEEP = [
    {
        "name": "Keep",
        "ansible.builtin.include_tasks": "tasks/change_kept.yml",
        "vars": {"gpu_node_changed": "{{ changed_kind }}"},
    },
    {"name": "Tell", "ansible.builtin.debug": {"msg": "LACKS<{{ gpu_node_unrecorded }}>"}},
]
RECORD = {"check": "last_known_good.record", "target": "node", "status": "ok", "expected": None, "hint": ""}


def keep(play, kind="kernel", rollback=None, **finding):
    return play(
        KEEP,
        answers={"last_known_good": {"findings": [{**RECORD, **finding}]}},
        variables={
            "changed_kind": kind,
            "gpu_node_findings": [{"check": "driver.loaded", "status": "ok"}],
            "__gpu_node_info": {"driver": {"rollback": rollback}},
        },
    )


def test_a_kernel_that_serves_leaves_a_driver_that_was_given_up(play):
    slots = {kind: {"attempted": kind, "active": "x", "reason": "no", "time": "t"} for kind in ("driver", "kernel")}
    record = {"attempted": {"kernel": "kernel"}, "active": {}, "reason": "no", "time": "t", "given_up": slots}
    assert list(noted(keep(play, rollback=record))["given_up"]) == ["driver"]
    assert noted(keep(play, "driver", rollback=record)) is None and noted(keep(play)) is None


def test_a_state_without_a_record_is_told(play):
    assert "LACKS<>" in keep(play).output
    # It is there and too large for others beside it.
    assert "LACKS<>" in keep(play, status="warn", hint="it takes more").output
    refused = keep(play, status="warn", expected="a record of this state", hint="no room")
    assert refused.passed and "LACKS<no room>" in refused.output
    assert "LACKS<another run>" in keep(play, status="skipped", hint="another run").output
    for name in ("driver_update", "kernel_upgrade"):
        (the_play,) = yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text(encoding="utf-8"))
        assert (
            "gpu_node_unrecorded" in the_play["tasks"][-1]["when"] and "ansible.builtin.fail" in the_play["tasks"][-1]
        )


# --- the end ---------------------------------------------------------------------------------------------------------


def test_headers_of_tried_kernels_go_with_the_collection(play):
    tasks = [{"name": "Leave", "ansible.builtin.include_tasks": "tasks/uninstall_kernel.yml"}]
    ledger = {f"kernel_upgrade {NEXT}": [f"linux-headers-{NEXT}"], "kernel": ["x"], "nvidia_driver": ["y"]}
    stub = yaml.safe_load((ROOT / "playbooks/tasks/uninstall_kernel.yml").read_text(encoding="utf-8"))
    variables = {"__gpu_node_before": {"driver": {"kernel_hold": None}}}
    # Without a record nothing came.
    bare = play(tasks, variables=variables)
    assert bare.passed and [asked["owner"] for asked in bare.asked("apt_transaction")] == ["kernel"]
    (read,) = [task for task in stub if "ansible.builtin.slurp" in task]
    assert read["ansible.builtin.slurp"]["path"] == "/var/lib/gpu_node/packages.json"
    read.clear()
    content = base64.b64encode(json.dumps(ledger).encode()).decode()
    read.update({"name": "Read", "ansible.builtin.set_fact": {"__gpu_node_ledger": {"content": content}}})
    done = play(tasks, variables=variables, stubs={"uninstall_kernel": stub})
    assert done.passed
    first, second = done.asked("apt_transaction")
    assert (first["owner"], second["owner"]) == ("kernel", f"kernel_upgrade {NEXT}")
    assert "linux-headers-" in second["brought_only"] and not any("image" in name for name in second["brought_only"])
