"""What the project's own checks share: where the roles are and how their files read."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def load(path: Path) -> dict[str, Any]:
    """Return the dictionary in a YAML file; empty where there is no file or nothing in it."""
    if not path.exists():
        return {}
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def roles(root: Path) -> list[Path]:
    """Return the directories of all roles, sorted."""
    return sorted(path.parent for path in (root / "roles").glob("*/meta"))


def specs(role: Path) -> dict[str, Any]:
    """Return entry point name to its argument spec."""
    return load(role / "meta/argument_specs.yml").get("argument_specs") or {}


def files(root: Path) -> list[str]:
    """Return the paths, relative to the root, that git has or would add; everything below the root without git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if listed.returncode != 0:
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    names = listed.stdout.decode("utf-8", "surrogateescape").split("\0")
    return sorted(name for name in names if name and (root / name).is_file() and not (root / name).is_symlink())


def report(problems: list[str], what: str) -> int:
    """Print problems, one a line, or that there are none; return the exit status."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)" if problems else f"{what}: fine")
    return 1 if problems else 0
