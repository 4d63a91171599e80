# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Whose quarantine is it: the marker that takes a node out of service, and what may be released.

Pure logic for every carrier of a marker (a taint, an annotation, a file): the marker holds the owner, the reason, the
boot and the values that were there before. Only what we took is released, and to the values that we found.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Mapping

OWNER = "aiinfra.gpu_node"
SCHEMA = 1

# What to do.
TAKE, KEEP, RELEASE, LEAVE, UPDATE = "take", "keep", "release", "leave", "update"


class MarkerError(ValueError):
    """A marker that is ours by name but cannot be read; it is not released by a machine."""


@dataclasses.dataclass(frozen=True)
class Marker:
    """What a quarantine says of itself.

    Args:
        owner: Who set it; only ``OWNER`` is ours.
        reason: Why, in a line.
        boot_id: Boot in which it was set.
        set_at: Seconds since the epoch.
        before: Key to the value that was there before we set ours; None where the key was absent.
        ours: Key to the value that we set.
    """

    owner: str
    reason: str
    boot_id: str
    set_at: float
    before: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    ours: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """Return the marker as one line of JSON, for an annotation or a file."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do with a node.

    Args:
        action: ``take`` (set it), ``keep`` (it is set, by us, and stays), ``update`` (it stays for another reason),
            ``release`` (set ``values``) or ``leave`` (not ours to touch, or nothing to do).
        reason: Why.
        marker: The marker to store; None: none, or the one that is there.
        values: Key to the value to set; None: the key is removed.
    """

    action: str
    reason: str
    marker: Marker | None = None
    values: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


def parse(text: str | None) -> Marker | None:
    """Return the marker that a text holds; None for no text.

    A text that is not a marker of ours belongs to somebody else: its owner is what can be read of it.

    Raises:
        MarkerError: when it names us as its owner but is damaged.
    """
    if text is None or not text.strip():
        return None
    try:
        data = json.loads(text)
    except ValueError:
        if OWNER in text:
            raise MarkerError(
                f"the quarantine marker of {OWNER} is damaged: {text[:80]!r}; a person releases it"
            ) from None
        return Marker(text.strip()[:80], "", "", 0.0)
    if not isinstance(data, dict) or data.get("owner") != OWNER:
        owner = str(data.get("owner") or "unknown") if isinstance(data, dict) else "unknown"
        return Marker(owner, str(data.get("reason") or "") if isinstance(data, dict) else "", "", 0.0)
    try:
        return Marker(
            OWNER, str(data["reason"]), str(data["boot_id"]), float(data["set_at"]),
            _values(data["before"]), _values(data["ours"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MarkerError(f"the quarantine marker of {OWNER} is damaged ({error!r}); a person releases it") from error


def _values(data: Any) -> dict[str, str | None]:
    return {str(key): None if value is None else str(value) for key, value in data.items()}


def plan(
    marker: Marker | None,
    current: Mapping[str, str | None],
    wanted: Mapping[str, str | None],
    healthy: bool,
    reason: str,
    boot_id: str,
    now: float,
) -> Plan:
    """Decide about a node's quarantine.

    Args:
        marker: The one that is there; None: none.
        current: Values of the carrier's keys now (a taint, ``unschedulable``, a label); None or missing: not set.
        wanted: Values that put the node into quarantine.
        healthy: Whether the node may serve.
        reason: Why it may not.
        boot_id: This boot.
        now: Seconds since the epoch.
    """
    if marker is not None and marker.owner != OWNER:
        return Plan(LEAVE, f"set by {marker.owner}: {marker.reason or 'no reason given'}")
    if marker is not None:
        return _ours(marker, current, healthy, reason, boot_id)
    set_by_others = sorted(key for key, value in wanted.items() if current.get(key) == value and value is not None)
    if healthy:
        foreign = f"{', '.join(set_by_others)} was set by somebody else" if set_by_others else "healthy, nothing is set"
        return Plan(LEAVE, foreign)
    if wanted and len(set_by_others) == len(wanted):
        # Out of service already, by a hand that will also put it back: nothing to take, so nothing to give back.
        return Plan(LEAVE, f"{', '.join(set_by_others)} was set by somebody else")
    ours = {key: value for key, value in wanted.items() if key not in set_by_others}
    before = {key: current.get(key) for key in ours}
    return Plan(TAKE, reason, Marker(OWNER, reason, boot_id, now, before, ours), ours)


def _ours(marker: Marker, current: Mapping[str, str | None], healthy: bool, reason: str, boot_id: str) -> Plan:
    if not healthy:
        # Somebody lifted it by hand while the node is still bad: that is a decision, which is not overwritten.
        lifted = sorted(key for key, value in marker.ours.items() if current.get(key) != value)
        if lifted:
            return Plan(LEAVE, f"{', '.join(lifted)} was changed by hand since we took it")
        if reason != marker.reason or boot_id != marker.boot_id:
            # What was found at takeover stays in the marker: it is what will be given back.
            return Plan(UPDATE, reason, dataclasses.replace(marker, reason=reason, boot_id=boot_id))
        return Plan(KEEP, marker.reason)
    values = {
        key: marker.before.get(key)
        for key, value in marker.ours.items()
        # A value that is no longer ours was set by somebody else since.
        if current.get(key) == value
    }
    return Plan(RELEASE, f"healthy again; it was: {marker.reason}", None, values)
