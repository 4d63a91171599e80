"""The table of package names: boundaries, families, flavours."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_names as names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._dpkg import upstream_version

REAL = (Path(__file__).parent / "fixtures/apt/bookworm-nvidia-names.txt").read_text().splitlines()
DRIVER_SOURCES = ("nvidia-graphics-drivers", "nvidia-open-gpu-kernel-modules")
OWN_SOURCES = ("nvidia-modprobe", "nvidia-persistenced", "nvidia-settings", "nvidia-xconfig")


@pytest.mark.parametrize("line", REAL)
def test_family_matches_the_source_packages_of_real_debian(line):
    name, version, source = [*line.split(), ""][:3]
    source = source or name
    belongs = source.startswith(DRIVER_SOURCES) or source.startswith(OWN_SOURCES)
    if name == "nvidia-kernel-common":  # the same name is the driver's in Ubuntu and the vendor's repository
        assert names.is_family(name) and not names.is_driver_version(upstream_version(version))
        return
    assert names.is_family(name) is belongs
    if belongs:
        assert names.is_driver_version(upstream_version(version))


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-container-toolkit",
        "libnvidia-container1",
        "nvidia-driver-pinning-580",
        "cuda-toolkit-12-4",
        "nvidia-prime",
    ],
)
def test_drv_05_strangers_stay_out_of_the_family(name):
    assert not names.is_family(name)


@pytest.mark.parametrize(
    ("packaging", "branch", "flavour", "variant", "module", "required"),
    [
        ("debian", 535, "proprietary", "", "nvidia-kernel-dkms", "libcuda1"),
        ("debian", 535, "open", "", "nvidia-open-kernel-dkms", "nvidia-smi"),
        ("debian", 470, "proprietary", "tesla-470", "nvidia-tesla-470-kernel-dkms", "libnvidia-tesla-470-cuda1"),
        ("ubuntu", 470, "proprietary", "-server", "nvidia-dkms-470-server", "nvidia-utils-470-server"),
        ("ubuntu", 580, "open", "-server", "nvidia-dkms-580-server-open", "nvidia-headless-no-dkms-580-server-open"),
        ("ubuntu", 550, "open", "", "nvidia-dkms-550-open", "nvidia-utils-550"),
        ("cuda_debian", 580, "open", "", "nvidia-kernel-open-dkms", "nvidia-driver-cuda"),
        ("cuda_debian", 580, "proprietary", "", "nvidia-kernel-dkms", "nvidia-driver-cuda"),
        ("cuda_ubuntu", 580, "open", "", "nvidia-dkms-580-open", "libnvidia-compute-580"),
        ("cuda_ubuntu", 580, "proprietary", "", "nvidia-dkms-580", "nvidia-utils-580"),
        ("cuda_ubuntu", 590, "open", "", "nvidia-dkms-open", "libnvidia-compute"),
        ("cuda_ubuntu", 610, "proprietary", "", "nvidia-dkms", "libnvidia-compute"),
    ],
)
def test_roots_by_packaging_and_branch(packaging, branch, flavour, variant, module, required):
    roots = names.roots(packaging, branch, flavour, ("compute",), variant)
    assert roots.module == module
    assert required in roots.required
    assert names.carries_module(module)
    assert all(names.is_family(name) for name in (*roots.required, *roots.optional, roots.module, *roots.metas))


@pytest.mark.parametrize(
    ("packaging", "branch", "fabric", "imex"),
    [
        ("cuda_ubuntu", 535, ("nvidia-fabricmanager-535", "libnvidia-nscq-535"), ()),
        ("cuda_ubuntu", 550, ("nvidia-fabricmanager-550", "libnvidia-nscq-550"), ("nvidia-imex-550",)),
        ("cuda_ubuntu", 560, ("nvidia-fabricmanager-560", "libnvidia-nscq-560", "libnvsdm-560"), ("nvidia-imex-560",)),
        ("cuda_debian", 580, ("nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm"), ("nvidia-imex",)),
        ("ubuntu", 580, ("nvidia-fabricmanager-580",), ("nvidia-imex-580",)),
        ("debian", 550, (), ()),
    ],
)
def test_svc_03_companions_follow_their_own_boundaries(packaging, branch, fabric, imex):
    roots = names.roots(packaging, branch, "open", ("compute", "fabricmanager", "imex"))
    assert dict(roots.any_of) == {"fabricmanager": fabric, "imex": imex}


@pytest.mark.parametrize(
    ("branch", "open_modules", "proprietary"),
    [(470, False, True), (510, False, True), (515, True, True), (610, True, True), (615, True, False)],
)
def test_flavours_exist_within_their_branches(branch, open_modules, proprietary):
    assert names.has_flavour(branch, "open") is open_modules
    assert names.has_flavour(branch, "proprietary") is proprietary


@pytest.mark.parametrize(
    ("packaging", "flavour", "variant", "dkms"),
    [
        ("debian", "proprietary", "", "nvidia-current"),
        ("debian", "open", "", "nvidia-current-open"),
        ("ubuntu", "proprietary", "-server", "nvidia-srv"),
        ("ubuntu", "open", "-server", "nvidia"),
        ("ubuntu", "proprietary", "", "nvidia"),
        ("cuda_ubuntu", "proprietary", "", "nvidia"),
    ],
)
def test_dkms_names(packaging, flavour, variant, dkms):
    assert names.roots(packaging, 535, flavour, ("compute",), variant).dkms_name == dkms


@pytest.mark.parametrize(
    ("name", "branch", "expected"),
    [
        ("libnvidia-gl-535", 580, "libnvidia-gl-580"),
        ("nvidia-dkms-535-server-open", 580, "nvidia-dkms-580-server-open"),
        ("libcuda1", 580, "libcuda1"),
        ("nvidia-firmware-535-server-535.288.01", 580, "nvidia-firmware-580-server-535.288.01"),
    ],
)
def test_names_of_another_branch(name, branch, expected):
    assert names.renamed(name, branch) == expected


def test_sources_map_to_packagings():
    assert names.packagings("distro", "ubuntu") == ("ubuntu",)
    assert names.packagings("cuda_repo", "debian") == ("cuda_debian",)
    assert names.packagings("local_repo", "debian") == ("cuda_debian", "debian")
    assert not names.is_independent("cuda_debian", "nvidia-modprobe")
    assert names.is_independent("debian", "nvidia-modprobe")
