# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Recording a node's last known good state, and reading what is recorded.

Recorded is only what runs now and would come up again by itself, and only whole. A state that is recorded already costs
a look at files and nothing else.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from typing import Any, Callable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _apt_space,
    _closure,
    _driver_info,
    _module_archive,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _lkg_store as store
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._lkg_collect import (
    Collector,
    Packer,
    Wanted,
    companions,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._lkg_state import (
    NotNow,
    check_state,
    core,
    describe,
    identity,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import OK, SKIPPED, WARN, Finding, as_dicts
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import read_installed

CHECK = "last_known_good.record"
_LOCK_TIMEOUT = 60.0

Clock = Callable[[], datetime.datetime]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


# --- recording -------------------------------------------------------------------------------------------------------


class Recorder:
    """Records the state of one node.

    Args:
        runner: Runs commands.
        root: Directory that stands for ``/``.
        pack: Makes archives of compiled modules.
        running: Release of the running kernel; asked from the kernel when None.
        clock: Tells the time.
        checkpoint: Told each step of the writer.
        free_bytes: Tells (device, free bytes) of a path.
    """

    def __init__(
        self,
        runner: Runner,
        root: str,
        pack: Packer = _module_archive.pack,
        running: str | None = None,
        clock: Clock = _now,
        checkpoint: store.Checkpoint = lambda step: None,
        free_bytes: _apt_space.FreeBytes = _apt_space.free_bytes,
    ) -> None:
        self._runner = runner
        self._root = root
        self._pack = pack
        self._running = running
        self._clock = clock
        self._step = checkpoint
        self._store = store.Store(root, checkpoint)
        self._free_bytes = free_bytes

    def record(self, keep: int, max_bytes: int, check: bool = False) -> dict[str, Any]:
        """Record the state of the node unless it is recorded; return the module's result.

        Nothing is raised for a state that cannot be recorded: the finding says why, and the former record stays.
        """
        if check:
            return self._record(keep, max_bytes, True)
        with _state.exclusive(self._root, _LOCK_TIMEOUT) as locked:
            if not locked:
                return self._result(Finding(CHECK, "node", SKIPPED, hint="another run works on this node's packages"))
            return self._record(keep, max_bytes, False)

    def _record(self, keep: int, max_bytes: int, check: bool) -> dict[str, Any]:
        former = store.load(self._root)
        swept = self._store.remains() if check else self._store.sweep()
        changed = bool(swept)
        try:
            facts = _driver_info.collect(self._runner, self._root, self._running)
            check_state(self._root, facts)
            data = describe(self._root, facts)
            equal = self._equal(data)
            if former is None or equal is None or equal.generation != former.generation:
                changed = True
                if not check:
                    equal = self._adopt(equal) if equal else self._write(data)
            pruned = self._store.prune(keep, max_bytes, self._superseded, check)
        except NotNow as error:
            finding = Finding(CHECK, "node", SKIPPED, _told(former), source="driver_info", hint=str(error))
            return self._result(finding, bool(swept), swept)
        except (store.StoreError, _module_archive.ArchiveError, OSError) as error:
            return self._result(self._refused(former, str(error)), bool(swept), swept)
        result = self._result(self._verdict(equal, data, max_bytes), changed or bool(pruned), swept, pruned)
        result["diff"] = {"before": _summary(former.data if former else None), "after": _summary(data)}
        return result

    def _equal(self, data: Mapping[str, Any]) -> store.Manifest | None:
        """Return the generation that has this state already, with all its files; the current one before others."""
        wanted = identity(data)
        for one in store.generations(self._root):
            try:
                if identity(one.data) == wanted and not one.damage():
                    return one
            except (KeyError, TypeError, AttributeError):
                # Written by something else; it is no record of this state.
                continue
        return None

    def _adopt(self, generation: store.Manifest) -> store.Manifest:
        """Make an older generation current again: the node went back to it, or a kill came before the last step."""
        self._store.switch(generation.generation)
        return generation

    def _write(self, data: dict[str, Any]) -> store.Manifest:
        kept = store.generations(self._root)
        collector = Collector(self._runner, self._root, kept, self._pack, self._free_bytes)
        with self._store.building() as directory:
            members = [
                Wanted(name, item["version"], item["architecture"]) for name, item in sorted(data["packages"].items())
            ]
            packages, missing = collector.debs([*members, *self._companions(data)], directory)
            lacking = {one.name: missing[one.name] for one in members if one.name in missing}
            if lacking:
                told = "; ".join(f"{name}: {why}" for name, why in sorted(lacking.items()))
                raise store.StoreError(f"package files cannot be had: {told}")
            self._step("packages gathered")
            archives = collector.archives(data["module_archives"], directory)
            self._step("modules packed")
            moment = self._clock()
            content = {
                **data,
                "packages": packages,
                "module_archives": archives,
                "unavailable": missing,
                "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            mark = hashlib.sha256(json.dumps(identity(content), sort_keys=True).encode()).hexdigest()[:8]
            name = "{}-{}".format(moment.strftime("%Y%m%dT%H%M%SZ"), mark)
            return self._store.publish(directory, name, content, collector.hashes)

    def _companions(self, data: Mapping[str, Any]) -> list[Wanted]:
        members = {name: str(item["version"]) for name, item in data["packages"].items()}
        names = companions(self._root, members, _state.brought(self._root, _closure.OWNER))
        installed = read_installed(self._root, frozenset(names).__contains__)
        return [
            Wanted(name, package.version, package.architecture, companion=True)
            for name, package in sorted(installed.items())
            if package.installed
        ]

    def _superseded(self, one: store.Manifest) -> bool:
        current = store.load(self._root)
        try:
            return current is not None and core(one.data) == core(current.data)
        except (KeyError, TypeError, AttributeError):
            return False

    def _verdict(self, recorded: store.Manifest | None, data: Mapping[str, Any], max_bytes: int) -> Finding:
        if recorded is None:
            value = "driver {} on kernel {}".format(data["driver"]["version"], data["kernel"])
            return Finding(CHECK, "node", OK, value, source=f"/{store.DIRECTORY}", hint="it would be recorded")
        size = self._store.size([recorded.generation])
        if size > max_bytes:
            hint = f"it takes {size >> 20} MiB, more than max_size_mib ({max_bytes >> 20}) allows; no older one is kept"
            return Finding(CHECK, "node", WARN, _told(recorded), source=f"/{store.DIRECTORY}", hint=hint)
        return Finding(CHECK, "node", OK, _told(recorded), source=f"/{store.DIRECTORY}")

    def _refused(self, former: store.Manifest | None, why: str) -> Finding:
        stays = f"the record of {former.time} stays" if former else "there is no older record"
        hint = f"this state is not recorded, {stays}: {why}"
        return Finding(CHECK, "node", WARN, _told(former), "a record of this state", f"/{store.DIRECTORY}", hint)

    def _result(
        self, finding: Finding, changed: bool = False, swept: list[str] | None = None, pruned: list[str] | None = None
    ) -> dict[str, Any]:
        return {
            "changed": changed,
            "findings": as_dicts([finding]),
            "swept": swept or [],
            "pruned": pruned or [],
            **overview(self._root),
        }


# --- reading ---------------------------------------------------------------------------------------------------------


def overview(root: str) -> dict[str, Any]:
    """Return which generations there are, and which one is current."""
    current = store.load(root)
    return {
        "current": _line(current) if current else None,
        "generations": [_line(one) for one in store.generations(root)],
        "size_mib": round(store.Store(root).size() / 1048576, 1),
    }


def read(root: str, verify_files: bool = False) -> dict[str, Any]:
    """Return the record with everything in it, and what is wrong with it.

    Args:
        root: Directory that stands for ``/``.
        verify_files: Whether the files' sha256 is compared as well; it reads all of them.
    """
    current = store.load(root)
    damage = current.damage(verify_files) if current else []
    why = "" if current else store.explain(root)
    if why and os.path.lexists(path_below(root, store.CURRENT)):
        damage = [why]
    hint = why or "; ".join(damage)
    status = WARN if damage else OK if current else SKIPPED
    finding = Finding(CHECK, "node", status, _told(current), source=f"/{store.DIRECTORY}", hint=hint)
    return {
        "changed": False,
        "manifest": dict(current.data) if current else None,
        "damage": damage,
        "findings": as_dicts([finding]),
        "swept": [],
        "pruned": [],
        **overview(root),
    }


def remove(root: str, check: bool) -> dict[str, Any]:
    """Remove the record altogether, as an uninstall does."""
    known = store.load(root)
    changed = os.path.lexists(path_below(root, store.DIRECTORY))
    if changed and not check:
        store.Store(root).remove()
    return {
        "changed": changed,
        "findings": [],
        "swept": [],
        "pruned": [],
        **overview(root),
        "diff": {"before": _summary(known.data if known else None), "after": ""},
    }


def _line(one: store.Manifest) -> dict[str, Any]:
    return {
        "generation": one.generation,
        "path": one.directory,
        "time": one.time,
        "version": one.version,
        "kernel": one.kernel,
    }


def _told(one: store.Manifest | None) -> str | None:
    return f"driver {one.version} on kernel {one.kernel}, recorded {one.time}" if one else None


def _summary(data: Mapping[str, Any] | None) -> str:
    """Return a state in lines, for a diff."""
    if data is None:
        return ""
    lines = ["driver {}".format(data["driver"]["version"]), "kernel {}".format(data["kernel"])]
    lines.append("boot entry {}".format(data["boot_entry"]))
    lines += [f"module for {kernel}" for kernel in data["kernels"]]
    lines += [
        "package {} {}".format(name, item["version"])
        for name, item in sorted(data["packages"].items())
        if not item["companion"]
    ]
    lines += [f"hold {name}" for name in data["holds"]]
    return "".join(line + "\n" for line in lines)
