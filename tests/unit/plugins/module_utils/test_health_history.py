"""Rates, baselines and N of M: what earlier runs saw counts until a reboot or a repair, and unknown is not zero."""

from __future__ import annotations

import json

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_history as history
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_policy import Policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import FAIL, OK, SKIPPED, WARN

OTHER_BOOT = "5e1f7a70-0000-4000-8000-000000000002"


def node(minutes, boot_id=make.BOOT, uptime=None, **changes):
    more = {} if uptime is None else {"uptime_s": uptime}
    return make.snapshot([make.gpu(0, **changes)], minutes=minutes, boot_id=boot_id, **more)


def run(nodes, kept=None, **options):
    """Judge one node after the other; the history goes through JSON each time, as between two runs of a timer."""
    verdicts = []
    for one in nodes:
        verdict, kept = make.judge(one, kept, **options)
        kept = history.load(json.loads(json.dumps(kept.as_dict())))
        verdicts.append(verdict)
    return verdicts, kept


def statuses(check, nodes, kept=None, **options):
    return [make.one(verdict, check).status for verdict in run(nodes, kept, **options)[0]]


def test_the_first_run_knows_no_rate_and_says_so():
    assert statuses("gpu.pcie_replay", [node(0)]) == [SKIPPED]
    assert statuses("gpu.nvlink_errors", [node(0)]) == [SKIPPED]
    assert statuses("gpu.clock_counters", [node(0)]) == [SKIPPED]
    assert statuses("gpu.ecc_aggregate", [node(0)]) == [SKIPPED]
    assert statuses("node.history", [node(0), node(1)]) == [SKIPPED, OK]


@pytest.mark.parametrize(
    ("generation", "width", "per_minute"),
    [(1, 16, 2.4), (2, 16, 4.8), (3, 16, 7.68), (4, 16, 15.36), (5, 16, 30.72), (6, 8, 30.72), (3, 8, 3.84)],
)
def test_replays_are_judged_by_the_links_speed_and_width(generation, width, per_minute):
    link = {"pcie_gen_max": generation, "pcie_gen": generation, "pcie_width": width}
    minutes = 10
    usual, many = int(per_minute * minutes), int(per_minute * minutes) + 1
    for growth, expected in ((usual, OK), (many, WARN)):
        nodes = [node(0, pcie_replay=100, **link), node(minutes, pcie_replay=100 + growth, **link)]
        assert statuses("gpu.pcie_replay", nodes)[-1] == expected


def test_a_counter_that_restarted_gives_no_rate():
    nodes = [node(0, pcie_replay=10**6), node(1, pcie_replay=0), node(2, pcie_replay=5)]
    assert statuses("gpu.pcie_replay", nodes) == [SKIPPED, SKIPPED, OK]


def test_two_looks_in_quick_succession_give_no_rate_and_are_one_sample():
    nodes = [node(0), node(0.1, pcie_replay=10**6), node(0.2, pcie_replay=10**6)]
    verdicts, kept = run(nodes)
    assert [make.one(verdict, "gpu.pcie_replay").status for verdict in verdicts] == [SKIPPED] * 3
    assert len(kept.samples) == 1


def test_a_long_pause_gives_no_rate():
    assert statuses("gpu.pcie_replay", [node(0), node(61, pcie_replay=10**6)])[-1] == SKIPPED
    assert statuses("gpu.pcie_replay", [node(0), node(59, pcie_replay=10**6)])[-1] == WARN


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        ({"crc_data": 10**6}, FAIL),
        ({"crc_flit": 20}, WARN),
        ({"recovery": 10}, FAIL),
        ({"replay": 9}, OK),
        ({}, OK),
    ],
)
def test_nvlink_errors_are_judged_by_the_minute_never_by_their_number(growth, expected):
    before = {"replay": 10**6, "recovery": 10**6, "crc_flit": 10**9, "crc_data": 10**9}
    after = {name: count + growth.get(name, 0) for name, count in before.items()}
    assert statuses("gpu.nvlink_errors", [node(0, nvlink_errors=before), node(10, nvlink_errors=after)])[-1] == expected


@pytest.mark.parametrize(
    ("growth", "expected"),
    [({"recovery_failed": 1}, FAIL), ({"recovery_events": 10}, FAIL), ({"symbol_errors": 10**6}, WARN), ({}, OK)],
)
def test_nvlink_5_has_counters_of_its_own(growth, expected):
    names = ("recovery_failed", "recovery_events", "symbol_errors", "effective_errors")
    old = {"nvlink_errors": make.unread(r.UNSUPPORTED, 3)}
    before = dict.fromkeys(names, 100)
    after = {name: count + growth.get(name, 0) for name, count in before.items()}
    nodes = [node(0, nvlink5_errors=before, **old), node(10, nvlink5_errors=after, **old)]
    assert statuses("gpu.nvlink_errors", nodes)[-1] == expected


@pytest.mark.parametrize(
    ("kind", "share", "expected"),
    [("hw_brake", 0.2, FAIL), ("hw_thermal", 0.05, WARN), ("sw_thermal", 0.5, WARN), ("hw_brake", 0.001, OK)],
)
def test_clocks_are_judged_by_the_share_of_time(kind, share, expected):
    name = f"clock_ns_{kind}"
    nodes = [node(0, **{name: 10**15}), node(10, **{name: 10**15 + int(share * 600e9)})]
    assert statuses("gpu.clock_counters", nodes)[-1] == expected


def test_the_life_time_count_warns_when_it_grows_and_forgets_after_a_repair():
    verdicts, kept = run([node(0, ecc_uncorrected_aggregate=900), node(1, ecc_uncorrected_aggregate=901)])
    assert make.one(verdicts[0], "gpu.ecc_aggregate").status == SKIPPED
    assert make.one(verdicts[1], "gpu.ecc_aggregate").status == WARN
    assert statuses("gpu.ecc_aggregate", [node(2, ecc_uncorrected_aggregate=901)], kept) == [WARN], "it stays"
    mended = history.repaired(kept, make.START + 150)
    later = [node(3, ecc_uncorrected_aggregate=901), node(4, ecc_uncorrected_aggregate=901)]
    assert statuses("gpu.ecc_aggregate", later, mended) == [SKIPPED, OK]


def test_growth_between_two_boots_is_seen_once_and_then_forgotten():
    _verdicts, kept = run([node(0, ecc_uncorrected_aggregate=5), node(1, ecc_uncorrected_aggregate=6)])
    quiet = node(9, OTHER_BOOT, 60.0, ecc_uncorrected_aggregate=6)
    assert statuses("gpu.ecc_aggregate", [quiet], kept) == [OK], "what grew before the boot is forgotten"
    grown = node(9, OTHER_BOOT, 60.0, ecc_uncorrected_aggregate=7)
    assert statuses("gpu.ecc_aggregate", [grown], kept) == [WARN], "what nobody has seen yet is told"


def test_a_new_boot_forgets_rates_and_marks():
    bad = {"clock_reasons": 0x80}
    verdicts, kept = run([node(minute, **bad) for minute in range(4)])
    assert [make.one(verdict, "gpu.clock_reasons").status for verdict in verdicts] == [WARN, WARN, FAIL, FAIL]
    after = node(9, OTHER_BOOT, 60.0)
    assert statuses("gpu.clock_reasons", [after], kept) == [OK]
    assert statuses("gpu.pcie_replay", [after], kept) == [SKIPPED]


def test_n_of_m_damps_both_ways():
    pattern = [0, 1, 0, 1, 1, 0, 0, 0, 0]
    nodes = [node(minute, clock_reasons=0x8 if bad else 1) for minute, bad in enumerate(pattern)]
    #                     ok    warn  ok  warn  fail  fail  ok ...
    expected = [OK, WARN, OK, WARN, FAIL, FAIL, OK, OK, OK]
    found = statuses("gpu.clock_reasons", nodes)
    assert found[:5] == expected[:5]
    assert found[5] == FAIL, "one good look does not clear it"
    assert found[-1] == OK


def test_stuck_processes_need_five_samples_in_a_row():
    stuck = r.Occupants(dstate=({"pid": 4, "name": "nvidia-smi"},))
    nodes = [make.snapshot(count=1, minutes=minute, occupants=stuck) for minute in range(5)]
    assert statuses("node.dstate", nodes) == [WARN] * 4 + [FAIL]
    broken = [*nodes[:2], make.snapshot(count=1, minutes=2), *nodes[3:]]
    assert statuses("node.dstate", broken)[-1] == WARN


def test_runs_in_quick_succession_do_not_confirm_anything():
    nodes = [node(minute / 60, clock_reasons=0x8) for minute in range(10)]
    assert set(statuses("gpu.clock_reasons", nodes)) == {WARN}


def test_a_replaced_card_starts_anew_in_the_same_slot():
    _verdicts, kept = run([node(0), node(1)])
    other = node(2, uuid="GPU-another", pcie_replay=10**6, ecc_uncorrected_aggregate=10**6)
    assert statuses("gpu.pcie_replay", [other], kept) == [SKIPPED]
    assert statuses("gpu.ecc_aggregate", [other], kept) == [SKIPPED]


def test_aer_is_judged_by_growth_within_the_boot():
    def seen(minute, **aer):
        errors = {"correctable": 5, "nonfatal": 2, "fatal": 0, **aer}
        return make.snapshot(count=1, minutes=minute, pci=(make.pci_gpu(0, port_aer=errors),))

    assert statuses("gpu.pcie_aer", [seen(0), seen(1)]) == [SKIPPED, OK], "what is there since the boot is no growth"
    assert statuses("gpu.pcie_aer", [seen(0), seen(1, nonfatal=3)])[-1] == FAIL
    assert statuses("gpu.pcie_aer", [seen(0), seen(1, correctable=16)])[-1] == WARN


def test_the_history_stays_small():
    policy = Policy()
    gpus = [make.gpu(index) for index in range(8)]
    kept = None
    for minute in range(3 * policy.history_samples):
        kept = make.judge(make.snapshot(gpus, minutes=minute), kept)[1]
    assert len(kept.samples) == policy.history_samples
    assert len(json.dumps(kept.as_dict())) < 200_000
    assert all(len(mark) <= 5 for mark in kept.marks.values())
    for number in range(200):
        swapped = [make.gpu(0, uuid=f"GPU-{number}")]
        kept = make.judge(make.snapshot(swapped, minutes=1000 + number), kept)[1]
    assert len(kept.baseline) <= history.MAX_GPUS


@pytest.mark.parametrize(
    "data",
    [
        "text",
        [],
        {},
        {"schema": 2},
        {"schema": 1, "boot_id": "x", "samples": "no", "baseline": {}, "marks": {}},
        {"schema": 1, "boot_id": "x", "samples": [{"up": "then", "gpus": {}}], "baseline": {}, "marks": {}},
        {"schema": 1, "boot_id": "x", "samples": [], "baseline": {"a": 3}, "marks": {}},
        {"schema": 1, "boot_id": "x", "samples": [], "baseline": {}, "marks": {"a": "bad"}},
    ],
)
def test_a_history_that_is_damaged_costs_the_rates_and_is_told(data):
    kept = history.load(data)
    assert kept.problem and not kept.samples
    verdict = make.judge(node(0), kept)[0]
    assert make.one(verdict, "node.history").status == WARN
    assert make.one(verdict, "gpu.pcie_replay").status == SKIPPED


def test_no_history_is_no_problem():
    assert history.load(None) == history.History()


def test_hlt_14_an_error_before_the_first_run_is_seen_again_and_again_until_the_repair():
    log = (r.LogEvent(40.0, "xid", 79, make.bus(0), "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."),)

    def look(minutes):
        return make.snapshot(count=1, minutes=minutes, log=log, uptime_s=300.0 + minutes * 60)

    verdicts, kept = run([look(0), look(1)])
    assert [make.one(verdict, "node.kernel_log").status for verdict in verdicts] == [FAIL, FAIL]
    booted = make.START - 300
    assert make.one(run([look(2)], kept, since=booted + 30)[0][0], "node.kernel_log").status == FAIL
    assert make.one(run([look(2)], kept, since=booted + 41)[0][0], "node.kernel_log").status == OK
    mended = history.repaired(kept, booted + 100)
    assert make.one(run([look(3)], mended)[0][0], "node.kernel_log").status == OK
