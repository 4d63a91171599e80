"""The timer's run: what it writes, what it says, what it forgets, and that nothing stays behind."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import stat
import sys

import gpu_snapshots as gs
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as reading
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_agent as agent
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_state as states
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import LogEvent

LATER_BOOT = "5e1f7a70-0000-4000-8000-000000000002"
METRICS = "/var/lib/prometheus/node-exporter"
SERIES = re.compile(r"^(gpu_node_health_[a-z_]+)(?:\{(.*)\})? (-?[0-9.e+]+)$")


def config(**changes):
    data = {
        "schema": 1,
        "profiles": [gs.profile_data()["h100-sxm"]],
        "xid_policy": gs.xid_data(),
        "textfile_dir": METRICS,
    }
    return {**data, **changes}


class Node:
    """A node below a folder, whose snapshots come from the test."""

    def __init__(self, root, runner):
        self.root, self.runner = root, runner
        self.said = []
        (root / METRICS.lstrip("/")).mkdir(parents=True)
        self.configure()

    def configure(self, **changes):
        self.write(agent.CONFIG, json.dumps(config(**changes)))

    def write(self, path, text):
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def run(self, snapshot):
        """Run once and return the exit status; what was said is in ``said``."""
        self.said = []

        def collect(_runner, **_options):
            if isinstance(snapshot, Exception):
                raise snapshot
            return snapshot

        return agent.main([], str(self.root), self.runner, collect, self.said.append)

    def path(self, path):
        return self.root / path.lstrip("/")

    @property
    def state(self):
        return json.loads(self.path(states.STATE).read_text(encoding="utf-8"))

    @property
    def history(self):
        return json.loads(self.path(states.HISTORY).read_text(encoding="utf-8"))

    def finding(self, check, target=None):
        found = [one for one in self.state["findings"] if one["check"] == check and target in (None, one["target"])]
        assert found, f"{check} of {target}"
        return found[0]

    @property
    def metrics(self):
        """Return name and labels to value; fails on a file that Prometheus would refuse."""
        found, typed = {}, set()
        for line in self.path(f"{METRICS}/gpu_node_health.prom").read_text(encoding="utf-8").splitlines():
            if line.startswith("# TYPE "):
                typed.add(line.split()[2])
            elif not line.startswith("#"):
                match = SERIES.match(line)
                assert match, line
                assert match[1] in typed, f"{match[1]} has no type"
                key = (match[1].replace("gpu_node_health_", "", 1), match[2] or "")
                assert key not in found, f"{line} is there twice"
                found[key] = float(match[3])
        return found


@pytest.fixture
def node(tmp_path, fake_runner):
    return Node(tmp_path, fake_runner({}))


def test_a_good_node(node):
    assert node.run(gs.snapshot()) == 0
    assert (node.state["verdict"], node.state["may_serve"]) == ("ok", True), node.state["bad"]
    assert [gpu["status"] for gpu in node.state["gpus"]] == ["ok", "ok"]
    assert node.said == ["<5>verdict ok"]
    metrics = node.metrics
    assert metrics[("verdict", "")] == 0 and metrics[("may_serve", "")] == 1
    assert metrics[("last_run_timestamp_seconds", "")] == gs.START
    assert metrics[("check", 'check="node.nvml",gpu="",target="node"')] == 0
    assert metrics[("gpu", 'gpu="1",target="gpu1 0000:2a:00.0"')] == 0


def test_all_files_are_for_everybody_to_read(node):
    before = os.umask(0o077)
    try:
        node.run(gs.snapshot())
    finally:
        os.umask(before)
    for path in (states.STATE, states.HISTORY, f"{METRICS}/gpu_node_health.prom"):
        assert stat.S_IMODE(node.path(path).stat().st_mode) == 0o644, path


def test_a_bad_node_is_no_failure_of_the_run(node):
    assert node.run(gs.snapshot([gs.gpu(0), gs.gpu(1, lost=True, lost_code=15, readings={})])) == 0
    assert node.state["verdict"] == "fail" and not node.state["may_serve"]
    assert node.metrics[("verdict", "")] == 3 and node.metrics[("may_serve", "")] == 0
    assert node.metrics[("gpu", 'gpu="1",target="gpu1 0000:2a:00.0"')] == 3
    assert node.metrics[("gpu", 'gpu="0",target="gpu0 0000:17:00.0"')] == 0
    assert any(line.startswith("<3>fail: gpu.lost [gpu1 0000:2a:00.0]") for line in node.said)


def test_only_what_changed_is_said(node):
    hot = gs.gpu(0, temperature_margin=-3)
    node.run(gs.snapshot())
    node.run(gs.snapshot(minutes=1))
    assert node.said == []
    node.run(gs.snapshot([hot, gs.gpu(1)], minutes=2))
    first = node.said
    assert first[0] == f"<3>verdict {node.state['verdict']}, was ok"
    assert [line.split(" [")[0] for line in first[1:]] == [
        "<3>fail (was ok): gpu.temperature",
        "<4>warn (was ok): gpu.memory_temperature",
    ]
    node.run(gs.snapshot([hot, gs.gpu(1)], minutes=3))
    assert node.said == []
    node.run(gs.snapshot(minutes=4))
    assert [line.split(" [")[0] for line in node.said] == [
        "<5>verdict ok, was fail",
        "<5>ok (was fail): gpu.temperature",
        "<5>ok (was warn): gpu.memory_temperature",
    ]


def test_a_gpu_that_is_gone_takes_its_series_with_it(node):
    node.run(gs.snapshot(count=2))
    node.run(gs.snapshot([gs.gpu(0)], minutes=1))
    assert not [key for key in node.metrics if "gpu1 " in key[1]]


def test_what_was_bad_and_is_gone_is_said(node):
    node.run(gs.snapshot([gs.gpu(0), gs.gpu(1, lost=True, lost_code=15, readings={})]))
    node.run(gs.snapshot([gs.gpu(0)], minutes=1))
    assert any(line.startswith("<5>gone (was fail): gpu.lost [gpu1 ") for line in node.said)


def test_after_a_boot_everything_bad_is_said_again(node):
    bad = [gs.gpu(0, remap_failure=True), gs.gpu(1)]
    node.run(gs.snapshot(bad))
    node.run(gs.snapshot(bad, minutes=1))
    assert node.said == []
    node.run(gs.snapshot(bad, minutes=2, boot_id=LATER_BOOT, uptime_s=60.0))
    assert any("gpu.row_remap" in line or "remap" in line for line in node.said), node.said


def test_labels_hold_whatever_a_driver_says(node):
    node.run(gs.snapshot(nvml=reading.Nvml("ok", driver_version='5"8\\0\n', count=2)))
    labels = next(key[1] for key in node.metrics if key[0] == "info")
    assert labels.startswith('driver="5\\"8\\\\0\\n",agent=')


# Hysteresis and history ---------------------------------------------------------------------------------------------


TARGET = "gpu0 0000:17:00.0"
MINUTE_NS = 60 * 10**9


def slow(index, ns):
    """Return a GPU that heat has slowed down for so long since the driver was loaded."""
    return gs.gpu(index, clock_ns_hw_thermal=ns)


def test_a_damped_check_fails_after_n_of_m_and_recovers_late(node):
    """Three bad samples of five, which are the defaults: bad in minutes 1, 2 and 3."""
    seen = []
    for minute in range(9):
        # Bit 6: slowed down by hardware because of heat.
        mask = 0x40 if minute in (1, 2, 3) else 1
        node.run(gs.snapshot([gs.gpu(0, clock_reasons=mask), gs.gpu(1)], minutes=minute))
        seen.append(node.finding("gpu.clock_reasons", TARGET)["status"])
    assert seen == ["ok", "warn", "warn", "fail", "fail", "fail", "ok", "ok", "ok"]


def test_n_and_m_are_variables(node):
    node.configure(thresholds={"confirm_bad": 1, "confirm_window": 1})
    seen = []
    for minute, mask in enumerate((1, 0x40, 1)):
        node.run(gs.snapshot([gs.gpu(0, clock_reasons=mask), gs.gpu(1)], minutes=minute))
        seen.append(node.finding("gpu.clock_reasons", TARGET)["status"])
    assert seen == ["ok", "fail", "ok"]


def test_rates_of_counters_go_on_across_restarts_of_the_service(node):
    node.run(gs.snapshot([slow(0, 0), gs.gpu(1)]))
    assert node.finding("gpu.clock_counters", TARGET)["status"] == "skipped"
    # Each call of ``run`` is a process of its own in life: only the file is between them.
    node.run(gs.snapshot([slow(0, MINUTE_NS), gs.gpu(1)], minutes=1))
    assert node.finding("gpu.clock_counters", TARGET)["status"] == "fail"


def test_hlt_14_the_same_event_is_found_by_each_run_of_the_boot_and_hidden_by_a_repair(node):
    event = LogEvent(40.0, "xid", 79, gs.bus(0), "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.")
    node.run(gs.snapshot(log=(event,)))
    first = node.finding("node.kernel_log", TARGET)["status"]
    node.run(gs.snapshot(log=(event,), minutes=5))
    assert first == node.finding("node.kernel_log", TARGET)["status"] == "fail"
    node.configure(repaired_at="2023-11-14T22:20:00Z")  # 400 s after START
    node.run(gs.snapshot(log=(event,), minutes=10))
    assert node.finding("node.kernel_log", TARGET)["status"] == "ok"
    assert node.history["repaired_at"] == gs.START + 400
    # It is history for later runs as well, even when the variable is taken away again.
    node.configure()
    node.run(gs.snapshot(log=(event,), minutes=11))
    assert node.finding("node.kernel_log", TARGET)["status"] == "ok"


def test_a_repair_makes_marks_and_baselines_of_before_count_no_more(node):
    for number in range(6):
        node.run(
            gs.snapshot([slow(0, number * MINUTE_NS), gs.gpu(1, ecc_uncorrected_aggregate=3 + number)], minutes=number)
        )
    assert node.state["verdict"] == "fail"
    node.configure(repaired_at="2023-11-14T22:18:50Z")  # 330 s after START
    node.run(gs.snapshot([slow(0, 5 * MINUTE_NS), gs.gpu(1, ecc_uncorrected_aggregate=8)], minutes=6))
    assert node.state["verdict"] == "ok", node.state["bad"]
    # The same instant is no new repair: what is seen now counts from now on.
    node.run(gs.snapshot([slow(0, 6 * MINUTE_NS), gs.gpu(1, ecc_uncorrected_aggregate=8)], minutes=7))
    assert len(node.history["samples"]) == 2


def test_a_repair_in_the_future_is_not_believed(node):
    event = LogEvent(40.0, "xid", 79, gs.bus(0), "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.")
    node.configure(repaired_at="2033-01-01T00:00:00Z")
    node.run(gs.snapshot(log=(event,)))
    assert node.finding("node.kernel_log", TARGET)["status"] == "fail"
    assert node.history["repaired_at"] is None


def test_a_reboot_forgets_findings_but_not_the_life_of_a_card(node):
    for number in range(6):
        node.run(gs.snapshot([slow(0, number * MINUTE_NS), gs.gpu(1)], minutes=number))
    assert node.history["marks"]
    node.run(gs.snapshot([slow(0, 0), gs.gpu(1)], minutes=8, boot_id=LATER_BOOT, uptime_s=60.0))
    assert node.state["verdict"] == "ok", node.state["bad"]
    assert node.history["boot_id"] == LATER_BOOT and len(node.history["samples"]) == 1
    assert node.history["baseline"]["GPU-00000000"]["ecc_uncorrected_aggregate"] == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99}', "\x00\x00", "null"])
def test_a_damaged_history_costs_a_comparison_and_not_the_run(node, text):
    node.run(gs.snapshot())
    node.write(states.HISTORY, text)
    node.write(states.STATE, text)
    assert node.run(gs.snapshot(minutes=1)) == 0
    assert node.state["may_serve"]
    assert bool(node.state["history_problem"]) is (text != "null")
    assert len(node.history["samples"]) == 1


# What goes wrong ----------------------------------------------------------------------------------------------------


def test_a_run_that_breaks_takes_the_good_verdict_of_before_away(node):
    node.run(gs.snapshot())
    assert node.run(RuntimeError("no such thing\nat all")) == 2
    assert node.state["verdict"] == "error" and not node.state["may_serve"]
    assert node.metrics[("verdict", "")] == 4 and node.metrics[("may_serve", "")] == 0
    assert any(line.startswith("<3>verdict error") and "no such thing" in line for line in node.said)
    # What earlier runs saw is not lost by it.
    assert len(node.history["samples"]) == 1
    assert node.run(gs.snapshot(minutes=1)) == 0
    assert node.state["verdict"] == "ok"
    assert node.said[0] == "<5>verdict ok, was error"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        (json.dumps(config(deadline_s=0)), "deadline_s is 0; allowed are 1 to 300 seconds"),
        (json.dumps(config(thresholds={"margin": 1})), "'margin' is no threshold"),
        (json.dumps(config(schema=2)), "schema is 2; this version reads 1"),
    ],
)
def test_a_configuration_with_mistakes_ends_in_error_and_says_which(node, text, said):
    node.run(gs.snapshot())
    node.write(agent.CONFIG, text)
    assert node.run(gs.snapshot(minutes=1)) == 2
    assert node.state["verdict"] == "error" and said in node.state["problem"]
    if text != "{":
        assert node.metrics[("verdict", "")] == 4


def test_without_a_configuration_it_is_said_what_to_do(node):
    node.path(agent.CONFIG).unlink()
    assert node.run(gs.snapshot()) == 2
    assert "run the role gpu_health" in node.state["problem"]


def test_what_cannot_be_written_is_said_and_the_rest_is_written(node):
    node.write("/in/the/way", "")
    node.configure(textfile_dir="/in/the/way")
    assert node.run(gs.snapshot()) == 1
    assert node.state["verdict"] == "ok"
    assert any("/in/the/way/gpu_node_health.prom could not be written" in line for line in node.said)


def test_readers_never_see_half_a_file(node, monkeypatch):
    node.run(gs.snapshot())
    path = node.path(f"{METRICS}/gpu_node_health.prom")
    with open(path, encoding="utf-8") as reader:
        inode = os.fstat(reader.fileno()).st_ino
        node.run(gs.snapshot(minutes=1))
        # Who has it open goes on reading the old one, whole; the name leads to the new one.
        assert reader.read().endswith("\n") and os.stat(path).st_ino != inode


def test_a_run_that_is_killed_while_it_writes_leaves_the_old_file(node, monkeypatch):
    node.run(gs.snapshot())
    before = node.state

    def full(*_paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert node.run(gs.snapshot(minutes=1)) == 1
    monkeypatch.undo()
    assert node.state == before
    assert sorted(os.listdir(node.path(states.FOLDER))) == ["history.json", "state.json"]


def test_what_a_killed_run_left_is_removed_and_what_a_running_one_writes_is_not(node):
    old, young = (node.path(f"{METRICS}/.gpu-node-{name}") for name in ("old", "young"))
    for path in (old, young, node.path(f"{METRICS}/other.prom")):
        path.write_text("x", encoding="utf-8")
    os.utime(old, (1.0, 1.0))
    node.run(gs.snapshot())
    assert sorted(os.listdir(node.path(METRICS))) == [".gpu-node-young", "gpu_node_health.prom", "other.prom"]


def test_a_skipped_check_keeps_its_reason(node):
    node.configure(skip=[{"check": "gpu.temperature", "gpu": 0, "reason": "card is on order"}])
    node.run(gs.snapshot([gs.gpu(0, temperature_margin=-3), gs.gpu(1, temperature_margin=-3)]))
    assert "card is on order" in node.finding("gpu.temperature", TARGET)["hint"]
    assert node.finding("gpu.temperature", "gpu1 0000:2a:00.0")["status"] == "fail"


# Nothing stays behind -----------------------------------------------------------------------------------------------


def children():
    return {pid for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == os.getpid()}


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as handle:
            return int(handle.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def test_three_hundred_runs_leave_no_process_descriptor_file_or_memory(node):
    def one(number):
        # Each tenth minute something is bad, each hundredth the node boots.
        bad = {"remap_pending": True} if number % 10 == 0 else {}
        boot = dataclasses.replace(
            gs.snapshot([gs.gpu(0, clock_ns_hw_thermal=number * 10**9, **bad), gs.gpu(1)], minutes=number),
            boot_id=f"boot-{number // 100}",
        )
        assert node.run(boot) == 0

    for number in range(60):
        one(number)
    gc.collect()
    before = (len(os.listdir("/proc/self/fd")), children(), sorted(os.listdir(node.path(states.FOLDER))))
    sizes = {path: node.path(path).stat().st_size for path in (states.STATE, states.HISTORY)}
    # Blocks of memory that the interpreter holds: what leaked in each run would be there 240 times.
    blocks = sys.getallocatedblocks()
    for number in range(60, 300):
        one(number)
    gc.collect()
    grown = sys.getallocatedblocks() - blocks
    assert (len(os.listdir("/proc/self/fd")), children(), sorted(os.listdir(node.path(states.FOLDER)))) == before
    assert sorted(os.listdir(node.path(METRICS))) == ["gpu_node_health.prom"]
    assert grown < 240, f"{grown} blocks more after 240 runs"
    for path, size in sizes.items():
        assert node.path(path).stat().st_size < size * 1.5, path


def test_runs_with_a_real_child_leave_nothing(node, monkeypatch):
    """The real reading; only the library is missing, and the verdict says so."""
    monkeypatch.setattr(_gpu_snapshot, "nvml_python", lambda _wanted="", _root="/": sys.executable)
    node.configure(nvml_library="/nonexistent/libnvidia-ml.so.1", kernel_log="/dev/null", deadline_s=30)
    before = (len(os.listdir("/proc/self/fd")), children())
    for _number in range(20):
        assert agent.main([], str(node.root), node.runner, say=node.said.append) == 0
        assert node.state["verdict"] in ("fail", "error")
        assert node.state["summary"]["nvml"] != "ok"
    assert (len(os.listdir("/proc/self/fd")), children()) == before


def bare(**changes):
    """Return a node without GPUs and without a driver."""
    nvml = reading.Nvml("absent", text="libnvidia-ml.so.1 is not there")
    return gs.snapshot((), nvml=nvml, nvswitches=(), units=(), software=reading.Software(), **changes)


def test_a_node_that_shall_have_no_gpu_is_not_bad(node):
    node.configure(expected="0")
    assert node.run(bare()) == 0
    assert node.state["verdict"] in ("ok", "skipped") and not node.state["bad"], node.state["bad"]
    assert not [key for key in node.metrics if key[0] == "gpu"]


def test_hlt_06_without_that_word_it_is(node):
    assert node.run(bare()) == 0
    assert not node.state["may_serve"] and node.finding("node.gpu_count")["status"] == "fail"
