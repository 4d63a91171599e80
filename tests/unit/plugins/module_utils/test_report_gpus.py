"""The report GPU by GPU: in JUnit a GPU is a case, in the data and on the screen it has a status of its own."""

from __future__ import annotations

from xml.etree import ElementTree

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report_forms as forms
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report_gpus as gpus

from .test_report import build, finding

A, B, C = "0000:17:00.0", "0000:2a:00.0", "0000:3d:00.0"


def gpu(target, status="ok", check="gpu.fan", **more):
    return finding(status, check=check, target=target, **more)


NODE = [
    finding("ok"),
    gpu(f"gpu0 {A}"),
    gpu(f"gpu0 {A}", "skipped", "gpu.nvlink", hint="no links"),
    gpu(f"gpu1 {B}", "fail", "gpu.lost", value="gone"),
    gpu(f"gpu1 {B}", "error", "gpu.fan", value="?"),
    gpu(f"gpu1 {B}", "warn", "gpu.numa", value="-1"),
    gpu(f"gpu10 {C}", "warn", "gpu.persistence_mode", value=0),
    gpu("gpu2 0000:5e:00.0", "skipped", "gpu.fan", hint="the GPU is lost"),
    gpu(A, "ok", "node.pci_driver"),
    gpu("gpu0", "ok", "tuning.power"),
    gpu("0000:bb:00.0", "fail", "node.gpu_count", value="on PCI, not in NVML"),
    gpu("0000:01:00.0", "warn", "tuning.acs"),
    gpu("nvidia-fabricmanager.service", "ok", "node.units"),
]


def test_findings_of_one_gpu_come_together_whatever_they_call_it():
    found, others = gpus.by_gpu(NODE)
    assert list(found) == [f"gpu0 {A}", f"gpu1 {B}", "gpu2 0000:5e:00.0", f"gpu10 {C}", "0000:bb:00.0"]
    assert [item["check"] for item in found[f"gpu0 {A}"]] == [
        "gpu.fan",
        "gpu.nvlink",
        "node.pci_driver",
        "tuning.power",
    ]
    # A bridge has an address as well, and is no GPU.
    assert [item["check"] for item in others] == ["driver.module", "tuning.acs", "node.units"]
    assert len(NODE) == sum(map(len, found.values())) + len(others)


@pytest.mark.parametrize("target", ["gpu", "gpux", "gpu1 somewhere", "gpu1 0000:2a:00.0 x", "node"])
def test_what_only_looks_like_a_gpu_is_none(target):
    assert gpus.by_gpu([gpu(target)]) == ({}, [gpu(target)])


@pytest.mark.parametrize(
    ("statuses", "status"),
    [("ok skipped", "ok"), ("skipped", "skipped"), ("ok warn skipped", "warn"), ("fail error ok", "error")],
)
def test_the_status_of_a_gpu(statuses, status):
    assert gpus.status_of([gpu("gpu0", one) for one in statuses.split()]) == status


def test_the_data_has_each_gpu():
    (node,) = build({"a": NODE})["nodes"]
    assert [(row["target"].split()[0], row["status"]) for row in node["gpus"]] == [
        ("gpu0", "ok"), ("gpu1", "error"), ("gpu2", "skipped"), ("gpu10", "warn"), ("0000:bb:00.0", "fail"),
    ]  # fmt: skip
    assert node["gpus"][1]["counts"] == {"ok": 0, "skipped": 0, "warn": 1, "fail": 1, "error": 1}
    assert build({"a": [finding()]})["nodes"][0]["gpus"] == []


def test_in_junit_a_node_is_a_suite_and_a_gpu_a_case():
    root = ElementTree.fromstring(forms.as_junit(build({"a": NODE, "b": [finding("fail")]})))
    suite, other = root
    cases = {case.get("name"): case for case in suite if case.get("classname") == "gpu"}
    assert list(cases) == [f"gpu0 {A}", f"gpu1 {B}", "gpu2 0000:5e:00.0", f"gpu10 {C}", "0000:bb:00.0"]
    assert [(case.get("classname"), case.get("name")) for case in suite if case.get("classname") != "gpu"] == [
        ("driver.module", "node"), ("tuning.acs", "0000:01:00.0"), ("node.units", "nvidia-fabricmanager.service"),
    ]  # fmt: skip
    assert [[child.tag for child in case] for case in cases.values()] == [
        ["system-out"], ["error", "system-out"], ["skipped", "system-out"], ["system-out"], ["failure"],
    ]  # fmt: skip
    error = cases[f"gpu1 {B}"][0]
    assert "gpu.lost" in error.get("message") and "1 more" in error.get("message")
    assert error.text.count("\n") == 1 and "gpu.fan" in error.text
    assert "WARN gpu.numa" in cases[f"gpu1 {B}"][1].text
    assert "SKIPPED gpu.nvlink" in cases[f"gpu0 {A}"][0].text and "no links" in cases[f"gpu0 {A}"][0].text
    # What CI counts are cases, in the whole and in each suite.
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "8", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    assert other.get("failures") == "1" and (root.get("tests"), root.get("failures")) == ("9", "2")


def test_on_the_screen_gpus_are_counted_and_the_bad_ones_named():
    table = forms.as_table(build({"a": NODE}))
    row = next(line for line in table.splitlines() if " GPUs " in line)
    assert row.split(maxsplit=3) == ["a", "GPUs", "error", "1 ok, 1 skipped, 1 warn, 1 fail, 1 error"]
    assert f"- error [gpu1 {B}]: gpu.fan" in table and "- fail [0000:bb:00.0]: node.gpu_count" in table
    assert "GPUs" not in forms.as_table(build({"a": [finding()]}))


def test_hlt_03_one_lost_gpu_of_eight_is_one_bad_case():
    """From a real verdict: eight cases, seven pass, the lost one says so."""
    cards = [make.gpu(index) for index in range(8)]
    cards[3] = make.gpu(3, lost=True, lost_code=15)
    verdict = make.judge(make.snapshot(gpus=cards))[0]
    report = build({"a": [item.as_dict() for item in verdict.findings]})
    root = ElementTree.fromstring(forms.as_junit(report))
    cases = [case for case in root[0] if case.get("classname") == "gpu"]
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    assert len(cases) == 8
    assert [case.get("name") for case in bad] == [f"gpu3 {make.bus(3)}"]
    assert "gpu.lost" in bad[0][0].get("message")
    assert [row["status"] for row in report["nodes"][0]["gpus"]].count("ok") == 7
