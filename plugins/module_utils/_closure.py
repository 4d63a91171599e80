# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The driver's closure: every package of it at one version, judged as one transaction, or a refusal that says why.

Pure: it sees the repositories and the node through a ``Universe`` and changes nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _apt_get,
    _apt_prefs,
    _dpkg,
    _driver_names,
    _kernel_names,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_pick import Candidate, Picker, candidates
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_refuse import Refusal, explain, redirect
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_origin import Owned, foreign_pins
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import Request, judge
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._universe import Offer, Universe

OWNER = "nvidia_driver"
TOOLCHAIN = "dkms"
#: apt may bring a driver package that the plan did not foresee; it is then named and the transaction simulated again.
_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked for.

    Args:
        version: Upstream version, or a full package version.
        source: ``distro``, ``cuda_repo`` or ``local_repo``.
        packagings: Packagings to try, the likeliest first.
        flavours: Flavours to try, the preferred one first.
        components: What of the driver is wanted.
        kernels: Kernels that can boot.
        owned: Whether an offer comes from the chosen source.
        prefer_prebuilt: Whether a distribution's own modules are taken where they exist.
        allow_redirect: Whether another branch will do when the wanted one only forwards to it.
    """

    version: str
    source: str
    packagings: tuple[str, ...]
    flavours: tuple[str, ...]
    components: tuple[str, ...]
    kernels: tuple[str, ...]
    owned: Owned
    prefer_prebuilt: bool = True
    allow_redirect: bool = False


@dataclasses.dataclass
class Plan:
    """The answer: what is to be installed, held and pinned."""

    version: str
    requested: str
    source: str
    packaging: str
    flavour: str
    components: list[str]
    roots: list[str]
    packages: dict[str, str]
    independent: dict[str, str]
    to_remove: list[str]
    dkms_name: str
    needs_headers: list[str]
    needs_toolchain: bool
    pins_text: str
    to_install: dict[str, str] = dataclasses.field(default_factory=dict)
    removes: list[str] = dataclasses.field(default_factory=list)

    @property
    def members(self) -> dict[str, str]:
        """Return all packages of the driver with their versions."""
        return {**self.packages, **self.independent}

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "holds": sorted(self.members)}


def resolve(universe: Universe, question: Question) -> tuple[Plan, _apt_get.Simulation]:
    """Return the plan and its simulation.

    Raises:
        Refusal: when the wanted driver cannot be had, or not without touching something else.
    """
    ways = candidates(
        question.packagings,
        question.flavours,
        question.components,
        _driver_names.branch_of(_dpkg.upstream_version(question.version)),
    )
    for way in ways:
        picker = Picker(universe, question.owned, way.packaging, question.version)
        start = _start(picker, way, question)
        if start is not None:
            return _plan(universe, question, way, picker, start)
    forwarded = redirect(universe, question.owned, ways, question.version)
    if forwarded and question.allow_redirect:
        plan, simulation = resolve(universe, dataclasses.replace(question, version=forwarded[1], allow_redirect=False))
        return dataclasses.replace(plan, requested=question.version), simulation
    raise Refusal(
        explain(universe, question.owned, ways, question.version, question.source, question.packagings, forwarded)
    )


@dataclasses.dataclass(frozen=True)
class _Start:
    offers: tuple[Offer, ...]
    dkms_kernels: tuple[str, ...]
    dkms: bool


def _start(picker: Picker, way: Candidate, question: Question) -> _Start | None:
    """Return the packages to begin with, or None where this way does not lead to the wanted version."""
    required = [picker.choose(name) for name in way.roots.required]
    if any(offer is None for offer in required):
        return None
    offers = [offer for offer in required if offer is not None]
    for _component, names in way.roots.any_of:
        found = [offer for offer in map(picker.choose, names) if offer is not None]
        if not found:
            return None
        offers += found
    built: dict[str, Offer] = {}
    if way.roots.prebuilt and question.prefer_prebuilt:
        for kernel in question.kernels:
            module = picker.prebuilt(way.roots.prebuilt.format(kernel=kernel))
            if module is not None:
                built[kernel] = module
    rest = tuple(kernel for kernel in question.kernels if kernel not in built)
    needs_dkms = bool(rest) or not built
    if needs_dkms:
        module = picker.choose(way.roots.module)
        if module is None:
            return None
        offers.append(module)
    offers += [offer for offer in map(picker.choose, way.roots.optional) if offer is not None]
    return _Start((*offers, *built.values()), rest, needs_dkms)


def _plan(
    universe: Universe, question: Question, way: Candidate, picker: Picker, start: _Start
) -> tuple[Plan, _apt_get.Simulation]:
    members = picker.close(start.offers)
    to_remove = _absorb_installed(universe, question, picker, members)
    foreign = foreign_pins(universe, question.owned)
    for _round in range(_ROUNDS):
        versions = {name: offer.version for name, offer in sorted(members.items())}
        plan = Plan(
            version=picker.upstream,
            requested=question.version,
            source=question.source,
            packaging=way.packaging,
            flavour=way.flavour,
            components=list(question.components),
            roots=sorted(offer.name for offer in start.offers),
            packages={name: version for name, version in versions.items() if not picker.independent(name)},
            independent={name: version for name, version in versions.items() if picker.independent(name)},
            to_remove=sorted(to_remove),
            dkms_name=way.roots.dkms_name if start.dkms else "",
            needs_headers=list(start.dkms_kernels),
            needs_toolchain=start.dkms,
            pins_text=_apt_prefs.pins_text(versions, foreign),
        )
        simulation = _simulate(universe, plan.members, plan.to_remove, plan.pins_text)
        if not _adopt(simulation, universe, question, picker, members, to_remove):
            break
    _judge(universe, question, picker, plan, simulation)
    plan.to_install = {name: new for name, (_old, new) in sorted(simulation.installs.items())}
    plan.removes = sorted(simulation.removes)
    return plan, simulation


def _absorb_installed(universe: Universe, question: Question, picker: Picker, members: dict[str, Offer]) -> set[str]:
    """Bring the driver packages that the node has already into the set; return those that cannot come along."""
    branch = _driver_names.branch_of(picker.upstream)
    gone: set[str] = set()
    for name in sorted(universe.installed):
        if name in members or not _driver_names.is_family(name):
            continue
        if _driver_names.is_prebuilt(name):
            # Not part of the set: of another driver, another flavour, or a kernel whose module DKMS builds now.
            gone.add(name)
            continue
        if not _driver_names.is_driver_version(_dpkg.upstream_version(universe.installed[name].version)):
            continue
        offer = picker.choose(name) if not _driver_names.is_flavoured(name) else None
        offer = offer or picker.choose(_driver_names.renamed(name, branch))
        if offer is None or (offer.name == name and _driver_names.is_flavoured(name)):
            gone.add(name)
            continue
        more = {one: found for one, found in picker.close([*members.values(), offer]).items() if one not in members}
        if offer.name != name or any(_driver_names.is_flavoured(one) for one in more):
            gone.add(name)
        if not any(_driver_names.is_flavoured(one) for one in more):
            members.update(more)
    return gone


def _simulate(universe: Universe, packages: dict[str, str], absent: list[str], pins_text: str) -> _apt_get.Simulation:
    arguments = [*_apt_get.options(), "install", *_apt_get.operands(packages, absent)]
    lifted = [name for name in universe.installed if _driver_names.is_family(name)]
    return universe.simulate(arguments, pins_text, lifted)


def _adopt(
    simulation: _apt_get.Simulation,
    universe: Universe,
    question: Question,
    picker: Picker,
    members: dict[str, Offer],
    to_remove: set[str],
) -> bool:
    """Take packages of the driver that apt adds into the set, at the versions of our choice; False when none came."""
    more = False
    for name, (_old, version) in simulation.installs.items():
        if name in members or not _driver_names.is_family(name):
            continue
        offer = picker.choose(name)
        if offer is None and _driver_names.is_prebuilt(name):
            same = [one for one in universe.offers(name) if one.version == version and question.owned(one)]
            offer = same[0] if same else None
        if offer is not None:
            members[name] = offer
            more = True
    for name in simulation.removes:
        if _driver_names.is_family(name) and name not in to_remove and name not in members:
            to_remove.add(name)
            more = True
    return more


def _judge(universe: Universe, question: Question, picker: Picker, plan: Plan, simulation: _apt_get.Simulation) -> None:
    allowed = _toolchain_moves(universe, plan, simulation)
    request = Request(
        owner=OWNER,
        packages=plan.members,
        absent=plan.to_remove,
        may_move=lambda name: _driver_names.is_family(name) or name in allowed,
    )
    problems = judge(request, simulation, universe.installed)
    if not simulation.error:
        final = {name: package.version for name, package in universe.installed.items()}
        final.update({name: new for name, (_old, new) in simulation.installs.items()})
        final = {name: version for name, version in final.items() if name not in simulation.removes}
        problems += _odd_versions(picker, final)
        problems += _odd_origins(universe, question, plan, simulation)
        if not any(_driver_names.carries_module(name) for name in final):
            problems.append("no package of the set carries a kernel module")
    if problems:
        raise Refusal(
            [f"nvidia_driver_version {plan.requested} from source {plan.source}: {problem}" for problem in problems]
        )


def _odd_versions(picker: Picker, final: dict[str, str]) -> list[str]:
    """Name driver packages that would end at another version than the wanted one."""
    odd = []
    for name, version in sorted(final.items()):
        upstream = _dpkg.upstream_version(version)
        if not _driver_names.is_family(name) or not _driver_names.is_driver_version(upstream):
            continue
        if upstream != picker.upstream and not picker.independent(name):
            odd.append(f"{name} {version}")
    if not odd:
        return []
    return [f"the set would have more than one driver version, beside {picker.upstream} also: {', '.join(odd)}"]


def _odd_origins(universe: Universe, question: Question, plan: Plan, simulation: _apt_get.Simulation) -> list[str]:
    """Name driver packages that would come from another origin than the chosen one."""
    odd = []
    for name, (_old, version) in sorted(simulation.installs.items()):
        offers = [offer for offer in universe.offers(name) if offer.version == version]
        if _driver_names.is_family(name) and offers and not any(question.owned(offer) for offer in offers):
            odd.append(f"{name} {version} from {offers[0].origin.title}")
    if not odd:
        return []
    return [f"packages would come from another origin than nvidia_driver_source {plan.source}: {', '.join(odd)}"]


def _toolchain_moves(universe: Universe, plan: Plan, simulation: _apt_get.Simulation) -> frozenset[str]:
    """Return packages that move for the compiler's sake alone: newer versions that dkms itself would bring."""
    moved = [name for name, (old, _new) in simulation.installs.items() if old and not _driver_names.is_family(name)]
    if not moved or not plan.needs_toolchain or TOOLCHAIN in universe.installed:
        return frozenset()
    alone = _simulate(universe, {TOOLCHAIN: ""}, [], plan.pins_text)
    return frozenset(
        name
        for name in moved
        if alone.installs.get(name) == simulation.installs[name]
        and not _kernel_names.is_kernel(name)
        and _dpkg.compare_versions(*simulation.installs[name]) < 0
    )
