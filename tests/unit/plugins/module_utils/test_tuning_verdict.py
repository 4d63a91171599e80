"""From facts and wishes to files and findings."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _tuning_plan, _tuning_verdict
from tuning_tree import OWN

DEFAULTS = yaml.safe_load((Path(__file__).parents[4] / "roles/tuning/defaults/main.yml").read_text())

LIMITS = {
    "DefaultLimitMEMLOCK": "infinity",
    "DefaultLimitMEMLOCKSoft": "infinity",
    "DefaultLimitNOFILE": "1048576",
    "DefaultLimitNOFILESoft": "65536",
}


def line(value, file=OWN):
    return {"file": file, "line": 3, "value": str(value)}


@pytest.fixture
def wants():
    return {
        "sysctl": {
            "vm.overcommit_memory": {"value": 1, "reason": "x", "source": "guide"},
            "kernel.pid_max": {"value": 65536, "policy": "floor"},
            "dev.i915.enable_rc6": {"policy": "never", "reason": "no kernel setting"},
        },
        "sysctl_file": OWN,
        "swap_off": True,
        "thp": "madvise",
        "governor": "performance",
        "aspm": "performance",
        "limits": True,
        "memlock": "infinity",
        "nofile": "65536:1048576",
        "i915": {"enable_dc": 0},
        "peer_traffic": "auto",
        "power_limit": {},
        "power_program": "",
    }


def gpu(**more):
    return {
        "address": "0000:17:00.0",
        "device": "2330",
        "driver": "nvidia",
        "acs_redirect": [],
        "iommu": "identity",
        **more,
    }


@pytest.fixture
def facts(wants):
    """A bare-metal machine on which everything is as wanted."""

    def setting(live, boot, by_hand=None):
        return {"live": live, "obstacle": None, "boot": boot, "sysctl_system": by_hand or boot}

    found = {
        "container": "",
        "virtual": False,
        "page_size": 4096,
        "nr_open": 1048576,
        "sysctl": {
            "vm.overcommit_memory": setting("1", line(1)),
            "kernel.pid_max": setting("4194304", line(4194304, "/usr/lib/sysctl.d/50-pid-max.conf")),
            "dev.i915.enable_rc6": setting(None, None),
        },
        "swap": {
            "container": "",
            "active": [],
            "sources": [],
            "broken_fstab_lines": [],
            "doubtful_fstab_lines": [],
            "swappiness": "60",
        },
        "thp": {"available": ["always", "madvise", "never"], "current": "madvise", "obstacle": None},
        "governor": {"available": ["performance", "powersave"], "current": {"performance": 64}, "obstacle": None},
        "aspm": {"available": ["default", "performance"], "current": "performance", "obstacle": None},
        "limits": {"manager": dict(LIMITS), "files": []},
        "i915": {"present": True, "parameters": {"enable_dc": "0"}},
        "files": {},
        "power": {"loaded": True, "cards": None, "error": ""},
        "pci": {"gpus": [gpu(), gpu(address="0000:65:00.0")], "iommus": ["dmar0"], "cmdline": ["quiet"]},
    }
    found["files"] = {entry["path"]: entry["content"] for entry in _tuning_plan.plan(found, wants)["files"]}
    return found


def judge(facts, wants, check, target=None):
    found = [
        finding
        for finding in _tuning_verdict.findings(facts, wants)
        if finding.check == check and target in (None, finding.target)
    ]
    assert len(found) == 1, found
    return found[0]


def test_a_machine_as_wanted_is_all_ok_with_nothing_pending(facts, wants):
    assert {finding.status for finding in _tuning_verdict.findings(facts, wants)} == {"ok"}
    plan = _tuning_plan.plan(facts, wants)
    assert (plan["errors"], plan["values_pending"], plan["reload_pending"]) == ([], [], [])


# Kernel settings ------------------------------------------------------------------------------------------------------


def test_tun_03_a_kept_floor_says_live_and_wanted(facts, wants):
    found = judge(facts, wants, "tuning.sysctl", "kernel.pid_max")
    assert (found.status, found.value, found.expected) == ("ok", "4194304", "at least 65536")
    assert "50-pid-max.conf" in found.hint


def test_tun_02_not_applied_here_is_skipped_with_the_reason(facts, wants):
    facts["sysctl"]["vm.overcommit_memory"].update(live="0", obstacle="read-only /proc/sys")
    found = judge(facts, wants, "tuning.sysctl", "vm.overcommit_memory")
    assert (found.status, found.hint) == ("skipped", "not applied here: read-only /proc/sys")


def test_a_live_value_that_could_be_right_and_is_not_fails(facts, wants):
    facts["sysctl"]["vm.overcommit_memory"]["live"] = "0"
    assert judge(facts, wants, "tuning.sysctl", "vm.overcommit_memory").status == "fail"


def test_a_right_live_value_that_the_next_boot_loses_fails(facts, wants):
    facts["sysctl"]["vm.overcommit_memory"].update(boot=None, sysctl_system=None)
    found = judge(facts, wants, "tuning.sysctl", "vm.overcommit_memory")
    assert found.status == "fail"
    assert "next boot loses it" in found.hint


def test_a_file_that_wins_is_named(facts, wants):
    facts["sysctl"]["vm.overcommit_memory"]["boot"] = line(0, "/etc/sysctl.d/99-sysctl.conf")
    found = judge(facts, wants, "tuning.sysctl", "vm.overcommit_memory")
    assert found.status == "warn"
    assert "/etc/sysctl.d/99-sysctl.conf line 3 sets 0" in found.hint


def test_a_file_that_wins_only_by_hand_is_named(facts, wants):
    facts["sysctl"]["vm.overcommit_memory"]["sysctl_system"] = line(0, "/etc/sysctl.conf")
    found = judge(facts, wants, "tuning.sysctl", "vm.overcommit_memory")
    assert found.status == "warn"
    assert "sysctl --system" in found.hint


def test_a_floor_that_only_the_running_kernel_reaches_is_ok(facts, wants):
    facts["sysctl"]["kernel.pid_max"].update(boot=None, sysctl_system=None)
    assert judge(facts, wants, "tuning.sysctl", "kernel.pid_max").status == "ok"


def test_a_key_never_to_be_set_warns_where_a_file_sets_it(facts, wants):
    facts["sysctl"]["dev.i915.enable_rc6"]["boot"] = line(0, "/etc/sysctl.d/10-guide.conf")
    found = judge(facts, wants, "tuning.sysctl", "dev.i915.enable_rc6")
    assert found.status == "warn"
    assert "no kernel setting" in found.hint


def test_switched_off_is_skipped(facts, wants):
    wants.update(sysctl=None, swap_off=False, thp="keep", governor="keep", aspm="keep", limits=False, i915={})
    assert {found.status for found in _tuning_verdict.findings(facts, wants)} == {"skipped", "ok"}
    assert {entry["content"] for entry in _tuning_plan.plan(facts, wants)["files"]} == {None}


# Swap -----------------------------------------------------------------------------------------------------------------


def test_tun_01_active_swap_turns_verify_red(facts, wants):
    facts["swap"]["active"] = [{"path": "/dev/sda2"}]
    found = judge(facts, wants, "tuning.swap")
    assert (found.status, found.value) == ("fail", ["/dev/sda2"])


def test_tun_01_swappiness_0_does_not_help(facts, wants):
    facts["swap"].update(active=[{"path": "/dev/sda2"}], swappiness="0")
    found = judge(facts, wants, "tuning.swap")
    assert found.status == "fail"
    assert "vm.swappiness 0 does not turn swap off" in found.hint


def test_tun_01_a_source_that_is_left_turns_verify_red(facts, wants):
    facts["swap"]["sources"] = ["unit dev-zram0.swap"]
    assert judge(facts, wants, "tuning.swap").status == "fail"


def test_the_hosts_swap_in_a_container_is_skipped(facts, wants):
    facts["container"] = "docker"
    facts["swap"]["active"] = [{"path": "/dev/sda2"}]
    assert "not applied here" in judge(facts, wants, "tuning.swap").hint


def test_a_broken_line_warns_and_a_doubtful_one_is_an_error_of_the_plan(facts, wants):
    facts["swap"]["broken_fstab_lines"] = [{"line": 4, "text": "UUID=x swap"}]
    assert judge(facts, wants, "tuning.swap").status == "warn"
    facts["swap"]["doubtful_fstab_lines"] = [{"line": 4, "text": "UUID=x swap"}]
    assert "line 4" in _tuning_plan.plan(facts, wants)["errors"][0]
    wants["swap_off"] = False
    assert _tuning_plan.plan(facts, wants)["errors"] == []


# Settings below /sys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "status", "hint"),
    [
        ("thp", {"current": "always"}, "fail", "Run the tuning role again"),
        ("thp", {"current": "always", "obstacle": "read-only /sys"}, "skipped", "not applied here: read-only /sys"),
        ("governor", {"current": {"performance": 1, "powersave": 63}}, "fail", "Run the tuning role again"),
        ("governor", {"current": {"userspace": 1}, "available": ["userspace"]}, "warn", "tuning_cpu_governor can be"),
        ("aspm", {"current": "default"}, "warn", "firmware"),
    ],
)
def test_settings_below_sys(facts, wants, name, change, status, hint):
    facts[name].update(change)
    found = judge(facts, wants, "tuning." + name)
    assert found.status == status
    assert hint in found.hint


def test_a_machine_without_the_setting_is_skipped_and_gets_no_line(facts, wants):
    facts.update(governor=None, aspm=None)
    assert judge(facts, wants, "tuning.governor").status == "skipped"
    text = _tuning_plan.plan(facts, wants)["files"][0]["content"]
    assert "transparent_hugepage" in text
    assert "scaling_governor" not in text


def test_a_drifted_value_is_pending_but_never_what_firmware_may_keep(facts, wants):
    facts["thp"]["current"] = "always"
    facts["aspm"]["current"] = "default"
    plan = _tuning_plan.plan(facts, wants)
    assert plan["values_pending"] == ["thp"]
    assert plan["values_writable"]


def test_what_cannot_be_applied_is_one_line_grouped_by_reason(facts, wants):
    for name in ("thp", "governor"):
        facts[name].update(current="always", obstacle="read-only /sys")
    result = {"not_applied": [{"name": "vm.x", "reason": "read-only /proc/sys"}]}
    entries = _tuning_plan.not_applied(facts, wants, result, {"skipped": True})
    text = _tuning_plan.describe_not_applied(entries)
    assert text == "Written, not applied here: vm.x (read-only /proc/sys); thp, governor (read-only /sys)"


# Limits ---------------------------------------------------------------------------------------------------------------


def test_limits_are_written_for_services_and_logins(facts, wants):
    texts = {entry["path"]: entry["content"] for entry in _tuning_plan.plan(facts, wants)["files"]}
    assert (
        "[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=65536:1048576\n"
        in texts[_tuning_plan.SYSTEMD_LIMITS]
    )
    logins = texts[_tuning_plan.LOGIN_LIMITS].splitlines()
    assert "root hard nofile  1048576" in logins
    assert "*    soft memlock unlimited" in logins


def test_limits_are_never_lowered(facts, wants):
    wants.update(memlock="1M", nofile="512:4096")
    facts["limits"]["files"] = [
        {"file": "/etc/systemd/system.conf", "line": 1, "name": "DefaultLimitMEMLOCK", "value": "1G"}
    ]
    limits = _tuning_plan.effective_limits(facts, wants)
    assert limits == {"DefaultLimitMEMLOCK": (1 << 30, 1 << 30), "DefaultLimitNOFILE": (1024, 524288)}


def test_a_later_file_that_wins_is_named_and_not_fought(facts, wants):
    facts["limits"]["files"] = [
        {"file": "/etc/systemd/system.conf.d/99-x.conf", "line": 2, "name": "DefaultLimitNOFILE", "value": "1024"}
    ]
    facts["limits"]["manager"].update(DefaultLimitNOFILE="1024", DefaultLimitNOFILESoft="1024")
    assert judge(facts, wants, "tuning.limits", "DefaultLimitNOFILE").status == "warn"
    assert _tuning_plan.plan(facts, wants)["reload_pending"] == []


def test_svc_05_a_reload_is_pending_only_while_systemd_runs_with_other_limits(facts, wants):
    assert _tuning_plan.plan(facts, wants)["reload_pending"] == []
    facts["limits"]["manager"]["DefaultLimitMEMLOCK"] = "8388608"
    assert _tuning_plan.plan(facts, wants)["reload_pending"] == ["DefaultLimitMEMLOCK"]
    assert judge(facts, wants, "tuning.limits", "DefaultLimitMEMLOCK").status == "fail"
    facts["limits"]["manager"] = None
    assert _tuning_plan.plan(facts, wants)["reload_pending"] == []
    assert judge(facts, wants, "tuning.limits", "DefaultLimitMEMLOCK").status == "skipped"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nofile", "2000000", "above fs.nr_open"),
        ("nofile", "infinity", "above fs.nr_open"),
        ("nofile", "many", "tuning_limits_nofile: 'many' is no limit"),
        ("nofile", "9:1", "above the hard one"),
        ("memlock", "unlimited", "tuning_limits_memlock: 'unlimited' is no limit; allowed are"),
    ],
)
def test_bad_limits_are_refused_by_name(facts, wants, name, value, message):
    wants[name] = value
    assert message in _tuning_plan.plan(facts, wants)["errors"][0]


def test_a_limit_file_that_was_changed_fails(facts, wants):
    facts["files"][_tuning_plan.LOGIN_LIMITS] = "something else\n"
    assert judge(facts, wants, "tuning.limits", _tuning_plan.LOGIN_LIMITS).status == "fail"


# Intel graphics -------------------------------------------------------------------------------------------------------


def test_i915_options_only_where_it_is_loaded(facts, wants):
    path = _tuning_plan.I915_OPTIONS
    assert facts["files"][path].endswith("options i915 enable_dc=0\n")
    facts["i915"] = {"present": False, "parameters": {}}
    assert judge(facts, wants, "tuning.i915").status == "skipped"
    assert {entry["path"]: entry["content"] for entry in _tuning_plan.plan(facts, wants)["files"]}[path] is None


def test_enable_rc6_is_refused_with_what_replaces_it(facts, wants):
    wants["i915"] = {"enable_rc6": 0}
    error = _tuning_plan.plan(facts, wants)["errors"][0]
    assert "removed in Linux 4.16" in error
    assert "enable_dc" in error


def test_a_parameter_waits_for_the_next_boot(facts, wants):
    facts["i915"]["parameters"]["enable_dc"] = "-1"
    assert judge(facts, wants, "tuning.i915").status == "warn"


# TUN-04 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "wanted", "status"),
    [
        ({"acs_redirect": ["0000:00:01.0"], "iommu": "DMA-FQ"}, "auto", "warn"),
        ({"acs_redirect": ["0000:00:01.0"]}, "wanted", "warn"),
        ({"iommu": "DMA"}, "wanted", "warn"),
        ({"iommu": None}, "wanted", "warn"),
        ({}, "wanted", "ok"),
        ({"acs_redirect": ["0000:00:01.0"]}, "unwanted", "skipped"),
        ({"acs_redirect": ["0000:00:01.0"], "driver": "vfio-pci"}, "wanted", "skipped"),
        ({"acs_redirect": None}, "wanted", "error"),
    ],
)
def test_tun_04_verdicts_on_bare_metal(facts, wants, change, wanted, status):
    facts["pci"]["gpus"][0].update(change)
    wants["peer_traffic"] = wanted
    assert judge(facts, wants, "tuning.peer_traffic").status == status


@pytest.mark.parametrize("place", [{"virtual": True}, {"container": "docker"}])
def test_tun_04_is_skipped_where_the_host_decides(facts, wants, place):
    facts["pci"]["gpus"][0]["acs_redirect"] = ["0000:00:01.0"]
    facts.update(place)
    assert judge(facts, wants, "tuning.peer_traffic").status == "skipped"


def test_tun_04_one_gpu_has_no_peer(facts, wants):
    facts["pci"]["gpus"] = [gpu(acs_redirect=["0000:00:01.0"])]
    assert judge(facts, wants, "tuning.peer_traffic").hint == "fewer than two GPUs"


def test_tun_04_the_command_line_decides_where_groups_have_no_type(facts, wants):
    for entry in facts["pci"]["gpus"]:
        entry["iommu"] = None
    facts["pci"]["cmdline"] = ["quiet", "iommu=pt"]
    assert judge(facts, wants, "tuning.peer_traffic").status == "ok"


def test_tun_04_changes_nothing(facts, wants):
    before = _tuning_plan.plan(facts, wants)
    facts["pci"]["gpus"][0]["acs_redirect"] = ["0000:00:01.0"]
    assert _tuning_plan.plan(facts, wants) == before


# The profile ----------------------------------------------------------------------------------------------------------


def test_the_default_profile_is_valid_and_every_entry_says_why():
    from ansible_collections.aiinfra.gpu_node.plugins.module_utils._sysctl_plan import read_profile

    for item in read_profile(DEFAULTS["tuning_sysctl"]):
        assert item.source, item.name
        assert item.reason != "asked for by the inventory", item.name


def test_tun_03_no_default_lowers_what_a_modern_system_has():
    profile = DEFAULTS["tuning_sysctl"]
    floors = {
        "kernel.pid_max",
        "fs.file-max",
        "net.core.somaxconn",
        "kernel.shmmax",
        "kernel.shmall",
        "vm.max_map_count",
    }
    assert {name for name in floors if profile[name]["policy"] == "floor"} == floors
    assert profile["net.ipv4.tcp_tw_reuse"]["policy"] == "never"


def test_overrides_merge_key_by_key():
    base = {"a.b": {"value": 1, "policy": "floor", "reason": "r"}, "c.d": {"value": 2}}
    before = copy.deepcopy(base)
    merged = _tuning_plan.profile(base, {"a/b": 5, "c.d": None, "e.f": 7, "g.h": {"value": 8, "policy": "floor"}})
    assert merged == {
        "a.b": {"value": 5, "policy": "floor", "reason": "r"},
        "e.f": {"value": 7},
        "g.h": {"value": 8, "policy": "floor"},
    }
    assert base == before


def test_shmmax_reaches_the_largest_card_and_shmall_follows_in_pages():
    base = DEFAULTS["tuning_sysctl"]
    merged = _tuning_plan.profile(base, {}, 81559 << 20, 4096)
    assert merged["kernel.shmmax"]["value"] == 81559 << 20
    assert merged["kernel.shmall"]["value"] * 4096 >= 81559 << 20
    assert _tuning_plan.profile(base, {}, 0, 4096) == base


def test_an_explicit_shmmax_is_left_alone():
    merged = _tuning_plan.profile({"kernel.shmmax": {"value": 1, "policy": "set"}}, {}, 1 << 40)
    assert merged["kernel.shmmax"]["value"] == 1


def test_the_largest_card_by_the_table(facts):
    cards = [{"device": "2330", "memory_mib": 81559}, {"device": "1DB6", "memory_mib": 32768}]
    assert _tuning_plan.largest_card_bytes(facts, cards) == 81559 << 20
    assert _tuning_plan.largest_card_bytes({"pci": {"gpus": []}}, cards) == 0
