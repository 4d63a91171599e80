"""Bootable kernels from /boot and /lib/modules."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _kernels


def tree(root, images=(), modules=(), headers=()):
    (root / "boot").mkdir()
    for name in images:
        (root / "boot" / name).write_text("")
    for release in modules:
        (root / "lib/modules" / release).mkdir(parents=True)
    for release in headers:
        source = root / "usr/src" / ("linux-headers-" + release)
        (source / "include").mkdir(parents=True)
        # As packages make it: an absolute link, which has to be read inside the tree.
        os.symlink("/usr/src/linux-headers-" + release, str(root / "lib/modules" / release / "build"))


def test_krn_01_every_image_counts_whether_it_has_modules_or_not(tmp_path):
    tree(
        tmp_path,
        images=[
            "vmlinuz-6.12.57+deb12-amd64",
            "vmlinuz-6.1.0-41-amd64",
            "vmlinuz-6.1.0-9-amd64",
            "config-6.1.0-41-amd64",
        ],
        modules=["6.1.0-41-amd64", "6.12.57+deb12-amd64", "6.1.0-28-amd64"],
        headers=["6.1.0-41-amd64"],
    )
    found = _kernels.bootable(str(tmp_path))
    assert [(kernel.release, kernel.modules, kernel.headers) for kernel in found] == [
        ("6.1.0-9-amd64", False, False),
        ("6.1.0-41-amd64", True, True),
        ("6.12.57+deb12-amd64", True, False),
    ]
    assert found[1].image == "/boot/vmlinuz-6.1.0-41-amd64"


def test_headers_link_that_leads_nowhere_is_no_headers(tmp_path):
    tree(tmp_path, images=["vmlinuz-6.1.0-41-amd64"], modules=["6.1.0-41-amd64"])
    os.symlink("/usr/src/linux-headers-6.1.0-41-amd64", str(tmp_path / "lib/modules/6.1.0-41-amd64/build"))
    assert [kernel.headers for kernel in _kernels.bootable(str(tmp_path))] == [False]


def test_leftovers_of_package_managers_are_no_kernels(tmp_path):
    tree(
        tmp_path,
        images=[
            "vmlinuz-6.1.0-41-amd64",
            "vmlinuz-6.1.0-41-amd64.dpkg-tmp",
            "vmlinuz-0-rescue-8f3a",
            "vmlinuz",
            "vmlinuz-6.9.1.old",
        ],
    )
    assert [kernel.release for kernel in _kernels.bootable(str(tmp_path))] == ["6.1.0-41-amd64", "6.9.1"]


def test_no_boot_directory(tmp_path):
    assert _kernels.bootable(str(tmp_path)) == []


@pytest.mark.parametrize(
    "releases",
    [
        [
            "5.15.0-91-generic",
            "5.15.0-100-generic",
            "6.1.0-9-amd64",
            "6.1.0-28-amd64",
            "6.12.57+deb13-amd64",
            "7.3.4-amd64",
        ],
        ["6.1.0-28-amd64", "6.1.0-28-cloud-amd64"],
        ["5.14.0-503.9.1.el9_5.x86_64", "5.14.0-503.11.1.el9_5.x86_64"],
        ["6.12~rc1-amd64", "6.12-amd64", "6.12.1-amd64"],
    ],
)
def test_releases_are_ordered_by_number(releases):
    shuffled = releases[1:] + releases[:1]
    assert sorted(shuffled, key=_kernels.release_key) == releases
