"""The task files that take a node out of its cluster, against a stand-in for kubectl, which keeps nodes in a file.

The stand-in knows only what the task files use: listing nodes, a merge patch of one, and drain.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KUBECTL = """#!{python}
import json, sys
path, log = {state!r}, {log!r}
words = sys.argv[1:]
open(log, "a").write(" ".join(words) + "\\n")
nodes = json.load(open(path))

def merge(old, new):
    for key, value in new.items():
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict):
            old[key] = merge(old.get(key, {{}}), value)
        else:
            old[key] = value
    return old

if words[:2] == ["get", "nodes"]:
    print(json.dumps({{"items": nodes}}))
elif words[:2] == ["patch", "node"]:
    node = next(item for item in nodes if item["metadata"]["name"] == words[2])
    merge(node, json.loads(words[words.index("-p") + 1]))
    json.dump(nodes, open(path, "w"))
elif words[0] == "drain":
    sys.exit("error: cannot evict pod serving/solo" if "locked" in words[1] else 0)
"""
PLAY = """
- hosts: gpu_nodes
  gather_facts: false
  connection: local
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
  tasks:
    - name: Look
      ansible.builtin.include_tasks: "{{ tasks }}/cluster_facts.yml"
    - name: Cordon
      ansible.builtin.include_tasks: "{{ tasks }}/cordon.yml"
      when: __gpu_node_cluster.member and leave | default(true)
    - name: Look at what a later run would find
      ansible.builtin.include_tasks: "{{ tasks }}/cluster_facts.yml"
    - name: Uncordon
      ansible.builtin.include_tasks: "{{ tasks }}/uncordon.yml"
      when: come_back
"""
MARK = {"aiinfra.gpu_node/cordoned-by": "aiinfra.gpu_node"}


class Cluster:
    """Nodes behind the stand-in, and the playbook that cordons one of them."""

    def __init__(self, folder, *nodes):
        self.state, self.log = folder / "nodes.json", folder / "calls"
        self.state.write_text(json.dumps(nodes))
        self.log.touch()
        kubectl = folder / "kubectl"
        kubectl.write_text(KUBECTL.format(python=sys.executable, state=str(self.state), log=str(self.log)))
        kubectl.chmod(0o755)
        (folder / "play.yml").write_text(PLAY)
        self.folder = folder

    def run(self, host, come_back=True, **more):
        variables = {
            "tasks": str(ROOT / "playbooks/tasks"),
            "gpu_node_kubectl": [str(self.folder / "kubectl")],
            "come_back": come_back,
            **more,
        }
        inventory = f"gpu_nodes:\n  hosts:\n    {host}:\nk3s_server:\n  hosts:\n    {host}:\n"
        (self.folder / "hosts.yml").write_text(inventory)
        command = ["ansible-playbook", "-i", str(self.folder / "hosts.yml"), str(self.folder / "play.yml")]
        done = subprocess.run(
            [*command, "-e", json.dumps(variables)],
            cwd=ROOT,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "ANSIBLE_NOCOLOR": "1",
                "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"],
            },
        )
        return done.returncode, done.stdout + done.stderr

    def calls(self):
        return [line.split()[0] for line in self.log.read_text().splitlines()]

    def node(self, name):
        (found,) = [item for item in json.loads(self.state.read_text()) if item["metadata"]["name"] == name]
        return found["spec"].get("unschedulable", False), found["metadata"].get("annotations", {})


def member(name, cordoned=False, annotations=None):
    spec = {"unschedulable": True} if cordoned else {}
    return {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": spec}


@pytest.fixture
def cluster(tmp_path):
    return Cluster(
        tmp_path,
        member("gpu1", annotations={"team": "vision"}),
        member("gpu2", cordoned=True),
        member("gpu3", cordoned=True, annotations=MARK),
        member("locked"),
    )


def test_a_cordon_of_ours_is_set_before_the_drain_and_lifted_after_it(cluster):
    rc, output = cluster.run("gpu1.example.com", come_back=False)
    assert rc == 0, output
    assert cluster.calls() == ["get", "patch", "drain", "get"]
    assert cluster.node("gpu1") == (True, {"team": "vision", **MARK})
    rc, output = cluster.run("gpu1", leave=False)
    assert rc == 0, output
    assert cluster.node("gpu1") == (False, {"team": "vision"})


def test_a_node_that_a_person_cordoned_is_drained_and_stays_cordoned(cluster):
    rc, output = cluster.run("gpu2")
    assert rc == 0, output
    assert cluster.calls() == ["get", "drain", "get"]
    assert cluster.node("gpu2") == (True, {})


def test_the_cordon_of_a_run_that_was_killed_is_lifted_by_the_next(cluster):
    rc, output = cluster.run("gpu3")
    assert rc == 0, output
    assert cluster.calls() == ["get", "drain", "get", "patch"]
    assert cluster.node("gpu3") == (False, {})


def test_a_drain_that_is_refused_stops_the_change(cluster):
    rc, output = cluster.run("locked")
    assert rc != 0 and "cannot evict pod serving/solo" in output
    assert cluster.node("locked") == (True, MARK)
