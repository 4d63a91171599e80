# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""DKMS: what it has built for which kernel, from its own tree or from any wording of ``dkms status``.

The tree is the default: reading it takes a millisecond, while ``dkms status`` compares modules of a hundred megabytes
and stops at the first left-over directory without ``dkms.conf``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _dkms_guard
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernels import exists_below, release_key
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import NOT_FOUND, Runner, list_dir, path_below

TREE = "var/lib/dkms"
#: Ubuntu's proprietary server flavour registers nvidia-srv, Debian nvidia-current (and -open), everybody else nvidia.
NVIDIA_MODULE = re.compile(r"^nvidia(-srv|-current|-tesla|-legacy)?(-\d+(xx)?)?(-open)?$")

#: From least to most: a later state contains the earlier ones. ``installed-weak`` is installed by a link from another
#: kernel's build; ``broken`` is a tree without ``dkms.conf``.
STATES = ("broken", "added", "built", "installed-weak", "installed")

# 2.8.6 and older:  nvidia, 535.183.06, 6.1.0-28-amd64, x86_64: installed
# newer:            nvidia/535.183.06, 6.1.0-28-amd64, x86_64: installed
# not built yet:    nvidia/535.183.06: added
_STATUS = re.compile(
    r"^(?P<module>[^\s,/:]+)(?:/|,\s*)(?P<version>[^\s,:]+)"
    r"(?:,\s*(?P<kernel>[^\s,:]+),\s*(?P<arch>[^\s,:]+))?"
    r"\s*:\s*(?P<state>installed-weak|installed|built|added|broken)\b(?P<rest>.*)$"
)
_WEAK_FROM = re.compile(r"from\s+(\S+)")
#: "(WARNING! Diff between built and installed module!)" of old versions, "(Differences between built and installed
#: modules)" of new ones, "(original_module exists)" of both.
_DIFFERS = re.compile(r"diff(?:erences)?\s+between\s+built\s+and\s+installed", re.IGNORECASE)
_NO_CONF = re.compile(r"(\S*/dkms/([^/\s]+)/([^/\s]+)/source/dkms\.conf)")


@dataclasses.dataclass(frozen=True)
class DkmsEntry:
    """What DKMS has for one module version and kernel.

    Args:
        module: DKMS's name of the module, e.g. ``nvidia-current``.
        version: Its version.
        kernel: Kernel release; empty for a version that is only added.
        arch: Architecture as DKMS writes it, e.g. ``x86_64``.
        state: One of ``STATES``.
        differs: Whether DKMS says that the installed module is not the one it built.
        note: Trailing text of the status line.
    """

    module: str
    version: str
    kernel: str
    arch: str
    state: str
    differs: bool = False
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for module results."""
        return dataclasses.asdict(self)


def parse_status(text: str) -> list[DkmsEntry]:
    """Return the entries of ``dkms status`` in any of its forms; lines of other kinds (errors) are passed over."""
    found = []
    for line in text.splitlines():
        match = _STATUS.match(line.strip())
        if not match:
            continue
        note = match.group("rest").strip()
        found.append(
            DkmsEntry(
                module=match.group("module"),
                version=match.group("version"),
                kernel=match.group("kernel") or "",
                arch=match.group("arch") or "",
                state=match.group("state"),
                differs=bool(_DIFFERS.search(note)),
                note=note,
            )
        )
    return found


def weak_source(entry: DkmsEntry) -> str | None:
    """Return the kernel whose build an ``installed-weak`` entry links to."""
    match = _WEAK_FROM.search(entry.note)
    return match.group(1) if match and entry.state == "installed-weak" else None


def orphans_of_status(text: str) -> list[dict[str, str]]:
    """Return the trees that ``dkms status`` stumbled over, from its error text and from entries called broken."""
    found = {(match.group(2), match.group(3)) for match in _NO_CONF.finditer(text)}
    found.update((entry.module, entry.version) for entry in parse_status(text) if entry.state == "broken")
    return [_orphan(module, version) for module, version in sorted(found)]


def read_tree(root: str = "/") -> list[DkmsEntry]:
    """Return what the DKMS tree holds for nvidia modules, in the same shape as ``parse_status``.

    A kernel's directory below a version means "built"; DKMS marks "installed" by the link
    ``<module>/kernel-<release>-<arch>`` to it.
    """
    found = []
    for module, version in _versions(root):
        if _is_orphan(root, module, version):
            found.append(DkmsEntry(module, version, "", "", "broken"))
            continue
        builds = _builds(root, module, version)
        if not builds:
            found.append(DkmsEntry(module, version, "", "", "added"))
        for kernel, arch in builds:
            link = path_below(root, f"{TREE}/{module}/kernel-{kernel}-{arch}")
            try:
                target = os.readlink(link)
            except OSError:
                target = ""
            here = target.endswith(f"{version}/{kernel}/{arch}")
            found.append(DkmsEntry(module, version, kernel, arch, "installed" if here else "built"))
    return found


def orphans(root: str = "/") -> list[dict[str, str]]:
    """Return nvidia trees without a ``dkms.conf``: DKMS cannot build, remove or sometimes even list beside them."""
    return [_orphan(module, version) for module, version in _versions(root) if _is_orphan(root, module, version)]


def dkms_facts(runner: Runner, root: str = "/", ask: bool = False) -> dict[str, Any]:
    """Return the DKMS state of the nvidia modules.

    Args:
        runner: Runs dkms where ``ask`` is true.
        root: Stands for ``/``.
        ask: Run ``dkms status`` as well (it may take seconds) instead of reading the tree alone.

    Returns:
        ``source`` (tree or status), ``entries``, ``orphans``, ``error``, the text of a status that failed, and
        ``switched_off``: whether a file keeps DKMS from building for new kernels.
    """
    entries, source, error = read_tree(root), "tree", ""
    stray = orphans(root)
    if ask:
        result = runner.run(["dkms", "status"], timeout=120)
        if result.rc != NOT_FOUND:
            said = [entry for entry in parse_status(result.out) if NVIDIA_MODULE.match(entry.module)]
            # A status that stopped half way must not hide what the tree holds.
            seen = {(entry.module, entry.version, entry.kernel) for entry in said}
            missed = [entry for entry in entries if (entry.module, entry.version, entry.kernel) not in seen]
            entries, source = said + ([] if result.ok else missed), "status"
            error = "" if result.ok else result.text
            known = {(item["module"], item["version"]) for item in stray}
            stray += [
                item
                for item in orphans_of_status(result.text)
                if NVIDIA_MODULE.match(item["module"]) and (item["module"], item["version"]) not in known
            ]
    return {
        "source": source,
        "entries": [entry.as_dict() for entry in entries],
        "orphans": stray,
        "error": error,
        "switched_off": exists_below(root, _dkms_guard.SWITCH),
    }


def _orphan(module: str, version: str) -> dict[str, str]:
    return {"module": module, "version": version, "path": f"/{TREE}/{module}/{version}"}


def _versions(root: str) -> list[list[str]]:
    found = []
    for module in list_dir(root, TREE):
        if not NVIDIA_MODULE.match(module):
            continue
        for version in list_dir(root, f"{TREE}/{module}"):
            path = path_below(root, f"{TREE}/{module}/{version}")
            if version.startswith("kernel-") or version == "original_module" or not os.path.isdir(path):
                continue
            found.append([module, version])
    return found


def _is_orphan(root: str, module: str, version: str) -> bool:
    return not exists_below(root, f"{TREE}/{module}/{version}/source/dkms.conf")


def _builds(root: str, module: str, version: str) -> list[list[str]]:
    base = f"{TREE}/{module}/{version}"
    found = []
    for kernel in sorted(list_dir(root, base), key=release_key):
        if kernel in ("source", "build") or os.path.islink(path_below(root, base + "/" + kernel)):
            continue
        for arch in list_dir(root, base + "/" + kernel):
            if list_dir(root, f"{base}/{kernel}/{arch}/module"):
                found.append([kernel, arch])
    return found
