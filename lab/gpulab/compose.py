# SPDX-License-Identifier: GPL-3.0-or-later
"""The tree that a node sees under /srv/lab: Debian, CUDA and Ubuntu repositories, indexed and signed.

debian/          the suites of one Debian release: main holds real packages, contrib, non-free and
                 non-free-firmware hold the simulated driver
cuda/            flat repository with the names of NVIDIA's own (suite "/"), for Debian; below it each
                 distribution's own, as cuda/ubuntu2204/x86_64
ubuntu/          the Ubuntu suite that is played on this Debian release
keys/            public keys and their fingerprints
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any, Mapping

from . import debs, keys
from .suites import Suite

COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
UBUNTU_COMPONENTS = ("main", "restricted", "universe", "multiverse")
# Debian release -> the Ubuntu release that is played on it
UBUNTU_ON = {"bookworm": ("jammy", "22.04"), "trixie": ("noble", "24.04")}
CUDA_ON_TOP = "debian12"
CUDA_RELEASE = {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architecture": "amd64"}


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def dist(target: Path, name: str, release: debs.Release, components: Mapping[str, list[str]], now: float) -> Path:
    """Writes dists/NAME below target; returns its Release file, still to be signed."""
    folder = target / "dists" / name
    indexes: dict[str, bytes] = {}
    for component, stanzas in components.items():
        data = debs.packages_text(stanzas)
        indexes[f"{component}/binary-amd64/Packages"] = data
        indexes[f"{component}/binary-amd64/Packages.gz"] = debs.compressed(data)
    for path, data in indexes.items():
        _write(folder / path, data)
    _write(folder / "Release", release.text(indexes, now, components).encode())
    return folder / "Release"


def _simulated(folder: Path | None, target: Path, pool: str) -> list[str]:
    """Stanzas of the .deb files in a folder, which are linked into the pool."""
    if folder is None or not folder.is_dir():
        return []
    found = []
    for deb in sorted(folder.rglob("*.deb")):
        name = f"{pool}/{deb.name}"
        _link(deb, target / name)
        found.append(debs.deb_stanza(deb, name))
    return found


def _debian(
    suite: Suite, index: Mapping[str, Mapping[str, Any]], simulated: Path | None, target: Path, now: float
) -> list[Path]:
    releases = []
    for archive in suite.archives:
        part = index[archive]
        components: dict[str, list[str]] = {name: [] for name in COMPONENTS}
        components["main"] = list(part["stanzas"])
        for component in COMPONENTS:
            folder = simulated / "debian" / archive / component if simulated else None
            components[component] += _simulated(folder, target, f"pool/{component}/lab/{archive}")
        release = debs.Release(dict(part["release"]))
        releases.append(dist(target, archive, release, components, now))
    return releases


def _ubuntu(
    suite: Suite, index: Mapping[str, Mapping[str, Any]], simulated: Path | None, target: Path, now: float
) -> list[Path]:
    """Ubuntu's names and origins; the tool chain in main is Debian's, because the stand-in's user space is."""
    codename, version = UBUNTU_ON[suite.name]
    components: dict[str, list[str]] = {name: [] for name in UBUNTU_COMPONENTS}
    folder = simulated / "ubuntu" / codename if simulated else None
    own = set()
    for stanza in _simulated(folder, target, "pool/lab/" + codename):
        head = debs.fields(stanza)
        own.add(head["Package"])
        component = head.get("Section", "").partition("/")[0]
        components[component if component in components else "main"].append(stanza)
    for part in index.values():
        for stanza in part["stanzas"]:
            if debs.fields(stanza)["Package"] not in own:
                components["main"].append(stanza)
    release = debs.Release(
        {"Origin": "Ubuntu", "Label": "Ubuntu", "Suite": codename, "Version": version, "Codename": codename}
    )
    return [dist(target, codename, release, components, now)]


def _flat(found: list[Path], target: Path, now: float) -> Path:
    """Writes the index of these .deb files, which lie below target; returns its Release file, still to be signed."""
    data = debs.packages_text([debs.deb_stanza(deb, f"./{deb.relative_to(target)}") for deb in found])
    indexes = {"Packages": data, "Packages.gz": debs.compressed(data)}
    for name, content in indexes.items():
        _write(target / name, content)
    _write(target / "Release", debs.Release(dict(CUDA_RELEASE)).text(indexes, now).encode())
    return target / "Release"


def _cuda(simulated: Path | None, target: Path, now: float) -> list[Path]:
    """NVIDIA has one flat repository for each distribution; Debian's answers at the top as well."""
    target.mkdir(parents=True, exist_ok=True)
    if simulated:
        _link_tree(simulated / "cuda", target)
    folders = [folder for folder in sorted(target.glob("*/x86_64")) if folder.is_dir()]
    releases = [_flat(sorted(folder.glob("*.deb")), folder, now) for folder in folders]
    return [*releases, _flat(sorted((target / CUDA_ON_TOP).rglob("*.deb")), target, now)]


def _link_tree(source: Path, target: Path) -> None:
    for path in source.rglob("*.deb"):
        _link(path, target / path.relative_to(source))


def compose(
    suite: Suite,
    index: Mapping[str, Mapping[str, Any]],
    base: Path,
    simulated: Path | None,
    target: Path,
    modules: Path | None = None,
) -> None:
    """Writes the whole tree.

    base holds the pool of real packages, simulated the output of lab/packages/build.py; modules is its output for
    Ubuntu alone, with prebuilt modules for the kernels of this suite.
    """
    now = time.time()
    for name in ("debian", "ubuntu"):
        _link_tree(base / "pool", target / name / "pool")
    keys.sign("debian", _debian(suite, index, simulated, target / "debian", now))
    keys.sign("ubuntu", _ubuntu(suite, index, modules or simulated, target / "ubuntu", now))
    keys.sign("cuda", _cuda(simulated, target / "cuda", now))
    for name in keys.OWNERS:
        _link(keys.public(name), target / "keys" / (name + ".asc"))
        _write(target / "keys" / (name + ".fingerprint"), (keys.fingerprint(name) + "\n").encode())
    _link(keys.public("cuda"), target / "cuda" / "cuda-archive.asc")
