# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The node's repositories as apt sees them, together with a source that is not on the node yet.

Everything happens in a directory of its own: sources, preferences and package lists are copies or links, and an update
of the new source downloads there. The node's own apt state is read and never written. apt's programs are used, not its
Python binding, so the interpreter does not matter.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from types import TracebackType
from typing import Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _apt_prefs, _dpkg, _driver_names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import (
    CommandResult,
    Runner,
    list_dir,
    path_below,
    read_text,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import read_installed
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._universe import Offer, Origin, Universe, parse_packages

LISTS = "var/lib/apt/lists"
#: The package whose origin is the distribution, whatever a mirror calls itself.
_BASE = "base-files"


class RepositoryError(Exception):
    """A repository could not be read; the message is apt's."""


class AptState:
    """A private apt state; a context manager that removes it again.

    Args:
        runner: Runs commands.
        root: Directory that stands for ``/``.
        sources_text: Content that our sources file shall have.
        key_text: The repository's public key; empty where the sources name keys of the node.
        without: Names of source files that are left out.
        auth_text: Login file of our source; empty where it needs none.
    """

    def __init__(
        self,
        runner: Runner,
        root: str = "/",
        sources_text: str = "",
        key_text: str = "",
        without: Iterable[str] = (),
        auth_text: str = "",
    ) -> None:
        self._runner = runner
        self._root = root
        self._directory = tempfile.mkdtemp(prefix="gpu_node-apt-")
        self._new = os.path.join(self._directory, "new.d")
        self._build(sources_text, key_text, frozenset(without), auth_text)

    def __enter__(self) -> AptState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _build(self, sources_text: str, key_text: str, without: frozenset[str], auth_text: str) -> None:
        os.chmod(self._directory, 0o755)
        for name in ("lists/partial", "sources.d", "new.d", "preferences.d", "auth.d", "cache"):
            os.makedirs(os.path.join(self._directory, name))
        self._link_all(LISTS, "lists", frozenset())
        self._link_all("etc/apt/sources.list.d", "sources.d", without | {os.path.basename(_apt_prefs.SOURCES_PATH)})
        self._link_all("etc/apt/preferences.d", "preferences.d", frozenset({os.path.basename(_apt_prefs.PINS_PATH)}))
        name = os.path.basename(_apt_prefs.AUTH_PATH)
        self._link_all("etc/apt/auth.conf.d", "auth.d", frozenset({name}))
        if auth_text:
            _write(os.path.join(self._directory, "auth.d", name), auth_text, 0o600)
        if key_text:
            key = os.path.join(self._directory, "key.asc")
            _write(key, key_text)
            sources_text = sources_text.replace(_apt_prefs.KEY_PATH, key)
        if sources_text:
            for folder in ("sources.d", "new.d"):
                _write(os.path.join(self._directory, folder, os.path.basename(_apt_prefs.SOURCES_PATH)), sources_text)

    def _link_all(self, source: str, target: str, skip: frozenset[str]) -> None:
        for name in list_dir(self._root, source):
            path = os.path.abspath(path_below(self._root, f"{source}/{name}"))
            if name not in skip and name not in ("partial", "lock", "auxfiles") and os.path.isfile(path):
                os.symlink(path, os.path.join(self._directory, target, name))

    def options(self, only_new: bool = False) -> list[str]:
        """Return the options that make an apt program work here; with ``only_new`` it sees our source alone."""
        settings = {
            "Dir::State::lists": os.path.join(self._directory, "lists"),
            "Dir::Etc::sourcelist": "/dev/null" if only_new else path_below(self._root, "etc/apt/sources.list"),
            "Dir::Etc::sourceparts": self._new if only_new else os.path.join(self._directory, "sources.d"),
            "Dir::Etc::netrcparts": os.path.join(self._directory, "auth.d"),
            "Dir::Etc::preferencesparts": os.path.join(self._directory, "preferences.d"),
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
            "APT::Get::List-Cleanup": "false",
            "Debug::NoLocking": "true",
        }
        return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def update(self) -> None:
        """Read the lists of our source, or of all sources where the node has read none yet.

        Raises:
            RepositoryError: when a repository does not answer or its signature is wrong.
        """
        has_lists = any("_Packages" in name for name in list_dir(self._root, LISTS))
        only_new = has_lists and bool(os.listdir(self._new))
        result = self.run(
            "apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update", only_new=only_new, timeout=900.0
        )
        if not result.ok:
            raise RepositoryError(_apt_get.explain_error(result))

    def run(self, program: str, *arguments: str, only_new: bool = False, timeout: float = 300.0) -> CommandResult:
        """Run an apt program in this state."""
        command = [program, *self.options(only_new), *arguments]
        return self._runner.run(command, timeout=timeout, env=_apt_get.ENVIRONMENT)

    def targets(self, only_new: bool = False) -> list[dict[str, str]]:
        """Return apt's package lists of the native architecture, also those that were never downloaded."""
        result = self.run("apt-get", "indextargets", "Created-By: Packages", only_new=only_new)
        native = self.architecture()
        found = []
        for block in result.out.split("\n\n"):
            fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", block, re.MULTILINE))
            if fields.get("Filename") and fields.get("Architecture") in (native, "all", None):
                found.append(fields)
        return found

    def lacks_lists(self) -> bool:
        """Whether a list that our source has was not read yet."""
        return any(_lacking(target) for target in self.targets(only_new=True))

    def architecture(self) -> str:
        """Return the node's own architecture, that of dpkg."""
        dpkg = read_installed(self._root, lambda name: name == "dpkg").get("dpkg")
        return dpkg.architecture if dpkg else "amd64"

    def set_pins(self, text: str) -> None:
        """Replace our preferences in this state."""
        _write(os.path.join(self._directory, "preferences.d", os.path.basename(_apt_prefs.PINS_PATH)), text)

    def lifted_status(self, names: Iterable[str]) -> str:
        """Return the path of a copy of dpkg's status in which these packages are not held."""
        path = os.path.join(self._directory, "status")
        _write(path, _apt_get.lift_holds(read_text(self._root, _dpkg.STATUS_FILE) or "", names))
        return path

    def read_list(self, path: str) -> str:
        """Return the text of a package list, compressed or not."""
        if path.endswith(("_Packages", "/Packages")):
            with open(path, encoding="utf-8", errors="replace") as handle:
                return handle.read()
        return self._runner.run(["/usr/lib/apt/apt-helper", "cat-file", path], timeout=120.0).out


class AptUniverse(Universe):
    """Offers and simulation of a private apt state.

    Args:
        state: The private state.
        targets: Its package lists.
        root: Directory that stands for ``/``.
    """

    def __init__(self, state: AptState, targets: Iterable[Mapping[str, str]], root: str = "/") -> None:
        self._state = state
        offers: list[Offer] = []
        distribution = set()
        for target in targets:
            if not os.path.exists(target["Filename"]):
                continue
            for offer in parse_packages(state.read_list(target["Filename"]), _origin(target), _interesting):
                if offer.name == _BASE:
                    distribution.add(offer.origin.origin)
                else:
                    offers.append(offer)
        super().__init__(offers, read_installed(root), distribution)

    def simulate(self, arguments: Sequence[str], pins_text: str, lifted: Iterable[str]) -> _apt_get.Simulation:
        self._state.set_pins(pins_text)
        status = self._state.lifted_status(lifted)
        command = _apt_get.simulate_command(arguments, status)
        return _apt_get.parse_simulation(self._state.run(command[0], *command[1:]))

    def show(self, words: Sequence[str]) -> str:
        """Return ``apt-cache show`` of ``name=version`` words."""
        return self._state.run("apt-cache", "show", *words).out


def _interesting(name: str) -> bool:
    return name == _BASE or _driver_names.is_family(name)


def _lacking(target: Mapping[str, str]) -> bool:
    path, key = target["Filename"], target.get("MetaKey", "")
    if os.path.exists(path):
        return False
    # Lists lie beside their Release file, in whose name the path within the repository is replaced.
    base = path[: path.rfind(key.replace("/", "_"))] if key else ""
    for name in ("InRelease", "Release"):
        text = read_text("/", base + name)
        if text is not None:
            # A component without packages has an empty list, which apt does not fetch.
            sizes = re.findall(r"^ [0-9a-f]{64} +([0-9]+) " + re.escape(key) + "$", text, re.MULTILINE)
            return any(size != "0" for size in sizes)
    return True


def _origin(target: Mapping[str, str]) -> Origin:
    return Origin(
        origin=target.get("Origin", ""),
        label=target.get("Label", ""),
        archive=target.get("Suite", ""),
        codename=target.get("Codename", ""),
        site=target.get("Site", ""),
        uri=target.get("Repo-URI", ""),
    )


def _write(path: str, text: str, mode: int = 0o644) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as handle:
        handle.write(text)
