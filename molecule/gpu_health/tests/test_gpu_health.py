"""The timer on a node: what it writes, what it finds by itself, and that nothing stays behind."""

from __future__ import annotations

import json
import re
import time

import pytest

SERVICE = "gpu-node-health.service"
TIMER = "gpu-node-health.timer"
STATE = "/var/lib/gpu_node/health/state.json"
METRICS = "/var/lib/prometheus/node-exporter/gpu_node_health.prom"
CONFIG = "/etc/gpu_node/health.json"
GPU1 = "gpu1 0000:"
#: Seconds; nothing takes that long, but the machine may be busy.
PATIENCE = 120


def run_now(host):
    """Run the checks once and return what they wrote."""
    done = host.run(f"systemctl start {SERVICE}")
    return done.rc, json.loads(host.file(STATE).content_string)


def metrics(host):
    """Return name with labels to value."""
    lines = host.file(METRICS).content_string.splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))


def statuses(state, check):
    return {one["target"]: one["status"] for one in state["findings"] if one["check"] == check}


def soon(host, question):
    """Wait until a question about a run of the timer is answered with yes."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        answer = question()
        if answer:
            return answer
        time.sleep(0.5)
    raise AssertionError(host.run(f"systemctl status {TIMER} {SERVICE}; journalctl -n 30 -u {SERVICE}").stdout)


@pytest.fixture
def healthy(host):
    """Give the node back as it was, whatever a test did to it; meanwhile the timer rests, so only our runs count."""
    host.run_expect([0], f"systemctl stop {TIMER} {SERVICE}")
    state = host.file("/var/lib/simgpu/state").content_string
    config = host.file(CONFIG).content_string
    yield host
    for path, text in (("/var/lib/simgpu/state", state), (CONFIG, config)):
        host.run_expect([0], "printf %%s %s > %s", text, path)
    host.run_expect([0], "truncate -s 0 /run/simgpu/kmsg")
    # What is damped counts the samples of the test as well, so history goes with them.
    host.run_expect([0], "rm -f /var/lib/gpu_node/health/history.json")
    rc, after = run_now(host)
    host.run_expect([0], f"systemctl start {TIMER}")
    assert (rc, after["verdict"]) == (0, "ok"), after["bad"]


def test_the_timer_runs_and_survives_a_boot(host):
    assert host.run(f"systemctl is-enabled {TIMER}").stdout.strip() == "enabled"
    assert host.run(f"systemctl is-active {TIMER}").stdout.strip() == "active"


def test_a_good_node_is_ok_in_every_form(host):
    rc, state = run_now(host)
    assert (rc, state["verdict"], state["may_serve"]) == (0, "ok", True), state["bad"]
    assert len(state["gpus"]) == 2 and {gpu["status"] for gpu in state["gpus"]} == {"ok"}
    assert state["counts"]["ok"] > 60
    assert metrics(host)["gpu_node_health_verdict"] == "0"


def test_it_runs_again_by_itself(host):
    key = "gpu_node_health_last_run_timestamp_seconds"
    before = float(metrics(host)[key])
    soon(host, lambda: float(metrics(host)[key]) > before)


def test_files_are_for_everybody_to_read_and_to_nobody_to_write(host):
    for path in (STATE, METRICS, CONFIG, "/opt/gpu_node/health/current/run.py", "/opt/gpu_node/nvml/gpu-node.json"):
        found = host.file(path)
        assert (found.user, found.group, found.mode) == ("root", "root", 0o644), path


def test_the_code_is_that_of_the_collection_and_whole(host):
    generation = host.run("readlink /opt/gpu_node/health/current").stdout.strip()
    assert re.fullmatch("[0-9a-f]{16}", generation)
    assert f'agent="{generation}"' in host.file(METRICS).content_string
    assert host.run("ls /opt/gpu_node/health").stdout.split().count(generation) == 1


def test_no_package_was_installed_for_it(host):
    for name in ("python3-pynvml", "python3-pip", "python3-venv"):
        assert not host.package(name).is_installed, name


def test_hlt_03_a_lost_gpu_does_not_hide_the_other(healthy):
    healthy.run_expect([0], "simgpu set gpu=1 lost=1")
    rc, state = run_now(healthy)
    # The unit has done its work: that a card is bad is no failure of the unit.
    assert rc == 0 and healthy.run("systemctl is-system-running").stdout.strip() == "running"
    assert state["verdict"] == "fail" and not state["may_serve"]
    assert [gpu["status"] for gpu in state["gpus"]] == ["ok", "fail"]
    assert metrics(healthy)["gpu_node_health_may_serve"] == "0"
    said = healthy.run("journalctl --identifier=gpu-node-health --priority=err --output=cat -n 20").stdout
    assert re.search(r"^fail \(was ok\): gpu\.lost \[gpu1 ", said, re.MULTILINE), said


def test_hlt_04_a_hang_is_a_verdict_in_time_and_leaves_nothing(healthy):
    healthy.run_expect([0], "simgpu set hang.nvmlDeviceGetTemperature=1")
    started = time.monotonic()
    rc, state = run_now(healthy)
    assert time.monotonic() - started < PATIENCE
    assert rc == 0 and state["summary"]["hung_in"].startswith("nvmlDeviceGet"), state["summary"]
    assert statuses(state, "node.nvml") == {"node": "fail"} and not state["may_serve"]
    assert healthy.run("pgrep -f '[n]vml/bin/python'").stdout == ""


def test_hlt_14_an_error_in_the_log_stays_a_finding_until_the_repair(healthy):
    healthy.run_expect([0], "simgpu xid gpu=1 79 'GPU has fallen off the bus.'")
    for _run in range(2):
        _rc, state = run_now(healthy)
        found = statuses(state, "node.kernel_log")
        assert [status for target, status in found.items() if target.startswith(GPU1)] == ["fail"], found
    config = json.loads(healthy.file(CONFIG).content_string)
    config["repaired_at"] = healthy.run("date --utc +%Y-%m-%dT%H:%M:%SZ -d '+1 second'").stdout.strip()
    time.sleep(1.5)
    healthy.run_expect([0], "printf %%s %s > %s", json.dumps(config), CONFIG)
    _rc, state = run_now(healthy)
    assert "fail" not in statuses(state, "node.kernel_log").values(), state["bad"]


def test_a_gpu_that_is_gone_takes_its_series_with_it(healthy):
    assert any('gpu="1"' in key for key in metrics(healthy))
    healthy.run_expect([0], "simgpu set gpu.count=1")
    _rc, state = run_now(healthy)
    assert state["verdict"] == "fail"
    assert not any('gpu="1"' in key for key in metrics(healthy))


def test_a_damaged_configuration_is_an_error_and_not_the_last_good_verdict(healthy):
    healthy.run_expect([0], "printf %%s %s > %s", "{", CONFIG)
    rc, state = run_now(healthy)
    assert rc != 0 and state["verdict"] == "error" and "run the role gpu_health" in state["problem"]


def test_many_runs_leave_no_process_and_no_file(host):
    def left():
        files = host.run("find /var/lib/gpu_node/health /var/lib/prometheus/node-exporter /opt/gpu_node | sort").stdout
        return files, host.run("pgrep -c -f '/opt/[g]pu_node'").stdout.strip()

    # The timer itself may be at work: without it only ours run.
    host.run_expect([0], f"systemctl stop {TIMER} {SERVICE}")
    try:
        before = left()
        for _run in range(10):
            assert run_now(host)[0] == 0
        assert left() == before
    finally:
        host.run_expect([0], f"systemctl start {TIMER}")


def test_the_sandbox_is_as_closed_as_documented(host):
    said = host.run(f"systemd-analyze security --no-pager {SERVICE}").stdout
    score = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)[1])
    assert score <= 2.8, said


def test_the_sandbox_lets_nothing_be_written_elsewhere(host):
    asked = "ProtectSystem,NoNewPrivileges,PrivateNetwork,PrivateDevices"
    shown = host.run(f"systemctl show {SERVICE} --property={asked}").stdout
    assert set(shown.split()) == {
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "PrivateNetwork=yes",
        "PrivateDevices=no",
    }
