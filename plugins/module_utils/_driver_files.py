# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The files that go with a driver: what they shall hold, which differ, and the early boot images they make stale."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import Any, Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _kernels
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below, read_text


def changed(root: str, wanted: Mapping[str, Any], sources_text: str) -> list[dict[str, str]]:
    """Return the files that differ from what a request needs: ``path`` and ``content``, none where it should go.

    The login file is not among them, since nothing of it may stand in a result: see ``login_differs``.
    """
    files = []
    if wanted["key_text"]:
        files.append((_apt_prefs.KEY_PATH, str(wanted["key_text"])))
    if sources_text:
        files.append((_apt_prefs.SOURCES_PATH, sources_text))
    if os.path.isdir(path_below(root, os.path.dirname(_apt_prefs.NEEDRESTART_PATH))):
        files.append((_apt_prefs.NEEDRESTART_PATH, _apt_prefs.needrestart_text()))
    files.append((_apt_prefs.NOUVEAU_PATH, _apt_prefs.NOUVEAU_TEXT))
    wants = {path for path, _text in files}
    found = [{"path": path, "content": text} for path, text in files if read_text(root, path) != text]
    found += [
        {"path": path}
        for path in (_apt_prefs.KEY_PATH, _apt_prefs.SOURCES_PATH)
        if path not in wants and read_text(root, path) is not None
    ]
    return found


def login_differs(root: str, text: str) -> bool:
    """Whether the login file has another content than ``text`` (empty: should be gone), or others may read it."""
    present = read_text(root, _apt_prefs.AUTH_PATH)
    if present is None:
        return bool(text)
    return present != text or bool(stat.S_IMODE(os.stat(path_below(root, _apt_prefs.AUTH_PATH)).st_mode) & 0o077)


def stale_images(root: str, kernels: Iterable[str]) -> list[str]:
    """Return the kernels whose early boot image is older than the blacklist of nouveau, written or planned."""
    path = path_below(root, _apt_prefs.NOUVEAU_PATH)
    written = os.stat(path).st_mtime_ns if read_text(root, _apt_prefs.NOUVEAU_PATH) else None
    stale = []
    for kernel in kernels:
        image = path_below(root, f"boot/initrd.img-{kernel}")
        if os.path.exists(image) and (written is None or os.stat(image).st_mtime_ns < written):
            stale.append(kernel)
    return stale


def let_nouveau_in(root: str, check: bool) -> tuple[list[dict[str, str]], list[str]]:
    """Take the blacklist of nouveau out of its file; return a diff, and the kernels whose image still has it.

    The file itself stays until those images are built again: by its age a run that follows a killed one knows them.
    """
    present = read_text(root, _apt_prefs.NOUVEAU_PATH)
    if present is None:
        return [], []
    kernels = [kernel.release for kernel in _kernels.bootable(root)]
    text = _apt_prefs.NOUVEAU_GONE_TEXT
    if present == text:
        return [], stale_images(root, kernels)
    if not check:
        write(root, _apt_prefs.NOUVEAU_PATH, text)
    images = [kernel for kernel in kernels if os.path.exists(path_below(root, f"boot/initrd.img-{kernel}"))]
    return [diff(_apt_prefs.NOUVEAU_PATH, present, text)], images


def write(root: str, path: str, text: str | None) -> None:
    """Replace a file in one step; remove it when there is no text."""
    if text is None:
        _state.remove_file(root, path)
        return
    target = path_below(root, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".gpu_node-", dir=os.path.dirname(target))
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, target)


def diff(path: str, before: str | None, after: str) -> dict[str, str]:
    """Return one entry of a module's ``diff``."""
    return {"before_header": path, "after_header": path, "before": before or "", "after": after}
