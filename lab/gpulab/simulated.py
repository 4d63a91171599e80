# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated packages: lab/packages/build.py, run once a version of its sources."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any, Mapping

from . import compose, debs, keys, paths
from .progress import run
from .suites import Suite


def _build(title: str, target: Path, log: Path, *arguments: str) -> None:
    # Its scratch folder too goes where the next setup sweeps, should this one be killed.
    paths.WORK.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(paths.WORK)}
    run(title, [sys.executable, str(paths.PACKAGES / "build.py"), "--out", str(target), *arguments], log, env)


def build_all(target: Path) -> None:
    """All repositories."""
    key = str(keys.public("cuda"))
    _build("building the simulated driver packages", target, paths.LOGS / "simulated.log", "--cuda-key", key)


def _headers(suite: Suite, index: Mapping[str, Mapping[str, object]], pool: Path, target: Path) -> None:
    """The header packages of the kernel that is in the image; modules for the others would only cost time."""
    stanzas: Any = index[suite.kernel_suites[0]]["stanzas"]
    meta = next(head for head in map(debs.fields, stanzas) if head["Package"] == "linux-headers-amd64")
    release = meta["Depends"].split()[0].removeprefix("linux-headers-").removesuffix("-amd64")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for pattern in (f"linux-headers-{release}-*.deb", "linux-kbuild-*.deb"):
        for path in pool.rglob(pattern):
            if not (target / path.name).exists():  # two suites may offer the same file
                os.link(path, target / path.name)


def build_modules(suite: Suite, index: Mapping[str, Mapping[str, object]], pool: Path, target: Path) -> None:
    """The Ubuntu packages once more, with prebuilt modules for the kernel that is in the image."""
    headers = paths.WORK / f"headers-{suite.name}"
    _headers(suite, index, pool, headers)
    _build(
        f"building prebuilt modules for the kernel of {suite.name}",
        target,
        paths.LOGS / f"modules-{suite.name}.log",
        *("--only", "ubuntu/" + compose.UBUNTU_ON[suite.name][0], "--headers-pool", str(headers)),
    )
    shutil.rmtree(headers)
