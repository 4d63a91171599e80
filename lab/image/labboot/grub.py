# SPDX-License-Identifier: GPL-3.0-or-later
"""What GRUB would boot: reads the menu that grub-mkconfig wrote and the environment block beside it.

Only the parts of the language that Debian's scripts in /etc/grub.d write are understood: menu entries, submenus,
`linux` lines and the block that picks the default from saved_entry and next_entry.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Callable

ENVIRONMENT_SIZE = 1024
_SIGNATURE = "# GRUB Environment Block\n"


def parse_environment(text: str) -> dict[str, str]:
    """The variables of a grubenv block; padding and comments are dropped."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#") or "=" not in line:
            continue
        name, value = line.split("=", 1)
        found[name] = value.replace("\\\\", "\\")
    return found


def format_environment(variables: dict[str, str]) -> str:
    """A grubenv block of exactly 1024 bytes, as GRUB and grub-editenv write it."""
    body = _SIGNATURE + "".join(
        "{}={}\n".format(name, value.replace("\\", "\\\\")) for name, value in variables.items()
    )
    if len(body.encode()) > ENVIRONMENT_SIZE:
        raise ValueError("environment block too small")
    return body + "#" * (ENVIRONMENT_SIZE - len(body.encode()))


@dataclass
class Entry:
    """A menu entry, or a submenu when `children` is not None."""

    title: str
    ident: str
    linux: str = ""
    arguments: str = ""
    initrd: str = ""
    children: list[Entry] | None = None


@dataclass
class Menu:
    """The top level of grub.cfg, and how it picks the default."""

    entries: list[Entry] = field(default_factory=list)
    default: str = "0"
    fallback: str = ""
    reads_next_entry: bool = False


def _header(line: str) -> Entry:
    words = shlex.split(line.rstrip().rstrip("{"))
    title, ident = words[1], ""
    for position, word in enumerate(words):
        if word in ("$menuentry_id_option", "--id") and position + 1 < len(words):
            ident = words[position + 1]
    return Entry(title=title, ident=ident or title, children=[] if words[0] == "submenu" else None)


def parse_menu(text: str) -> Menu:
    """Reads grub.cfg; blocks that are neither menu entry nor submenu only count their braces."""
    menu = Menu()
    stack: list[Entry | None] = []
    defaults: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith(("menuentry ", "submenu ")) and line.endswith("{"):
            entry = _header(line)
            parents = [item for item in stack if item is not None and item.children is not None]
            siblings = parents[-1].children if parents else menu.entries
            if siblings is not None:
                siblings.append(entry)
            stack.append(entry)
        elif line.endswith("{"):
            stack.append(None)
        elif line == "}":
            if stack:
                stack.pop()
        elif stack and stack[-1] is not None:
            command, _, rest = line.replace("\t", " ").partition(" ")
            if command in ("linux", "linuxefi", "linux16"):
                stack[-1].linux, _, stack[-1].arguments = rest.strip().partition(" ")
                stack[-1].arguments = stack[-1].arguments.strip()
            elif command in ("initrd", "initrdefi", "initrd16"):
                stack[-1].initrd = rest.strip()
        else:
            match = re.match(r"set default=[\"']?(.*?)[\"']?$", line)
            if match:
                defaults.append(match.group(1))
            match = re.match(r"set fallback=[\"']?(.*?)[\"']?$", line)
            if match:
                menu.fallback = match.group(1)
    menu.reads_next_entry = "${next_entry}" in defaults
    plain = [value for value in defaults if value != "${next_entry}"]
    if plain:
        menu.default = plain[-1]
    return menu


def _find(entries: list[Entry], spec: str) -> Entry | None:
    if spec.isdigit():
        return entries[int(spec)] if int(spec) < len(entries) else None
    return next((entry for entry in entries if spec in (entry.ident, entry.title)), None)


def resolve(menu: Menu, spec: str) -> tuple[Entry, str] | None:
    """The bootable entry that a default such as `0`, `id`, `title` or `parent>child` names, with its path of ids."""
    entries = menu.entries
    path: list[str] = []
    parts = re.split(r"(?<!>)>(?!>)", spec) if spec else []
    while entries:
        wanted = parts.pop(0) if parts else "0"
        entry = _find(entries, wanted.replace(">>", ">"))
        if entry is None:
            return None
        path.append(entry.ident)
        if entry.children is None:
            return entry, ">".join(path)
        entries = entry.children
    return None


def bootable(entries: list[Entry], prefix: str = "") -> list[tuple[Entry, str]]:
    """All entries with a kernel, in menu order, submenus opened."""
    found: list[tuple[Entry, str]] = []
    for entry in entries:
        path = prefix + entry.ident
        if entry.children is not None:
            found.extend(bootable(entry.children, path + ">"))
        elif entry.linux:
            found.append((entry, path))
    return found


@dataclass
class Choice:
    """What GRUB starts, and the environment block it leaves behind."""

    entry: Entry
    path: str
    one_shot: bool
    environment: dict[str, str]
    notes: list[str]


def choose(
    menu: Menu,
    environment: dict[str, str],
    usable: Callable[[Entry], str],
) -> Choice | None:
    """Picks as GRUB does: one-shot entry first (and clears it), else the default, else the first entry of the menu.

    `usable(entry)` says why an entry cannot start ("" when it can); then the fallback entry of the menu is tried and
    after it every other entry in order, which is what an operator at the console would do.
    """
    left = dict(environment)
    notes: list[str] = []
    spec = menu.default
    one_shot = False
    if menu.reads_next_entry and left.get("next_entry"):
        spec = left["next_entry"]
        left["next_entry"] = ""
        one_shot = True
    spec = re.sub(r"\$\{(\w+)\}", lambda match: left.get(match.group(1), ""), spec)

    found = resolve(menu, spec)
    if found is None:
        if spec:
            notes.append(f"entry {spec!r} is not in the menu; the first one is used")
        found = resolve(menu, "0")
        one_shot = False
    if found is not None and found[0].linux:
        problem = usable(found[0])
        if not problem:
            return Choice(found[0], found[1], one_shot, left, notes)
        notes.append(f"{found[1]}: {problem}")

    others = bootable(menu.entries)
    if menu.fallback:
        picked = resolve(menu, menu.fallback)
        others = ([picked] if picked else []) + others
    for entry, path in others:
        if not usable(entry):
            return Choice(entry, path, False, left, notes)
    return None
