"""Debian's real packages: the set stays at the pin while security offers a newer driver, and the module compiles."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PIN = "535.261.03"


def record(host):
    return json.loads(host.file("/var/lib/gpu_node/driver.json").content_string)


def members(host):
    found = record(host)
    return {**found["packages"], **found["independent"]}


def test_drv_03_security_offers_more_and_nothing_leaks(host):
    assert "535.309" in host.check_output("apt-cache madison libcuda1")
    assert {version.split("-")[0] for version in record(host)["packages"].values()} == {PIN}
    assert host.package("nvidia-modprobe").version.startswith("535.161.07")
    assert host.package("nvidia-persistenced").version.startswith("535.171.04")
    for name, version in members(host).items():
        assert host.package(name).version == version


def test_the_module_compiled_for_the_kernel(host):
    kernel = host.check_output("uname -r")
    assert f"nvidia-current/{PIN}, {kernel}, x86_64: installed" in host.check_output("dkms status")
    assert host.check_output(f"modinfo -k {kernel} -F version nvidia-current") == PIN


def module(host, **arguments):
    """Run the collection's module for compiled modules on the node."""
    name = host.backend.get_hostname()
    command = [
        "ansible",
        name,
        "-i",
        os.environ["MOLECULE_INVENTORY_FILE"],
        "-m",
        "aiinfra.gpu_node.driver_module_archive",
    ]
    done = subprocess.run(
        [*command, "-a", json.dumps(arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
            "ANSIBLE_STDOUT_CALLBACK": "minimal",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


def test_what_was_compiled_is_packed_and_loaded_without_compiling(host):
    kernel = host.check_output("uname -r")
    known = f"-m nvidia-current -v {PIN} -k {kernel}"
    wanted = {"dkms_name": "nvidia-current", "version": PIN, "kernels": [kernel], "directory": "/root/modules"}
    (packed,) = module(host, state="packed", **wanted)["archives"]
    archives = [{"path": packed["file"], "sha256": packed["sha256"], "kernel": kernel}]
    assert not module(host, state="loaded", archives=archives)["changed"]
    host.run_expect([0], f"dkms unbuild {known} && mv /usr/bin/make /root/make")
    try:
        assert host.run(f"modinfo -k {kernel} nvidia-current").rc != 0
        assert module(host, state="loaded", archives=archives)["loaded"] == [kernel]
    finally:
        host.run_expect([0], "mv /root/make /usr/bin/make")
    assert host.check_output(f"modinfo -k {kernel} -F version nvidia-current") == PIN
    assert "installed" in host.check_output(f"dkms status {known}")


def test_drv_06_neither_apt_nor_the_updater_proposes_any_of_it(host):
    names = set(members(host))
    moved = set(re.findall(r"^Inst (\S+)", host.check_output("apt-get -s dist-upgrade"), re.MULTILINE))
    assert not moved & names
    # Only a run that ended well and came to a decision says anything.
    dry = host.check_output("unattended-upgrade --dry-run --debug 2>&1")
    chosen = re.findall(r"Packages that will be upgraded:(.*)", dry)
    assert chosen or "No packages found that can be upgraded unattended" in dry, dry[-3000:]
    assert not set(" ".join(chosen).split()) & names


def test_drv_06_without_the_roles_files_the_updater_would_take_some_of_it(host):
    """The test above can fail: security offers a newer driver, and the updater is set up to install it."""
    names = set(members(host))
    files = ["/etc/apt/preferences.d/gpu-node-nvidia.pref", "/etc/apt/apt.conf.d/52gpu-node-nvidia"]
    host.run_expect([0], "apt-mark unhold {}".format(" ".join(names)))
    host.run_expect([0], "mkdir /root/aside && mv {} /root/aside".format(" ".join(files)))
    try:
        dry = host.check_output("unattended-upgrade --dry-run --debug 2>&1")
        assert set(" ".join(re.findall(r"Packages that will be upgraded:(.*)", dry)).split()) & names, dry[-3000:]
    finally:
        for path in files:
            host.run_expect([0], "mv /root/aside/{} {}".format(path.rsplit("/", 1)[1], path))
        host.run_expect([0], "rmdir /root/aside && apt-mark hold {}".format(" ".join(names)))
