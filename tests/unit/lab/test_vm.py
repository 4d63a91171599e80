"""Machines that boot: QEMU's command line, the disk's hash and partition table, ssh configuration, the seed."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from gpulab import keys, overlay, paths, suites, vm, vm_image, vm_qemu, vm_ssh
from gpulab.plan import Plan
from gpulab.progress import LabError

WISH = Plan(suites.SUITES["bookworm"], "base", "packages", "repository", "image")


@pytest.fixture(name="folders")
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(vm, "MACHINES", tmp_path / "machines")
    monkeypatch.setattr(vm, "DISKS", tmp_path / "saved")
    monkeypatch.setattr(vm_ssh, "CONFIG", tmp_path / "ssh_config")
    monkeypatch.setattr(vm_ssh, "KEY", tmp_path / "keys" / "vm_ed25519")
    monkeypatch.setattr(paths, "KEYS", tmp_path / "keys")
    return tmp_path


def machine(folders: Path, name: str, **note: object) -> Path:
    """A machine's folder as `up` leaves it."""
    place = folders / "machines" / name
    place.mkdir(parents=True)
    content = {"wish": {"name": name, "gpus": 2, "model": "h100-sxm", "disk": ""}, "port": 40022, **note}
    (place / "machine.json").write_text(json.dumps(content))
    return place


def test_emulation_has_one_processor_and_kvm_two() -> None:
    emulated, virtual = vm_qemu.machine(kvm=False), vm_qemu.machine(kvm=True)
    assert emulated[emulated.index("-smp") + 1] == "1"
    assert any(word.startswith("tcg") for word in emulated)
    assert virtual[virtual.index("-smp") + 1] == "2"
    assert "q35,accel=kvm" in virtual
    assert not any("kvm" in word for word in emulated)


def test_a_machine_has_its_disks_in_order_a_closed_network_and_a_console(folders: Path) -> None:
    words = vm.command("one", 40022, kvm=False)
    drives = [word for word in words if word.startswith("file=")]
    place = folders / "machines" / "one"
    assert drives[0].startswith(f"file={place}/disk.qcow2,if=virtio,format=qcow2")
    assert drives[1].startswith(f"file={place}/seed.tar,if=virtio,format=raw")
    network = words[words.index("-nic") + 1]
    assert "restrict=on" in network and "hostfwd=tcp:127.0.0.1:40022-:22" in network
    assert any(f"path={place}/console.log" in word for word in words)
    assert words[words.index("-pidfile") + 1] == f"{place}/pid"


def test_a_comma_in_a_path_is_doubled_for_qemu() -> None:
    assert "file=/a,,b/disk" in vm_qemu.disk(Path("/a,b/disk"), "raw")[1]
    assert "path=/a,,b/log" in vm_qemu.console(Path("/a,b/log"))[1]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu vmx sse", True), ("fpu svm", True), ("fpu sse avx", False), ("vmxnet", False), ("", False)],
)
def test_kvm_needs_a_processor_that_virtualises(flags: str, expected: bool) -> None:
    assert vm_qemu.virtualises(f"processor\t: 0\nvmx flags\t: svm\nflags\t\t: {flags}\n") is expected


def test_no_processor_line_is_no_virtualisation() -> None:
    assert not vm_qemu.virtualises("")


def test_missing_tools_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm_qemu.shutil, "which", lambda tool, path=None: None)
    assert vm_qemu.missing() == ["qemu-system-x86", "qemu-utils", "openssh-client", "e2fsprogs"]


def test_the_partition_table_has_one_bootable_linux_partition() -> None:
    table = vm_image.partition_table(0x3F9A7C21, 4096)
    assert len(table) == 512 and table[-2:] == b"\x55\xaa"
    assert struct.unpack("<I", table[440:444]) == (0x3F9A7C21,)
    status, kind, first, size = struct.unpack("<B3xB3xII", table[446:462])
    assert (status, kind, first, size) == (0x80, 0x83, 2048, 2048)
    assert table[462:510] == b"\0" * 48


def test_the_disk_has_the_names_that_the_containers_pretend() -> None:
    names = vm_image.ident()
    assert names["LAB_DISK"] == "/dev/vda" and names["LAB_ROOT_PARTUUID"].startswith("3f9a7c21-")


@pytest.fixture(name="sources")
def _sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lab = tmp_path / "lab"
    (lab / "vm").mkdir(parents=True)
    (lab / "vm" / "prepare").write_text("one")
    (lab / "simgpu").write_text("one")
    for name in ("vm_image.py", "chroot.py"):
        (lab / name).write_text("one")
    monkeypatch.setattr(paths, "LAB", lab)
    monkeypatch.setattr(vm_image, "SOURCES", lab / "vm")
    monkeypatch.setattr(vm_image, "__file__", str(lab / "vm_image.py"))
    monkeypatch.setattr(overlay, "SIMGPU", lab / "simgpu")
    return lab


@pytest.mark.parametrize("edited", ["vm/prepare", "simgpu", "vm_image.py", "chroot.py"])
def test_the_disk_is_made_again_after_a_change_of_what_is_in_it(sources: Path, edited: str) -> None:
    before = vm_image.key(WISH)
    (sources / edited).write_text("two")
    assert vm_image.key(WISH) != before


def test_the_disk_follows_base_and_repositories_but_not_the_container_image(sources: Path) -> None:
    before = vm_image.key(WISH)
    suite = WISH.suite
    assert vm_image.key(Plan(suite, "other", "packages", "repository", "image")) != before
    assert vm_image.key(Plan(suite, "base", "packages", "other", "image")) != before
    assert vm_image.key(Plan(suite, "base", "packages", "repository", "other")) == before
    (sources / "vm_qemu.py").write_text("not in it")
    assert vm_image.key(WISH) == before


def test_the_guest_gets_its_unit_network_and_boot_loader_settings() -> None:
    keys_made = keys.complete()
    found = vm_image.files()
    assert "etc/systemd/system/gpu-node-lab-vm.service" in found
    assert b"10.0.2.15" in found["etc/systemd/network/20-lab.network"][0]
    assert b"GRUB_TERMINAL=serial" in found["etc/default/grub.d/lab-vm.cfg"][0]
    assert found["usr/lib/gpu-node-lab/prepare"][1] == 0o755
    assert keys.complete() is keys_made


def test_the_ssh_configuration_knows_every_machine() -> None:
    text = vm_ssh.config({"two": 40002, "one": 40001}, Path("/tmp/control"))
    blocks = text.split("Host ")
    assert blocks[1].startswith("one\n") and "Port 40001" in blocks[1]
    assert blocks[2].startswith("two\n") and "Port 40002" in blocks[2]
    assert blocks[3].startswith("*\n") and "ControlPersist" in blocks[3] and "IdentitiesOnly yes" in blocks[3]


def test_a_greeting_makes_an_ssh_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(2)
        port = server.getsockname()[1]
        monkeypatch.setattr(vm_ssh, "BANNER_TIMEOUT_S", 0.2)
        assert not vm_ssh.answers(port)  # connected, but nobody says a word
    assert not vm_ssh.answers(port)


def test_the_seed_carries_name_key_and_cards(folders: Path) -> None:
    (folders / "keys").mkdir()
    vm_ssh.KEY.write_text("private")
    vm_ssh.KEY.with_suffix(".pub").write_text("ssh-ed25519 AAAA lab\n")
    with tarfile.open(fileobj=io.BytesIO(vm.seed(vm.Wish("one", 2)))) as tar:
        content = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}
        assert tar.getmember("root/.ssh/authorized_keys").mode == 0o600
    assert content["etc/hostname"] == "one\n"
    assert content["root/.ssh/authorized_keys"].startswith("ssh-ed25519 AAAA")
    assert "gpu.count=2" in content["var/lib/simgpu/state"]


def test_a_pid_that_another_program_has_by_now_is_not_the_machine(folders: Path) -> None:
    place = machine(folders, "one")
    (place / "pid").write_text(f"{os.getpid()}\n")
    assert vm.pid_of("one") == 0
    (place / "pid").write_text("no number")
    assert vm.pid_of("one") == 0
    assert vm.pid_of("none") == 0


def test_down_ends_the_process_and_removes_everything(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm_ssh, "hang_up", lambda name: None)
    place = machine(folders, "one")
    # A stand-in for QEMU: something whose command line names the machine's folder.
    words = ["sh", "-c", "while read line; do :; done", str(place / "disk.qcow2")]
    child = subprocess.Popen(words, stdin=subprocess.PIPE)
    (place / "pid").write_text(str(child.pid))
    try:
        # Between fork and exec a process has no command line yet.
        deadline = time.monotonic() + 60
        while vm.pid_of("one") != child.pid:
            assert time.monotonic() < deadline
        assert vm.names() == ["one"]
        vm.down("one")
        assert child.wait(60) == -9
    finally:
        child.kill()
        child.stdin.close()
    assert not place.exists()


def test_a_start_that_fails_leaves_nothing_behind(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = folders / "base.raw"
    base.touch()
    (folders / "keys").mkdir()
    vm_ssh.KEY.with_suffix(".pub").write_text("ssh-ed25519 AAAA lab\n")
    monkeypatch.setattr(vm_image, "ensure", lambda: base)
    monkeypatch.setattr(vm_qemu, "overlay", lambda base, target: target.touch())

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(vm, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        vm.up(vm.Wish("one", 2))
    assert not (folders / "machines" / "one").exists()


def test_another_wish_for_an_existing_machine_is_refused(folders: Path) -> None:
    machine(folders, "one")
    with pytest.raises(LabError, match="other properties"):
        vm.up(vm.Wish("one", 4))


def test_an_unknown_machine_is_named(folders: Path) -> None:
    with pytest.raises(LabError, match="no machine none"):
        vm.reboot("none")
    with pytest.raises(LabError, match="no saved disk none"):
        vm.saved("none")
