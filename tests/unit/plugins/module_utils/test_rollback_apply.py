# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way back taken on a node whose package database may be in any state; packages come from the record alone."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _apt_prefs,
    _lkg_store,
    _module_archive,
    _rollback,
    _rollback_apply,
    _rollback_repair,
    _transaction_repair,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult
from plugins.module_utils.fake_apt import FakeNode

GOOD_KERNEL, OTHER_KERNEL, NEW_KERNEL = "6.1.0-57-amd64", "6.1.0-56-amd64", "6.12.95+deb12-amd64"
OLD, NEW = "535.183.06-1", "550.163.01-1"
PACKAGES = {"libnvidia-ml1": OLD, "nvidia-kernel-dkms": OLD, "nvidia-smi": OLD}
COMPANIONS = {"dkms": "3.0.10"}
PINS = "Package: nvidia-smi\nPin: version 535.183.06-1\nPin-Priority: 1001\n"


class OfflineNode(FakeNode):
    """A node without repositories: apt-get and dpkg know what is installed and the package files that they are given.

    A package of the driver is configured only beside others of its own version, as their ``=`` relations ask for.
    """

    def __init__(self, root, installed, held=()):
        super().__init__(root, installed=installed, held=held)
        #: Pairs that dpkg will not have side by side.
        self.conflicts = {}
        self.unpacked = []

    def _file(self, word):
        name, version, _architecture = os.path.basename(word).split("_")
        return name, version

    def _dpkg(self, argv):
        if "--unpack" not in argv:
            return super()._dpkg(argv)
        errors = []
        for name, version in (self._file(word) for word in argv if word.endswith(".deb")):
            if self.conflicts.get(name) in self.packages:
                errors.append(f"dpkg: error processing archive {name}: conflicting packages")
                continue
            self.unpacked.append(name)
            entry = self.packages.setdefault(name, ["install", "ok", "unpacked", version])
            entry[1:] = ["ok", "unpacked", version]
        self.write()
        return CommandResult(1 if errors else 0, "\n".join(errors))

    def _configure(self):
        """Configure what has its other half."""
        family = {name: entry for name, entry in self.packages.items() if "nvidia" in name}
        stuck = {
            (name, entry[3])
            for name, entry in family.items()
            if any(other[3] != entry[3] for other in family.values()) and entry[2] != "installed"
        }
        former = dict(self.failing)
        self.failing.update(dict.fromkeys(stuck, "dependency problems"))
        try:
            return super()._configure()
        finally:
            self.failing = former

    def _apt_get(self, argv):
        words = []
        for word in argv:
            if word.endswith(".deb"):
                name, version = self._file(word)
                self.available.setdefault(name, [version])
                word = f"{name}={version}"
            words.append(word)
        for name, entry in self.packages.items():
            self.available.setdefault(name, [entry[3]])
        return super()._apt_get(words)


def record(root, generation="g1", time="2026-01-31T12:00:00Z", current=True):
    """Write a generation; return it."""
    directory = root / _lkg_store.GENERATIONS / generation
    files, packages, archives = {}, {}, []
    for name, version in {**PACKAGES, **COMPANIONS}.items():
        file = f"debs/{name}_{version}_amd64.deb"
        packages[name] = {"version": version, "architecture": "amd64", "file": file, "companion": name in COMPANIONS}
        files[file] = name
    for kernel in (OTHER_KERNEL, GOOD_KERNEL):
        files[f"modules/{kernel}.tgz"] = kernel
        archives.append({"kernel": kernel, "file": f"modules/{kernel}.tgz", "sha256": kernel, "dkms_name": "nvidia"})
    known = {}
    for file, text in files.items():
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text(text)
        known[file] = {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    data = {
        "format": 1,
        "driver": {"version": "535.183.06", "flavour": "proprietary", "packages": PACKAGES, "pins_text": PINS},
        "packages": packages,
        "kernel": GOOD_KERNEL,
        "kernels": [OTHER_KERNEL, GOOD_KERNEL],
        "module_archives": archives,
        "time": time,
        "files": known,
        "pins_text": PINS,
        "blacklist_text": "blacklist\n",
        "sources_text": "",
        "key_text": "",
    }
    (directory / "manifest.json").write_text(json.dumps(data))
    if current:
        os.symlink(f"generations/{generation}", root / _lkg_store.CURRENT)
    return _lkg_store._read(str(root), generation)


def facts(**more):
    """Return as much of the node as ``apply`` wants to know."""
    choice = {"kernel": GOOD_KERNEL, "found": True}
    return {
        "record": {"version": "535.183.06"},
        "library": {"version": "535.183.06"},
        "running_kernel": GOOD_KERNEL,
        "boot": {"default": choice, "one_shot": None, "next_kernel": GOOD_KERNEL},
        **more,
    }


@pytest.fixture
def node(tmp_path):
    """A node as it was recorded."""
    return OfflineNode(tmp_path, {**PACKAGES, **COMPANIONS, "bash": "5.2"}, held=list(PACKAGES))


@pytest.fixture
def loaded(monkeypatch):
    """Give the kernels whose archive was loaded, and those whose archive does not fit."""
    kernels = []

    def load(_runner, _root, _path, _sha256, kernel):
        kernels.append(kernel)
        if kernel in loaded_badly:
            raise _module_archive.ArchiveError(f"the archive for {kernel} does not fit")

    loaded_badly = []
    monkeypatch.setattr(_module_archive, "load", load)
    return kernels, loaded_badly


def cut_off(node, **mark):
    """Play an update that was killed after some packages were unpacked."""
    node.packages["nvidia-smi"] = ["install", "ok", "unpacked", NEW]
    node.packages["libnvidia-gpucomp"] = ["install", "ok", "unpacked", NEW]
    # dpkg takes a package's configuration back while another one breaks it.
    node.packages["nvidia-kernel-dkms"][2] = "half-configured"
    node.packages["libnvidia-ml1"][0] = "install"
    node.write()
    before = {**PACKAGES, "libnvidia-gpucomp": ""}
    left = {"owner": "nvidia_driver", "before": before, "holds_to_restore": ["bash", *PACKAGES], "automatic": ["dkms"]}
    state.write_json(str(node.root), state.MARK, {**left, **mark})
    state.write_json(str(node.root), state.LEDGER, {"nvidia_driver": [*PACKAGES, *COMPANIONS]})


def unfinished(node):
    return {name: entry[2] for name, entry in node.packages.items() if entry[2] != "installed"}


def rollback(node):
    return _rollback_apply.Rollback(node, str(node.root), "kernel", False)


def go_back(node, plan):
    return rollback(node).apply(plan, record(node.root), facts(), "a test")


def way_back(node, **more):
    return _rollback.Plan(
        kernel=GOOD_KERNEL,
        repair=sorted(unfinished(node)),
        restore={"nvidia-smi": OLD},
        remove=["libnvidia-gpucomp"],
        **more,
    )


# --- an update that was cut off ---------------------------------------------------------------------------------------


def test_drv_10_an_update_cut_off_while_unpacking_is_led_back_without_repositories(node, loaded):
    cut_off(node)
    assert go_back(node, way_back(node, load_modules=[GOOD_KERNEL, OTHER_KERNEL])) == []
    assert node.state() == {**PACKAGES, **COMPANIONS, "bash": "5.2"} and unfinished(node) == {}
    # Only what is of another version is unpacked again: its scripts cost the modules.
    assert node.unpacked == ["nvidia-smi"]
    assert not (node.root / state.MARK).exists()
    assert loaded[0] == [GOOD_KERNEL, OTHER_KERNEL]
    assert not any(call.endswith(" update") for call in node.calls)


def test_drv_10_the_holds_and_the_ledger_of_the_killed_run_are_kept(node, loaded):
    cut_off(node, before={**PACKAGES, "libnvidia-gpucomp": "", "dkms": ""}, owner="kernel", named=["dkms"])
    go_back(node, way_back(node))
    assert node.holds() == ["bash", *sorted(PACKAGES)]
    assert node.automatic == {"dkms"}
    assert state.brought(str(node.root), "kernel") == ["dkms"] and state.named(str(node.root)) == {"dkms"}


def test_krn_03_what_cannot_be_mended_keeps_the_mark_and_is_told(node, loaded):
    cut_off(node)
    node.packages["bash"][2] = "half-configured"
    node.failing["bash", "5.2"] = "subprocess returned error exit status 1"
    node.write()
    with pytest.raises(_rollback_apply.RollbackError, match=r"stay half done: bash\. Cause:\n.*exit status 1"):
        go_back(node, way_back(node))
    assert unfinished(node) == {"bash": "half-configured"}
    assert (node.root / state.MARK).exists(), "later runs have to know whose work this is"


def test_drv_10_members_that_stay_half_done_are_no_success(node, loaded):
    cut_off(node)
    node.failing["nvidia-smi", OLD] = "no space left on device"
    node.write()
    with pytest.raises(_rollback_apply.RollbackError, match="stay half done: nvidia-smi"):
        go_back(node, way_back(node))
    assert (node.root / state.MARK).exists()


def test_drv_10_the_other_flavour_gives_way_to_the_good_one(node, loaded):
    """It may neither be configured beside the good one nor lets it in."""
    cut_off(node)
    del node.packages["nvidia-kernel-dkms"]
    node.packages["nvidia-open-kernel-dkms"] = ["install", "ok", "installed", NEW]
    node.conflicts = {"nvidia-kernel-dkms": "nvidia-open-kernel-dkms"}
    node.write()
    plan = way_back(node)
    plan.remove.append("nvidia-open-kernel-dkms")
    go_back(node, plan)
    assert node.state() == {**PACKAGES, **COMPANIONS, "bash": "5.2"} and unfinished(node) == {}


def test_krn_03_a_half_done_package_of_others_leaves_the_driver_to_the_transaction(node, loaded):
    """It judges what it does, and can be undone."""
    for name in PACKAGES:
        node.packages[name][3] = NEW
    node.packages["bash"][2] = "half-configured"
    node.write()
    go_back(node, _rollback.Plan(kernel=GOOD_KERNEL, repair=["bash"], restore=dict(PACKAGES)))
    assert node.unpacked == [] and node.state() == {**PACKAGES, **COMPANIONS, "bash": "5.2"}


def test_drv_10_a_torn_companion_is_unpacked_again(node, loaded):
    node.packages["dkms"][1:3] = ["reinstreq", "half-installed"]
    node.write()
    go_back(node, _rollback.Plan(kernel=GOOD_KERNEL, repair=["dkms"]))
    assert node.unpacked == ["dkms"] and unfinished(node) == {}


def test_what_the_journal_hides_comes_from_the_record_too(node, loaded):
    """The plan is of before the journal was merged; nothing may be asked of a repository for that."""
    node.packages["libnvidia-ml1"][3] = NEW
    node.write()
    plan = _rollback.Plan(kernel=GOOD_KERNEL, repair=[_rollback.JOURNAL])
    go_back(node, plan)
    assert node.state() == {**PACKAGES, **COMPANIONS, "bash": "5.2"}
    changes = [call for call in node.calls if call.startswith("apt-get") and " -s " not in call]
    assert len(changes) == 1 and "sourceparts=/dev/null" in changes[0] and "libnvidia-ml1_" in changes[0]


def test_an_unreadable_mark_does_not_stay(node, loaded):
    (node.root / state.MARK).parent.mkdir(parents=True)
    (node.root / state.MARK).write_text("{")
    go_back(node, _rollback.Plan(kernel=GOOD_KERNEL, repair=[_rollback.JOURNAL]))
    assert not (node.root / state.MARK).exists()


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        ("linux-image-6.12.95+deb12-amd64", True),
        ("linux-headers-6.12.95+deb12-common", True),
        ("linux-hwe-6.8-headers-6.8.0-60", True),
        ("linux-image-6.1.0-57-amd64", False),
        ("linux-headers-6.1.0-57-common", False),
        ("linux-headers-6.1.0-5-amd64", True),
        ("linux-image-amd64", False),
        ("linux-headers-amd64", False),
        ("linux-generic-hwe-22.04", False),
        ("bash", False),
        ("libnvidia-gpucomp", True),
        ("nvidia-driver-550", True),
    ],
)
def test_krn_07_only_packages_of_a_tried_kernel_or_driver_are_purged_when_torn(name, goes):
    assert _rollback_repair.expendable(name, ["libnvidia-gpucomp"], [GOOD_KERNEL]) is goes
    # The kernel that runs, or that the boot loader starts, is nobody's waste.
    running = [GOOD_KERNEL, NEW_KERNEL, "6.8.0-60-generic", "6.1.0-5-amd64"]
    assert _rollback_repair.expendable(name, ["libnvidia-gpucomp"], running) is (goes and "linux" not in name)


def test_a_repair_ends_as_that_of_a_transaction_does(node, monkeypatch, loaded):
    seen = []
    monkeypatch.setattr(_transaction_repair, "settle", lambda tools, mark: seen.append(mark["owner"]))
    cut_off(node)
    go_back(node, way_back(node))
    assert seen == ["nvidia_driver"]


# --- the rest of the record -------------------------------------------------------------------------------------------


def test_krn_02_modules_of_all_kernels_come_back_the_good_ones_first(node, loaded):
    plan = _rollback.Plan(kernel=GOOD_KERNEL, load_modules=[GOOD_KERNEL, OTHER_KERNEL])
    assert go_back(node, plan) == [] and loaded[0] == [GOOD_KERNEL, OTHER_KERNEL]


def test_krn_02_a_module_of_another_kernel_that_does_not_fit_is_told_and_bars_nothing(node, loaded):
    loaded[1].append(OTHER_KERNEL)
    (told,) = go_back(node, _rollback.Plan(kernel=GOOD_KERNEL, load_modules=[GOOD_KERNEL, OTHER_KERNEL]))
    assert f"the module for {OTHER_KERNEL} could not be put back" in told
    assert json.loads((node.root / "var/lib/gpu_node/driver.json").read_text())["version"] == "535.183.06"


def test_krn_02_that_of_the_kernel_to_run_does(node, loaded):
    loaded[1].append(GOOD_KERNEL)
    with pytest.raises(_rollback_apply.RollbackError, match=f"module for {GOOD_KERNEL} could not be put back"):
        go_back(node, _rollback.Plan(kernel=GOOD_KERNEL, load_modules=[GOOD_KERNEL, OTHER_KERNEL]))
    assert loaded[0] == [GOOD_KERNEL]


def test_drv_10_a_companion_that_was_purged_comes_from_the_record(node, loaded):
    del node.packages["dkms"]
    node.packages["nvidia-kernel-dkms"][3] = NEW
    node.write()
    go_back(node, _rollback.Plan(kernel=GOOD_KERNEL, restore={"nvidia-kernel-dkms": OLD, "dkms": "3.0.10"}))
    assert node.state() == {**PACKAGES, **COMPANIONS, "bash": "5.2"}
    assert node.automatic == {"dkms"} and "dkms" not in node.holds()


def test_drv_06_pins_come_back_and_a_source_that_the_good_driver_had_not_goes(node, loaded):
    source = node.root / _apt_prefs.SOURCES_PATH.lstrip("/")
    source.parent.mkdir(parents=True)
    source.write_text("Types: deb\n")
    manifest = record(node.root)
    found = rollback(node)._differences(manifest)
    assert found.texts == [_apt_prefs.PINS_PATH, _apt_prefs.BLACKLIST_PATH, _apt_prefs.SOURCES_PATH]
    assert found.companions == []
    rollback(node).apply(_rollback.Plan(kernel=GOOD_KERNEL, texts=list(found.texts)), manifest, facts(), "a test")
    assert not source.exists()
    assert (node.root / _apt_prefs.PINS_PATH.lstrip("/")).read_text() == PINS
    assert rollback(node)._differences(manifest).texts == []


def test_drv_10_what_was_given_up_of_the_other_kind_stays_given_up(node, loaded):
    former = {"attempted": {"driver": "550.163.01"}, "active": {"driver": "535.183.06"}, "reason": "r", "time": "t"}
    tried = facts(running_kernel=NEW_KERNEL, rollback=former)
    rollback(node).apply(_rollback.Plan(kernel=GOOD_KERNEL, modprobe=False), record(node.root), tried, "a test")
    noted = json.loads((node.root / "var/lib/gpu_node/rollback.json").read_text())
    assert noted["attempted"] == {"kernel": NEW_KERNEL}
    assert {kind: slot["attempted"] for kind, slot in noted["given_up"].items()} == {
        "driver": "550.163.01",
        "kernel": NEW_KERNEL,
    }


def test_good_of_knows_kernels_whose_module_came_in_a_package(node):
    manifest = record(node.root)
    manifest.data["kernels"].append(NEW_KERNEL)
    good = _rollback_apply.good_of(manifest)
    assert set(good.kernels) == {GOOD_KERNEL, OTHER_KERNEL, NEW_KERNEL}
    assert set(good.archives) == {GOOD_KERNEL, OTHER_KERNEL} and good.companions == COMPANIONS


def test_drv_10_a_damaged_record_names_the_newest_whole_one(node, monkeypatch):
    record(node.root, "g0", "2026-01-01T00:00:00Z", current=False)
    manifest = record(node.root)
    deb = node.root / _lkg_store.GENERATIONS / "g1/debs/nvidia-smi_535.183.06-1_amd64.deb"
    monkeypatch.setattr(_rollback_apply._driver_info, "collect", lambda runner, root: {"loaded": {"version": None}})
    monkeypatch.setattr(_rollback, "plan", lambda *arguments: _rollback.Plan(kernel=GOOD_KERNEL, restore={"a": "1"}))
    deb.write_text("damaged")
    with pytest.raises(_rollback_apply.RollbackError) as failure:
        rollback(node).plan()
    text = str(failure.value)
    assert manifest.time in text and "nvidia-smi_535.183.06-1_amd64.deb has" in text
    assert "recorded 2026-01-01T00:00:00Z" in text
    assert "ln -sfn generations/g0 /var/lib/gpu_node/last_known_good/current" in text
    (node.root / _lkg_store.GENERATIONS / "g0/debs/nvidia-smi_535.183.06-1_amd64.deb").unlink()
    with pytest.raises(_rollback_apply.RollbackError, match=r"repair the node by hand"):
        rollback(node).plan()
