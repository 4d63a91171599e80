"""The verdict on a node, by the cases from other projects: a hang, a lost GPU or an unknown code is never healthy."""

from __future__ import annotations

import dataclasses
import json

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_health as health
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_history, _health_policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import REGISTRY
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import BAD, ERROR, FAIL, OK, SKIPPED, WARN

POLICY = _health_policy.Policy
GPU1 = make.bus(1)


def with_gpu(**changes):
    return make.snapshot([make.gpu(0), make.gpu(1, **changes)])


def status(node, check, target="gpu1", **options):
    return make.one(make.judge(node, make.settled(), **options)[0], check, target).status


def test_hlt_02_memory_that_includes_the_drivers_own_part_is_no_leak():
    free = with_gpu(memory_used_mib=1, memory_reserved_mib=599)
    assert status(free, "gpu.memory_idle") == OK
    old = r.Reading(600, note="includes reserved")
    finding = make.one(make.judge(with_gpu(memory_used_mib=old))[0], "gpu.memory_idle", "gpu1")
    assert finding.status == SKIPPED and "includes reserved" in finding.hint
    assert status(with_gpu(memory_used_mib=600), "gpu.memory_idle") == WARN


@pytest.mark.parametrize("code", [15, 16, 28, 999])
def test_hlt_03_one_lost_gpu_fails_and_the_seven_others_keep_their_results(code):
    gpus = [make.gpu(index) for index in range(8)]
    gpus[3] = r.Gpu(3, make.bus(3), lost=True, lost_code=code, readings={"name": r.Reading("NVIDIA H100 80GB HBM3")})
    verdict = make.judge(make.snapshot(gpus), make.settled(8))[0]
    assert len(verdict.gpus) == 8
    assert [value for target, value in verdict.gpus.items() if target.startswith("gpu3")] == [FAIL]
    assert sorted(verdict.gpus.values()) == [FAIL] + [OK] * 7
    assert (verdict.status, verdict.may_serve) == (FAIL, False)
    finding = make.one(verdict, "gpu.lost", "gpu3")
    assert make.bus(3) in finding.target and finding.value["code"] == code
    assert [item.check for item in verdict.bad] == ["gpu.lost"], "one cause, one finding"


def test_hlt_04_a_hang_names_the_call_and_keeps_what_was_read_before():
    nvml = r.Nvml("timeout", hung_in="nvmlDeviceGetPowerUsage of GPU 1", count=2, driver_version=make.DRIVER)
    gpus = [make.gpu(0), make.gpu(1, power_mw=make.unread(r.NOT_REACHED), vbios=make.unread(r.NOT_REACHED))]
    verdict = make.judge(make.snapshot(gpus, nvml=nvml), make.settled())[0]
    finding = make.one(verdict, "node.nvml")
    assert finding.status == FAIL and "probe timeout in nvmlDeviceGetPowerUsage of GPU 1" in finding.hint
    assert make.one(verdict, "gpu.power_reading", "gpu1").status == ERROR
    assert make.one(verdict, "gpu.power_reading", "gpu0").status == OK
    assert make.one(verdict, "gpu.temperature", "gpu1").status == OK
    assert not verdict.may_serve


@pytest.mark.parametrize("code", [*range(30), 999])
def test_hlt_06_no_code_of_nvml_is_ok(code):
    why = {3: r.UNSUPPORTED, 4: r.NO_PERMISSION, 13: r.NO_SYMBOL}.get(code, r.FAILED)
    changes = {name: make.unread(why, code) for name in ("remap_pending", "ecc_uncorrected_volatile")}
    verdict = make.judge(with_gpu(**changes), make.settled())[0]
    for check in ("gpu.row_remap_pending", "gpu.ecc_uncorrected"):
        finding = make.one(verdict, check, "gpu1")
        # The profile says that the feature must exist, so that even "unsupported" fails.
        assert finding.status == (SKIPPED if why == r.NO_SYMBOL else FAIL), code
        assert why != r.FAILED or f"code {code}" in finding.hint
        assert make.one(verdict, check, "gpu0").status == OK


@pytest.mark.parametrize("state", ["absent", "not_loaded", "no_binding", "error", "mismatch", "timeout"])
def test_hlt_06_a_library_that_does_not_work_fails_where_gpus_are_expected(state):
    nvml = r.Nvml(state, code=12, text="NVML Shared Library Not Found")
    for pci in ((make.pci_gpu(0),), ()):
        node = make.snapshot([], nvml=nvml, pci=pci)
        verdict = make.judge(node)[0]
        assert make.one(verdict, "node.nvml").status == FAIL
        assert verdict.status in BAD and not verdict.may_serve
    missing = make.only(make.judge(make.snapshot([], nvml=nvml, pci=(make.pci_gpu(0),)))[0], "node.gpu_count")
    assert missing and all(item.status in BAD for item in missing)


def test_hlt_06_a_node_that_shall_have_no_gpu_is_skipped():
    bare = make.snapshot(
        [], nvml=r.Nvml("absent", text="not found"), pci=(), nvswitches=(), units=(), software=r.Software()
    )
    verdict = make.judge(bare, policy=POLICY(expect_gpus=False), wanted=make.profiles())[0]
    assert make.one(verdict, "node.nvml").status == SKIPPED
    assert not verdict.bad
    assert not make.judge(bare, wanted=make.profiles())[0].may_serve, "the default is a GPU node"


def test_hlt_01_a_function_that_the_library_lacks_is_skipped_with_the_driver():
    verdict = make.judge(with_gpu(remap_pending=make.unread(r.NO_SYMBOL, 13)), make.settled())[0]
    finding = make.one(verdict, "gpu.row_remap_pending", "gpu1")
    assert finding.status == SKIPPED
    assert "function not found" in finding.hint and make.DRIVER in finding.hint
    assert verdict.may_serve and verdict.status == OK


def test_hlt_07_a_card_without_fans_is_judged_on_the_rest():
    passive = with_gpu(fan_count=0, fan_speed=make.unread(r.UNSUPPORTED, 3))
    verdict = make.judge(passive, make.settled())[0]
    assert make.one(verdict, "gpu.fan", "gpu1").status == SKIPPED
    assert verdict.status == OK
    wanting = make.h100()
    wanting = dataclasses.replace(wanting, must_have=(*wanting.must_have, "fan_speed"))
    finding = make.one(make.judge(passive, make.settled(), wanted=(wanting,))[0], "gpu.fan", "gpu1")
    assert finding.status == FAIL and "h100-sxm" in finding.source


def test_hlt_10_nvlinks_are_counted_against_the_profile():
    def links(states, count):
        return make.one(
            make.judge(with_gpu(nvlink_states=states), make.settled(), wanted=(make.h100(nvlink_count=count),))[0],
            "gpu.nvlink",
            "gpu1",
        )

    assert links([1] * 12, 12).status == OK
    down = links([1] * 11 + [0], 12)
    assert down.status == FAIL and down.value["down"] == [11]
    assert links([1] * 12, 18).status == FAIL
    card = with_gpu(nvlink_states=make.unread(r.UNSUPPORTED, 3))
    pcie = dataclasses.replace(make.h100(nvlink_count=0), must_have=())
    assert make.one(make.judge(card, wanted=(pcie,))[0], "gpu.nvlink", "gpu1").status == SKIPPED
    assert status(card, "gpu.nvlink", wanted=(dataclasses.replace(make.h100(), must_have=()),)) == FAIL


def test_hlt_11_pcie_speed_is_judged_under_load_and_width_always():
    idle = make.one(make.judge(with_gpu(pcie_gen=1, pstate=8), make.settled())[0], "gpu.pcie_generation", "gpu1")
    assert idle.status == SKIPPED and "idle" in idle.hint
    assert status(with_gpu(pcie_gen=3, pstate=0), "gpu.pcie_generation") == FAIL
    assert status(with_gpu(pcie_gen=1, pstate=2, utilization_gpu=90), "gpu.pcie_generation") == FAIL
    assert status(with_gpu(pcie_gen=1, pstate=8, pcie_width=8), "gpu.pcie_width") == FAIL


def test_hlt_12_row_remapping_is_judged_by_state_without_any_event():
    pending = with_gpu(remap_pending=True)
    finding = make.one(make.judge(pending, make.settled())[0], "gpu.row_remap_pending", "gpu1")
    assert finding.status == WARN and "reset when drained" in finding.hint
    assert status(pending, "gpu.row_remap_pending", policy=POLICY(strict_pending=True)) == FAIL
    assert status(with_gpu(remap_failure=True), "gpu.row_remap_failure") == FAIL


MIG = tuple(
    r.MigDevice(index, f"MIG-{index}", "3g.40gb", 40448, {"memory_used_mib": r.Reading(12)}) for index in range(2)
)
PARTED = {
    "mig_mode_current": 1,
    "mig_mode_pending": 1,
    "mig": MIG,
    "mig_devices": 2,
    **{
        name: make.unread(r.UNSUPPORTED, 3)
        for name in ("utilization_gpu", "remap_pending", "remap_failure", "ecc_uncorrected_volatile")
    },
}


def test_hlt_13_a_partitioned_gpu_is_skipped_where_nothing_is_told_and_lists_its_instances():
    verdict = make.judge(with_gpu(**PARTED), make.settled(), wanted=(make.h100(),))[0]
    for check in ("gpu.row_remap_pending", "gpu.row_remap_failure", "gpu.ecc_uncorrected"):
        finding = make.one(verdict, check, "gpu1")
        assert finding.status == SKIPPED and finding.hint.startswith("mig")
    found = make.one(verdict, "gpu.mig", "gpu1")
    assert found.status == OK
    assert [device["profile"] for device in found.value["devices"]] == ["3g.40gb"] * 2
    assert found.value["devices"][0]["readings"] == {"memory_used_mib": 12}


@pytest.mark.parametrize(("layout", "expected"), [(("3g.40gb", "3g.40gb"), OK), (("1g.10gb",) * 7, FAIL), ((), FAIL)])
def test_hlt_13_layout_and_mode_are_compared(layout, expected):
    assert status(with_gpu(**PARTED), "gpu.mig", wanted=(make.h100(mig_layout=layout),)) == expected
    whole = make.h100(mig_layout=layout)
    assert status(with_gpu(), "gpu.mig", wanted=(whole,)) == (OK if not layout else FAIL)


def test_hlt_13_an_instance_that_cannot_be_read_fails():
    broken = (MIG[0], r.MigDevice(1, readings={"memory_used_mib": make.unread(r.FAILED, 999)}))
    finding = make.one(make.judge(with_gpu(**{**PARTED, "mig": broken}))[0], "gpu.mig", "gpu1")
    assert finding.status == FAIL and "memory_used_mib of instance 1" in finding.hint
    assert status(with_gpu(**{**PARTED, "mig_devices": 3}), "gpu.mig") == FAIL


@pytest.mark.parametrize(
    ("margin", "expected"), [(6, OK), (5, OK), (4, WARN), (-1, WARN), (-2, FAIL), (-7, FAIL), (65534, ERROR)]
)
def test_hlt_16_the_margin_is_signed_and_compared_with_the_cards_own_offset(margin, expected):
    finding = make.one(make.judge(with_gpu(temperature_margin=margin), make.settled())[0], "gpu.temperature", "gpu1")
    assert finding.status == expected
    assert margin != 65534 or "misread" in finding.hint


def test_the_profiles_offset_serves_where_the_card_does_not_tell_its_own():
    quiet = {"tlimit_slowdown": make.unread(r.UNSUPPORTED, 3)}
    assert status(with_gpu(temperature_margin=-2, **quiet), "gpu.temperature") == FAIL
    b200 = make.h100(tlimit_slowdown_offset=-3)
    assert status(with_gpu(temperature_margin=-2, **quiet), "gpu.temperature", wanted=(b200,)) == WARN
    unknown = make.h100(tlimit_slowdown_offset=None)
    assert status(with_gpu(temperature_margin=0, **quiet), "gpu.temperature", wanted=(unknown,)) == FAIL


def test_an_older_card_is_judged_by_its_absolute_threshold():
    old = {name: make.unread(r.UNSUPPORTED, 3) for name in ("temperature_margin", "tlimit_slowdown", "tlimit_mem")}
    plain = dataclasses.replace(make.h100(), must_have=())
    for hot, expected in ((80, OK), (89, WARN), (93, FAIL)):
        node = with_gpu(temperature=hot, temperature_slowdown=93, **old)
        assert status(node, "gpu.temperature", wanted=(plain,)) == expected


def test_a_gpu_that_pci_shows_and_nvml_does_not_is_named():
    node = make.snapshot()
    node = dataclasses.replace(node, pci=(*node.pci, make.pci_gpu(2)))
    found = make.only(make.judge(node, make.settled())[0], "node.gpu_count")
    assert {item.status for item in found} == {FAIL}
    assert make.bus(2) in [item.target for item in found]


def test_a_golden_profile_counts_gpus_that_are_on_neither_side():
    golden = make.h100(name="node", gpu_count=4)
    finding = make.one(make.judge(make.snapshot(), make.settled(), wanted=(golden,))[0], "node.gpu_count")
    assert (finding.status, finding.expected) == (FAIL, 4)
    two = dataclasses.replace(golden, gpu_count=2)
    assert make.one(make.judge(make.snapshot(), wanted=(two,))[0], "node.gpu_count").status == OK


def test_more_gpus_than_expected_warn_and_another_model_fails():
    golden = make.h100(name="node", gpu_count=1)
    assert make.one(make.judge(make.snapshot(), wanted=(golden,))[0], "node.gpu_count").status == WARN
    other = dataclasses.replace(golden, gpu_count=2, device_ids=("2335",))
    assert status(make.snapshot(), "gpu.profile", wanted=(other, *make.profiles())) == FAIL


def test_a_slot_that_is_narrow_by_design_is_accepted_by_a_captured_profile():
    golden = make.h100(name="node", gpu_count=2, slots={GPU1: {"pcie_width": 8, "vbios": "96.00.99.00.01"}})
    narrow = with_gpu(pcie_width=8)
    assert status(narrow, "gpu.pcie_width") == FAIL
    assert status(narrow, "gpu.pcie_width", wanted=(golden,)) == OK


@pytest.mark.parametrize(
    ("uptime", "unit", "expected"),
    [
        (60, r.Unit("nvidia-fabricmanager.service", "loaded", "activating"), WARN),
        (600, r.Unit("nvidia-fabricmanager.service", "loaded", "activating"), FAIL),
        (60, r.Unit("nvidia-fabricmanager.service", "loaded", "failed"), FAIL),
        (600, r.Unit("nvidia-fabricmanager.service", "not-found", "inactive"), FAIL),
        (600, r.Unit("nvidia-fabricmanager.service"), ERROR),
        (900, r.Unit("nvidia-fabricmanager.service", "loaded", "active", "running", 3, 20.0), FAIL),
        (9000, r.Unit("nvidia-fabricmanager.service", "loaded", "active", "running", 3, 4000.0), OK),
    ],
)
def test_a_required_unit_may_take_its_time_after_the_boot_but_not_flap(uptime, unit, expected):
    node = make.snapshot(uptime_s=float(uptime), units=(unit,))
    assert make.one(make.judge(node)[0], "node.units", unit.name).status == expected


def test_a_unit_that_is_required_and_that_nobody_asked_about_is_an_error():
    finding = make.one(make.judge(make.snapshot(units=()))[0], "node.units")
    assert finding.status == ERROR and "systemd" in finding.hint


@pytest.mark.parametrize(
    ("mode", "units", "expected"), [("any", (), OK), ("none", (), FAIL), ("listed", ("a.service",), FAIL)]
)
def test_processes_are_judged_by_the_policy(mode, units, expected):
    node = with_gpu(processes=1, processes_list=[r.Process(9, 800, name="serve", unit="serve.service")])
    policy = POLICY(processes=mode, allowed_units=units)
    assert status(node, "gpu.processes", policy=policy) == expected
    allowed = POLICY(processes="listed", allowed_units=("serve.service",))
    assert status(node, "gpu.processes", policy=allowed) == OK


def test_a_list_of_processes_that_could_not_be_read_is_not_empty():
    node = with_gpu(processes=make.unread(r.FAILED, 999))
    assert status(node, "gpu.processes") == FAIL
    assert status(node, "gpu.memory_idle") == FAIL


def test_firmware_that_differs_is_told_for_both_halves_of_a_node():
    gpus = [make.gpu(index, vbios="A" if index < 2 else "B") for index in range(4)]
    found = make.only(make.judge(make.snapshot(gpus), make.settled(4))[0], "gpu.vbios")
    assert [item.status for item in found] == [WARN] * 4
    gpus = [make.gpu(index, vbios="A" if index else "B") for index in range(4)]
    found = make.only(make.judge(make.snapshot(gpus), make.settled(4))[0], "gpu.vbios")
    assert [item.status for item in found] == [WARN, OK, OK, OK]


def test_the_kernels_log_that_cannot_be_read_is_an_error():
    verdict = make.judge(make.snapshot(log_error="/dev/kmsg: permission denied"), make.settled())[0]
    assert make.one(verdict, "node.kernel_log").status == ERROR
    assert not verdict.may_serve


def test_the_skip_list_hides_only_what_it_names_and_shows_its_reason():
    skips = health.parse_skips([{"check": "gpu.pcie_width", "target": "gpu1", "reason": "x8 riser, ticket 12"}])
    node = make.snapshot([make.gpu(0, pcie_width=8), make.gpu(1, pcie_width=8)])
    verdict = make.judge(node, make.settled(), skips=skips)[0]
    assert make.one(verdict, "gpu.pcie_width", "gpu0").status == FAIL
    finding = make.one(verdict, "gpu.pcie_width", "gpu1")
    assert finding.status == SKIPPED and "x8 riser, ticket 12" in finding.hint


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"check": "gpu.pcie_width"}], "needs a reason"),
        ([{"check": "gpu.pcie_width", "reason": "  "}], "needs a reason"),
        ([{"check": "gpu.width", "reason": "x"}], "is no check"),
        ([{"check": ["gpu.pcie_width"], "reason": "x"}], "is no check"),
        ([{"check": "gpu.lost", "reason": "x"}], "cannot be skipped"),
        ([{"check": "node.nvml", "reason": "x"}], "cannot be skipped"),
        (["gpu.pcie_width"], "an entry is a dictionary"),
        ({"check": "gpu.pcie_width"}, "is a list"),
    ],
)
def test_a_skip_list_with_mistakes_is_refused(rows, message):
    with pytest.raises(health.SkipError, match=message):
        health.parse_skips(rows)


def test_with_everything_skipped_that_may_be_a_lost_gpu_still_fails():
    rows = [{"check": name, "reason": "x"} for name, spec in REGISTRY.items() if not spec.essential]
    verdict = make.judge(with_gpu(lost=True, lost_code=15), skips=health.parse_skips(rows))[0]
    assert verdict.status == FAIL and not verdict.may_serve


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], ERROR),
        ([SKIPPED], SKIPPED),
        ([OK, SKIPPED], OK),
        ([WARN, OK], WARN),
        ([FAIL, ERROR], ERROR),
        (["x"], ERROR),
    ],
)
def test_nothing_judged_or_unknown_is_an_error(statuses, expected):
    assert health.overall(statuses) == expected


def test_an_instant_in_the_future_hides_nothing():
    node = make.snapshot(log=(r.LogEvent(100.0, "xid", 79, GPU1, "gone"),))
    verdict = make.judge(node, make.settled(), since=make.START + 10**6)[0]
    assert make.one(verdict, "node.kernel_log", "gpu1").status == FAIL
    assert make.one(verdict, "node.history").status == WARN


def test_the_verdict_and_the_history_are_plain_json():
    verdict, history = make.judge(make.snapshot(), make.settled())
    again = json.loads(json.dumps(verdict.as_dict()))
    assert again["may_serve"] is True and sum(again["counts"].values()) == len(again["findings"])
    stored = json.loads(json.dumps(history.as_dict()))
    assert _health_history.load(stored).as_dict() == history.as_dict()


def test_tun_05_cards_with_limits_of_their_own_have_to_keep_them():
    """What is set is judged by the role tuning; what a cable or the BMC makes of it, here."""
    node = with_gpu(power_limit_mw=450_000, power_enforced_mw=450_000)
    assert status(node, "gpu.power_limit") == FAIL
    each = POLICY(power_limit_w=-1)
    assert status(node, "gpu.power_limit", policy=each) == OK
    capped = with_gpu(power_limit_mw=450_000, power_enforced_mw=300_000)
    assert status(capped, "gpu.power_limit", policy=each) == FAIL
    untold = with_gpu(power_limit_mw=make.unread(r.UNSUPPORTED))
    assert status(untold, "gpu.power_limit", policy=each) == SKIPPED
