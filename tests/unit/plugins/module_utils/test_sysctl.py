"""Who wins among the files that set kernel settings, at boot and with ``sysctl --system``."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _sysctl
from tuning_tree import OWN, Tree


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("vm.swappiness", "vm/swappiness"),
        ("vm/swappiness", "vm/swappiness"),
        ("net.ipv4.conf.enp3s0/200.forwarding", "net/ipv4/conf/enp3s0.200/forwarding"),
        ("net/ipv4/conf/enp3s0.200/forwarding", "net/ipv4/conf/enp3s0.200/forwarding"),
    ],
)
def test_the_first_separator_says_which_is_which(name, path):
    assert _sysctl.to_path(name) == path
    assert _sysctl.to_path(_sysctl.to_name(path)) == path


def test_lines_that_are_no_assignments_are_passed_over():
    text = "# a = 1\n; b = 2\n\nnonsense\n -c.d =  3\t4 \n-e.*\nf.g=\n"
    found = [(one.path, one.value, one.line) for one in _sysctl.parse(text, "/x.conf")]
    assert found == [("c/d", "3 4", 5), ("e/*", None, 6), ("f/g", "", 7)]


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def winner(tree, name, order=_sysctl.BOOT, own=None):
    found = _sysctl.Tree(tree.root, OWN).winner(_sysctl.to_path(name), order, own)
    return None if found is None else (found.file, found.value)


def test_the_last_name_wins_whatever_its_directory(tree):
    tree.write("/etc/sysctl.d/10-a.conf", "vm.swappiness = 1\n")
    tree.write("/usr/lib/sysctl.d/50-b.conf", "vm.swappiness = 2\n")
    assert winner(tree, "vm.swappiness") == ("/usr/lib/sysctl.d/50-b.conf", "2")


def test_a_name_in_etc_hides_the_same_name_elsewhere(tree):
    tree.write("/etc/sysctl.d/50-pid-max.conf", "")
    tree.write("/usr/lib/sysctl.d/50-pid-max.conf", "kernel.pid_max = 4194304\n")
    assert winner(tree, "kernel.pid_max") is None


def test_a_link_to_null_hides_too(tree):
    tree.link("/etc/sysctl.d/50-pid-max.conf", "/dev/null")
    tree.write("/usr/lib/sysctl.d/50-pid-max.conf", "kernel.pid_max = 4194304\n")
    assert winner(tree, "kernel.pid_max") is None


def test_sysctl_conf_is_last_for_procps_and_unknown_to_the_boot(tree):
    tree.write("/etc/sysctl.conf", "vm.swappiness = 60\n").write("/etc/sysctl.d/99-z.conf", "vm.swappiness = 5\n")
    assert winner(tree, "vm.swappiness") == ("/etc/sysctl.d/99-z.conf", "5")
    assert winner(tree, "vm.swappiness", _sysctl.SYSCTL_SYSTEM) == ("/etc/sysctl.conf", "60")


def test_debian_12_links_sysctl_conf_into_the_tree(tree):
    tree.write("/etc/sysctl.conf", "vm.swappiness = 60\n").link("/etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")
    assert winner(tree, "vm.swappiness", own={"vm/swappiness": "10"}) == ("/etc/sysctl.d/99-sysctl.conf", "60")


def test_only_names_that_end_in_conf_count(tree):
    tree.write("/etc/sysctl.d/99-old.conf.dpkg-old", "vm.swappiness = 60\n")
    tree.write("/etc/sysctl.d/README.sysctl", "vm.swappiness = 61\n")
    assert winner(tree, "vm.swappiness") is None


def test_a_key_in_full_beats_a_later_pattern_and_a_minus_takes_it_out(tree):
    tree.write("/usr/lib/sysctl.d/50-default.conf", "net.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n")
    tree.write("/etc/sysctl.d/10-a.conf", "net.ipv4.conf.eth0.rp_filter = 1\n")
    assert winner(tree, "net.ipv4.conf.eth0.rp_filter") == ("/etc/sysctl.d/10-a.conf", "1")
    assert winner(tree, "net.ipv4.conf.eth1.rp_filter") == ("/usr/lib/sysctl.d/50-default.conf", "2")
    assert winner(tree, "net.ipv4.conf.all.rp_filter") is None
    assert winner(tree, "net.ipv4.conf.a.b.rp_filter") is None


def test_the_own_file_can_be_left_out_or_asked_with_other_content(tree):
    tree.write(OWN, "vm.swappiness = 10\n").write("/etc/sysctl.d/20-a.conf", "vm.swappiness = 20\n")
    assert winner(tree, "vm.swappiness") == (OWN, "10")
    assert winner(tree, "vm.swappiness", own={}) == ("/etc/sysctl.d/20-a.conf", "20")
    assert winner(tree, "vm.swappiness", own={"vm/swappiness": "7"}) == (OWN, "7")


def test_a_container_is_recognised_by_its_marks(tree):
    assert _sysctl.container_kind(tree.root) == ""
    assert _sysctl.container_kind(tree.write("/.dockerenv", "").root) == "docker"
    assert _sysctl.container_kind(tree.write("/run/systemd/container", "lxc\n").root) == "lxc"


def test_tun_02_in_a_container_only_namespaced_keys_can_be_written(tree):
    tree.sysctl("vm.swappiness", 60).sysctl("net.core.somaxconn", 128).sysctl("kernel.shmmax", 1)
    live = _sysctl.Live(tree.root, "docker")
    assert live.obstacle("vm/swappiness") == _sysctl.HOST_KEY
    assert live.obstacle("net/core/somaxconn") is None
    assert live.obstacle("kernel/shmmax") is None
    assert live.obstacle("net/bridge/bridge-nf-call-iptables") == _sysctl.UNKNOWN_KEY


@pytest.mark.parametrize(("text", "found"), [("4096 131072\t6291456", (4096, 131072, 6291456)), ("-1", (-1,))])
def test_numbers_are_read_from_any_blanks(text, found):
    assert _sysctl.numbers(text) == found


@pytest.mark.parametrize("text", ["", "bbr", "1_000", "0x10", "1 x"])
def test_text_has_no_numbers(text):
    assert _sysctl.numbers(text) is None
