# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The files of a last known good state: the package files of the installed driver and its compiled modules.

A package file is taken from an older generation, from apt's cache, or from the package sources, whichever has it first,
and counts only when it is proven: by the sha256 in apt's signed lists, or, for a version that no source offers any
more, by being what dpkg has installed. Where it lies on the same file system it is linked, so that it takes no room.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from typing import Any, Callable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _apt_space, _dpkg
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._lkg_store import (
    GENERATIONS,
    Manifest,
    StoreError,
    sha256,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below, read_text

CACHE = "var/cache/apt/archives"
#: A source that does not answer must not keep a verification for long.
_TIMEOUTS = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")
_DOWNLOAD_LIMIT = 1800.0
#: Makes the archive of a compiled module, as ``_module_archive.pack`` does: called with runner, root, DKMS's name of
#: the module, its version, kernel release and a directory, it returns ``file``, ``sha256``, ``vermagic`` and more.
Packer = Callable[[Runner, str, str, str, str, str], Mapping[str, Any]]
#: What makes two compiled modules the same: the signer too, since a kernel refuses a module of a key that was replaced.
MODULE_KEYS = ("dkms_name", "version", "kernel", "arch", "signer")

_FIELD = re.compile(r"^(Package|Version|Architecture|Size|SHA256):[ \t]*(\S+)", re.MULTILINE)
_RELATION = re.compile(r"^(?:Pre-Depends|Depends): (.*)$", re.MULTILINE)
_PROVIDES = re.compile(r"^Provides: (.*)$", re.MULTILINE)
_NAME = re.compile(r"(?:^|[|,])\s*([a-z0-9][a-z0-9.+-]*)")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A package whose file is wanted.

    Args:
        name: Its name.
        version: Exact version.
        architecture: As dpkg has it, ``all`` included.
        companion: Whether it only came along with the driver.
    """

    name: str
    version: str
    architecture: str
    companion: bool = False

    @property
    def file(self) -> str:
        """Name of the package file, as archives write it (without the epoch)."""
        return "{}_{}_{}.deb".format(self.name, self.version.split(":", 1)[-1], self.architecture)

    @property
    def cached(self) -> str:
        """Name of the file in apt's cache."""
        return "{}_{}_{}.deb".format(self.name, self.version.replace(":", "%3a"), self.architecture)


def companions(root: str, members: Mapping[str, str], brought: Sequence[str]) -> list[str]:
    """Return the packages that came along with the driver and that it needs, directly or through others.

    Args:
        root: Directory that stands for ``/``.
        members: The driver's own packages.
        brought: All packages that came with the driver; the rest belongs to the system and is left to it.
    """
    needs: dict[str, list[str]] = {}
    provides: dict[str, list[str]] = {}
    candidates = frozenset(brought) - frozenset(members)
    for stanza in (read_text(root, _dpkg.STATUS_FILE) or "").split("\n\n"):
        name = stanza.lstrip("\n")[len("Package:") :].split("\n", 1)[0].strip()
        if name not in candidates and name not in members:
            continue
        needs[name] = [word for line in _RELATION.findall(stanza) for word in _NAME.findall(line)]
        for line in _PROVIDES.findall(stanza):
            for word in _NAME.findall(line):
                provides.setdefault(word, []).append(name)
    found: set[str] = set()
    pending = list(members)
    while pending:
        for word in needs.get(pending.pop(), []):
            for name in (word, *provides.get(word, [])):
                if name in candidates and name in needs and name not in found:
                    found.add(name)
                    pending.append(name)
    return sorted(found)


class Collector:
    """Brings the files of one generation together.

    Args:
        runner: Runs apt and dpkg.
        root: Directory that stands for ``/``.
        kept: Older generations, from which files are taken again.
        pack: Makes archives of compiled modules.
        free_bytes: Tells (device, free bytes) of a path.
    """

    def __init__(
        self,
        runner: Runner,
        root: str,
        kept: Sequence[Manifest],
        pack: Packer,
        free_bytes: _apt_space.FreeBytes = _apt_space.free_bytes,
    ) -> None:
        self._runner = runner
        self._root = root
        self._kept = kept
        self._pack = pack
        self._free_bytes = free_bytes
        self._index: dict[tuple[str, str, str], dict[str, int]] = {}
        #: The sha256 of every file that was brought, by its path within the generation.
        self.hashes: dict[str, str] = {}

    # --- packages ----------------------------------------------------------------------------------------------------

    def debs(self, wanted: Sequence[Wanted], directory: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Bring package files into ``directory/debs``.

        Returns:
            By name: ``version, architecture, sha256, file, companion``; and why others could not be had.

        Raises:
            StoreError: when there is no room for them.
        """
        self._index = self._read_index([one.name for one in wanted])
        rest = [one for one in wanted if not self._local(one, directory)]
        self._check_room(directory, sum(max(self._known(one).values(), default=0) for one in rest))
        missing = {one.name: why for one, why in self._download(rest, directory) if why}
        found = {
            one.name: {
                "version": one.version,
                "architecture": one.architecture,
                "sha256": self.hashes["debs/" + one.file],
                "file": "debs/" + one.file,
                "companion": one.companion,
            }
            for one in wanted
            if one.name not in missing
        }
        return found, missing

    def _read_index(self, names: Sequence[str]) -> dict[tuple[str, str, str], dict[str, int]]:
        """Return, for every version on offer, the sha256 and size of its files; two sources may differ."""
        found: dict[tuple[str, str, str], dict[str, int]] = {}
        if not names:
            return found
        for stanza in self._runner.run(["apt-cache", "show", *sorted(names)], timeout=120.0).out.split("\n\n"):
            fields: dict[str, str] = {}
            for key, value in _FIELD.findall(stanza):
                fields.setdefault(key, value)
            if "SHA256" in fields:
                key = (fields.get("Package", ""), fields.get("Version", ""), fields.get("Architecture", ""))
                found.setdefault(key, {})[fields["SHA256"]] = int(fields.get("Size", "0"))
        return found

    def _known(self, one: Wanted) -> dict[str, int]:
        return self._index.get((one.name, one.version, one.architecture), {})

    def _local(self, one: Wanted, directory: str) -> bool:
        """Take a file from an older generation or from apt's cache, whichever can be proven."""
        for manifest in self._kept:
            entry = dict(manifest.data["packages"]).get(one.name)
            if entry and (entry["version"], entry["architecture"]) == (one.version, one.architecture):
                path = os.path.join(manifest.directory, entry["file"])
                recorded = {str(entry["sha256"])}
                if self._take(one, path, directory, recorded & set(self._known(one) or recorded)):
                    return True
        return self._take(one, path_below(self._root, f"{CACHE}/{one.cached}"), directory, set(self._known(one)))

    def _take(self, one: Wanted, source: str, directory: str, allowed: set[str]) -> bool:
        """Link or copy a file and prove it; one that cannot be proven goes again."""
        target = os.path.join(directory, "debs", one.file)
        if not os.path.isfile(source) or not bring(source, target):
            return False
        digest = sha256(target)
        if digest in allowed or (not allowed and not self._known(one) and self._is_installed(one, target)):
            self.hashes["debs/" + one.file] = digest
            return True
        os.unlink(target)
        return False

    def _is_installed(self, one: Wanted, path: str) -> bool:
        """Whether a package file is what dpkg has installed, by its fields and the checksums of its files."""
        fields = dict(_FIELD.findall(self._runner.run(["dpkg-deb", "--field", path], timeout=60.0).out))
        if (fields.get("Package"), fields.get("Version"), fields.get("Architecture")) != (
            one.name,
            one.version,
            one.architecture,
        ):
            return False
        sums = self._runner.run(["dpkg-deb", "--info", path, "md5sums"], timeout=60.0)
        if not sums.ok:
            # It carries none; what dpkg then has, it has counted itself.
            return True
        for name in (one.name, f"{one.name}:{one.architecture}"):
            text = read_text(self._root, f"var/lib/dpkg/info/{name}.md5sums")
            if text is not None:
                return sorted(text.split("\n")) == sorted(sums.out.split("\n"))
        return False

    def _download(self, wanted: Sequence[Wanted], directory: str) -> list[tuple[Wanted, str]]:
        """Download what the package sources offer; return each with the reason why it could not be had, or without."""
        offered = [one for one in wanted if self._known(one)]
        folder = os.path.join(directory, "download")
        why = ""
        if offered:
            os.mkdir(folder, 0o755)
            words = [f"{one.name}={one.version}" for one in offered]
            command = ["env", "-C", folder, "apt-get", "-q", "-o", "APT::Sandbox::User=root", *_TIMEOUTS, "download"]
            result = self._runner.run([*command, *words], timeout=_DOWNLOAD_LIMIT, env=_apt_get.ENVIRONMENT)
            why = "" if result.ok else _apt_get.explain_error(result)
        answers = []
        for one in wanted:
            if one not in offered:
                reason = "no package source offers this version, and neither apt's cache nor an older record has it"
                answers.append((one, reason))
                continue
            path = os.path.join(folder, one.cached)
            had = self._take(one, path, directory, set(self._known(one)))
            answers.append((one, "" if had else why or "apt-get download did not bring the file that its lists name"))
        shutil.rmtree(folder, ignore_errors=True)
        return answers

    def _check_room(self, directory: str, needed: int) -> None:
        _device, room = self._free_bytes(directory)
        if room < needed + _apt_space.MARGIN:
            wanted, margin = (needed + _apt_space.MARGIN) >> 20, _apt_space.MARGIN >> 20
            raise StoreError(
                f"not enough room on the file system of /{GENERATIONS}: {room >> 20} MiB are free, {wanted} MiB are "
                f"needed (to spare {margin})"
            )

    # --- compiled modules --------------------------------------------------------------------------------------------

    def archives(self, wanted: Sequence[Mapping[str, Any]], directory: str) -> list[dict[str, Any]]:
        """Bring the archives of compiled modules into ``directory/modules``.

        Args:
            wanted: For each the keys of ``MODULE_KEYS`` and ``size``, what the modules take before they are packed.
            directory: The generation.

        Raises:
            StoreError: when there is no room, or what was packed is not what is wanted.
        """
        found = []
        for one in wanted:
            entry = self._archive_kept(one, directory)
            if entry is None:
                self._check_room(directory, int(one["size"]))
                entry = self._packed(one, directory)
            found.append(entry)
        return found

    def _archive_kept(self, wanted: Mapping[str, Any], directory: str) -> dict[str, Any] | None:
        for manifest in self._kept:
            for known in manifest.archives:
                target = os.path.join(directory, str(known["file"]))
                same = all(known.get(key) == str(wanted[key]) for key in MODULE_KEYS)
                if not same or not os.path.isfile(known["path"]) or not bring(known["path"], target):
                    continue
                if sha256(target) == known["sha256"]:
                    self.hashes[known["file"]] = known["sha256"]
                    return {key: value for key, value in known.items() if key != "path"}
                os.unlink(target)
        return None

    def _packed(self, wanted: Mapping[str, Any], directory: str) -> dict[str, Any]:
        name, version, kernel = (str(wanted[key]) for key in ("dkms_name", "version", "kernel"))
        folder = os.path.join(directory, "modules")
        made = self._pack(self._runner, self._root, name, version, kernel, folder)
        inside = "modules/" + os.path.basename(str(made["file"]))
        path = os.path.join(directory, inside)
        if not os.path.isfile(path) or sha256(path) != made["sha256"]:
            raise StoreError(f"the archive of module {name}/{version} for {kernel} is not what was packed")
        self.hashes[inside] = str(made["sha256"])
        fixed = {key: str(wanted[key]) for key in MODULE_KEYS}
        return {**fixed, "file": inside, "sha256": str(made["sha256"]), "vermagic": str(made["vermagic"])}


def bring(source: str, target: str) -> bool:
    """Link a file, or copy it from another file system; False when it went away meanwhile."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        return False
    except OSError:
        shutil.copyfile(source, target)
        os.chmod(target, 0o644)
    return True
