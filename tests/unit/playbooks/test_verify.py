"""playbooks/verify.yml and site.yml with stand-in roles: what goes wrong on a node is in the report, never missing.

The real playbooks and plugins run against roles of a few lines, whose findings and faults the inventory decides.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = ("preflight", "tuning", "kernel", "nvidia_driver", "nvidia_persistenced", "nvidia_fabricmanager", "gpu_health")

MAIN = """
- name: Fail where the inventory says so
  ansible.builtin.fail:
    msg: "{{ inventory_hostname }} is no good"
  when: fault_main | default('') == role_name.split('.')[-1]
"""
# A node "dies" when its connection changes to an address where nothing listens. One layer has faults: tasks cost time.
FAULTS = """
- name: Lose the node where the inventory says so
  ansible.builtin.set_fact:
    ansible_connection: ssh
    ansible_host: 127.0.0.1
    ansible_port: 1
  when: fault_verify | default('') == 'dies'
- name: Crash where the inventory says so
  ansible.builtin.fail:
    msg: "no \\u001b[31mluck\\u001b[0m \\u00e9"
  when: fault_verify | default('') == 'crashes'
"""
VERIFY = """
- name: Ask the node
  ansible.builtin.command: /bin/true
  check_mode: false
  changed_when: false
  register: __answer
- name: Report a finding
  ansible.builtin.set_fact:
    gpu_node_findings: "{{ gpu_node_findings | default([]) + [finding] }}"
  vars:
    finding:
      check: "{{ role_name.split('.')[-1] }}.state"
      target: "{{ __answer.cmd[0] if gpu_node_collect else gpu_node_must_collect }}"
      status: "{{ (statuses | default({}))[role_name.split('.')[-1]] | default('ok') }}"
      value: [a, {b: [1, 2.5, null]}]
      expected: "b"
      source: test
      hint: do this
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Return a copy of the collection with stand-in roles, and the root that Ansible searches."""
    root = tmp_path_factory.mktemp("collections")
    copy = root / "ansible_collections/aiinfra/gpu_node"
    copy.mkdir(parents=True)
    for name in ("plugins", "playbooks", "meta"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("galaxy.yml", "site.yml"):
        shutil.copy(ROOT / name, copy)
    for role in ROLES:
        tasks = copy / "roles" / role / "tasks"
        tasks.mkdir(parents=True)
        (tasks / "main.yml").write_text("---" + MAIN, encoding="utf-8")
        # Entry point of nvidia_driver that playbooks/preflight.yml calls; here it has nothing to refuse.
        (tasks / "plan_only.yml").write_text("---\n[]\n", encoding="utf-8")
        (tasks / "verify.yml").write_text("---" + (FAULTS if role == "kernel" else "") + VERIFY, encoding="utf-8")
    return copy


def run_playbook(collection, directory, nodes, *arguments, playbook="playbooks/verify.yml"):
    """Run a playbook over nodes ; return the result with report and JUnit root, None where not written."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {name: {**local, **variables} for name, variables in nodes.items()}
    inventory = directory / "hosts.yml"
    inventory.write_text(
        yaml.safe_dump({"gpu_nodes": {"hosts": hosts}, "other": {"hosts": {"elsewhere": {}}}}, sort_keys=False)
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment.update(
        ANSIBLE_COLLECTIONS_PATH=str(collection.parents[2]),
        ANSIBLE_INJECT_FACT_VARS="false",
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_SSH_ARGS="-o ConnectTimeout=1 -o BatchMode=yes",
        ANSIBLE_LOCAL_TEMP=str(directory / "ansible"),
    )
    program = str(Path(sys.executable).parent / "ansible-playbook")
    done = subprocess.run(
        [program, "-i", str(inventory), *arguments, str(collection / playbook)],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    report, junit = directory / "reports/report.json", directory / "reports/junit.xml"
    done.report = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    done.junit = ElementTree.parse(junit).getroot() if junit.exists() else None
    return done


@pytest.fixture
def play(collection, tmp_path):
    """Return ``run_playbook`` for this test's collection and directory."""
    return functools.partial(run_playbook, collection, tmp_path)


DEAD = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def node(done, name):
    """Return one node of the report."""
    return next(entry for entry in done.report["nodes"] if entry["name"] == name)


def statuses(done, name):
    """Return check to status of one node."""
    return {finding["check"]: finding["status"] for finding in node(done, name)["findings"]}


@pytest.fixture(scope="module")
def mixed(collection, tmp_path_factory):
    """Return one run over nodes with every kind of fault, beside good ones."""
    return run_playbook(
        collection,
        tmp_path_factory.mktemp("mixed"),
        {
            "good": {},
            "tolerable": {"statuses": {"tuning": "warn", "kernel": "skipped"}},
            "failing": {"statuses": {"tuning": "fail"}},
            "crashing": {"fault_verify": "crashes"},
            "dead": DEAD,
            "dying": {"fault_verify": "dies"},
            "bare": {"ansible_python_interpreter": "/nonexistent/python3"},
        },
    )


def test_a_bad_node_fails_the_run_after_the_report(mixed):
    assert mixed.returncode != 0
    assert mixed.report["verdict"] == "FAIL"
    failed = set(re.findall(r"^(\w+) .*failed=1", mixed.stdout, re.MULTILINE))
    assert failed == {"failing", "crashing", "dead", "dying", "bare"}
    assert mixed.stdout.index("VERDICT: FAIL (2 of 7 nodes pass)") < mixed.stdout.index("This node may not serve")


def test_good_nodes_pass_beside_bad_ones(mixed):
    assert "VERDICT good: PASS (7 ok)" in mixed.stdout
    assert "VERDICT tolerable: PASS (5 ok, 1 skipped, 1 warn)" in mixed.stdout
    assert "VERDICT failing: FAIL (6 ok, 1 fail)" in mixed.stdout


def test_a_crash_in_one_layer_is_an_error_and_the_others_are_verified(mixed):
    assert statuses(mixed, "crashing") == {
        "preflight.state": "ok",
        "tuning.state": "ok",
        "kernel.completed": "error",
        "nvidia_driver.state": "ok",
        "nvidia_persistenced.state": "ok",
        "nvidia_fabricmanager.state": "ok",
        "gpu_health.state": "ok",
    }
    findings = node(mixed, "crashing")["findings"]
    crash = next(finding for finding in findings if finding["check"] == "kernel.completed")
    assert crash["target"].endswith("Crash where the inventory says so")
    assert "luck" in crash["value"]


def test_a_dead_node_beside_live_ones_is_an_error(mixed):
    assert statuses(mixed, "dead") == {"node.reachable": "error"}
    assert "onnection refused" in node(mixed, "dead")["findings"][0]["value"]


def test_a_node_that_dies_half_way_is_an_error(mixed):
    found = statuses(mixed, "dying")
    assert [check for check, status in found.items() if status == "ok"] == ["preflight.state", "tuning.state"]
    assert found["node.reachable"] == "error"
    assert "nvidia_driver.state" not in found


def test_a_node_without_python_is_an_error(mixed):
    assert statuses(mixed, "bare") == {"node.reachable": "error"}


def test_the_junit_file_has_a_suite_per_node(mixed):
    assert [suite.get("name") for suite in mixed.junit] == [entry["name"] for entry in mixed.report["nodes"]]


def test_all_nodes_dead_still_gives_the_report(play):
    done = play({"dead": DEAD, "gone": DEAD, "dying": {"fault_verify": "dies"}})
    assert done.returncode != 0
    assert "VERDICT: FAIL (0 of 3 nodes pass)" in done.stdout
    assert statuses(done, "dead") == statuses(done, "gone") == {"node.reachable": "error"}


def test_nothing_to_verify_is_a_failure(play):
    done = play({"a": {}}, "-e", "target=gpu_nodez")
    assert done.returncode != 0
    assert "the inventory has no host in gpu_nodez" in " ".join(done.stdout.split())


def test_limit_reports_the_named_nodes_only(play):
    done = play({"a": {}, "b": {"statuses": {"tuning": "fail"}}}, "--limit", "a")
    assert done.returncode == 0, done.stdout
    assert [entry["name"] for entry in done.report["nodes"]] == ["a"]
    assert "changed=0" in done.stdout and "changed=1" not in done.stdout
    assert "WARNING" not in done.stdout and "DEPRECATION" not in done.stdout


def test_svc_04_without_switches_the_fabric_manager_is_left_out(play):
    done = play({"a": {"nvidia_driver_fabric_relevant": False}})
    assert "nvidia_fabricmanager.state" not in statuses(done, "a") and node(done, "a")["verdict"] == "PASS"


def test_check_mode_judges_another_target_but_writes_nothing(play):
    done = play({"a": {}, "b": {"statuses": {"tuning": "fail"}}}, "--check", "-e", "target=b")
    assert done.returncode != 0
    assert "VERDICT: FAIL (0 of 1 nodes pass)" in done.stdout
    assert done.report is None


def test_site_goes_on_without_a_node_that_fails_and_reports_it(play):
    done = play({"a": {"fault_main": "preflight"}, "b": {"fault_main": "kernel"}, "c": {}}, playbook="site.yml")
    assert done.returncode != 0
    assert statuses(done, "a") == statuses(done, "b") == {"report.findings": "error"}
    assert node(done, "c")["verdict"] == "PASS"
    assert done.stdout.index("VERDICT: FAIL (1 of 3 nodes pass)") < done.stdout.index("PLAY RECAP")


def test_site_in_check_mode_shows_the_state_and_does_not_fail(play):
    done = play({"a": {"statuses": {"nvidia_driver": "fail"}}}, "--check", playbook="site.yml")
    assert done.returncode == 0, done.stdout
    assert "VERDICT a: FAIL" in done.stdout
