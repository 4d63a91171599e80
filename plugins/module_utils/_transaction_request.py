# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What a package transaction is asked for, how its simulation is judged, and how its outcome is told."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _dpkg, _kernel_names

REPAIR = "dpkg --configure -a && apt-get -f install"


class TransactionError(Exception):
    """The transaction was refused or failed; the message says what is the matter, and what is the state now."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the packages of a node shall be.

    Args:
        owner: Who asks: names the entry in the list of packages that came through us.
        packages: Name to exact version, or to an empty string where any installed version is right.
        absent: Packages that shall not be there.
        hold: Packages to be held afterwards.
        unhold: Packages not to be held afterwards.
        allow_remove: Whether packages may go that were not named.
        allow_upgrade: Whether dependencies that are installed already may be moved to a newer version.
        automatic: Whether packages that it installs anew are marked as ones that nobody asked for, although they are
            named: tools that something else is about to depend on.
        purge: Whether removed packages take their configuration files with them.
        update_cache: Whether the package lists are read again before a change.
        may_move: Names that the caller has judged itself, e.g. the driver's own.
        files: Name to path of a package file on the node, for packages that come from there. No repository is then
            looked at, so that no connection is opened and a pin that no repository meets any more is no obstacle.
    """

    owner: str
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    absent: Sequence[str] = ()
    hold: Sequence[str] = ()
    unhold: Sequence[str] = ()
    allow_remove: bool = False
    allow_upgrade: bool = False
    automatic: bool = False
    purge: bool = False
    update_cache: bool = False
    may_move: Callable[[str], bool] = lambda name: False
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outcome:
    """What was done, or in check mode would be done."""

    changed: bool = False
    installed: dict[str, str] = dataclasses.field(default_factory=dict)
    removed: list[str] = dataclasses.field(default_factory=list)
    brought: list[str] = dataclasses.field(default_factory=list)
    repaired: list[str] = dataclasses.field(default_factory=list)
    before: list[str] = dataclasses.field(default_factory=list)
    after: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return a module result with its diff."""
        result = dataclasses.asdict(self)
        before, after = result.pop("before"), result.pop("after")
        result["diff"] = {
            "before_header": "packages",
            "after_header": "packages",
            "before": "".join(line + "\n" for line in before),
            "after": "".join(line + "\n" for line in after),
        }
        return result


Installed = Dict[str, _dpkg.Package]


def read_installed(root: str, wanted: Callable[[str], bool] | None = None) -> Installed:
    """Return the packages whose files are present by name; the native one where several architectures are."""
    found: Installed = {}
    for package in _dpkg.read_packages(root, wanted):
        known = found.get(package.name)
        if known is None or known.architecture == "i386":
            found[package.name] = package
    return found


def unfinished_names(root: str) -> list[str]:
    """Return what keeps dpkg from working: half-configured packages, or its journal after a kill."""
    names = [package.name for package in _dpkg.unfinished(root)]
    return names or (["dpkg's journal"] if _dpkg.interrupted(root) else [])


def judge(request: Request, simulation: _apt_get.Simulation, installed: Installed) -> list[str]:
    """Return why a simulated transaction must not run; empty when it does what was asked and nothing else."""
    problems = []
    if simulation.error:
        return [f"apt-get refuses it: {simulation.error}"]
    gone = [name for name in simulation.removes if name not in request.absent and not request.may_move(name)]
    kernels_gone = [name for name in gone if _kernel_names.is_kernel(name)]
    others_gone = [name for name in gone if name not in kernels_gone]
    moved, kernels = [], []
    for name, (old, new) in simulation.installs.items():
        if name in request.packages or request.may_move(name):
            continue
        if _kernel_names.is_kernel(name):
            kernels.append(f"{name} {new}")
        elif old and not _may_upgrade(request, installed.get(name), old, new):
            moved.append(f"{name} {old} -> {new}")
    if kernels:
        problems.append("it would bring a kernel that nobody asked for: {}".format(", ".join(sorted(kernels))))
    if kernels_gone:
        problems.append("it would remove a kernel: {}".format(", ".join(sorted(kernels_gone))))
    if others_gone and not request.allow_remove:
        problems.append("it would remove {}".format(", ".join(sorted(others_gone))))
    if moved:
        problems.append("it would change the version of {}".format(", ".join(sorted(moved))))
    for name, version in sorted(request.packages.items()):
        new = simulation.installs.get(name, ("", ""))[1]
        present = installed.get(name)
        if version and new != version and not (not new and present and present.version == version):
            problems.append("{} would be {}, not {}".format(name, new or "left alone", version))
    return problems


def _may_upgrade(request: Request, package: _dpkg.Package | None, old: str, new: str) -> bool:
    if not request.allow_upgrade or (package is not None and package.held):
        return False
    return _dpkg.compare_versions(old, new) < 0


def differs(package: _dpkg.Package | None, version: str) -> bool:
    return package is None or not package.installed or bool(version and package.version != version)


def _line(name: str, version: str, held: bool) -> str:
    return "{} {}{}".format(name, version, " (held)" if held else "")


def describe(outcome: Outcome, simulation: _apt_get.Simulation, before: Installed, holds: frozenset[str]) -> None:
    names = frozenset(simulation.installs) | frozenset(simulation.removes)
    names |= frozenset(name for name, package in before.items() if package.held) ^ holds
    for name in sorted(names):
        package = before.get(name)
        if package:
            outcome.before.append(_line(name, package.version, package.held))
        version = simulation.installs[name][1] if name in simulation.installs else package.version if package else ""
        if version and name not in simulation.removes:
            outcome.after.append(_line(name, version, name in holds))
    outcome.installed = {name: new for name, (_old, new) in sorted(simulation.installs.items())}
    outcome.removed = sorted(simulation.removes)
    outcome.brought = sorted(name for name, (old, _new) in simulation.installs.items() if not old)
    outcome.changed = outcome.changed or outcome.before != outcome.after
