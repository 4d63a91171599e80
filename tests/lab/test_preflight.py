"""Bad machines and bad wishes on a lab node: preflight names all of them in one run, and touches nothing."""

from __future__ import annotations

import contextlib

import pytest

NODE_UP = ("--suite", "bookworm", "--gpus", "2", "--gpu-model", "h100-sxm")
PLAYBOOK = "playbooks/preflight.yml"
GOOD = {"nvidia_driver_version": "535.261.03", "nvidia_driver_flavour": "auto", "nvidia_driver_source": "distro"}
SNAPSHOT = "find /etc /boot /var/lib/dpkg /var/lib/apt -xdev -type f -printf '%p %m %s %T@\\n' | sort | sha256sum"

FSTAB = ("echo 'UUID=1 /data' >> /etc/fstab", "sed -i '/^UUID=1 /d' /etc/fstab")
SOURCE = (
    "printf 'Types: deb\\nURIs: file:/srv/none\\nSuites: bookworm\\nComponents: main\\n' "
    "> /etc/apt/sources.list.d/none.sources",
    "rm /etc/apt/sources.list.d/none.sources",
)
HALF = (
    "sed -i '/^Package: bash$/,/^$/s/^Status: .*/Status: install ok half-configured/' /var/lib/dpkg/status",
    "sed -i '/^Package: bash$/,/^$/s/^Status: .*/Status: install ok installed/' /var/lib/dpkg/status",
)
VENV = ("python3 -m venv --without-pip /opt/other", "rm -r /opt/other")
KILLED = (
    'mkdir -p /var/lib/gpu_node && echo \'{"started": "2026-01-02T03:04:05Z"}\' > /var/lib/gpu_node/transaction.json',
    "rm -r /var/lib/gpu_node",
)


def gpus(device):
    """Return the commands that turn both GPUs into another card, and back."""
    write = "for gpu in /sys/bus/pci/devices/*/device; do echo 0x{} > $gpu; done"
    return write.format(device), write.format("2330")


@contextlib.contextmanager
def made_bad(node, *faults):
    """Make faults, and repair them in the end whatever happened."""
    with contextlib.ExitStack() as stack:
        for make, repair in faults:
            node.sh(make)
            stack.callback(node.sh, repair)
        yield


def refused(node, *fragments, **wishes):
    """Run preflight, which has to refuse with these words and to change nothing."""
    before = node.out(SNAPSHOT)
    play = node.play(PLAYBOOK, **{**GOOD, **wishes}).refused(*fragments)
    assert node.out(SNAPSHOT) == before
    assert play.changed(node.name) == 0
    return play


def test_good_node_passes_and_is_untouched(lab_node):
    before = lab_node.out(SNAPSHOT)
    play = lab_node.play(PLAYBOOK, **GOOD).passed()
    assert play.changed(lab_node.name) == 0
    assert lab_node.out(SNAPSHOT) == before
    # The warning about the ended branch is shown once.
    assert play.output.count("driver.branch") == 1


def test_everything_at_once(lab_node):
    with made_bad(lab_node, FSTAB, SOURCE, HALF, VENV, gpus("1db6")):
        play = refused(
            lab_node,
            "reason(s) to stop before anything was changed",
            "node.interpreter [node]: /opt/other/bin/python3",
            "Set ansible_python_interpreter: /usr/bin/python3",
            "node.fstab [/etc/fstab]: line 4: 'UUID=1 /data' has 2 of at least 3 fields",
            "node.packages [/var/lib/dpkg/status]: bash is half-configured",
            "dpkg --configure -a",
            "node.package_source [file:/srv/none/ bookworm]",
            "/etc/apt/sources.list.d/none.sources",
            "driver.version [node]: 535, wanted an exact version (nvidia_driver_version)",
            "V100 PCIe 32 GB (10de:1db6) cannot be driven by the open modules",
            "node.gpus [pci]: 2 GPU(s)",
            "exactly 8 (preflight_expect_gpus)",
            "node.ram [node]",
            "at least 4096 GiB (preflight_ram_min_gib)",
            "inventory.variables [kernel_policy]: hodl, wanted gate, hold, none (role kernel)",
            "inventory.variables [nvidia_driver_pending_reboot]: warning, wanted warn, fail (role nvidia_driver)",
            ansible_python_interpreter="/opt/other/bin/python3",
            nvidia_driver_version="535",
            nvidia_driver_flavour="open",
            preflight_expect_gpus=8,
            preflight_ram_min_gib=4096,
            kernel_policy="hodl",
            nvidia_driver_pending_reboot="warning",
        )
    assert "10 reason(s)" in play.output


@pytest.mark.parametrize(
    ("device", "wishes", "fragments"),
    [
        (
            "1db6",
            {"nvidia_driver_version": "595.58.03", "nvidia_driver_flavour": "open"},
            ["is driven up to branch 580, not by 595.58.03", "set nvidia_driver_flavour to auto or proprietary"],
        ),
        (
            "2901",
            {"nvidia_driver_flavour": "proprietary"},
            ["B200 (10de:2901) needs branch 570 or newer, not 535.261.03", "set nvidia_driver_flavour to auto or open"],
        ),
        ("2330", {"preflight_cuda_releases": ["13.0"]}, ["driver.cuda [CUDA 13.0]", "580.65.06 or newer", "12.x"]),
    ],
    ids=["V100 with open", "B200 with 535", "CUDA 13 with 535"],
)
def test_drv_08_cud_05_impossible_pairs(lab_node, device, wishes, fragments):
    with made_bad(lab_node, gpus(device)):
        refused(lab_node, *fragments, **wishes)


def test_broken_source_file_is_named(lab_node):
    with made_bad(
        lab_node, ("echo 'deb foo' > /etc/apt/sources.list.d/bad.list", "rm /etc/apt/sources.list.d/bad.list")
    ):
        refused(lab_node, "Malformed entry 1 in list file /etc/apt/sources.list.d/bad.list")


def test_driver_repository_that_does_not_answer(lab_node):
    refused(
        lab_node,
        "node.package_source [http://127.0.0.1:9/cuda /]",
        "refused",
        "nvidia_driver_repo_key",
        nvidia_driver_source="cuda_repo",
        nvidia_driver_repo_uri="http://127.0.0.1:9/cuda",
    )


def test_package_lock_that_stays_held_names_its_holder(lab_node):
    # flock(1) takes another kind of lock than apt and dpkg do.
    lock = "import fcntl; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, fcntl.LOCK_EX{})"
    program = lock.format("") + "; __import__('signal').pause()"
    hold = f'systemd-run --quiet --unit=holder /usr/bin/python3 -c "{program}"'
    taken = 'while python3 -c "{}"; do sleep 0.2; done'.format(lock.format(" | fcntl.LOCK_NB"))
    with made_bad(lab_node, (f"{hold}; {taken} 2>/dev/null", "systemctl stop holder")):
        refused(lab_node, "node.package_lock", "held by process", "lockf", "preflight_lock_wait", preflight_lock_wait=1)


def test_own_killed_run_only_warns_that_it_will_be_repaired(lab_node):
    with made_bad(lab_node, KILLED, HALF):
        play = lab_node.play(PLAYBOOK, **GOOD).passed()
    text = " ".join(play.output.split())
    assert "a run of this collection, started 2026-01-02T03:04:05Z, was cut off" in text
    assert "will be repaired by this run" in text


def test_svc_08_node_without_gpu(lab_node):
    hidden = (
        "for gpu in /sys/bus/pci/devices/*/class; do echo 0x088000 > $gpu; done",
        "for gpu in /sys/bus/pci/devices/*/class; do echo 0x030200 > $gpu; done",
    )
    with made_bad(lab_node, hidden):
        refused(lab_node, "node.gpus [pci]: 0 GPU(s) on the PCI bus, wanted at least one (preflight_expect_gpus)")
        lab_node.play(PLAYBOOK, **GOOD, preflight_expect_gpus=False).passed()


def test_wrong_type_names_the_variable_before_anything_is_read(lab_node):
    refused(lab_node, "preflight_root_fs_max_percent", preflight_root_fs_max_percent="full")
    refused(lab_node, "preflight_cuda_policy", "refuse, warn", preflight_cuda_policy="ignore")


def test_accepted_check_warns_only(lab_node):
    play = lab_node.play(PLAYBOOK, **GOOD, preflight_ram_min_gib=4096, preflight_accept=["node.ram"]).passed()
    assert "accepted by preflight_accept" in " ".join(play.output.split())


def test_site_refuses_a_version_in_no_repository_before_any_layer_changed_anything(lab_node):
    """The private apt state in which the plan is made leaves no trace on the node either."""
    before = lab_node.out(SNAPSHOT)
    play = lab_node.play("site.yml", **{**GOOD, "nvidia_driver_version": "535.999.01"})
    play.refused("535.999.01", "535.261.03")
    assert play.changed(lab_node.name) == 0
    assert lab_node.out(SNAPSHOT) == before
