# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The quarantine of a node for balancers that look at a file, and for units that are bound to a systemd target.

Who may set and lift it is decided in ``_quarantine``. The file is the mark: whoever finds it sends no new work here.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _quarantine
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._quarantine import Marker, MarkerError, Plan
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import diff_entry, read_bytes, replace_file

#: Below /run, which a reboot empties: what is wrong after the boot is found and marked anew.
PATH = "/run/gpu_node/quarantine"
_TARGET = "target"
_ACTIVE, _INACTIVE = "active", "inactive"
#: Seconds. Units that are bound to the target end their work while systemctl waits.
_TIMEOUT = 120.0
#: Most bytes of a mark that are read; ours is far below.
_MOST = 65536


class QuarantineError(Exception):
    """The quarantine could not be set or lifted; the text says what stands in the way and what to do."""


def change(
    runner: Runner,
    healthy: bool,
    reason: str,
    now: float,
    path: str = PATH,
    target: str = "",
    root: str = "/",
    check_mode: bool = False,
) -> dict[str, Any]:
    """Set the node's quarantine, or lift it, as far as that is ours to do.

    Args:
        runner: Runs systemctl, only where there is a target.
        healthy: Whether the node may serve, so that a quarantine of ours is lifted.
        reason: Why it may not, in a line.
        now: Seconds since the epoch.
        path: The file that marks it.
        target: Unit of systemd that is started with the quarantine and stopped with its end; empty: none.
        root: Directory that stands for ``/``, in files.
        check_mode: Only say what would be done.

    Returns:
        ``changed``, ``action`` (of ``_quarantine.Plan``), ``reason``, ``quarantined`` (whether the node is out of
        service now, by whomever), ``owner`` (of the mark; empty without one) and ``diff``.

    Raises:
        QuarantineError: where it could not be done, or a mark of ours is damaged.
    """
    if target and not target.endswith(".target"):
        raise QuarantineError(f"{target!r} is no target of systemd; allowed is a name that ends in .target")
    boot_id = (read_text(root, "proc/sys/kernel/random/boot_id") or "").strip()
    for _attempt in range(3):
        before = _read(root, path)
        current = {_TARGET: _state(runner, target)} if target else {}
        wanted = {_TARGET: _ACTIVE} if target else {}
        marker = _parsed(before, path)
        plan = _quarantine.plan(marker, current, wanted, healthy, reason, boot_id, now)
        try:
            after = before if check_mode else _apply(runner, plan, before, path, target, root)
        except FileExistsError:
            # Somebody was quicker: theirs counts, so look again.
            continue
        return _told(plan, before, _planned(plan, before) if check_mode else after, current, marker, path)
    raise QuarantineError(f"{path} changes again and again; see who else writes it")


def _read(root: str, path: str) -> bytes | None:
    try:
        found = read_bytes(root, path)
    except OSError as error:
        raise QuarantineError(f"{path} cannot be read: {error.strerror or error}") from error
    return found if found is None else found[:_MOST]


def _parsed(content: bytes | None, path: str) -> Marker | None:
    if content is None:
        return None
    try:
        # An empty file marks a node as well; nobody has signed it.
        return _quarantine.parse(content.decode("utf-8", "replace")) or Marker("somebody", "", "", 0.0)
    except MarkerError as error:
        raise QuarantineError(f"{path}: {error}") from error


def _state(runner: Runner, target: str) -> str:
    return _ACTIVE if runner.run(["systemctl", "is-active", target]).out.strip() == _ACTIVE else _INACTIVE


def _planned(plan: Plan, before: bytes | None) -> bytes | None:
    if plan.action == _quarantine.RELEASE:
        return None
    return _content(plan.marker) if plan.marker else before


def _content(marker: Marker) -> bytes:
    return (marker.text() + "\n").encode("utf-8")


def _apply(runner: Runner, plan: Plan, before: bytes | None, path: str, target: str, root: str) -> bytes | None:
    """Do what is planned; returns the content of the file afterwards."""
    if plan.action == _quarantine.RELEASE:
        # The target first: as long as the file is there, a run that is cut off lifts the rest the next time.
        if plan.values.get(_TARGET) == _INACTIVE:
            _systemctl(runner, "stop", target)
        os.unlink(path_below(root, path))
        return None
    if plan.marker is None:
        return before
    try:
        if plan.action == _quarantine.UPDATE:
            replace_file(root, path, _content(plan.marker), 0o644)
            return _content(plan.marker)
        _create(root, path, _content(plan.marker))
    except FileExistsError:
        raise
    except OSError as error:
        raise QuarantineError(f"{path} cannot be written: {error.strerror or error}") from error
    if plan.values.get(_TARGET) == _ACTIVE:
        try:
            _systemctl(runner, "start", target)
        except QuarantineError:
            # The mark stays, since the node is bad; it must not claim a target that never ran.
            replace_file(root, path, _content(dataclasses.replace(plan.marker, ours={}, before={})), 0o644)
            raise
    return _content(plan.marker)


def _create(root: str, path: str, content: bytes) -> None:
    """Write a file that must not be there yet, in one step.

    Raises:
        FileExistsError: where it is there.
    """
    full = path_below(root, path)
    os.makedirs(os.path.dirname(full), mode=0o755, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".gpu-node-", dir=os.path.dirname(full))
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
        os.chmod(temporary, 0o644)
        # Unlike a rename, a link never takes the place of what somebody else has put there.
        os.link(temporary, full)
    finally:
        os.unlink(temporary)


def _systemctl(runner: Runner, verb: str, target: str) -> None:
    done = runner.run(["systemctl", verb, target], timeout=_TIMEOUT)
    if done.rc != 0:
        raise QuarantineError(
            f"systemctl {verb} {target} failed: {(done.err or done.out).strip() or f'exit status {done.rc}'}."
            " See systemctl status of it"
        )


def _told(
    plan: Plan, before: bytes | None, after: bytes | None, current: Any, marker: Marker | None, path: str
) -> dict[str, Any]:
    changed = plan.action in (_quarantine.TAKE, _quarantine.UPDATE, _quarantine.RELEASE)
    active = {**current, **plan.values}.get(_TARGET) == _ACTIVE
    kept = None if plan.action == _quarantine.RELEASE else plan.marker or marker
    return {
        "changed": changed,
        "action": plan.action,
        "reason": plan.reason,
        "quarantined": after is not None or active,
        "owner": kept.owner if kept else "",
        "diff": [diff_entry(path, before, after)] if before != after else [],
    }
