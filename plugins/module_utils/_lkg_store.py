# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The last known good state on the disk: generations that are whole or not there, and one that is current.

``/var/lib/gpu_node/last_known_good/current`` is a link to ``generations/ID``, which holds ``manifest.json``, ``debs/``
and ``modules/``. A generation is built under another name, brought to the disk, renamed, and only then made current by
replacing the link, so that a kill or a power cut leaves the former one in force. One is removed under another name too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from typing import Any, Callable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_state import STATE_DIR

DIRECTORY = STATE_DIR + "/last_known_good"
GENERATIONS = DIRECTORY + "/generations"
CURRENT = DIRECTORY + "/current"
MANIFEST = "manifest.json"
#: Raised when a reader of today could not use a manifest any more.
FORMAT = 1
#: Names of what a killed run left: a generation half built or half removed, a link not yet in place.
_REMAINS = (".new-", ".old-")
_LINK = ".current-"
_BLOCK = 1 << 20

#: Told the name of each step before it is done; tests stop the writer there.
Checkpoint = Callable[[str], None]


class StoreError(Exception):
    """The record cannot be written or read; the message says why."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """One recorded state, with the files it needs.

    Args:
        generation: Name of its directory below ``generations``.
        directory: Path of that directory, ``root`` included.
        data: Content of ``manifest.json``; the module last_known_good documents every key.
    """

    generation: str
    directory: str
    data: Mapping[str, Any]

    @property
    def driver(self) -> Mapping[str, Any]:
        """The driver's record, ``/var/lib/gpu_node/driver.json``, as it was."""
        return dict(self.data["driver"])

    @property
    def version(self) -> str:
        """Driver version."""
        return str(self.driver["version"])

    @property
    def kernel(self) -> str:
        """Release of the kernel that ran and boots by default."""
        return str(self.data["kernel"])

    @property
    def boot_entry(self) -> str:
        """Entry of the boot loader that boots it; empty where it had none of its own."""
        return str(self.data["boot_entry"])

    @property
    def time(self) -> str:
        """When it was recorded, such as ``2026-01-31T12:00:00Z``."""
        return str(self.data["time"])

    @property
    def packages(self) -> dict[str, str]:
        """Name to version of the driver's closure: what has to be installed again, and nothing else."""
        return {name: str(item["version"]) for name, item in self._packages() if not item["companion"]}

    @property
    def companions(self) -> dict[str, str]:
        """Name to version of what came along with it (DKMS, alternatives): needed only where it is missing."""
        return {name: str(item["version"]) for name, item in self._packages() if item["companion"]}

    @property
    def debs(self) -> dict[str, str]:
        """Name to path of the package file, companions included."""
        return {name: os.path.join(self.directory, str(item["file"])) for name, item in self._packages()}

    @property
    def archives(self) -> list[dict[str, str]]:
        """The compiled modules: ``dkms_name, version, kernel, arch, sha256, vermagic, signer`` and ``path``."""
        return [
            {
                **{key: str(value) for key, value in item.items()},
                "path": os.path.join(self.directory, str(item["file"])),
            }
            for item in self.data["module_archives"]
        ]

    @property
    def kernels(self) -> list[str]:
        """Kernels that had a module of this driver: from an archive here, or from one of the packages (prebuilt)."""
        return [str(kernel) for kernel in self.data["kernels"]]

    def damage(self, contents: bool = False) -> list[str]:
        """Return what is wrong with the files: missing, of another size, and with ``contents`` of another sha256."""
        found = []
        for name, wanted in sorted(dict(self.data["files"]).items()):
            path = os.path.join(self.directory, name)
            try:
                size = os.stat(path).st_size
                if size != wanted["size"]:
                    found.append("{} has {} bytes instead of {}".format(path, size, wanted["size"]))
                elif contents and sha256(path) != wanted["sha256"]:
                    found.append(f"{path} has another sha256 than recorded")
            except OSError as error:
                found.append(f"{path}: {error.strerror or error}")
        return found

    def _packages(self) -> list[tuple[str, dict[str, Any]]]:
        return sorted(dict(self.data["packages"]).items())


def load(root: str = "/") -> Manifest | None:
    """Return the last known good state; None where none is recorded or its manifest cannot be read.

    This is what a rollback starts from. ``damage(contents=True)`` of the result proves the files before they are used;
    ``generations`` has the older ones.
    """
    name = _current_name(root)
    return _read(root, name) if name else None


def generations(root: str = "/") -> list[Manifest]:
    """Return every readable generation: the current one first, then the others from new to old."""
    current = _current_name(root)
    names = [name for name in list_dir(root, GENERATIONS) if not name.startswith(".")]
    names.sort(key=lambda name: (name == current, name), reverse=True)
    return [found for found in (_read(root, name) for name in names) if found is not None]


def explain(root: str = "/") -> str:
    """Return why ``load`` finds nothing; empty when it finds something."""
    if load(root) is not None:
        return ""
    name = _current_name(root)
    if not name:
        return "nothing is recorded"
    path = f"/{GENERATIONS}/{name}/{MANIFEST}"
    text = read_text(root, f"{GENERATIONS}/{name}/{MANIFEST}")
    if text is None:
        return f"{path} cannot be read"
    try:
        data = json.loads(text)
    except ValueError as error:
        return f"{path} is no JSON: {error}"
    if isinstance(data, dict) and data.get("format") != FORMAT:
        return "{} has format {}, this version of the collection reads {}".format(path, data.get("format"), FORMAT)
    return f"{path} lacks what a record needs"


def sha256(path: str) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def _current_name(root: str) -> str:
    try:
        return os.path.basename(os.readlink(path_below(root, CURRENT)))
    except OSError:
        return ""


def _read(root: str, name: str) -> Manifest | None:
    try:
        data = json.loads(read_text(root, f"{GENERATIONS}/{name}/{MANIFEST}") or "")
    except ValueError:
        return None
    kinds = {"driver": dict, "packages": dict, "module_archives": list, "files": dict, "kernels": list, "kernel": str}
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    if not all(isinstance(data.get(key), kind) for key, kind in kinds.items()) or "version" not in data["driver"]:
        return None
    return Manifest(name, path_below(root, f"{GENERATIONS}/{name}"), data)


class Store:
    """Writes generations.

    Args:
        root: Directory that stands for ``/``.
        checkpoint: Told each step.
    """

    def __init__(self, root: str = "/", checkpoint: Checkpoint = lambda step: None) -> None:
        self._root = root
        self._step = checkpoint
        self._directory = path_below(root, DIRECTORY)
        self._generations = path_below(root, GENERATIONS)

    def remains(self) -> list[str]:
        """Return what a killed run left, as paths on the node."""
        found = [f"/{GENERATIONS}/{name}" for name in list_dir(self._root, GENERATIONS) if name.startswith(_REMAINS)]
        return found + [f"/{DIRECTORY}/{name}" for name in list_dir(self._root, DIRECTORY) if name.startswith(_LINK)]

    def sweep(self) -> list[str]:
        """Remove what a killed run left; return it."""
        found = self.remains()
        for name in found:
            path = path_below(self._root, name)
            if os.path.islink(path):
                os.unlink(path)
            else:
                shutil.rmtree(path)
        return found

    @contextlib.contextmanager
    def building(self) -> Any:
        """Give a directory with ``debs`` and ``modules`` to fill; it goes when the caller fails or does not publish."""
        os.makedirs(self._generations, mode=0o755, exist_ok=True)
        path = tempfile.mkdtemp(prefix=_REMAINS[0], dir=self._generations)
        try:
            os.chmod(path, 0o755)
            for name in ("debs", "modules"):
                os.mkdir(os.path.join(path, name), 0o755)
            self._step("directory made")
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def publish(
        self, directory: str, generation: str, data: Mapping[str, Any], hashes: Mapping[str, str] | None = None
    ) -> Manifest:
        """Make a filled directory the current generation.

        Args:
            directory: What ``building`` gave; only its ``debs`` and ``modules`` are kept.
            generation: Its name from now on.
            data: The manifest; format and the list of files are added here.
            hashes: The sha256 of files in it, by their path within it, where the caller knows it already.
        """
        known = hashes or {}
        files = {}
        for folder in ("debs", "modules"):
            for name in sorted(os.listdir(os.path.join(directory, folder))):
                path = os.path.join(directory, folder, name)
                _sync(path)
                inside = f"{folder}/{name}"
                files[inside] = {"sha256": known.get(inside) or sha256(path), "size": os.stat(path).st_size}
            _sync(os.path.join(directory, folder))
        self._step("files written")
        content = {**data, "format": FORMAT, "files": files}
        with open(os.path.join(directory, MANIFEST), "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=2, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(os.path.join(directory, MANIFEST), 0o644)
        _sync(directory)
        self._step("manifest written")
        os.rename(directory, os.path.join(self._generations, generation))
        _sync(self._generations)
        self._step("generation in place")
        self.switch(generation)
        return Manifest(generation, os.path.join(self._generations, generation), content)

    def switch(self, generation: str) -> None:
        """Make a generation the current one, in one step."""
        temporary = os.path.join(self._directory, f"{_LINK}{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(f"generations/{generation}", temporary)
        self._step("link made")
        os.replace(temporary, path_below(self._root, CURRENT))
        _sync(self._directory)
        self._step("link in place")

    def prune(
        self,
        keep: int,
        max_bytes: int,
        superseded: Callable[[Manifest], bool] = lambda one: False,
        check: bool = False,
    ) -> list[str]:
        """Remove generations until no more than ``keep`` are left and they fit; the current one always stays.

        Args:
            keep: How many generations may stay.
            max_bytes: Room that all of them may take together.
            superseded: Whether a generation other than the current one has nothing that the current one lacks.
            check: Only say which would go.
        """
        current = _current_name(self._root)
        readable = {found.generation: found for found in generations(self._root)}
        others = [name for name in list_dir(self._root, GENERATIONS) if name != current and not name.startswith(".")]
        staying: list[str] = []
        removed: list[str] = []
        for name in sorted(others, reverse=True):
            kept = name in readable and not superseded(readable[name]) and len(staying) + 1 < keep
            (staying if kept else removed).append(name)
        while staying and self.size([current, *staying]) > max_bytes:
            removed.append(staying.pop())
        for name in [] if check else removed:
            # Under this name it counts for nothing any more, even when the removal is cut.
            target = os.path.join(self._generations, _REMAINS[1] + name)
            os.rename(os.path.join(self._generations, name), target)
            self._step("generation set aside")
            shutil.rmtree(target)
        return sorted(removed)

    def remove(self) -> None:
        """Remove every generation; nothing is current from the first moment on."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path_below(self._root, CURRENT))
        shutil.rmtree(self._directory)

    def size(self, names: list[str] | None = None) -> int:
        """Return the bytes that generations take; a file that several of them share counts once."""
        chosen = [name for name in list_dir(self._root, GENERATIONS) if not name.startswith(".")]
        seen = {}
        for name in chosen if names is None else names:
            for folder, _folders, files in os.walk(os.path.join(self._generations, name)):
                for file in files:
                    status = os.lstat(os.path.join(folder, file))
                    seen[(status.st_dev, status.st_ino)] = status.st_size
        return sum(seen.values())


def _sync(path: str) -> None:
    """Bring a file or the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
