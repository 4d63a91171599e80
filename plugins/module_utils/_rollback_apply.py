# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Going back to the last known good state of a node: what the module driver_rollback does.

No connection is opened, nothing is compiled, and every step may be the last one before a power cut: the boot loader's
default is moved to the good kernel as soon as that kernel is whole, and a run that was cut off is planned anew from
what is there. Modules of other kernels come last; one that cannot be put back is told, and keeps nobody from the rest.
"""

from __future__ import annotations

import datetime
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _boot_control,
    _dkms_guard,
    _driver_info,
    _driver_names,
    _driver_record,
    _gpu_holders,
    _lkg_state,
    _lkg_store,
    _module_archive,
    _planned_change,
    _rollback,
    _rollback_repair,
    _textfile,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure import OWNER
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction import Transaction
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import (
    Request,
    differs,
    read_installed,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_tools import Tools

#: What was tried, what serves instead, and why; read by driver_info.
RECORD = _state.STATE_DIR + "/rollback.json"
_LOCK_TIMEOUT = 600


class RollbackError(Exception):
    """The way back is not open or failed; the message says why and what the node is like now."""


class Rollback:
    """The way back of one node.

    Args:
        runner: Runs commands.
        root: Directory that stands for ``/``.
        prefer: ``kernel`` or ``driver``: which way is taken where both are open.
        interrupt_users: Whether processes that use the GPUs may lose them.
    """

    def __init__(self, runner: Runner, root: str, prefer: str, interrupt_users: bool) -> None:
        self._runner = runner
        self._root = root
        self._prefer = prefer
        self._interrupt_users = interrupt_users
        self._tools = Tools(runner, root, _LOCK_TIMEOUT)

    def plan(self) -> tuple[_rollback.Plan, _lkg_store.Manifest, dict[str, Any]]:
        """Return the plan, the state it leads to, and the facts it comes from.

        Raises:
            RollbackError: when there is no way back.
        """
        manifest = _lkg_store.load(self._root)
        if manifest is None:
            raise RollbackError(
                f"This node has no last known good state ({_lkg_store.explain(self._root)}). {self._advice('')}"
            )
        facts = _driver_info.collect(self._runner, self._root)
        plan = _rollback.plan(facts, good_of(manifest), self._prefer, self._differences(manifest))
        if plan.changes:
            damage = manifest.damage(contents=bool(plan.restore or plan.repair or plan.load_modules))
            if damage:
                told = "; ".join(damage)
                plan.refusals.append(
                    f"The record of {manifest.time} is damaged ({told}). {self._advice(manifest.generation)}"
                )
        loaded = facts["loaded"]["version"]
        if loaded and (plan.reboot or plan.restore) and not self._interrupt_users:
            users = _gpu_holders.users(self._root)
            if users:
                plan.refusals.append(
                    "GPUs are in use, and this would take them away; stop what uses them first, or allow it with "
                    "gpu_node_allow_drain: true (pid, name, unit or pod): {}".format(", ".join(users))
                )
        if plan.refusals:
            raise RollbackError("; ".join(plan.refusals))
        return plan, manifest, facts

    def apply(
        self, plan: _rollback.Plan, manifest: _lkg_store.Manifest, facts: Mapping[str, Any], reason: str
    ) -> list[str]:
        """Do what a plan says, up to the reboot; return what could not be put back and does not bar the way.

        Raises:
            RollbackError: when a step fails.
            TransactionError: when packages cannot be put back.
        """
        tried = attempted(facts, manifest)
        if plan.set_default and plan.default_first:
            self._default(plan.kernel)
        with _dkms_guard.no_builds(self._root):
            if plan.repair:
                self._repair(plan, manifest, facts)
            if plan.restore or plan.remove or plan.hold or plan.texts or plan.repair:
                self._packages(plan, manifest)
        problems = self._modules(manifest, [kernel for kernel in plan.load_modules if kernel == plan.kernel])
        if problems:
            raise RollbackError("; ".join(problems))
        if plan.set_default and not plan.default_first:
            self._default(plan.kernel)
        warnings = self._modules(manifest, [kernel for kernel in plan.load_modules if kernel != plan.kernel])
        self._records(manifest, tried, facts.get("rollback"), reason)
        if plan.modprobe:
            result = self._runner.run(["modprobe", "nvidia"], timeout=300.0)
            if not result.ok:
                raise RollbackError(f"The module is in place and cannot be loaded: {result.text}")
        return warnings

    def _default(self, kernel: str) -> None:
        _boot_control.manage(self._runner, kernel, "", root=self._root)

    def _modules(self, manifest: _lkg_store.Manifest, kernels: Sequence[str]) -> list[str]:
        """Put compiled modules back; return why some could not be."""
        problems = []
        for archive in manifest.archives:
            if archive["kernel"] not in kernels:
                continue
            try:
                _module_archive.load(self._runner, self._root, archive["path"], archive["sha256"], archive["kernel"])
            except _module_archive.ArchiveError as error:
                problems.append("the module for {} could not be put back: {}".format(archive["kernel"], error))
        return problems

    def _differences(self, manifest: _lkg_store.Manifest) -> _rollback.Differences:
        """Return what of the node differs from the record, beside what driver_info tells."""
        texts = _lkg_state.texts(manifest.data)
        there = read_installed(self._root, manifest.companions.__contains__)
        return _rollback.Differences(
            [path for path, text in texts.items() if (read_text(self._root, path) or "") != text],
            [name for name in manifest.companions if name not in there],
        )

    def _advice(self, broken: str) -> str:
        """Return what leads on where the current record is of no use."""
        for one in _lkg_store.generations(self._root):
            if one.generation != broken and not one.damage(contents=True):
                return (
                    f"An older one is whole: driver {one.version} on kernel {one.kernel}, recorded {one.time}. To go "
                    f"back to that instead: ln -sfn generations/{one.generation} /{_lkg_store.CURRENT}, then run "
                    "playbooks/rollback.yml again"
                )
        return (
            "One is recorded by playbooks/verify.yml and site.yml on a node that passes; until then repair the node by "
            "hand"
        )

    def _repair(self, plan: _rollback.Plan, manifest: _lkg_store.Manifest, facts: Mapping[str, Any]) -> None:
        """Finish what dpkg left half done; what cannot be finished and is not needed goes."""
        with _state.exclusive(self._root, _LOCK_TIMEOUT) as locked:
            if not locked or not _state.wait_for_dpkg(self._root, _LOCK_TIMEOUT):
                raise RollbackError("Another program works on the package database; try again when it has ended")
            default = facts["boot"]["default"] or {}
            kernels = [plan.kernel, manifest.kernel, facts["running_kernel"], default.get("kernel")]
            problem = _rollback_repair.repair(
                self._tools,
                OWNER,
                self._wanted(plan, manifest),
                manifest.debs,
                plan.remove,
                [str(kernel) for kernel in kernels if kernel],
            )
        if problem:
            raise RollbackError(problem)

    @staticmethod
    def _wanted(plan: _rollback.Plan, manifest: _lkg_store.Manifest) -> dict[str, str]:
        """Return the packages of the good driver, and what came along with it and is gone."""
        return {**manifest.packages, **plan.restore}

    def _packages(self, plan: _rollback.Plan, manifest: _lkg_store.Manifest) -> None:
        texts = _lkg_state.texts(manifest.data)
        # apt has to see the good driver's pins when it solves.
        files = [{"path": path, "content": text or None} for path, text in texts.items()]
        _textfile.ensure_files(self._root, files, check_mode=False)
        wanted = self._wanted(plan, manifest)
        installed = read_installed(self._root, wanted.__contains__)
        # What a repair found in dpkg's journal may differ from what was planned.
        todo = [name for name, version in wanted.items() if differs(installed.get(name), version)]
        request = Request(
            owner=OWNER,
            packages=wanted,
            absent=plan.remove,
            hold=sorted(manifest.packages),
            may_move=_driver_names.is_family,
            files={name: manifest.debs[name] for name in todo},
        )
        Transaction(self._runner, self._root).run(request)
        # Nobody asked for what comes along.
        self._tools.mark_automatic(name for name in plan.restore if name in manifest.companions)

    def _records(
        self,
        manifest: _lkg_store.Manifest,
        tried: Mapping[str, str],
        former: Mapping[str, Any] | None,
        reason: str,
    ) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if tried:
            active = {"driver": manifest.version, "kernel": manifest.kernel}
            # What was given up of the other kind stays given up.
            record = _planned_change.note_given_up(former, tried, active, reason, now)
            _state.write_json(self._root, RECORD, record)
        if _driver_record.read_record(self._root) != manifest.driver:
            _state.write_json(self._root, _driver_record.RECORD, dict(manifest.driver))


def good_of(manifest: _lkg_store.Manifest) -> _rollback.Good:
    """Return what the plan needs to know of a recorded state."""
    return _rollback.Good(
        driver=manifest.version,
        kernel=manifest.kernel,
        flavour=str(manifest.driver.get("flavour") or ""),
        packages=manifest.packages,
        holds=sorted(manifest.packages),
        kernels=sorted({*manifest.kernels, *(item["kernel"] for item in manifest.archives)}),
        archives=[item["kernel"] for item in manifest.archives],
        companions=manifest.companions,
    )


def attempted(facts: Mapping[str, Any], manifest: _lkg_store.Manifest) -> dict[str, str]:
    """Return what was tried instead of the good state: ``driver`` and ``kernel``, each only where it differs."""
    tried = {}
    version = (facts["record"] or {}).get("version") or facts["library"]["version"]
    if version and version != manifest.version:
        tried["driver"] = str(version)
    kernels = (facts["running_kernel"], facts["boot"]["next_kernel"])
    other = next((kernel for kernel in kernels if kernel and kernel != manifest.kernel), None)
    if other:
        tried["kernel"] = str(other)
    return tried


def state_lines(facts: Mapping[str, Any], good: _rollback.Good, plan: _rollback.Plan) -> tuple[str, str]:
    """Return what of the node differs before and after, for a diff."""
    before, after = [], []
    names = sorted({*plan.restore, *plan.remove, *plan.hold})
    for name in names:
        package = facts["packages"].get(name)
        if package:
            before.append("{} {}{}".format(name, package["version"], " (held)" if package["hold"] else ""))
        if name not in plan.remove:
            held = name in good.packages
            after.append("{} {}{}".format(name, {**good.packages, **plan.restore}[name], " (held)" if held else ""))
    for path in plan.texts:
        before.append(f"{path}: differs")
        after.append(f"{path}: as recorded")
    for kernel in plan.load_modules:
        found = [one["nvidia"] for one in facts["kernels"] if one["release"] == kernel]
        have = [one["version"] or "unknown" for modules in found for one in modules if one["indexed"]]
        before.append("module for {}: {}".format(kernel, ", ".join(sorted(set(have))) or "none"))
        after.append(f"module for {kernel}: {good.driver}")
    if plan.set_default:
        before.append("next boot: {}".format(facts["boot"]["next_kernel"]))
        after.append(f"next boot: {plan.kernel}")
    for name in plan.repair:
        before.append(f"{name}: half done")
        after.append(f"{name}: finished")
    return "".join(line + "\n" for line in before), "".join(line + "\n" for line in after)
