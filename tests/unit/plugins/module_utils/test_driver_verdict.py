"""Verdicts on the driver: a healthy node with one thing spoilt."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_info, _driver_verdict
from node_facts import LOOSE, MEMBERS, OTHER, RUNNING, VERSION, choice, dkms, healthy, kernel, package

WANTED = {"version": VERSION, "source": "distro", "flavour": "proprietary"}


def judge(facts, **expected):
    return _driver_verdict.findings(facts, {**WANTED, **expected})


RECORD = "/var/lib/gpu_node/driver.json"


def bad(findings):
    """Return what is not ok, as (check, target, status)."""
    return [(item.check, item.target, item.status) for item in findings if item.status != "ok"]


def one(findings, check, target="node"):
    (found,) = [item for item in findings if item.check == check and item.target == target]
    return found


def test_healthy_node_has_nothing_to_say():
    assert bad(judge(healthy())) == []
    assert bad(_driver_verdict.findings(healthy(), {})) == []


def test_drv_01_success_is_a_module_for_every_bootable_kernel():
    facts = healthy()
    facts["kernels"][0]["nvidia"] = []
    facts["boot"]["effective"] = "0"
    assert bad(judge(facts)) == [("driver.module", OTHER, "fail")]


def test_krn_01_a_kernel_that_a_pinned_boot_loader_does_not_start_is_a_warning():
    facts = healthy()
    facts["kernels"][0]["nvidia"] = []
    assert bad(judge(facts)) == [("driver.module", OTHER, "warn")]
    facts["boot"]["default"]["entry"] = "gnulinux-simple-1"
    assert bad(judge(facts)) == [("driver.module", OTHER, "fail")]


def test_drv_01_packages_without_any_module_do_not_pass():
    facts = healthy()
    facts["boot"]["effective"] = "0"
    for item in facts["kernels"]:
        item["nvidia"] = []
    facts["dkms"]["entries"] = []
    statuses = bad(judge(facts))
    assert ("driver.module", OTHER, "fail") in statuses
    assert ("driver.module", RUNNING, "fail") in statuses
    assert ("driver.boot", "default", "fail") in statuses


def test_no_driver_at_all():
    facts = healthy()
    facts["packages"] = {}
    assert one(judge(facts), "driver.package_set").status == "fail"


def test_drv_03_the_odd_package_is_named():
    facts = healthy()
    facts["packages"]["libnvidia-ml1"] = package("535.309.01-0+deb12u1")
    found = one(judge(facts), "driver.package_set")
    assert (found.status, found.value) == ("fail", {"libnvidia-ml1": "535.309.01"})
    assert "libnvidia-ml1 535.309.01" in found.hint


def test_drv_03_companions_with_a_version_of_their_own_are_no_mismatch_in_debian():
    facts = healthy()
    facts["record"] = None
    assert one(judge(facts), "driver.package_set").status == "ok"


def test_drv_03_the_same_companion_from_the_vendor_is_one():
    facts = healthy()
    facts["record"] = None
    facts["packages"]["nvidia-modprobe"] = package("610.57.04-1")
    found = one(judge(facts, source="cuda_repo"), "driver.package_set")
    assert found.status == "fail"
    assert found.value["nvidia-modprobe"] == "610.57.04"


def test_drv_03_without_a_wish_the_majority_is_the_measure():
    facts = healthy()
    facts["record"] = None
    facts["packages"]["nvidia-smi"] = package("535.309.01-0+deb12u1")
    found = one(_driver_verdict.findings(facts, {"source": "distro"}), "driver.package_set")
    assert (found.status, found.expected, found.value) == ("fail", VERSION, {"nvidia-smi": "535.309.01"})


@pytest.mark.parametrize("name", [*MEMBERS, *LOOSE])
def test_drv_06_one_member_without_hold_turns_red(name):
    facts = healthy()
    facts["packages"][name]["hold"] = False
    found = one(judge(facts), "driver.holds")
    assert found.status == "fail"
    assert name in found.hint


def test_drv_06_a_recorded_member_that_is_gone_turns_red():
    facts = healthy()
    del facts["packages"]["nvidia-smi"]
    assert "not installed: nvidia-smi" in one(judge(facts), "driver.holds").hint
    assert one(judge(facts), "driver.record", "/var/lib/gpu_node/driver.json").status == "fail"


def test_drv_06_updater_blacklist_has_to_cover_the_closure():
    facts = healthy()
    facts["unattended_upgrades"]["blacklist"] = ["nvidia-", "libnvidia-", "firmware-nvidia"]
    found = one(judge(facts), "driver.unattended_upgrades")
    assert (found.status, found.hint) == ("fail", "not on the blacklist: libcuda1")


def test_drv_06_blacklist_entries_are_anchored_at_the_start_only():
    facts = healthy()
    facts["unattended_upgrades"]["blacklist"] = ["vidia", "ibcuda1", "irmware"]
    assert one(judge(facts), "driver.unattended_upgrades").status == "fail"
    facts["unattended_upgrades"]["blacklist"] = ["[a-z"]
    assert one(judge(facts), "driver.unattended_upgrades").status == "error"
    facts["unattended_upgrades"]["installed"] = False
    assert one(judge(facts), "driver.unattended_upgrades").status == "skipped"


def test_drv_06_pins_cover_the_closure_at_its_versions():
    facts = healthy()
    by_name = {pin["packages"][0]: pin for pin in facts["pins"]}
    by_name["libcuda1"]["pin"] = "535.309.*"
    by_name["nvidia-smi"]["priority"] = 500
    facts["pins"].remove(by_name["nvidia-modprobe"])
    found = one(judge(facts), "driver.pins")
    assert found.status == "fail"
    assert [problem.split(" ")[0] for problem in found.value] == ["libcuda1", "nvidia-modprobe", "nvidia-smi"]


def test_krn_03_a_half_configured_member_is_told():
    facts = healthy()
    facts["package_database"]["unfinished"] = {"nvidia-kernel-dkms": "half-configured", "man-db": "triggers-pending"}
    found = one(judge(facts), "driver.package_state")
    assert (found.status, found.value) == ("fail", {"nvidia-kernel-dkms": "half-configured"})


def mismatch(facts):
    facts["library"]["version"] = "535.309.01"
    facts["loaded"]["version"] = VERSION
    facts["nvml"] = _driver_info.nvml_state(VERSION, "535.309.01")
    return facts


def test_drv_07_mismatch_is_a_state_of_its_own():
    found = one(judge(mismatch(healthy())), "driver.loaded")
    assert found.status == "fail"
    assert found.value == {
        "code": 18,
        "name": "LIB_RM_VERSION_MISMATCH",
        "loaded": VERSION,
        "library": "535.309.01",
    }
    assert found.hint.startswith("reboot or reload")


def test_drv_07_a_reboot_that_is_due_may_be_a_warning():
    assert one(judge(mismatch(healthy()), pending_reboot="warn"), "driver.loaded").status == "warn"


def test_module_that_is_not_loaded():
    facts = healthy()
    facts["loaded"]["version"] = None
    facts["nvml"] = _driver_info.nvml_state(None, VERSION)
    found = one(judge(facts), "driver.loaded")
    assert (found.status, found.value["code"], found.hint) == ("fail", 9, "load the module or reboot")
    assert one(judge(facts, pending_reboot="warn"), "driver.loaded").status == "warn"
    facts["kernels"][1]["nvidia"] = []
    found = one(judge(facts, pending_reboot="warn"), "driver.loaded")
    assert found.status == "fail"
    assert "cannot load it: no nvidia module" in found.hint


def test_svc_08_node_without_gpu_skips_what_is_loaded_and_says_why():
    facts = healthy()
    facts["gpus"] = []
    facts["loaded"]["version"] = None
    facts["nvml"] = _driver_info.nvml_state(None, VERSION)
    findings = judge(facts)
    assert bad(findings) == [("driver.loaded", "node", "skipped")]
    assert one(findings, "driver.loaded").hint == "no NVIDIA GPU on PCI"


def test_krn_01_the_kernel_that_boots_next_decides():
    facts = healthy()
    facts["kernels"].append(kernel("6.1.0-42-amd64", version=""))
    facts["boot"]["default"] = choice("6.1.0-42-amd64")
    facts["boot"]["next_kernel"] = "6.1.0-42-amd64"
    found = one(judge(facts), "driver.boot", "default")
    assert (found.status, found.value) == ("fail", "6.1.0-42-amd64")
    assert found.hint == "do not reboot: no nvidia module"
    assert ("driver.module", "6.1.0-42-amd64", "fail") in bad(judge(facts))


def test_krn_01_one_shot_entry_is_judged_beside_the_default():
    facts = healthy()
    facts["kernels"].append(kernel("6.12.57+deb12-amd64", version="535.183.06"))
    facts["boot"]["one_shot"] = choice("6.12.57+deb12-amd64")
    findings = judge(facts)
    assert one(findings, "driver.boot", "default").status == "ok"
    assert "has version 535.183.06" in one(findings, "driver.boot", "one-shot").hint


def test_krn_01_unknown_boot_default_is_an_error_where_it_matters():
    facts = healthy()
    facts["boot"].update(loader="unknown", default=None, next_kernel=None)
    assert one(judge(facts), "driver.boot").status == "warn"
    facts["kernels"][0]["nvidia"] = []
    assert one(judge(facts), "driver.boot").status == "error"


def test_krn_01_every_way_in_which_a_module_is_not_the_one():
    spoil = {
        "index names": {"exists": False},
        "built for another kernel": {"fits": False},
        "has version 535.183.06": {"version": "535.183.06"},
        "run depmod": {"indexed": False},
        "is the open flavour": {"flavour": "open"},
    }
    for text, change in spoil.items():
        facts = healthy()
        facts["kernels"][1]["nvidia"][0].update(change)
        found = one(judge(facts), "driver.module", RUNNING)
        assert (found.status, text in found.hint) == ("fail", True), text


def test_krn_02_orphans_are_reported_and_a_newer_tree_is_a_failure():
    facts = healthy()
    facts["dkms"]["orphans"] = [{"module": "nvidia", "version": "390.48", "path": "/var/lib/dkms/nvidia/390.48"}]
    facts["dkms"]["entries"] += [
        dkms("", version="550.163.01", state="added"),
        dkms("", version="470.256.02", state="added"),
    ]
    assert bad(judge(facts)) == [
        ("driver.dkms", "nvidia/390.48", "warn"),
        ("driver.dkms", "nvidia-current/470.256.02", "warn"),
        ("driver.dkms", "nvidia-current/550.163.01", "fail"),
    ]


def test_krn_02_built_and_not_installed_is_said_with_the_kernel():
    facts = healthy()
    facts["kernels"][0]["nvidia"] = []
    facts["dkms"]["entries"][0]["state"] = "built"
    assert (
        f"DKMS has built nvidia-current/{VERSION} and not installed it"
        in one(judge(facts), "driver.module", OTHER).hint
    )


def test_krn_02_an_installed_module_that_is_not_the_built_one():
    facts = healthy()
    facts["dkms"]["entries"][1]["differs"] = True
    assert bad(judge(facts)) == [("driver.dkms", "nvidia-current/" + VERSION, "warn")]


def test_krn_01_a_dkms_that_is_switched_off_is_told():
    facts = healthy()
    facts["dkms"]["switched_off"] = True
    assert bad(judge(facts)) == [("driver.dkms", "autoinstall", "warn")]
    (found,) = [one for one in judge(facts) if one.target == "autoinstall"]
    assert "/etc/dkms/no-autoinstall exists" in found.hint


def test_missing_headers_matter_where_dkms_builds():
    facts = healthy()
    facts["kernels"][0]["headers"] = False
    assert bad(judge(facts)) == [("driver.headers", OTHER, "warn")]
    facts["dkms"]["entries"] = []
    assert bad(judge(facts)) == []


def test_krn_04_the_bound_driver_decides_whatever_the_files_say():
    facts = healthy()
    facts["gpus"][0]["driver"] = "nouveau"
    facts["nouveau"]["bound"] = ["0000:17:00.0"]
    assert bad(judge(facts)) == [("driver.nouveau", "0000:17:00.0", "fail")]
    facts = healthy()
    facts["nouveau"]["blacklisted_by"] = []
    assert bad(judge(facts)) == [("driver.nouveau", "blacklist", "fail")]


def test_krn_04_early_boot_image_with_nouveau_and_no_blacklist():
    facts = healthy()
    image = {"image": "/boot/initrd.img-" + OTHER, "nouveau": True, "blacklists": [], "error": ""}
    facts["kernels"][0]["initramfs"] = image
    assert bad(judge(facts)) == [("driver.nouveau", image["image"], "fail")]
    image["blacklists"] = ["modprobe.d/gpu-node-nouveau.conf"]
    assert bad(judge(facts)) == []
    image.update(nouveau=None, error="premature end")
    assert bad(judge(facts)) == [("driver.nouveau", image["image"], "error")]


def test_gpu_in_other_hands_or_in_nobody_s():
    facts = healthy()
    facts["gpus"][0]["driver"] = "vfio-pci"
    facts["gpus"][1]["driver"] = None
    assert bad(judge(facts)) == [
        ("driver.bound", "0000:17:00.0", "warn"),
        ("driver.bound", "0000:65:00.0", "fail"),
    ]


def test_krn_05_secure_boot_with_an_unknown_signer():
    facts = healthy()
    facts["secure_boot"].update(state="enabled", enforced=True, signers=["Debian Secure Boot CA"])
    facts["secure_boot"]["keys"] = [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]
    facts["kernels"] = [kernel(RUNNING, running=True), kernel(OTHER, signer="DKMS module signing key")]
    found = one(judge(facts), "driver.secure_boot")
    assert found.status == "fail"
    assert found.value == [RUNNING + " (not signed)", OTHER + " (signed by DKMS module signing key)"]
    assert "mokutil --import /var/lib/dkms/mok.pub" in found.hint
    facts["secure_boot"]["signers"].append("DKMS module signing key")
    facts["kernels"] = [kernel(OTHER, signer="DKMS module signing key")]
    assert one(judge(facts), "driver.secure_boot").status == "ok"


def test_krn_05_unknown_state_is_never_good():
    facts = healthy()
    facts["secure_boot"].update(state="unknown", enforced=None)
    assert one(judge(facts), "driver.secure_boot").status == "error"


@pytest.mark.parametrize(
    ("record", "status"),
    [(None, "warn"), ({"unreadable": "Expecting value"}, "error"), ({"version": "535.183.06"}, "fail")],
)
def test_record_missing_unreadable_or_of_another_version(record, status):
    facts = healthy()
    facts["record"] = record
    assert one(judge(facts), "driver.record", RECORD).status == status


@pytest.mark.parametrize(
    ("wish", "status", "fragments"),
    [
        ({}, "ok", ()),
        ({"components": ["video", "compute"]}, "ok", ()),
        ({"components": ["compute"]}, "fail", ("components is ['compute', 'video'], not ['compute']",)),
        ({"source": "cuda_repo"}, "fail", ("source is distro, not cuda_repo",)),
        ({"repo_uri": "https://m/x"}, "fail", ("repo_uri is none, not https://m/x",)),
        ({"components": ["mps"], "repo_uri": "https://m/x"}, "fail", ("components is", "repo_uri is")),
    ],
)
def test_an_inventory_that_asks_for_another_driver_than_the_recorded_one_is_told(wish, status, fragments):
    facts = healthy()
    facts["record"].update(components=["compute", "video"], repo_uri="")
    found = one(judge(facts, **{"source": "distro", "repo_uri": "", **wish}), "driver.request", RECORD)
    assert found.status == status and all(fragment in found.hint for fragment in fragments)
    assert set(found.value) == (set(wish) if status == "fail" else {"source", "repo_uri", *wish})


def test_what_was_not_recorded_or_not_wished_is_not_compared():
    facts = healthy()
    assert not [
        item for item in _driver_verdict.findings(facts, {"version": VERSION}) if item.check == "driver.request"
    ]
    facts["record"] = None
    assert not [item for item in judge(facts, components=["mps"]) if item.check == "driver.request"]
