# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpulab setup`: from an empty machine to images and repositories, and nothing twice."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import base, compose, debs, docker, keys, overlay, paths
from .hashing import digest, files_below
from .progress import LabError, locked, run, say, stop_children
from .suites import SUITES, Suite


@dataclass(frozen=True)
class Ready:
    """What a node of one suite is started from."""

    suite: Suite
    image: str
    repository: Path


def _packages_key() -> str:
    if not (paths.PACKAGES / "build.py").exists():
        return ""
    extra = [overlay.SIMGPU] if overlay.SIMGPU.exists() else []
    return digest([*files_below(paths.PACKAGES), *extra], paths.LAB, keys.fingerprint("cuda"))


def _simulated(log: Path) -> Path | None:
    """Output of lab/packages/build.py for today's sources; None while there is no such script."""
    key = _packages_key()
    if not key:
        return None
    target = paths.SIMULATED / key
    if not target.exists():
        part = paths.SIMULATED / (key + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        run(
            "building the simulated driver packages",
            [
                sys.executable,
                str(paths.PACKAGES / "build.py"),
                "--out",
                str(part),
                "--cuda-key",
                str(keys.public("cuda")),
            ],
            log,
            {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        part.rename(target)
    return target


def _headers(wanted: base.Base, folder: Path) -> None:
    """The header packages of the kernel that is in the image; modules for the others would only cost time."""
    stanzas: Any = wanted.index()[wanted.suite.kernel_suites[0]]["stanzas"]
    meta = next(head for head in map(debs.fields, stanzas) if head["Package"] == "linux-headers-amd64")
    release = meta["Depends"].split()[0].removeprefix("linux-headers-").removesuffix("-amd64")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for pattern in (f"linux-headers-{release}-*.deb", "linux-kbuild-*.deb"):
        for path in (wanted.folder / "pool").rglob(pattern):
            os.link(path, folder / path.name)


def _with_modules(wanted: base.Base, log: Path) -> Path | None:
    """The Ubuntu packages once more, with prebuilt modules for the kernel that is in the image."""
    suite = wanted.suite
    if not _packages_key():
        return None
    target = paths.SIMULATED / (f"{_packages_key()}-{suite.name}-{wanted.key}")
    if not target.exists():
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        pool = paths.WORK / f"headers-{suite.name}"
        _headers(wanted, pool)
        run(
            f"building prebuilt modules for the kernel of {suite.name}",
            [
                sys.executable, str(paths.PACKAGES / "build.py"), "--out", str(part),
                "--only", "ubuntu/" + compose.UBUNTU_ON[suite.name][0], "--headers-pool", str(pool),
            ],
            log,
            {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        part.rename(target)
        shutil.rmtree(pool)
    return target


def _ready(suite: Suite) -> Ready:
    """Names that today's inputs ask for; pure computation over files."""
    wanted = base.wanted(suite)
    here = Path(__file__).parent
    key = digest(
        [here / name for name in ("build.py", "compose.py", "debs.py")],
        here,
        wanted.key,
        _packages_key(),
        overlay.key(suite),
    )
    return Ready(
        suite,
        f"{paths.IMAGE_NAME}:{suite.name}-{key}",
        paths.REPOS / (f"{suite.name}-{key}"),
    )


def _complete(ready: Ready) -> bool:
    return ready.repository.is_dir() and docker.image_exists(ready.image)


def _finish(ready: Ready, simulated: Path | None, modules: Path | None) -> None:
    """Repository and image over the base."""
    suite = ready.suite
    wanted = base.wanted(suite)
    if not ready.repository.is_dir():
        say(f"[{suite.name}] local repositories")
        part = ready.repository.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        compose.compose(suite, wanted.index(), wanted.folder, simulated, part, modules)
        part.rename(ready.repository)
    name = f"gpulab-build-{suite.name}-{uuid.uuid4().hex[:6]}"
    say(f"[{suite.name}] finishing the image")
    try:
        docker.docker(
            "run", "-d", "--name", name, "--network", "none", "--label", paths.LABEL + "-build=1",
            "-v", f"{ready.repository}:/srv/lab:ro", wanted.image, "/bin/sleep", "600",
        )  # fmt: skip
        overlay.apply_to_container(suite, name)
        docker.docker("exec", "-e", "DEBIAN_FRONTEND=noninteractive", name, "/usr/lib/gpu-node-lab/install.sh", "late")
        docker.docker(
            "commit", "--change", 'CMD ["/usr/lib/gpu-node-lab/lab-init"]',
            "--change", f"LABEL {paths.LABEL}-image=1", name, ready.image,
        )  # fmt: skip
        docker.docker("tag", ready.image, f"{paths.IMAGE_NAME}:{suite.name}")
    finally:
        docker.docker("rm", "-f", name, check=False)


def _build(suite: Suite, simulated: concurrent.futures.Future[Path | None], pool: concurrent.futures.Executor) -> Ready:
    wanted = base.wanted(suite)
    modules: list[concurrent.futures.Future[Path | None]] = []

    def pool_ready() -> None:
        log = paths.LOGS / f"modules-{suite.name}.log"
        modules.append(pool.submit(_with_modules, wanted, log))

    base.build(wanted, pool_ready)
    ready = _ready(suite)
    packages = simulated.result()
    if not _complete(ready):
        if not modules:
            pool_ready()
        _finish(ready, packages, modules[0].result())
    link = paths.CURRENT / suite.name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink() or os.readlink(link) != str(ready.repository):
        fresh = link.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(ready.repository)
        fresh.rename(link)
    return ready


def ensure(names: list[str]) -> dict[str, Ready]:
    """Brings these suites up to date; side by side, with one engine."""
    docker.ensure_tools()
    docker.ensure_engine()
    keys.ensure()
    suites = [SUITES[name] for name in names]
    found = {suite.name: _ready(suite) for suite in suites}
    if all(_complete(ready) and (paths.CURRENT / name).exists() for name, ready in found.items()):
        return found
    with locked(paths.CACHE / "setup.lock"), concurrent.futures.ThreadPoolExecutor(max_workers=5) as pool:
        try:
            simulated = pool.submit(_simulated, paths.LOGS / "simulated.log")
            jobs = {suite.name: pool.submit(_build, suite, simulated, pool) for suite in suites}
            done, _ = concurrent.futures.wait(jobs.values(), return_when=concurrent.futures.FIRST_EXCEPTION)
            for job in done:
                job.result()
            return {name: job.result() for name, job in jobs.items()}
        except BaseException:
            stop_children()
            raise


def prune() -> None:
    """Removes what no present input asks for and no node uses: old images, bases and repositories."""
    keep_images: set[str] = set()
    keep_folders: set[Path] = set()
    for suite in SUITES.values():
        ready, wanted = _ready(suite), base.wanted(suite)
        keep_images.update((ready.image, wanted.image, f"{paths.IMAGE_NAME}:{suite.name}"))
        keep_folders.update((ready.repository, wanted.folder))
    if _packages_key():
        keep_folders.update(paths.SIMULATED.glob(_packages_key() + "*"))
    used = docker.docker(
        "ps",
        "-a",
        "--filter",
        "label=" + paths.LABEL,
        "--format",
        f'{{{{.Image}}}} {{{{.Label "{paths.LABEL}.repository"}}}}',
    )
    for row in used.splitlines():
        image, _, repository = row.partition(" ")
        keep_images.add(image)
        keep_folders.add(Path(repository))
    for name in (paths.IMAGE_NAME, paths.IMAGE_NAME + "-base"):
        for image in docker.docker("image", "ls", name, "--format", "{{.Repository}}:{{.Tag}}").split():
            if image not in keep_images:
                say("removing image " + image)
                docker.docker("image", "rm", image, check=False)
    for parent in (paths.REPOS, paths.BASES, paths.SIMULATED):
        for folder in parent.iterdir() if parent.is_dir() else []:
            if folder not in keep_folders and folder.suffix != ".part":
                say(f"removing {folder.relative_to(paths.ROOT)}")
                shutil.rmtree(folder, ignore_errors=True)


def check_names(names: list[str]) -> list[str]:
    """Refuses unknown suites."""
    for name in names:
        if name not in SUITES:
            raise LabError("no suite {!r}; there are: {}".format(name, ", ".join(SUITES)))
    return names or list(SUITES)
