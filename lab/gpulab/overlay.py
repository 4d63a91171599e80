# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab itself puts into an image: stand-ins, boot unit, apt sources, key ring, simgpu."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from pathlib import Path
from typing import Dict, Tuple

from . import keys, paths
from .hashing import digest, digest_contents, files_below
from .progress import LabError, output, short
from .suites import Suite

PREFIX = "usr/lib/gpu-node-lab"
KEYRING = "/usr/share/keyrings/gpu-node-lab-debian.asc"
SIMGPU = paths.LAB / "bin" / "simgpu"
_SOURCE = paths.IMAGE / "src" / "uname.c"
_COMPILE = ("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
Contents = Dict[str, Tuple[bytes, int]]  # path -> (content, mode)


def sources(suite: Suite) -> str:
    """The node's only apt source file: component main, as on a fresh machine."""
    return (
        "\n\n".join(
            f"Types: deb\nURIs: file:/srv/lab/debian\nSuites: {names}\nComponents: main\nSigned-By: {KEYRING}"
            for names in (" ".join(a for a in suite.archives if not a.endswith("-security")), suite.name + "-security")
        )
        + "\n"
    )


def base_contents(suite: Suite) -> Contents:
    """What the base image holds of the lab, before kernel and boot loader are installed over it."""
    found = {
        f"{PREFIX}/{path.name}": (path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
        for path in files_below(paths.IMAGE / "base")
    }
    found[KEYRING.lstrip("/")] = (keys.public("debian").read_bytes(), 0o644)
    found["etc/apt/sources.list.d/debian.sources"] = (sources(suite).encode(), 0o644)
    return found


def contents(suite: Suite, library: bytes) -> Contents:
    """What the finished image holds of the lab; library is the compiled uname preload."""
    found = base_contents(suite)
    for path in files_below(paths.IMAGE / "bin"):
        found[f"{PREFIX}/{path.name}"] = (path.read_bytes(), 0o755)
    for path in files_below(paths.IMAGE / "labboot"):
        found[f"{PREFIX}/{path.relative_to(paths.IMAGE)}"] = (path.read_bytes(), 0o644)
    for name in ("install.sh", "like.sh"):
        found[f"{PREFIX}/{name}"] = ((paths.IMAGE / name).read_bytes(), 0o755)
    for path in files_below(paths.IMAGE / "units"):
        found["etc/systemd/system/" + path.name] = (path.read_bytes(), 0o644)
    found[PREFIX + "/libuname.so"] = (library, 0o755)
    found["usr/share/keyrings/gpu-node-lab-ubuntu.asc"] = (keys.public("ubuntu").read_bytes(), 0o644)
    found["usr/local/bin/simgpu"] = (SIMGPU.read_bytes(), 0o755)
    return found


def base_key(suite: Suite) -> str:
    """Hash over what the lab puts into the base image."""
    return digest_contents(base_contents(suite))


def key(suite: Suite) -> str:
    """Hash over what the lab puts into the finished image; the library counts by its source and its command."""
    return digest_contents(contents(suite, _SOURCE.read_bytes() + " ".join(_COMPILE).encode()))


def library() -> bytes:
    """The uname preload library, compiled once a version of its source."""
    target = paths.CACHE / "build" / f"libgpulab-uname.{digest([_SOURCE], paths.IMAGE, *_COMPILE)}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
        output([*_COMPILE, "-o", str(part), str(_SOURCE)])
        part.rename(target)
    return target.read_bytes()


def archive(files: Contents) -> bytes:
    """These files as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def apply_to_tree(files: Contents, root: Path, log: Path) -> None:
    """Unpacks the overlay into a root file system."""
    done = short(["tar", "-C", str(root), "--no-same-owner", "-x"], input=archive(files))
    if done.returncode != 0:
        raise LabError("unpacking the overlay into {} failed: {}".format(root, done.stderr.decode("utf-8", "replace")))
    with log.open("a", encoding="utf-8") as out:
        out.write(f"overlay unpacked into {root}\n")


def apply_to_container(files: Contents, container: str) -> None:
    """Unpacks the overlay into a running container."""
    done = short(["docker", "exec", "-i", container, "tar", "-C", "/", "--no-same-owner", "-x"], input=archive(files))
    if done.returncode != 0:
        raise LabError("unpacking the overlay failed: {}".format(done.stderr.decode("utf-8", "replace")))
