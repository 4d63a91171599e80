# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Planning, installing and removing a driver on one node: what the module driver_closure does.

``planned`` changes nothing, not even package lists; ``present`` does what a plan says, in one transaction; ``absent``
takes away exactly what was recorded.
"""

from __future__ import annotations

import datetime
import os
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _apt_prefs,
    _apt_sources,
    _apt_space,
    _closure,
    _dkms_guard,
    _dpkg,
    _driver_files,
    _driver_names,
    _driver_origin,
    _driver_record,
    _gpu_holders,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._apt_universe import (
    AptState,
    AptUniverse,
    RepositoryError,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_refuse import Refusal
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._compiled_modules import CompiledModules
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._loaded_module import loaded_facts
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction import Transaction
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import (
    REPAIR,
    Outcome,
    Request,
    TransactionError,
    read_installed,
    unfinished_names,
)

OWNER = _closure.OWNER
#: Kept of a plan in the record.
_RECORDED = (
    "version",
    "requested",
    "source",
    "packaging",
    "flavour",
    "components",
    "packages",
    "independent",
    "dkms_name",
    "needs_headers",
    "needs_toolchain",
    "pins_text",
)


class Closure:
    """One node's driver.

    Args:
        runner: Runs commands.
        root: Directory that stands for ``/``.
        system: ``id`` and ``codename`` of the node's os-release.
        transaction: Runs transactions; made for the node when None.
    """

    def __init__(
        self, runner: Runner, root: str, system: Mapping[str, str], transaction: Transaction | None = None
    ) -> None:
        self._runner = runner
        self._root = root
        self._system = system
        self._transaction = transaction or Transaction(runner, root)
        #: Kernels whose modules came compiled, and why others did not, after ``install``.
        self.loaded_kernels: list[str] = []
        self.not_loaded: list[str] = []

    # --- planned -----------------------------------------------------------------------------------------------------

    def plan(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is to be done for a request.

        Args:
            wanted: version, source, flavours, components, kernels, repo_uri (without a login), repo_suite,
                repo_components, key_text, auth_text (the repository's login file), allow_redirect, prefer_prebuilt,
                interrupt_users (optional), problems.

        Raises:
            Refusal: with everything that is wrong.
        """
        if wanted["problems"]:
            raise Refusal(wanted["problems"])
        if _state.read_json(self._root, _state.MARK) is not None:
            return {"repair_first": True, "already": False, "changes": False}
        unfinished = unfinished_names(self._root)
        if unfinished:
            raise Refusal(
                [f"the package database is not in order (unfinished: {', '.join(unfinished)}); repair it: {REPAIR}"]
            )
        sources = _apt_sources.read_sources(self._root, ignore=(_apt_prefs.SOURCES_PATH,))
        sources_text = self._sources_text(wanted, sources)
        doubles = self._doubles(wanted, sources)
        record = _driver_record.read_record(self._root)
        blacklist = _apt_prefs.blacklist_text(_driver_record.members(record)) if record else ""
        if (
            record
            and _driver_record.same_request(record, wanted)
            and read_text(self._root, _apt_prefs.SOURCES_PATH) == (sources_text or None)
            and _driver_record.holds_true(self._root, record, str(record.get("pins_text")), blacklist)
        ):
            answer = {key: record.get(key) for key in _RECORDED}
            answer.update(already=True, to_install={}, to_remove=[], removes=[], needs_update=False)
        else:
            answer = self._resolve(wanted, sources_text, doubles)
        return self._complete(answer, wanted, sources_text, doubles)

    def _resolve(self, wanted: Mapping[str, Any], sources_text: str, doubles: list[str]) -> dict[str, Any]:
        without = [os.path.basename(path) for path in doubles]
        with AptState(
            self._runner, self._root, sources_text, wanted["key_text"], without, wanted["auth_text"]
        ) as state:
            differs = (read_text(self._root, _apt_prefs.SOURCES_PATH) or "") != sources_text
            needs_update = differs or state.lacks_lists()
            if needs_update:
                self._update(state, wanted)
            try:
                plan, universe, simulation = self._ask(state, wanted)
            except Refusal:
                if needs_update:
                    raise
                # The node's lists may be older than the wanted version.
                needs_update = True
                self._update(state, wanted)
                plan, universe, simulation = self._ask(state, wanted)
            words = [f"{name}={new}" for name, (_old, new) in sorted(simulation.installs.items())]
            problem = _apt_space.problem(universe.show(words), self._root) if words else ""
            if problem:
                raise Refusal([problem])
        blacklist = _apt_prefs.blacklist_text(plan.members)
        return {
            **plan.as_dict(),
            "already": _driver_record.holds_true(self._root, plan.as_dict(), plan.pins_text, blacklist)
            and not plan.to_remove
            and not plan.to_install
            and self._recorded(plan.as_dict(), wanted),
            "needs_update": needs_update,
        }

    def _ask(self, state: AptState, wanted: Mapping[str, Any]) -> tuple[_closure.Plan, AptUniverse, Any]:
        universe = AptUniverse(state, state.targets(), self._root)
        question = _closure.Question(
            version=str(wanted["version"]),
            source=wanted["source"],
            packagings=_driver_names.packagings(wanted["source"], self._system["id"]),
            flavours=tuple(wanted["flavours"]),
            components=tuple(wanted["components"]),
            kernels=tuple(wanted["kernels"]),
            owned=_driver_origin.owner(wanted["source"], wanted["repo_uri"], universe.distribution),
            prefer_prebuilt=wanted["prefer_prebuilt"],
            allow_redirect=wanted["allow_redirect"],
        )
        plan, simulation = _closure.resolve(universe, question)
        return plan, universe, simulation

    def _update(self, state: AptState, wanted: Mapping[str, Any]) -> None:
        try:
            state.update()
        except RepositoryError as error:
            if wanted["source"] == "distro":
                place = "nvidia_driver_source distro: the distribution's repositories"
            else:
                place = f"nvidia_driver_repo_uri: the repository {wanted['repo_uri']}"
            raise Refusal([f"{place} cannot be read: {error}"]) from error

    def _sources_text(self, wanted: Mapping[str, Any], sources: list[_apt_sources.Source]) -> str:
        if wanted["source"] == "distro":
            foreign = _driver_record.release_origins(self._root, sources)
            stanzas = _apt_sources.distribution_text(sources, self._system["id"], self._system["codename"], foreign)
        else:
            stanzas = _apt_sources.repository_text(
                wanted["repo_uri"], wanted["repo_suite"], wanted["repo_components"], _apt_prefs.KEY_PATH
            )
        return _apt_prefs.sources_text(stanzas)

    def _doubles(self, wanted: Mapping[str, Any], sources: list[_apt_sources.Source]) -> list[str]:
        """Return files that define our repository a second time; they are diverted, whole files only."""
        if wanted["source"] == "distro":
            return []
        found = _apt_sources.duplicates(sources, wanted["repo_uri"])
        mixed = [path for path, alone in found.items() if not alone]
        if mixed:
            raise Refusal(
                [
                    f"nvidia_driver_repo_uri: {wanted['repo_uri']} is defined in {', '.join(mixed)} too, beside "
                    "others; take that entry out, so that the repository has one definition"
                ]
            )
        return sorted(found)

    def _recorded(self, plan: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        record = dict(_driver_record.read_record(self._root))
        record.pop("time", None)
        return record == self._record(plan, wanted)

    def _record(self, plan: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **{key: plan.get(key) for key in _RECORDED},
            "repo_uri": wanted["repo_uri"],
            "prefer_prebuilt": wanted["prefer_prebuilt"],
            "kernels_at_install": sorted(wanted["kernels"]),
        }

    def _complete(
        self, answer: dict[str, Any], wanted: Mapping[str, Any], sources_text: str, doubles: list[str]
    ) -> dict[str, Any]:
        """Add files, users of the GPUs and what the role wants to know at a glance."""
        changed = _driver_files.changed(self._root, wanted, sources_text)
        members = _driver_record.members(answer)
        interrupt = bool(wanted.get("interrupt_users"))
        problem = self._in_use(answer, interrupt)
        if problem:
            raise Refusal([problem])
        answer["request"] = {key: wanted[key] for key in ("repo_uri", "prefer_prebuilt", "kernels")}
        answer["interrupt_users"] = interrupt
        answer.update(
            holds=sorted(members),
            repair_first=False,
            files=changed,
            doubled_sources=[{"path": path, "divert": path + _apt_prefs.DIVERTED} for path in doubles],
            sources_text=sources_text,
            blacklist_text=_apt_prefs.blacklist_text(members),
            stale_images=_driver_files.stale_images(self._root, wanted["kernels"]),
            login_differs=_driver_files.login_differs(self._root, wanted["auth_text"]),
        )
        answer["changes"] = not answer["already"] or bool(
            changed or doubles or answer["stale_images"] or answer["login_differs"]
        )
        return answer

    def _in_use(self, plan: Mapping[str, Any], interrupt: bool) -> str:
        """Return whose work a plan would take the driver from; empty where nobody's, or where that is allowed."""
        replaced = set(plan["to_install"]) & set(_driver_record.members(plan)) or plan["to_remove"]
        if interrupt or not replaced:
            return ""
        return _driver_record.in_use_problem(self._root, str(plan["version"]), str(plan["flavour"] or ""))

    # --- present and absent ------------------------------------------------------------------------------------------

    def install(
        self, plan: Mapping[str, Any], check: bool, archives: Sequence[Mapping[str, str]] = ()
    ) -> tuple[Outcome, list[dict[str, str]]]:
        """Install what a plan says and record it; return the outcome and the files that change, for a diff.

        Args:
            plan: What ``plan`` returned.
            check: Only say what would change.
            archives: Compiled modules for it, each with ``path``, ``sha256`` and ``kernel``.

        Raises:
            ArchiveError: when compiled modules do not fit; nothing has changed then.
            TransactionError: when it is refused, also for work that began since, or fails; pins and packages are then
                as before.
        """
        # Work may have begun since the plan was made: lists were read and a toolchain was installed in between.
        problem = self._in_use(plan, bool(plan.get("interrupt_users")))
        if problem:
            raise TransactionError(f"Nothing was changed: {problem}")
        modules = CompiledModules(self._runner, self._root, plan, archives)
        members = _driver_record.members(plan)
        former = {path: read_text(self._root, path) for path in (_apt_prefs.PINS_PATH, _apt_prefs.BLACKLIST_PATH)}
        texts = {
            _apt_prefs.PINS_PATH: str(plan["pins_text"]),
            _apt_prefs.BLACKLIST_PATH: str(plan["blacklist_text"]),
        }
        request = Request(
            owner=OWNER,
            packages=members,
            absent=list(plan["to_remove"]),
            hold=sorted(members),
            may_move=_driver_names.is_family,
        )
        changed = [path for path, text in texts.items() if former[path] != text]
        if check:
            outcome = self._preview(request, plan, texts)
        else:
            _dkms_guard.sweep(self._root)
            # apt has to see the new pins when it solves; they go back with the packages when that fails.
            for path in changed:
                _driver_files.write(self._root, path, texts[path])
            try:
                with modules.around():
                    outcome = self._transaction.run(request)
            except TransactionError:
                for path in changed:
                    _driver_files.write(self._root, path, former[path])
                raise
            self.loaded_kernels, self.not_loaded = modules.load()
            outcome.changed = outcome.changed or bool(self.loaded_kernels)
        record = self._record(plan, plan["request"])
        known = dict(_driver_record.read_record(self._root))
        known.pop("time", None)
        outcome.changed = outcome.changed or bool(changed) or known != record
        if not check and known != record:
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            _state.write_json(self._root, _driver_record.RECORD, {**record, "time": now})
        diffs = [_driver_files.diff(path, former[path], texts[path]) for path in changed]
        return outcome, diffs

    def _preview(self, request: Request, plan: Mapping[str, Any], texts: Mapping[str, str]) -> Outcome:
        """Say from the plan's own simulation what would be done: the node's apt may not know the source yet."""
        from_plan = Outcome()
        installed = read_installed(self._root)
        for name in sorted({*plan["to_install"], *plan["to_remove"], *plan["removes"], *request.hold}):
            package = installed.get(name)
            new = plan["to_install"].get(name, package.version if package else "")
            gone = name in plan["to_remove"] or name in plan["removes"]
            before = f"{name} {package.version}{' (held)' if package.held else ''}" if package else ""
            after = "" if gone else f"{name} {new}{' (held)' if name in request.hold else ''}"
            if before != after:
                from_plan.before += [before] if before else []
                from_plan.after += [after] if after else []
        from_plan.installed = dict(plan["to_install"])
        from_plan.removed = sorted({*plan["to_remove"], *plan["removes"]})
        from_plan.changed = from_plan.before != from_plan.after
        return from_plan

    def remove(self, check: bool) -> tuple[Outcome, list[dict[str, str]]]:
        """Remove the recorded driver and what came with it, and nothing else.

        Raises:
            TransactionError: when other packages would go too, or it fails.
        """
        record = _driver_record.read_record(self._root)
        members = _driver_record.members(record)
        names = _driver_record.removable(self._root, members, _state.brought(self._root, OWNER))
        former = {path: read_text(self._root, path) for path in (_apt_prefs.PINS_PATH, _apt_prefs.BLACKLIST_PATH)}
        users = _gpu_holders.users(self._root) if names and loaded_facts(self._root)["version"] else []
        if users:
            raise TransactionError(
                f"The driver is in use; stop what uses the GPUs first (pid, name, unit or pod): {', '.join(users)}"
            )
        outcome = self._transaction.run(Request(owner=OWNER, absent=names, purge=True), check)
        changed = [path for path, text in former.items() if text is not None]
        diverted = self._diversions()
        leftovers = self._leftovers(names)
        if leftovers and not check:
            self._runner.run(["dpkg", "--purge", *leftovers], timeout=600.0)
            _state.note_brought(self._root, OWNER, [], leftovers)
        if not check:
            for path in diverted:
                self._runner.run(["dpkg-divert", "--local", "--rename", "--remove", path])
            for path in changed:
                _driver_files.write(self._root, path, None)
            _state.remove_file(self._root, _driver_record.RECORD)
        outcome.changed = outcome.changed or bool(changed or record or diverted or leftovers)
        return outcome, [_driver_files.diff(path, former[path], "") for path in changed]

    def _leftovers(self, removed: list[str]) -> list[str]:
        """Return packages that earlier changes of the driver removed, and whose configuration files are still there."""
        names = frozenset(_state.brought(self._root, OWNER)) - frozenset(removed)
        text = read_text(self._root, _dpkg.STATUS_FILE) or ""
        return [one.name for one in _dpkg.parse_status(text, names.__contains__) if one.status == "config-files"]

    def _diversions(self) -> list[str]:
        """Return the source files of others that were diverted on our behalf."""
        lines = (read_text(self._root, "var/lib/dpkg/diversions") or "").splitlines()
        return [path for path, target in zip(lines[::3], lines[1::3]) if target == path + _apt_prefs.DIVERTED]
