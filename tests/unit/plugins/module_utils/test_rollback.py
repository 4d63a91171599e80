# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way back, planned from every state that a node may be in."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _rollback

GOOD_KERNEL, NEW_KERNEL = "6.1.0-57-amd64", "6.12.95+deb12-amd64"
PACKAGES = {"libnvidia-ml1": "535.183.06-1", "nvidia-kernel-dkms": "535.183.06-1", "nvidia-modprobe": "535.161.07-1"}


def module(kernel: str, version: str = "535.183.06") -> dict:
    return {
        "path": f"/lib/modules/{kernel}/updates/dkms/nvidia.ko",
        "indexed": True,
        "exists": True,
        "fits": True,
        "version": version,
        "flavour": "proprietary",
    }


def kernel(release: str, running: bool, modules: list) -> dict:
    return {"release": release, "running": running, "modules": True, "headers": True, "nvidia": modules}


def facts() -> dict:
    """A node as it was recorded."""
    choice = {"kernel": GOOD_KERNEL, "entry": "a>b", "found": True}
    return {
        "running_kernel": GOOD_KERNEL,
        "kernels": [kernel(GOOD_KERNEL, True, [module(GOOD_KERNEL)])],
        "boot": {"default": choice, "one_shot": None, "next_kernel": GOOD_KERNEL},
        "packages": {name: {"version": version, "hold": True} for name, version in PACKAGES.items()},
        "package_database": {"unfinished": {}, "interrupted": False, "transaction": None},
        "loaded": {"version": "535.183.06", "flavour": "proprietary"},
        "library": {"version": "535.183.06"},
        "nouveau": {"bound": []},
        "gpus": [{"address": "0000:17:00.0"}],
        "record": {"version": "535.183.06", "packages": dict(PACKAGES), "independent": {}},
    }


GOOD = _rollback.Good(
    "535.183.06",
    GOOD_KERNEL,
    "proprietary",
    PACKAGES,
    sorted(PACKAGES),
    [GOOD_KERNEL],
    [GOOD_KERNEL],
    {"dkms": "3.0.10"},
)


def good(*kernels: str) -> _rollback.Good:
    """The good state with compiled modules for other kernels."""
    return dataclasses.replace(GOOD, kernels=list(kernels), archives=list(kernels))


def surprise() -> dict:
    """A kernel arrived, was booted, and has no module."""
    found = facts()
    found["running_kernel"] = NEW_KERNEL
    found["kernels"][0]["running"] = False
    found["kernels"].append(kernel(NEW_KERNEL, True, []))
    found["boot"]["default"]["kernel"] = found["boot"]["next_kernel"] = NEW_KERNEL
    found["loaded"]["version"] = None
    return found


def test_a_node_that_is_as_recorded_is_left_alone():
    plan = _rollback.plan(facts(), GOOD)
    assert not plan.changes and not plan.reboot and plan.symptoms == [] and plan.steps(GOOD) == []


def test_krn_01_a_surprise_kernel_is_left_by_the_boot_loader_alone():
    plan = _rollback.plan(surprise(), GOOD)
    assert plan.kernel == GOOD_KERNEL and plan.set_default and plan.default_first and plan.reboot
    assert not plan.restore and not plan.load_modules
    assert plan.steps(GOOD) == [f"make {GOOD_KERNEL} the boot loader's default", f"reboot into {GOOD_KERNEL}"]


def test_the_driver_goes_to_the_running_kernel_only_with_a_module_for_it():
    assert _rollback.plan(surprise(), GOOD, _rollback.DRIVER).kernel == GOOD_KERNEL
    plan = _rollback.plan(surprise(), good(GOOD_KERNEL, NEW_KERNEL), _rollback.DRIVER)
    assert plan.kernel == NEW_KERNEL and plan.load_modules == [NEW_KERNEL]
    assert plan.modprobe and not plan.reboot and not plan.set_default


def test_a_good_kernel_that_is_gone_leaves_the_running_one():
    found = surprise()
    found["kernels"] = found["kernels"][1:]
    plan = _rollback.plan(found, GOOD)
    assert plan.refusals and GOOD_KERNEL in plan.refusals[0] and "not in /boot" in plan.refusals[0]
    assert _rollback.plan(found, good(NEW_KERNEL)).kernel == NEW_KERNEL


def test_drv_06_a_replaced_package_comes_back_with_its_module():
    found = facts()
    found["packages"]["libnvidia-ml1"] = {"version": "535.309.01-1", "hold": False}
    found["packages"]["nvidia-kernel-dkms"] = {"version": "535.309.01-1", "hold": False}
    found["kernels"][0]["nvidia"] = [module(GOOD_KERNEL, "535.309.01")]
    plan = _rollback.plan(found, GOOD)
    assert plan.restore == {name: PACKAGES[name] for name in ("libnvidia-ml1", "nvidia-kernel-dkms")}
    assert plan.load_modules == [GOOD_KERNEL] and not plan.default_first
    # The good module is still loaded, so that nothing has to be interrupted.
    assert not plan.reboot and not plan.modprobe


def test_drv_07_module_and_library_of_two_versions_need_a_reboot_only():
    found = facts()
    found["loaded"]["version"] = "535.161.07"
    plan = _rollback.plan(found, GOOD)
    assert plan.reboot and not plan.changes


def test_drv_10_what_the_tried_driver_brought_goes():
    found = facts()
    found["record"] = {"version": "550.163.01", "packages": {"libnvidia-gpucomp": "550.163.01-1"}, "independent": {}}
    found["packages"]["libnvidia-gpucomp"] = {"version": "550.163.01-1", "hold": True}
    assert _rollback.plan(found, GOOD).remove == ["libnvidia-gpucomp"]


def test_krn_03_half_done_packages_are_finished_and_torn_ones_come_again():
    found = facts()
    found["package_database"]["unfinished"] = {NEW_KERNEL: "half-configured", "libnvidia-ml1": "half-installed"}
    plan = _rollback.plan(found, GOOD)
    assert plan.repair == [NEW_KERNEL, "libnvidia-ml1"] and plan.restore == {"libnvidia-ml1": "535.183.06-1"}


@pytest.mark.parametrize("mark", ["interrupted", "transaction"])
def test_a_transaction_that_was_cut_off_is_repaired(mark):
    found = facts()
    found["package_database"][mark] = True if mark == "interrupted" else {"started": "earlier"}
    assert _rollback.plan(found, GOOD).repair == ["dpkg's journal"]


def test_a_hold_that_is_gone_comes_back():
    found = facts()
    found["packages"]["nvidia-modprobe"]["hold"] = False
    plan = _rollback.plan(found, GOOD)
    assert plan.hold == ["nvidia-modprobe"] and plan.changes and not plan.reboot


def test_drv_10_an_update_that_was_cut_off_is_known_by_its_mark_and_what_it_brought_goes():
    found = facts()
    found["packages"]["libnvidia-ml1"]["version"] = "550.163.01-1"
    found["packages"]["libnvidia-gpucomp"] = {"version": "550.163.01-1", "hold": False}
    found["package_database"] = {
        "unfinished": {"libnvidia-ml1": "unpacked", "libnvidia-gpucomp": "unpacked"},
        "interrupted": False,
        "transaction": {"before": {"libnvidia-ml1": "535.183.06-1", "libnvidia-gpucomp": "", "bzip2": ""}},
    }
    plan = _rollback.plan(found, GOOD)
    assert plan.remove == ["libnvidia-gpucomp"] and plan.restore == {"libnvidia-ml1": "535.183.06-1"}


@pytest.mark.parametrize("cause", ["version", "half-configured", "journal"])
def test_krn_02_packages_that_come_again_take_the_modules_of_all_kernels_along(cause):
    found, other = facts(), "6.1.0-56-amd64"
    found["kernels"].append(kernel(other, False, [module(other)]))
    if cause == "version":
        found["packages"]["nvidia-kernel-dkms"]["version"] = "535.309.01-1"
    elif cause == "journal":
        found["package_database"]["interrupted"] = True
    else:
        found["package_database"]["unfinished"] = {"nvidia-kernel-dkms": cause}
    both = good(other, GOOD_KERNEL, "6.1.0-50-amd64")
    plan = _rollback.plan(found, both)
    # The good kernel's comes first; one that is not in /boot any more gets none.
    assert plan.load_modules == [GOOD_KERNEL, other]
    found["boot"]["default"]["kernel"] = other
    plan = _rollback.plan(found, both)
    steps = plan.steps(both)
    back = [
        f"put the compiled module 535.183.06 for {one} back from the last known good" for one in (GOOD_KERNEL, other)
    ]
    default = f"make {GOOD_KERNEL} the boot loader's default"
    assert [step for step in steps if step in (*back, default)] == (
        [default, *back] if plan.default_first else [back[0], default, back[1]]
    )


def test_krn_02_another_kernel_that_lost_its_module_gets_it_back():
    found, other = facts(), "6.1.0-56-amd64"
    found["kernels"].append(kernel(other, False, []))
    plan = _rollback.plan(found, good(GOOD_KERNEL, other))
    assert plan.load_modules == [other] and plan.changes and not plan.reboot and plan.default_first
    assert f"kernel {other}: no nvidia module" in plan.symptoms
    # A kernel that had none when the state was recorded is nobody's loss.
    assert not _rollback.plan(found, GOOD).changes


PREBUILT = "linux-modules-nvidia-535-" + GOOD_KERNEL


def prebuilt() -> _rollback.Good:
    """Ubuntu's good state: its module comes in a package, so that there is no archive."""
    return dataclasses.replace(GOOD, packages={**PACKAGES, PREBUILT: "1"}, archives=[])


def test_drv_10_prebuilt_modules_come_back_with_their_package():
    found = facts()
    found["packages"]["libnvidia-ml1"]["version"] = "535.309.01-1"
    found["packages"][PREBUILT] = {"version": "1", "hold": True}
    plan = _rollback.plan(found, prebuilt())
    assert plan.refusals == [] and plan.kernel == GOOD_KERNEL and plan.load_modules == []
    del found["packages"][PREBUILT]
    found["kernels"][0]["nvidia"] = []
    plan = _rollback.plan(found, prebuilt())
    assert plan.refusals == [] and PREBUILT in plan.restore and not plan.default_first


def test_drv_10_a_prebuilt_module_that_its_package_lost_is_told_with_what_to_do():
    found = facts()
    found["packages"][PREBUILT] = {"version": "1", "hold": True}
    found["kernels"][0]["nvidia"] = []
    plan = _rollback.plan(found, prebuilt())
    assert "no nvidia module; its module comes in a package, which has to be reinstalled" in plan.refusals[0]


@pytest.mark.parametrize(("loaded", "reboot"), [("open", True), ("proprietary", False), ("", False)])
def test_drv_10_another_flavour_of_the_same_version_needs_a_reboot(loaded, reboot):
    found = facts()
    found["loaded"]["flavour"] = loaded
    plan = _rollback.plan(found, GOOD)
    assert plan.reboot == reboot
    assert plan.symptoms == (
        ["the open flavour of the module is loaded instead of the proprietary one"] if reboot else []
    )


def test_drv_10_companions_that_are_gone_come_back_where_packages_do():
    gone = _rollback.Differences(companions=["dkms"])
    assert not _rollback.plan(facts(), GOOD, differences=gone).changes
    found = facts()
    del found["packages"]["nvidia-kernel-dkms"]
    plan = _rollback.plan(found, GOOD, differences=gone)
    assert plan.restore == {"nvidia-kernel-dkms": "535.183.06-1", "dkms": "3.0.10"}
    found = facts()
    found["kernels"][0]["nvidia"] = []
    assert _rollback.plan(found, GOOD, differences=gone).restore == {"dkms": "3.0.10"}


def test_drv_06_pins_and_source_that_differ_come_back():
    plan = _rollback.plan(facts(), GOOD, differences=_rollback.Differences(texts=["/etc/apt/x.sources"]))
    assert plan.changes and plan.texts == ["/etc/apt/x.sources"] and not plan.reboot
    assert plan.steps(GOOD) == ["put /etc/apt/x.sources back"]


def test_a_one_shot_entry_to_another_kernel_counts():
    found = facts()
    found["boot"]["one_shot"] = {"kernel": NEW_KERNEL}
    assert _rollback.plan(found, GOOD).set_default


def test_nouveau_on_a_gpu_needs_a_reboot():
    found = facts()
    found["loaded"]["version"] = None
    found["nouveau"]["bound"] = ["0000:17:00.0"]
    assert _rollback.plan(found, GOOD).reboot


def test_without_a_record_there_is_no_way_back():
    assert "no record" in _rollback.plan(facts(), None).refusals[0]


def test_planning_changes_no_facts():
    found = surprise()
    before = copy.deepcopy(found)
    _rollback.plan(found, GOOD)
    assert found == before
