"""A node with NVSwitches, in order: the fabric manager comes and goes with the driver, and never in another version."""

from __future__ import annotations

import json

import pytest

NODE_UP = ("--suite", "bookworm", "--gpus", "2", "--nvswitches", "4")
PLAYBOOK = "tests/lab/fabricmanager.yml"
VERSION, OTHER = "535.261.03", "535.183.06"
PACKAGE, UNIT = "nvidia-fabricmanager-535", "nvidia-fabricmanager.service"


@pytest.fixture(scope="module")
def cuda(lab_node, tmp_path_factory):
    """Return the variables of the stand-in of NVIDIA's repository."""
    path = tmp_path_factory.mktemp("keys") / "cuda.asc"
    path.write_text(lab_node.out("cat /srv/lab/keys/cuda.asc") + "\n")
    return {
        "nvidia_driver_version": VERSION,
        "nvidia_driver_source": "cuda_repo",
        "nvidia_driver_repo_uri": "file:/srv/lab/cuda/debian12/x86_64",
        "nvidia_driver_repo_key": str(path),
        "nvidia_driver_repo_key_fingerprint": lab_node.out("cat /srv/lab/keys/cuda.fingerprint"),
    }


def state(node):
    return node.out(f"systemctl show {UNIT} --property UnitFileState,ActiveState --value | tr '\\n' ' '").split()


def test_svc_04_a_source_without_it_is_refused_before_anything_changes(lab_node):
    before = lab_node.packages()
    more = {"without_headers": True, "nvidia_driver_version": VERSION}
    play = lab_node.play(PLAYBOOK, **more)
    play.refused("Nothing was changed", "'distro' has no fabricmanager", "4 NVSwitches on PCI (10de:22a3)")
    assert lab_node.packages() == before


def test_svc_03_same_version_in_the_same_transaction_and_not_started_before_the_reboot(lab_node, cuda):
    play = lab_node.play(PLAYBOOK, **cuda).passed()
    assert "is left as it is: the driver is not usable now" in " ".join(play.output.split())
    record = json.loads(lab_node.out("cat /var/lib/gpu_node/driver.json"))
    assert record["packages"][PACKAGE] == f"{VERSION}-1" and record["components"] == ["compute", "fabricmanager"]
    assert PACKAGE in lab_node.out("apt-mark showhold").split()
    assert PACKAGE in lab_node.out("cat /etc/apt/preferences.d/gpu-node-nvidia.pref")
    transactions = lab_node.out("grep ^Install: /var/log/apt/history.log").splitlines()
    assert len([line for line in transactions if PACKAGE in line and "nvidia-driver-cuda" in line]) == 1
    assert sorted(state(lab_node)) == ["enabled", "inactive"]


def test_svc_04_the_boot_starts_it_and_the_second_run_changes_nothing(lab_node, cuda):
    lab_node.reboot()
    assert sorted(state(lab_node)) == ["active", "enabled"]
    play = lab_node.play(PLAYBOOK, **cuda).passed()
    assert play.changed(lab_node.name) == 0


def test_svc_03_another_version_is_found_before_any_restart(lab_node, cuda):
    lab_node.sh(
        "cd /srv/lab/cuda/debian12/x86_64 && apt-mark unhold -q "
        f"{PACKAGE} && dpkg -i {PACKAGE}_{OTHER}-1_amd64.deb && apt-mark hold -q {PACKAGE}"
    )
    play = lab_node.play(PLAYBOOK, only_verify=True, **cuda)
    play.refused("fabricmanager.version", f"{PACKAGE} {OTHER} does not work with driver {VERSION}", "do not restart it")
    assert sorted(state(lab_node)) == ["active", "enabled"]
    lab_node.play(PLAYBOOK, **cuda).passed()
    assert lab_node.out(f"dpkg-query -W -f '${{Version}}' {PACKAGE}") == f"{VERSION}-1"


def test_svc_04_the_driver_takes_it_along(lab_node, cuda):
    lab_node.play(PLAYBOOK, **{**cuda, "nvidia_driver_state": "absent", "without_headers": True}).passed()
    assert "fabricmanager" not in lab_node.packages()
    assert lab_node.sh(f"systemctl is-active {UNIT}", check=False).stdout.strip() == "inactive"
    assert lab_node.out(f"find /etc/systemd/system -name {UNIT}") == ""
