# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which kernel GRUB will boot: its menu, the default and the one-shot entry.

The generated ``grub.cfg`` is what the machine obeys, so the default is read there; ``/etc/default/grub`` only says what
the next ``update-grub`` will write, and a difference between the two is reported. Entries are found as GRUB finds them:
a number, a title or an id, for one in a submenu ``parent>child`` (a ``>`` inside a name is doubled). An entry that does
not exist is no error for GRUB: it boots the first one.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text

DIRECTORIES = ("boot/grub", "boot/grub2")
DEFAULTS = "etc/default/grub"
DEFAULTS_DIR = "etc/default/grub.d"
#: GRUB writes into the blocks that the file has, so it keeps its size.
ENVIRONMENT_SIZE = 1024
ENVIRONMENT_HEADER = "# GRUB Environment Block"

_SET_DEFAULT = re.compile(r"""^\s*set\s+default=(?:"([^"]*)"|'([^']*)'|(\S*))\s*$""", re.MULTILINE)
_CORRECTION = re.compile(r"""if \[ x"\$default" = '([^']*)' \]; then default='([^']*)'; fi""")
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(GRUB_\w+)=(.*)$", re.MULTILINE)
_SAVES_CHOICE = re.compile(r"^\s*savedefault\s*$", re.MULTILINE)
_KERNEL_IMAGE = re.compile(r"vmlinu[xz]-(\S+)$")
_LINUX = frozenset({"linux", "linuxefi", "linux16"})


@dataclasses.dataclass
class Entry:
    """A menu entry or submenu.

    Args:
        title: As shown on the screen.
        ident: Its id; the title where it has none, as GRUB itself does.
        kernel: Release of the kernel that it boots; empty for a submenu and for other systems.
        children: Entries of a submenu; None for an ordinary entry.
    """

    title: str
    ident: str
    kernel: str = ""
    children: list[Entry] | None = None


def parse_menu(text: str) -> list[Entry]:
    """Return the menu of a ``grub.cfg`` with its submenus."""
    top: list[Entry] = []
    #: Open blocks; None stands for a block that is no menu (a function).
    stack: list[Entry | None] = []
    for line in text.splitlines():
        words = _words(line)
        if not words:
            continue
        if words[0] in ("menuentry", "submenu") and words[-1] == "{":
            entry = _entry(words)
            _siblings(top, stack).append(entry)
            stack.append(entry)
        elif words[-1] == "{":
            stack.append(None)
        elif words[0] == "}" and stack:
            stack.pop()
        elif words[0] in _LINUX and len(words) > 1 and stack and stack[-1] is not None:
            match = _KERNEL_IMAGE.search(words[1])
            stack[-1].kernel = stack[-1].kernel or (match.group(1) if match else "")
    return top


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables of a ``grubenv`` block."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or "=" not in line:
            continue
        key, _unused, value = line.partition("=")
        found[key] = re.sub(r"\\(.)", r"\1", value)
    return found


def format_environment(variables: Mapping[str, str], before: str = "", size: int = ENVIRONMENT_SIZE) -> str:
    """Return a ``grubenv`` block of exactly ``size`` bytes, since GRUB writes into the blocks that are there.

    Args:
        variables: All variables.
        before: The present block, whose comments are kept.
        size: Bytes.

    Raises:
        ValueError: when the variables do not fit.
    """
    comments = [line for line in before.splitlines() if line.startswith("# ") and line != ENVIRONMENT_HEADER]
    lines = [ENVIRONMENT_HEADER, *comments]
    lines += ["{}={}".format(name, re.sub(r"([\\\n])", r"\\\1", value)) for name, value in variables.items()]
    body = "".join(line + "\n" for line in lines)
    room = size - len(body.encode("utf-8"))
    if room < 0:
        raise ValueError(f"the variables do not fit into the {size} bytes of GRUB's environment block")
    return body + "#" * room


def parse_defaults(text: str, name: str = "GRUB_DEFAULT") -> str | None:
    """Return the last value that a shell fragment gives to a variable, None where it gives none."""
    values = [value for variable, value in _ASSIGNMENT.findall(text) if variable == name]
    if not values:
        return None
    try:
        words = shlex.split(values[-1], comments=True)
    except ValueError:
        return str(values[-1]).strip()
    return words[0] if words else ""


def find(menu: list[Entry], spec: str) -> tuple[Entry | None, bool]:
    """Return the bootable entry that GRUB takes for ``spec``, and whether ``spec`` itself exists.

    A missing entry gives the first one of its menu, a submenu alone its first entry: that is what GRUB boots.
    """
    if not menu:
        return None, False
    head, _unused, rest = _split(spec)
    position = _position(menu, head)
    entry = menu[position if position is not None else 0]
    if entry.children is None:
        return entry, position is not None and not rest
    if position is None:
        rest = ""
    child, found = find(entry.children, rest or "0")
    return child, found and position is not None


def path_of(menu: list[Entry], wanted: Entry) -> str:
    """Return the ids from the top of the menu to an entry, in the form that grub-set-default and grub-reboot accept."""
    for entry in menu:
        name = entry.ident.replace(">", ">>")
        if entry is wanted:
            return name
        if entry.children:
            below = path_of(entry.children, wanted)
            if below:
                return f"{name}>{below}"
    return ""


def leaves(menu: list[Entry]) -> list[Entry]:
    """Return the ordinary entries of a menu and its submenus, in order."""
    found: list[Entry] = []
    for entry in menu:
        found.extend(leaves(entry.children) if entry.children is not None else [entry])
    return found


def default_in_config(text: str) -> tuple[str, bool]:
    """Return the default that a ``grub.cfg`` sets (perhaps ``${saved_entry}``), and whether it obeys ``next_entry``."""
    values = [next((value for value in match if value), "") for match in _SET_DEFAULT.findall(text)]
    plain = [value for value in values if "next_entry" not in value]
    return (plain[-1] if plain else "0"), "next_entry" in text


def corrections(text: str) -> dict[str, str]:
    """Return the titles that ``grub.cfg`` itself translates: update-grub mends a default without its submenu."""
    return {match.group(1): match.group(2) for match in _CORRECTION.finditer(text)}


def saves_choice(text: str) -> bool:
    """Whether entries of a ``grub.cfg`` make themselves the default when they are started (GRUB_SAVEDEFAULT).

    In a submenu that goes for a one-shot entry too: the variable that should prevent it is not known there.
    """
    return bool(_SAVES_CHOICE.search(text))


def assignments(root: str = "/", name: str = "GRUB_DEFAULT") -> list[tuple[str, str]]:
    """Return which files of ``/etc/default/grub`` and ``grub.d`` set a variable, and to what; the last one wins."""
    files = [DEFAULTS]
    files += [f"{DEFAULTS_DIR}/{file}" for file in list_dir(root, DEFAULTS_DIR) if file.endswith(".cfg")]
    found = [(path, parse_defaults(read_text(root, path) or "", name)) for path in files]
    return [(path, value) for path, value in found if value is not None]


def configured_default(root: str = "/") -> str | None:
    """Return GRUB_DEFAULT as ``/etc/default/grub`` and ``grub.d`` set it together."""
    found = assignments(root)
    return found[-1][1] if found else None


def boot_facts(root: str = "/") -> dict[str, Any]:
    """Return what GRUB will do.

    Returns:
        ``loader`` (grub, or unknown where no grub.cfg is readable), ``config``, ``configured`` (GRUB_DEFAULT),
        ``effective`` (default in grub.cfg), ``saves_choice`` (an entry that is started becomes the default),
        ``default`` and ``one_shot`` (None when none is set), both as ``{spec, found, entry, title, kernel}``,
        ``next_kernel`` (release that the next boot starts, None if unknown) and ``entries``: one ``{entry, title,
        kernel}`` for each kernel entry of the menu.
    """
    facts: dict[str, Any] = {
        "loader": "unknown",
        "config": None,
        "configured": configured_default(root),
        "effective": None,
        "saves_choice": False,
        "default": None,
        "one_shot": None,
        "next_kernel": None,
        "entries": [],
    }
    directory = next((name for name in DIRECTORIES if os.path.exists(path_below(root, name + "/grub.cfg"))), None)
    text = read_text(root, f"{directory}/grub.cfg") if directory else None
    if text is None:
        return facts
    menu = parse_menu(text)
    environment = parse_environment(read_text(root, f"{directory}/grubenv") or "")
    effective, obeys_next = default_in_config(text)
    spec = environment.get("saved_entry", "") or "0" if "saved_entry" in effective else effective
    facts.update(loader="grub", config=f"/{directory}/grub.cfg", effective=effective)
    facts["saves_choice"] = saves_choice(text)
    facts["default"] = _choice(menu, corrections(text).get(spec, spec))
    if obeys_next and environment.get("next_entry"):
        facts["one_shot"] = _choice(menu, environment["next_entry"])
    facts["next_kernel"] = (facts["one_shot"] or facts["default"])["kernel"] or None
    facts["entries"] = [
        {"entry": path_of(menu, entry), "title": entry.title, "kernel": entry.kernel}
        for entry in leaves(menu)
        if entry.kernel
    ]
    return facts


def is_pinned(boot: dict[str, Any]) -> bool:
    """Whether the default is a saved entry of one kernel, so that one that arrives later does not boot by itself.

    Numbers, and the entry at the top of Debian's menu, stay where they are and get another kernel; so does a default
    that follows what was started last.
    """
    default = boot["default"]
    if default is None or not default["found"] or "saved_entry" not in (boot["effective"] or ""):
        return False
    kernel = default["kernel"]
    return bool(kernel) and kernel in default["entry"] and kernel in default["spec"] and not boot.get("saves_choice")


def entry_for(boot: dict[str, Any], release: str) -> str | None:
    """Return the entry that boots a kernel in normal mode; recovery entries do not count.

    The simple entry at the top of Debian's menu moves to every new kernel; the one that has the release in its name
    stays with its own, in a submenu or, where there are no submenus, at the top.
    """
    names = [
        str(item["entry"])
        for item in boot["entries"]
        if item["kernel"] == release and "recovery" not in item["entry"] and "(recovery" not in item["title"]
    ]
    own = [name for name in names if release in name]
    return next(iter(own or names), None)


def _choice(menu: list[Entry], spec: str) -> dict[str, Any]:
    entry, found = find(menu, spec)
    if entry is None:
        return {"spec": spec, "found": False, "entry": "", "title": "", "kernel": ""}
    return {
        "spec": spec,
        "found": found,
        "entry": path_of(menu, entry),
        "title": entry.title,
        "kernel": entry.kernel,
    }


def _words(line: str) -> list[str]:
    line = line.strip()
    if not line or line.startswith("#"):
        return []
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _entry(words: list[str]) -> Entry:
    title = words[1] if len(words) > 2 else ""
    ident = title
    for index, word in enumerate(words[2:], start=2):
        if word in ("--id", "$menuentry_id_option", "${menuentry_id_option}") and index + 1 < len(words):
            ident = words[index + 1]
        elif word.startswith("--id="):
            ident = word[len("--id=") :]
    return Entry(title=title, ident=ident, children=[] if words[0] == "submenu" else None)


def _siblings(top: list[Entry], stack: list[Entry | None]) -> list[Entry]:
    for entry in reversed(stack):
        if entry is not None and entry.children is not None:
            return entry.children
    return top


def _split(spec: str) -> tuple[str, str, str]:
    """Split at the first single ``>``; a doubled one belongs to the name."""
    match = re.match(r"^((?:[^>]|>>)*?)>(?!>)(.*)$", spec, re.DOTALL)
    if not match:
        return spec.replace(">>", ">"), "", ""
    return match.group(1).replace(">>", ">"), ">", match.group(2)


def _position(menu: list[Entry], name: str) -> int | None:
    if name.isdigit():
        return int(name) if int(name) < len(menu) else None
    for index, entry in enumerate(menu):
        if name in (entry.title, entry.ident):
            return index
    return None
