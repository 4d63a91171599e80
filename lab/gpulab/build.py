# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpulab setup`: from an empty machine to images and repositories, and nothing twice."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any, Callable

from . import base, compose, docker, keys, overlay, paths, simulated
from .plan import IMAGE_COMMAND, Plan, packages_key, plan
from .progress import LabError, go_on, locked, say, step, stop_children
from .suites import SUITES

IMAGE_LABEL = paths.LABEL + "-image"  # value: the checkout that made it
BUILD_LABEL = paths.LABEL + "-build"
BUILD_NAME = "gpulab-build-"
KEPT = 3  # generations of images and repositories that a setup leaves, so that going back costs nothing


def _packages(wish: Plan, target: Path, fill: Callable[[Path], None]) -> Path:
    """A folder of simulated packages, filled once."""
    if not target.exists():
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            fill(part)
            if packages_key() != wish.packages_key:
                raise _changed("lab/packages")
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def _simulated(wish: Plan) -> Path:
    return _packages(wish, wish.simulated, simulated.build_all)


def _modules(wish: Plan) -> Path:
    def fill(target: Path) -> None:
        folder = wish.base_folder
        simulated.build_modules(wish.suite, base.read_index(folder), folder / "pool", target)

    return _packages(wish, wish.modules, fill)


def _image_label() -> str:
    return f"LABEL {IMAGE_LABEL}={json.dumps(str(paths.ROOT))}"


def _changed(what: str) -> LabError:
    return LabError(f"files of {what} changed while they were being used; run it again")


def _still(wish: Plan) -> None:
    """What was edited meanwhile must not end up under the old hash."""
    if plan(wish.suite) != wish:
        raise _changed("the lab")


def _import(wish: Plan, root: Path, log: Path) -> None:
    with step(f"[{wish.suite.name}] importing the base image"), log.open("ab") as out:
        pack = subprocess.Popen(
            ["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE, stderr=out, start_new_session=True
        )
        done = subprocess.run(
            ["docker", "import", "--change", 'CMD ["/sbin/init"]', "--change", _image_label(), "-", wish.base_image],
            stdin=pack.stdout,
            stdout=out,
            stderr=out,
            check=False,
            start_new_session=True,
        )
        assert pack.stdout is not None
        pack.stdout.close()  # else tar would wait for ever when the import has died
        if pack.wait() == 0 and done.returncode == 0:
            return
        docker.docker("image", "rm", wish.base_image, check=False)
        raise LabError(f"docker import of the {wish.suite.name} base failed, see {log}")


def _make_base(wish: Plan, pool_ready: Callable[[], None]) -> None:
    suite = wish.suite
    log = paths.LOGS / f"base-{suite.name}.log"
    log.unlink(missing_ok=True)
    root = paths.WORK / f"root-{suite.name}"
    part = wish.base_folder.with_name(wish.base_folder.name + ".part")
    for folder in (root, part, wish.base_folder):
        shutil.rmtree(folder, ignore_errors=True)
    part.mkdir(parents=True)
    root.parent.mkdir(parents=True, exist_ok=True)

    def indexed() -> Path:
        part.rename(wish.base_folder)
        pool_ready()
        return wish.base_folder

    try:
        base.make(suite, root, part, paths.ARCHIVES / suite.name, log, indexed)
        _still(wish)
        _import(wish, root, log)
    except BaseException:
        shutil.rmtree(wish.base_folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)


def _make_repository(wish: Plan, packages: Path, modules: Path) -> None:
    part = wish.repository.with_name(wish.repository.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with step(f"[{wish.suite.name}] local repositories"):
            folder = wish.base_folder
            compose.compose(wish.suite, base.read_index(folder), folder, packages, part, modules)
        _still(wish)
        part.rename(wish.repository)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _make_image(wish: Plan) -> None:
    suite = wish.suite
    name = f"{BUILD_NAME}{suite.name}-{uuid.uuid4().hex[:6]}"
    with step(f"[{suite.name}] finishing the image"):
        try:
            docker.docker(
                "run", "-d", "--name", name, "--network", "none", "--label", f"{BUILD_LABEL}={paths.ROOT}",
                "-v", f"{wish.repository}:/srv/lab:ro", wish.base_image, "/bin/sleep", "600",
            )  # fmt: skip
            overlay.apply_to_container(overlay.contents(suite, overlay.library()), name)
            docker.docker("exec", "-e", "DEBIAN_FRONTEND=noninteractive", name, "/usr/lib/gpu-node-lab/install.sh")
            _still(wish)
            go_on(f"[{suite.name}] the image")
            docker.docker("commit", "--change", IMAGE_COMMAND, "--change", _image_label(), name, wish.image)
        finally:
            docker.docker("rm", "-f", name, check=False)


def _build(wish: Plan, packages: concurrent.futures.Future[Path], pool: concurrent.futures.Executor) -> None:
    modules: list[concurrent.futures.Future[Path]] = []

    def pool_ready() -> None:
        modules.append(pool.submit(_modules, wish))

    if not wish.base_complete():
        _make_base(wish, pool_ready)
    if not wish.repository.is_dir():
        if not modules:
            pool_ready()
        _make_repository(wish, packages.result(), modules[0].result())
    if not docker.image_exists(wish.image):
        _make_image(wish)


def ensure(names: list[str]) -> dict[str, Plan]:
    """Brings these suites up to date; side by side, with one engine."""
    docker.ensure_host()
    if keys.complete():
        found = {name: plan(SUITES[name]) for name in names}
        if all(wish.complete() for wish in found.values()):
            return found
    with locked(paths.CACHE / "setup.lock", "the images of this checkout"):
        keys.ensure()
        found = {name: plan(SUITES[name]) for name in names}
        todo = [wish for wish in found.values() if not wish.complete()]
        if todo:
            _sweep()
            try:
                _build_all(todo)
            finally:
                shutil.rmtree(paths.WORK, ignore_errors=True)
            _prune(KEPT)
    return found


def _build_all(todo: list[Plan]) -> None:
    with concurrent.futures.ThreadPoolExecutor(max_workers=2 * len(todo) + 1) as pool:
        try:
            packages = pool.submit(_simulated, todo[0])
            jobs = [pool.submit(_build, wish, packages, pool) for wish in todo]
            tasks: list[concurrent.futures.Future[Any]] = [packages, *jobs]
            done, _ = concurrent.futures.wait(tasks, return_when=concurrent.futures.FIRST_EXCEPTION)
            for job in done:
                job.result()
        except BaseException:
            stop_children()
            raise


def _sweep() -> None:
    """What a killed setup left half made; nobody else works here, because the caller holds the lock."""
    shutil.rmtree(paths.WORK, ignore_errors=True)
    for parent in (paths.BASES, paths.REPOS, paths.SIMULATED):
        for folder in parent.glob("*.part"):
            shutil.rmtree(folder, ignore_errors=True)
    for part in [*paths.REPACKED.glob("*.part"), *(paths.CACHE / "build").glob("*.part")]:
        part.unlink(missing_ok=True)
    # Nodes inherit the label from their image, so the name has to be asked for too.
    build = ("--filter", f"label={BUILD_LABEL}={paths.ROOT}", "--filter", f"name=^/?{BUILD_NAME}")
    for name in docker.docker("ps", "-aq", *build).split():
        docker.docker("rm", "-f", name, check=False)


def prune() -> None:
    """Removes everything that today's inputs do not ask for and no node uses."""
    with locked(paths.CACHE / "setup.lock", "the images of this checkout"):
        _prune(0)


def _images() -> list[tuple[str, str]]:
    """(name, checkout that made it) of the lab's images, newest first."""
    shown = docker.docker("image", "ls", "--filter", "label=" + IMAGE_LABEL, "--format", "{{.Repository}}:{{.Tag}}")
    names = [name for name in shown.split() if name.startswith(paths.IMAGE_NAME)]
    template = f'{{{{index .Config.Labels "{IMAGE_LABEL}"}}}}'
    return [(name, docker.docker("image", "inspect", "--format", template, name).strip()) for name in names]


def _beyond(names: list[str], kept: int) -> set[str]:
    """Without the newest of each kind (the text before the last dash: image and suite)."""
    seen: dict[str, int] = {}
    old = set()
    for name in names:
        kind = name.rpartition("-")[0]
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] > kept:
            old.add(name)
    return old


def _prune(kept: int) -> None:
    """Images, bases and repositories beyond the newest, but never what is asked for today or used by a node."""
    plans = [plan(suite) for suite in SUITES.values()]
    keep_images = {name for wish in plans for name in (wish.image, wish.base_image)}
    keep_folders = {
        folder for wish in plans for folder in (wish.base_folder, wish.repository, wish.simulated, wish.modules)
    }
    template = f'{{{{.Image}}}} {{{{.Label "{paths.LABEL}.repository"}}}}'
    for row in docker.docker("ps", "-a", "--filter", "label=" + paths.LABEL, "--format", template).splitlines():
        image, _, repository = row.partition(" ")
        keep_images.add(image)
        keep_folders.add(Path(repository))
    images = _images()
    ours = [name for name, root in images if root == str(paths.ROOT)]
    orphans = {name for name, root in images if root.startswith("/") and not Path(root).is_dir()}
    # An image goes before the base it is made from, so the order stays as listed.
    gone = (_beyond(ours, kept) | orphans) - keep_images
    _remove_images([name for name, _ in images if name in gone])
    for parent in (paths.REPOS, paths.BASES, paths.SIMULATED):
        folders = sorted(parent.iterdir(), key=lambda path: -path.stat().st_mtime) if parent.is_dir() else []
        old = _beyond([folder.name for folder in folders], kept)
        for folder in folders:
            if folder.name in old and folder not in keep_folders:
                say(f"removing {folder.relative_to(paths.ROOT)}")
                shutil.rmtree(folder, ignore_errors=True)


def remove_images() -> None:
    """All images of this checkout."""
    _remove_images([name for name, root in _images() if root == str(paths.ROOT)])


def _remove_images(names: list[str]) -> None:
    for name in names:
        say("removing image " + name)
        docker.docker("image", "rm", name, check=False)


def check_names(names: list[str]) -> list[str]:
    """Refuses unknown suites."""
    for name in names:
        if name not in SUITES:
            raise LabError("no suite {!r}; there are: {}".format(name, ", ".join(SUITES)))
    return names or list(SUITES)
