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
import os
import tempfile
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _apt_space, _dpkg
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, Runner, read_text
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

_HOURS = 3600.0
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
            outcome.repaired = self._repair(mark)
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
            self._update()
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
            simulation = self._simulate(arguments, before, request)
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
            self._set_holds(holds, read_installed(self._root))

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
        mark = {
            "started": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": ["apt-get"] + arguments,
            "packages": {name: new for name, (_old, new) in sorted(simulation.installs.items())},
            "remove": sorted(simulation.removes),
            "holds_to_restore": sorted(holds | (former_holds & frozenset(before))),
            "owner": request.owner,
            "before": former,
        }
        _state.write_json(self._root, _state.MARK, mark)
        failure = ""
        final_holds = former_holds
        try:
            self._set_holds(former_holds - touched, before)
            result = self._apt(arguments)
            if not result.ok:
                failure = self._undo(result, former)
            else:
                final_holds = holds
        finally:
            after = read_installed(self._root)
            self._set_holds(final_holds, after)
            new = [name for name, version in former.items() if not version and name in after]
            _state.note_brought(self._root, request.owner, new, self._gone(former))
            if not unfinished_names(self._root):
                _state.remove_file(self._root, _state.MARK)
        if not failure and self._pending(request):
            failure = "apt-get reported success, but these are not as asked: {}".format(
                ", ".join(self._pending(request))
            )
        if failure:
            raise TransactionError(failure)

    def _undo(self, result: CommandResult, former: Mapping[str, str]) -> str:
        """Put the former packages back after a failure; return the message for the user."""
        cause = _apt_get.failure_cause(result.text, self._root)
        failed = _apt_get.failed_packages(result.text)
        if not failed and not self._differing(former) and not unfinished_names(self._root):
            return f"apt-get failed before it changed anything: {_apt_get.explain_error(result)}"
        self._restore(former)
        text = "The package transaction failed{}. Cause:\n{}\n".format(
            " in the scripts of {}".format(", ".join(failed)) if failed else "", cause or _apt_get.explain_error(result)
        )
        left = self._differing(former)
        unfinished = unfinished_names(self._root)
        if left or unfinished:
            return (
                text
                + "The former packages could NOT all be put back (differing: {}; unfinished: {}). Repair: {}".format(
                    ", ".join(left) or "none", ", ".join(unfinished) or "none", REPAIR
                )
            )
        return text + "The former packages are back and the package database is in order."

    def _restore(self, former: Mapping[str, str]) -> None:
        if _dpkg.interrupted(self._root):
            self._dpkg("--configure", "-a")
        differing = self._differing(former)
        if differing:
            packages = {name: former[name] for name in differing if former[name]}
            absent = [name for name in differing if not former[name]]
            self._apt(
                _apt_get.options(self._lock_timeout) + ["--purge", "install"] + _apt_get.operands(packages, absent)
            )
        if unfinished_names(self._root):
            stuck = [package.name for package in _dpkg.unfinished(self._root)]
            newcomers = [name for name in stuck if former.get(name) == ""]
            if newcomers:
                self._dpkg("--purge", "--force-depends", "--force-remove-reinstreq", *newcomers)
            self._dpkg("--configure", "-a")
            self._apt(_apt_get.options(self._lock_timeout) + ["-f", "install"])

    def _repair(self, mark: Mapping[str, Any]) -> list[str]:
        """Finish what a killed run began, so that the database is in order; the request then does the rest."""
        if not _state.wait_for_dpkg(self._root, self._lock_timeout):
            raise TransactionError("Another program still works on the package database; try again when it has ended.")
        done = []
        if unfinished_names(self._root):
            self._dpkg("--configure", "-a")
            done.append("dpkg --configure -a")
        fix = self._apt(_apt_get.options(self._lock_timeout) + ["-f", "install"])
        done.append("apt-get -f install")
        former = {str(name): str(version) for name, version in dict(mark.get("before") or {}).items()}
        if not fix.ok or unfinished_names(self._root):
            self._restore(former)
            done.append("the packages from before the killed run put back")
        unfinished = unfinished_names(self._root)
        if unfinished:
            raise TransactionError(
                "A killed run left {} half done and the repair failed. Cause:\n{}\nRepair it by hand: {}".format(
                    ", ".join(unfinished), _apt_get.failure_cause(fix.text, self._root), REPAIR
                )
            )
        after = read_installed(self._root)
        self._set_holds(frozenset(str(name) for name in mark.get("holds_to_restore") or []), after, only_add=True)
        new = [name for name, version in former.items() if not version and name in after]
        _state.note_brought(self._root, str(mark.get("owner") or "unknown"), new, self._gone(former))
        _state.remove_file(self._root, _state.MARK)
        return [
            "A run started {} was killed; repaired with: {}".format(mark.get("started", "earlier"), ", ".join(done))
        ]

    def _simulate(self, arguments: list[str], before: Installed, request: Request) -> _apt_get.Simulation:
        held = [name for name, package in before.items() if package.held]
        lifted = [name for name in held if name in request.packages or name in request.absent or request.may_move(name)]
        handle, path = tempfile.mkstemp(prefix="gpu_node-status-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(_apt_get.lift_holds(read_text(self._root, _dpkg.STATUS_FILE) or "", lifted))
            command = _apt_get.simulate_command(arguments, path if lifted else None)
            return _apt_get.parse_simulation(self._runner.run(command, timeout=300.0, env=_apt_get.ENVIRONMENT))
        finally:
            os.unlink(path)

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

    def _set_holds(self, wanted: frozenset[str], installed: Installed, only_add: bool = False) -> None:
        lines = []
        for name, package in sorted(installed.items()):
            if name in wanted and not package.held:
                lines.append(f"{name} hold")
            elif name not in wanted and package.held and not only_add:
                lines.append(f"{name} install")
        if not lines:
            return
        result = self._runner.run(["dpkg", "--set-selections"], timeout=120.0, stdin="\n".join(lines) + "\n")
        if not result.ok:
            raise TransactionError("Holds could not be set ({}): {}".format(", ".join(lines), result.text))

    def _differing(self, former: Mapping[str, str]) -> list[str]:
        now = read_installed(self._root, former.__contains__)
        return [
            name
            for name, version in former.items()
            if (name in now) != bool(version) or (version and (now[name].version != version or not now[name].installed))
        ]

    def _gone(self, names: Mapping[str, str]) -> list[str]:
        """Return those of which nothing is left, not even configuration files."""
        text = read_text(self._root, _dpkg.STATUS_FILE) or ""
        left = {one.name for one in _dpkg.parse_status(text, names.__contains__) if one.status != "not-installed"}
        return [name for name in names if name not in left]

    def _update(self) -> None:
        # apt-get update exits with zero when a repository does not answer, unless told otherwise.
        result = self._runner.run(
            ["apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update"], timeout=1800.0, env=_apt_get.ENVIRONMENT
        )
        if not result.ok:
            raise TransactionError(f"The package lists could not be read: {_apt_get.explain_error(result)}")

    def _apt(self, arguments: Sequence[str]) -> CommandResult:
        return self._runner.run(["apt-get", *arguments], timeout=3 * _HOURS, env=_apt_get.ENVIRONMENT)

    def _dpkg(self, *arguments: str) -> CommandResult:
        command = ["dpkg", "--force-confdef", "--force-confold", *arguments]
        return self._runner.run(command, timeout=3 * _HOURS, env=_apt_get.ENVIRONMENT)
