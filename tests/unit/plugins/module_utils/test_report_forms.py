"""The report's forms: XML that every parser reads, and a table that says what to do."""

from __future__ import annotations

from xml.etree import ElementTree

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _report_forms as forms

from .test_report import build, finding, nasty

ALL = ("ok", "skipped", "warn", "fail", "error")


def test_each_status_has_its_junit_form():
    root = ElementTree.fromstring(forms.as_junit(build({"a": [finding(status, value="x") for status in ALL]})))
    assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "5",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
        "time": "2.5",
    }
    (suite,) = root
    assert suite.get("name") == "a" and suite.get("tests") == "5"
    assert [[child.tag for child in case] for case in suite] == [
        [],
        ["skipped"],
        ["system-out"],
        ["failure"],
        ["error"],
    ]
    assert {(case.get("classname"), case.get("name")) for case in suite} == {("driver.module", "node")}
    assert suite[1][0].get("message") == "because"
    assert suite[2][0].text == "WARN driver.module [node]: x. because"
    assert suite[3][0].get("message") == "driver.module [node]: x. because"


def test_junit_carries_what_xml_cannot():
    text = forms.as_junit(build({"a\x00<b>": nasty(), "c": None}))
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert root[0].get("name") == "a\\x00<b>"
    assert root[0][1].get("classname") == "driver.\\xff\\x1b"
    assert "]]>\\x0b\\ufffe" in root[0][1][0].text


def test_the_table_collapses_what_is_ok_and_explains_the_rest():
    findings = [finding(target=f"k{number}") for number in range(3)]
    findings += [
        finding("fail", target="k4", value=None, expected="535.261.03", source="nvidia_driver_version"),
        finding(check="tuning.sysctl", target="vm.swappiness"),
        finding("skipped", check="tuning.thp", target="node", hint="container"),
    ]
    assert forms.as_table(build({"gpu-lab-1": findings})).splitlines() == [
        "NODE       CHECK          STATUS   TARGETS",
        "gpu-lab-1  driver         ok       3 ok",
        "gpu-lab-1  driver.module  fail     1 of 4",
        "    - fail [k4]: null, wanted 535.261.03 (nvidia_driver_version). because",
        "gpu-lab-1  tuning         ok       1 ok",
        "gpu-lab-1  tuning.thp     skipped  node",
        "    - skipped [node]: container",
    ]


def test_a_check_shows_its_worst_status_and_a_hint_for_each():
    table = forms.as_table(build({"a": [finding("warn", target="x"), finding("error", target="y")]}))
    assert "a     driver.module  error   2 of 2" in table
    assert "- warn [x]" in table and "- error [y]" in table


def test_the_screen_gets_short_ascii_lines_only():
    long = finding("fail", value="x y" * 5000)
    report = build({"n\u00f6de": [*nasty(), long]})
    text = "\n".join([forms.as_table(report), *forms.verdict_lines(report)])
    assert all(" " <= char <= "~" for char in text.replace("\n", ""))
    assert max(map(len, text.splitlines())) <= 110
    assert "... (whole in report.json)" in " ".join(text.split())


def test_verdict_lines_name_each_node_and_the_run():
    findings = [finding() for _number in range(37)] + [finding("skipped")] * 4 + [finding("warn")]
    assert forms.verdict_lines(build({"gpu-lab-1": findings, "gpu-lab-2": None})) == [
        "VERDICT gpu-lab-1: PASS (37 ok, 4 skipped, 1 warn)",
        "VERDICT gpu-lab-2: FAIL (1 error)",
        "VERDICT: FAIL (1 of 2 nodes pass)",
    ]
    assert forms.verdict_lines(build({})) == ["VERDICT: FAIL (no node was verified)"]
