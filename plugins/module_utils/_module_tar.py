# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The file of a module archive: what it says about itself, by its own list of files, and its modules in a directory."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from typing import Iterator, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._module_files import MODULE_FILE
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below

_WORD = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+~-]*$")
_CONF_FIELD = r"""^\s*PACKAGE_{}\s*=\s*(?:"([^"\n]*)"|'([^'\n]*)'|([^\s#]*))"""
_TREE, _ABOUT = "dkms_main_tree", "dkms_binaries_only"


class ArchiveError(Exception):
    """An archive that cannot be made, or may not be loaded; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Archive:
    """What an archive says about itself, by its list of files.

    Args:
        path: The archive.
        dkms_name: DKMS's name of the module.
        version: Its version.
        kernel: Release of the kernel it was compiled for.
        arch: Architecture as DKMS writes it.
        members: The module files inside, by their file names.
    """

    path: str
    dkms_name: str
    version: str
    kernel: str
    arch: str
    members: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.dkms_name}/{self.version} for {self.kernel} on {self.arch}"


def file_name(dkms_name: str, version: str, kernel: str, arch: str) -> str:
    """Return the name that an archive has everywhere."""
    return f"{dkms_name}-{version}-{kernel}-{arch}.tgz"


def sha256_of(path: str) -> str:
    """Return the sha256 of a file.

    Raises:
        ArchiveError: when it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        raise ArchiveError(f"The module archive {path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def inspect(path: str) -> Archive:
    """Return what an archive is by its own list of files; nothing is unpacked.

    Raises:
        ArchiveError: when it is no archive of the compiled modules of one kernel, or has anything else in it.
    """
    pairs, modules, about = set(), {}, {}
    try:
        with tarfile.open(path, "r:*") as tar:
            for member in tar:
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if member.name.startswith("/") or ".." in parts:
                    raise ArchiveError(f"The module archive {path} reaches out of its directory: {member.name}")
                if member.isdir():
                    continue
                if not member.isreg():
                    raise ArchiveError(
                        f"The module archive {path} has something other than a file in it: {member.name}"
                    )
                if len(parts) >= 4 and parts[0] == _TREE:
                    pairs.add((parts[1], parts[2]))
                    # DKMS 3.2 puts Module.symvers beside the modules.
                    if len(parts) == 5 and parts[3] == "module" and ".ko" in parts[4]:
                        modules[parts[4]] = member.name
                elif len(parts) == 2 and parts[0] == _ABOUT:
                    stream = tar.extractfile(member)
                    about[parts[1]] = stream.read(1 << 20).decode("utf-8", "replace") if stream else ""
                else:
                    raise ArchiveError(f"The module archive {path} has an unknown file in it: {member.name}")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ArchiveError(f"The module archive {path} cannot be read: {error}") from error
    name, version = about.get("PACKAGE_NAME", "").strip(), about.get("PACKAGE_VERSION", "").strip()
    conf = about.get("dkms.conf", "")
    # ldtarball goes by dkms.conf, so a second opinion there would be loaded under another name.
    if (name, version) != (_conf_value(conf, "NAME"), _conf_value(conf, "VERSION")):
        raise ArchiveError(f"The module archive {path} has a dkms.conf of something other than {name}/{version}")
    strange = [module for module in modules if not MODULE_FILE.match(module)]
    words = [name, version, *(word for pair in pairs for word in pair)]
    if len(pairs) != 1 or not modules or strange or not all(_WORD.match(word) for word in words):
        raise ArchiveError(f"The module archive {path} is no DKMS archive of the compiled modules of one kernel")
    ((kernel, arch),) = pairs
    return Archive(path, name, version, kernel, arch, modules)


@contextlib.contextmanager
def unpacked(root: str, archive: Archive) -> Iterator[str]:
    """Give a directory with the module files of an archive, and nothing else of it."""
    parent = path_below(root, "var/tmp")
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-node-modules-", dir=parent) as directory:
        try:
            with tarfile.open(archive.path, "r:*") as tar:
                for member in tar:
                    name = os.path.basename(member.name)
                    stream = tar.extractfile(member) if archive.members.get(name) == member.name else None
                    if stream is not None:
                        with open(os.path.join(directory, name), "wb") as copy:
                            shutil.copyfileobj(stream, copy)
        except (OSError, EOFError, tarfile.TarError) as error:
            raise ArchiveError(f"The module archive {archive.path} cannot be unpacked: {error}") from error
        yield directory


def repack(archive: Archive, directory: str, target: str) -> None:
    """Write an archive again with the module files of a directory in place of its own."""
    with tarfile.open(archive.path, "r:*") as before, tarfile.open(target, "w:gz") as after:
        for member in before:
            name = os.path.basename(member.name)
            if archive.members.get(name) == member.name:
                after.add(os.path.join(directory, name), arcname=member.name)
            else:
                after.addfile(member, before.extractfile(member) if member.isreg() else None)


def _conf_value(text: str, field: str) -> str:
    match = re.search(_CONF_FIELD.format(field), text, re.M)
    return next((value for value in match.groups() if value is not None), "") if match else ""
