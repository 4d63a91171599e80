"""The last known good state on one node, in order: recorded, left alone, cut by a kill, without repository, pruned."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from tests.lab.conftest import ROOT, wait_until

NODE_UP = ("--suite", "bookworm", "--gpus", "2")
OLD, NEW = "535.183.06", "535.261.03"
PLACE = "/var/lib/gpu_node/last_known_good"
SNAPSHOT = f"find {PLACE} -printf '%P %y %i %s %T@ %l\\n' | sort"


def command(node, arguments, *options):
    """Return the command line that calls the module alone, which takes a fraction of a verification's time."""
    place = ["-i", "inventories/lab", "-i", str(node.inventory)]
    return ["ansible", node.name, *place, *options, "-m", "aiinfra.gpu_node.last_known_good", "-a", arguments]


def call(node, arguments="", *options):
    """Call the module and return its result."""
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = subprocess.run(command(node, arguments, "-o", *options), cwd=ROOT, capture_output=True, text=True, env=env)
    assert "{" in done.stdout, done.stdout + done.stderr
    return json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])[0]


def info(node):
    """Return the record, with every file proven."""
    return call(node, "state=described verify_files=true")


def recorded(node):
    """Return whether anything is recorded."""
    return node.sh(f"test -e {PLACE}", check=False).returncode == 0


def names(node):
    return sorted(node.out(f"ls -A {PLACE}/generations").split())


@pytest.fixture(scope="module")
def converged(lab_node):
    """A node with the older driver loaded, after the reboot that it needs."""
    first = lab_node.play("site.yml", nvidia_driver_version=OLD).passed()
    # Its module is not loaded yet: nothing to record, and the report says why.
    assert "a reboot is pending" in first.output and not recorded(lab_node)
    lab_node.reboot()
    return lab_node


def test_a_run_that_passes_records_whole_files_once(converged):
    node = converged
    off = node.play("playbooks/verify.yml", nvidia_driver_version=OLD, gpu_node_record_good=False).passed()
    assert off.changed(node.name) == 0 and not recorded(node)
    dry = call(node, "", "--check")
    assert dry["changed"] and dry["findings"][0]["hint"] == "it would be recorded" and not recorded(node)

    assert node.play("site.yml", nvidia_driver_version=OLD).passed().changed(node.name) == 1
    found = info(node)
    assert found["damage"] == [] and found["current"]["version"] == OLD
    record = json.loads(node.out("cat /var/lib/gpu_node/driver.json"))
    members = {**record["packages"], **record["independent"]}
    packages = found["manifest"]["packages"]
    assert {name: item["version"] for name, item in packages.items() if not item["companion"]} == members
    assert packages["dkms"]["companion"]
    assert set(found["manifest"]["holds"]) >= set(members)
    (archive,) = found["manifest"]["module_archives"]
    assert archive["kernel"] == found["manifest"]["kernel"] == node.out("uname -r")
    assert node.out(f"tar -tzf {PLACE}/current/{archive['file']} | grep -c '\\.ko'") != "0"

    before = node.out(SNAPSHOT)
    again = node.play("playbooks/verify.yml", nvidia_driver_version=OLD).passed()
    assert again.changed(node.name) == 0 and "last_known_good " in again.output
    assert node.out(SNAPSHOT) == before


def test_drv_01_a_driver_that_fails_is_not_recorded(converged):
    node = converged
    node.sh("mv /lib/modules/$(uname -r)/modules.dep /root/; touch /lib/modules/$(uname -r)/modules.dep")
    before = node.out(SNAPSHOT)
    play = node.play("playbooks/verify.yml", nvidia_driver_version=OLD).refused("driver.module")
    assert play.changed(node.name) == 0 and node.out(SNAPSHOT) == before
    node.sh("mv /root/modules.dep /lib/modules/$(uname -r)/")


def test_drv_10_a_kill_while_recording_keeps_the_former_record(converged):
    node = converged
    node.play("tests/lab/driver.yml", nvidia_driver_version=NEW).passed()
    # The new driver waits for its reboot; what is known to be good is the old one.
    assert not call(node)["changed"] and info(node)["current"]["version"] == OLD
    node.reboot()
    process = subprocess.Popen(command(node, ""), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    building = f"ls -d {PLACE}/generations/.new-*"
    wait_until(
        "the recording",
        lambda: node.sh(building, check=False).returncode == 0,
        lambda: process.poll() is not None and "the run ended first",
    )
    subprocess.run(["docker", "kill", node.name], check=True, stdout=subprocess.DEVNULL)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(["docker", "start", node.name], check=True, stdout=subprocess.DEVNULL)
    state = "systemctl is-system-running --wait"
    wait_until("systemd", lambda: node.sh(state, check=False).stdout.strip() in ("running", "degraded"))
    assert any(name.startswith(".new-") for name in names(node))
    found = info(node)
    assert found["current"]["version"] == OLD and found["damage"] == []

    result = call(node)
    assert result["changed"] and len(result["swept"]) == 1
    found = info(node)
    assert found["damage"] == [] and [one["version"] for one in found["generations"]] == [NEW, OLD]
    assert not any(name.startswith(".") for name in names(node))
    assert not call(node)["changed"]


def test_without_repository_files_come_from_older_records_and_the_cache_or_nothing_is_recorded(converged):
    node = converged
    node.sh(
        "mkdir -p /root/away; mv /etc/apt/sources.list.d /var/lib/apt/lists /root/away/; mkdir -p /var/lib/apt/lists"
    )
    current = info(node)["current"]["path"]
    # A file that the record lost comes from nowhere: the record stays as it is, and the finding says what is missing.
    node.sh(f"mv {current}/debs/libcuda1_*.deb /root/away/")
    refused = call(node)
    assert not refused["changed"] and refused["findings"][0]["status"] == "warn"
    assert "libcuda1: no package source offers this version" in refused["findings"][0]["hint"]
    assert info(node)["current"]["path"] == current
    # From apt's cache, proven by what is installed; the rest comes from the record itself.
    node.sh("mv /root/away/libcuda1_*.deb /var/cache/apt/archives/")
    assert call(node)["changed"]
    found = info(node)
    assert found["current"]["path"] != current and found["damage"] == []
    assert [one["version"] for one in found["generations"]] == [NEW, OLD]


def test_fewer_generations_less_room_and_none(converged):
    node = converged
    assert "wants 1 to 10" in call(node, "generations=11")["msg"]
    result = call(node, "max_size_mib=1")
    assert result["changed"] and "more than max_size_mib (1) allows" in result["findings"][0]["hint"]
    assert [one["version"] for one in info(node)["generations"]] == [NEW]
    assert not call(node, "generations=1")["changed"]
    assert call(node, "state=absent")["changed"] and not recorded(node)
    assert not call(node, "state=absent")["changed"]
