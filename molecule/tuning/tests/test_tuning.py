"""What the role tuning leaves on a node, looked at without the role's own eyes."""

from __future__ import annotations

import pytest

SYSCTL = "/etc/sysctl.d/90-gpu-node.conf"


def settings(host):
    """Return name to value of the role's file of kernel settings."""
    lines = [line for line in host.file(SYSCTL).content_string.splitlines() if line and not line.startswith("#")]
    return dict(line.lstrip("-").split(" = ", 1) for line in lines)


@pytest.mark.parametrize(
    "path",
    [
        SYSCTL,
        "/etc/systemd/system.conf.d/60-gpu-node-limits.conf",
        "/etc/security/limits.d/90-gpu-node.conf",
    ],
)
def test_files_say_whose_they_are(host, path):
    file = host.file(path)
    assert file.content_string.startswith("# Managed by the aiinfra.gpu_node collection (role tuning)")
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)


def test_tun_01_no_source_of_swap_is_left(host):
    fstab = host.file("/etc/fstab").content_string.splitlines()
    assert not [line for line in fstab if not line.startswith("#") and line.split()[2:3] == ["swap"]]
    for unit in ("data.swap", "zramswap.service"):
        assert host.file(f"/etc/systemd/system/{unit}").linked_to == "/dev/null"
    assert host.run("systemctl is-active zramswap.service").stdout.strip() == "inactive"


def test_tun_01_lines_that_only_look_like_swap_are_untouched(host):
    fstab = host.file("/etc/fstab").content_string
    assert "\nLABEL=swap /srv/swap ext4 noauto,x-name=swap 0 2\n" in fstab
    assert ": /swapfile none swap sw 0 0\n" in fstab


def test_tun_02_the_file_is_written_although_nothing_can_be_applied_here(host):
    wanted = {"vm.overcommit_memory": "1", "kernel.panic": "10", "kernel.panic_on_oops": "1", "vm.panic_on_oom": "0"}
    found = settings(host)
    assert {name: found[name] for name in wanted} == wanted
    assert host.run("findmnt -no OPTIONS /proc/sys").stdout.startswith("ro"), "the role must not remount anything"


def test_tun_03_nothing_is_lowered(host):
    names = settings(host)
    assert "kernel.pid_max" not in names
    assert "fs.file-max" not in names
    assert "net.core.somaxconn" not in names


def test_svc_05_systemd_has_taken_up_the_limits_and_a_reload_left_it_healthy(host):
    shown = host.run("systemctl show -p DefaultLimitMEMLOCK -p DefaultLimitNOFILE -p DefaultLimitNOFILESoft").stdout
    assert sorted(shown.split()) == [
        "DefaultLimitMEMLOCK=infinity",
        "DefaultLimitNOFILE=1048576",
        "DefaultLimitNOFILESoft=65536",
    ]
    assert host.run("systemctl --failed --no-legend").stdout.strip() == ""


def test_the_files_are_valid_to_those_that_read_them(host):
    assert host.run("systemd-analyze cat-config systemd/system.conf").rc == 0
    tmpfiles = "/etc/tmpfiles.d/gpu-node-tuning.conf"
    if host.file(tmpfiles).exists:
        # /sys is read-only here, which the lines allow for; a line that cannot be read would be an error.
        assert host.run(f"systemd-tmpfiles --create {tmpfiles}").rc == 0
