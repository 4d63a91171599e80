"""dpkg's database as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _dpkg

FIXTURES = Path(__file__).parent / "fixtures/dpkg"


def node(root):
    (root / "var/lib/dpkg/updates").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text((FIXTURES / "status").read_text())
    return str(root)


def test_packages_with_version_hold_and_source(tmp_path):
    found = _dpkg.read_packages(node(tmp_path), lambda name: "nvidia" in name or name == "libcuda1")
    assert [(p.name, p.architecture, p.version, p.held, p.installed, p.source) for p in found] == [
        ("libnvidia-ml1", "amd64", "535.261.03-1", True, True, "nvidia-graphics-drivers"),
        ("libcuda1", "amd64", "535.261.03-1", True, True, "nvidia-graphics-drivers"),
        ("libcuda1", "i386", "535.261.03-1", False, True, "nvidia-graphics-drivers"),
        ("nvidia-kernel-dkms", "amd64", "535.261.03-1", True, False, "nvidia-graphics-drivers"),
        ("nvidia-persistenced", "amd64", "535.171.04-1~deb12u1", False, True, "nvidia-persistenced"),
    ]


def test_a_removed_kernel_s_configuration_is_no_kernel(tmp_path):
    found = _dpkg.read_packages(node(tmp_path), lambda name: name.startswith("linux-image"))
    assert [(package.name, package.source) for package in found] == [
        ("linux-image-6.1.0-41-amd64", "linux-signed-amd64")
    ]


def test_text_of_a_description_is_no_field(tmp_path):
    (package,) = _dpkg.read_packages(node(tmp_path), lambda name: name == "adduser")
    assert package.version == "3.134"


def test_krn_03_what_an_earlier_run_left_half_way(tmp_path):
    found = _dpkg.unfinished(node(tmp_path))
    assert [(package.name, package.status, package.flag) for package in found] == [
        ("nvidia-kernel-dkms", "half-configured", "ok"),
        ("man-db", "triggers-pending", "ok"),
        ("half-done", "half-installed", "reinstreq"),
    ]


def test_journal_of_a_killed_dpkg(tmp_path):
    root = node(tmp_path)
    assert _dpkg.interrupted(root) is False
    (tmp_path / "var/lib/dpkg/updates/0003").write_text("")
    assert _dpkg.interrupted(root) is True


def test_no_database_no_packages(tmp_path):
    assert _dpkg.read_packages(str(tmp_path)) == []
    assert _dpkg.unfinished(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("535.261.03-1", "535.261.03"),
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("3:580.126.20-1.el9", "580.126.20"),
        ("550.163.01-4~bpo13+1", "550.163.01"),
        ("535.288.01-0ubuntu0.22.04.1", "535.288.01"),
        ("20220217+3~deb12u1", "20220217+3~deb12u1"),
    ],
)
def test_upstream_version(version, upstream):
    assert _dpkg.upstream_version(version) == upstream


@pytest.mark.parametrize(
    "ordered",
    [
        ["535.183.06-1~deb12u1", "535.183.06-1", "535.261.03-1", "535.309.01-0+deb12u1", "550.163.01-2"],
        ["6.1.9-1", "6.1.119-1", "6.1.158-1", "6.12.57-1~bpo12+1", "6.12.57-1"],
        ["1.0~rc1-1", "1.0-1", "1.0-1+b1", "1.0a-1", "1.0+x-1", "1:0.1-1"],
    ],
)
def test_versions_are_ordered_as_dpkg_orders_them(ordered):
    for older, newer in zip(ordered, ordered[1:]):
        assert _dpkg.compare_versions(older, newer) < 0
        assert _dpkg.compare_versions(newer, older) > 0
    assert _dpkg.compare_versions("1.00-1", "1.0-1") == 0
    assert _dpkg.compare_versions("1.0", "1.0-0") == 0
