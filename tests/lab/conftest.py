"""Shared by the tests that need a lab node: bring one up, run playbooks and commands on it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPULAB = ROOT / "lab" / "bin" / "gpulab"
#: Seconds that any state may take to appear on a slow and busy machine; a test fails after it, never before.
PATIENCE = 600
RECAP = re.compile(r"^(?P<host>\S+)\s*: ok=(?P<ok>\d+)\s+changed=(?P<changed>\d+)\s.*failed=(?P<failed>\d+)", re.M)


@dataclasses.dataclass
class Play:
    """What one ansible-playbook run left behind."""

    rc: int
    output: str

    def changed(self, host: str) -> int:
        """Return how many tasks changed something on a host."""
        for match in RECAP.finditer(self.output):
            if match["host"] == host:
                return int(match["changed"])
        raise AssertionError(f"no recap of {host} in:\n{self.output[-3000:]}")

    def passed(self) -> Play:
        """Return self, or fail the test with the end of the output."""
        assert self.rc == 0, self.output[-6000:]
        return self

    def refused(self, *fragments: str) -> Play:
        """Return self if the run failed and its output says each fragment."""
        assert self.rc != 0, f"the run passed, but should have been refused:\n{self.output[-3000:]}"
        text = " ".join(self.output.split())
        for fragment in fragments:
            assert fragment in text, f"{fragment!r} is not in:\n{self.output[-6000:]}"
        return self


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel on offer: the version of the meta package that stands for it, and its release (``uname -r``)."""

    meta: str
    release: str


@dataclasses.dataclass(frozen=True)
class Offers:
    """The kernels that the archives offer a node of suite bookworm today; the names move with each update of Debian.

    ``security`` is the one in the lab's image, ``stable`` the one of the last point release, ``backports`` one of a
    series that driver 535.183 cannot be compiled for.
    """

    security: Kernel
    stable: Kernel
    backports: Kernel


class Node:
    """One lab node: a container that boots systemd, with the inventory that reaches it."""

    def __init__(self, name: str, inventory: Path) -> None:
        self.name = name
        self.inventory = inventory

    def command(self, playbook: str, *arguments: str, **variables: object) -> list[str]:
        """Return the ansible-playbook command line for this node; extra variables keep their types."""
        command = [
            "ansible-playbook",
            playbook,
            "-i",
            "inventories/lab",
            "-i",
            str(self.inventory),
            "--limit",
            self.name,
        ]
        command += arguments
        if variables:
            command += ["-e", json.dumps(variables)]
        return command

    def play(self, playbook: str, *arguments: str, **variables: object) -> Play:
        """Run a playbook to its end."""
        done = subprocess.run(
            self.command(playbook, *arguments, **variables),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
        return Play(done.returncode, done.stdout)

    def results(self, playbook: str, *arguments: str, **variables: object) -> list[dict]:
        """Run a playbook that has to pass; return each task's result on this node, its title under ``task``."""
        done = subprocess.run(
            self.command(playbook, *arguments, **variables),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"},
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        # The report prints its table before the document.
        plays = json.loads(done.stdout[done.stdout.index("\n{\n") if not done.stdout.startswith("{") else 0 :])["plays"]
        tasks = [task for play in plays for task in play["tasks"]]
        return [
            {"task": task["task"]["name"], **task["hosts"][self.name]} for task in tasks if self.name in task["hosts"]
        ]

    def start_play(self, playbook: str, log: Path, **variables: object) -> subprocess.Popen[bytes]:
        """Start a playbook in a process group of its own, so that the whole group can be killed."""
        with log.open("wb") as handle:
            return subprocess.Popen(
                self.command(playbook, **variables),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def sh(self, script: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell script on the node."""
        done = subprocess.run(
            ["docker", "exec", "-i", self.name, "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if check:
            assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done

    def out(self, script: str) -> str:
        """Return what a shell script on the node prints."""
        return self.sh(script).stdout.strip()

    def packages(self) -> str:
        """Return every installed package with version and state: equal texts mean an untouched package set."""
        return self.out("dpkg-query -W -f '${Package}:${Architecture} ${Version} ${db:Status-Abbrev}\\n'")

    def offers(self) -> Offers:
        """Return the kernels on offer, by what the package lists say."""
        self.sh("apt-get -qq update")
        found = {}
        for row in self.out("apt-cache madison linux-image-amd64").splitlines():
            _, meta, origin = (part.strip() for part in row.split("|"))
            depends = self.out(f"apt-cache show linux-image-amd64={meta} | sed -n 's/^Depends: //p'")
            match = re.match(r"linux-image-(\S+)", depends)
            assert match, f"linux-image-amd64 {meta} depends on {depends!r}"
            found[origin.split()[1].split("/")[0]] = Kernel(meta, match[1])
        return Offers(found["bookworm-security"], found["bookworm"], found["bookworm-backports"])

    def reboot(self, whole: bool = True) -> None:
        """Restart the container: the simulated boot loader picks the kernel.

        A node without a driver for its kernel, or with half of one, has units that fail; it is not ``whole``.
        """
        subprocess.run([str(GPULAB), "reboot", self.name], check=whole)
        if not whole:
            ready = ("running", "degraded")
            wait_until("a boot", lambda: self.sh("systemctl is-system-running", check=False).stdout.strip() in ready)


def wait_until(what: str, ready, give_up=None, patience: float = PATIENCE) -> None:
    """Wait until ``ready()`` is true; fail after some seconds, or as soon as ``give_up()`` returns a reason."""
    deadline = time.monotonic() + patience
    while not ready():
        reason = give_up() if give_up else None
        assert not reason, f"waiting for {what}: {reason}"
        assert time.monotonic() < deadline, f"{what} did not come within {patience} s"
        time.sleep(0.05)


@contextlib.contextmanager
def gpu_holder(node: Node):
    """Give ``pid name (unit)`` of a service that has a GPU open.

    A container may not really open the device; a descriptor of its path will do, and shows as one in /proc.
    """
    code = "import os, time; os.open('/dev/nvidia0', os.O_PATH); time.sleep(10**6)"
    node.sh(f'systemd-run --quiet --unit=serving python3 -c "{code}"')
    try:
        pid = node.out("systemctl show -P MainPID serving")
        wait_until(
            "the open device", lambda: node.sh(f"ls -l /proc/{pid}/fd | grep nvidia0", check=False).returncode == 0
        )
        yield f"{pid} python3 (serving.service)"
    finally:
        node.sh("systemctl stop serving", check=False)


@contextlib.contextmanager
def running_node(tmp: Path, name: str, *up_arguments: str):
    """Bring a node up, give it, and take it down whatever happened."""
    inventory = tmp / f"{name}.yml"
    inventory.write_text(f"gpu_nodes:\n  hosts:\n    {name}:\n", encoding="utf-8")
    subprocess.run([str(GPULAB), "down", name], check=True)
    subprocess.run([str(GPULAB), "up", name, *up_arguments], check=True)
    try:
        yield Node(name, inventory)
    finally:
        subprocess.run([str(GPULAB), "down", name], check=True)


@pytest.fixture(scope="module")
def lab_node(request, tmp_path_factory):
    """A bare node for the tests of one module; the module's NODE_UP says how it is brought up."""
    arguments = getattr(request.module, "NODE_UP", ("--suite", "bookworm", "--gpus", "2"))
    name = "gpu-test-" + request.module.__name__.rsplit(".", 1)[-1].replace("test_", "").replace("_", "-")
    with running_node(tmp_path_factory.mktemp("lab"), name, *arguments) as node:
        yield node
