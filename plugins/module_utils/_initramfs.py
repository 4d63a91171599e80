# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Whether the early boot image of a kernel would load nouveau before any blacklist in the root file system is read."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below

_NOUVEAU = re.compile(r"/nouveau\.ko(?:\.(?:xz|zst|gz))?$", re.MULTILINE)
_BLACKLISTS = re.compile(r"(?:^|/)(modprobe\.d/[^/\n]*(?:nouveau|nvidia)[^/\n]*\.conf)$", re.MULTILINE | re.IGNORECASE)


def image_path(release: str, root: str = "/") -> str | None:
    """Return the path of a kernel's early boot image on the node, by initramfs-tools' or dracut's name."""
    for name in ("initrd.img-" + release, f"initramfs-{release}.img", "initrd-" + release):
        if os.path.exists(path_below(root, "boot/" + name)):
            return "/boot/" + name
    return None


def parse_listing(text: str) -> dict[str, Any]:
    """Return ``nouveau`` (the module is inside) and ``blacklists`` (modprobe.d files about it) of a listing."""
    return {
        "nouveau": bool(_NOUVEAU.search(text)),
        "blacklists": sorted({match.group(1) for match in _BLACKLISTS.finditer(text)}),
    }


def inspect(runner: Runner, release: str, root: str = "/") -> dict[str, Any]:
    """Return what a kernel's image holds; reading one takes seconds, so callers ask for it on purpose only.

    Returns:
        ``image`` (None where there is none), ``nouveau`` (None where it could not be read), ``blacklists``, ``error``.
    """
    image = image_path(release, root)
    if image is None:
        return {"image": None, "nouveau": None, "blacklists": [], "error": ""}
    path = path_below(root, image)
    result = runner.run(["lsinitramfs", path], timeout=120)
    if not result.ok:
        result = runner.run(["lsinitrd", path], timeout=120)
    if not result.ok:
        return {"image": image, "nouveau": None, "blacklists": [], "error": result.text}
    return dict(parse_listing(result.out), image=image, error="")
