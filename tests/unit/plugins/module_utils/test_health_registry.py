"""The registry as a whole: no check is dead, none takes unknown for good, and the healthy node is healthy."""

from __future__ import annotations

import dataclasses

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_health as health
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading_names as names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_checks as checks
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_history as history
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_policy as policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_readings as readings
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import BAD, OK, SEVERITY, SKIPPED, WARN

REGISTRY = checks.REGISTRY


def of_gpu(**changes):
    """A mutation: the readings of GPU 1 that change."""
    return lambda node: dataclasses.replace(node, gpus=(node.gpus[0], make.gpu(1, **changes)))


def of_pci(**changes):
    return lambda node: dataclasses.replace(node, pci=(node.pci[0], make.pci_gpu(1, **changes)))


def of_software(**changes):
    return lambda node: dataclasses.replace(node, software=dataclasses.replace(node.software, **changes))


def of_node(**changes):
    return lambda node: dataclasses.replace(node, **changes)


def grown(name, **growth):
    return of_gpu(**{name: {**make.HEALTHY[name], **growth}})


PAGES = {"retired_sbe": 0, "retired_dbe": 0, "retired_pending": False}
#: Check to the change of its input that it must not miss, and the status that it must then have.
MUTATIONS = {
    "node.nvml": (of_node(nvml=r.Nvml("timeout", hung_in="nvmlInit")), "fail"),
    "node.gpu_count": (lambda node: dataclasses.replace(node, pci=(*node.pci, make.pci_gpu(2))), "fail"),
    "node.pci_driver": (of_pci(driver="vfio-pci"), "fail"),
    "node.driver_match": (of_software(library_version="580.126.09"), "fail"),
    "node.driver_pin": (of_software(wanted_version="580.126.09"), "fail"),
    "node.nouveau": (of_software(nouveau_loaded=True), "fail"),
    "node.device_nodes": (of_software(device_nodes=("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1")), "warn"),
    "node.units": (of_node(units=(r.Unit("nvidia-fabricmanager.service", "loaded", "failed", "failed"),)), "fail"),
    "node.iommu": (of_software(cmdline="quiet"), "warn"),
    "node.nvswitches": (of_node(nvswitches=("0000:05:00.0",)), "fail"),
    "node.kernel_log": (of_node(log=(r.LogEvent(100.0, "xid", 79, make.bus(1), "fallen off the bus"),)), "fail"),
    "node.dstate": (of_node(occupants=r.Occupants(dstate=({"pid": 7, "name": "nvidia-smi"},))), "warn"),
    "node.zombies": (of_node(occupants=r.Occupants(zombies=({"pid": 8, "name": "python"},))), "warn"),
    "node.history": (None, "warn"),
    "gpu.lost": (of_gpu(lost=True, lost_code=15), "fail"),
    "gpu.profile": (of_pci(device_id="ffff"), "warn"),
    "gpu.ecc_mode": (of_gpu(ecc_mode_current=0), "fail"),
    "gpu.ecc_uncorrected": (of_gpu(ecc_uncorrected_volatile=1), "fail"),
    "gpu.ecc_aggregate": (of_gpu(ecc_uncorrected_aggregate=4), "warn"),
    "gpu.ecc_corrected": (of_gpu(ecc_corrected_volatile=20_000_001), "warn"),
    "gpu.sram_threshold": (of_gpu(sram_threshold_exceeded=True), "fail"),
    "gpu.row_remap_pending": (of_gpu(remap_pending=True), "warn"),
    "gpu.row_remap_failure": (of_gpu(remap_failure=True), "fail"),
    "gpu.row_remap_banks": (of_gpu(remap_bank_none=1), "warn"),
    "gpu.row_remap_count": (of_gpu(remap_uncorrectable=512), "warn"),
    "gpu.retired_pages": (of_gpu(**{**PAGES, "retired_sbe": 63}), "fail"),
    "gpu.repair": (of_gpu(repair_tpc_pending=True), "warn"),
    "gpu.unrepairable_memory": (of_gpu(unrepairable_memory=True), "fail"),
    "gpu.recovery_action": (of_gpu(recovery_action=8), "fail"),
    "gpu.inforom": (of_gpu(inforom_valid=False), "fail"),
    "gpu.memory_total": (of_gpu(memory_total_mib=65_000), "fail"),
    "gpu.memory_idle": (of_gpu(memory_used_mib=600), "warn"),
    "gpu.memory_use": (of_gpu(memory_used_mib=70_000), "warn"),
    "gpu.bar1": (of_gpu(bar1_total_mib=256), "fail"),
    "gpu.pcie_width": (of_gpu(pcie_width=8), "fail"),
    "gpu.pcie_generation": (of_gpu(pcie_gen=3), "fail"),
    "gpu.pcie_replay": (of_gpu(pcie_replay=150 + 31), "warn"),
    "gpu.pcie_errors": (of_gpu(pcie_nonfatal=1), "fail"),
    "gpu.pcie_aer": (of_pci(aer={"correctable": 0, "nonfatal": 0, "fatal": 1}), "fail"),
    "gpu.numa": (of_pci(numa_node=-1), "warn"),
    "gpu.nvlink": (of_gpu(nvlink_states=[1] * 17 + [0]), "fail"),
    "gpu.nvlink_errors": (grown("nvlink_errors", replay=6), "fail"),
    "gpu.fabric": (of_gpu(fabric_state=1), "fail"),
    "gpu.fabric_health": (of_gpu(fabric_health_mask=0b0001_10_10_10_01), "fail"),
    "gpu.clock_reasons": (of_gpu(clock_reasons=0x40), "warn"),
    "gpu.clock_counters": (of_gpu(clock_ns_hw_brake=7 * 10**9), "fail"),
    "gpu.temperature": (of_gpu(temperature_margin=-2), "fail"),
    "gpu.memory_temperature": (of_gpu(temperature_mem_max=37), "fail"),
    "gpu.power_reading": (of_gpu(power_mw=0), "warn"),
    "gpu.power_limit": (of_gpu(power_enforced_mw=500_000), "fail"),
    "gpu.fan": (of_gpu(fan_speed=[0], temperature=70), "warn"),
    "gpu.vbios": (of_gpu(vbios="96.00.00.00.00"), "warn"),
    "gpu.inforom_version": (of_gpu(inforom_version="G520.0100.00.00"), "warn"),
    "gpu.gsp_version": (of_gpu(gsp_version="570.0"), "warn"),
    "gpu.persistence_mode": (of_gpu(persistence_mode=0), "warn"),
    "gpu.compute_mode": (of_gpu(compute_mode=2), "fail"),
    "gpu.mig": (of_gpu(mig_mode_pending=1), "warn"),
    "gpu.processes": (of_gpu(processes=1, processes_list=[r.Process(5, 900, exists=False)]), "fail"),
}
#: What the healthy node lacks; the check is ok once it has it.
COMPLETED = {"gpu.retired_pages": of_gpu(**PAGES)}


def judged(node, check):
    return [item.status for item in make.only(make.judge(node, make.settled())[0], check)]


def test_the_healthy_node_may_serve_and_everything_could_be_judged():
    verdict = make.judge(make.snapshot(), make.settled())[0]
    assert (verdict.status, verdict.may_serve) == (OK, True), verdict.bad
    odd = {item.check for item in verdict.findings if item.status != OK}
    assert odd == {"gpu.retired_pages"}, "what this card does not have"
    assert set(verdict.gpus.values()) == {OK}


@pytest.mark.parametrize("check", sorted(REGISTRY))
def test_no_check_is_dead_a_flipped_input_changes_its_verdict(check):
    mutate, expected = MUTATIONS[check]
    node = make.snapshot()
    before = COMPLETED.get(check, lambda same: same)(node)
    assert set(judged(before, check)) <= {OK, SKIPPED} and OK in judged(before, check)
    if check == "node.history":
        found = make.judge(node, history.load({"schema": 99}))[0]
        assert make.one(found, check).status == expected
        return
    after = judged(mutate(node), check)
    assert max(after, key=SEVERITY.index) == expected


def test_every_mutation_is_of_a_check():
    assert set(MUTATIONS) == set(REGISTRY)


@pytest.mark.parametrize("why", [r.FAILED, r.NOT_REACHED])
@pytest.mark.parametrize("check", sorted(name for name, spec in REGISTRY.items() if spec.scope == "gpu" and spec.reads))
def test_hlt_06_a_check_whose_reading_failed_is_bad(check, why):
    for name in REGISTRY[check].all_reads:
        in_use = name in REGISTRY[check].reads or name in REGISTRY[check].optional
        node = of_gpu(**{name: make.unread(why, 999)})(make.snapshot())
        finding = make.one(make.judge(node, make.settled())[0], check, "gpu1")
        assert finding.status in BAD or (not in_use and finding.status == OK), (name, finding)
        if finding.status in BAD:
            assert name in finding.hint
            assert why == r.NOT_REACHED or "999" in finding.hint


@pytest.mark.parametrize("check", sorted(name for name, spec in REGISTRY.items() if spec.scope == "gpu" and spec.reads))
def test_a_check_whose_reading_is_unsupported_is_never_ok_without_another(check):
    spec = REGISTRY[check]
    names_ = [name for name in (*spec.reads, *(n for group in spec.instead for n in group)) if name in make.HEALTHY]
    for name in names_:
        gone = {n: make.unread(r.UNSUPPORTED, 3) for group in spec.instead for n in group}
        node = of_gpu(**{**gone, name: make.unread(r.UNSUPPORTED, 3)})(make.snapshot())
        finding = make.one(make.judge(node, make.settled())[0], check, "gpu1")
        assert finding.status in (SKIPPED, "fail") or name not in spec.reads, (name, finding)


def test_the_catalogue_is_covered():
    ranks = [spec.priority for spec in REGISTRY.values()]
    assert sum(1 for rank in ranks if rank in ("P0", "P1")) >= 35
    assert set(ranks) <= {"P0", "P1", "P2"}


@pytest.mark.parametrize("spec", REGISTRY.values(), ids=lambda spec: spec.name)
def test_a_check_says_what_it_reads_where_its_verdict_comes_from_and_what_to_do(spec):
    assert spec.title.endswith("?") and spec.source and spec.action
    assert spec.name.split(".")[0] == spec.scope
    fields = {field.name for field in dataclasses.fields(policy.Policy)}
    assert set(spec.thresholds) | set(spec.damped) <= fields
    if spec.scope == "gpu":
        assert set(spec.all_reads) <= set(readings.READINGS)
    assert spec.all_reads or spec.parts


def test_every_threshold_is_used_by_a_check_or_by_the_history():
    used = {name for spec in REGISTRY.values() for name in (*spec.thresholds, *spec.damped)}
    used |= {"min_span_s", "max_gap_s", "history_samples", "window_s"}
    assert used == {field.name for field in dataclasses.fields(policy.Policy)}


def test_readings_are_those_of_the_reader():
    assert set(readings.READINGS) == set(names.READINGS)


def test_two_checks_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"two checks are called node\.nvml"):
        checks.check("node.nvml", "node", "Again?", source="x", action="y")(lambda ctx: [])


def test_a_mistake_in_a_check_is_an_error_and_the_others_go_on(monkeypatch):
    def broken(gpu, ctx):
        raise ZeroDivisionError("oops")

    monkeypatch.setitem(REGISTRY, "gpu.fan", dataclasses.replace(REGISTRY["gpu.fan"], function=broken))
    monkeypatch.setitem(REGISTRY, "gpu.numa", dataclasses.replace(REGISTRY["gpu.numa"], function=lambda gpu, ctx: []))
    verdict = health.judge(make.snapshot(), make.profiles(), make.xids())[0]
    assert {item.status for item in make.only(verdict, "gpu.fan")} == {"error"}
    assert {item.status for item in make.only(verdict, "gpu.numa")} == {"error"}, "judging nothing is no verdict"
    assert make.one(verdict, "gpu.lost", "gpu0").status == OK
    assert not verdict.may_serve


def test_only_root_is_told_some_values():
    node = of_gpu(sram_threshold_exceeded=make.unread(r.NO_PERMISSION, 4))(make.snapshot())
    assert make.one(make.judge(node)[0], "gpu.sram_threshold", "gpu1").status == "fail", "root was refused"
    finding = make.one(make.judge(dataclasses.replace(node, root=False))[0], "gpu.sram_threshold", "gpu1")
    assert finding.status == SKIPPED and "run as root" in finding.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature_margin", "58"),
        ("power_mw", -1),
        ("nvlink_states", [1, 7]),
        ("nvlink_errors", {"replay": -1}),
        ("pcie_width", True),
        ("utilization_gpu", float("nan")),
        ("remap_pending", 2),
    ],
)
def test_a_value_that_cannot_be_was_misread(name, value):
    node = of_gpu(**{name: value})(make.snapshot())
    users = [spec.name for spec in REGISTRY.values() if spec.scope == "gpu" and name in (*spec.reads, *spec.optional)]
    assert users
    for check in users:
        finding = make.one(make.judge(node, make.settled())[0], check, "gpu1")
        assert finding.status == "error" and "misread" in finding.hint


def test_warn_is_a_status_that_serves():
    verdict = make.judge(of_gpu(persistence_mode=0)(make.snapshot()), make.settled())[0]
    assert (verdict.status, verdict.may_serve) == (WARN, True)
    assert verdict.gpus["gpu1 " + make.bus(1)] == WARN and verdict.gpus["gpu0 " + make.bus(0)] == OK
