"""Facts of preflight from fixture trees: a DGX-like machine, an old one, a container, a broken package database."""

from __future__ import annotations

import fcntl
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _clock, _fstab, _node_info
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

DEBIAN_12 = """PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
VERSION_CODENAME=bookworm
ID=debian
HOME_URL="https://www.debian.org/"
"""
#: From a server with kernel 6.1.
MEMINFO = """MemTotal:       {kib} kB
MemFree:        1043912 kB
MemAvailable:   1877332 kB
"""
PROC_VERSION = (
    "Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0, "
    "GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)\n"
)
STANZA = """Package: {name}
Status: install ok {status}
Priority: optional
Architecture: amd64
Version: 1.0-1
"""


class Machine:
    """Writes the files of a machine below a directory."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.write("etc/os-release", DEBIAN_12)
        self.write("proc/meminfo", MEMINFO.format(kib=2113491324))
        self.write("proc/version", PROC_VERSION)
        self.write("etc/fstab", "UUID=1-2 / ext4 defaults 0 1\n")
        self.packages(bash="installed")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def packages(self, **states: str) -> None:
        stanzas = [STANZA.format(name=name.replace("_", "-"), status=status) for name, status in states.items()]
        self.write("var/lib/dpkg/status", "\n".join(stanzas))

    def pci(self, address: str, device: str, class_code: str = "0x030200", subsystem: str = "0x16c1") -> None:
        base = f"sys/bus/pci/devices/{address}/"
        for name, value in (
            ("vendor", "0x10de"),
            ("device", device),
            ("class", class_code),
            ("subsystem_vendor", "0x10de"),
            ("subsystem_device", subsystem),
        ):
            self.write(base + name, value + "\n")

    def processors(self, sockets: int, cores: int, threads: int = 2) -> None:
        for core in range(sockets * cores):
            siblings = [core + sockets * cores * thread for thread in range(threads)]
            for number in siblings:
                text = ",".join(str(one) for one in siblings) + "\n"
                self.write(f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", text)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def collect(machine, runner, kernel_clock=True):
    return _node_info.collect(runner, str(machine.root), lambda: kernel_clock)


def test_machine_with_eight_h100(machine, fake_runner):
    for number in range(8):
        machine.pci(f"0000:{0x18 + number:02x}:00.0", "0x2330")
    for number in range(4):
        machine.pci(f"0000:{0x05 + number:02x}:00.0", "0x22a3", class_code="0x068000")
    machine.processors(sockets=2, cores=56)
    machine.write("sys/class/dmi/id/sys_vendor", "Example Computers\n")
    facts = collect(machine, fake_runner({"mokutil --sb-state": "SecureBoot disabled\n"}))
    assert [gpu["device"] for gpu in facts["gpus"]] == ["2330"] * 8
    assert len(facts["nvswitches"]) == 4
    assert facts["cpu"] == {"threads": 224, "cores": 112, "source": "sysfs"}
    assert facts["memory_mib"] == 2063956
    assert facts["os"] == {
        "id": "debian",
        "version": "12",
        "codename": "bookworm",
        "name": "Debian GNU/Linux 12 (bookworm)",
    }
    assert facts["virtualisation"] == {"container": None, "machine": None}
    assert facts["clock"] == {"synchronised": True, "source": "kernel"}
    assert facts["secure_boot"]["state"] == "disabled"
    assert facts["compiler"] == {"kernel": 12, "default": None}
    assert facts["fstab"] == []
    assert facts["packages"] == {
        "readable": True,
        "unfinished": [],
        "interrupted": False,
        "transaction": None,
        "lock": None,
    }


def test_processor_that_is_switched_off_does_not_count(machine):
    machine.processors(sockets=1, cores=4)
    (machine.root / "sys/devices/system/cpu/cpu3/topology/thread_siblings_list").unlink()
    (machine.root / "sys/devices/system/cpu/cpu7/topology/thread_siblings_list").unlink()
    machine.write("sys/devices/system/cpu/cpufreq/boost", "1\n")
    assert _node_info.cpu(str(machine.root)) == {"threads": 6, "cores": 3, "source": "sysfs"}


def test_cores_from_cpuinfo_without_sysfs(machine):
    block = "processor\t: {}\nphysical id\t: {}\ncore id\t\t: {}\n"
    blocks = [block.format(number, number % 2, number // 4) for number in range(8)]
    machine.write("proc/cpuinfo", "\n".join(blocks) + "\n")
    assert _node_info.cpu(str(machine.root)) == {"threads": 8, "cores": 4, "source": "cpuinfo"}


def test_processor_that_does_not_tell_its_cores(machine):
    machine.write("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n")
    assert _node_info.cpu(str(machine.root))["cores"] is None


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("run/systemd/container", "docker\n", "docker"),
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/environ", "PATH=/bin\0container=lxc\0", "lxc"),
    ],
)
def test_containers(machine, path, text, name):
    machine.write(path, text)
    assert _node_info.virtualisation(str(machine.root))["container"] == name


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "qemu"),
        ("VMware, Inc.", "VMware Virtual Platform", "vmware"),
        ("Microsoft Corporation", "Virtual Machine", "hyperv"),
        ("Microsoft Corporation", "Surface", None),
        ("Supermicro", "SYS-821GE", None),
    ],
)
def test_virtual_machines(machine, vendor, product, name):
    machine.write("sys/class/dmi/id/sys_vendor", vendor + "\n")
    machine.write("sys/class/dmi/id/product_name", product + "\n")
    assert _node_info.virtualisation(str(machine.root))["machine"] == name


def test_virtual_machine_that_only_the_processor_betrays(machine):
    machine.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n")
    assert _node_info.virtualisation(str(machine.root))["machine"] == "other"


def no_module(name):
    raise ImportError(f"No module named '{name}'")


def test_pyenv_interpreter_beside_a_good_system_python(fake_runner):
    runner = fake_runner({"/usr/bin/python3 -c": ""})
    facts = _node_info.interpreter(runner, "/root/.pyenv/versions/3.11.7/bin/python3", no_module)
    assert facts["path"] == "/root/.pyenv/versions/3.11.7/bin/python3"
    assert (facts["apt"], facts["system_python_has_apt"]) == (False, True)
    assert "apt_pkg" in facts["reason"]


def test_system_python_without_the_apt_package(fake_runner):
    runner = fake_runner(
        {"/usr/bin/python3 -c": CommandResult(1, err="ModuleNotFoundError: No module named 'apt_pkg'")}
    )
    facts = _node_info.interpreter(runner, "/usr/bin/python3", no_module)
    assert (facts["apt"], facts["system_python_has_apt"]) == (False, False)


def test_good_interpreter_runs_no_command(fake_runner):
    runner = fake_runner()
    facts = _node_info.interpreter(runner, "/usr/bin/python3", lambda name: None)
    assert facts["apt"] is True and runner.calls == []


def test_half_configured_package_database(machine):
    machine.packages(bash="installed", nvidia_kernel_dkms="half-configured", nvidia_driver="unpacked")
    machine.write("var/lib/dpkg/updates/0001", "Package: x\n")
    facts = _node_info.packages(str(machine.root))
    assert facts["unfinished"] == [
        {"name": "nvidia-kernel-dkms", "status": "half-configured"},
        {"name": "nvidia-driver", "status": "unpacked"},
    ]
    assert facts["interrupted"] is True


def test_mark_of_our_own_run_that_was_killed(machine):
    machine.write("var/lib/gpu_node/transaction.json", '{"started": "2026-11-30T10:00:00Z"}')
    assert _node_info.packages(str(machine.root))["transaction"] == {"started": "2026-11-30T10:00:00Z"}


def test_missing_package_database_is_told_apart_from_a_clean_one(machine):
    (machine.root / "var/lib/dpkg/status").unlink()
    assert _node_info.packages(str(machine.root))["readable"] is False


LOCKER = """
import fcntl, sys
handle = open(sys.argv[1], "w")
fcntl.lockf(handle, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locked(machine):
    machine.write("var/lib/dpkg/lock-frontend", "")
    path = str(machine.root / "var/lib/dpkg/lock-frontend")
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.stdin.close()


def test_lock_holder_is_named_and_the_lock_is_not_taken(machine, locked):
    holder = _node_info.lock_holder(str(machine.root))
    assert holder["pid"] == locked.pid
    assert "fcntl.lockf" in holder["command"] and "\n" not in holder["command"]


def test_wait_for_lock_gives_up_and_says_how_long_it_waited(machine, locked):
    ticks = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    holder = _node_info.wait_for_lock(str(machine.root), 3, sleep=lambda _seconds: None, clock=lambda: next(ticks))
    assert holder["pid"] == locked.pid and holder["waited"] == 3


def test_wait_for_lock_returns_as_soon_as_it_is_free(machine, locked):
    def release(_seconds):
        locked.stdin.close()
        locked.wait(60)

    assert _node_info.wait_for_lock(str(machine.root), 60, sleep=release) is None


def test_looking_at_a_free_lock_leaves_it_free(machine):
    machine.write("var/lib/dpkg/lock-frontend", "")
    assert _node_info.lock_holder(str(machine.root)) is None
    with open(machine.root / "var/lib/dpkg/lock-frontend", "r+", encoding="utf-8") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_lock_file_is_no_lock(machine):
    assert _node_info.wait_for_lock(str(machine.root), 0) is None


class Statvfs:
    f_frsize = 4096
    f_blocks, f_bfree, f_bavail = 1000000, 200000, 150000
    f_files, f_ffree, f_favail = 1000, 900, 900


def test_file_system_is_counted_as_df_does():
    facts = _node_info.file_system("/", lambda path: Statvfs)
    assert facts["used_percent"] == 85
    assert facts["size_mib"] == 3906
    assert facts["inodes_percent"] == 10


def test_file_system_without_fixed_inodes():
    class Btrfs(Statvfs):
        f_files = f_ffree = f_favail = 0

    assert _node_info.file_system("/", lambda path: Btrfs)["inodes_percent"] is None


def test_unreadable_file_system_is_unknown():
    def broken(_path):
        raise OSError("Input/output error")

    facts = _node_info.file_system("/", broken)
    assert facts["used_percent"] is None and "Input/output" in facts["reason"]


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        (PROC_VERSION, 12),
        ("Linux version 6.12.57+deb13-amd64 (x) (x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, GNU ld) #1\n", 14),
        (
            "Linux version 6.8.0-45-generic (b@x) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0-23ubuntu4) 13.2.0, ld) #45\n",
            13,
        ),
        ("Linux version 6.1.0 (clang version 17.0.1)\n", None),
    ],
)
def test_krn_03_compiler_of_the_kernel(machine, text, kernel):
    machine.write("proc/version", text)
    assert _node_info.compiler(str(machine.root)) == {"kernel": kernel, "default": None}


def test_krn_03_default_compiler(machine):
    (machine.root / "usr/bin").mkdir(parents=True)
    os.symlink("gcc-13", machine.root / "usr/bin/gcc")
    assert _node_info.compiler(str(machine.root)) == {"kernel": 12, "default": 13}


def test_krn_05_keys_are_looked_at_only_where_signatures_count(machine, fake_runner):
    machine.write("var/lib/dkms/mok.pub", "x")
    certificate = str(machine.root / "var/lib/dkms/mok.pub")
    answers = {
        "mokutil --sb-state": "SecureBoot enabled\n",
        f"mokutil --test-key {certificate}": f"{certificate} is not enrolled\n",
    }
    facts = collect(machine, fake_runner(answers))
    assert facts["secure_boot"]["enforced"] is True
    assert facts["secure_boot"]["keys"] == [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]


CHRONY = """Reference ID    : C0000201 (ntp.example.com)
Stratum         : 3
Leap status     : {}
"""


@pytest.mark.parametrize(
    ("kernel", "answers", "synchronised", "source"),
    [
        (True, {}, True, "kernel"),
        (False, {}, False, "kernel"),
        (False, {"chronyc": CHRONY.format("Normal")}, True, "chronyc"),
        (False, {"chronyc": CHRONY.format("Not synchronised")}, False, "chronyc"),
        (False, {"chronyc": CommandResult(1, "506 Cannot talk to daemon\n")}, False, "kernel"),
        (None, {"timedatectl": "yes\n"}, True, "timedatectl"),
        (None, {"timedatectl": "no\n"}, False, "timedatectl"),
        (None, {"timedatectl": CommandResult(1, err="Failed to connect to bus")}, None, "kernel"),
        (None, {}, None, "kernel"),
    ],
)
def test_clock(fake_runner, kernel, answers, synchronised, source):
    assert _clock.clock(fake_runner(answers), kernel) == {"synchronised": synchronised, "source": source}


def test_kernel_clock_answers_on_a_real_system():
    assert _clock.kernel_clock() in (True, False, None)


def test_fstab_that_is_well_formed():
    text = textwrap.dedent(
        """\
        # <file system> <mount point>   <type>  <options>       <dump>  <pass>
        UUID=0b1c-2d /               ext4    errors=remount-ro 0       1

        \t# indented comment
        UUID=3e4f /boot/efi vfat umask=0077
        /swapfile none swap sw 0 0
        LABEL=swap swap swap defaults
        nas.example.com:/models /srv/my\\040models nfs4 ro,nofail 0 0
        tmpfs /tmp tmpfs
        """
    )
    assert _fstab.problems(text) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("UUID=1 /", "2 of at least 3 fields"),
        ("/dev/sdb1", "1 of at least 3 fields"),
        ("/dev/sdb1 /srv/my models ext4 defaults 0 2", "7 fields"),
        ("/dev/sdb1 srv ext4 defaults 0 2", "mount point srv"),
        ("/dev/sdb1 /srv ext4 defaults zero 2", "dump field is zero"),
        ("/dev/sdb1 /srv ext4 defaults 0 two", "pass field is two"),
        ("/dev/sdb1 /srv ext4 # models", "comment"),
        ("<<<<<<< HEAD", "2 of at least 3 fields"),
    ],
)
def test_broken_fstab_lines_are_named(line, reason):
    found = _fstab.problems(f"# comment\nUUID=1 / ext4 defaults 0 1\n{line}\n")
    assert [one["line"] for one in found] == [3]
    assert found[0]["text"] == line and reason in found[0]["reason"]
