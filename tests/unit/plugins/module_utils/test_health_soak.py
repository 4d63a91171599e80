"""2,000 random nodes: no exception, no "ok" for a check whose reading was not there, no status that nobody knows."""

from __future__ import annotations

import dataclasses
import json
import random

import gpu_snapshots as make
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_history as history
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_checks import REGISTRY, gpu_target
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_policy import Policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_readings import READINGS, misread
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import BAD, OK, SEVERITY, SKIPPED

SEED = 20_260_401
RUNS = 2_000
ODD = (
    *(None, True, False, "", "ERR!", "\udcff", [], {}, [1, 2, 0], [None], {"replay": 3}, {"enabled": None}),
    *(-1, 0, 1, 2, 3, 7, 8, 15, 32, 100, 255, 65534, 2**31, 2**32 - 1, 2**63, 2**64 - 1, -(2**40)),
    *(float("nan"), float("inf"), -0.5, 1e300),
)


def odd_reading(rng, name):
    dice = rng.random()
    if dice < 0.35:
        why = rng.choice(sorted(r.REASONS))
        return r.Reading(None, why, rng.choice([None, 3, 4, 13, 15, 999]), rng.choice(["", "text", "\udcff"]))
    if dice < 0.6:
        return r.Reading(rng.choice(ODD))
    usual = make.HEALTHY.get(name, 0)
    if isinstance(usual, int) and not isinstance(usual, bool):
        return r.Reading(max(0, usual + rng.randint(-20, 20) * rng.choice([1, 1, 1000])))
    return r.Reading(usual, note=rng.choice(["", "includes reserved"]))


def odd_gpu(rng, index):
    gpu = make.gpu(index)
    values = dict(gpu.readings)
    if rng.random() < 0.2:
        values.update({name: r.Reading(0) for name in ("retired_sbe", "retired_dbe", "retired_pending")})
    for name in rng.sample(sorted(READINGS), rng.randint(0, 12)):
        values[name] = odd_reading(rng, name)
    for name in rng.sample(sorted(READINGS), rng.choice([0, 0, 0, 5, 60])):
        values.pop(name, None)
    processes = [
        r.Process(rng.randint(1, 99999), rng.choice([None, 0, 900]), "compute", rng.random() < 0.7, "p", "a.service")
        for _process in range(rng.choice([0, 0, 0, 1, 3]))
    ]
    mig = [
        r.MigDevice(number, "MIG", rng.choice(["", "1g.10gb"]), None, {"memory_used_mib": odd_reading(rng, "power_mw")})
        for number in range(rng.choice([0, 0, 0, 2]))
    ]
    lost = rng.random() < 0.05
    return dataclasses.replace(
        gpu,
        bus_id=rng.choice([gpu.bus_id] * 9 + [""]),
        lost=lost,
        lost_code=rng.choice([None, 15, 16, 28, 999, 12345]) if lost else None,
        readings=values,
        processes=tuple(processes),
        mig=tuple(mig),
    )


def odd_event(rng):
    kind = rng.choice(["xid", "xid", "xid", "off_bus", "reset_required"])
    code = rng.choice([None, 0, 13, 31, 43, 45, 48, 79, 119, 145, 154, 172, 999, 10**9])
    address = rng.choice(["", make.bus(0), make.bus(1), "0000:ff:1f.7"])
    fatal = rng.choice([None, True, False])
    return r.LogEvent(rng.uniform(-5, 10**5), kind, code, address, "NVRM: x", fatal, rng.random() < 0.1)


def odd_node(rng, minutes):
    gpus = tuple(odd_gpu(rng, index) for index in range(rng.choice([0, 1, 2, 2, 3, 8])))
    pci = tuple(
        make.pci_gpu(
            one.index,
            device_id=rng.choice(["2330"] * 5 + ["1eb8", "ffff", ""]),
            driver=rng.choice(["nvidia"] * 6 + [None, "nouveau"]),
            numa_node=rng.choice([None, -1, 0, 7]),
            aer=rng.choice(
                [None, {}, {"correctable": rng.randint(0, 99), "nonfatal": 0, "fatal": rng.choice([0, 0, 1])}]
            ),
            port_max_width=rng.choice([None, 8, 16]),
        )
        for one in gpus
        if rng.random() < 0.95
    )
    state = rng.choice(["ok"] * 8 + list(r.NVML_STATES))
    nvml = r.Nvml(
        state,
        rng.choice([None, 9, 999]),
        driver_version=rng.choice(["", make.DRIVER]),
        count=rng.choice([None, len(gpus), len(gpus), len(gpus) + 1]),
        hung_in=rng.choice(["", "nvmlInit"]),
    )
    names = ("nvidia-fabricmanager.service", "nvidia-persistenced.service", "nvidia-imex.service")
    units = tuple(
        r.Unit(
            name,
            rng.choice(["", "loaded", "not-found"]),
            rng.choice(["", "active", "failed"]),
            "",
            rng.randint(0, 5),
            rng.choice([None, 5.0, 5000.0]),
        )
        for name in rng.sample(names, rng.randint(0, 3))
    )
    software = r.Software(
        module_version=rng.choice([None, make.DRIVER, "1"]),
        library_version=rng.choice([None, make.DRIVER]),
        wanted_version=rng.choice([None, make.DRIVER]),
        held=rng.choice([None, True, False]),
        nouveau_loaded=rng.random() < 0.1,
        device_nodes=rng.choice([(), make.snapshot(count=8).software.device_nodes]),
        iommu=rng.choice([None, True, False]),
    )
    stuck = rng.choice([(), ({"pid": 3, "name": "x"},)])
    return make.snapshot(
        gpus,
        minutes=minutes,
        boot_id=rng.choice([make.BOOT] * 20 + ["other"]),
        uptime_s=max(0.0, make.UPTIME + minutes * 60 + rng.choice([0, 0, 0, -7200, 86400])),
        root=rng.random() < 0.8,
        nvml=nvml,
        pci=pci,
        nvswitches=rng.choice([(), ("0000:05:00.0",) * 2]),
        software=software,
        units=units,
        occupants=r.Occupants(dstate=stuck, zombies=stuck, holders=rng.choice([(), ({"pid": 1, "service": False},)])),
        log=tuple(odd_event(rng) for _event in range(rng.choice([0, 0, 1, 5, 40]))),
        log_error=rng.choice([""] * 9 + ["broken"]),
    )


def readable(gpu, name):
    found = gpu.get(name)
    return found.ok and not misread(name, found.value)


def check_one(node, verdict):
    assert {item.status for item in verdict.findings} <= set(SEVERITY)
    assert {item.check for item in verdict.findings} >= {
        name for name, spec in REGISTRY.items() if spec.scope == "node"
    }
    assert len(verdict.gpus) == len({gpu_target(gpu) for gpu in node.gpus})
    assert verdict.may_serve == (not verdict.bad and verdict.status in (OK, "warn"))
    assert all(item.hint for item in verdict.findings if item.status != OK), "whoever is told is told what to do"
    blind = node.nvml.state != "ok" and (node.gpus or node.pci)
    if blind or node.log_error or any(gpu.lost for gpu in node.gpus):
        assert not verdict.may_serve
    by_target = {}
    for item in verdict.findings:
        by_target.setdefault((item.check, item.target), []).append(item)
    for gpu in node.gpus:
        for spec in REGISTRY.values():
            if spec.scope != "gpu":
                continue
            found = by_target[spec.name, gpu_target(gpu)]
            if gpu.lost and spec.name != "gpu.lost":
                assert {item.status for item in found} == {SKIPPED}
            groups = (spec.reads, *spec.instead)
            if not any(all(readable(gpu, name) for name in group) for group in groups):
                assert OK not in {item.status for item in found}, (spec.name, found)
            broken = [name for name in (*spec.reads, *spec.optional) if gpu.get(name).why in (r.FAILED, r.NOT_REACHED)]
            if broken and not gpu.lost and all(name in spec.reads for name in broken):
                assert {item.status for item in found} <= BAD, (spec.name, broken, found)
    json.dumps(verdict.as_dict())


def test_two_thousand_random_nodes_are_judged_without_a_mistake():
    rng = random.Random(SEED)
    policies = (Policy(), Policy(strict_pending=True, expect_gpus=False, processes="none", unknown_model="fail"))
    kept, seen = None, set()
    for number in range(RUNS):
        node = odd_node(rng, number)
        verdict, kept = make.judge(node, kept, policy=rng.choice(policies), since=rng.choice([None, None, make.START]))
        check_one(node, verdict)
        seen |= {(item.check, item.status) for item in verdict.findings}
        if number % 50 == 0:
            kept = history.load(json.loads(json.dumps(kept.as_dict())))
            assert not kept.problem
        if number % 400 == 399:
            kept = history.load("a file that was cut off")
        if rng.random() < 0.01:
            kept = history.repaired(kept, node.taken_at)
    assert len(json.dumps(kept.as_dict())) < 300_000
    # The soak has to reach something: every check was seen good and not good.
    assert {name for name, status in seen if status == OK} == set(REGISTRY)
    assert {name for name, status in seen if status not in (OK, SKIPPED)} == set(REGISTRY)
