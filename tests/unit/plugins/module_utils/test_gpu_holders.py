"""Who holds the GPUs: fixture trees of /proc with control groups as systemd, containers and kubelets write them."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_holders

UID = "0b7f4dd5-9d1c-4f2c-a5a3-6f8a7f0a1c22"
CONTAINER = "4f5c" * 16
CGROUPS = {
    "unified, a service": ("0::/system.slice/torchserve.service\n", ("torchserve.service", "", "")),
    "unified, a login": ("0::/user.slice/user-1000.slice/session-3.scope\n", ("session-3.scope", "", "")),
    "unified, a user's own service": (
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/notebook.service\n",
        ("notebook.service", "", ""),
    ),
    "unified, docker": (
        f"0::/system.slice/docker-{CONTAINER}.scope\n",
        (f"docker-{CONTAINER}.scope", CONTAINER, ""),
    ),
    "unified, k3s with systemd's driver": (
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-{}.scope\n".format(
            UID.replace("-", "_"), CONTAINER
        ),
        (f"cri-containerd-{CONTAINER}.scope", CONTAINER, UID),
    ),
    "unified, a guaranteed pod": (
        "0::/kubepods.slice/kubepods-pod{}.slice/crio-{}.scope/container\n".format(UID.replace("-", "_"), CONTAINER),
        (f"crio-{CONTAINER}.scope", CONTAINER, UID),
    ),
    "old hierarchy, cgroupfs": (
        f"4:devices:/kubepods/besteffort/pod{UID}/{CONTAINER}\n1:name=systemd:/kubepods/besteffort/pod{UID}/{CONTAINER}\n",
        ("", CONTAINER, UID),
    ),
    "old hierarchy, a service": (
        "5:memory:/system.slice/serving.service\n1:name=systemd:/system.slice/serving.service\n0::/\n",
        ("serving.service", "", ""),
    ),
    "seen from a container": ("0::/\n", ("", "", "")),
    "nothing to read": ("", ("", "", "")),
}


def process(root, pid, name, cgroup, *targets):
    folder = root / "proc" / str(pid) / "fd"
    folder.mkdir(parents=True)
    (folder.parent / "comm").write_text(name + "\n")
    (folder.parent / "cgroup").write_text(cgroup)
    for number, target in enumerate(targets):
        os.symlink(target, folder / str(number))


@pytest.mark.parametrize("text, wanted", CGROUPS.values(), ids=CGROUPS)
def test_a_control_group_tells_unit_container_and_pod(text, wanted):
    found = _gpu_holders.parse_cgroup(text)
    assert (found["unit"], found["container"], found["pod"]) == wanted


def test_drv_11_all_holders_are_listed_with_unit_or_pod(tmp_path):
    pod = CGROUPS["unified, k3s with systemd's driver"][0]
    process(tmp_path, 900, "python3", pod, "/dev/null", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0")
    process(tmp_path, 1200, "tritonserver", "0::/system.slice/triton.service\n", "/dev/nvidia-uvm")
    process(tmp_path, 40, "gpu-burn", f"0::/system.slice/docker-{CONTAINER}.scope\n", "/dev/nvidia1")
    process(tmp_path, 41, "bash", "0::/user.slice/user-0.slice/session-1.scope\n", "/dev/pts/0")
    process(tmp_path, 50, "nvidia-persiste", "0::/system.slice/nvidia-persistenced.service\n", "/dev/nvidiactl")
    (tmp_path / "proc/1").mkdir()
    (tmp_path / f"var/log/pods/serving_resnet-7c9d_{UID}").mkdir(parents=True)

    found = _gpu_holders.holders(str(tmp_path))
    assert [(one["pid"], one["service"]) for one in found] == [(40, False), (50, True), (900, False), (1200, False)]
    assert found[2]["devices"] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert found[2]["pod"] == {"uid": UID, "namespace": "serving", "name": "resnet-7c9d"}
    assert _gpu_holders.users(str(tmp_path)) == [
        f"40 gpu-burn (container {CONTAINER[:12]})",
        "900 python3 (pod serving/resnet-7c9d)",
        "1200 tritonserver (triton.service)",
    ]


def test_a_pod_without_a_trace_of_its_name_is_shown_by_uid(tmp_path):
    process(tmp_path, 7, "python3", CGROUPS["old hierarchy, cgroupfs"][0], "/dev/nvidia0")
    assert _gpu_holders.users(str(tmp_path)) == [f"7 python3 (pod {UID})"]


@pytest.mark.parametrize("name", _gpu_holders.SERVICES)
def test_daemons_that_serve_the_gpus_are_holders_and_no_users(tmp_path, name):
    assert len(name) <= 15
    process(tmp_path, 5, name, "0::/system.slice/some.service\n", "/dev/nvidiactl")
    assert _gpu_holders.users(str(tmp_path)) == []
    assert [one["service"] for one in _gpu_holders.holders(str(tmp_path))] == [True]


@pytest.mark.parametrize(
    "target", ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-nvswitchctl", "/dev/nvidia3 (deleted)"]
)
def test_every_device_of_the_driver_counts(tmp_path, target):
    process(tmp_path, 5, "python3", "", target)
    assert _gpu_holders.users(str(tmp_path)) == ["5 python3"]


def test_the_reader_of_the_health_checks_is_nobodys_work(tmp_path):
    """It has the devices open for a moment each minute; a planned change that meets it there is not to be refused."""
    process(tmp_path, 77, "gpu-node-nvml", "0::/system.slice/gpu-node-health.service\n", "/dev/nvidiactl")
    assert [one["service"] for one in _gpu_holders.holders(str(tmp_path))] == [True]
    assert _gpu_holders.users(str(tmp_path)) == []
