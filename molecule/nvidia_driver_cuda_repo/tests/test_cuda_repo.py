"""A driver from a stand-in of NVIDIA's repository: its names, its origin, Fabric Manager at the driver's version."""

from __future__ import annotations

import json


def record(host):
    return json.loads(host.file("/var/lib/gpu_node/driver.json").content_string)


def test_svc_03_all_packages_have_the_drivers_version(host):
    packages = record(host)["packages"]
    assert {version.split("-")[0] for version in packages.values()} == {"580.126.20"}
    assert {"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-fabricmanager", "libnvidia-nscq"} <= set(packages)
    for name, version in packages.items():
        assert host.package(name).version == version


def test_drv_05_debians_names_are_pinned_away_and_others_are_not(host):
    assert "Candidate: (none)" in host.check_output("apt-cache policy nvidia-smi")
    assert "Candidate: 12.4" in host.check_output("apt-cache policy cuda-toolkit-12-4")


def test_cud_01_the_source_trusts_this_key_alone(host):
    text = host.file("/etc/apt/sources.list.d/gpu-node-nvidia.sources").content_string
    assert "Signed-By: /etc/apt/keyrings/gpu-node-nvidia.asc" in text
    assert host.file("/etc/apt/keyrings/gpu-node-nvidia.asc").content_string.startswith(
        "-----BEGIN PGP PUBLIC KEY BLOCK"
    )
