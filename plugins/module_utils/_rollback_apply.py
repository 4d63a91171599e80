# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Going back to the last known good state of a node: what the module driver_rollback does.

No connection is opened, nothing is compiled, and every step may be the last one before a power cut: the boot loader's
default is moved to the good kernel as soon as that kernel is whole, and a run that was cut off is planned anew from
what is there.
"""

from __future__ import annotations

import datetime
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _apt_get,
    _apt_prefs,
    _boot_control,
    _dkms_guard,
    _dpkg,
    _driver_info,
    _driver_names,
    _driver_record,
    _gpu_holders,
    _kernel_names,
    _lkg_store,
    _module_archive,
    _rollback,
    _textfile,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure import OWNER
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction import Transaction
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import Request, unfinished_names

#: What was tried, what serves instead, and why; read by driver_info.
RECORD = _state.STATE_DIR + "/rollback.json"
_HOURS = 3600.0
_LOCK_TIMEOUT = 600
#: States of a package whose files may be incomplete: it has to be unpacked again.
_TORN = ("half-installed",)


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

    def plan(self) -> tuple[_rollback.Plan, _lkg_store.Manifest, dict[str, Any]]:
        """Return the plan, the state it leads to, and the facts it comes from.

        Raises:
            RollbackError: when there is no way back.
        """
        manifest = _lkg_store.load(self._root)
        if manifest is None:
            raise RollbackError(
                f"This node has no last known good state ({_lkg_store.explain(self._root)}). One is recorded by "
                "playbooks/verify.yml and site.yml on a node that passes; until then repair the node by hand"
            )
        facts = _driver_info.collect(self._runner, self._root)
        plan = _rollback.plan(facts, good_of(manifest), self._prefer)
        needed = {*plan.restore, *(name for name in plan.repair if name in manifest.packages)}
        if plan.changes:
            plan.refusals += manifest.damage(contents=bool(needed or plan.load_module))
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

    def apply(self, plan: _rollback.Plan, manifest: _lkg_store.Manifest, facts: Mapping[str, Any], reason: str) -> None:
        """Do what a plan says, up to the reboot.

        Raises:
            RollbackError: when a step fails.
            TransactionError: when packages cannot be put back.
        """
        tried = attempted(facts, manifest)
        if plan.set_default and plan.default_first:
            self._default(plan.kernel)
        with _dkms_guard.no_builds(self._root):
            if plan.repair:
                self._repair(plan, manifest)
            if plan.restore or plan.remove or plan.hold:
                self._packages(plan, manifest)
        if plan.load_module:
            archive = manifest.archive(plan.kernel)
            if archive is not None:
                _module_archive.load(self._runner, self._root, archive["path"], archive["sha256"], plan.kernel)
        if plan.set_default and not plan.default_first:
            self._default(plan.kernel)
        self._records(manifest, tried, reason)
        if plan.modprobe:
            result = self._runner.run(["modprobe", "nvidia"], timeout=300.0)
            if not result.ok:
                raise RollbackError(f"The module is in place and cannot be loaded: {result.text}")

    def _default(self, kernel: str) -> None:
        _boot_control.manage(self._runner, kernel, "", root=self._root)

    def _repair(self, plan: _rollback.Plan, manifest: _lkg_store.Manifest) -> None:
        """Finish what dpkg left half done; what cannot be finished and is not needed goes."""
        if not _state.wait_for_dpkg(self._root, _LOCK_TIMEOUT):
            raise RollbackError("Another program works on the package database; try again when it has ended")
        torn = [package.name for package in _dpkg.unfinished(self._root) if package.status in _TORN]
        files = [manifest.debs[name] for name in torn if name in manifest.debs]
        if files:
            self._dpkg("--unpack", *files)
        useless = [name for name in torn if name not in manifest.debs and self._expendable(name, plan)]
        if useless:
            self._dpkg("--purge", "--force-depends", "--force-remove-reinstreq", *useless)
        result = self._dpkg("--configure", "-a")
        left = [name for name in unfinished_names(self._root) if name not in manifest.debs and name not in plan.remove]
        if left:
            cause = _apt_get.failure_cause(result.text, self._root)
            raise RollbackError("These packages stay half done: {}. Cause:\n{}".format(", ".join(left), cause))
        _state.remove_file(self._root, _state.MARK)

    def _expendable(self, name: str, plan: _rollback.Plan) -> bool:
        """Whether a torn package belongs to what was tried: its driver, or a kernel other than the good one."""
        kernel = _kernel_names.is_kernel_package(name)
        return name in plan.remove or _driver_names.is_family(name) or (kernel and plan.kernel not in name)

    def _packages(self, plan: _rollback.Plan, manifest: _lkg_store.Manifest) -> None:
        driver = manifest.driver
        files = [
            {"path": _apt_prefs.PINS_PATH, "content": str(driver["pins_text"])},
            {"path": _apt_prefs.BLACKLIST_PATH, "content": _apt_prefs.blacklist_text(manifest.packages)},
        ]
        _textfile.ensure_files(self._root, files, check_mode=False)
        request = Request(
            owner=OWNER,
            packages=manifest.packages,
            absent=plan.remove,
            hold=sorted(manifest.packages),
            may_move=_driver_names.is_family,
            files={name: manifest.debs[name] for name in plan.restore},
        )
        Transaction(self._runner, self._root).run(request)

    def _records(self, manifest: _lkg_store.Manifest, tried: Mapping[str, str], reason: str) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if tried:
            active = {"driver": manifest.version, "kernel": manifest.kernel}
            record = {"attempted": dict(tried), "active": active, "reason": reason, "time": now}
            _state.write_json(self._root, RECORD, record)
        if _driver_record.read_record(self._root) != manifest.driver:
            _state.write_json(self._root, _driver_record.RECORD, dict(manifest.driver))

    def _dpkg(self, *arguments: str) -> Any:
        command = ["dpkg", "--force-confdef", "--force-confold", *arguments]
        return self._runner.run(command, timeout=3 * _HOURS, env=_apt_get.ENVIRONMENT)


def good_of(manifest: _lkg_store.Manifest) -> _rollback.Good:
    """Return what the plan needs to know of a recorded state."""
    return _rollback.Good(
        driver=manifest.version,
        kernel=manifest.kernel,
        flavour=str(manifest.driver.get("flavour") or ""),
        packages=manifest.packages,
        holds=sorted(manifest.packages),
        kernels=[item["kernel"] for item in manifest.archives],
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
            after.append(f"{name} {good.packages[name]} (held)")
    if plan.load_module:
        found = [one["nvidia"] for one in facts["kernels"] if one["release"] == plan.kernel]
        have = [one["version"] or "unknown" for modules in found for one in modules if one["indexed"]]
        before.append("module for {}: {}".format(plan.kernel, ", ".join(sorted(set(have))) or "none"))
        after.append(f"module for {plan.kernel}: {good.driver}")
    if plan.set_default:
        before.append("next boot: {}".format(facts["boot"]["next_kernel"]))
        after.append(f"next boot: {plan.kernel}")
    for name in plan.repair:
        before.append(f"{name}: half done")
        after.append(f"{name}: finished")
    return "".join(line + "\n" for line in before), "".join(line + "\n" for line in after)
