"""The cache of compiled modules on the controller, and who compiles for whom."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.filter import module_sharing

A, B, C = "a.tgz", "b.tgz", "c.tgz"


def work(lacking):
    return {host: module_sharing.module_work(lacking, host) for host in lacking}


def test_the_first_compiles_and_all_others_wait_for_it():
    found = work({"n1": [A], "n2": [A], "n3": [A]})
    assert found["n1"] == {"makes": [A], "waits_for": ""}
    assert found["n2"] == found["n3"] == {"makes": [], "waits_for": "n1"}


def test_nobody_waits_for_nothing():
    assert work({"n1": [], "n2": []}) == {name: {"makes": [], "waits_for": ""} for name in ("n1", "n2")}
    assert module_sharing.module_work({}, "n1") == {"makes": [], "waits_for": ""}


def test_each_kernel_is_packed_by_one_node_and_who_compiles_anyway_does_not_wait():
    found = work({"n1": [A], "n2": [A, B], "n3": [B, A], "n4": [C]})
    assert found["n2"] == {"makes": [B], "waits_for": ""}
    assert found["n3"] == {"makes": [], "waits_for": "n2"}
    assert found["n4"] == {"makes": [C], "waits_for": ""}


@pytest.mark.parametrize(
    ("files", "there", "sha256"),
    [
        ({}, False, ""),
        ({"": "x"}, False, ""),
        ({".sha256": "AB12  name\n"}, False, "ab12"),
        ({"": "x", ".sha256": ""}, False, ""),
        ({"": "x", ".sha256": "AB12  name\n"}, True, "ab12"),
    ],
)
def test_an_archive_counts_only_with_its_seal(tmp_path, files, there, sha256):
    name = "nvidia-current-535.261.03-6.1.0-57-amd64-x86_64.tgz"
    for suffix, text in files.items():
        (tmp_path / (name + suffix)).write_text(text)
    (entry,) = module_sharing.module_archives(
        ["6.1.0-57-amd64"], str(tmp_path), "nvidia-current", "535.261.03", "x86_64", "/var/tmp/x"
    )
    assert entry["there"] is there and entry["file"] == str(tmp_path / name)
    assert entry["load"] == {"path": f"/var/tmp/x/{name}", "sha256": sha256, "kernel": "6.1.0-57-amd64"}
