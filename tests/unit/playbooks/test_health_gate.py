"""playbooks/tasks/gpu_health_gate.yml: what stops a node before and after work, and what does not.

The real tasks run with a stand-in for the module gpu_health that answers from a file, one line a call.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]

STAND_IN = """
import json
from ansible.module_utils.basic import AnsibleModule

names = "profile expected thresholds xid_overrides skip since deadline nvml_python nvml_library".split()
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in names}, supports_check_mode=True)
path = module.params["nvml_library"]
with open(path) as handle:
    answers = handle.read().splitlines()
with open(path, "w") as handle:
    handle.write("\\n".join(answers[1:] or answers))
with open(path + ".calls", "a") as handle:
    handle.write(json.dumps({**module.params, "check": module.check_mode}) + "\\n")
answer = json.loads(answers[0])
if "crash" in answer:
    module.fail_json(msg=answer["crash"])
module.exit_json(changed=False, **answer)
"""
FINDING = {"check": "gpu.lost", "target": "gpu1 0000:2a:00.0", "status": "fail"}
ROLE_PYTHON = "/opt/gpu_node/nvml/bin/python"


def answer(bad=(), nvml="ok", python=ROLE_PYTHON):
    return {
        "may_serve": not bad,
        "bad": list(bad),
        "findings": [FINDING] if bad else [{**FINDING, "status": "ok"}],
        "summary": {"nvml": nvml},
        "nvml_python": python,
    }


GOOD, LOST = answer(), answer(["gpu.lost [gpu1 0000:2a:00.0]: it is gone"])
NO_BINDING = answer(["node.nvml [node]: no nvidia-ml-py"], "no_binding", "/usr/bin/python3")
TASKS = """
- name: Go on
  ansible.builtin.include_tasks: tasks/roll_out.yml
- name: Gate
  ansible.builtin.include_tasks: tasks/gpu_health_gate.yml
  vars:
    gpu_node_health_moment: "{{ moment | default('after') }}"
- name: Go by
  ansible.builtin.copy:
    dest: "{{ gpu_health_nvml_library }}.told"
    content: "{{ {'outcome': gpu_node_health_outcome, 'findings': gpu_node_findings} | to_json }}"
    mode: "0644"
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Return a copy of the collection with the stand-in, and playbooks that pass all nodes or two at a time."""
    copy = tmp_path_factory.mktemp("collections") / "ansible_collections/aiinfra/gpu_node"
    copy.mkdir(parents=True)
    for name in ("plugins", "playbooks", "meta"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "galaxy.yml", copy)
    (copy / "plugins/action/gpu_health.py").unlink()
    (copy / "plugins/modules/gpu_health.py").write_text(STAND_IN, encoding="utf-8")
    tasks = yaml.safe_load(TASKS)
    for name, serial, kept in (("all", "100%", tasks[1:]), ("two", 2, tasks)):
        play = [{"hosts": "all", "gather_facts": False, "serial": serial, "tasks": kept}]
        (copy / f"playbooks/{name}.yml").write_text(yaml.safe_dump(play, sort_keys=False), encoding="utf-8")
    return copy


def run(collection, directory, nodes, *arguments, playbook="all"):
    """Run the gate.

    Args:
        nodes: Name to (answers, variables).

    Returns:
        The finished process; ``nodes`` has for each one whether it ``passed``, what it was ``asked`` and was ``told``.
    """
    hosts = {}
    for name, (answers, variables) in nodes.items():
        path = directory / f"{name}.answers"
        path.write_text("\n".join(json.dumps(item) for item in answers), encoding="utf-8")
        hosts[name] = {"gpu_health_nvml_library": str(path), "gpu_node_health_gate_pause": 0, **variables}
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": local}}), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment.update(
        ANSIBLE_COLLECTIONS_PATH=str(collection.parents[2]),
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_LOCAL_TEMP=str(directory / "ansible"),
    )
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(directory / "hosts.yml"),
            *arguments,
            str(collection / f"playbooks/{playbook}.yml"),
        ],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    done.nodes = {}
    for name in nodes:
        calls, told = directory / f"{name}.answers.calls", directory / f"{name}.answers.told"
        asked = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
        line = re.search(rf"^{name} +: .*$", done.stdout, re.MULTILINE)
        message = re.search(rf"^fatal: \[{name}\].*?(?=^\S+ \[|^TASK|^PLAY|\Z)", done.stdout, re.MULTILINE | re.DOTALL)
        done.nodes[name] = types.SimpleNamespace(
            passed="failed=0" in line.group() and "unreachable=0" in line.group() if line else None,
            asked=[json.loads(row) for row in asked],
            told=json.loads(told.read_text(encoding="utf-8")) if told.exists() else None,
            message=message.group() if message else "",
        )
    return done


HUNG = answer(["node.nvml [node]: it hangs"], "timeout")
BEFORE, ONCE = {"moment": "before"}, {"gpu_node_health_gate_attempts": 1}
SKIP = [{"check": "gpu.fan", "reason": "no fan"}]
ROLE = {
    "gpu_health_expected_gpus": 8,
    "gpu_health_thresholds": {"margin_warn_c": 7},
    "gpu_health_gate_strict": True,
    "gpu_health_profile": "h100-sxm",
    "gpu_health_repaired_at": "2026-01-31T10:00:00Z",
    "gpu_health_deadline_s": 4,
    "gpu_health_skip": SKIP,
}
#: Name to answers and variables; a name ends in _stops where the node must not go by.
NODES = {
    "good": ([GOOD], {}),
    "lost_before_stops": ([LOST], BEFORE),
    "settles": ([LOST, LOST, GOOD], {}),
    "never_settles_stops": ([LOST], {"gpu_node_health_gate_attempts": 3}),
    "recheck_stops": ([GOOD, GOOD, LOST, GOOD], {"gpu_node_health_gate_rechecks": 3}),
    "rechecks": ([GOOD], {"gpu_node_health_gate_rechecks": 2}),
    "crash_stops": ([{"crash": "thresholds are wrong"}], BEFORE),
    "crash_later_stops": ([GOOD, {"crash": "gone"}], {"gpu_node_health_gate_rechecks": 1}),
    "no_role_before": ([NO_BINDING], BEFORE),
    "no_role_after": ([NO_BINDING], {}),
    "role_lost_binding_stops": ([answer(["node.nvml [node]: none"], "no_binding")], BEFORE),
    **{f"{state}_before": ([answer(["down"], state)], BEFORE) for state in ("absent", "not_loaded", "mismatch")},
    **{f"{state}_after_stops": ([answer(["down"], state)], ONCE) for state in ("absent", "not_loaded", "mismatch")},
    "hung_before_stops": ([HUNG], BEFORE),
    "asked_before": ([GOOD], {**BEFORE, **ROLE}),
    "asked_after": ([GOOD], ROLE),
    "report": ([LOST], {**BEFORE, "gpu_node_health_gate": "report"}),
    "off": ([LOST], {"gpu_node_health_gate": "off"}),
    "off_for_yaml": ([LOST], {"gpu_node_health_gate": False}),
    "maybe_stops": ([GOOD], {"gpu_node_health_gate": "maybe"}),
}


@pytest.fixture(scope="module")
def gate(collection, tmp_path_factory):
    """Return one run over all of ``NODES``."""
    return run(collection, tmp_path_factory.mktemp("gate"), NODES, "-f", "4")


@pytest.mark.parametrize("name", NODES)
def test_who_goes_by(gate, name):
    """Includes hlt_04: a driver that hangs stops the work before it begins."""
    assert gate.nodes[name].passed is not name.endswith("_stops"), gate.nodes[name].message
    assert (gate.nodes[name].told is None) is name.endswith("_stops")


def test_a_good_node_is_asked_once(gate):
    node = gate.nodes["good"]
    assert node.told["outcome"] == {"passed": True, "skipped": "", "lines": []}
    assert [finding["status"] for finding in node.told["findings"]] == ["ok"]
    assert len(node.asked) == 1 and not node.asked[0]["check"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lost_before_stops", ("Nothing was changed", "before the work", "it is gone")),
        ("never_settles_stops", ("after the work", "it is gone")),
        ("recheck_stops", ("it is gone",)),
        ("crash_stops", ("thresholds are wrong",)),
        ("crash_later_stops", ("gone",)),
        ("maybe_stops", ("allowed are enforce, report and off",)),
    ],
)
def test_who_is_stopped_is_told_why(gate, name, words):
    text = " ".join(gate.nodes[name].message.split())
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("name", "times"),
    [("lost_before_stops", 1), ("settles", 3), ("never_settles_stops", 3), ("recheck_stops", 4), ("rechecks", 3),
     ("no_role_after", 1), ("off", 0), ("off_for_yaml", 0), ("maybe_stops", 0)],
)  # fmt: skip
def test_how_often_a_node_is_asked(gate, name, times):
    assert len(gate.nodes[name].asked) == times


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_role_before", "/usr/bin/python3 has no nvidia-ml-py, which the role gpu_health brings"),
        ("no_role_after", "/usr/bin/python3 has no nvidia-ml-py, which the role gpu_health brings"),
        ("mismatch_before", "the driver does not answer (NVML: mismatch)"),
        ("off", "gpu_node_health_gate is off"),
    ],
)
def test_what_was_not_judged_says_why_and_is_never_ok(gate, name, reason):
    told = gate.nodes[name].told
    assert reason in told["outcome"]["skipped"]
    assert [(row["check"], row["status"]) for row in told["findings"]] == [("gpu_health.gate", "skipped")]
    assert reason in told["findings"][0]["hint"]


def test_report_tells_and_goes_on(gate):
    told = gate.nodes["report"].told
    assert not told["outcome"]["passed"] and "it is gone" in told["outcome"]["lines"][0]
    assert told["findings"] == [FINDING]


def test_the_variables_of_the_role_are_what_is_judged_by(gate):
    (asked,) = gate.nodes["asked_after"].asked
    assert asked["thresholds"] == {"margin_warn_c": 7, "strict_pending": True}
    assert (asked["expected"], asked["profile"], asked["deadline"]) == (8, "h100-sxm", 4)
    assert asked["since"] == "2026-01-31T10:00:00Z" and asked["nvml_python"] is None
    assert asked["skip"] == SKIP


def test_only_before_the_work_the_drivers_version_is_left_out(gate):
    (asked,) = gate.nodes["asked_before"].asked
    assert [row["check"] for row in asked["skip"]] == ["gpu.fan", "node.driver_match", "node.driver_pin"]
    assert all(row["reason"] for row in asked["skip"])


def test_a_bad_node_stops_the_batches_behind_it(collection, tmp_path):
    nodes = {"a": ([GOOD], BEFORE), "b": ([LOST], BEFORE), "c": ([GOOD], BEFORE)}
    done = run(collection, tmp_path, nodes, playbook="two")
    assert done.returncode != 0
    assert "left as it is, since the roll-out failed on b" in done.stdout
    assert [len(node.asked) for node in done.nodes.values()] == [1, 1, 0]
    assert done.nodes["a"].passed and not done.nodes["b"].passed


def test_the_gate_judges_in_check_mode(collection, tmp_path):
    done = run(collection, tmp_path, {"a": ([LOST], BEFORE), "b": ([GOOD], BEFORE)}, "--check")
    assert not done.nodes["a"].passed and done.nodes["b"].passed
    assert all(node.asked[0]["check"] for node in done.nodes.values())


def playbook(name):
    return yaml.safe_load((ROOT / "playbooks" / name).read_text(encoding="utf-8"))


def flat(tasks):
    for task in tasks:
        yield task
        for section in ("block", "rescue", "always"):
            yield from flat(task.get(section, []))


@pytest.mark.parametrize("name", ["driver_update.yml", "kernel_upgrade.yml"])
def test_planned_changes_ask_before_the_block_that_is_undone(name):
    """What is refused before anything was changed must not start a way back."""
    (play,) = playbook(name)
    names = [task.get("ansible.builtin.include_tasks") for task in play["tasks"]]
    gate, block = names.index("tasks/gpu_health_gate.yml"), next(i for i, t in enumerate(play["tasks"]) if "block" in t)
    assert gate < block
    assert play["tasks"][gate]["vars"] == {"gpu_node_health_moment": "before"}
    assert play["tasks"][gate]["when"] == play["tasks"][block]["when"]


@pytest.mark.parametrize("name", ["tasks/verify_change.yml", "tasks/change_failed.yml", "rollback.yml"])
def test_all_changes_ask_afterwards(name):
    content = playbook(name)
    tasks = content[0]["tasks"] if "hosts" in content[0] else content
    names = [str(task.get("ansible.builtin.include_tasks", "")).rpartition("/")[2] for task in flat(tasks)]
    assert "gpu_health_gate.yml" in names
    if "uncordon.yml" in names:
        assert names.index("gpu_health_gate.yml") < names.index("uncordon.yml")
