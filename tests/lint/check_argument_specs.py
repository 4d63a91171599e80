"""Compare each role's argument specs with its defaults and its entry points.

Ansible takes a ``default:`` in a spec as documentation only, so nothing but a check keeps it true. Usage: [ROOT]
"""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path
from typing import Any, Iterator

import yaml

sys.path.insert(0, str(Path(__file__).parent))
import common

#: Entry points of every role that has the file, even though other task files of the role include them too.
ALWAYS = {"main", "verify"}
TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (int, float),
    "int": (int,),
    "list": (list,),
    "path": (str,),
    "raw": (object,),
    "str": (str,),
}
INCLUDES = re.compile(r"(?:include|import)_tasks$")
MISSING = object()


def check_role(role: Path) -> Iterator[str]:
    """Give every problem of one role."""
    name = role.name
    specs = common.specs(role)
    if not specs:
        yield f"{name}: meta/argument_specs.yml is missing or empty"
        return
    defaults = common.load(role / "defaults/main.yml")
    yield from _entry_points(role, specs)
    documented: set[str] = set()
    for entry, spec in specs.items():
        where = f"{name}/{entry}"
        for key in ("short_description", "description"):
            if not spec.get(key):
                yield f"{where}: has no {key}"
        options = spec.get("options") or {}
        documented |= set(options)
        for option, details in options.items():
            yield from _option(f"{where}: {option}", details)
            yield from _default(f"{where}: {option}", details, defaults.get(option, MISSING))
    for variable in defaults:
        if not variable.startswith("_") and variable not in documented:
            yield f"{name}: {variable} is in defaults/main.yml but in no argument spec"


def _entry_points(role: Path, specs: dict[str, Any]) -> Iterator[str]:
    present = {path.stem: path for path in (role / "tasks").glob("*.yml")}
    included = [pattern for path in present.values() for pattern in _included(path)]
    for entry in sorted(set(specs) - set(present)):
        yield f"{role.name}: the spec has the entry point {entry}, but there is no tasks/{entry}.yml"
    for stem in sorted(set(present) - set(specs)):
        if stem in ALWAYS or not any(fnmatch.fnmatch(stem, pattern) for pattern in included):
            yield f"{role.name}: tasks/{stem}.yml is an entry point (no task file includes it) without an argument spec"


def _included(path: Path) -> Iterator[str]:
    """Give the stems of the task files that a task file includes; a template in a name stands for anything."""

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, list):
            for item in node:
                yield from walk(item)
        elif isinstance(node, dict):
            for key, value in node.items():
                if INCLUDES.search(str(key)):
                    name = value.get("file", "") if isinstance(value, dict) else str(value)
                    yield Path(re.sub(r"{{.*?}}", "*", name)).stem
                else:
                    yield from walk(value)

    yield from walk(yaml.safe_load(path.read_text(encoding="utf-8")))


def _option(where: str, details: dict[str, Any]) -> Iterator[str]:
    """Give what is wrong with an option itself, and with the options inside it."""
    kind = details.get("type")
    if kind not in TYPES:
        yield f"{where}: type {kind!r} is none of {', '.join(sorted(TYPES))}"
        return
    if not details.get("description"):
        yield f"{where}: has no description"
    if kind == "list" and "elements" not in details:
        yield f"{where}: a list without elements"
    if details.get("required") and "default" in details:
        yield f"{where}: required options have no default"
    default = details.get("default")
    if default is not None and not _is_template(default):
        if not _fits(default, kind):
            yield f"{where}: the default {default!r} is no {kind}"
        values = default if kind == "list" else [default]
        choices = details.get("choices")
        if choices and _fits(default, kind) and not all(value in choices for value in values):
            yield f"{where}: the default {default!r} is not among the choices {choices!r}"
    for inner, inner_details in (details.get("options") or {}).items():
        yield from _option(f"{where}.{inner}", inner_details)


def _default(where: str, details: dict[str, Any], value: Any) -> Iterator[str]:
    """Give how the default in the spec differs from the one in defaults/main.yml."""
    if value is MISSING:
        if "default" in details:
            yield f"{where}: the spec says default {details['default']!r}, but defaults/main.yml does not set it"
    elif "default" not in details:
        # A null in defaults only keeps an optional variable defined.
        if value is not None:
            yield f"{where}: defaults/main.yml says {value!r}, but the spec has no default"
    elif details["default"] != value or isinstance(details["default"], bool) != isinstance(value, bool):
        yield f"{where}: the spec says default {details['default']!r}, but defaults/main.yml says {value!r}"


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind not in ("bool", "raw"):
        return False
    return isinstance(value, TYPES[kind])


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and "{{" in value


def main(arguments: list[str]) -> int:
    """Check every role below the root."""
    root = Path(arguments[0]) if arguments else common.ROOT
    return common.report([problem for role in common.roles(root) for problem in check_role(role)], "argument specs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
