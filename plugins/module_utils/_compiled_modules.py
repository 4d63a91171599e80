# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Modules that come compiled with a driver's transaction, instead of being compiled by it.

Archives are judged before anything changes. They stand in for compiling only where they serve every kernel that would
be compiled for: otherwise the packages compile as always, so that a build that fails still undoes the transaction.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _dkms_guard, _module_archive
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernels import MODULES_DIR, exists_below
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner


class CompiledModules:
    """The archives that are at hand for one plan.

    Args:
        runner: Runs what the archives need.
        root: Directory that stands for ``/``.
        plan: The driver's plan: ``dkms_name``, ``version`` and ``needs_headers``, the kernels that DKMS serves.
        archives: For each ``path``, ``sha256`` and ``kernel``.

    Raises:
        ArchiveError: when one of them may not be loaded here.
    """

    def __init__(
        self, runner: Runner, root: str, plan: Mapping[str, Any], archives: Sequence[Mapping[str, str]]
    ) -> None:
        self._runner = runner
        self._root = root
        self._archives = archives
        wanted = (plan["dkms_name"], plan["version"]) if archives else ()
        for one in archives:
            found = _module_archive.judge(runner, root, one["path"], one["sha256"], one["kernel"])
            if (found.dkms_name, found.version) != wanted:
                raise _module_archive.ArchiveError(
                    f"The module archive {one['path']} holds {found}; wanted is {'/'.join(wanted)}"
                )
        kernels = {one["kernel"] for one in archives}
        # Without headers nothing is compiled for a kernel, whatever DKMS is told.
        compiles = [
            kernel
            for kernel in plan.get("needs_headers") or []
            if exists_below(root, f"{MODULES_DIR}/{kernel}/build/include")
        ]
        self.replace_compiling = bool(kernels) and kernels.issuperset(compiles)

    def around(self) -> ContextManager[None]:
        """Return what has to surround the transaction."""
        return _dkms_guard.no_builds(self._root) if self.replace_compiling else contextlib.nullcontext()

    def load(self) -> tuple[list[str], list[str]]:
        """Load them after the transaction.

        Returns:
            The kernels whose modules changed, and why others could not be loaded: those have to be compiled.
        """
        loaded, problems = [], []
        for one in self._archives if self.replace_compiling else ():
            try:
                if _module_archive.load(self._runner, self._root, one["path"], one["sha256"], one["kernel"]):
                    loaded.append(one["kernel"])
            except _module_archive.ArchiveError as error:
                problems.append(str(error))
        return loaded, problems
