# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which nvidia module a kernel would load, by that kernel's own module index.

modprobe believes ``/lib/modules/<release>/modules.dep``: a file that depmod has not seen cannot be loaded, and a build
system that reports success proves nothing. So the index decides, and the module file itself tells version, signer and
the kernel it was built for.
"""

from __future__ import annotations

import os
import re
from typing import Any, Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernels import MODULES_DIR
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below, read_text

#: The main module under every name that a packaging gives its file: nvidia (NVIDIA, Ubuntu), nvidia-srv (Ubuntu's
#: server flavour), nvidia-current and nvidia-current-open (Debian), nvidia-tesla-470 and alike (Debian's old branches).
#: Not its companions (nvidia-uvm, nvidia-current-drm), not other drivers (nvidiafb, i2c-nvidia-gpu).
MAIN_MODULE = re.compile(
    r"^(nvidia(?:-srv|-current|-tesla|-legacy)?(?:-\d+(?:xx)?)?(?:-open)?)\.ko(?:\.(?:xz|zst|gz))?$"
)

_INDEX_LINE = re.compile(r"^([^:\n]*nvidia[^:/\n]*\.ko(?:\.(?:xz|zst|gz))?):", re.MULTILINE)
#: Where packagings put a driver from outside the kernel; looked at only to find files that the index does not know.
_PLACES = ("updates/dkms", "updates", "extra", "extra/nvidia", "weak-updates/nvidia", "kernel/drivers/video")


def parse_index(text: str) -> list[dict[str, str]]:
    """Return the nvidia main modules of a ``modules.dep``: ``name`` and ``path`` relative to the kernel's directory."""
    found = []
    for match in _INDEX_LINE.finditer(text):
        path = match.group(1)
        name = MAIN_MODULE.match(path.rsplit("/", 1)[-1])
        if name:
            found.append({"name": name.group(1), "path": path})
    return found


def indexed(release: str, root: str = "/") -> list[dict[str, Any]]:
    """Return the nvidia modules of a kernel.

    Returns:
        For each: ``name``, ``path`` (absolute on the node), ``indexed`` (the kernel's index knows it) and ``exists``.
        A file that the index does not know is listed too, since "run depmod" is then the advice.
    """
    base = f"{MODULES_DIR}/{release}"
    found: dict[str, dict[str, Any]] = {}
    for entry in parse_index(read_text(root, base + "/modules.dep") or ""):
        path = entry["path"] if entry["path"].startswith("/") else "/{}/{}".format(base, entry["path"])
        found[path] = {
            "name": entry["name"],
            "path": path,
            "indexed": True,
            "exists": os.path.exists(path_below(root, path)),
        }
    for path in _unindexed(base, root):
        if path not in found:
            name = MAIN_MODULE.match(os.path.basename(path))
            found[path] = {"name": name.group(1) if name else "", "path": path, "indexed": False, "exists": True}
    return [found[path] for path in sorted(found)]


def parse_modinfo(text: str) -> dict[str, dict[str, str]]:
    """Return fields of ``modinfo FILE...`` by file: ``version``, ``signer``, ``sig_key``, ``license``, ``vermagic``."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon or key != key.strip():
            continue
        if key == "filename":
            current = found.setdefault(value.strip(), {})
        elif key in ("version", "signer", "sig_key", "license", "vermagic"):
            current.setdefault(key, value.strip())
    return found


def describe(runner: Runner, modules: Mapping[str, Iterable[dict[str, Any]]], root: str = "/") -> None:
    """Add what the files say to the modules of all kernels, with one modinfo call for the node.

    Args:
        runner: Runs modinfo.
        modules: Kernel release to what ``indexed`` returned; each entry gets ``version``, ``signer``, ``flavour``
            (``open``, ``proprietary`` or empty) and ``fits``: whether it was built for that kernel (None: unknown).
        root: Stands for ``/``.
    """
    paths = [path_below(root, entry["path"]) for entries in modules.values() for entry in entries if entry["exists"]]
    text = runner.run(["modinfo"] + paths, timeout=60).out if paths else ""
    facts = parse_modinfo(text)
    for release, entries in modules.items():
        for entry in entries:
            said = facts.get(path_below(root, entry["path"]), {})
            entry["version"] = said.get("version", "")
            entry["signer"] = said.get("signer", "")
            entry["flavour"] = flavour(said.get("license", ""))
            magic = said.get("vermagic", "").split(" ")[0]
            entry["fits"] = magic == release if magic else None


def flavour(licence: str) -> str:
    """Return the flavour that a module's licence tells: the open modules are dual MIT/GPL, the others "NVIDIA"."""
    if "GPL" in licence:
        return "open"
    return "proprietary" if licence else ""


def _unindexed(base: str, root: str) -> list[str]:
    found: list[str] = []
    for place in _PLACES:
        directory = path_below(root, f"{base}/{place}")
        if not os.path.isdir(directory):
            continue
        found.extend(f"/{base}/{place}/{name}" for name in sorted(os.listdir(directory)) if MAIN_MODULE.match(name))
    return found
