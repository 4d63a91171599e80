"""The driver's cases on one bare node, in order: each test leaves the node as the next one wants it."""

from __future__ import annotations

import json

import pytest

NODE_UP = ("--suite", "bookworm", "--gpus", "2", "--gpu-model", "h100-sxm")
PLAYBOOK = "tests/lab/driver.yml"
OLD, NEW, OTHER, SECURITY = "535.183.06", "535.261.03", "550.163.01", "535.309.01"
PLACES = "/etc /boot /var/lib/dpkg /var/lib/apt /var/lib/gpu_node"
SNAPSHOT = f"find {PLACES} -xdev -type f -printf '%p %s %T@\\n' 2>/dev/null | sort | sha256sum"
KERNELS = "dpkg-query -W -f '${Package} ${Version}\\n' 'linux-image-*'"
AUTH = "/etc/apt/auth.conf.d/gpu-node-nvidia.conf"
#: What the test adds that is not the role's: it has to be there in the end.
BYSTANDERS = ("cuda-toolkit-12-4", "cuda-nvcc-12-4")


def drive(node, version, *arguments, **variables):
    """Run the role with the proprietary flavour unless told otherwise; the headers are there from the start."""
    wishes = {"nvidia_driver_version": version, "nvidia_driver_flavour": "proprietary", "without_headers": True}
    return node.play(PLAYBOOK, *arguments, **{**wishes, **variables})


def versions(node):
    """Return the installed packages of the driver with their versions."""
    text = node.out("dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'")
    rows = [line.split() for line in text.splitlines()]
    return {name: version for name, version, state in rows if state == "ii" or state == "hi"}


def record(node):
    return json.loads(node.out("cat /var/lib/gpu_node/driver.json"))


def members(node):
    found = record(node)
    return {**found["packages"], **found["independent"]}


def assert_whole(node, version):
    """The set is at one version, configured, held, and the kernel has its module."""
    found = record(node)
    have = versions(node)
    assert found["version"] == version
    assert {value.split("-")[0] for value in found["packages"].values()} == {version}
    assert {name: have.get(name) for name in members(node)} == members(node)
    assert set(members(node)) <= set(node.out("apt-mark showhold").split())
    assert node.out("dpkg --audit") == ""
    modules = node.out("modinfo -k $(uname -r) -F version nvidia-current 2>/dev/null || modinfo -F version nvidia")
    assert modules == version


def refused(node, version, *fragments, **variables):
    before = node.out(SNAPSHOT)
    play = drive(node, version, **variables).refused(*fragments)
    assert node.out(SNAPSHOT) == before
    return play


def findings(path):
    """Return the findings of the only node of a report."""
    (report,) = json.loads((path / "report.json").read_text())["nodes"]
    return report["findings"]


def task_lines(play, title):
    """Return what happened in the tasks of a title: the first word after each."""
    lines = play.output.splitlines()
    return [lines[index + 1].split(":")[0] for index, line in enumerate(lines) if title in line]


@pytest.fixture(scope="module")
def key(lab_node, tmp_path_factory):
    """The key of the CUDA stand-in, as a file on the controller, and its fingerprint."""
    path = tmp_path_factory.mktemp("keys") / "cuda.asc"
    path.write_text(lab_node.out("cat /srv/lab/keys/cuda.asc") + "\n")
    return {
        "nvidia_driver_source": "cuda_repo",
        "nvidia_driver_repo_uri": "file:/srv/lab/cuda/debian12/x86_64",
        "nvidia_driver_repo_key": str(path),
        "nvidia_driver_repo_key_fingerprint": lab_node.out("cat /srv/lab/keys/cuda.fingerprint"),
    }


@pytest.fixture(scope="module", autouse=True)
def start(lab_node):
    """Headers and bystanders first; then the packages from which the removal is judged."""
    lab_node.sh(
        "apt-get -qq update; "
        "export DEBIAN_FRONTEND=noninteractive; "
        "apt-get -y -qq install linux-headers-$(uname -r) unattended-upgrades >/dev/null; "
        "cd /srv/lab/cuda/debian12/x86_64 && dpkg -i cuda-{toolkit,nvcc,cudart}-12-4_*.deb >/dev/null"
    )
    return versions(lab_node)


# --- nothing installed yet -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "fragments"),
    [
        ({"nvidia_driver_version": ""}, ["nvidia_driver_version is not set: it must be one exact release"]),
        ({"nvidia_driver_version": "535"}, ["nvidia_driver_version is '535', which is not exact"]),
        (
            {"nvidia_driver_version": "535.999.99"},
            ["535.999.99 is in no repository of source distro", f"{OLD}, {NEW}, {SECURITY}, {OTHER}"],
        ),
        ({"nvidia_driver_flavour": "best"}, ["nvidia_driver_flavour", "open, proprietary"]),
        ({"nvidia_driver_source": "ppa"}, ["nvidia_driver_source", "distro, cuda_repo, local_repo"]),
        (
            {"nvidia_driver_source": "local_repo", "nvidia_driver_repo_uri": "file:/srv/none"},
            ["nvidia_driver_repo_key is not set"],
        ),
    ],
)
def test_bad_input_names_the_variable_and_changes_nothing(lab_node, variables, fragments):
    refused(lab_node, NEW, *fragments, **variables)


def test_drv_08_the_proprietary_flavour_is_refused_for_the_targets_blackwell(lab_node):
    write = "for gpu in /sys/bus/pci/devices/*/device; do echo 0x{} > $gpu; done"
    lab_node.sh(write.format("2901"))
    try:
        refused(lab_node, "580.126.20", "nvidia_driver_flavour: B200 (10de:2901) cannot be driven by the proprietary")
        refused(lab_node, NEW, "nvidia_driver_version: B200 (10de:2901) needs branch 570", nvidia_driver_flavour="auto")
    finally:
        lab_node.sh(write.format("2330"))


def test_cud_01_a_wrong_fingerprint_and_a_silent_repository_change_nothing(lab_node, key):
    refused(
        lab_node,
        NEW,
        "not the expected key, so nothing was fetched",
        **{**key, "nvidia_driver_repo_key_fingerprint": "0" * 40},
    )
    gone = {**key, "nvidia_driver_repo_uri": "file:/srv/none"}
    refused(lab_node, NEW, "nvidia_driver_repo_uri: the repository file:/srv/none cannot be read", **gone)


def test_drv_01_a_meta_that_brings_nothing_is_named(lab_node, key):
    more = {**key, "nvidia_driver_flavour": "open"}
    refused(lab_node, "615.71.09", "615.71.09", "carries the open kernel module", "cuda-drivers", **more)


def test_krn_07_a_kernel_that_comes_along_is_refused_by_name(lab_node):
    before = lab_node.out(KERNELS)
    lab_node.sh(
        "mkdir -p /srv/t/x/DEBIAN && cd /srv/t && printf 'Package: dkms\\nVersion: 99\\nArchitecture: all\\n"
        "Maintainer: x <x@example.org>\\nDescription: x\\nDepends: linux-image-6.1.0-999\\n' > x/DEBIAN/control && "
        "dpkg-deb -b x dkms.deb >/dev/null && "
        "sed 's/dkms$/linux-image-6.1.0-999/; /^Depends/d' -i.bak x/DEBIAN/control && "
        "dpkg-deb -b x image.deb >/dev/null && "
        "for deb in dkms image; do dpkg-deb -f $deb.deb; echo Filename: ./$deb.deb; echo Size: $(stat -c %s $deb.deb); "
        "echo SHA256: $(sha256sum < $deb.deb | cut -d' ' -f1); echo; done > Packages && "
        "echo 'deb [trusted=yes] file:/srv/t ./' > /etc/apt/sources.list.d/t.list && apt-get -qq update"
    )
    try:
        refused(lab_node, NEW, "bring a kernel that nobody asked for: linux-image-6.1.0-999 99")
        assert lab_node.out(KERNELS) == before
    finally:
        lab_node.sh("rm -r /srv/t /etc/apt/sources.list.d/t.list; apt-get -qq update")


def test_a_broken_package_database_is_refused_with_the_repair(lab_node):
    status = "sed -i '/^Package: bash$/,/^$/s/^Status: .*/Status: install ok {}/' /var/lib/dpkg/status"
    lab_node.sh(status.format("half-configured"))
    try:
        refused(lab_node, NEW, "bash", "dpkg --configure -a && apt-get -f install")
    finally:
        lab_node.sh(status.format("installed"))


# --- install and keep ------------------------------------------------------------------------------------------------


def test_drv_03_one_version_while_newer_ones_are_offered(lab_node):
    kernels = lab_node.out(KERNELS)
    play = drive(lab_node, OLD).passed()
    assert_whole(lab_node, OLD)
    assert record(lab_node)["independent"]["nvidia-modprobe"].startswith("535.161.07")
    assert lab_node.out(KERNELS) == kernels
    # KRN-04: every image rebuilt once, and not again.
    assert task_lines(play, "Take nouveau out of the early boot images") == ["changed"]


def test_krn_04_the_second_run_changes_nothing_and_nouveau_keeps_the_verdict_red(lab_node):
    play = drive(lab_node, OLD, "--diff").passed()
    assert play.changed(lab_node.name) == 0
    assert "early boot images" not in play.output
    assert drive(lab_node, OLD, "--check", "--diff").passed().changed(lab_node.name) == 0
    assert "nouveau" in lab_node.out("readlink -f /sys/bus/pci/devices/*/driver | sort -u")
    drive(lab_node, OLD, nvidia_driver_pending_reboot="fail").refused("driver.nouveau")
    lab_node.reboot()
    play = drive(lab_node, OLD, nvidia_driver_pending_reboot="fail").passed()
    assert play.changed(lab_node.name) == 0
    assert "reboot required: False" in play.output
    assert lab_node.out("cat /sys/module/nvidia/version") == OLD


def nightly(node):
    """Return what the nightly updater would upgrade; it fails the test unless it came to a decision."""
    dry = node.out("unattended-upgrade --dry-run --debug 2>&1")
    chosen = [line.split(":", 1)[1] for line in dry.splitlines() if "Packages that will be upgraded:" in line]
    assert chosen or "No packages found that can be upgraded unattended" in dry, dry[-3000:]
    return set(" ".join(chosen).split())


def test_drv_06_updates_propose_nothing_of_the_set_and_a_lost_hold_is_seen(lab_node, tmp_path):
    names = set(members(lab_node))
    files = "/etc/apt/preferences.d/gpu-node-nvidia.pref /etc/apt/apt.conf.d/52gpu-node-nvidia"
    # Without the holds, pins and the updater's blacklist have to do it alone.
    lab_node.sh("mkdir /root/aside; apt-mark unhold $(apt-mark showhold) >/dev/null")
    try:
        upgrade = lab_node.out("apt-get -s dist-upgrade | grep ^Inst || true")
        assert not {line.split()[1] for line in upgrade.splitlines()} & names
        assert not nightly(lab_node) & names
        # Without these either, the updater takes what security offers: the line above can fail.
        lab_node.sh(f"mv {files} /root/aside")
        assert nightly(lab_node) & names
    finally:
        lab_node.sh(
            "cd /root/aside && for file in *.pref; do [ ! -e $file ] || mv $file /etc/apt/preferences.d; done; "
            "for file in 52*; do [ ! -e $file ] || mv $file /etc/apt/apt.conf.d; done; rmdir /root/aside"
        )
        lab_node.sh("apt-mark hold {} >/dev/null".format(" ".join(names)))
    lab_node.sh("apt-mark unhold libnvidia-ml1 >/dev/null")
    wishes = {"nvidia_driver_version": OLD, "nvidia_driver_flavour": "proprietary"}
    lab_node.play("playbooks/verify.yml", **wishes, gpu_node_report_path=str(tmp_path)).refused("libnvidia-ml1")
    (found,) = [item for item in findings(tmp_path) if item["check"] == "driver.holds"]
    assert found["status"] == "fail" and "libnvidia-ml1" in found["hint"], found
    assert "libnvidia-ml1" in found["expected"] and "libnvidia-ml1" not in found["value"], found
    assert drive(lab_node, OLD).passed().changed(lab_node.name) == 1
    assert_whole(lab_node, OLD)


def test_a_driver_in_use_is_not_replaced(lab_node):
    # The lab's device files cannot be opened; a file in the place of one can, and its descriptor looks the same.
    lab_node.sh("mv /dev/nvidia0 /dev/aside && touch /dev/nvidia0")
    pid = lab_node.out("nohup sleep 600 3</dev/nvidia0 >/dev/null 2>&1 & echo $!")
    try:
        loaded = f"the loaded driver {OLD} (proprietary) is in use and would be replaced by"
        refused(lab_node, NEW, f"{loaded} {NEW} (proprietary)", f"{pid} sleep")
        refused(lab_node, OLD, f"{loaded} {OLD} (open)", f"{pid} sleep", nvidia_driver_flavour="open")
    finally:
        lab_node.sh(f"kill {pid}; mv /dev/aside /dev/nvidia0")


def test_drv_04_to_another_release_and_branch_and_back(lab_node):
    for version in (OTHER, OLD):
        drive(lab_node, version).passed()
        assert_whole(lab_node, version)
    play = drive(lab_node, NEW).passed()
    # DRV-07: the old module stays loaded; that is a state of its own, not a reason to install again.
    assert "reboot required: True" in play.output and f"module {OLD} is loaded, library {NEW}" in play.output
    assert drive(lab_node, NEW).passed().changed(lab_node.name) == 0


def test_krn_03_a_build_that_fails_brings_the_former_driver_back_with_the_cause(lab_node):
    before, files = versions(lab_node), lab_node.out("cat /etc/apt/preferences.d/gpu-node-nvidia.pref")
    lab_node.sh(
        'mv /usr/bin/make /usr/bin/make.real && printf \'#!/bin/sh\\ncase "$PWD $*" in *%s*) '
        'echo "error: the compiler differs from the one used to build the kernel" >&2; exit 2;; esac\\n'
        'exec /usr/bin/make.real "$@"\\n\' 550.163 > /usr/bin/make && chmod +x /usr/bin/make'
    )
    try:
        drive(lab_node, OTHER).refused(
            "in the scripts of nvidia-kernel-dkms",
            "the compiler differs from the one used to build the kernel",
            "The former packages are back and the package database is in order",
        )
    finally:
        lab_node.sh("mv /usr/bin/make.real /usr/bin/make")
    assert versions(lab_node) == before
    assert lab_node.out("cat /etc/apt/preferences.d/gpu-node-nvidia.pref") == files
    assert_whole(lab_node, NEW)
    assert drive(lab_node, NEW).passed().changed(lab_node.name) == 0


# --- origins ---------------------------------------------------------------------------------------------------------


def candidates(node, *names):
    """Return the candidate version of each package and where apt would take it from, by apt's own policy."""
    found, name, candidate, in_candidate = {}, "", "", False
    for line in node.out("apt-cache policy {}".format(" ".join(names))).splitlines():
        words = line.split()
        if not line.startswith(" "):
            name = words[0].rstrip(":")
        elif words[0] == "Candidate:":
            candidate = words[1]
            found[name] = (candidate, set())
        elif not line.startswith("        "):  # a row of the version table: maybe "***", the version and its priority
            # Two origins may have one version as different files, which are two rows.
            in_candidate = words[-2] == candidate and int(words[-1]) > 0
        elif in_candidate and words[1].startswith("file:"):
            found[name][1].add("cuda" if words[1].startswith("file:/srv/lab/cuda") else "debian")
    return found


#: In both origins under the same name (in CUDA's also newer than any other), in one only, and no driver package at all.
BOTH, CUDA_ONLY, DEBIAN_ONLY = ("libcuda1", "libnvidia-ml1", "nvidia-persistenced"), "nvidia-driver-cuda", "nvidia-smi"
UNRELATED = ("bash", "dkms", "linux-image-amd64")


def test_drv_05_the_chosen_origin_owns_all_names_and_nothing_else(lab_node, key):
    before = candidates(lab_node, *UNRELATED)
    assert {place for _, places in candidates(lab_node, *BOTH).values() for place in places} == {"debian"}
    drive(lab_node, NEW, **key).passed()
    found = record(lab_node)
    assert found["source"] == "cuda_repo" and CUDA_ONLY in found["packages"]
    assert set(found["packages"].values()) == {f"{NEW}-1"}
    assert "nvidia-smi" not in versions(lab_node)
    # Both origins are there; every member is CUDA's, Debian's own names are out of the way, and nothing else moved.
    everyone = members(lab_node)
    assert set(BOTH) <= set(everyone)
    assert candidates(lab_node, *everyone) == {name: (version, {"cuda"}) for name, version in everyone.items()}
    assert candidates(lab_node, DEBIAN_ONLY)[DEBIAN_ONLY][0] == "(none)"
    assert candidates(lab_node, *UNRELATED) == before
    assert candidates(lab_node, "cuda-toolkit-12-4")["cuda-toolkit-12-4"] == ("12.4.1-1", {"cuda"})
    assert drive(lab_node, NEW, **key).passed().changed(lab_node.name) == 0


def test_cud_02_one_definition_also_after_the_keyring_package(lab_node, key):
    count = (
        "grep -rlE '^(URIs: |deb .*)file:/srv/lab/cuda/debian12' "
        "/etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null | wc -l"
    )
    keyring = "dpkg -i /srv/lab/cuda/debian12/x86_64/cuda-keyring_*.deb >/dev/null"
    lab_node.sh(keyring)
    assert lab_node.out(count) == "2"
    drive(lab_node, NEW, **key).passed()
    assert lab_node.out(count) == "1"
    lab_node.sh(keyring)
    assert lab_node.out(count) == "1"
    lab_node.sh("apt-get -qq update")
    assert drive(lab_node, NEW, **key).passed().changed(lab_node.name) == 0
    lab_node.sh("dpkg -P cuda-keyring >/dev/null")


def test_a_local_repository_on_the_node_is_installed_from_under_its_own_source(lab_node, key):
    """As NVIDIA's driver-local-repo package leaves it: a directory on the node with files, lists and a signature."""
    place = "/var/nvidia-driver-local-repo-debian12-580.126.20"
    lab_node.sh(f"cp -r /srv/lab/cuda/debian12/x86_64 {place}")
    local = {**key, "nvidia_driver_source": "local_repo", "nvidia_driver_repo_uri": f"file:{place}"}
    drive(lab_node, "580.126.20", **local).passed()
    assert_whole(lab_node, "580.126.20")
    everyone = members(lab_node)
    assert record(lab_node)["source"] == "local_repo" and CUDA_ONLY in everyone
    policy = lab_node.out("apt-cache policy {}".format(" ".join(everyone)))
    assert policy.count(f"file:{place}") >= len(everyone) and "file:/srv/lab/cuda" not in policy
    assert f"URIs: file:{place}" in lab_node.out("cat /etc/apt/sources.list.d/gpu-node-nvidia.sources")
    assert drive(lab_node, "580.126.20", **local).passed().changed(lab_node.name) == 0


#: A mirror that lets in nobody but apt:wortgeheimnis/7.
MIRROR = """
import base64, functools, http.server

class Mirror(http.server.SimpleHTTPRequestHandler):
    def send_head(self):
        if self.headers.get("Authorization") == "Basic " + base64.b64encode(b"apt:wortgeheimnis/7").decode():
            return super().send_head()
        return self.send_error(401)

handler = functools.partial(Mirror, directory="/srv/lab/cuda/debian12/x86_64")
http.server.ThreadingHTTPServer(("127.0.0.1", 8089), handler).serve_forever()
"""


def test_a_login_in_the_address_is_kept_in_one_file_and_shown_nowhere(lab_node, key):
    address = "http://apt:{}@127.0.0.1:8089/"
    lab_node.sh(f"cat > /root/mirror.py <<'E'\n{MIRROR}E")
    pid = lab_node.out("nohup python3 /root/mirror.py >/dev/null 2>&1 & echo $!")
    lab_node.sh("for try in $(seq 600); do (: </dev/tcp/127.0.0.1/8089) 2>/dev/null && exit; sleep 0.1; done; exit 1")
    try:
        wrong = {**key, "nvidia_driver_repo_uri": address.format("falsch")}
        play = refused(lab_node, NEW, "the repository http://127.0.0.1:8089/ cannot be read", "401", **wrong)
        assert "falsch" not in play.output
        right = {**key, "nvidia_driver_repo_uri": address.format("wortgeheimnis%2F7")}
        for arguments, changes in ((["--check"], True), ([], True), ([], False)):
            play = drive(lab_node, NEW, "--diff", "-vvv", *arguments, **right).passed()
            assert (play.changed(lab_node.name) > 0) is changes
            assert "wortgeheimnis" not in play.output and "8089" in play.output
    finally:
        lab_node.sh(f"kill {pid}; rm /root/mirror.py")
    assert lab_node.out("grep -rl wortgeheimnis /etc /var/lib/apt /var/lib/dpkg /var/lib/gpu_node") == AUTH
    assert lab_node.out(f"stat -c '%a %U' {AUTH}") == "600 root"


def test_drv_05_flipping_the_source_flips_the_set(lab_node):
    # Somebody keeps CUDA's repository, for its toolkits: it stays a source, with newer drivers at a higher priority.
    lab_node.sh(
        "echo 'deb [signed-by=/srv/lab/keys/cuda.asc] file:/srv/lab/cuda/debian12/x86_64 /' "
        "> /etc/apt/sources.list.d/toolkits.list; "
        "printf 'Package: *\\nPin: release l=NVIDIA CUDA\\nPin-Priority: 600\\n' > /etc/apt/preferences.d/toolkits; "
        "apt-get -qq update"
    )
    before = candidates(lab_node, *UNRELATED, "cuda-toolkit-12-4")
    drive(lab_node, NEW).passed()
    assert_whole(lab_node, NEW)
    assert CUDA_ONLY not in versions(lab_node)
    everyone = members(lab_node)
    assert {*BOTH, DEBIAN_ONLY} <= set(everyone)
    assert candidates(lab_node, *everyone) == {name: (version, {"debian"}) for name, version in everyone.items()}
    assert candidates(lab_node, CUDA_ONLY)[CUDA_ONLY][0] == "(none)"
    assert candidates(lab_node, *UNRELATED, "cuda-toolkit-12-4") == before
    assert lab_node.sh("test -e /etc/apt/keyrings/gpu-node-nvidia.asc", check=False).returncode == 1
    lab_node.sh("rm /etc/apt/sources.list.d/toolkits.list /etc/apt/preferences.d/toolkits; apt-get -qq update")
    assert drive(lab_node, NEW).passed().changed(lab_node.name) == 0


# --- and away again --------------------------------------------------------------------------------------------------


def test_drv_09_removal_takes_exactly_what_came_and_is_idempotent(lab_node, start):
    # dkms brought it; somebody wants it since.
    assert "patch" not in start and {"dkms", "patch"} <= set(lab_node.out("apt-mark showauto").split())
    lab_node.sh("apt-mark manual patch >/dev/null")
    kept = {"patch": versions(lab_node)["patch"]}
    play = drive(lab_node, NEW, nvidia_driver_state="absent").passed()
    assert task_lines(play, "Rebuild the early boot images without") == ["changed"]
    assert versions(lab_node) == {**start, **kept}
    assert all(name in versions(lab_node) for name in BYSTANDERS)
    left = lab_node.out("find /etc -name '*gpu-node*' ! -path '/etc/systemd/*'; ls /var/lib/gpu_node")
    assert "nvidia" not in left and "nouveau" not in left and "driver.json" not in left
    assert lab_node.out("apt-mark showhold") == ""
    assert lab_node.out("dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' | grep '^rc' || true") == ""
    assert drive(lab_node, NEW, nvidia_driver_state="absent").passed().changed(lab_node.name) == 0
