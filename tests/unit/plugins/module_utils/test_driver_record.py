"""The record of an installed driver: whether the node still is what it says, and what goes with it."""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _apt_sources, _driver_record

RECORD = {
    "version": "535.261.03",
    "requested": "535.261.03",
    "source": "distro",
    "flavour": "open",
    "components": ["compute"],
    "packages": {"libcuda1": "535.261.03-1"},
    "independent": {"nvidia-modprobe": "535.161.07-1"},
    "dkms_name": "nvidia-current",
    "kernels_at_install": ["6.1.0-57-amd64"],
    "repo_uri": "",
    "prefer_prebuilt": True,
}
WANTED = {
    "version": "535.261.03",
    "source": "distro",
    "flavours": ["open", "proprietary"],
    "components": ["compute"],
    "repo_uri": "",
    "kernels": ["6.1.0-57-amd64"],
    "prefer_prebuilt": True,
}


def write(root, path, text):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def stanza(name, version="1", status="install ok installed", **fields):
    more = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in fields.items())
    return f"Package: {name}\nStatus: {status}\nArchitecture: amd64\nVersion: {version}\n{more}"


def status(root, *stanzas):
    write(root, "var/lib/dpkg/status", "\n".join(stanzas))


@pytest.fixture
def good(tmp_path):
    """A node that is as recorded."""
    status(
        tmp_path,
        stanza("libcuda1", "535.261.03-1", "hold ok installed"),
        stanza("nvidia-modprobe", "535.161.07-1", "hold ok installed"),
    )
    write(tmp_path, _apt_prefs.PINS_PATH, "pins")
    write(tmp_path, _apt_prefs.BLACKLIST_PATH, "list")
    return tmp_path


def test_a_node_as_recorded_is_recognised_from_files(good):
    assert _driver_record.holds_true(str(good), RECORD, "pins", "list")


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        (("535.161.07-1", "535.309.01-1"), ("pins", "list")),
        (("hold ok installed", "install ok installed"), ("pins", "list")),
        (("hold ok installed", "hold ok half-configured"), ("pins", "list")),
        (("", ""), ("other", "list")),
        (("", ""), ("pins", "other")),
    ],
)
def test_drv_06_each_difference_is_seen(good, change, arguments):
    path = good / "var/lib/dpkg/status"
    if change[0]:
        path.write_text(path.read_text().replace(*change))
    assert not _driver_record.holds_true(str(good), RECORD, *arguments)


def test_an_empty_record_is_never_true(good):
    assert not _driver_record.holds_true(str(good), {}, "pins", "list")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"version": "535.261.03-1"}, True),
        ({"version": "550.163.01"}, False),
        ({"source": "cuda_repo"}, False),
        ({"flavours": ["proprietary"]}, False),
        ({"components": ["compute", "video"]}, False),
        ({"repo_uri": "file:/x"}, False),
        ({"kernels": ["6.1.0-57-amd64", "6.12.0-1-amd64"]}, True),
    ],
)
def test_what_counts_as_the_same_request(change, expected):
    assert _driver_record.same_request(RECORD, {**WANTED, **change}) is expected


def test_krn_01_a_new_kernel_asks_again_where_modules_are_prebuilt():
    prebuilt = {**RECORD, "dkms_name": ""}
    assert _driver_record.same_request(prebuilt, WANTED)
    assert not _driver_record.same_request(prebuilt, {**WANTED, "kernels": ["6.12.0-1-amd64"]})


def test_drv_02_a_redirect_answers_for_the_version_that_was_asked():
    redirected = {**RECORD, "requested": "570.211.01", "version": "580.126.20"}
    assert _driver_record.same_request(redirected, {**WANTED, "version": "570.211.01"})


def test_drv_09_only_what_nothing_else_needs_goes_along(tmp_path):
    status(
        tmp_path,
        stanza("libcuda1", Depends="nvidia-support, libc6"),
        stanza("nvidia-support"),
        stanza("nvidia-kernel-dkms", Depends="dkms (>= 3)"),
        stanza("dkms", Depends="gcc | c-compiler, make"),
        stanza("gcc", Provides="c-compiler"),
        stanza("make"),
        stanza("user-module", Depends="make (>= 4)"),
        stanza("nvidia-cuda-toolkit", Depends="c-compiler", Recommends="libcuda1"),
        stanza("libc6"),
        stanza("dpkg-dev"),
    )
    tools = ["nvidia-support", "dkms", "gcc", "make"]
    marks = [f"Package: {name}\nArchitecture: amd64\nAuto-Installed: 1\n" for name in tools]
    write(tmp_path, "var/lib/apt/extended_states", "\n".join(marks))
    gone = _driver_record.removable(
        str(tmp_path),
        {"libcuda1": "1", "nvidia-kernel-dkms": "1", "not-there": "1"},
        # dpkg-dev came along too, and somebody has marked it as manually installed since.
        [*tools, "dpkg-dev"],
    )
    assert gone == ["dkms", "libcuda1", "nvidia-kernel-dkms", "nvidia-support"]


def test_origins_of_downloaded_release_files_tell_strangers(tmp_path):
    lists = "var/lib/apt/lists/"
    write(tmp_path, lists + "vendor.example_apt_dists_bookworm_InRelease", "Hash: x\nOrigin: vendor\n")
    write(tmp_path, lists + "_srv_lab_debian_dists_bookworm-backports_InRelease", "Origin: Debian Backports\n")
    found = _apt_sources.parse_one_line(
        "deb https://vendor.example/apt bookworm main\ndeb file:/srv/lab/debian bookworm-backports main\n"
    )
    assert _driver_record.release_origins(str(tmp_path), found) == {("https://vendor.example/apt", "bookworm")}


@pytest.mark.parametrize(
    ("kernel_says", "recorded", "wanted", "fragment"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.1.1  x", "", ("535.1.1", "proprietary"), ""),
        (
            "NVIDIA UNIX x86_64 Kernel Module  535.1.1  x",
            "",
            ("550.2.2", "proprietary"),
            "535.1.1 (proprietary) is in use",
        ),
        ("NVIDIA UNIX x86_64 Kernel Module  535.1.1  x", "", ("535.1.1", "open"), "replaced by 535.1.1 (open)"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  535.1.1  x", "", ("535.1.1", "open"), ""),
        # Only sysfs tells the version: the record knows the flavour, or nobody does.
        ("", "proprietary", ("535.1.1", "open"), "535.1.1 (proprietary) is in use"),
        ("", "open", ("535.1.1", "open"), ""),
        ("", "", ("535.1.1", "open"), ""),
    ],
)
def test_drv_11_a_driver_in_use_is_not_replaced_by_another_version_or_flavour(
    tmp_path, kernel_says, recorded, wanted, fragment
):
    write(tmp_path, "proc/driver/nvidia/version", kernel_says)
    write(tmp_path, "sys/module/nvidia/version", "535.1.1\n")
    write(tmp_path, _driver_record.RECORD, json.dumps({"flavour": recorded}))
    assert _driver_record.in_use_problem(str(tmp_path), *wanted) == ""
    write(tmp_path, "proc/10/comm", "python3\n")
    (tmp_path / "proc/10/fd").mkdir()
    os.symlink("/dev/nvidia0", tmp_path / "proc/10/fd/3")
    problem = _driver_record.in_use_problem(str(tmp_path), *wanted)
    assert bool(problem) == bool(fragment) and fragment in problem
    assert not fragment or "10 python3" in problem


def test_a_record_that_cannot_be_read_is_none(tmp_path):
    write(tmp_path, _driver_record.RECORD, "{")
    assert _driver_record.read_record(str(tmp_path)) == {}
    write(tmp_path, _driver_record.RECORD, json.dumps(RECORD))
    assert set(_driver_record.members(_driver_record.read_record(str(tmp_path)))) == {"libcuda1", "nvidia-modprobe"}
