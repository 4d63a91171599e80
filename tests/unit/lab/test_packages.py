"""The stand-in packages: a consistent catalog with the traps that scenarios count on."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from packages import build as builder
from packages import catalog, debian, ubuntu
from packages.artifacts import Artifacts, module_source
from packages.model import DRIVERS, Package

KERNELS = ["6.1.0-50-amd64", "6.12.95+deb12-amd64"]
PROVIDED_BY_LAB = "Provides"


def universe_of(path: str) -> str:
    """Return what a repository is used together with: a Debian release, an Ubuntu release, one CUDA repository."""
    return "/".join(path.split("/")[:2]).replace("-security", "")


REPOSITORIES = catalog.repositories(KERNELS)
ALL = [(repository, package) for repository in REPOSITORIES for package in repository.packages]
UNIVERSES = sorted({universe_of(repository.path) for repository in REPOSITORIES})


def alternatives(relation: str) -> list:
    """Split "a (>= 1) | b, c" into [[(a, >=, 1), (b, None, None)], [(c, None, None)]]."""
    result = []
    for group in relation.split(","):
        parts = []
        for item in group.split("|"):
            match = re.fullmatch(r"\s*([a-z0-9][a-z0-9+.:-]+)\s*(?:\((<<|<=|=|>=|>>) ([^)]+)\))?\s*", item)
            assert match, f"not a relation: {item!r}"
            parts.append(match.groups())
        result.append(parts)
    return result


def order(version: str) -> list:
    """Return a sort key for upstream versions with numeric parts, enough for the versions here."""
    return [int(part) for part in re.findall(r"\d+", version.split("-", 1)[0])]


def holds(have: str, operator: str, wanted: str) -> bool:
    """Return whether a version satisfies a relation (compared as dpkg does, where dpkg is there)."""
    if shutil.which("dpkg"):
        names = {"<<": "lt", "<=": "le", "=": "eq", ">=": "ge", ">>": "gt"}
        argv = ["dpkg", "--compare-versions", have, names[operator], wanted]
        return subprocess.run(argv, check=False).returncode == 0
    return {
        "<<": order(have) < order(wanted),
        "<=": order(have) <= order(wanted),
        "=": have == wanted,
        ">=": order(have) >= order(wanted),
        ">>": order(have) > order(wanted),
    }[operator]


def offers(universe: str) -> dict:
    """Return name -> versions (None for an unversioned virtual package) that a universe has."""
    found: dict = {}
    for repository, package in ALL:
        if universe_of(repository.path) != universe:
            continue
        found.setdefault(package.name, set()).add(package.version)
        for name, _sign, version in (
            (group[0] for group in alternatives(package.relations[PROVIDED_BY_LAB]))
            if package.relations.get(PROVIDED_BY_LAB)
            else ()
        ):
            found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("universe", UNIVERSES)
def test_every_dependency_can_be_had(universe):
    found = offers(universe)
    cache: dict = {}

    def satisfied(name, operator, version):
        if name in catalog.REAL_PACKAGES or name.removeprefix("linux-image-") in KERNELS:
            return True
        key = (name, operator, version)
        if key not in cache:
            cache[key] = any(
                operator is None or (have and holds(have, operator, version)) for have in found.get(name, ())
            )
        return cache[key]

    missing = []
    for repository, package in ALL:
        if universe_of(repository.path) != universe:
            continue
        for kind in ("Pre-Depends", "Depends"):
            for group in alternatives(package.relations[kind]) if package.relations.get(kind) else ():
                if not any(satisfied(*item) for item in group):
                    missing.append((package.name, package.version, group))
    assert missing == []


@pytest.mark.parametrize("repository", REPOSITORIES, ids=lambda item: item.path)
def test_names_versions_and_descriptions_are_well_formed(repository):
    for package in repository.packages:
        assert re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package.name), package
        assert re.fullmatch(r"\d[A-Za-z0-9.+~-]*", package.version), package
        assert "{" not in "".join(package.relations.values()), package
        assert "stand-in" in builder.control(package), package
        assert set(package.relations) <= set(builder.RELATIONS), package


def test_no_package_is_twice_in_a_repository():
    assert len(builder.unique(REPOSITORIES)) == len(ALL)


def test_the_versions_that_scenarios_count_on():
    def versions(suite, name):
        return [package.version for package in debian.SUITES[suite] if package.name == name]

    assert versions("bookworm", "nvidia-kernel-dkms") == ["535.183.06-1~deb12u1", "535.261.03-1", "550.163.01-1~lab"]
    assert versions("bookworm-security", "nvidia-kernel-dkms") == ["535.309.01-0+deb12u1"]
    assert versions("bookworm-security", "nvidia-modprobe") == ["535.309.01-0+deb12u1"]
    assert versions("bookworm-security", "firmware-nvidia-gsp") == ["535.309.01-0+deb12u1"]
    assert versions("bookworm-security", "nvidia-open-kernel-dkms") == []
    assert versions("bookworm", "nvidia-modprobe") == ["535.161.07-1~deb12u1"]
    assert versions("bookworm", "nvidia-persistenced") == ["535.171.04-1~deb12u1"]
    assert versions("trixie", "nvidia-kernel-dkms") == ["535.261.03-1~lab", "550.163.01-2"]
    assert versions("trixie", "nvidia-modprobe") == ["570.133.07-1"]


def test_components_are_debians():
    places = {
        (package.name, repository.path.rsplit("/", 1)[1])
        for repository, package in ALL
        if repository.path.startswith("debian/")
    }
    assert {
        ("nvidia-open-kernel-dkms", "contrib"),
        ("nvidia-persistenced", "contrib"),
        ("nvidia-modprobe", "contrib"),
        ("firmware-nvidia-gsp", "non-free-firmware"),
        ("nvidia-kernel-dkms", "non-free"),
    } <= places


def cuda(distro: str, name: str) -> list:
    return [
        package for repository, package in ALL if repository.path == f"cuda/{distro}/x86_64" and package.name == name
    ]


def test_drv_01_newest_cuda_drivers_depends_on_nothing():
    newest = [package for package in cuda("debian12", "cuda-drivers") if package.version.startswith("615.")]
    assert len(newest) == 1
    assert newest[0].relations == {}


def test_drv_02_branch_570_is_transitional_to_580():
    names = {package.name: package for package in ubuntu.packages("jammy", [])}
    for name in ("nvidia-driver-570-server", "nvidia-headless-570-server", "nvidia-headless-570-server-open"):
        assert names[name].upstream == "580.126.20"
        assert names[name].relations["Depends"] == name.replace("570", "580")


def test_drv_03_only_the_top_is_pinned_by_its_version():
    top = next(item for item in cuda("ubuntu2204", "nvidia-headless-535") if item.version.startswith("535.183"))
    assert "libnvidia-compute-535 (>= 535.183.06)" in top.relations["Depends"]
    assert "<=" not in top.relations["Depends"]
    assert max(order(package.version) for package in cuda("ubuntu2204", "nvidia-modprobe"))[0] == 610


def test_drv_05_two_origins_offer_one_name_with_different_revisions():
    archive = {package.version for package in ubuntu.packages("jammy", []) if package.name == "libnvidia-compute-535"}
    vendor = {package.version for package in cuda("ubuntu2204", "libnvidia-compute-535")}
    assert {version.split("-")[0] for version in archive} & {version.split("-")[0] for version in vendor}
    assert not archive & vendor


def test_names_lose_the_branch_at_590_and_fabric_manager_at_580():
    assert cuda("ubuntu2204", "libnvidia-compute-580")
    assert not cuda("ubuntu2204", "libnvidia-compute-590")
    assert [package.upstream for package in cuda("ubuntu2204", "libnvidia-compute")] == ["590.48.01"]
    assert {package.upstream for package in cuda("ubuntu2204", "nvidia-fabricmanager")} == {"580.126.20", "590.48.01"}
    assert cuda("ubuntu2204", "nvidia-fabricmanager-535")
    names = {package.name for package in ubuntu.packages("noble", [])}
    assert {"nvidia-fabricmanager-535", "nvidia-fabricmanager-580"} <= names and "nvidia-fabricmanager" not in names


def test_ubuntus_firmware_has_the_version_in_its_name_and_relations_are_ranges():
    names = {package.name: package for package in ubuntu.packages("noble", [])}
    assert "nvidia-firmware-535-server-535.288.01" in names
    relation = names["nvidia-headless-no-dkms-535-server"].relations["Depends"]
    assert "libnvidia-compute-535-server (<= 535.288.01-1), libnvidia-compute-535-server (>= 535.288.01)" in relation
    assert names["nvidia-driver-580-server"].fields == {"Support": "LTSB", "Prefer-Variant": "Open"}


def test_krn_07_a_meta_brings_a_kernel_that_nobody_asked_for():
    names = {package.name: package for package in ubuntu.packages("jammy", KERNELS)}
    modules = names[names["linux-modules-nvidia-580-server-generic"].relations["Depends"]]
    assert f"linux-image-{ubuntu.NEWER_KERNEL}" in modules.relations["Depends"]
    assert f"linux-modules-nvidia-535-server-open-{KERNELS[0]}" in names
    assert f"linux-objects-nvidia-535-server-{KERNELS[0]}" in names


def test_cud_02_keyring_brings_a_source_file_of_its_own():
    keyring = cuda("debian12", "cuda-keyring")[0]
    assert any(entry.path == "/etc/apt/sources.list.d/cuda-debian12-x86_64.list" for entry in keyring.entries)


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("535.183.06", "6.1"),
        ("535.261.03", "6.1 to 6.12"),
        ("550.163.01", "6.1 to 6.12"),
    ],
)
def test_module_source_names_the_kernels_it_knows(tmp_path, version, known):
    module_source("nvidia-current", version, "proprietary", "nvidia-current", tmp_path)
    assert f'does not know this kernel: it knows {known}"' in (tmp_path / "stand_in.h").read_text()
    conf = (tmp_path / "dkms.conf").read_text()
    assert 'DEST_MODULE_NAME[0]="nvidia-current"' in conf
    assert 'BUILT_MODULE_NAME[0]="nvidia"' in conf
    for path in tmp_path.iterdir():
        assert not re.search("@[A-Z]+@", path.read_text())


@pytest.mark.parametrize(
    ("driver", "release", "known"),
    [
        ("535.183.06", "6.1.0-57-amd64", True),
        ("535.183.06", "6.12.95+deb12-amd64", False),
        ("550.163.01", "6.12.118-amd64", True),
        ("550.163.01", "7.3.4-amd64", False),
    ],
)
def test_which_driver_knows_which_kernel(driver, release, known):
    assert ubuntu.knows(driver, release) is known


@pytest.mark.usefixtures("build_tools")
def test_a_package_is_the_same_bytes_twice_and_has_its_parts(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", builder.EPOCH)
    artifacts = Artifacts(tmp_path / "artifacts")
    package = next(item for item in debian.SUITES["bookworm"] if item.name == "nvidia-kernel-support")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = builder.make_deb(package, tmp_path / "a", artifacts)
    second = builder.make_deb(package, tmp_path / "b", artifacts)
    assert first.read_bytes() == second.read_bytes()
    fields = subprocess.run(
        ["dpkg-deb", "-f", str(first), "Source", "Provides"], capture_output=True, text=True, check=True
    ).stdout
    assert "Source: nvidia-graphics-drivers" in fields
    subprocess.run(["dpkg-deb", "-R", str(first), str(tmp_path / "tree")], check=True)
    assert "blacklist nouveau" in (tmp_path / "tree/etc/nvidia/current/nvidia-blacklists-nouveau.conf").read_text()
    assert "/etc/nvidia/current/nvidia-modprobe.conf" in (tmp_path / "tree/DEBIAN/conffiles").read_text().splitlines()


def test_wrong_options_are_refused(tmp_path, capsys):
    assert builder.main(["--out", str(tmp_path), "--kernel-headers", f"{tmp_path}"]) == 1
    assert "must be DIR:RELEASE" in capsys.readouterr().err
    assert builder.main(["--out", str(tmp_path), "--prebuilt-modules", f"{tmp_path}/no:6.1.0-1-amd64"]) == 1
    assert "is not a folder" in capsys.readouterr().err


def test_real_packages_are_listed(capsys):
    assert builder.main(["--real-packages"]) == 0
    assert {"dkms", "pciutils", "adduser"} <= set(capsys.readouterr().out.split())


def test_a_package_twice_in_the_catalog_is_a_mistake():
    repository = REPOSITORIES[0]
    twice = type(repository)(repository.path, "component", "x", "x", "x", repository.packages[:1] * 2)
    with pytest.raises(builder.BuildError, match="twice"):
        builder.unique([twice])


def test_filename_has_no_epoch():
    assert Package("a", "1:2-3", "libs", "x").filename() == "a_2-3_amd64.deb"


def test_every_driver_of_the_catalog_has_a_row():
    used = {
        entry.data.split(":")[1]
        for _name, package in ALL
        for entry in package.entries
        if entry.kind == "artifact" and entry.data.startswith(("nvml:", "cuda:"))
    }
    assert used <= set(DRIVERS)
