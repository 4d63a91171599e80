"""Debian's real packages: the set stays at the pin while security offers a newer driver, and the module compiles."""

from __future__ import annotations

import json
import re

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
