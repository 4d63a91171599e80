# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The profile of kernel settings: checked, planned against what the machine has, written and applied.

Each key has a policy:

- ``set``: exactly this value.
- ``floor``: at least this value. What another file, the running kernel or an earlier run already sets higher stays.
- ``never``: not managed; named with its reason because guides recommend it, and reported where a file sets it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _sysctl
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import diff_entry, read_bytes, replace_file

OWN_FILE = "/etc/sysctl.d/90-gpu-node.conf"
SET = "set"
FLOOR = "floor"
NEVER = "never"
POLICIES = (SET, FLOOR, NEVER)
HEADER = "# Managed by the aiinfra.gpu_node collection (role tuning): changes here are lost.\n"

_FIELDS = ("value", "policy", "reason", "source")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@+-]*\Z")
_BOOLEAN_WORDS = frozenset({"true", "false", "yes", "no", "on", "off"})
#: Low and high end of a range: "at least" means at least as wide, so the low end counts downwards.
_RANGES = frozenset({"net/ipv4/ip_local_port_range", "net/ipv4/ping_group_range"})


class ProfileError(Exception):
    """The profile, or one of its values, cannot be used; the text names each item and what is allowed."""


@dataclasses.dataclass(frozen=True)
class Item:
    """One checked entry of the profile."""

    path: str
    value: str
    policy: str
    reason: str = ""
    source: str = ""

    @property
    def name(self) -> str:
        """The dotted name."""
        return _sysctl.to_name(self.path)


def read_profile(profile: Mapping[str, Any], variable: str = "tuning_sysctl") -> list[Item]:
    """Check a profile and return its items, sorted by name.

    Args:
        profile: Key to entry; an entry is a dictionary (``value``, ``policy``, ``reason``, ``source``) or a bare value.
        variable: What messages call the profile.

    Raises:
        ProfileError: with every fault found, one a line.
    """
    items: dict[str, Item] = {}
    faults: list[str] = []
    for name, entry in profile.items():
        try:
            item = _read_item(str(name), entry)
            if item.path in items:
                raise ProfileError("is there twice, with a different separator")
            items[item.path] = item
        except ProfileError as fault:
            faults.append(f"{variable}: {name} {fault}")
    if faults:
        raise ProfileError("\n".join(faults))
    return [items[path] for path in sorted(items)]


def _read_item(name: str, entry: Any) -> Item:
    if not isinstance(entry, Mapping):
        entry = {"value": entry}
    unknown = sorted(set(map(str, entry)) - set(_FIELDS))
    if unknown:
        raise ProfileError("has the unknown field {}; allowed are {}".format(unknown[0], ", ".join(_FIELDS)))
    path = _sysctl.to_path(name)
    if not _NAME.match(name) or any(part in ("", ".", "..") for part in path.split("/")):
        raise ProfileError("is not the name of one kernel setting, such as vm.max_map_count")
    policy = entry.get("policy") or SET
    if policy not in POLICIES:
        raise ProfileError("has the policy {!r}; allowed are {}".format(policy, ", ".join(POLICIES)))
    value = "" if policy == NEVER else _read_value(entry.get("value"))
    if policy == FLOOR and _sysctl.numbers(value) is None:
        raise ProfileError(f"has the policy floor, which needs whole numbers, but the value {value!r}")
    reason = " ".join(str(entry.get("reason") or "").split()) or "asked for by the inventory"
    return Item(path, value, str(policy), reason, " ".join(str(entry.get("source") or "").split()))


def _read_value(value: Any) -> str:
    if isinstance(value, bool):
        raise ProfileError(f"has the boolean value {str(value).lower()}; write a number or text, for example 1")
    if value is None:
        raise ProfileError("has no value; give it a number or text")
    if isinstance(value, (list, tuple)):
        return " ".join(_read_value(part) for part in value) or _read_value(None)
    if not isinstance(value, (int, str)):
        raise ProfileError(f"has the value {value!r}; write a whole number or text")
    text = str(value).strip()
    if not text:
        raise ProfileError("has no value; give it a number or text")
    if text.lower() in _BOOLEAN_WORDS:
        raise ProfileError(f"has the boolean value {text}; write a number or text, for example 1")
    if not text.isprintable():
        raise ProfileError("has a value with a line break or control character")
    return _sysctl.squeeze(text)


def higher(path: str, one: str, other: str) -> str:
    """Return the higher of two values, number by number; of a range the wider. Text counts as lower than numbers."""
    left, right = _sysctl.numbers(one), _sysctl.numbers(other)
    if left is None or right is None or len(left) != len(right):
        return other if left is None else one
    if path in _RANGES and len(left) == 2:
        merged: tuple[int, ...] = (min(left[0], right[0]), max(left[1], right[1]))
    else:
        merged = tuple(map(max, left, right))
    return " ".join(map(str, merged))


def same(one: str | None, other: str | None) -> bool:
    """Whether two values mean the same to the kernel."""
    if one is None or other is None:
        return one is other
    if one == other:
        return True
    left, right = _sysctl.numbers(one), _sysctl.numbers(other)
    return left is not None and left == right


def reaches(item: Item, value: str | None) -> bool:
    """Whether a value satisfies an item: equal for ``set``, equal or higher for ``floor``."""
    if value is None:
        return False
    return same(higher(item.path, value, item.value), value) if item.policy == FLOOR else same(value, item.value)


@dataclasses.dataclass
class Plan:
    """What the own file holds afterwards and which live values change; everything else is for the report."""

    file_values: dict[str, str] = dataclasses.field(default_factory=dict)
    text: str = ""
    live: list[dict[str, str]] = dataclasses.field(default_factory=list)
    not_applied: list[dict[str, str]] = dataclasses.field(default_factory=list)
    kept: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    foreign: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def make_plan(items: list[Item], tree: _sysctl.Tree, live: _sysctl.Live) -> Plan:
    """Decide the content of the own file, then what that means for each live value."""
    plan = Plan()
    without_us = tree.assignments(_sysctl.BOOT, {})
    for item in items:
        value = _file_value(item, tree, live.read(item.path), _sysctl.decide(without_us, item.path), plan)
        if value is not None:
            plan.file_values[item.path] = value
    plan.text = _text(items, plan, live)
    at_boot = tree.assignments(_sysctl.BOOT, plan.file_values)
    by_hand = tree.assignments(_sysctl.SYSCTL_SYSTEM, plan.file_values)
    for item in items:
        boot = _sysctl.decide(at_boot, item.path)
        hand = _sysctl.decide(by_hand, item.path)
        _plan_foreign(item, tree, boot, hand, plan)
        if item.policy != NEVER:
            _plan_live(item, boot, tree.own, live, plan)
    return plan


def _file_value(
    item: Item, tree: _sysctl.Tree, now: str | None, other: _sysctl.Assignment | None, plan: Plan
) -> str | None:
    """Return the value of an item in the own file, None where it does not belong there; notes what is kept."""
    if item.policy == NEVER:
        return None
    if item.policy == SET:
        return item.value
    ours = tree.own_values.get(item.path)
    base, origin = now or "", "the running kernel"
    if other is not None and other.value is not None:
        base, origin = other.value, other.file
    if ours is not None and (other is None or not same(higher(item.path, base, ours), base)):
        base, origin = (ours if other is None else higher(item.path, base, ours)), tree.own
    merged = higher(item.path, base, item.value)
    if not same(merged, item.value):
        plan.kept.append({"name": item.name, "live": now, "wanted": item.value, "kept": merged, "origin": origin})
    return merged if origin == tree.own or not same(base, merged) else None


def _plan_live(item: Item, boot: _sysctl.Assignment | None, own: str, live: _sysctl.Live, plan: Plan) -> None:
    now = live.read(item.path)
    goal = boot.value if boot is not None and boot.value is not None else item.value
    if item.policy == FLOOR:
        # Between boots a floor only ever rises: to what the files say, never down to it.
        goal = higher(item.path, now or "", goal)
    elif boot is not None and boot.file != own:
        # Another file wins: a live value that the next boot takes back would only hide that.
        return
    if same(now, goal):
        return
    obstacle = live.obstacle(item.path)
    if obstacle is not None:
        plan.not_applied.append({"name": item.name, "reason": obstacle})
    else:
        plan.live.append({"name": item.name, "path": item.path, "before": now or "", "after": goal})


def _plan_foreign(
    item: Item,
    tree: _sysctl.Tree,
    boot: _sysctl.Assignment | None,
    hand: _sysctl.Assignment | None,
    plan: Plan,
) -> None:
    for found in tree.foreign(item.path):
        plan.foreign.append(
            {
                "name": item.name,
                "file": found.file,
                "line": found.line,
                "value": found.value,
                "wins_at_boot": found == boot,
                "wins_sysctl_system": found == hand,
            }
        )


def _text(items: list[Item], plan: Plan, live: _sysctl.Live) -> str:
    lines = [HEADER, "# Settings that this machine already has at least as high are left out on purpose.\n"]
    for item in items:
        if item.path not in plan.file_values:
            continue
        known = live.obstacle(item.path) != _sysctl.UNKNOWN_KEY
        lines.append("\n# {}{}\n".format(item.reason, f" [{item.source}]" if item.source else ""))
        lines.append("{}{} = {}\n".format("" if known else "-", item.name, plan.file_values[item.path]))
    return "".join(lines)


def run(
    profile: Mapping[str, Any],
    root: str = "/",
    path: str = OWN_FILE,
    state: str = "present",
    check_mode: bool = False,
    live: _sysctl.Live | None = None,
) -> dict[str, Any]:
    """Bring the own file and the live values to the profile; return the module's result.

    Live values come first: the kernel is the judge of a value, and one that it refuses must not reach the file.

    Raises:
        ProfileError: for a bad profile or a value that the kernel refuses.
    """
    items = read_profile(profile)
    if os.path.dirname(path) != _sysctl.DIRECTORIES[0] or not path.endswith(".conf"):
        raise ProfileError(f"path: {path} is no .conf file in {_sysctl.DIRECTORIES[0]}; nothing else is read at boot")
    live = live or _sysctl.Live(root, _sysctl.container_kind(root))
    plan = make_plan(items, _sysctl.Tree(root, path), live) if state == "present" else Plan()
    before = read_bytes(root, path)
    after = plan.text.encode("utf-8") if state == "present" else None
    applied = list(plan.live) if check_mode else _write_live(plan, live)
    if before != after and not check_mode:
        if after is None:
            os.unlink(path_below(root, path))
        else:
            replace_file(root, path, after, 0o644)
    diff = [diff_entry(path, before, after)] if before != after else []
    if applied:
        diff.append(
            {
                "before_header": _sysctl.PROC_SYS,
                "after_header": _sysctl.PROC_SYS,
                "before": "".join("{name} = {before}\n".format(**change) for change in applied),
                "after": "".join("{name} = {after}\n".format(**change) for change in applied),
            }
        )
    return {
        "changed": bool(diff),
        "diff": diff,
        "path": path,
        "live": [{key: change[key] for key in ("name", "before", "after")} for change in applied],
        "not_applied": plan.not_applied,
        "kept": plan.kept,
        "foreign": plan.foreign,
    }


def _write_live(plan: Plan, live: _sysctl.Live) -> list[dict[str, str]]:
    applied = []
    for change in plan.live:
        try:
            reason = live.write(change["path"], change["after"])
        except ValueError as problem:
            raise ProfileError(
                "tuning_sysctl: {} cannot have the value {}: {}".format(change["name"], change["after"], problem)
            ) from problem
        if reason is None:
            applied.append(change)
        else:
            plan.not_applied.append({"name": change["name"], "reason": reason})
    return applied
