"""What is recorded, when, and from where; on a node made of files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _last_known_good,
    _lkg_state,
    _lkg_store,
    _module_archive,
)

from tests.unit.plugins.module_utils.good_node import (
    COMPANIONS,
    DKMS,
    INDEPENDENT,
    KERNEL,
    NEWER,
    PACKAGES,
    VERSION,
    GoodNode,
    deb,
    pack,
    recorder,
    write,
)

ROOM = 4096 << 20


@pytest.fixture
def node(tmp_path):
    return GoodNode(tmp_path)


def record(node, keep=2, check=False, room=ROOM, **more):
    return recorder(node, **more).record(keep, room, check)


def archive_of(manifest, kernel):
    return next((item for item in manifest.archives if item["kernel"] == kernel), None)


def load(node):
    return _lkg_store.load(str(node.root))


def finding(result):
    (found,) = result["findings"]
    assert found["check"] == "last_known_good.record"
    return found


def tree(node):
    """Return every path of the record with its content."""
    top = node.root / _lkg_store.DIRECTORY
    return {
        str(path.relative_to(top)): path.read_text() if path.is_file() else ""
        for path in sorted(top.rglob("*"))
        if ".lock" not in path.name
    }


# --- what a record holds ---------------------------------------------------------------------------------------------


def test_a_record_holds_closure_companions_module_kernel_and_texts(node):
    result = record(node)
    assert result["changed"] and finding(result)["status"] == "ok"
    found = load(node)
    assert (found.version, found.kernel, found.kernels) == (VERSION, KERNEL, [KERNEL])
    assert found.packages == {**PACKAGES, **INDEPENDENT}
    assert found.companions == COMPANIONS
    assert found.boot_entry == f"adv>id-{KERNEL}"
    assert found.data["holds"] == sorted(found.packages)
    for key in ("pins_text", "blacklist_text"):
        assert found.data[key].startswith(("# Managed", "// Managed"))
    assert (found.data["sources_text"], found.data["unavailable"]) == ("", {})
    for name, path in found.debs.items():
        version = {**found.packages, **found.companions}[name]
        assert Path(path).read_text() == deb(name, version, found.data["packages"][name]["architecture"])
        assert "%" not in path and ":" not in os.path.basename(path)
    archive = archive_of(found, KERNEL)
    assert (archive["dkms_name"], archive["version"], archive["vermagic"]) == (DKMS, VERSION, f"{KERNEL} SMP")
    assert os.path.isfile(archive["path"])
    assert archive_of(found, NEWER) is None
    assert found.damage(contents=True) == []
    assert len(found.data["files"]) == 6
    assert os.stat(found.directory).st_mode & 0o777 == 0o755


def test_every_bootable_kernel_with_a_good_module_gets_an_archive(node):
    node.kernels = [KERNEL, NEWER]
    node.system()
    record(node)
    assert load(node).kernels == [KERNEL, NEWER]
    assert archive_of(load(node), NEWER)["kernel"] == NEWER
    # A kernel that arrives without a module keeps nothing from being recorded.
    write(node.root, "boot/vmlinuz-7.0.0-amd64")
    assert record(node)["changed"] is False


def test_drv_10_a_driver_whose_other_flavour_is_still_loaded_is_not_recorded(node):
    text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Release Build\n"
    write(node.root, "proc/driver/nvidia/version", text)
    assert finding(record(node))["status"] == "skipped" and "the proprietary" in finding(record(node))["hint"]
    assert load(node) is None


def test_prebuilt_modules_come_as_packages_and_need_no_archive(node):
    record_file = node.root / "var/lib/gpu_node/driver.json"
    data = json.loads(record_file.read_text())
    data["dkms_name"] = ""
    record_file.write_text(json.dumps(data))
    assert finding(record(node))["status"] == "ok"
    assert load(node).archives == []
    assert load(node).kernels == [KERNEL]


# --- no work without a change ----------------------------------------------------------------------------------------


def test_a_recorded_state_is_left_alone_and_no_file_is_read(node, monkeypatch):
    record(node)
    before = tree(node)
    node.calls.clear()
    monkeypatch.setattr(_lkg_store, "sha256", lambda path: pytest.fail(f"{path} was read"))
    result = record(node)
    assert result["changed"] is False
    assert finding(result)["value"] == f"driver {VERSION} on kernel {KERNEL}, recorded 2026-01-31T13:00:00Z"
    assert tree(node) == before
    assert not [call for call in node.calls if call.startswith(("apt", "env", "dpkg"))]


def test_a_companion_that_moved_is_no_new_state(node):
    record(node)
    text = (node.root / "var/lib/dpkg/status").read_text()
    write(node.root, "var/lib/dpkg/status", text.replace("3.0.10-8", "3.0.11-1"))
    assert record(node)["changed"] is False


def test_a_lost_file_is_brought_again(node):
    record(node)
    os.unlink(load(node).debs["libcuda1"])
    assert load(node).damage() == [load(node).debs["libcuda1"] + ": No such file or directory"]
    result = record(node)
    assert result["changed"] is True
    assert load(node).damage(contents=True) == []
    assert len(result["pruned"]) == 1


def test_check_mode_says_that_it_would_record_and_writes_nothing(node):
    result = record(node, check=True)
    assert result["changed"] is True
    assert finding(result)["hint"] == "it would be recorded"
    assert f"driver {VERSION}\n" in result["diff"]["after"]
    assert result["diff"]["before"] == ""
    assert not (node.root / _lkg_store.DIRECTORY).exists()
    record(node)
    assert record(node, check=True)["changed"] is False


# --- when not --------------------------------------------------------------------------------------------------------


def other_kernel_boots(node):
    node.kernels = [KERNEL, NEWER]
    node.system()
    node.boots(NEWER)


def one_shot(node):
    node.kernels = [KERNEL, NEWER]
    node.system()
    node.boots(KERNEL, once=NEWER)


def no_boot_loader(node):
    (node.root / "boot/grub/grub.cfg").unlink()


def not_loaded(node):
    node.load(None)


def other_loaded(node):
    node.load("535.183.06")


def module_gone(node):
    (node.root / f"lib/modules/{KERNEL}/updates/dkms/{DKMS}.ko").unlink()


def half_configured(node):
    path = node.root / "var/lib/dpkg/status"
    path.write_text(path.read_text().replace("hold ok installed", "hold ok half-configured", 1))


def killed_transaction(node):
    write(node.root, "var/lib/gpu_node/transaction.json", "{}")


def not_held(node):
    node.status(held=False)


def no_driver(node):
    (node.root / "var/lib/gpu_node/driver.json").unlink()


def pins_changed(node):
    write(node.root, "etc/apt/preferences.d/gpu-node-nvidia.pref", "")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (other_kernel_boots, f"kernel {KERNEL} runs, but {NEWER} boots by default"),
        (one_shot, f"and {NEWER} next"),
        (no_boot_loader, "which kernel boots by default is not known"),
        (not_loaded, "a reboot is pending: driver"),
        (other_loaded, "a reboot is pending: module 535.183.06 is loaded"),
        (module_gone, "which does not exist"),
        (half_configured, "a package transaction is not finished"),
        (killed_transaction, "a package transaction is not finished"),
        (not_held, "packages, holds or pins are not as the driver's record has them"),
        (pins_changed, "packages, holds or pins are not as the driver's record has them"),
        (no_driver, "no driver was installed by the role nvidia_driver"),
    ],
)
def test_drv_01_a_state_that_would_not_come_up_again_is_not_recorded(node, spoil, words):
    spoil(node)
    result = record(node)
    assert result["changed"] is False
    assert finding(result)["status"] == "skipped"
    assert words in finding(result)["hint"]
    assert load(node) is None


def test_a_node_without_gpus_needs_the_module_of_its_kernel_only(node):
    os.unlink(node.root / "sys/bus/pci/devices/0000:17:00.0/vendor")
    node.load(None)
    assert finding(record(node))["status"] == "ok"


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([("driver.module", "ok"), ("kernel.hold", "warn"), ("tuning.swap", "fail")], []),
        ([("driver.module", "fail"), ("driver.loaded", "ok")], ["driver.module"]),
        ([("driver.module", "ok"), ("kernel.headers", "error")], ["kernel.headers"]),
        ([("driver.module", "ok"), ("kernel.completed", "error")], ["kernel.completed"]),
        (
            [("tuning.swap", "ok"), ("nvidia_driver.completed", "error")],
            ["nvidia_driver.completed", "the driver was not verified"],
        ),
        ([("node.reachable", "error")], ["node.reachable", "the driver was not verified"]),
        ([], ["the driver was not verified"]),
    ],
)
def test_only_the_verdict_on_driver_and_kernel_bars(findings, expected):
    assert _lkg_state.bars([{"check": check, "status": status} for check, status in findings]) == expected


# --- where files come from -------------------------------------------------------------------------------------------


def test_files_of_the_cache_are_linked_and_nothing_is_downloaded(node):
    node.cache()
    record(node)
    assert node.downloads() == []
    path = load(node).debs["nvidia-modprobe"]
    assert path.endswith("nvidia-modprobe_535.161.07-1_amd64.deb")
    assert os.stat(path).st_nlink == 2


def test_one_download_brings_what_the_cache_lacks(node):
    node.cache("libcuda1")
    record(node)
    (call,) = node.downloads()
    assert "libcuda1=" not in call and "nvidia-modprobe=1:535.161.07-1" in call


def test_a_spoilt_file_of_the_cache_is_not_believed(node):
    node.cache()
    write(node.root, f"var/cache/apt/archives/libcuda1_{VERSION}-1_amd64.deb", "something else")
    record(node)
    assert "libcuda1=" in node.downloads()[0]
    assert load(node).damage(contents=True) == []


def test_a_version_that_no_source_offers_any_more_is_proven_by_what_is_installed(node):
    node.cache()
    node.offered.clear()
    assert finding(record(node))["status"] == "ok"
    assert node.downloads() == []
    assert load(node).packages["libcuda1"] == VERSION + "-1"


def test_another_package_under_that_name_is_not_taken_for_the_installed_one(node):
    node.cache()
    node.offered.clear()
    write(node.root, f"var/cache/apt/archives/libcuda1_{VERSION}-1_amd64.deb", deb("libcuda1", "1.0"))
    assert "libcuda1: no package source offers this version" in finding(record(node))["hint"]


def test_drv_10_what_cannot_be_had_refuses_the_record_and_the_old_one_stays(node):
    record(node)
    before = tree(node)
    node.driver("550.163.01")
    node.system()
    node.reachable = False
    result = record(node)
    assert result["changed"] is False
    found = finding(result)
    assert found["status"] == "warn"
    assert "the record of 2026-01-31T13:00:00Z stays" in found["hint"]
    assert "Could not connect" in found["hint"] and "libcuda1" in found["hint"]
    assert tree(node) == before
    assert load(node).version == VERSION


def test_a_companion_that_cannot_be_had_is_named_and_no_obstacle(node):
    node.cache()
    del node.offered[("dkms", COMPANIONS["dkms"])]
    os.unlink(node.root / "var/cache/apt/archives/dkms_3.0.10-8_all.deb")
    assert finding(record(node))["status"] == "ok"
    assert "dkms" not in load(node).debs
    assert list(load(node).data["unavailable"]) == ["dkms"]


def test_an_older_generation_serves_when_repository_and_cache_are_gone(node):
    record(node)
    first = load(node)
    node.offered.clear()
    node.kernels = [KERNEL, NEWER]
    node.system()
    result = record(node)
    assert finding(result)["status"] == "ok"
    assert load(node).generation != first.generation
    assert archive_of(load(node), KERNEL)["sha256"] == archive_of(first, KERNEL)["sha256"]
    # Linked, and the files stay when the older generation goes.
    record(node, keep=1)
    assert not os.path.exists(first.directory)
    assert load(node).damage(contents=True) == []


def test_a_full_disk_is_told_before_anything_is_downloaded(node):
    result = record(node, free_bytes=lambda path: (1, 100 << 20))
    assert "not enough room" in finding(result)["hint"]
    assert "there is no older record" in finding(result)["hint"]
    assert node.downloads() == []
    assert tree(node) == {"generations": ""}


def test_an_archive_that_is_not_what_was_packed_refuses_the_record(node):
    def bad(runner, root, dkms_name, version, kernel, destination):
        return {**pack(runner, root, dkms_name, version, kernel, destination), "sha256": "0" * 64}

    assert "is not what was packed" in finding(record(node, packer=bad))["hint"]
    assert load(node) is None


def test_a_module_that_cannot_be_packed_refuses_the_record(node):
    """The real packer, on a node without dkms."""
    result = record(node, packer=_module_archive.pack)
    assert finding(result)["status"] == "warn"
    assert "this state is not recorded, there is no older record: " in finding(result)["hint"]
    assert KERNEL in finding(result)["hint"]
    assert load(node) is None


# --- generations -----------------------------------------------------------------------------------------------------


def versions(node):
    return [one.version for one in _lkg_store.generations(str(node.root))]


def install(node, version):
    node.driver(version)
    node.system()


def test_as_many_generations_as_asked_for_and_the_newest_first(node):
    for version in ("535.1", "535.2", "535.3"):
        install(node, version)
        result = record(node)
    assert versions(node) == ["535.3", "535.2"]
    assert len(result["pruned"]) == 1
    assert record(node, keep=1)["changed"] is True
    assert versions(node) == ["535.3"]


def test_older_generations_go_when_they_do_not_fit_and_the_newest_never(node):
    for version in ("535.1", "535.2"):
        install(node, version)
        record(node)
    assert len(versions(node)) == 2
    result = record(node, room=10)
    assert versions(node) == ["535.2"]
    assert finding(result)["status"] == "warn" and "max_size_mib" in finding(result)["hint"]


def test_going_back_makes_the_older_generation_current_again(node):
    install(node, "535.1")
    record(node)
    first = load(node)
    install(node, "535.2")
    record(node)
    install(node, "535.1")
    node.calls.clear()
    result = record(node)
    assert result["changed"] is True
    assert load(node).generation == first.generation
    assert node.downloads() == [] and len(versions(node)) == 2


def test_a_change_of_holds_alone_replaces_the_generation_instead_of_pushing_one_out(node):
    install(node, "535.1")
    record(node)
    install(node, "535.2")
    record(node)
    node.boots(KERNEL)
    grub = node.root / "boot/grub/grub.cfg"
    grub.write_text(grub.read_text().replace(f"id-{KERNEL}", f"other-{KERNEL}"))
    write(node.root, "boot/grub/grubenv", f"saved_entry=adv>other-{KERNEL}\n")
    record(node)
    assert load(node).boot_entry == f"adv>other-{KERNEL}"
    assert versions(node) == ["535.2", "535.1"]


def test_removal_leaves_nothing(node):
    record(node)
    assert _last_known_good.remove(str(node.root), check=True)["changed"] is True
    assert load(node) is not None
    assert _last_known_good.remove(str(node.root), check=False)["changed"] is True
    assert not (node.root / _lkg_store.DIRECTORY).exists()
    assert _last_known_good.remove(str(node.root), check=False)["changed"] is False


# --- reading ---------------------------------------------------------------------------------------------------------


def test_reading_says_what_is_damaged(node):
    assert _last_known_good.read(str(node.root))["findings"][0]["hint"] == "nothing is recorded"
    record(node)
    assert _last_known_good.read(str(node.root), verify_files=True)["damage"] == []
    path = load(node).debs["libcuda1"]
    text = Path(path).read_text()
    Path(path).write_text(text[::-1])
    assert _last_known_good.read(str(node.root))["damage"] == []
    result = _last_known_good.read(str(node.root), verify_files=True)
    assert result["damage"] == [f"{path} has another sha256 than recorded"]
    assert result["findings"][0]["status"] == "warn"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON"),
        ('{"format": 99}', "has format 99, this version of the collection reads 1"),
        ('{"format": 1}', "lacks what a record needs"),
        (None, "cannot be read"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_no_record_and_says_why(node, content, words):
    record(node)
    path = os.path.join(load(node).directory, "manifest.json")
    os.unlink(path)
    if content is not None:
        Path(path).write_text(content)
    assert load(node) is None
    result = _last_known_good.read(str(node.root))
    assert result["manifest"] is None and words in result["damage"][0]
    # The next verification records again, and what cannot be read goes.
    assert record(node)["changed"] is True
    assert len(versions(node)) == 1
