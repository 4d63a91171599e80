# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""How the collection's Python reads files and runs commands, so that both can be replaced in tests.

``root`` is the directory that stands for ``/``: fixture trees and chroots are read by the same code as a live node.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from typing import Mapping, Sequence

#: What a shell answers when a command does not exist; used here as well so that callers need one test only.
NOT_FOUND = 127
#: What timeout(1) answers.
TIMED_OUT = 124


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a finished command; ``NOT_FOUND`` and ``TIMED_OUT`` mark one that did not finish."""

    rc: int
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command exists, ended in time and exited with zero."""
        return self.rc == 0

    @property
    def text(self) -> str:
        """Standard output and standard error together, for messages."""
        return "\n".join(part for part in (self.out.strip(), self.err.strip()) if part)


class Runner:
    """Runs a command on the node and returns its result; never raises for a command that fails."""

    def run(
        self,
        argv: Sequence[str],
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> CommandResult:
        """Run ``argv`` without a shell.

        Args:
            argv: Program and arguments; the program is looked up in PATH plus the sbin directories.
            timeout: Seconds until the command is killed (result ``TIMED_OUT``).
            env: Variables added to the environment; the locale is always C.
            stdin: Text for standard input; none by default, so that nothing can wait for a key.
        """
        raise NotImplementedError


class SystemRunner(Runner):
    """Runs real commands."""

    def run(
        self,
        argv: Sequence[str],
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> CommandResult:
        environment: dict[str, str] = dict(os.environ)
        environment.update({"LANGUAGE": "C", "LC_ALL": "C"})
        environment["PATH"] = environment.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
        environment.update(env or {})
        try:
            # An empty input closes standard input at once: a command that asks gets an end of file, not a wait.
            done = subprocess.run(
                list(argv),
                input=(stdin or "").encode("utf-8"),
                capture_output=True,
                timeout=timeout,
                env=environment,
                check=False,
            )
        except FileNotFoundError:
            return CommandResult(NOT_FOUND, err=f"{argv[0]}: command not found")
        except subprocess.TimeoutExpired:
            return CommandResult(TIMED_OUT, err=f"{argv[0]} did not end within {timeout:g} s")
        return CommandResult(
            done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )


def path_below(root: str, path: str) -> str:
    """Return ``path`` (with or without a leading slash) as it lies below ``root``."""
    return os.path.join(root, path.lstrip("/"))


def read_text(root: str, path: str) -> str | None:
    """Return the text of a file below ``root``, or None where it does not exist or cannot be read."""
    try:
        with open(path_below(root, path), encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return None


def list_dir(root: str, path: str) -> list[str]:
    """Return the sorted names in a directory below ``root``; empty where there is none."""
    try:
        return sorted(os.listdir(path_below(root, path)))
    except OSError:
        return []
