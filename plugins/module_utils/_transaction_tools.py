# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""apt-get, dpkg and apt-mark on one node, as a package transaction and its repair call them."""

from __future__ import annotations

import os
import tempfile
from typing import Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _dpkg
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, Runner, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import (
    Installed,
    TransactionError,
    read_installed,
)

_HOURS = 3600.0


class Tools:
    """The package tools of one node.

    Args:
        runner: Runs commands.
        root: Directory that stands for ``/``.
        lock_timeout: Seconds to wait for another package program.
    """

    def __init__(self, runner: Runner, root: str, lock_timeout: int) -> None:
        self.runner = runner
        self.root = root
        self.lock_timeout = lock_timeout

    def install_command(self, *words: str) -> list[str]:
        """Return the arguments of an ``apt-get install`` with the options that every change has."""
        flags = [word for word in words if word.startswith("-")]
        rest = [word for word in words if not word.startswith("-")]
        return [*_apt_get.options(self.lock_timeout), *flags, "install", *rest]

    def apt(self, arguments: Sequence[str]) -> CommandResult:
        """Run apt-get."""
        return self.runner.run(["apt-get", *arguments], timeout=3 * _HOURS, env=_apt_get.ENVIRONMENT)

    def dpkg(self, *arguments: str) -> CommandResult:
        """Run dpkg; changed configuration files of the administrator stay."""
        command = ["dpkg", "--force-confdef", "--force-confold", *arguments]
        return self.runner.run(command, timeout=3 * _HOURS, env=_apt_get.ENVIRONMENT)

    def update(self) -> None:
        """Read the package lists.

        Raises:
            TransactionError: when a repository does not answer.
        """
        # apt-get update exits with zero when a repository does not answer, unless told otherwise.
        result = self.runner.run(
            ["apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update"], timeout=1800.0, env=_apt_get.ENVIRONMENT
        )
        if not result.ok:
            raise TransactionError(f"The package lists could not be read: {_apt_get.explain_error(result)}")

    def simulate(self, arguments: Sequence[str], lifted: Iterable[str] = ()) -> _apt_get.Simulation:
        """Return what apt-get would do if some packages were not held."""
        names = list(lifted)
        handle, path = tempfile.mkstemp(prefix="gpu_node-status-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(_apt_get.lift_holds(read_text(self.root, _dpkg.STATUS_FILE) or "", names))
            command = _apt_get.simulate_command(arguments, path if names else None)
            return _apt_get.parse_simulation(self.runner.run(command, timeout=300.0, env=_apt_get.ENVIRONMENT))
        finally:
            os.unlink(path)

    def set_holds(self, wanted: frozenset[str], installed: Installed, only_add: bool = False) -> None:
        """Bring the holds of the installed packages to what is wanted.

        Raises:
            TransactionError: when dpkg refuses.
        """
        lines = []
        for name, package in sorted(installed.items()):
            if name in wanted and not package.held:
                lines.append(f"{name} hold")
            elif name not in wanted and package.held and not only_add:
                lines.append(f"{name} install")
        if not lines:
            return
        result = self.runner.run(["dpkg", "--set-selections"], timeout=120.0, stdin="\n".join(lines) + "\n")
        if not result.ok:
            raise TransactionError("Holds could not be set ({}): {}".format(", ".join(lines), result.text))

    def mark_automatic(self, names: Iterable[str]) -> None:
        """Mark installed packages as ones that nobody asked for; a name that apt would not take is left out."""
        there = read_installed(self.root, frozenset(names).__contains__)
        todo = sorted(frozenset(there) - _dpkg.automatic(self.root))
        if todo:
            self.runner.run(["apt-mark", "auto", *todo], timeout=120.0, env=_apt_get.ENVIRONMENT)

    def differing(self, former: Mapping[str, str]) -> list[str]:
        """Return the packages that are not at the version of ``former`` (empty: not there)."""
        now = read_installed(self.root, former.__contains__)
        return [
            name
            for name, version in former.items()
            if (name in now) != bool(version) or (version and (now[name].version != version or not now[name].installed))
        ]

    def gone(self, names: Iterable[str]) -> list[str]:
        """Return those of which nothing is left, not even configuration files."""
        wanted = list(names)
        text = read_text(self.root, _dpkg.STATUS_FILE) or ""
        left = {one.name for one in _dpkg.parse_status(text, wanted.__contains__) if one.status != "not-installed"}
        return [name for name in wanted if name not in left]
