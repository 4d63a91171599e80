"""site.yml on one node, in order: dry run on the bare machine, killed runs, second run, reboot, faults and repair.

The node has two kernels that can boot, and its kernel meta package is older than the one that security offers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from tests.lab.conftest import wait_until

NODE_UP = ("--suite", "bookworm", "--gpus", "4", "--gpu-model", "h100-sxm")
SITE, VERIFY = "site.yml", "playbooks/verify.yml"
DRIVER = "535.261.03"
#: What is wanted beyond the lab's inventory: the opt-in hold (KRN-06) and power limits (TUN-05).
WISHES = {"kernel_policy": "hold", "tuning_gpu_power_limit_w": 450}

#: Where a run is killed: a shell test on the node that is true at that moment, and what dies.
POINTS = {
    "while the node is tuned": ("test -e /etc/sysctl.d/90-gpu-node.conf", "ansible"),
    "while build tools are unpacked": ("grep -q ' status half-installed ' /var/log/dpkg.log", "node"),
    "while the driver is unpacked": (
        "grep -Eq ' status (half-installed|unpacked) (libcuda1|nvidia-kernel-dkms)' /var/log/dpkg.log",
        "ansible and its children",
    ),
    "while DKMS compiles the module": ("pgrep -f '/[d]kms.* (build|autoinstall|install)'", "node"),
    "while the initramfs is written": ("pgrep -f '[m]kinitramfs'", "node"),
}

#: All that the roles write outside of packages.
OWN_FILES = (
    "find /etc /usr/local/sbin /var/lib/gpu_node -xdev -type f -path '*gpu?node*' "
    "! -path '*/last_known_good/*' ! -path '*/gpu_node/health/*' ! -name packages.json ! -name driver.json "
    "! -name transaction.lock | sort"
)
#: Of every unit that is there: whether it runs, since when, its processes and how often it was restarted; then the
#: moment of systemd's last reload. Services that timers start at any moment are left out.
UNITS = (
    "systemctl list-units --all --plain --no-legend --type=service,socket,timer,path | cut -d' ' -f1 | "
    "grep -Ev '^(apt-|systemd-tmpfiles-clean|e2scrub|fstrim|man-db|logrotate|dpkg-db|gpu-node-health.service)' | "
    "xargs systemctl show -p Id,ActiveState,ActiveEnterTimestampMonotonic,ExecMainStartTimestampMonotonic,NRestarts; "
    "systemctl show -p UnitsLoadTimestampMonotonic"
)


@pytest.fixture(scope="module", autouse=True)
def offers(lab_node):
    """A second kernel, a kernel meta package from before the last security update, and no package lists."""
    found = lab_node.offers()
    assert lab_node.out("uname -r") == found.security.release
    lab_node.sh(
        "export DEBIAN_FRONTEND=noninteractive; apt-get -y -qq --allow-downgrades install "
        f"linux-image-{found.stable.release} linux-image-amd64={found.stable.meta} "
        ">/dev/null; rm -r /var/lib/apt/lists/*; : > /var/log/dpkg.log"
    )
    return found


def versions(node):
    """Return the installed packages with their versions."""
    rows = [line.split() for line in node.packages().splitlines()]
    return {name.split(":")[0]: version for name, version, state in rows if state[1] == "i"}


def findings(path):
    """Return the findings of the only node of a report, by check and target."""
    (report,) = json.loads((path / "report.json").read_text())["nodes"]
    return {(item["check"], item["target"]): item for item in report["findings"]}


def entries(results):
    """Return the entries of all diffs of a run: (title, text before, text after)."""
    for result in results:
        found = result.get("diff") or []
        for entry in found if isinstance(found, list) else [found]:
            if entry.get("after_header"):
                yield entry["after_header"], entry.get("before", ""), entry.get("after", "")


def packages_told(results):
    """Return what a dry run says of packages: versions afterwards, those held afterwards, those that go."""
    told, held, gone = {}, set(), set()
    for title, before, after in entries(results):
        if title != "packages":
            continue
        rows = [line.split() for line in after.splitlines()]
        told.update({row[0]: row[1] if len(row) > 1 and row[1] != "(held)" else "" for row in rows})
        held |= {row[0] for row in rows if row[-1] == "(held)"}
        gone |= {line.split()[0] for line in before.splitlines()} - {row[0] for row in rows}
    return told, held, gone


def test_a_dry_run_on_a_bare_machine_without_package_lists_tells_what_it_can_and_changes_nothing(lab_node, offers):
    before = versions(lab_node)
    results = lab_node.results(SITE, "--check", "--diff", **WISHES)
    assert versions(lab_node) == before
    assert lab_node.out(OWN_FILES) == ""
    assert lab_node.out("ls /var/lib/apt/lists | grep -c Packages || true") == "0"
    told, held, gone = packages_told(results)
    # The driver is planned with lists of its own; of the rest, what is in no list yet is told by name.
    assert told["libcuda1"].startswith(DRIVER) and "libcuda1" in held
    assert {f"linux-headers-{kernel}" for kernel in (offers.security.release, offers.stable.release)} <= set(
        told
    ) and not gone


@pytest.fixture(scope="module")
def prediction(lab_node):
    """A dry run on the bare machine, and the packages that it has."""
    lab_node.sh("apt-get -qq update")
    return {"before": versions(lab_node), "results": lab_node.results(SITE, "--check", "--diff", **WISHES)}


def test_a_dry_run_says_what_commands_would_do(lab_node, prediction, offers):
    """Commands predict nothing by themselves."""
    assert versions(lab_node) == prediction["before"]
    assert lab_node.out(OWN_FILES) == ""
    said = {item["task"].split(" | ")[-1]: item.get("msg") for item in prediction["results"]}
    images = said["Say what the commands above would do"]["early_boot_images_to_rebuild"]
    assert set(images) == {offers.security.release, offers.stable.release}
    unforeseen = said["Say what a dry run cannot foresee"]
    assert "No package has brought nvidia-persistenced.service yet" in unforeseen and "enable it" in unforeseen


# --- killed at any moment --------------------------------------------------------------------------------------------


def kill(what, node, process):
    """Kill the run: the controller's process group, the node, or the controller and what it runs on the node."""
    if what == "node":
        subprocess.run(["docker", "kill", node.name], check=True, stdout=subprocess.DEVNULL)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if what == "ansible and its children":
        node.sh("pkill -KILL -x apt-get; pkill -KILL -x dpkg; true")
    if what == "node":
        subprocess.run(["docker", "start", node.name], check=True, stdout=subprocess.DEVNULL)
        # Degraded will do: half an installation may well leave a unit that fails.
        state = "systemctl is-system-running --wait"
        wait_until("systemd", lambda: node.sh(state, check=False).stdout.strip() in ("running", "degraded"))


def test_killed_at_five_points_and_run_again(lab_node, prediction, tmp_path, offers):
    """Each run starts on what the killed one before left, so every kill lands on a node that is already hurt."""
    for number, (point, (reached, what)) in enumerate(POINTS.items()):
        log = tmp_path / f"run-{number}.log"
        process = lab_node.start_play(SITE, log, **WISHES)

        def ended(process=process, log=log):
            return process.poll() is not None and f"the run ended first:\n{log.read_text()[-4000:]}"

        wait_until(point, lambda reached=reached: lab_node.sh(reached, check=False).returncode == 0, ended)
        kill(what, lab_node, process)

    lab_node.play(SITE, **WISHES, gpu_node_report_path=str(tmp_path)).passed()
    assert lab_node.out("dpkg --audit") == ""
    assert lab_node.sh("test -e /var/lib/gpu_node/transaction.json", check=False).returncode != 0
    # KRN-06: the hold is dated, and says which security update it keeps out.
    held = findings(tmp_path)[("kernel.hold", "node")]
    assert held["status"] == "warn" and f"linux-image-amd64 {offers.security.meta}" in held["hint"], held
    record = json.loads(lab_node.out("cat /var/lib/gpu_node/kernel_hold.json"))
    assert [item["version"] for item in record["skipped"]["linux-image-amd64"] if item["security"]] == [
        offers.security.meta
    ]


def test_krn_01_a_node_with_two_kernels_gets_the_module_for_both_in_one_run(lab_node, offers):
    for kernel in (offers.security.release, offers.stable.release):
        assert lab_node.out(f"modinfo -k {kernel} -F version nvidia-current-open") == DRIVER, kernel
        assert lab_node.out(f"grep -c nvidia /lib/modules/{kernel}/modules.dep") != "0"


def test_the_dry_run_foretold_packages_files_and_holds(lab_node, prediction):
    """Killed runs end where an undisturbed one does, and the dry run on the bare machine said where that is."""
    told, held, gone = packages_told(prediction["results"])
    now = versions(lab_node)
    changed = {name: version for name, version in now.items() if prediction["before"].get(name) != version}
    assert gone == set(prediction["before"]) - set(now) == set()
    # What is told without a change of version is told because of its hold.
    only_held = {name for name, version in told.items() if prediction["before"].get(name) == version}
    # Each transaction is foretold from the bare machine: dkms alone would bring gcc for a compiler, and is content with
    # the gcc-12 that the headers brought before it.
    unneeded = {"gcc", "cpp"} - set(now)
    assert {name: version for name, version in told.items() if name not in only_held | unneeded} == changed
    assert only_held <= held == set(lab_node.out("apt-mark showhold").split())
    # Beside files the dry run tells of the health checks' code, of Python and of the directory for their metrics.
    ours = ("/etc/", "/usr/local/sbin/", "/var/lib/gpu_node/")
    files = {title: after for title, _, after in entries(prediction["results"]) if title.startswith(ours) and after}
    # The dry run said that it cannot foresee the unit's drop-in; the record of the hold has the time of the run in it.
    unforeseen, dated = "/etc/systemd/system/nvidia-persistenced.service.d/gpu-node.conf", "kernel_hold.json"
    assert {*files, unforeseen} == set(lab_node.out(OWN_FILES).splitlines())
    for path, text in files.items():
        assert path.endswith(dated) or lab_node.sh(f"cat {path}").stdout == text, path


def test_svc_05_the_second_run_changes_nothing_and_touches_no_service(lab_node):
    before = lab_node.out(UNITS)
    assert "Id=dbus.service" in before and "UnitsLoadTimestampMonotonic=" in before
    again = lab_node.play(SITE, **WISHES).passed()
    assert again.changed(lab_node.name) == 0, again.output[-4000:]
    assert lab_node.out(UNITS) == before


# --- after a reboot --------------------------------------------------------------------------------------------------


def limits(node):
    return node.out("nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits").split()


def test_tun_05_the_boot_sets_the_power_limit_of_every_gpu_and_a_reload_of_the_driver_too(lab_node):
    lab_node.reboot()
    wait_until("the boot", lambda: "running" in lab_node.sh("systemctl is-system-running --wait", check=False).stdout)
    assert limits(lab_node) == ["450.00"] * 4
    lab_node.sh(
        "systemctl stop nvidia-persistenced && modprobe -r nvidia_uvm nvidia_modeset nvidia && modprobe nvidia && "
        "modprobe nvidia_uvm"
    )
    assert limits(lab_node) == ["700.00"] * 4
    # Started by the daemon's start, and done before anything that waits for it.
    lab_node.sh("systemctl start nvidia-persistenced gpu-node-power-limits")
    assert limits(lab_node) == ["450.00"] * 4
    assert "nvidia-persistenced.service" in lab_node.out("systemctl show -p After --value gpu-node-power-limits")


def test_faults_are_all_in_one_verdict(lab_node, tmp_path, offers):
    """A new kernel without module (KRN-01), a lost module and a left-over tree (KRN-02), limits reset (TUN-05).

    Beside them a persistence daemon in Canonical's packaging: static, started with persistence off (SVC-01).
    """
    lab_node.sh(
        "export DEBIAN_FRONTEND=noninteractive; "
        f"apt-get -y -qq install linux-image-{offers.backports.release} >/dev/null; "
        f"dkms uninstall nvidia-current-open/{DRIVER} -k {offers.stable.release} >/dev/null; "
        "mkdir -p /var/lib/dkms/nvidia/390.48/build; "
        "for gpu in 0 1 3; do nvidia-smi -i $gpu -pl 700 >/dev/null; done; "
        "unit=$(systemctl show -p FragmentPath --value nvidia-persistenced); "
        "systemctl disable -q --now nvidia-persistenced; rm -r /etc/systemd/system/nvidia-persistenced.service.d; "
        "sed -i 's/^ExecStart=.*/& --no-persistence-mode/; /^\\[Install]/,$d' $unit; systemctl daemon-reload"
    )
    assert lab_node.out("systemctl is-enabled nvidia-persistenced || true") == "static"
    lab_node.play(VERIFY, **WISHES, gpu_node_report_path=str(tmp_path)).refused(f"[{offers.backports.release}]")
    found = findings(tmp_path)
    assert found[("driver.module", offers.backports.release)]["status"] == "fail"
    assert "no headers to build one" in found[("driver.module", offers.backports.release)]["hint"]
    assert found[("driver.boot", "default")]["status"] == "fail"
    assert found[("driver.boot", "default")]["hint"].startswith("do not reboot: no nvidia module")
    assert found[("driver.module", offers.stable.release)]["status"] == "fail"
    assert found[("driver.module", offers.security.release)]["status"] == "ok"
    assert found[("driver.dkms", "nvidia/390.48")]["value"] == "orphan"
    assert found[("persistenced.unit", "nvidia-persistenced.service")]["status"] == "fail"
    power = [
        item["status"] for (check, target), item in found.items() if check.endswith("power_limit") and "GPU-" in target
    ]
    assert sorted(power) == ["fail", "fail", "fail", "warn"], "one card is right, but its persistence is off"


def test_one_run_repairs_them_and_kernel_policy_none_releases_the_hold(lab_node, tmp_path, offers):
    wishes = {**WISHES, "kernel_policy": "none"}
    lab_node.play(SITE, **wishes, gpu_node_report_path=str(tmp_path)).passed()
    found = findings(tmp_path)
    for kernel in (offers.security.release, offers.stable.release, offers.backports.release):
        assert found[("driver.module", kernel)]["status"] == "ok", kernel
    assert found[("driver.boot", "default")]["value"] == offers.backports.release
    # KRN-02: reported, and left to the operator.
    assert found[("driver.dkms", "nvidia/390.48")]["status"] == "warn"
    assert lab_node.out("ls -d /var/lib/dkms/nvidia/390.48") != ""
    # SVC-01: the static unit has a drop-in that installs it and switches persistence on.
    assert lab_node.out("systemctl is-active nvidia-persistenced") == "active"
    assert lab_node.out("systemctl is-enabled nvidia-persistenced") == "enabled"
    modes = lab_node.out("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").split()
    assert modes == ["Enabled"] * 4
    assert limits(lab_node) == ["450.00"] * 4
    # KRN-06: no hold of ours is left, and no record of one.
    assert not re.search(r"^linux-", lab_node.out("apt-mark showhold"), re.MULTILINE)
    assert lab_node.sh("test -e /var/lib/gpu_node/kernel_hold.json", check=False).returncode != 0
    assert lab_node.play(SITE, **wishes).passed().changed(lab_node.name) == 0


if __name__ == "__main__":
    pytest.main([__file__])
