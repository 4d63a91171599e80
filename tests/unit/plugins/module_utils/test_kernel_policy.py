"""Headers for every kernel, and the hold."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _kernel_policy
from node_facts import OTHER, RUNNING, choice, healthy, package

NOW = "2026-11-30T12:00:00Z"


def judge(facts, policy="gate", days=90):
    return _kernel_policy.findings(facts, {"policy": policy, "now": NOW, "hold_warn_days": days})


def bad(findings):
    return [(item.check, item.target, item.status) for item in findings if item.status != "ok"]


def held(facts):
    for name in ("linux-image-amd64", "linux-headers-amd64"):
        facts["kernel_packages"][name]["hold"] = True
    facts["kernel_hold"] = {"since": "2026-08-02T12:00:00Z", "held": {"linux-image-amd64": "6.1.158-1"}}
    return facts


def newer(facts):
    facts["candidates"] = {
        "linux-image-amd64": {
            "installed": "6.1.158-1",
            "candidate": "6.1.158-1",
            "newer": [{"version": "6.1.170-1", "security": True}, {"version": "6.1.164-1", "security": False}],
        }
    }
    return facts


def test_healthy_node_needs_nothing():
    plan = _kernel_policy.plan(healthy(), "gate")
    assert plan == {
        "packages": {},
        "unavailable": [],
        "unpaired": [],
        "hold": [],
        "unhold": [],
        "held": {},
        "skipped": {},
    }
    assert bad(judge(healthy())) == []
    assert _kernel_policy.questions(healthy()["kernels"], healthy()["kernel_packages"]) == []


@pytest.mark.parametrize(
    ("image", "headers"),
    [
        ("linux-image-amd64", "linux-headers-amd64"),
        ("linux-image-cloud-amd64", "linux-headers-cloud-amd64"),
        ("linux-image-generic", "linux-headers-generic"),
        ("linux-image-generic-hwe-22.04", "linux-headers-generic-hwe-22.04"),
        ("linux-image-virtual-hwe-24.04-edge", "linux-headers-virtual-hwe-24.04-edge"),
    ],
)
def test_headers_meta_follows_the_image_meta(image, headers):
    assert _kernel_policy.image_metas(
        {image: {}, "linux-image-6.1.0-41-amd64": {}, "linux-image-unsigned-6.8.0-1": {}}
    ) == [image]
    assert _kernel_policy.header_meta(image) == headers


def test_meta_that_brings_both_belongs_to_them():
    packages = {
        "linux-generic-hwe-22.04": {},
        "linux-image-generic-hwe-22.04": {},
        "linux-headers-generic-hwe-22.04": {},
    }
    assert _kernel_policy.metas(packages) == sorted(packages)


def lacking():
    facts = healthy()
    facts["kernels"][0]["headers"] = False
    facts["kernels"][1]["headers"] = False
    del facts["kernel_packages"]["linux-headers-amd64"]
    facts["candidates"] = {
        "linux-headers-" + RUNNING: {"installed": None, "candidate": "6.1.158-1", "newer": []},
        "linux-headers-amd64": {"installed": None, "candidate": "6.1.170-1", "versions": ["6.1.170-1", "6.1.158-1"]},
        "linux-headers-" + OTHER: {"installed": None, "candidate": None, "newer": []},
    }
    return facts


def test_headers_of_every_bootable_kernel_and_their_meta():
    facts = lacking()
    facts["boot"]["effective"] = "0"
    wanted = ["linux-headers-" + OTHER, "linux-headers-" + RUNNING, "linux-headers-amd64"]
    assert _kernel_policy.questions(facts["kernels"], facts["kernel_packages"]) == wanted
    plan = _kernel_policy.plan(facts, "gate")
    assert plan["packages"] == {"linux-headers-" + RUNNING: "", "linux-headers-amd64": "6.1.158-1"}
    assert plan["unavailable"] == ["linux-headers-" + OTHER]


def test_krn_03_a_kernel_that_a_pinned_boot_loader_does_not_start_gets_no_headers():
    """They would make DKMS build for it, which may be what cannot be done."""
    facts = lacking()
    plan = _kernel_policy.plan(facts, "gate")
    assert plan["packages"] == {"linux-headers-" + RUNNING: "", "linux-headers-amd64": "6.1.158-1"}
    assert plan["unavailable"] == []


def test_krn_07_headers_never_run_ahead_of_the_kernel():
    """Debian's newer headers meta depends on the newer image: it would bring a kernel that nobody asked for."""
    facts = lacking()
    facts["candidates"]["linux-headers-amd64"]["versions"] = ["6.1.170-1"]
    plan = _kernel_policy.plan(facts, "gate")
    assert "linux-headers-amd64" not in plan["packages"]
    assert plan["unpaired"] == ["linux-headers-amd64"]
    (found,) = [item for item in judge(facts) if item.check == "kernel.headers_meta"]
    assert (found.status, "planned kernel upgrade" in found.hint) == ("warn", True)


def test_ubuntus_headers_bring_no_kernel_so_the_candidate_will_do():
    packages = {"linux-image-generic": {"version": "5.15.0.100"}}
    offer = {"candidate": "5.15.0.101", "versions": ["5.15.0.101"]}
    assert _kernel_policy.meta_version("linux-image-generic", packages, offer) == "5.15.0.101"


def test_headers_not_to_be_had_fail_only_where_it_matters():
    facts = healthy()
    facts["kernels"][0]["headers"] = False
    assert bad(judge(facts)) == [("kernel.headers", OTHER, "warn")]
    (found,) = [item for item in judge(facts) if item.status != "ok"]
    assert "no package source has linux-headers-" + OTHER in found.hint
    facts["boot"].update(default=choice(OTHER), next_kernel=OTHER)
    assert bad(judge(facts)) == [("kernel.headers", OTHER, "fail")]
    facts = healthy()
    facts["kernels"][1]["headers"] = False
    assert bad(judge(facts)) == [("kernel.headers", RUNNING, "fail")]


def test_krn_06_the_default_sets_no_hold():
    assert _kernel_policy.plan(healthy(), "gate")["hold"] == []


def test_krn_06_hold_covers_images_and_headers_and_is_dated():
    facts = healthy()
    plan = _kernel_policy.plan(facts, "hold")
    assert plan["hold"] == ["linux-headers-amd64", "linux-image-amd64"]
    for name in plan["hold"]:
        facts["kernel_packages"][name]["hold"] = True
    newer(facts)
    plan = _kernel_policy.plan(facts, "hold")
    assert plan["hold"] == []
    record = _kernel_policy.record(facts, plan, NOW)
    assert record["since"] == NOW
    assert record["held"] == {"linux-headers-amd64": "6.1.158-1", "linux-image-amd64": "6.1.158-1"}
    assert [item["version"] for item in record["skipped"]["linux-image-amd64"]] == ["6.1.170-1", "6.1.164-1"]


def test_krn_06_the_date_of_an_older_hold_stays():
    facts = held(healthy())
    record = _kernel_policy.record(facts, _kernel_policy.plan(facts, "hold"), NOW)
    assert record["since"] == "2026-08-02T12:00:00Z"


def test_krn_06_age_and_skipped_security_versions_are_reported():
    facts = newer(held(healthy()))
    (found,) = [item for item in judge(facts, "hold") if item.check == "kernel.hold"]
    assert found.status == "warn"
    assert found.value["days"] == 120
    assert "held for 120 days" in found.hint
    assert "linux-image-amd64 6.1.170-1" in found.hint
    assert "6.1.164-1" not in found.hint


def test_krn_06_a_young_hold_that_skips_nothing_is_fine():
    assert bad(judge(held(healthy()), "hold", days=365)) == []


def test_krn_06_none_releases_every_hold_gate_only_its_own():
    facts = held(healthy())
    facts["kernel_hold"]["held"] = {"linux-image-amd64": "6.1.158-1"}
    assert _kernel_policy.plan(facts, "none")["unhold"] == ["linux-headers-amd64", "linux-image-amd64"]
    assert _kernel_policy.plan(facts, "gate")["unhold"] == ["linux-image-amd64"]
    facts["kernel_hold"] = None
    assert _kernel_policy.plan(facts, "gate")["unhold"] == []
    assert bad(judge(facts)) == [("kernel.hold", "node", "warn")]


def test_krn_06_one_loose_member_is_named():
    facts = held(healthy())
    facts["kernel_packages"]["linux-headers-amd64"]["hold"] = False
    (found,) = [item for item in judge(facts, "hold") if item.check == "kernel.hold"]
    assert (found.status, found.hint) == ("fail", "not held: linux-headers-amd64")


def test_hold_without_metas_has_nothing_to_hold():
    facts = healthy()
    facts["kernel_packages"] = {"linux-image-" + RUNNING: package("6.1.158-1", hold=False)}
    assert bad(judge(facts, "hold")) == [("kernel.hold", "node", "skipped")]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"default": choice("5.10.0-1-amd64")}, "fail"),
        ({"default": {**choice(RUNNING), "found": False}}, "warn"),
        ({"default": None, "next_kernel": None}, "warn"),
    ],
)
def test_boot_default_has_to_be_a_kernel(change, status):
    facts = healthy()
    facts["boot"].update(change)
    assert bad(judge(facts)) == [("kernel.default", "node", status)]


def test_node_without_kernel_image_is_an_error():
    facts = healthy()
    facts["kernels"] = []
    assert ("kernel.headers", "node", "error") in bad(judge(facts))
