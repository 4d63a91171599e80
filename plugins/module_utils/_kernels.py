# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The kernels a node can boot, and whether modules can be built for each.

A kernel counts when its image is in /boot, since that is what the boot loader offers; a directory below /lib/modules
that a removed kernel left behind does not count. An image without its modules directory stays in the list: it can be
booted, and would come up without any module.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below

MODULES_DIR = "lib/modules"

_IMAGE = re.compile(r"^vmlinu[xz]-(.+)$")
#: Leftovers of package managers and rescue images, which no module is ever built for.
_NO_RELEASE = re.compile(r"(^0-rescue-|\.dpkg-|\.rpm(save|new)$|\.bak$|~$)")
_PARTS = re.compile(r"(\d+|~|[a-z]+)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A bootable kernel.

    Args:
        release: What ``uname -r`` will say, e.g. ``6.1.0-28-amd64``.
        image: Path of the image on the node, e.g. ``/boot/vmlinuz-6.1.0-28-amd64``.
        modules: Whether ``/lib/modules/<release>`` exists.
        headers: Whether ``/lib/modules/<release>/build/include`` exists, which is what DKMS looks for.
    """

    release: str
    image: str
    modules: bool
    headers: bool

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for module results."""
        return dataclasses.asdict(self)


def bootable(root: str = "/") -> list[Kernel]:
    """Return the bootable kernels, oldest first."""
    images: dict[str, str] = {}
    for name in list_dir(root, "boot"):
        match = _IMAGE.match(name)
        if not match or _NO_RELEASE.search(match.group(1)):
            continue
        release = match.group(1)
        # "make install" keeps the former image of the same release under this name.
        if release.endswith(".old"):
            release = release[: -len(".old")]
        images.setdefault(release, "/boot/" + name)
    return [
        Kernel(
            release=release,
            image=images[release],
            modules=os.path.isdir(path_below(root, f"{MODULES_DIR}/{release}")),
            headers=exists_below(root, f"{MODULES_DIR}/{release}/build/include"),
        )
        for release in sorted(images, key=release_key)
    ]


def release_key(release: str) -> tuple[tuple[int, int | str], ...]:
    """Return a sort key that orders kernel releases by number: 6.1.0-9 before 6.1.0-28 before 6.12.95.

    A release candidate (``6.12~rc1``) comes before its release, a flavour in text order after the plain one.
    """
    key: list[tuple[int, int | str]] = []
    for part in _PARTS.findall(release):
        if part.isdigit():
            key.append((3, int(part)))
        elif part == "~":
            key.append((0, 0))
        else:
            key.append((2, part.lower()))
    key.append((1, 0))
    return tuple(key)


def exists_below(root: str, path: str) -> bool:
    """Whether ``path`` exists below ``root``, with absolute links read as links inside ``root``."""
    return os.path.exists(resolve_below(root, path))


def resolve_below(root: str, path: str) -> str:
    """Return where ``path`` really lies below ``root``; links are followed as a process chrooted there would."""
    if root == "/":
        return os.path.realpath("/" + path.lstrip("/"))
    pending = [part for part in path.split("/") if part]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop(0)
        if part == "..":
            done = done[:-1]
            continue
        if part == ".":
            continue
        here = os.path.join(root, *(done + [part]))
        if os.path.islink(here) and links < 40:
            links += 1
            target = os.readlink(here)
            if target.startswith("/"):
                done = []
            pending = [piece for piece in target.split("/") if piece] + pending
            continue
        done.append(part)
    return os.path.join(root, *done)
