# SPDX-License-Identifier: GPL-3.0-or-later
"""Real kernel packages with few modules: unpacking and the initramfs then take seconds instead of a minute.

Name, version, relations, maintainer scripts, kernel image and configuration stay as they are; only module files that
the lab does not need are left out (and their lines in md5sums).
"""

from __future__ import annotations

import lzma
import re
import shutil
from pathlib import Path

from . import paths
from .hashing import digest
from .progress import run
from .suites import KERNEL_MODULES

_SUFFIX = re.compile(r"\.ko(\.xz|\.zst|\.gz)?$")


def module_name(path: str) -> str:
    """Name of a module file, with underscores."""
    return _SUFFIX.sub("", path.rpartition("/")[2]).replace("-", "_")


def needs(data: bytes) -> list[str]:
    """What the module itself says it depends on: hard (depends=) and soft (softdep=pre:/post:)."""
    found: list[str] = []
    for match in re.finditer(rb"\0?depends=([^\0]*)\0", data):
        found += [name for name in match.group(1).decode("ascii", "replace").split(",") if name]
    for match in re.finditer(rb"\0softdep=([^\0]*)\0", data):
        found += [word for word in match.group(1).decode("ascii", "replace").split() if not word.endswith(":")]
    return [name.replace("-", "_") for name in found]


def _data(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def closure(files: dict[str, Path], wanted: tuple[str, ...]) -> set[str]:
    """Names of the modules to keep: the wanted ones and everything they need."""
    keep: set[str] = set()
    todo = [name.replace("-", "_") for name in wanted]
    while todo:
        name = todo.pop()
        if name in keep or name not in files:
            continue
        keep.add(name)
        todo += needs(_data(files[name]))
    return keep


def repack(deb: Path, log: Path) -> Path:
    """The small form of a linux-image package, from the cache when it was made before."""
    key = digest([deb], deb.parent, *KERNEL_MODULES, Path(__file__).read_text(encoding="utf-8"))
    target = paths.REPACKED / ("{}.{}.deb".format(deb.name[: -len(".deb")], key))
    if target.exists():
        return target
    tree = paths.WORK / ("repack-" + deb.name)
    shutil.rmtree(tree, ignore_errors=True)
    tree.parent.mkdir(parents=True, exist_ok=True)
    paths.REPACKED.mkdir(parents=True, exist_ok=True)
    run(f"unpacking {deb.name}", ["dpkg-deb", "-R", str(deb), str(tree)], log)
    modules = {module_name(path.name): path for path in tree.rglob("*") if _SUFFIX.search(path.name)}
    keep = closure(modules, KERNEL_MODULES)
    gone: set[str] = set()
    for name, path in modules.items():
        if name not in keep:
            gone.add(path.relative_to(tree).as_posix())
            path.unlink()
    for folder in sorted((path for path in tree.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()) and "kernel" in folder.relative_to(tree).parts:
            folder.rmdir()
    sums = tree / "DEBIAN" / "md5sums"
    kept = [line for line in sums.read_text(encoding="utf-8").splitlines() if line.split(maxsplit=1)[1] not in gone]
    sums.write_text("\n".join(kept) + "\n", encoding="utf-8")
    part = target.with_suffix(".part")
    run(
        f"repacking {deb.name} with {len(keep)} of {len(modules)} modules",
        ["dpkg-deb", "-b", "--root-owner-group", "-Zgzip", "-z1", str(tree), str(part)],
        log,
    )
    part.rename(target)
    shutil.rmtree(tree)
    return target
