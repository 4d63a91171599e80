# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""One package transaction: judged before it runs, undone when it fails, finished when a kill cut it.

A run that has nothing to do reads dpkg's status file and nothing else. A run that changes something simulates exactly
the command it will run, refuses what was not asked for, leaves a mark while it works, lifts holds and sets them again
on every path, and puts the former packages back when a package script fails.
"""

from __future__ import annotations

import datetime

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _apt_space, _dpkg
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_repair as _repair
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import (
    REPAIR,
    Installed,
    Outcome,
    Request,
    TransactionError,
    describe,
    differs,
    judge,
    read_installed,
    unfinished_names,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_tools import Tools

#: What apt-get says of packages that are in no list it has read yet.
_UNKNOWN = ("Unable to locate package", "was not found", "has no installation candidate")


class Transaction:
    """Runs requests on one node.

    Args:
        runner: Runs commands.
        root: Directory that stands for ``/``.
        lock_timeout: Seconds to wait for another package program.
        space_margin: Bytes that stay free beside what the packages need.
        free_bytes: Returns (device, free bytes) of a path; replaced in tests.
    """

    def __init__(
        self,
        runner: Runner,
        root: str = "/",
        lock_timeout: int = 300,
        space_margin: int = _apt_space.MARGIN,
        free_bytes: _apt_space.FreeBytes = _apt_space.free_bytes,
    ) -> None:
        self._runner = runner
        self._root = root
        self._lock_timeout = lock_timeout
        self._tools = Tools(runner, root, lock_timeout)
        self._space_margin = space_margin
        self._free_bytes = free_bytes

    def run(self, request: Request, check: bool = False) -> Outcome:
        """Bring the node to what the request says; in check mode say what that would be.

        Raises:
            TransactionError: when it is refused or fails.
        """
        if check or not (self._pending(request) or _state.read_json(self._root, _state.MARK)):
            return self._run(request, check)
        with _state.exclusive(self._root, self._lock_timeout) as locked:
            if not locked:
                raise TransactionError("Another run of this collection still works on this node's packages.")
            return self._run(request, check)

    def pending(self, request: Request) -> bool:
        """Whether dpkg's status file says that there is something to do (a killed run counts)."""
        return bool(_state.read_json(self._root, _state.MARK)) or bool(self._pending(request))

    def _run(self, request: Request, check: bool) -> Outcome:
        outcome = Outcome()
        mark = _state.read_json(self._root, _state.MARK)
        if mark is not None:
            if check:
                outcome.changed = True
                outcome.repaired = [f"A killed run left its mark; it would be repaired first: {REPAIR}"]
                return outcome
            outcome.repaired = _repair.repair(self._tools, mark)
            outcome.changed = True
        else:
            unfinished = unfinished_names(self._root)
            if unfinished:
                raise TransactionError(
                    "The package database is not in order (half configured: {}), and not by a run of this collection. "
                    "Repair it first: {}".format(", ".join(unfinished), REPAIR)
                )
        words = self._pending(request)
        if not words:
            return outcome
        if request.update_cache and words != ["holds"] and not check:
            self._tools.update()
        self._execute(request, check, outcome)
        return outcome

    def _pending(self, request: Request) -> list[str]:
        names = (
            frozenset(request.packages)
            | frozenset(request.absent)
            | frozenset(request.hold)
            | frozenset(request.unhold)
        )
        installed = read_installed(self._root, names.__contains__)
        todo = []
        for name, version in request.packages.items():
            package = installed.get(name)
            if package is None or not package.installed or (version and package.version != version):
                todo.append(name)
        todo += [name for name in request.absent if name in installed]
        if todo:
            return todo
        held = frozenset(name for name, package in installed.items() if package.held)
        if frozenset(request.hold) - held or frozenset(request.unhold) & held:
            return ["holds"]
        return []

    def _execute(self, request: Request, check: bool, outcome: Outcome) -> None:
        before = read_installed(self._root)
        packages = {name: version for name, version in request.packages.items() if differs(before.get(name), version)}
        absent = sorted(name for name in request.absent if name in before)
        simulation = _apt_get.Simulation({}, {})
        arguments: list[str] = []
        if packages or absent:
            verb = ["--purge"] if request.purge else []
            # All wanted packages are named, changed or not, so that the solver cannot trade one for another.
            named = {name: version for name, version in request.packages.items() if version or name in packages}
            alone = list(_apt_get.OFFLINE) if request.files else []
            words = _apt_get.operands(named, absent, request.files)
            arguments = _apt_get.options(self._lock_timeout) + alone + verb + ["install"] + words
            held = [name for name, package in before.items() if package.held]
            ours = frozenset(request.packages) | frozenset(request.absent)
            lifted = [name for name in held if name in ours or request.may_move(name)]
            simulation = self._tools.simulate(arguments, lifted)
            if check and request.update_cache and any(text in simulation.error for text in _UNKNOWN):
                # The lists that the real run reads first may know them; a check run changes nothing, lists included.
                simulation = _apt_get.Simulation(
                    {name: ("", version or "candidate") for name, version in packages.items()}, {}
                )
            problems = judge(request, simulation, before)
            if problems:
                text = "; ".join(problems)
                raise TransactionError(f"The transaction was refused, nothing was changed: {text}.")
            self._check_space(simulation)
        holds = self._holds(request, before, simulation)
        describe(outcome, simulation, before, holds)
        if check or not outcome.changed:
            return
        touched = frozenset(simulation.installs) | frozenset(simulation.removes)
        if arguments:
            self._change(request, arguments, simulation, before, touched, holds)
        else:
            self._tools.set_holds(holds, read_installed(self._root))

    def _change(
        self,
        request: Request,
        arguments: list[str],
        simulation: _apt_get.Simulation,
        before: Installed,
        touched: frozenset[str],
        holds: frozenset[str],
    ) -> None:
        former_holds = frozenset(name for name, package in before.items() if package.held)
        former = {name: before[name].version if name in before else "" for name in sorted(touched)}
        auto = sorted(_dpkg.automatic(self._root) & touched)
        new_tools = sorted(name for name in request.packages if request.automatic and former.get(name) == "")
        asked = [] if request.automatic else sorted(request.packages)
        mark = {
            "started": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": ["apt-get"] + arguments,
            "packages": {name: new for name, (_old, new) in sorted(simulation.installs.items())},
            "remove": sorted(simulation.removes),
            "holds_to_restore": sorted(holds | (former_holds & frozenset(before))),
            "owner": request.owner,
            "before": former,
            "automatic": auto + new_tools,
            "named": asked,
        }
        _state.write_json(self._root, _state.MARK, mark)
        failure = ""
        final_holds = former_holds
        try:
            self._tools.set_holds(former_holds - touched, before)
            result = self._tools.apt(arguments)
            if not result.ok:
                failure = _repair.undo(self._tools, result, former)
            else:
                final_holds = holds
        finally:
            after = read_installed(self._root)
            self._tools.set_holds(final_holds, after)
            self._tools.mark_automatic(new_tools if final_holds is holds else auto)
            new = [name for name, version in former.items() if not version and name in after]
            _state.note_brought(self._root, request.owner, new, self._tools.gone(former), asked)
            if not unfinished_names(self._root):
                _state.remove_file(self._root, _state.MARK)
        if not failure and self._pending(request):
            failure = "apt-get reported success, but these are not as asked: {}".format(
                ", ".join(self._pending(request))
            )
        if failure:
            raise TransactionError(failure)

    def _check_space(self, simulation: _apt_get.Simulation) -> None:
        if not simulation.installs:
            return
        words = [f"{name}={new}" for name, (_old, new) in sorted(simulation.installs.items())]
        shown = self._runner.run(["apt-cache", "show", *words], timeout=120.0)
        problem = _apt_space.problem(shown.out, self._root, self._space_margin, self._free_bytes)
        if problem:
            raise TransactionError(f"Nothing was changed: {problem}.")

    def _holds(self, request: Request, before: Installed, simulation: _apt_get.Simulation) -> frozenset[str]:
        there = (frozenset(before) | frozenset(simulation.installs)) - frozenset(simulation.removes)
        missing = sorted(frozenset(request.hold) - there)
        if missing:
            raise TransactionError("Cannot hold packages that would not be installed: {}.".format(", ".join(missing)))
        held = frozenset(name for name, package in before.items() if package.held)
        return ((held | frozenset(request.hold)) - frozenset(request.unhold)) & there
