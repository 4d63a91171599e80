# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What drifts beside what the roles verify."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _dkms_guard, _drift

KERNEL, NEWER = "6.1.0-57-amd64", "6.12.95+deb12-amd64"
NOW = "2026-01-31T12:00:00Z"


def facts(**changes):
    entry = f"gnulinux-advanced-1>gnulinux-{KERNEL}-advanced-1"
    pinned = {"kernel": KERNEL, "found": True, "spec": entry, "entry": entry}
    found = {
        "running_kernel": KERNEL,
        "kernels": [{"release": KERNEL}],
        "boot": {"effective": "${saved_entry}", "default": pinned, "one_shot": None, "next_kernel": KERNEL},
        "record": {"version": "535.183.06"},
        "rollback": None,
    }
    return {**found, **changes}


def drift(**changes):
    good = {"reason": "", "time": "2026-01-01T12:00:00Z", "version": "535.183.06", "kernel": KERNEL, "damage": []}
    return {"foreign_sources": [], "last_known_good": {**good, **changes}, "no_autoinstall": False}


def judged(node, read):
    return {one.check: one for one in _drift.findings(node, read, NOW)}


def test_a_node_as_recorded_has_not_drifted():
    found = judged(facts(), drift())
    assert {one.status for one in found.values()} == {"ok"}
    assert found["drift.last_known_good"].value["age_days"] == 30


def test_no_record_means_no_way_back():
    found = judged(facts(), drift(time=None, reason="nothing is recorded", kernel=None))
    assert found["drift.last_known_good"].status == "fail"
    assert found["drift.boot_default"].status == "skipped" and found["drift.boot_default"].hint


def test_a_damaged_record_is_no_way_back():
    found = judged(facts(), drift(damage=["debs/x.deb: gone"]))["drift.last_known_good"]
    assert found.status == "fail" and "debs/x.deb" in found.hint


def test_a_record_of_another_driver_is_told():
    found = judged(facts(record={"version": "550.163.01"}), drift())["drift.last_known_good"]
    assert (found.status, found.expected["version"]) == ("warn", "550.163.01")


def test_krn_01_a_next_kernel_that_nobody_verified_is_drift():
    node = facts()
    node["boot"]["next_kernel"] = NEWER
    assert judged(node, drift())["drift.boot_default"].status == "fail"


def test_krn_06_a_newer_kernel_behind_a_pin_is_told():
    node = facts(kernels=[{"release": KERNEL}, {"release": NEWER}, {"release": "6.1.0-40-amd64"}])
    found = [one for one in _drift.findings(node, drift(), NOW) if one.check == "drift.untried_kernel"]
    assert [(one.target, one.status) for one in found] == [(NEWER, "warn")]


def test_drv_10_a_rollback_is_told_with_its_reason():
    record = {"attempted": {"driver": "550.163.01"}, "active": {"driver": "535.183.06"}, "reason": "no", "time": NOW}
    found = judged(facts(rollback=record), drift())["drift.rolled_back"]
    assert (found.status, found.value) == ("warn", {"driver": "550.163.01"}) and "no" in found.hint


def test_foreign_sources_are_those_that_name_another_origin(tmp_path):
    sources = tmp_path / "etc/apt/sources.list.d"
    sources.mkdir(parents=True)
    (sources / "a.list").write_text("deb https://user:secret@mirror.example/tools stable main\n")
    (sources / "b.list").write_text("deb https://deb.example/debian bookworm main\n")
    lists = tmp_path / "var/lib/apt/lists"
    lists.mkdir(parents=True)
    for name, origin in (
        ("mirror.example_tools_dists_stable", "Tools"),
        ("deb.example_debian_dists_bookworm", "Debian"),
    ):
        (lists / f"{name}_InRelease").write_text(f"Origin: {origin}\n")
    found = _drift.collect(str(tmp_path))
    assert [one["file"] for one in found["foreign_sources"]] == ["/etc/apt/sources.list.d/a.list"]
    assert "secret" not in str(found)
    assert found["last_known_good"]["reason"] == "nothing is recorded" and not found["no_autoinstall"]


def test_krn_01_a_power_cut_leaves_the_whole_switch_or_none(tmp_path, monkeypatch):
    """One that is cut off before its text is on the disk would count for an administrator's and stay for ever."""
    switch = tmp_path / _dkms_guard.SWITCH.lstrip("/")
    switch.parent.mkdir(parents=True)
    seen = []

    def fsync(_descriptor):
        seen.append(switch.exists())
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(KeyboardInterrupt), _dkms_guard.no_builds(str(tmp_path)):
        pass
    assert seen == [False] and list(switch.parent.iterdir()) == []


def test_the_switch_of_dkms_is_seen_and_swept_only_where_it_is_ours(tmp_path):
    switch = tmp_path / _dkms_guard.SWITCH.lstrip("/")
    switch.parent.mkdir(parents=True)
    with _dkms_guard.no_builds(str(tmp_path)):
        assert _drift.collect(str(tmp_path))["no_autoinstall"]
    assert not switch.exists()
    # An empty one is what touch makes, the usual way to switch DKMS off.
    for text in ("an administrator's\n", ""):
        switch.write_text(text)
        with _dkms_guard.no_builds(str(tmp_path)):
            assert switch.exists()
        assert switch.exists() and not _dkms_guard.sweep(str(tmp_path))
    found = judged(facts(), {**drift(), "no_autoinstall": True})["drift.dkms_autoinstall"]
    assert found.status == "warn"
