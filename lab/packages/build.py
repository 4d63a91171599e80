#!/usr/bin/env python3
# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the lab's stand-in driver packages into folders that a repository index can be made of.

Layout of --out, also written as OUT/layout.json:
  debian/<suite>/<component>/*.deb     suites bookworm, bookworm-security, trixie; contrib, non-free, non-free-firmware
  cuda/<distro>/x86_64/*.deb           flat repositories (suite "/"), one a distribution: debian12, ubuntu2204
  ubuntu/<suite>/<component>/*.deb     suites jammy, noble; restricted, multiverse
Nothing is indexed or signed here. Needs gcc and dpkg-deb. The same inputs give the same bytes (SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from packages import catalog  # noqa: E402  (the path above makes it importable when this file is run)
from packages.artifacts import Artifacts, BuildError, execute, module_source, unpack_headers  # noqa: E402
from packages.model import HERE, Entry, Package, Repository  # noqa: E402

EPOCH = "1735689600"
MAINTAINER = "aiinfra.gpu_node lab <lab@example.invalid>"
RELATIONS = ("Provides", "Pre-Depends", "Depends", "Recommends", "Suggests", "Conflicts", "Breaks", "Replaces")


def control(package: Package) -> str:
    """Return the control file."""
    lines = [f"Package: {package.name}"]
    if package.source and package.source != package.name:
        lines.append(f"Source: {package.source}")
    lines += [
        f"Version: {package.version}",
        f"Architecture: {package.architecture}",
        f"Maintainer: {MAINTAINER}",
        f"Section: {package.section}",
        "Priority: optional",
    ]
    lines += [f"{name}: {value}" for name, value in package.fields.items()]
    lines += [f"{name}: {package.relations[name]}" for name in RELATIONS if package.relations.get(name)]
    lines += [
        f"Description: {package.summary} (lab stand-in)",
        " A stand-in of the package of this name: true name, version and relations, small contents.",
    ]
    return "\n".join(lines) + "\n"


def install_tree(target: Path, recipe: str) -> None:
    """Write a generated source tree: dkms:<DKMS name>:<driver version>:<flavour>:<prefix of the installed modules>."""
    kind, name, version, flavour, prefix = recipe.split(":")
    if kind != "dkms":
        raise BuildError(f"unknown tree {recipe}")
    module_source(name, version, flavour, prefix, target)


def install(root: Path, entry: Entry, artifacts: Artifacts) -> None:
    """Put one entry below the package's root."""
    target = root / entry.path.lstrip("/")
    if entry.kind == "dir":
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.kind == "link":
        target.symlink_to(entry.data)
    elif entry.kind == "tree":
        install_tree(target, entry.data)
    else:
        if entry.kind == "text":
            target.write_text(entry.data, encoding="utf-8")
        else:
            shutil.copyfile(artifacts.get(entry.data), target)
        target.chmod(entry.mode)


def make_deb(package: Package, folder: Path, artifacts: Artifacts) -> Path:
    """Build one package into folder."""
    result = folder / package.filename()
    with tempfile.TemporaryDirectory(prefix="gpulab-deb-") as scratch:
        root = Path(scratch) / "root"
        debian = root / "DEBIAN"
        debian.mkdir(parents=True)
        root.chmod(0o755)
        (debian / "control").write_text(control(package), encoding="utf-8")
        note = f"{package.name} {package.version}: a stand-in made for the lab of aiinfra.gpu_node.\n"
        install(root, Entry(f"/usr/share/doc/{package.name}/README.lab", "text", note), artifacts)
        for entry in package.entries:
            install(root, entry, artifacts)
        conffiles = [entry.path for entry in package.entries if entry.kind == "text" and entry.path.startswith("/etc/")]
        if conffiles:
            (debian / "conffiles").write_text("\n".join(conffiles) + "\n", encoding="utf-8")
        if package.triggers:
            (debian / "triggers").write_text("\n".join(package.triggers) + "\n", encoding="utf-8")
        for name, content in package.scripts.items():
            (debian / name).write_text(content, encoding="utf-8")
            (debian / name).chmod(0o755)
        for path in sorted(root.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        execute(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(result)])
    return result


def compile_all(packages: list[Package], artifacts: Artifacts, pool: concurrent.futures.Executor) -> None:
    """Compile every artifact once, before packages want it from several threads."""
    names = sorted({entry.data for package in packages for entry in package.entries if entry.kind == "artifact"})
    # All files of one kernel module build come from one make run: no two threads may ask for the same build.
    builds: dict[str, list[str]] = {}
    for name in names:
        builds.setdefault(name.rsplit(":", 1)[0] if name.startswith("module:") else name, []).append(name)
    list(pool.map(lambda group: [artifacts.get(name) for name in group], builds.values()))


def unique(repositories: list[Repository]) -> list[tuple[Path, Package]]:
    """Return each package with its folder; a name and version twice in one repository is a mistake in the catalog."""
    result: list[tuple[Path, Package]] = []
    seen: set[tuple[str, str]] = set()
    for repository in repositories:
        for package in repository.packages:
            key = (repository.path, package.filename())
            if key in seen:
                raise BuildError(f"{repository.path}: {package.filename()} is in the catalog twice")
            seen.add(key)
            result.append((Path(repository.path), package))
    return result


def inputs_hash(kernels: list[str]) -> str:
    """Return a hash of everything that decides the result, for a cache of the output."""
    digest = hashlib.sha256(repr(kernels).encode())
    for path in sorted(HERE.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(HERE).parts)
        if path.is_file() and not hidden and path.suffix != ".md":
            digest.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def pairs(values: list[str], option: str) -> dict[str, Path]:
    """Turn DIR:RELEASE into a map from release to folder."""
    result = {}
    for value in values:
        folder, separator, release = value.rpartition(":")
        if not separator or not re.match(r"^\d+\.\d+", release):
            raise BuildError(
                f"{option} {value}: must be DIR:RELEASE, for example "
                "/usr/src/linux-headers-6.1.0-57-amd64:6.1.0-57-amd64"
            )
        if not Path(folder).is_dir():
            raise BuildError(f"{option} {value}: {folder} is not a folder")
        result[release] = Path(folder).resolve()
    return result


def numbers(release: str) -> list[int]:
    """Return the numbers in a kernel release, for sorting."""
    return [int(part) for part in re.findall(r"\d+", release)]


def dearmored(path: Path) -> bytes:
    """Return a public key as apt wants it in a .gpg file."""
    content = path.read_bytes()
    if not content.startswith(b"-----"):
        return content
    body = content.decode("ascii").split("\n\n", 1)[1].split("\n=", 1)[0]
    return base64.b64decode(body)


def build(
    out: Path,
    jobs: int,
    headers: dict[str, Path],
    prebuilt: dict[str, Path],
    only: str,
    pool_of_headers: Path | None = None,
    cuda_key: Path | None = None,
) -> int:
    """Build all packages and return how many."""
    with tempfile.TemporaryDirectory(prefix="gpulab-build-") as scratch:
        if pool_of_headers is not None:
            headers = {**unpack_headers(pool_of_headers, Path(scratch) / "headers"), **headers}
        artifacts = Artifacts(Path(scratch) / "artifacts", headers, prebuilt)
        if cuda_key is not None:
            artifacts.put("key:cuda", dearmored(cuda_key))
        return build_with(out, jobs, artifacts, only)


def build_with(out: Path, jobs: int, artifacts: Artifacts, only: str) -> int:
    """Build the repositories whose path starts with `only`."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    kernels = sorted({*artifacts.headers, *artifacts.prebuilt}, key=numbers)
    repositories = [item for item in catalog.repositories(kernels) if item.path.startswith(only)]
    wanted = unique(repositories)
    for repository in repositories:
        folder = out / repository.path
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        compile_all([package for _, package in wanted], artifacts, pool)
        list(pool.map(lambda item: make_deb(item[1], out / item[0], artifacts), wanted))
    layout = [
        {
            "path": item.path,
            "kind": item.kind,
            "suite": item.suite,
            "origin": item.origin,
            "label": item.label,
            "component": item.path.rsplit("/", 1)[1] if item.kind == "component" else "",
            "packages": len(item.packages),
        }
        for item in repositories
    ]
    (out / "layout.json").write_text(json.dumps(layout, indent=2) + "\n", encoding="utf-8")
    return len(wanted)


def export_source(target: str) -> None:
    """Write the DKMS source of one driver for a build elsewhere: DIR:VERSION:FLAVOUR."""
    folder, version, flavour = target.rsplit(":", 2)
    module_source("nvidia", version, flavour, "nvidia", Path(folder))


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder to write to; folders of the layout in it are replaced")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="packages built side by side")
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="only repositories whose path starts so: debian/trixie"
    )
    parser.add_argument(
        "--kernel-headers",
        action="append",
        default=[],
        metavar="DIR:RELEASE",
        help="headers to compile the prebuilt linux-modules-nvidia-* against; may be an unpacked tree, "
        "with linux-headers-*-common beside it and linux-kbuild where its links point; repeatable",
    )
    parser.add_argument(
        "--headers-pool",
        type=Path,
        metavar="DIR",
        help="folder with Debian's linux-headers-* and linux-kbuild-* .deb files: prebuilt modules for "
        "each kernel whose headers can be used on this machine",
    )
    parser.add_argument(
        "--cuda-key",
        type=Path,
        metavar="FILE",
        help="public key that the CUDA repositories will be signed with, for cuda-keyring",
    )
    parser.add_argument(
        "--prebuilt-modules",
        action="append",
        default=[],
        metavar="DIR:RELEASE",
        help="the same from modules that were compiled elsewhere from the exported source: "
        "DIR/<version>-<flavour>/nvidia*.ko; repeatable",
    )
    parser.add_argument(
        "--export-source",
        metavar="DIR:VERSION:FLAVOUR",
        help="write the module source of one driver (flavour open or proprietary) and end",
    )
    parser.add_argument("--inputs-hash", action="store_true", help="print a hash of all inputs and end")
    parser.add_argument(
        "--real-packages",
        action="store_true",
        help="print the packages of Debian itself that the stand-ins depend on and end",
    )
    arguments = parser.parse_args(argv)
    try:
        headers = pairs(arguments.kernel_headers, "--kernel-headers")
        prebuilt = pairs(arguments.prebuilt_modules, "--prebuilt-modules")
        if arguments.inputs_hash:
            print(inputs_hash(sorted({*headers, *prebuilt})))
        elif arguments.real_packages:
            print("\n".join(sorted(catalog.REAL_PACKAGES - catalog.NOT_INSTALLABLE)))
        elif arguments.export_source:
            export_source(arguments.export_source)
        elif arguments.out is None:
            parser.error("--out is missing")
        else:
            started = time.monotonic()
            number = build(
                arguments.out.resolve(),
                max(1, arguments.jobs),
                headers,
                prebuilt,
                arguments.only,
                arguments.headers_pool,
                arguments.cuda_key,
            )
            print(f"{number} packages in {arguments.out} ({time.monotonic() - started:.0f} s)")
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
