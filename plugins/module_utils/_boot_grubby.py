# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Enterprise Linux: grubby over boot loader snippets. Tested on texts only, not yet on a machine."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_base import BootControl, BootError, Plan, entry_of
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, Runner, read_text

SYSCONFIG = "etc/sysconfig/kernel"

_FIELD = re.compile(r'^(\w+)=(?:"(.*)"|(.*))$')
_KERNEL_IMAGE = re.compile(r"/vmlinuz-(\S+)$")
_UPDATES_DEFAULT = re.compile(r"^\s*UPDATEDEFAULT=[\"']?yes", re.MULTILINE | re.IGNORECASE)


def parse_info(text: str) -> list[dict[str, str]]:
    """Return the entries of ``grubby --info=ALL``: ``index``, ``kernel`` (release), ``path``, ``title`` and ``id``.

    Rescue entries and those of other systems have an empty ``kernel``.
    """
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        match = _FIELD.match(line.strip())
        if not match:
            continue
        name, value = match.group(1), match.group(2) if match.group(2) is not None else match.group(3)
        if name == "index":
            found.append({"index": value, "kernel": "", "path": "", "title": "", "id": ""})
        elif found and name == "kernel":
            found[-1].update(path=value, kernel=release_of(value))
        elif found and name in ("title", "id"):
            found[-1][name] = value
    return found


def release_of(path: str) -> str:
    """Return the release of a kernel image; empty for a rescue image and for what is none."""
    match = _KERNEL_IMAGE.search(path)
    return "" if match is None or match.group(1).startswith("0-rescue-") else match.group(1)


class Grubby(BootControl):
    """GRUB as Enterprise Linux sets it up, by its own tools.

    Args:
        runner: Runs grubby, grub2-reboot and grub2-editenv.
        root: Directory that stands for ``/``.
    """

    def __init__(self, runner: Runner, root: str = "/") -> None:
        self._runner = runner
        self._root = root

    def facts(self) -> dict[str, Any]:
        """See the base class."""
        items = parse_info(self._run("grubby", "--info=ALL").out)
        default = self._run("grubby", "--default-kernel").out.strip()
        variables = _grub.parse_environment(self._run("grub2-editenv", "list").out)
        current = next((item for item in items if item["path"] == default), None)
        facts: dict[str, Any] = {
            "loader": "grubby",
            "config": "/boot/loader/entries",
            "configured": _grub.configured_default(self._root),
            "effective": "${saved_entry}",
            "saves_choice": False,
            "default": _choice(current, default),
            "one_shot": None,
            "entries": [
                {"entry": item["id"] or item["title"], "title": item["title"], "kernel": item["kernel"]}
                for item in items
                if item["kernel"]
            ],
        }
        following = variables.get("next_entry", "")
        if following:
            found = [item for item in items if following in (item["id"], item["title"], item["index"])]
            facts["one_shot"] = _choice(found[0] if found else None, following)
        facts["next_kernel"] = (facts["one_shot"] or facts["default"])["kernel"] or None
        return facts

    def plan(self, default: str | None = None, once: str | None = None) -> Plan:
        """See the base class."""
        before = self.facts()
        plan = Plan(before, dict(before))
        if default is not None:
            plan.after["default"] = entry_of(before, default)
            if before["default"]["kernel"] != default:
                plan.steps.append(f"make kernel {default} the default")
            if _UPDATES_DEFAULT.search(read_text(self._root, SYSCONFIG) or ""):
                plan.notes.append(
                    f"UPDATEDEFAULT=yes in /{SYSCONFIG} makes each kernel that is installed the default again"
                )
        if once == "":
            plan.after["one_shot"] = None
            if before["one_shot"] is not None:
                plan.steps.append("forget the entry for the next boot")
        elif once is not None:
            plan.after["one_shot"] = entry_of(before, once)
            if before["one_shot"] is None or before["one_shot"]["kernel"] != once:
                plan.steps.append(f"start kernel {once} at the next boot alone")
        plan.after["next_kernel"] = (plan.after["one_shot"] or plan.after["default"])["kernel"] or None
        return plan

    def apply(self, plan: Plan) -> None:
        """See the base class."""
        before, after = plan.before, plan.after
        if after["default"]["kernel"] != before["default"]["kernel"]:
            self._run("grubby", "--set-default=/boot/vmlinuz-{}".format(after["default"]["kernel"]))
        if after["one_shot"] is None and before["one_shot"] is not None:
            self._run("grub2-editenv", "-", "unset", "next_entry")
        elif after["one_shot"] != before["one_shot"]:
            self._run("grub2-reboot", after["one_shot"]["entry"])
        now = self.facts()
        if now["next_kernel"] != after["next_kernel"]:
            raise BootError(
                "The next boot starts {} although {} was set".format(now["next_kernel"], after["next_kernel"])
            )

    def unpin(self, check_mode: bool = False) -> bool:
        """See the base class. Nothing is configured here that could be taken back."""
        return False

    def one_shot_clears(self) -> tuple[bool | None, str]:
        """See the base class."""
        return None, "not examined on this system"

    def _run(self, *command: str) -> CommandResult:
        result = self._runner.run(list(command), timeout=120)
        if not result.ok:
            raise BootError("{} failed: {}".format(" ".join(command), result.text))
        return result


def _choice(item: dict[str, str] | None, spec: str) -> dict[str, Any]:
    if item is None:
        return {"spec": spec, "found": False, "entry": "", "title": "", "kernel": ""}
    name = item["id"] or item["title"]
    return {"spec": name, "found": True, "entry": name, "title": item["title"], "kernel": item["kernel"]}
