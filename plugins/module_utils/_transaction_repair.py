# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The way back of a package transaction: undone when a script fails, finished or undone when a kill cut it.

Nothing but what the transaction itself touched may move for it. ``apt-get -f install`` would remove whatever stands in
its way, so it is simulated first, as every other change is.
"""

from __future__ import annotations

from typing import Any, Collection, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _dpkg, _kernel_names
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import (
    REPAIR,
    TransactionError,
    read_installed,
    unfinished_names,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_tools import Tools

_FIX = "apt-get -f install"


def undo(tools: Tools, result: CommandResult, former: Mapping[str, str]) -> str:
    """Put the former packages back after a failure; return the message for the user."""
    cause = _apt_get.failure_cause(result.text, tools.root)
    failed = _apt_get.failed_packages(result.text)
    if not failed and not tools.differing(former) and not unfinished_names(tools.root):
        return f"apt-get failed before it changed anything: {_apt_get.explain_error(result)}"
    problem = restore(tools, former)
    text = "The package transaction failed{}. Cause:\n{}\n".format(
        " in the scripts of {}".format(", ".join(failed)) if failed else "", cause or _apt_get.explain_error(result)
    )
    left = tools.differing(former)
    unfinished = unfinished_names(tools.root)
    if left or unfinished:
        return text + "The former packages could NOT all be put back (differing: {}; unfinished: {}). {}".format(
            ", ".join(left) or "none", ", ".join(unfinished) or "none", problem or f"Repair: {REPAIR}"
        )
    return text + "The former packages are back and the package database is in order."


def restore(tools: Tools, former: Mapping[str, str]) -> str:
    """Put the former packages back; return why apt-get was not let do it, empty when it was."""
    if _dpkg.interrupted(tools.root):
        tools.dpkg("--configure", "-a")
    problem = ""
    differing = tools.differing(former)
    if differing:
        packages = {name: former[name] for name in differing if former[name]}
        absent = [name for name in differing if not former[name]]
        words = _apt_get.operands(packages, absent)
        problem = _judged(tools, tools.install_command("--purge", *words), former)[1]
    if unfinished_names(tools.root):
        stuck = [package.name for package in _dpkg.unfinished(tools.root)]
        newcomers = [name for name in stuck if former.get(name) == ""]
        if newcomers:
            tools.dpkg("--purge", "--force-depends", "--force-remove-reinstreq", *newcomers)
        tools.dpkg("--configure", "-a")
        problem = _judged(tools, tools.install_command("-f"), former)[1] or problem
    return problem


def repair(tools: Tools, mark: Mapping[str, Any]) -> list[str]:
    """Finish what a killed run began, so that the database is in order; the request then does the rest.

    Args:
        tools: The node's package tools.
        mark: What the killed run wrote before it changed anything.

    Raises:
        TransactionError: when it cannot be repaired, or only at the cost of packages that the killed run did not touch.
    """
    if not _state.wait_for_dpkg(tools.root, tools.lock_timeout):
        raise TransactionError("Another program still works on the package database; try again when it has ended.")
    done = []
    if unfinished_names(tools.root):
        tools.dpkg("--configure", "-a")
        done.append("dpkg --configure -a")
    former = {str(name): str(version) for name, version in dict(mark.get("before") or {}).items()}
    fix, problem = _judged(tools, tools.install_command("-f"), former)
    if not problem:
        done.append(_FIX)
    if problem or not fix.ok or unfinished_names(tools.root):
        restore(tools, former)
        done.append("the packages from before the killed run put back")
        problem = _outside(tools.simulate(tools.install_command("-f")), former) if problem else ""
    unfinished = unfinished_names(tools.root)
    if problem:
        raise TransactionError(f"A killed run left packages half done. {problem}")
    if unfinished:
        raise TransactionError(
            "A killed run left {} half done and the repair failed. Cause:\n{}\nRepair it by hand: {}".format(
                ", ".join(unfinished), _apt_get.failure_cause(fix.text, tools.root), REPAIR
            )
        )
    settle(tools, mark)
    return ["A run started {} was killed; repaired with: {}".format(mark.get("started", "earlier"), ", ".join(done))]


def settle(tools: Tools, mark: Mapping[str, Any]) -> None:
    """End a killed run whose packages are in order again: its holds and marks are set, what it brought is noted."""
    former = {str(name): str(version) for name, version in dict(mark.get("before") or {}).items()}
    after = read_installed(tools.root)
    tools.set_holds(frozenset(str(name) for name in mark.get("holds_to_restore") or []), after, only_add=True)
    tools.mark_automatic(str(name) for name in mark.get("automatic") or [])
    new = [name for name, version in former.items() if not version and name in after]
    asked = [str(name) for name in mark.get("named") or []]
    _state.note_brought(tools.root, str(mark.get("owner") or "unknown"), new, tools.gone(former), asked)
    _state.remove_file(tools.root, _state.MARK)


def _judged(tools: Tools, arguments: Sequence[str], touched: Collection[str]) -> tuple[CommandResult, str]:
    """Run an apt-get command unless it would take along what is not among ``touched``; return result and objection."""
    simulation = tools.simulate(arguments)
    problem = _outside(simulation, touched)
    if problem or simulation.error:
        return CommandResult(100, err=simulation.error), problem
    return tools.apt(arguments), ""


def _outside(simulation: _apt_get.Simulation, touched: Collection[str]) -> str:
    """Return what a repair would do to packages that the transaction did not touch; empty when nothing."""
    gone = [f"{name} {version}".strip() for name, version in simulation.removes.items() if name not in touched]
    moved = [
        f"{name} {old} -> {new}" for name, (old, new) in simulation.installs.items() if old and name not in touched
    ]
    kernels = [
        f"{name} {new}"
        for name, (old, new) in simulation.installs.items()
        if not old and name not in touched and _kernel_names.is_kernel(name)
    ]
    parts = [
        "{} {}".format(verb, ", ".join(sorted(names)))
        for verb, names in (("remove", gone), ("change", moved), ("bring the kernel", kernels))
        if names
    ]
    if not parts:
        return ""
    return (
        f"apt-get would {' and '.join(parts)} to repair it, which the run did not touch, so that was not done. Look at "
        f"these packages, then repair it by hand: {REPAIR}"
    )
