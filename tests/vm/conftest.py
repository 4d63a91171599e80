"""Shared by the tests on virtual machines that really boot.

Without a processor that virtualises everything is emulated, so bounds are generous: a slow machine is no failure.
A converged disk is made once for today's code and kept: `gpulab vm list` does not show it, `make clean` removes it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPULAB = ROOT / "lab" / "bin" / "gpulab"
SSH_CONFIG = ROOT / "lab" / "cache" / "vm" / "ssh_config"

_spec = importlib.util.spec_from_file_location("lab_conftest", ROOT / "tests" / "lab" / "conftest.py")
lab = importlib.util.module_from_spec(_spec)
sys.modules["lab_conftest"] = lab
_spec.loader.exec_module(lab)


def pytest_configure(config):
    """Declare what the Makefile selects by."""
    config.addinivalue_line("markers", "short: part of `make test`, at most 12 minutes without KVM")


class Machine(lab.Node):
    """One virtual machine, with the inventory that reaches it."""

    #: The driver that cannot be built for kernel 6.12, and the one that can.
    OLD, NEW = "535.183.06", "550.163.01"
    FLAVOUR = "proprietary"

    def command(self, playbook: str, *arguments: str, **variables: object) -> list[str]:
        """Return the ansible-playbook command line for this machine."""
        words = ["ansible-playbook", playbook, "-i", "inventories/lab-vm", "-i", str(self.inventory)]
        words += ["--limit", self.name, *arguments]
        return [*words, "-e", json.dumps(variables)] if variables else words

    def sh(self, script: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell script on the machine."""
        done = subprocess.run(
            ["ssh", "-F", str(SSH_CONFIG), self.name, "bash -s"], input=script, capture_output=True, text=True
        )
        if check:
            assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done

    def converge(self, version: str = OLD) -> lab.Play:
        """Take the machine to a node that serves with a driver, and has something to go back to."""
        return self.play("site.yml", nvidia_driver_version=version, nvidia_driver_flavour=self.FLAVOUR).passed()

    def verify(self, version: str = OLD) -> lab.Play:
        """Run every verification; the caller judges."""
        return self.play("playbooks/verify.yml", nvidia_driver_version=version, nvidia_driver_flavour=self.FLAVOUR)

    def kernel(self) -> str:
        """Return the release that runs."""
        return self.out("uname -r")

    def boot_id(self) -> str:
        """Return what differs between two boots."""
        return self.out("cat /proc/sys/kernel/random/boot_id")

    def reboot(self) -> None:
        """Reboot in good order, through the boot loader."""
        subprocess.run([str(GPULAB), "vm", "reboot", self.name], check=True)

    def reboot_without_driver(self) -> None:
        """Reboot; the driver's daemons fail on a kernel without its module, so that the machine comes up degraded."""
        before = self.boot_id()
        subprocess.run([str(GPULAB), "vm", "reboot", self.name], check=False)
        assert self.boot_id() != before
        assert self.out("systemctl is-system-running || true") == "degraded"

    def power_cut(self) -> None:
        """Take the power away, and start again."""
        subprocess.run([str(GPULAB), "vm", "reboot", self.name, "--hard"], check=True)

    def cut_power(self, process: subprocess.Popen[bytes]) -> None:
        """Take the power away in the middle of a run; the run dies with it. Then start the machine again."""
        subprocess.run([str(GPULAB), "vm", "kill", self.name], check=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.power_cut()


@contextlib.contextmanager
def running_machine(tmp: Path, name: str, *up_arguments: str):
    """Bring a machine up, give it, and take it down whatever happened."""
    inventory = tmp / f"{name}.yml"
    text = f"gpu_nodes:\n  hosts:\n    {name}:\n      ansible_ssh_args: \"-F '{SSH_CONFIG}'\"\n"
    inventory.write_text(text, encoding="utf-8")
    subprocess.run([str(GPULAB), "vm", "down", name], check=True)
    try:
        subprocess.run([str(GPULAB), "vm", "up", name, *up_arguments], check=True)
        yield Machine(name, inventory)
    finally:
        subprocess.run([str(GPULAB), "vm", "down", name], check=True)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A machine on which nothing of ours has run."""
    with running_machine(tmp_path_factory.mktemp("vm"), "gpu-test-bare", "--gpus", "2") as machine:
        yield machine


def _code_key() -> str:
    """Return a hash over what decides how a converged machine looks."""
    sys.path.insert(0, str(ROOT / "lab"))
    from gpulab import vm_image
    from gpulab.hashing import digest, files_below
    from gpulab.plan import plan
    from gpulab.suites import SUITES

    parts = ("roles", "plugins", "playbooks", "files", "inventories/lab-vm")
    code = [path for part in parts for path in files_below(ROOT / part)]
    return digest(code, ROOT, vm_image.path_of(plan(SUITES["bookworm"])).name)


def converged_disk(tmp: Path, version: str) -> str:
    """Return the name of a saved disk on which site.yml has run; made in a container when today's code has none yet.

    Under emulation site.yml takes a quarter of an hour. That is spent once, by test_bare_machine.py.
    """
    name = f"converged-{_code_key()}-{version}"
    saved = ROOT / "lab" / "cache" / "vm" / "saved"
    if not (saved / f"{name}.raw").exists():
        up = ("--suite", "bookworm", "--gpus", "2", "--gpu-model", "h100-sxm")
        with lab.running_node(tmp, "gpu-test-vm-source", *up) as node:
            variables = {"nvidia_driver_version": version, "nvidia_driver_flavour": Machine.FLAVOUR}
            node.play("site.yml", **variables).passed()
            # What the simulated boot could not judge before it, it can now.
            node.reboot()
            node.play("playbooks/verify.yml", **variables).passed()
            subprocess.run([str(GPULAB), "vm", "disk", node.name, name], check=True)
        for old in saved.glob(f"converged-*-{version}.raw"):
            if old.stem != name:
                old.unlink()
    return name


@contextlib.contextmanager
def good_machine(tmp: Path, version: str):
    """A machine that serves with a driver on kernel 6.1, and has recorded that."""
    up = ("--gpus", "2", "--disk", converged_disk(tmp, version))
    with running_machine(tmp, "gpu-test-good", *up) as machine:
        yield machine


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """One with the old driver, which cannot be built for kernel 6.12."""
    with good_machine(tmp_path_factory.mktemp("vm"), Machine.OLD) as machine:
        yield machine


@pytest.fixture(scope="module")
def good_new(tmp_path_factory):
    """One with the new driver, which can."""
    with good_machine(tmp_path_factory.mktemp("vm"), Machine.NEW) as machine:
        yield machine
