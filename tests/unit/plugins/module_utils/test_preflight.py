"""Verdicts of preflight: each alone, and all of them at once."""

from __future__ import annotations

import copy
import pathlib

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _preflight
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import SEVERITY, describe

DATA = yaml.safe_load((pathlib.Path(__file__).parents[4] / "files" / "compatibility.yml").read_text(encoding="utf-8"))

#: A healthy machine with eight H100, as node_info returns it.
GOOD = {
    "time": "2026-11-30T10:00:00Z",
    "os": {"id": "debian", "version": "12", "codename": "bookworm", "name": "Debian GNU/Linux 12 (bookworm)"},
    "architecture": "x86_64",
    "kernel": "6.1.0-28-amd64",
    "virtualisation": {"container": None, "machine": None},
    "interpreter": {
        "path": "/usr/bin/python3",
        "version": "3.11.2",
        "apt": True,
        "reason": "",
        "system_python_has_apt": None,
    },
    "memory_mib": 2063956,
    "cpu": {"threads": 224, "cores": 112, "source": "sysfs"},
    "root_fs": {"size_mib": 900000, "free_mib": 500000, "used_percent": 41, "inodes_percent": 3},
    "packages": {"readable": True, "unfinished": [], "interrupted": False, "transaction": None, "lock": None},
    "clock": {"synchronised": True, "source": "kernel"},
    "secure_boot": {"state": "disabled", "enforced": False, "source": "mokutil"},
    "gpus": [],
    "nvswitches": [],
    "fstab": [],
    "compiler": {"kernel": 12, "default": 12},
    "sources_error": "",
    "addresses": [
        {
            "uri": "http://mirror.example.com/debian",
            "suite": "bookworm",
            "origin": "/etc/apt/sources.list:1",
            "reachable": True,
            "detail": "",
        }
    ],
}
WANT = {"driver_version": "580.65.06"}


def gpu(device, number=0, subsystem="", driver=None):
    return {
        "address": f"0000:{0x17 + number:02x}:00.0",
        "vendor": "10de",
        "device": device,
        "class": "030200",
        "subsystem": f"10de:{subsystem}" if subsystem else "",
        "driver": driver,
    }


def facts(gpus=("2330",) * 8, **changes):
    """Return the good machine with these GPUs; ``a__b=1`` changes facts["a"]["b"]."""
    result = copy.deepcopy(GOOD)
    result["gpus"] = [gpu(device, number) for number, device in enumerate(gpus)]
    for name, value in changes.items():
        target, parts = result, name.split("__")
        for part in parts[:-1]:
            target = target[part]
        target[parts[-1]] = value
    return result


def judge(machine, **want):
    return _preflight.findings(machine, dict(WANT, **want), DATA)


def only(found, check):
    """Return the one finding of a check."""
    hits = [one for one in found if one.check == check]
    assert len(hits) == 1, [describe(one.as_dict()) for one in hits]
    return hits[0]


def bad(found):
    return {one.check for one in found if one.status in ("fail", "error")}


def test_healthy_machine_has_nothing_to_complain_about():
    found = judge(facts())
    assert {one.status for one in found} == {"ok"}, [describe(one.as_dict()) for one in found if one.status != "ok"]
    assert only(found, "node.gpus").value == "8 GPU(s) on the PCI bus: 8 x H100 SXM 80 GB (10de:2330)"
    assert only(found, "driver.flavour").value == "open"


def test_every_bad_finding_says_what_to_do():
    machine = broken_everywhere()
    found = judge(machine, driver_version="535", driver_flavour="open", cuda_releases=["12"])
    for one in found:
        assert one.status in SEVERITY
        if one.status in ("fail", "error", "warn"):
            text = describe(one.as_dict())
            assert one.hint or ": " in str(one.value), text
            assert "None" not in text, text


def broken_everywhere():
    return facts(
        gpus=("1db6", "1db6", "1db6", "1db6"),
        os__version="11",
        os__name="Debian GNU/Linux 11 (bullseye)",
        interpreter={
            "path": "/root/.pyenv/versions/3.11.7/bin/python3",
            "version": "3.11.7",
            "apt": False,
            "reason": "No module named 'apt_pkg'",
            "system_python_has_apt": True,
        },
        memory_mib=15900,
        cpu__cores=4,
        root_fs__used_percent=91,
        packages__unfinished=[{"name": "nvidia-kernel-dkms", "status": "half-configured"}],
        packages__lock={"pid": 812, "command": "/usr/bin/unattended-upgrade", "waited": 60},
        clock__synchronised=False,
        fstab=[{"line": 3, "text": "UUID=1 /", "reason": "2 of at least 3 fields (device, mount point, type)"}],
        addresses=[dict(GOOD["addresses"][0], reachable=False, detail="Name or service not known")],
        secure_boot={
            "state": "enabled",
            "enforced": True,
            "source": "mokutil",
            "keys": [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}],
        },
    )


def test_all_findings_come_in_one_run():
    found = judge(broken_everywhere(), driver_version="535", driver_flavour="open")
    assert bad(found) == {
        "node.os",
        "node.interpreter",
        "node.ram",
        "node.ram_per_gpu",
        "node.cores_per_gpu",
        "node.root_fs",
        "node.packages",
        "node.package_lock",
        "node.clock",
        "node.fstab",
        "node.package_source",
        "driver.version",
        "driver.flavour",
        "node.secure_boot",
    }


def test_unsupported_system_names_the_supported_ones():
    one = only(judge(facts(os__id="rhel", os__version="9.4", os__name="RHEL 9.4")), "node.os")
    assert one.status == "fail" and "debian 12 (tested)" in one.expected and "ubuntu 22.04 (stand-in)" in one.expected


def test_missing_os_release_is_not_ok():
    system = {"id": "", "version": "", "codename": "", "name": ""}
    assert only(judge(facts(os=system)), "node.os").status == "fail"


@pytest.mark.parametrize(("machine", "status"), [("x86_64", "ok"), ("aarch64", "warn"), ("ppc64le", "fail")])
def test_architecture(machine, status):
    assert only(judge(facts(architecture=machine)), "node.architecture").status == status


def test_pyenv_interpreter_gets_the_exact_setting():
    one = only(judge(broken_everywhere()), "node.interpreter")
    assert one.status == "fail"
    assert "ansible_python_interpreter: /usr/bin/python3" in one.hint
    assert "/root/.pyenv/versions/3.11.7/bin/python3" in one.value


def test_interpreter_without_the_apt_package_is_told_to_install_it():
    machine = facts(interpreter__apt=False, interpreter__reason="x", interpreter__system_python_has_apt=False)
    assert "python3-apt" in only(judge(machine), "node.interpreter").hint


@pytest.mark.parametrize(("mib", "status"), [(32768, "ok"), (31200, "ok"), (31129, "fail"), (16000, "fail")])
def test_ram_minimum_allows_for_what_the_kernel_keeps(mib, status):
    assert only(judge(facts(gpus=("1eb8",), memory_mib=mib, cpu__cores=8)), "node.ram").status == status


def test_ram_against_gpu_memory_of_the_table():
    one = only(judge(facts(memory_mib=1000000)), "node.ram_per_gpu")
    assert one.status == "fail"
    assert one.expected == "at least 1280 GiB" and "2 x 640 GiB" in one.source
    assert "preflight_ram_per_gpu_memory" in one.hint


def test_ram_factor_is_a_variable():
    assert only(judge(facts(memory_mib=1000000), ram_per_gpu_memory=1.0), "node.ram_per_gpu").status == "ok"


def test_gpu_of_unknown_memory_asks_for_it():
    one = only(judge(facts(gpus=("2684",))), "node.ram_per_gpu")
    assert one.status == "warn" and "preflight_gpu_memory_mib" in one.hint and "10de:2684" in one.value
    assert only(judge(facts(gpus=("2684",)), gpu_memory_mib=24564), "node.ram_per_gpu").status == "ok"


@pytest.mark.parametrize(
    ("cores", "status", "source"),
    [
        (15, "fail", "preflight_cores_per_gpu_min"),
        (16, "warn", "preflight_cores_per_gpu_recommended"),
        (31, "warn", "preflight_cores_per_gpu_recommended"),
        (32, "ok", "preflight_cores_per_gpu_recommended"),
        (None, "error", "sysfs"),
    ],
)
def test_physical_cores_for_eight_gpus(cores, status, source):
    one = only(judge(facts(cpu__cores=cores)), "node.cores_per_gpu")
    assert (one.status, one.source) == (status, source)


@pytest.mark.parametrize(("used", "status"), [(84, "ok"), (85, "fail"), (100, "fail"), (None, "error")])
def test_root_file_system_stays_below_the_limit(used, status):
    assert only(judge(facts(root_fs__used_percent=used)), "node.root_fs").status == status


def test_root_file_system_without_inodes():
    one = only(judge(facts(root_fs__inodes_percent=99)), "node.root_fs")
    assert one.status == "fail" and "inodes" in one.value


def test_half_configured_packages_are_named_with_the_repair():
    packages = [{"name": "nvidia-kernel-dkms", "status": "half-configured"}]
    one = only(judge(facts(packages__unfinished=packages, packages__interrupted=True)), "node.packages")
    assert one.status == "fail" and "dpkg --configure -a" in one.hint
    assert "nvidia-kernel-dkms is half-configured" in one.value and "killed" in one.value


def test_own_killed_run_is_repaired_by_this_one():
    machine = facts(
        packages__unfinished=[{"name": "nvidia-kernel-dkms", "status": "unpacked"}],
        packages__transaction={"started": "2026-11-30T09:00:00Z"},
    )
    one = only(judge(machine), "node.packages")
    assert one.status == "warn" and "will be repaired by this run" in one.hint
    assert "2026-11-30T09:00:00Z" in one.value and "nvidia-kernel-dkms" in one.value


def test_lost_package_database_is_an_error():
    assert only(judge(facts(packages__readable=False)), "node.packages").status == "error"


def test_lock_that_stays_held_names_its_holder():
    lock = {"pid": 812, "command": "/usr/bin/python3 /usr/bin/unattended-upgrade", "waited": 60}
    one = only(judge(facts(packages__lock=lock)), "node.package_lock")
    assert one.status == "fail" and "812" in one.value and "unattended-upgrade" in one.value and "60 s" in one.value


@pytest.mark.parametrize(
    ("synchronised", "required", "container", "status"),
    [
        (True, True, None, "ok"),
        (False, True, None, "fail"),
        (False, False, None, "warn"),
        (None, True, None, "error"),
        (None, False, None, "warn"),
        (False, True, "docker", "skipped"),
        (None, True, "docker", "skipped"),
        (True, True, "docker", "ok"),
    ],
)
def test_clock(synchronised, required, container, status):
    machine = facts(clock__synchronised=synchronised, virtualisation__container=container)
    assert only(judge(machine, require_clock_sync=required), "node.clock").status == status


def test_broken_fstab_line_is_named_with_number_and_text():
    bad_line = {"line": 3, "text": "UUID=1 /", "reason": "2 of at least 3 fields"}
    one = only(judge(facts(fstab=[bad_line])), "node.fstab")
    assert one.status == "fail" and "line 3" in one.value and "UUID=1 /" in one.value


@pytest.mark.parametrize(
    ("gcc", "container", "status"),
    [
        ({"kernel": 12, "default": 12}, None, "ok"),
        ({"kernel": 12, "default": None}, None, "ok"),
        ({"kernel": 12, "default": 13}, None, "warn"),
        ({"kernel": None, "default": 13}, None, "skipped"),
        ({"kernel": 15, "default": 12}, "docker", "skipped"),
    ],
)
def test_krn_03_other_compiler_than_the_kernels_is_seen_before_the_build(gcc, container, status):
    one = only(judge(facts(compiler=gcc, virtualisation__container=container)), "node.compiler")
    assert one.status == status
    assert status != "warn" or "gcc-12" in one.hint


def test_unreachable_source_names_address_reason_and_file():
    entry = dict(GOOD["addresses"][0], reachable=False, detail="Connection refused")
    one = only(judge(facts(addresses=[entry])), "node.package_source")
    text = describe(one.as_dict())
    assert one.status == "fail"
    assert (
        "http://mirror.example.com/debian bookworm" in text and "refused" in text and "/etc/apt/sources.list:1" in text
    )


def test_source_of_the_driver_names_its_variable():
    entry = dict(GOOD["addresses"][0], origin="nvidia_driver_repo_uri", reachable=False, detail="Connection refused")
    assert "nvidia_driver_repo_uri" in only(judge(facts(addresses=[entry])), "node.package_source").hint


def test_source_that_cannot_be_checked_is_skipped_with_the_reason():
    entry = dict(GOOD["addresses"][0], reachable=None, detail="a medium in a drive is not checked")
    one = only(judge(facts(addresses=[entry])), "node.package_source")
    assert (one.status, one.hint) == ("skipped", "a medium in a drive is not checked")


def test_malformed_sources_and_no_source_at_all():
    machine = facts(addresses=[], sources_error="Malformed entry 1 in list file /etc/apt/sources.list.d/bad.list")
    found = [one for one in judge(machine) if one.check == "node.package_source"]
    assert [one.status for one in found] == ["fail"] and "bad.list" in found[0].value
    assert only(judge(facts(addresses=[])), "node.package_source").value == "none"


def test_addresses_that_were_not_asked_are_skipped():
    machine = facts()
    del machine["addresses"]
    assert only(judge(machine), "node.package_source").status == "skipped"


@pytest.mark.parametrize(
    ("gpus", "expect", "status"),
    [
        (8, True, "ok"),
        (0, True, "fail"),
        (0, False, "ok"),
        (8, False, "ok"),
        (8, 8, "ok"),
        (7, 8, "fail"),
        (8, 4, "fail"),
        (0, 0, "ok"),
        (8, "true", "ok"),
        (0, "true", "fail"),
        (0, "false", "ok"),
        (8, "8", "ok"),
        (8, "some", "fail"),
        (8, -1, "fail"),
        (8, None, "fail"),
    ],
)
def test_svc_08_expected_gpus(gpus, expect, status):
    one = only(judge(facts(gpus=("2330",) * gpus), expect_gpus=expect), "node.gpus")
    assert (one.status, one.source) == (status, "preflight_expect_gpus")


def test_svc_08_machine_without_gpu_passes_where_none_is_expected():
    found = judge(facts(gpus=()), expect_gpus=False)
    assert bad(found) == set()
    assert only(found, "node.ram_per_gpu").status == "skipped"
    assert only(found, "node.cores_per_gpu").status == "skipped"


def test_unknown_gpu_is_shown_and_one_for_guests_too():
    machine = facts(gpus=("3500",))
    machine["gpus"].append(gpu("2330", 1, driver="vfio-pci"))
    found = judge(machine, driver_flavour="open")
    assert only(found, "node.gpu_known").target == "10de:3500"
    assert only(found, "node.gpu_bound").value == "vfio-pci"


@pytest.mark.parametrize(
    ("version", "word"),
    [
        ("", "not set"),
        (None, "not set"),
        ("535", "535"),
        ("535.*", "535.*"),
        ("latest", "latest"),
        (535, "535"),
        ("999.10.01", "999.10.01"),
    ],
)
def test_driver_version_has_to_be_exact_and_known(version, word):
    one = only(judge(facts(), driver_version=version), "driver.version")
    assert one.status == "fail" and word in one.value and "nvidia_driver_version" in one.source


@pytest.mark.parametrize("version", ["580.65.06-1", "1:580.65.06-0ubuntu0.22.04.1"])
def test_driver_version_may_be_that_of_a_package(version):
    found = judge(facts(), driver_version=version, cuda_releases=["13.0"])
    assert bad(found) == set()
    assert only(found, "driver.cuda").value == "driver 580.65.06"


def test_ended_branch_is_a_warning_that_names_living_ones():
    found = judge(facts(), driver_version="535.261.03")
    one = only(found, "driver.branch")
    assert one.status == "warn" and "2026-06" in one.value and "580, 595, 620" in one.hint
    assert bad(found) == set()


@pytest.mark.parametrize(
    ("gpus", "version", "flavour", "checks"),
    [
        (("1db6",), "580.65.06", "open", {"driver.flavour"}),
        (("1db6",), "595.58.03", "auto", {"driver.gpu"}),
        (("2901",), "535.261.03", "auto", {"driver.gpu"}),
        (("2901",), "580.65.06", "proprietary", {"driver.flavour"}),
        (("2901",), "535.261.03", "proprietary", {"driver.gpu", "driver.flavour"}),
        (("1db6", "2901"), "580.65.06", "auto", {"driver.flavour"}),
        (("2330",), "580.65.06", "closed", {"driver.flavour"}),
        (("3500",), "580.65.06", "auto", {"driver.flavour"}),
        (("1db6", "2330"), "580.65.06", "auto", set()),
    ],
)
def test_drv_08_version_and_flavour_against_the_gpus(gpus, version, flavour, checks):
    assert bad(judge(facts(gpus=gpus), driver_version=version, driver_flavour=flavour)) == checks


def test_drv_08_message_names_card_id_and_variable():
    one = only(judge(facts(gpus=("2901",)), driver_flavour="proprietary"), "driver.flavour")
    text = describe(one.as_dict())
    assert "B200 (10de:2901)" in text and "nvidia_driver_flavour" in text and "open" in text


def test_unknown_source_names_the_known_ones():
    one = only(judge(facts(), driver_source="runfile"), "driver.source")
    assert one.status == "fail" and "distro, cuda_repo, local_repo" in one.expected


@pytest.mark.parametrize(
    ("repo", "variable"),
    [
        ({}, "nvidia_driver_repo_uri"),
        ({"repo_uri": "https://mirror.example.com/cuda"}, "nvidia_driver_repo_key"),
        (
            {"repo_uri": "https://mirror.example.com/cuda", "repo_key": "key.asc", "key_text": "no key"},
            "nvidia_driver_repo_key",
        ),
    ],
)
def test_repository_that_is_not_given_in_full_is_seen_before_changes(repo, variable):
    one = only(judge(facts(), driver_source="cuda_repo", driver_repo=repo), "driver.repository")
    assert one.status == "fail" and variable in one.value


@pytest.mark.parametrize(
    ("components", "status"),
    [(["compute"], "ok"), (["compute", "video", "mps"], "ok"), ([], "fail"), (["cuda"], "fail"), ("compute", "fail")],
)
def test_components_of_the_driver(components, status):
    one = only(judge(facts(), driver_components=components), "driver.components")
    assert (one.status, one.source) == (status, "nvidia_driver_components")


def test_absent_driver_needs_no_version():
    found = judge(facts(), driver_state="absent", driver_version="")
    assert bad(found) == set()
    assert only(found, "driver.version").status == "skipped"


ENFORCED = {"state": "enabled", "enforced": True, "source": "mokutil", "keys": []}


def test_krn_05_unsigned_modules_are_seen_before_changes_with_both_facts():
    keys = [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]
    one = only(judge(facts(secure_boot=dict(ENFORCED, keys=keys))), "node.secure_boot")
    assert one.status == "fail"
    assert "Secure Boot is enabled" in one.value and "/var/lib/dkms/mok.pub is not enrolled" in one.value
    assert "mokutil --import /var/lib/dkms/mok.pub" in one.hint and "never switched off" in one.hint


def test_krn_05_node_without_a_key_is_told_to_make_one():
    one = only(judge(facts(secure_boot=ENFORCED)), "node.secure_boot")
    assert one.status == "fail" and "no signing key" in one.value and "generate_mok" in one.hint


def test_krn_05_enrolled_key_is_enough():
    keys = [{"path": "/var/lib/dkms/mok.pub", "enrolled": True}]
    assert only(judge(facts(secure_boot=dict(ENFORCED, keys=keys))), "node.secure_boot").status == "ok"


@pytest.mark.parametrize(
    ("source", "prebuilt", "status"),
    [("distro", True, "ok"), ("distro", False, "fail"), ("cuda_repo", True, "fail")],
)
def test_krn_05_signed_modules_of_the_distribution(source, prebuilt, status):
    machine = facts(os__id="ubuntu", os__version="22.04", secure_boot=ENFORCED)
    found = judge(machine, driver_source=source, driver_prefer_prebuilt=prebuilt)
    assert only(found, "node.secure_boot").status == status


@pytest.mark.parametrize(("container", "status"), [(None, "error"), ("docker", "skipped")])
def test_unknown_secure_boot_is_never_ok(container, status):
    state = {"state": "unknown", "enforced": None, "source": "efivars"}
    found = judge(facts(secure_boot=state, virtualisation__container=container))
    assert only(found, "node.secure_boot").status == status


@pytest.mark.parametrize(
    ("release", "driver", "status"),
    [
        ("13.0", "570.158.01", "fail"),
        ("12.8", "570.158.01", "ok"),
        ("12.4", "595.58.03", "ok"),
        ("11.8.0", "595.58.03", "ok"),
        ("14.0", "595.58.03", "fail"),
        ("12", "595.58.03", "fail"),
        (12.4, "595.58.03", "ok"),
    ],
)
def test_cud_05_cuda_against_the_driver(release, driver, status):
    found = judge(facts(), driver_version=driver, cuda_releases=[release])
    assert only(found, "driver.cuda").status == status


def test_cud_05_refusal_names_minimum_and_ways_out_and_can_be_a_warning():
    one = only(judge(facts(), driver_version="570.158.01", cuda_releases=["13.0"]), "driver.cuda")
    assert "580.65.06" in one.expected
    assert "12.x" in one.hint and "cuda-compat-13-0" in one.hint and "preflight_cuda_policy: warn" in one.hint
    found = judge(facts(), driver_version="570.158.01", cuda_releases=["13.0"], cuda_policy="warn")
    assert only(found, "driver.cuda").status == "warn"


def test_cuda_that_is_newer_than_the_driver_mentions_what_is_missing():
    one = only(judge(facts(), driver_version="535.261.03", cuda_releases=["12.8"]), "driver.cuda")
    assert one.status == "ok" and "PTX" in one.hint


def test_cuda_that_the_card_no_longer_runs():
    one = only(judge(facts(gpus=("1db6",)), cuda_releases=["13.0"]), "driver.cuda")
    assert one.status == "fail" and "V100" in one.value


def test_accepted_failures_become_warnings_but_the_unknown_stays_an_error():
    machine = facts(memory_mib=1000, cpu__cores=None)
    found = judge(machine, accept=["node.ram", "node.cores_per_gpu"])
    assert only(found, "node.ram").status == "warn" and "preflight_accept" in only(found, "node.ram").hint
    assert only(found, "node.cores_per_gpu").status == "error"
