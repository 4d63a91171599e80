# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What each boot loader has to offer: entries, the default, an entry for one boot, and a plan before each change."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _grub


class BootError(Exception):
    """The boot loader cannot be brought to what was asked for; the message says why and what to do."""


@dataclasses.dataclass
class Plan:
    """What a change of the boot loader consists of.

    Args:
        before: Facts of the boot loader, in the form of ``_grub.boot_facts``.
        after: The same as it will be.
        steps: What is done, in order and in words; empty when nothing has to change.
        files: Path to text of files that are written, for a diff.
        environment: GRUB's environment block as it will be.
        notes: What the operator should know although nothing failed.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    steps: list[str] = dataclasses.field(default_factory=list)
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether anything has to be written."""
        return bool(self.steps)


class BootControl:
    """The boot loader of a node. Kernels are named by their release, as ``uname -r`` tells it."""

    def facts(self) -> dict[str, Any]:
        """Return what the boot loader will do, in the form of ``_grub.boot_facts``."""
        raise NotImplementedError

    def plan(self, default: str | None = None, once: str | None = None) -> Plan:
        """Return what leads to a default and an entry for the next boot alone; nothing is changed.

        Args:
            default: Kernel to start from now on; None leaves the default as it is.
            once: Kernel to start at the next boot alone; empty for none, None leaves it as it is.

        Raises:
            BootError: for a kernel that is not in the menu, and where something else would undo the change.
        """
        raise NotImplementedError

    def apply(self, plan: Plan) -> None:
        """Do what a plan says; a power cut at any moment leaves the former default or the new one.

        Raises:
            BootError: when a step fails; the former default or the new one is in force then.
        """
        raise NotImplementedError

    def unpin(self, check_mode: bool = False) -> bool:
        """Let the distribution's own settings choose the default again; return whether anything of ours was there.

        Raises:
            BootError: when that fails.
        """
        raise NotImplementedError

    def one_shot_clears(self) -> tuple[bool | None, str]:
        """Return whether the boot loader itself forgets an entry for one boot, None if unknown, and why."""
        raise NotImplementedError

    def entries(self) -> list[dict[str, Any]]:
        """Return the kernel entries of the menu, each with ``entry``, ``title`` and ``kernel``."""
        return list(self.facts()["entries"])

    def default(self) -> str | None:
        """Return the kernel that the default starts, None where that cannot be told."""
        return _kernel(self.facts()["default"])

    def one_shot(self) -> str | None:
        """Return the kernel that the next boot alone starts, None where there is no such entry."""
        return _kernel(self.facts()["one_shot"])

    def set_default(self, kernel: str) -> bool:
        """Make a kernel the default, for good; return whether anything changed."""
        return self._carry_out(self.plan(default=kernel))

    def set_once(self, kernel: str) -> bool:
        """Start a kernel at the next boot alone; return whether anything changed."""
        return self._carry_out(self.plan(once=kernel))

    def clear_once(self) -> bool:
        """Forget an entry for the next boot alone; return whether there was one."""
        return self._carry_out(self.plan(once=""))

    def _carry_out(self, plan: Plan) -> bool:
        if plan.changes:
            self.apply(plan)
        return plan.changes


def entry_of(facts: Mapping[str, Any], kernel: str) -> dict[str, Any]:
    """Return the entry that starts a kernel and no other, in the form of a choice.

    Raises:
        BootError: when there is none; the message lists the kernels that have one.
    """
    name = _grub.entry_for(dict(facts), kernel)
    if name is None:
        known = sorted({str(item["kernel"]) for item in facts["entries"]})
        raise BootError(
            "Kernel {} is not in the boot loader's menu. It has: {}. Where its image is in /boot, update-grub "
            "brings it into the menu".format(kernel, ", ".join(known) or "no kernel at all")
        )
    if kernel not in name:
        raise BootError(
            f"Kernel {kernel} has only the entry {name!r}, which is not its own: it may start another kernel after the "
            "next update. Run update-grub, and remove entries of your own with that name"
        )
    title = next(str(item["title"]) for item in facts["entries"] if item["entry"] == name)
    return {"spec": name, "found": True, "entry": name, "title": title, "kernel": kernel}


def state_lines(facts: Mapping[str, Any]) -> str:
    """Return what the boot loader will do, a line each, for a diff."""
    default, one_shot = facts["default"], facts["one_shot"]
    lines = ["default: {}".format(_line(default, "unknown"))]
    if default is not None and "saved_entry" not in (facts["effective"] or ""):
        lines[0] += ", because the menu itself says {!r}".format(facts["effective"])
    lines.append("next boot only: {}".format(_line(one_shot, "none")))
    if facts.get("saves_choice"):
        lines.append("an entry that is started becomes the default")
    return "".join(line + "\n" for line in lines)


def _line(choice: Mapping[str, Any] | None, nothing: str) -> str:
    if choice is None:
        return nothing
    text = "{} ({})".format(choice["kernel"] or "no kernel", choice["title"])
    return text if choice["found"] else text + ", in place of {!r}, which does not exist".format(choice["spec"])


def _kernel(choice: Mapping[str, Any] | None) -> str | None:
    return (str(choice["kernel"]) or None) if choice else None
