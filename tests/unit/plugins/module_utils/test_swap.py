"""TUN-01: every source of swap is found, disabled for good, and nothing else is touched."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _swap
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult
from tuning_tree import Tree

NO_SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
SWAPS = NO_SWAPS + "/dev/sda2                               partition\t8388604\t\t1024\t\t-2\n"

FSTAB = b"""# /etc/fstab: static file system information.
# swap was on /dev/sda2 during installation
UUID=aaaa-bbbb / ext4 errors=remount-ro,x-swap=none 0 1
LABEL=swap /mnt/swap ext4 defaults 0 2
/swapfile\tnone\tswap\tsw\t0\t0
\xffbroken

UUID=cccc-dddd none swap sw,discard 0 0\r
/dev/sdb1 swap xfs noauto 0 0
  /dev/zd0 none swap
tmpfs /tmp tmpfs size=1G 0 0"""

FSTAB_AFTER = (
    FSTAB.replace(b"/swapfile\t", _swap.MARK.encode() + b"/swapfile\t")
    .replace(b"UUID=cccc", _swap.MARK.encode() + b"UUID=cccc")
    .replace(b"  /dev/zd0", _swap.MARK.encode() + b"  /dev/zd0")
)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path).write("/proc/swaps", NO_SWAPS).write("/proc/sys/vm/swappiness", "60\n")


@pytest.fixture
def runner(fake_runner):
    return fake_runner({"swapoff": ""})


def disable(tree, runner, **more):
    return _swap.disable(runner, tree.root, **more)


def sources(tree):
    return _swap.collect(tree.root).sources


def test_tun_01_only_lines_of_type_swap_are_taken_out_byte_for_byte(tree, runner):
    tree.write("/etc/fstab", FSTAB)
    result = disable(tree, runner)
    assert (tree.path / "etc/fstab").read_bytes() == FSTAB_AFTER
    assert result["fstab_lines"] == [5, 8, 10]
    assert result["diff"][0]["after_header"] == "/etc/fstab"


def test_tun_01_a_second_run_changes_nothing(tree, runner):
    tree.write("/etc/fstab", FSTAB).write("/etc/systemd/system/data.swap", "[Swap]\nWhat=/data\n")
    assert disable(tree, runner)["changed"]
    assert sources(tree) == []
    assert not disable(tree, runner)["changed"]


def test_tun_01_the_mode_of_fstab_is_kept(tree, runner):
    tree.write("/etc/fstab", "/swapfile none swap sw 0 0\n")
    (tree.path / "etc/fstab").chmod(0o640)
    disable(tree, runner)
    assert (tree.path / "etc/fstab").stat().st_mode & 0o777 == 0o640


def test_tun_01_generated_units_are_masked(tree, runner):
    tree.write("/run/systemd/generator/swapfile.swap", "[Swap]\n")
    tree.write("/run/systemd/generator.late/dev-nvme0n1p3.swap", "[Swap]\n")
    assert disable(tree, runner)["masked"] == ["dev-nvme0n1p3.swap", "swapfile.swap"]
    for name in ("dev-nvme0n1p3.swap", "swapfile.swap"):
        assert (tree.path / "etc/systemd/system" / name).readlink().as_posix() == "/dev/null"
    assert sources(tree) == []


def test_tun_01_a_unit_of_the_administrator_moves_aside_and_is_masked(tree, runner):
    tree.write("/etc/systemd/system/data.swap", "[Swap]\nWhat=/data\n")
    disable(tree, runner)
    assert tree.read("/etc/systemd/system/data.swap.gpu-node-off") == "[Swap]\nWhat=/data\n"
    assert (tree.path / "etc/systemd/system/data.swap").is_symlink()


@pytest.mark.parametrize("mask", ["link", "empty"])
def test_tun_01_a_masked_unit_is_no_source(tree, mask):
    tree.write("/usr/lib/systemd/system/data.swap", "[Swap]\n")
    if mask == "link":
        tree.link("/etc/systemd/system/data.swap", "/dev/null")
    else:
        tree.write("/etc/systemd/system/data.swap", "")
    assert sources(tree) == []


def test_tun_01_zram_tools(tree, runner):
    tree.write("/lib/systemd/system/zramswap.service", "[Service]\n").write("/etc/default/zramswap", "PERCENT=50\n")
    assert disable(tree, runner)["masked"] == ["zramswap.service"]
    assert sources(tree) == []


def test_tun_01_zram_generator_before_and_after_its_first_boot(tree, runner):
    tree.write("/usr/lib/systemd/system-generators/zram-generator", "elf")
    tree.write("/etc/systemd/zram-generator.conf", "[zram0]\nzram-size = ram / 2\n\n[zram1]\nmount-point = /var/z\n")
    tree.write("/etc/systemd/zram-generator.conf.d/2.conf", "[zram2]\n")
    assert sources(tree) == ["unit dev-zram0.swap", "unit dev-zram2.swap"]
    disable(tree, runner)
    tree.write("/run/systemd/generator/dev-zram0.swap", "[Swap]\n")
    assert sources(tree) == []


def test_tun_01_a_zram_configuration_without_the_generator_is_no_source(tree):
    tree.write("/etc/systemd/zram-generator.conf", "[zram0]\n")
    assert sources(tree) == []


def test_tun_01_active_swap_is_switched_off_by_path(tree, runner):
    tree.write("/proc/swaps", SWAPS).write("/proc/meminfo", "MemAvailable:  8000000 kB\n")
    result = disable(tree, runner)
    assert runner.calls == ["swapoff /dev/sda2"]
    assert result["changed"]


def test_tun_01_swappiness_0_is_not_off(tree, runner):
    tree.write("/proc/swaps", SWAPS).write("/proc/sys/vm/swappiness", "0\n")
    disable(tree, runner)
    assert runner.calls == ["swapoff /dev/sda2"]


def test_tun_01_check_mode_changes_nothing(tree, runner):
    tree.write("/proc/swaps", SWAPS).write("/etc/fstab", FSTAB)
    tree.write("/etc/systemd/system/data.swap", "[Swap]\n")
    result = disable(tree, runner, check_mode=True)
    assert result["changed"]
    assert [entry["after_header"] for entry in result["diff"]] == [
        "/etc/fstab",
        "/etc/systemd/system/data.swap",
        "/proc/swaps",
    ]
    assert runner.calls == []
    assert (tree.path / "etc/fstab").read_bytes() == FSTAB
    assert not (tree.path / "etc/systemd/system/data.swap").is_symlink()


def test_in_a_container_active_swap_is_the_hosts(tree, runner):
    tree.write("/proc/swaps", SWAPS).write("/.dockerenv", "").write("/etc/fstab", "/swapfile none swap sw 0 0\n")
    result = disable(tree, runner)
    assert runner.calls == []
    assert result["not_applied"] == [{"name": "swapoff /dev/sda2", "reason": "belongs to the host of this container"}]
    assert not disable(tree, runner)["changed"]


def test_swap_that_memory_cannot_take_in_stays_with_its_sources_gone(tree, runner):
    tree.write("/proc/swaps", SWAPS.replace("1024", "4194304")).write("/proc/meminfo", "MemAvailable:  1048576 kB\n")
    tree.write("/etc/fstab", "/dev/sda2 none swap sw 0 0\n")
    with pytest.raises(_swap.SwapError, match="4096 MiB are swapped out but only 1024 MiB"):
        disable(tree, runner)
    assert sources(tree) == []
    assert runner.calls == []


def test_a_swapoff_that_fails_is_an_error(tree, fake_runner):
    tree.write("/proc/swaps", SWAPS)
    with pytest.raises(_swap.SwapError, match="/dev/sda2: swapoff: command not found"):
        disable(tree, fake_runner())


def test_a_service_that_does_not_stop_is_an_error_after_all_else_is_done(tree, fake_runner):
    tree.write("/usr/lib/systemd/system/swapspace.service", "[Service]\n").write("/run/systemd/system/x", "")
    tree.write("/proc/swaps", SWAPS)
    runner = fake_runner(
        {"swapoff": "", "systemctl stop": CommandResult(1, "", "Job for swapspace.service timed out.")}
    )
    with pytest.raises(_swap.SwapError, match="swapspace.service could not be stopped .* next boot: Job for"):
        disable(tree, runner)
    assert sources(tree) == [] and runner.calls == ["systemctl stop swapspace.service", "swapoff /dev/sda2"]
    other = fake_runner({"systemctl stop": "", "swapoff": ""})
    (tree.path / "etc/systemd/system/swapspace.service").unlink()
    assert disable(tree, other)["changed"] and other.calls[0] == "systemctl stop swapspace.service"


def test_a_broken_line_that_speaks_of_swap_is_refused_before_any_change(tree, runner):
    text = "UUID=cccc-dddd swap\n/swapfile none swap sw 0 0\n"
    tree.write("/etc/fstab", text)
    with pytest.raises(_swap.SwapError, match=r"/etc/fstab line 1 has fewer than three fields.*tuning_swap_off"):
        disable(tree, runner)
    assert tree.read("/etc/fstab") == text


def test_a_machine_without_fstab_and_systemd(tmp_path, runner):
    result = _swap.disable(runner, str(tmp_path))
    assert not result["changed"]


def test_blanks_in_a_path_are_octal_escapes():
    text = NO_SWAPS + "/my\\040swap\\040(deleted)                file\t\t1048572\t\t0\t\t-3\n"
    assert _swap.parse_proc_swaps(text) == [_swap.Active("/my swap (deleted)", "file", 1048572, 0)]


def test_uninstall_puts_back_what_was_taken_out_of_use_and_nothing_else(tmp_path, runner):
    fstab = tmp_path / "etc/fstab"
    fstab.parent.mkdir()
    text = "UUID=1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n# /dev/sdb none swap sw 0 0\n"
    fstab.write_text(text)
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    own = "[Swap]\nWhat=/dev/sda2\n"
    (units / "dev-sda2.swap").write_text(own)
    (units / "dev-sdc.swap").symlink_to("/dev/null")
    _swap.disable(runner, str(tmp_path))
    assert "\n" + _swap.MARK in fstab.read_text() and (units / "dev-sda2.swap").is_symlink()
    foreseen = _swap.restore(str(tmp_path), check_mode=True)
    assert _swap.MARK in fstab.read_text()
    done = _swap.restore(str(tmp_path))
    assert foreseen["diff"] == done["diff"] and done["changed"]
    assert fstab.read_text() == text and (units / "dev-sda2.swap").read_text() == own
    # An administrator's mask is not ours.
    assert (units / "dev-sdc.swap").is_symlink()
    assert not _swap.restore(str(tmp_path))["changed"]
