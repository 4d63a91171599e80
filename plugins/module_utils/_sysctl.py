# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Kernel settings as this machine has them: live values, the files that set them, and who wins.

Two programs apply sysctl.d trees and they do not agree on every file:

- ``systemd-sysctl`` at boot reads ``*.conf`` of four directories, sorted by name; a name in a stronger directory hides
  the same name in a weaker one. It never reads ``/etc/sysctl.conf``.
- ``sysctl --system`` (procps) reads the same files and then ``/etc/sysctl.conf``, which therefore wins.
"""

from __future__ import annotations

import dataclasses
import errno
import fnmatch
import os
import re
from typing import Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text

PROC_SYS = "/proc/sys"
#: Strongest first; ``/lib`` only matters where it is no link to ``/usr/lib``.
DIRECTORIES = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)
PROCPS_LAST = "/etc/sysctl.conf"

BOOT = "boot"
SYSCTL_SYSTEM = "sysctl_system"

READ_ONLY = "read-only /proc/sys"
UNKNOWN_KEY = "this kernel does not know the key (its module may not be loaded)"
HOST_KEY = "belongs to the host of this container"

#: Keys with a value of their own in a network or IPC namespace; every other key of a container is the host's.
_NAMESPACED = ("net/", "kernel/shm", "kernel/msg", "kernel/sem", "kernel/domainname", "kernel/hostname", "fs/mqueue/")
_SWAP_SEPARATORS = str.maketrans("./", "/.")
_GLOB = frozenset("*?[")
_WHOLE = re.compile(r"-?[0-9]+\Z")


def to_path(name: str) -> str:
    """Return the path below /proc/sys of a setting, e.g. ``net.ipv4.conf.eth0/100.forwarding``.

    If the first separator is a slash the name is a path already; otherwise dots and slashes trade places.
    """
    name = name.strip()
    for letter in name:
        if letter == "/":
            return name
        if letter == ".":
            return name.translate(_SWAP_SEPARATORS)
    return name


def to_name(path: str) -> str:
    """Return the dotted name of a path below /proc/sys."""
    return path.translate(_SWAP_SEPARATORS)


def squeeze(value: str) -> str:
    """Return a value with single spaces, so that the kernel's tabs and a person's blanks compare equal."""
    return " ".join(value.split())


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One line of a sysctl.d file; ``value`` None is a ``-key`` line, which takes the key out of every glob."""

    path: str
    value: str | None
    file: str
    line: int

    @property
    def is_glob(self) -> bool:
        """Whether the key is a pattern."""
        return not _GLOB.isdisjoint(self.path)

    def matches(self, path: str) -> bool:
        """Whether the key, or the pattern, names ``path``; a star does not cross a slash."""
        if not self.is_glob:
            return self.path == path
        mine, theirs = self.path.split("/"), path.split("/")
        return len(mine) == len(theirs) and all(fnmatch.fnmatchcase(part, glob) for part, glob in zip(theirs, mine))


def parse(text: str, file: str) -> list[Assignment]:
    """Return the assignments of one file; lines that are none are passed over, as both programs do."""
    found = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        key, separator, value = line.partition("=")
        key = key.strip()
        if not separator and not key.startswith("-"):
            continue
        key = key[1:].strip() if key.startswith("-") else key
        if key:
            found.append(Assignment(to_path(key), squeeze(value) if separator else None, file, number))
    return found


class Tree:
    """All files that set kernel settings below ``root``, read once.

    Args:
        root: Directory that stands for ``/``.
        own: The file of this collection; it may be left out of a question or asked with other content.
    """

    def __init__(self, root: str, own: str) -> None:
        self.own = own
        self._files: dict[str, list[Assignment]] = {}
        for directory in DIRECTORIES:
            for name in list_dir(root, directory):
                if name.endswith(".conf") and name not in self._files:
                    path = f"{directory}/{name}"
                    self._files[name] = parse(read_text(root, path) or "", path)
        self._last = parse(read_text(root, PROCPS_LAST) or "", PROCPS_LAST)
        self.own_values: dict[str, str] = {
            found.path: found.value
            for found in self._files.get(os.path.basename(own), [])
            if found.file == own and found.value is not None
        }

    def assignments(self, order: str, own: Mapping[str, str] | None = None) -> list[Assignment]:
        """Return every assignment in the order in which a program reads them.

        Args:
            order: ``BOOT`` or ``SYSCTL_SYSTEM``.
            own: Path to value, taken in place of the content of the own file; empty asks "what without us?".
        """
        files = dict(self._files)
        if own is not None:
            files[os.path.basename(self.own)] = [
                Assignment(path, value, self.own, 0) for path, value in sorted(own.items())
            ]
        found = [assignment for name in sorted(files) for assignment in files[name]]
        return found + self._last if order == SYSCTL_SYSTEM else found

    def winner(self, path: str, order: str, own: Mapping[str, str] | None = None) -> Assignment | None:
        """Return the assignment that decides ``path``: a key in full beats any pattern, later beats earlier."""
        return decide(self.assignments(order, own), path)

    def foreign(self, path: str) -> list[Assignment]:
        """Return what other files say about ``path``, in reading order, ``/etc/sysctl.conf`` last."""
        return [
            found
            for found in self.assignments(SYSCTL_SYSTEM)
            if found.file != self.own and found.value is not None and found.matches(path)
        ]


def decide(assignments: list[Assignment], path: str) -> Assignment | None:
    """Return the assignment of an ordered list that decides ``path``, or None."""
    exact = None
    glob = None
    for assignment in assignments:
        if assignment.path == path:
            exact = assignment
        elif assignment.is_glob and assignment.value is not None and assignment.matches(path):
            glob = assignment
    if exact is not None:
        return exact if exact.value is not None else None
    return glob


class Live:
    """The values that the running kernel uses, below ``root``/proc/sys."""

    def __init__(self, root: str = "/", container: str = "") -> None:
        self.root = root
        self.container = container

    def _file(self, path: str) -> str:
        return path_below(self.root, f"{PROC_SYS}/{path}")

    def read(self, path: str) -> str | None:
        """Return a live value with single spaces; None where the key does not exist or cannot be read."""
        text = read_text(self.root, f"{PROC_SYS}/{path}")
        return None if text is None else squeeze(text)

    def obstacle(self, path: str) -> str | None:
        """Return why a value cannot be written here; None when it can."""
        file = self._file(path)
        if not os.path.exists(file):
            return UNKNOWN_KEY
        if self._read_only(file):
            return READ_ONLY
        if self.container and not path.startswith(_NAMESPACED):
            return HOST_KEY
        if not os.access(file, os.W_OK):
            return "the kernel offers the key read-only"
        return None

    def _read_only(self, file: str) -> bool:
        return bool(os.statvfs(file).f_flag & os.ST_RDONLY)

    def write(self, path: str, value: str) -> str | None:
        """Write a value and read it back.

        Returns:
            None on success, otherwise why it cannot be applied here.

        Raises:
            ValueError: when the kernel calls the value wrong (EINVAL, ERANGE).
        """
        try:
            with open(self._file(path), "w", encoding="ascii") as handle:
                handle.write(value + "\n")
        except OSError as problem:
            if problem.errno in (errno.EINVAL, errno.ERANGE):
                raise ValueError(f"the kernel refuses it: {problem.strerror}") from problem
            if problem.errno == errno.EROFS:
                return READ_ONLY
            if problem.errno == errno.ENOENT:
                return UNKNOWN_KEY
            return f"refused by the kernel: {problem.strerror}"
        now = self.read(path)
        return None if now == squeeze(value) else f"the kernel keeps {now}"


def container_kind(root: str = "/") -> str:
    """Return the name of the container this runs in (``docker``, ``podman``, ...), or an empty string."""
    systemd = read_text(root, "/run/systemd/container")
    if systemd is not None:
        return systemd.strip() or "container"
    for marker, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(path_below(root, marker)):
            return kind
    return ""


def numbers(value: str) -> tuple[int, ...] | None:
    """Return the whole numbers of a value, or None for text."""
    parts = value.split()
    if not parts or not all(_WHOLE.match(part) for part in parts):
        return None
    return tuple(int(part) for part in parts)
