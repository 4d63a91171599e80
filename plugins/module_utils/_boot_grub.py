# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""GRUB on Debian and Ubuntu: a default that stays with its kernel, and entries for one boot.

Three files decide what boots: the environment block (``saved_entry``, ``next_entry``), the generated menu, which says
whether the saved entry counts, and the settings that the next ``update-grub`` will obey. They are written in an order
in which every state in between boots the former default or the new one: first the saved entry, which does not count
yet, then the settings, then the menu, and an entry for one boot last. Each is replaced in one step. GRUB's own programs
(grub-set-default, grub-reboot, update-grub) truncate these files and write them again, which would leave nothing to
boot from if the power went in between. So the block is written here, and the menu is made by ``grub-mkconfig`` beside
the real one, looked at, and moved into place.
"""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_base import BootControl, BootError, Plan, entry_of
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import replace_file

FRAGMENT = f"{_grub.DEFAULTS_DIR}/gpu-node.cfg"
HEADER = "# Managed by the aiinfra.gpu_node collection (module boot_entry): changes here are lost.\n"
SAVED = (
    "# The default is the entry saved in GRUB's environment block, so a new kernel does not boot by itself.\n"
    "GRUB_DEFAULT=saved\n"
)
NOT_STICKY = "# An entry that is started once must not become the default.\nGRUB_SAVEDEFAULT=false\n"
#: Where the menu is made before it is moved into place.
_DRAFT = "gpu-node-draft.cfg"
_MENU_TIMEOUT = 900
_NEW_MENU = "make a new menu"
#: What GRUB can read and not write, by grub-probe's names.
_READ_ONLY = frozenset(
    {"btrfs", "zfs", "cpiofs", "newc", "odc", "romfs", "squash4", "tarfs", "iso9660", "f2fs", "erofs"}
)
_NO_WRITE_BELOW = ("lvm", "diskfilter", "mdraid", "raid", "dm_nv", "ldm")


class Grub(BootControl):
    """GRUB with a generated menu.

    Args:
        runner: Runs grub-mkconfig and grub-probe.
        root: Directory that stands for ``/``.
    """

    def __init__(self, runner: Runner, root: str = "/") -> None:
        self._runner = runner
        self._root = root

    def facts(self) -> dict[str, Any]:
        """See the base class."""
        facts = _grub.boot_facts(self._root)
        if facts["config"] is None:
            raise BootError("GRUB's menu (/boot/grub/grub.cfg) cannot be read; is /boot mounted?")
        return facts

    def plan(self, default: str | None = None, once: str | None = None) -> Plan:
        """See the base class."""
        before = self.facts()
        plan = Plan(before, dict(before))
        plan.environment = self._environment(before)
        if default is not None:
            self._plan_default(plan, default)
        if once is not None:
            self._plan_once(plan, once)
        settings = self._settings(before, default is not None)
        if settings:
            plan.files["/" + FRAGMENT] = settings
            plan.steps.append(f"write /{FRAGMENT}")
            plan.after["configured"] = _grub.parse_defaults(settings) or before["configured"]
            self._refuse_what_comes_later(settings)
        if self._menu_is_wrong(before, default is not None, bool(once)):
            plan.steps.append("{} {}".format(_NEW_MENU, before["config"]))
            plan.after["saves_choice"] = False
        following = plan.after["one_shot"] or plan.after["default"]
        plan.after["next_kernel"] = (following["kernel"] if following else None) or None
        if before["saves_choice"] and plan.steps:
            plan.notes.append(
                "GRUB_SAVEDEFAULT was true, which makes each entry that is started the default, an entry for one boot "
                f"included; /{FRAGMENT} switches it off"
            )
        if once and plan.steps:
            clears, reason = self.one_shot_clears()
            if not clears:
                plan.notes.append(_note(clears, reason))
        return plan

    def apply(self, plan: Plan) -> None:
        """See the base class."""
        before = plan.before
        present = self._environment(before)
        new_menu = any(step.startswith(_NEW_MENU) for step in plan.steps)
        first = dict(plan.environment)
        if new_menu and first.get("next_entry"):
            # Not before the menu that knows what to do with it.
            first.pop("next_entry")
            first.update({name: value for name, value in present.items() if name == "next_entry"})
        try:
            self._write_environment(before, present, first)
            for path, text in plan.files.items():
                replace_file(self._root, path, text.encode("utf-8"))
            if new_menu:
                self._write_menu(plan)
            self._write_environment(before, first, plan.environment)
        except OSError as fault:
            following = self.facts()["next_kernel"]
            raise BootError(f"The boot loader cannot be written: {fault}. The next boot starts {following}") from fault
        self._confirm(plan)

    def one_shot_clears(self) -> tuple[bool | None, str]:
        """See the base class."""
        directory = path_below(self._root, os.path.dirname(str(self.facts()["config"])))
        kinds = self._runner.run(["grub-probe", "--target=abstraction", directory], timeout=60)
        if not kinds.ok:
            return None, f"grub-probe cannot tell what {directory} lies on: {kinds.text}"
        below = [kind for kind in kinds.out.split() if kind.startswith(_NO_WRITE_BELOW)]
        if below:
            return False, "GRUB cannot write to {}, on which {} lies".format(", ".join(below), directory)
        system = self._runner.run(["grub-probe", "--target=fs", directory], timeout=60)
        name = system.out.strip()
        if not system.ok or not name:
            return None, f"grub-probe cannot tell the file system of {directory}: {system.text}"
        if name in _READ_ONLY:
            return False, f"GRUB cannot write to {name}, the file system of {directory}"
        return True, ""

    def unpin(self, check_mode: bool = False) -> bool:
        """See the base class. The saved entry goes last, when nothing starts it any more."""
        before = self.facts()
        fragment = path_below(self._root, FRAGMENT)
        ours = os.path.exists(fragment)
        # A run that was cut off removed the settings and not yet what came from them.
        halfway = "saved_entry" in (before["effective"] or "") and before["configured"] != "saved"
        if check_mode or not (ours or halfway):
            return ours or halfway
        if ours:
            os.unlink(fragment)
        self._write_menu(Plan(before, dict(before, default=None, one_shot=None)))
        environment = self._environment(before)
        if "saved_entry" not in (self.facts()["effective"] or ""):
            kept = {name: value for name, value in environment.items() if name not in ("saved_entry", "next_entry")}
            self._write_environment(before, environment, kept)
        return True

    @staticmethod
    def _plan_default(plan: Plan, kernel: str) -> None:
        environment = plan.environment
        choice = entry_of(plan.before, kernel)
        present = plan.before["default"]
        stays = _grub.is_pinned({**plan.before, "saves_choice": False}) and present["kernel"] == kernel
        if stays and not environment.get("prev_saved_entry"):
            return
        plan.after["default"] = choice
        plan.after["effective"] = "${saved_entry}"
        former = environment.pop("prev_saved_entry", "")
        if environment.get("saved_entry") != choice["entry"] or former:
            environment["saved_entry"] = choice["entry"]
            plan.steps.append(f"save the entry of kernel {kernel} as the default")

    @staticmethod
    def _plan_once(plan: Plan, kernel: str) -> None:
        present = plan.environment.get("next_entry", "")
        if not kernel:
            plan.after["one_shot"] = None
            if present:
                del plan.environment["next_entry"]
                plan.steps.append("forget the entry for the next boot")
            return
        choice = entry_of(plan.before, kernel)
        plan.after["one_shot"] = choice
        if present != choice["entry"]:
            plan.environment["next_entry"] = choice["entry"]
            plan.steps.append(f"start kernel {kernel} at the next boot alone")

    def _settings(self, before: dict[str, Any], pin: bool) -> str:
        """Return the text that our settings file needs; empty where nothing has to be written."""
        lacking = pin and before["configured"] != "saved"
        saved = pin or "saved_entry" in (before["effective"] or "")
        sticky = saved and self._setting("GRUB_SAVEDEFAULT") == "true"
        if not lacking and not sticky:
            return ""
        present = read_text(self._root, FRAGMENT) or ""
        text = HEADER
        if lacking or _grub.parse_defaults(present) == "saved":
            text += SAVED
        if sticky or _grub.parse_defaults(present, "GRUB_SAVEDEFAULT") == "false":
            text += NOT_STICKY
        return text

    def _setting(self, name: str) -> str | None:
        found = _grub.assignments(self._root, name)
        return found[-1][1] if found else None

    def _refuse_what_comes_later(self, settings: str) -> None:
        for name in ("GRUB_DEFAULT", "GRUB_SAVEDEFAULT"):
            wanted = _grub.parse_defaults(settings, name)
            last = [item for item in _grub.assignments(self._root, name) if item[0] > FRAGMENT]
            if wanted is not None and last and last[-1][1] != wanted:
                raise BootError(
                    "/{} sets {}={} and is read after /{}, so the boot loader would not obey {}={}. Remove that line, "
                    "or rename the file so that it sorts before".format(
                        *last[-1][:1], name, last[-1][1], FRAGMENT, name, wanted
                    )
                )

    def _menu_is_wrong(self, before: dict[str, Any], pin: bool, once: bool) -> bool:
        """Whether the menu ignores the saved entry, or an entry for one boot, or lets such an entry stay."""
        saved = "saved_entry" in (before["effective"] or "")
        text = read_text(self._root, str(before["config"])) or ""
        return (
            (pin and not saved)
            or (once and not _grub.default_in_config(text)[1])
            or bool(before["saves_choice"] and (pin or (once and saved)))
        )

    def _environment(self, facts: dict[str, Any]) -> dict[str, str]:
        found = _grub.parse_environment(read_text(self._root, _block(facts)) or "")
        if "env_block" in found:
            raise BootError(
                "GRUB keeps its environment block outside of {} ({}), which this collection cannot write yet".format(
                    _block(facts), found["env_block"]
                )
            )
        return found

    def _write_environment(self, facts: dict[str, Any], before: dict[str, str], after: dict[str, str]) -> None:
        if after == before:
            return
        path = _block(facts)
        present = read_text(self._root, path) or ""
        size = len(present.encode("utf-8"))
        sound = present.startswith(_grub.ENVIRONMENT_HEADER) and size >= _grub.ENVIRONMENT_SIZE
        try:
            text = _grub.format_environment(after, present, size if sound else _grub.ENVIRONMENT_SIZE)
        except ValueError as fault:
            raise BootError(f"{path}: {fault}; remove what does not belong there with grub-editenv") from fault
        replace_file(self._root, path, text.encode("utf-8"))
        _sync(path_below(self._root, os.path.dirname(path)))

    def _write_menu(self, plan: Plan) -> None:
        config = str(plan.before["config"])
        draft = os.path.join(os.path.dirname(config), _DRAFT)
        where = path_below(self._root, draft)
        try:
            result = self._runner.run(["grub-mkconfig", "-o", where], timeout=_MENU_TIMEOUT)
            text = read_text(self._root, draft) if result.ok else None
            if text is None:
                raise BootError(f"The boot menu could not be made, {config} is as before:\n{result.text}")
            problem = self._objection(plan, text)
            if problem:
                raise BootError(f"The new boot menu was not put into place, {config} is as before: {problem}")
            replace_file(self._root, config, text.encode("utf-8"))
            _sync(os.path.dirname(where))
        finally:
            for leftover in (where, where + ".new"):
                if os.path.exists(leftover):
                    os.unlink(leftover)

    @staticmethod
    def _objection(plan: Plan, text: str) -> str:
        """Return why a new menu would not boot what it should; empty when it does."""
        menu = _grub.parse_menu(text)
        if not any(entry.kernel for entry in _grub.leaves(menu)):
            return "it has no kernel"
        effective, obeys_next = _grub.default_in_config(text)
        pinned = plan.after["default"] is not None and "saved_entry" in (plan.after["effective"] or "")
        if pinned and "saved_entry" not in effective:
            return f"its default is {effective!r} in spite of GRUB_DEFAULT=saved; look for what else sets GRUB_DEFAULT"
        for choice in (plan.after["default"] if pinned else None, plan.after["one_shot"]):
            if choice is None or not choice["found"]:
                continue
            entry, found = _grub.find(menu, choice["spec"])
            if entry is None or not found or entry.kernel != choice["kernel"]:
                return "the entry {} of kernel {} is not in it".format(choice["spec"], choice["kernel"])
        if plan.after["one_shot"] and not obeys_next:
            return "it knows no entries for one boot"
        if not plan.after["saves_choice"] and plan.before["saves_choice"] and _grub.saves_choice(text):
            return "its entries still make themselves the default; look for what else sets GRUB_SAVEDEFAULT"
        return ""

    def _confirm(self, plan: Plan) -> None:
        now = self.facts()
        for name in ("default", "one_shot"):
            want = plan.after[name]
            have = now[name]
            if (want or {}).get("kernel") != (have or {}).get("kernel"):
                raise BootError(
                    "The boot loader's {} is {} although {} was written; look at {} and {}".format(
                        name.replace("_", "-"),
                        (have or {}).get("kernel"),
                        (want or {}).get("kernel"),
                        now["config"],
                        _block(now),
                    )
                )


def _block(facts: dict[str, Any]) -> str:
    return os.path.join(os.path.dirname(str(facts["config"])), "grubenv")


def _note(clears: bool | None, reason: str) -> str:
    if clears is None:
        return f"whether GRUB will forget the entry for one boot cannot be told: {reason}"
    return (
        f"{reason}, so the entry for one boot stays until it is cleared (boot_entry with an empty once): a kernel that "
        "dies is started again"
    )


def _sync(directory: str) -> None:
    """Make a replacement last: the directory itself goes to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
