"""The profile of kernel settings: TUN-02 and TUN-03, and what makes a second run change nothing."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _sysctl, _sysctl_plan
from tuning_tree import OWN, ReadOnly, Strict, Tree

OLD_GUIDE = {
    "kernel.pid_max": {"value": 65536, "policy": "floor", "reason": "an old guide"},
    "fs.file-max": {"value": 2097152, "policy": "floor", "reason": "an old guide"},
    "net.core.somaxconn": {"value": 1024, "policy": "floor", "reason": "an old guide"},
}
MODERN = {"kernel.pid_max": 4194304, "fs.file-max": 9223372036854775807, "net.core.somaxconn": 4096}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.fixture
def modern(tree):
    for name, value in MODERN.items():
        tree.sysctl(name, value)
    return tree


def run(tree, profile, **more):
    return _sysctl_plan.run(profile, root=tree.root, **more)


def settings(tree):
    return [line for line in tree.read(OWN).splitlines() if line and not line.startswith("#")]


def names(entries):
    return [entry["name"] for entry in entries]


# TUN-03 ---------------------------------------------------------------------------------------------------------------


def test_tun_03_values_of_old_guides_lower_nothing(modern):
    result = run(modern, OLD_GUIDE)
    assert settings(modern) == []
    assert result["live"] == []
    assert {name: int(modern.value(name)) for name in MODERN} == MODERN


def test_tun_03_the_report_names_live_and_wanted(modern):
    kept = {entry["name"]: (entry["live"], entry["wanted"]) for entry in run(modern, OLD_GUIDE)["kept"]}
    assert kept == {
        "kernel.pid_max": ("4194304", "65536"),
        "fs.file-max": ("9223372036854775807", "2097152"),
        "net.core.somaxconn": ("4096", "1024"),
    }


def test_tun_03_with_the_switch_they_are_written(modern):
    profile = {name: {**entry, "policy": "set"} for name, entry in OLD_GUIDE.items()}
    result = run(modern, profile)
    assert settings(modern) == ["fs.file-max = 2097152", "kernel.pid_max = 65536", "net.core.somaxconn = 1024"]
    assert modern.value("kernel.pid_max") == "65536"
    assert len(result["live"]) == 3
    assert not run(modern, profile)["changed"]


def test_tun_03_a_higher_value_of_another_file_is_kept_too(tree):
    tree.sysctl("kernel.pid_max", 32768).write("/usr/lib/sysctl.d/50-pid-max.conf", "kernel.pid_max = 4194304\n")
    result = run(tree, {"kernel.pid_max": {"value": 65536, "policy": "floor"}})
    assert settings(tree) == []
    assert result["kept"][0]["origin"] == "/usr/lib/sysctl.d/50-pid-max.conf"
    assert tree.value("kernel.pid_max") == "4194304", "what the next boot sets anyway"


def test_a_floor_stays_in_the_file_once_it_made_the_live_value(tree):
    tree.sysctl("fs.inotify.max_user_instances", 128)
    profile = {"fs.inotify.max_user_instances": {"value": 8192, "policy": "floor"}}
    assert run(tree, profile)["changed"]
    assert tree.value("fs.inotify.max_user_instances") == "8192"
    assert settings(tree) == ["fs.inotify.max_user_instances = 8192"]
    again = run(tree, profile)
    assert not again["changed"]
    assert again["kept"] == []


def test_a_floor_that_is_taken_down_later_is_not_lowered(tree):
    tree.sysctl("vm.max_map_count", 65530)
    run(tree, {"vm.max_map_count": {"value": 1048576, "policy": "floor"}})
    result = run(tree, {"vm.max_map_count": {"value": 262144, "policy": "floor"}})
    assert not result["changed"]
    assert result["kept"][0]["kept"] == "1048576"
    run(tree, {"vm.max_map_count": {"value": 262144, "policy": "set"}})
    assert tree.value("vm.max_map_count") == "262144"


def test_a_floor_that_reaches_what_another_file_has_is_left_to_it(tree):
    tree.sysctl("vm.max_map_count", 1048576).write("/usr/lib/sysctl.d/10-map.conf", "vm.max_map_count=1048576\n")
    result = run(tree, {"vm.max_map_count": {"value": 1048576, "policy": "floor"}})
    assert settings(tree) == []
    assert result["kept"] == []


def test_of_several_numbers_each_is_a_floor(tree):
    tree.sysctl("net.ipv4.tcp_rmem", "4096\t131072\t6291456")
    profile = {"net.ipv4.tcp_rmem": {"value": [4096, 87380, 16777216], "policy": "floor"}}
    run(tree, profile)
    assert settings(tree) == ["net.ipv4.tcp_rmem = 4096 131072 16777216"]
    assert not run(tree, profile)["changed"]


def test_a_range_is_widened_never_narrowed(tree):
    tree.sysctl("net.ipv4.ip_local_port_range", "32768\t60999")
    run(tree, {"net.ipv4.ip_local_port_range": {"value": "40000 65000", "policy": "floor"}})
    assert settings(tree) == ["net.ipv4.ip_local_port_range = 32768 65000"]


def test_blanks_alone_are_no_difference(tree):
    tree.sysctl("net.ipv4.ip_local_port_range", "32768\t60999")
    result = run(tree, {"net.ipv4.ip_local_port_range": "32768 60999"})
    assert result["live"] == []


# TUN-02 ---------------------------------------------------------------------------------------------------------------


def test_tun_02_the_file_is_written_where_proc_sys_is_read_only(tree):
    tree.sysctl("vm.swappiness", 60).sysctl("vm.overcommit_memory", 1)
    profile = {"vm.swappiness": 10, "vm.overcommit_memory": 1}
    result = run(tree, profile, live=ReadOnly(tree.root))
    assert settings(tree) == ["vm.overcommit_memory = 1", "vm.swappiness = 10"]
    assert result["not_applied"] == [{"name": "vm.swappiness", "reason": "read-only /proc/sys"}]
    again = run(tree, profile, live=ReadOnly(tree.root))
    assert not again["changed"]
    assert again["not_applied"] == result["not_applied"]


def test_tun_02_some_keys_read_only(tree):
    tree.sysctl("vm.swappiness", 60).sysctl("kernel.panic", 0)

    class Some(ReadOnly):
        def write(self, path, value):
            return _sysctl.Live.write(self, path, value)

    result = run(tree, {"vm.swappiness": 10, "kernel.panic": 10}, live=Some(tree.root, {"vm.swappiness"}))
    assert names(result["not_applied"]) == ["vm.swappiness"]
    assert tree.value("kernel.panic") == "10"


def test_tun_02_a_writable_tree_gives_an_empty_list(tree):
    tree.sysctl("vm.swappiness", 60)
    assert run(tree, {"vm.swappiness": 10})["not_applied"] == []
    assert tree.value("vm.swappiness") == "10"


def test_tun_02_a_missing_sysctl_d_is_made(tree):
    tree.sysctl("vm.swappiness", 60)
    assert not tree.exists("/etc")
    run(tree, {"vm.swappiness": 10})
    assert tree.exists(OWN)
    assert (tree.path / OWN.lstrip("/")).stat().st_mode & 0o777 == 0o644


def test_tun_02_a_bad_value_is_an_error_that_names_key_and_value_and_stays_out_of_the_file(tree):
    tree.sysctl("vm.overcommit_memory", 0)
    with pytest.raises(_sysctl_plan.ProfileError, match="vm.overcommit_memory cannot have the value 7"):
        run(tree, {"vm.overcommit_memory": 7}, live=Strict(tree.root, "vm.overcommit_memory"))
    assert not tree.exists(OWN)


def test_tun_02_a_real_einval_is_that_error(tree, monkeypatch):
    tree.sysctl("vm.overcommit_memory", 0)

    def refuse(*_args, **_more):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(_sysctl, "open", refuse, raising=False)
    with pytest.raises(_sysctl_plan.ProfileError, match="Invalid argument"):
        run(tree, {"vm.overcommit_memory": 7})


@pytest.mark.parametrize(
    ("number", "reason"), [(30, "read-only /proc/sys"), (2, "does not know"), (1, "refused by the kernel")]
)
def test_tun_02_other_refusals_are_reported(tree, monkeypatch, number, reason):
    tree.sysctl("vm.swappiness", 60)

    def refuse(*_args, **_more):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_sysctl, "open", refuse, raising=False)
    assert reason in run(tree, {"vm.swappiness": 10})["not_applied"][0]["reason"]


def test_a_key_that_the_kernel_does_not_know_is_written_so_that_the_boot_passes_over_it(tree):
    tree.write("/proc/sys/vm/swappiness", "60\n")
    profile = {"net.bridge.bridge-nf-call-iptables": 1}
    result = run(tree, profile)
    assert settings(tree) == ["-net.bridge.bridge-nf-call-iptables = 1"]
    assert "module may not be loaded" in result["not_applied"][0]["reason"]
    assert not run(tree, profile)["changed"]


# Other files ----------------------------------------------------------------------------------------------------------


def test_a_later_file_is_reported_as_the_winner_and_the_live_value_left_to_it(tree):
    tree.sysctl("vm.swappiness", 60).write("/etc/sysctl.d/95-other.conf", "\nvm.swappiness = 60\n")
    result = run(tree, {"vm.swappiness": 10})
    assert tree.value("vm.swappiness") == "60"
    assert result["foreign"] == [
        {
            "name": "vm.swappiness",
            "file": "/etc/sysctl.d/95-other.conf",
            "line": 2,
            "value": "60",
            "wins_at_boot": True,
            "wins_sysctl_system": True,
        }
    ]


def test_an_earlier_file_is_reported_and_does_not_win(tree):
    tree.sysctl("vm.swappiness", 60).write("/etc/sysctl.d/20-a.conf", "vm.swappiness = 60\n")
    result = run(tree, {"vm.swappiness": 10})
    assert tree.value("vm.swappiness") == "10"
    assert not result["foreign"][0]["wins_at_boot"]


def test_sysctl_conf_wins_by_hand_only(tree):
    tree.sysctl("vm.swappiness", 60).write("/etc/sysctl.conf", "vm.swappiness = 60\n")
    foreign = run(tree, {"vm.swappiness": 10})["foreign"][0]
    assert (foreign["wins_at_boot"], foreign["wins_sysctl_system"]) == (False, True)


def test_a_key_never_to_be_set_is_reported_where_a_file_sets_it(tree):
    tree.write("/etc/sysctl.d/10-guide.conf", "dev.i915.enable_rc6 = 0\n")
    result = run(tree, {"dev.i915.enable_rc6": {"policy": "never", "reason": "no kernel setting"}})
    assert names(result["foreign"]) == ["dev.i915.enable_rc6"]
    assert settings(tree) == []
    assert result["not_applied"] == []


# The file, check mode and removal -------------------------------------------------------------------------------------


def test_the_file_says_whose_it_is_and_why_in_a_stable_order(tree):
    tree.sysctl("vm.swappiness", 60).sysctl("kernel.panic", 0)
    one = {
        "vm.swappiness": {"value": 10, "reason": "Only  if\nswap comes back.", "source": "tuned"},
        "kernel.panic": 10,
    }
    run(tree, one)
    text = tree.read(OWN)
    assert text.startswith("# Managed by the aiinfra.gpu_node collection (role tuning): changes here are lost.\n")
    assert "# Only if swap comes back. [tuned]\nvm.swappiness = 10\n" in text
    assert not run(tree, dict(reversed(list(one.items()))))["changed"]


def test_check_mode_predicts_and_changes_nothing(tree):
    tree.sysctl("vm.swappiness", 60)
    result = run(tree, {"vm.swappiness": 10}, check_mode=True)
    assert result["changed"]
    assert tree.value("vm.swappiness") == "60"
    assert not tree.exists(OWN)
    assert [entry["before"] for entry in result["diff"]] == ["", "vm.swappiness = 60\n"]
    run(tree, {"vm.swappiness": 10})
    assert not run(tree, {"vm.swappiness": 10}, check_mode=True)["changed"]


def test_absent_removes_the_file_and_leaves_live_values(tree):
    tree.sysctl("vm.swappiness", 60)
    run(tree, {"vm.swappiness": 10})
    assert run(tree, {}, state="absent")["changed"]
    assert not tree.exists(OWN)
    assert tree.value("vm.swappiness") == "10"
    assert not run(tree, {}, state="absent")["changed"]


# Bad profiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (True, "vm.x has the boolean value true"),
        ({"value": False}, "vm.x has the boolean value false"),
        ("yes", "vm.x has the boolean value yes"),
        ([1, True], "vm.x has the boolean value true"),
        (None, "vm.x has no value"),
        ("  ", "vm.x has no value"),
        ([], "vm.x has no value"),
        (1.5, "vm.x has the value 1.5"),
        ("1\n2", "line break"),
        ({"value": "bbr", "policy": "floor"}, "whole numbers"),
        ({"value": 1, "policy": "raise"}, "allowed are set, floor, never"),
        ({"value": 1, "state": "absent"}, "unknown field state"),
    ],
)
def test_a_bad_entry_is_refused_by_name(entry, message):
    with pytest.raises(_sysctl_plan.ProfileError, match=message):
        _sysctl_plan.read_profile({"vm.x": entry})


@pytest.mark.parametrize("name", ["net.ipv4.conf.*.rp_filter", "../etc/passwd", "vm..x", "", "vm x", "vm."])
def test_a_bad_name_is_refused(name):
    with pytest.raises(_sysctl_plan.ProfileError, match="is not the name of one kernel setting"):
        _sysctl_plan.read_profile({name: 1})


def test_all_faults_come_at_once():
    with pytest.raises(_sysctl_plan.ProfileError) as caught:
        _sysctl_plan.read_profile({"vm.a": True, "vm.b": None, "vm.c": 1, "vm/c": 2})
    assert len(str(caught.value).split("\n")) == 3


@pytest.mark.parametrize("path", ["/etc/sysctl.conf", "/etc/sysctl.d/90-gpu-node", "/usr/lib/sysctl.d/x.conf"])
def test_a_file_that_the_boot_does_not_read_is_refused(tree, path):
    with pytest.raises(_sysctl_plan.ProfileError, match="nothing else is read at boot"):
        run(tree, {}, path=path)
