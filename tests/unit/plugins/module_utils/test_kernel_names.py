"""Which packages are a kernel, by name."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _kernel_names

KERNELS = [
    "linux-image-amd64",
    "linux-image-cloud-amd64",
    "linux-image-rt-amd64",
    "linux-image-6.1.0-57-amd64",
    "linux-image-6.12.95+deb12-amd64",
    "linux-image-unsigned-6.8.0-60-generic",
    "linux-modules-6.8.0-60-generic",
    "linux-modules-extra-6.8.0-60-generic",
    "linux-modules-iwlwifi-6.8.0-60-generic",
    "linux-modules-extra-aws",
    "linux-modules-6.8.0-1009-nvidia",
    "linux-image-nvidia-hwe-24.04",
    "linux-generic",
    "linux-generic-hwe-22.04",
    "linux-generic-hwe-22.04-edge",
    "linux-generic-64k-hwe-24.04",
    "linux-virtual-hwe-24.04",
    "linux-lowlatency",
    "linux-lowlatency-hwe-22.04",
    "linux-aws",
    "linux-aws-6.8",
    "linux-aws-lts-24.04",
    "linux-azure",
    "linux-azure-fde-lts-22.04",
    "linux-gcp",
    "linux-gke",
    "linux-gke-5.15",
    "linux-gkeop",
    "linux-ibm",
    "linux-kvm",
    "linux-nvidia",
    "linux-nvidia-tegra",
    "linux-oem-22.04d",
    "linux-oracle-lts-22.04",
    "linux-raspi",
    "linux-realtime",
    "linux-intel-iotg",
    "linux-server",
]
HEADERS = [
    "linux-headers-amd64",
    "linux-headers-6.1.0-57-amd64",
    "linux-headers-6.1.0-57-common",
    "linux-headers-generic-hwe-22.04",
    "linux-headers-6.8.0-1009-aws",
    "linux-aws-headers-6.8.0-1009",
    "linux-hwe-6.8-headers-6.8.0-60",
    "linux-raspi-headers-6.8.0-1004",
]
OTHERS = [
    "linux-libc-dev",
    "linux-base",
    "linux-firmware",
    "linux-kbuild-6.1",
    "linux-compiler-gcc-12-x86",
    "linux-doc",
    "linux-tools-6.8.0-60-generic",
    "linux-aws-tools-6.8.0-1009",
    "linux-cloud-tools-generic",
    "linux-source",
    "linux-perf",
    "linux-crashdump",
    "linux-modules-nvidia-580-server-6.8.0-60-generic",
    "linux-modules-nvidia-535-generic",
    "linux-modules-nvidia-fs-6.8.0-60-generic",
    "linux-objects-nvidia-535-6.8.0-60-generic",
    "linux-signatures-nvidia-6.8.0-60-generic",
    "nvidia-kernel-dkms",
]


@pytest.mark.parametrize("name", KERNELS)
def test_krn_07_images_modules_and_metas_are_a_kernel(name):
    assert _kernel_names.is_kernel(name) and _kernel_names.is_kernel_package(name)
    assert not _kernel_names.is_headers(name)


@pytest.mark.parametrize("name", HEADERS)
def test_krn_07_headers_belong_to_a_kernel_and_bring_none(name):
    assert _kernel_names.is_headers(name) and _kernel_names.is_kernel_package(name)
    assert not _kernel_names.is_kernel(name)


@pytest.mark.parametrize("name", OTHERS)
def test_krn_07_the_rest_is_none(name):
    assert not _kernel_names.is_kernel_package(name)
