"""DKMS in all its wordings, and its tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _dkms
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

FIXTURES = Path(__file__).parent / "fixtures/dkms"


def fixture(name):
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize("name", ["status-comma.txt", "status-slash.txt"])
def test_krn_02_old_and_new_wording_give_the_same_entries(name):
    seen = [(e.module, e.version, e.kernel, e.arch, e.state, e.differs) for e in _dkms.parse_status(fixture(name))]
    assert seen == [
        ("nvidia", "535.183.06", "6.1.0-28-amd64", "x86_64", "installed", False),
        ("nvidia", "535.183.06", "6.1.0-41-amd64", "x86_64", "installed", True),
        ("nvidia-srv", "535.261.03", "", "", "added", False),
    ]


def test_krn_02_weak_modules_keep_the_comma_form():
    entries = _dkms.parse_status(fixture("status-weak.txt"))
    assert [entry.state for entry in entries] == ["installed", "installed-weak"]
    assert _dkms.weak_source(entries[1]) == "5.14.0-503.11.1.el9_5.x86_64"
    assert _dkms.weak_source(entries[0]) is None


@pytest.mark.parametrize("name", ["status-broken.txt", "status-aborted.txt"])
def test_krn_02_an_orphan_is_found_however_dkms_words_it(name):
    text = fixture(name)
    assert _dkms.orphans_of_status(text) == [
        {"module": "nvidia", "version": "390.48", "path": "/var/lib/dkms/nvidia/390.48"}
    ]
    good = [entry for entry in _dkms.parse_status(text) if entry.state != "broken"]
    assert [(entry.version, entry.state) for entry in good] == [("580.126.20", "installed")]


@pytest.mark.parametrize("name", ["nvidia", "nvidia-srv", "nvidia-current", "nvidia-current-open", "nvidia-tesla-470"])
def test_krn_02_module_names_of_every_packaging(name):
    assert _dkms.NVIDIA_MODULE.match(name)


@pytest.mark.parametrize("name", ["nvidia-fs", "zfs", "nvidia-uvm", "gdrdrv"])
def test_other_dkms_modules_are_left_out(name):
    assert not _dkms.NVIDIA_MODULE.match(name)


def build(root, module, version, kernels=(), conf=True, installed=()):
    tree = root / "var/lib/dkms" / module / version
    tree.mkdir(parents=True)
    source = root / "usr/src" / f"{module}-{version}"
    if conf:
        source.mkdir(parents=True)
        (source / "dkms.conf").write_text("")
    os.symlink(f"/usr/src/{module}-{version}", str(tree / "source"))
    for kernel in kernels:
        (tree / kernel / "x86_64/module").mkdir(parents=True)
        (tree / kernel / "x86_64/module" / (module + ".ko")).write_text("")
        if kernel in installed:
            link = root / "var/lib/dkms" / module / f"kernel-{kernel}-x86_64"
            os.symlink(f"{version}/{kernel}/x86_64", str(link))


def test_krn_02_the_tree_tells_the_same_without_dkms(tmp_path, fake_runner):
    build(tmp_path, "nvidia-current", "535.261.03", ["6.1.0-41-amd64", "6.1.0-9-amd64"], installed=["6.1.0-41-amd64"])
    build(tmp_path, "nvidia-current", "550.163.01")
    build(tmp_path, "nvidia", "390.48", conf=False)
    build(tmp_path, "zfs", "2.1.11", conf=False)
    runner = fake_runner()
    facts = _dkms.dkms_facts(runner, str(tmp_path))
    seen = [(e["module"], e["version"], e["kernel"], e["state"]) for e in facts["entries"]]
    assert seen == [
        ("nvidia", "390.48", "", "broken"),
        ("nvidia-current", "535.261.03", "6.1.0-9-amd64", "built"),
        ("nvidia-current", "535.261.03", "6.1.0-41-amd64", "installed"),
        ("nvidia-current", "550.163.01", "", "added"),
    ]
    assert [item["path"] for item in facts["orphans"]] == ["/var/lib/dkms/nvidia/390.48"]
    assert runner.calls == []


def test_krn_02_a_status_that_aborts_does_not_hide_what_the_tree_holds(tmp_path, fake_runner):
    build(tmp_path, "nvidia-current", "535.261.03", ["6.1.0-41-amd64"], installed=["6.1.0-41-amd64"])
    build(tmp_path, "nvidia", "390.48", conf=False)
    text = (
        "Error! Could not locate dkms.conf file.\nFile: /var/lib/dkms/nvidia/390.48/source/dkms.conf does not exist.\n"
    )
    facts = _dkms.dkms_facts(fake_runner({"dkms status": CommandResult(4, err=text)}), str(tmp_path), ask=True)
    assert ("nvidia-current", "installed") in [(entry["module"], entry["state"]) for entry in facts["entries"]]
    assert facts["orphans"] == [{"module": "nvidia", "version": "390.48", "path": "/var/lib/dkms/nvidia/390.48"}]
    assert "Could not locate dkms.conf" in facts["error"]


def test_asking_a_node_without_dkms_reads_the_tree(tmp_path, fake_runner):
    assert _dkms.dkms_facts(fake_runner(), str(tmp_path), ask=True) == {
        "source": "tree",
        "entries": [],
        "orphans": [],
        "error": "",
        "switched_off": False,
    }
    switch = tmp_path / "etc/dkms/no-autoinstall"
    switch.parent.mkdir(parents=True)
    switch.touch()
    assert _dkms.dkms_facts(fake_runner(), str(tmp_path))["switched_off"]
