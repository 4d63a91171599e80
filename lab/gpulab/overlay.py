# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab itself puts into an image: stand-ins, boot unit, apt sources, key ring, simgpu."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

from . import keys, paths
from .hashing import digest, files_below
from .progress import LabError, output
from .suites import Suite

PREFIX = "usr/lib/gpu-node-lab"
KEYRING = "/usr/share/keyrings/gpu-node-lab-debian.asc"
SIMGPU = paths.LAB / "bin" / "simgpu"


def sources(suite: Suite) -> str:
    """The node's only apt source file: component main, as on a fresh machine."""
    return (
        "\n\n".join(
            f"Types: deb\nURIs: file:/srv/lab/debian\nSuites: {names}\nComponents: main\nSigned-By: {KEYRING}"
            for names in (" ".join(a for a in suite.archives if not a.endswith("-security")), suite.name + "-security")
        )
        + "\n"
    )


def inputs() -> list[Path]:
    """Files whose change asks for a new image."""
    found = files_below(paths.IMAGE)
    if SIMGPU.exists():
        found.append(SIMGPU)
    return found


def key(suite: Suite) -> str:
    """Hash over everything that this file puts into an image."""
    here = Path(__file__)
    return digest([*inputs(), here], paths.LAB, sources(suite), keys.fingerprint("debian"))


def _library() -> Path:
    """The uname preload library, compiled once a version of its source."""
    source = paths.IMAGE / "src" / "uname.c"
    target = paths.CACHE / "build" / (f"libgpulab-uname.{digest([source], paths.IMAGE)}.so")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}.part")
        output(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(part), str(source)])
        part.rename(target)
    return target


def _contents(suite: Suite) -> dict[str, tuple[bytes, int]]:
    """path -> (content, mode)."""
    found: dict[str, tuple[bytes, int]] = {}
    for path in files_below(paths.IMAGE / "bin") + files_below(paths.IMAGE / "labboot"):
        inside = path.relative_to(paths.IMAGE / "bin") if path.parent.name == "bin" else path.relative_to(paths.IMAGE)
        found[f"{PREFIX}/{inside}"] = (path.read_bytes(), 0o755 if path.parent.name == "bin" else 0o644)
    for name, mode in (("install.sh", 0o755), ("like.sh", 0o755), ("disk.conf", 0o644)):
        found[f"{PREFIX}/{name}"] = ((paths.IMAGE / name).read_bytes(), mode)
    found[PREFIX + "/libuname.so"] = (_library().read_bytes(), 0o755)
    for path in files_below(paths.IMAGE / "units"):
        found["etc/systemd/system/" + path.name] = (path.read_bytes(), 0o644)
    found[KEYRING.lstrip("/")] = (keys.public("debian").read_bytes(), 0o644)
    found["usr/share/keyrings/gpu-node-lab-ubuntu.asc"] = (keys.public("ubuntu").read_bytes(), 0o644)
    found["etc/apt/sources.list.d/debian.sources"] = (sources(suite).encode(), 0o644)
    if SIMGPU.exists():
        found["usr/local/bin/simgpu"] = (SIMGPU.read_bytes(), 0o755)
    return found


def archive(suite: Suite) -> bytes:
    """The overlay as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in sorted(_contents(suite).items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def apply_to_tree(suite: Suite, root: Path, log: Path) -> None:
    """Unpacks the overlay into a root file system."""
    done = subprocess.run(
        ["tar", "-C", str(root), "--no-same-owner", "-x"], input=archive(suite), capture_output=True, check=False
    )
    if done.returncode != 0:
        raise LabError("unpacking the overlay into {} failed: {}".format(root, done.stderr.decode("utf-8", "replace")))
    with log.open("a", encoding="utf-8") as out:
        out.write(f"overlay unpacked into {root}\n")


def apply_to_container(suite: Suite, container: str) -> None:
    """Unpacks the overlay into a running container."""
    done = subprocess.run(
        ["docker", "exec", "-i", container, "tar", "-C", "/", "--no-same-owner", "-x"],
        input=archive(suite),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise LabError("unpacking the overlay failed: {}".format(done.stderr.decode("utf-8", "replace")))
