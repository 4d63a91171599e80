# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way back, planned from every state that a node may be in."""

from __future__ import annotations

import copy

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


GOOD = _rollback.Good("535.183.06", GOOD_KERNEL, "proprietary", PACKAGES, sorted(PACKAGES), [GOOD_KERNEL])


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
    assert not plan.restore and not plan.load_module
    assert plan.steps(GOOD) == [f"make {GOOD_KERNEL} the boot loader's default", f"reboot into {GOOD_KERNEL}"]


def test_the_driver_goes_to_the_running_kernel_only_with_a_module_for_it():
    assert _rollback.plan(surprise(), GOOD, _rollback.DRIVER).kernel == GOOD_KERNEL
    both = _rollback.Good("535.183.06", GOOD_KERNEL, "proprietary", PACKAGES, [], [GOOD_KERNEL, NEW_KERNEL])
    plan = _rollback.plan(surprise(), both, _rollback.DRIVER)
    assert plan.kernel == NEW_KERNEL and plan.load_module and plan.modprobe and not plan.reboot and not plan.set_default


def test_a_good_kernel_that_is_gone_leaves_the_running_one():
    found = surprise()
    found["kernels"] = found["kernels"][1:]
    plan = _rollback.plan(found, GOOD)
    assert plan.refusals and GOOD_KERNEL in plan.refusals[0] and "not in /boot" in plan.refusals[0]
    both = _rollback.Good("535.183.06", GOOD_KERNEL, "proprietary", PACKAGES, [], [NEW_KERNEL])
    assert _rollback.plan(found, both).kernel == NEW_KERNEL


def test_drv_06_a_replaced_package_comes_back_with_its_module():
    found = facts()
    found["packages"]["libnvidia-ml1"] = {"version": "535.309.01-1", "hold": False}
    found["packages"]["nvidia-kernel-dkms"] = {"version": "535.309.01-1", "hold": False}
    found["kernels"][0]["nvidia"] = [module(GOOD_KERNEL, "535.309.01")]
    plan = _rollback.plan(found, GOOD)
    assert plan.restore == {name: PACKAGES[name] for name in ("libnvidia-ml1", "nvidia-kernel-dkms")}
    assert plan.load_module and not plan.default_first
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
