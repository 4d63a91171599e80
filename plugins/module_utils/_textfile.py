# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Small text files that the collection owns: atomic replacement and unified before/after for --diff."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below


def read_bytes(root: str, path: str) -> bytes | None:
    """Return the content of a file below ``root``; None where there is none.

    Raises:
        OSError: for a file that exists but cannot be read; an unreadable file is not an absent one.
    """
    try:
        with open(path_below(root, path), "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        return None


def replace_file(root: str, path: str, content: bytes, mode: int | None = None) -> None:
    """Write a file in one step: whoever reads it, or a run that is killed, sees the old or the new content, never half.

    Args:
        root: Directory that stands for ``/``.
        path: File; missing directories are made (0755). A symbolic link is followed, not replaced.
        content: New content.
        mode: Permissions; None keeps those of the present file (0644 for a new one).
    """
    target = os.path.realpath(path_below(root, path))
    directory = os.path.dirname(target)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    owner = None
    if os.path.exists(target):
        present = os.stat(target)
        owner = (present.st_uid, present.st_gid)
        mode = stat.S_IMODE(present.st_mode) if mode is None else mode
    descriptor, temporary = tempfile.mkstemp(prefix=".gpu-node-", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o644 if mode is None else mode)
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.chown(temporary, owner[0], owner[1])
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def diff_entry(path: str, before: bytes | None, after: bytes | None) -> dict[str, str]:
    """Return one entry of a module's ``diff``; a missing file reads as empty."""
    return {
        "before_header": path if before is not None else f"{path} (absent)",
        "after_header": path if after is not None else f"{path} (absent)",
        "before": (before or b"").decode("utf-8", "replace"),
        "after": (after or b"").decode("utf-8", "replace"),
    }


def _hidden(content: bytes | None) -> str:
    return "" if content is None else "(not shown: only its owner may read it)\n"


def _forget_empty_drop_ins(root: str, path: str) -> None:
    """Remove the directory of a drop-in of systemd's that was the last one there.

    Below /etc/systemd no package ships such directories, and an empty one means nothing; elsewhere one may be a
    package's.
    """
    directory = os.path.dirname(path)
    if (
        directory.startswith("/etc/systemd/")
        and directory.endswith(".d")
        and not os.listdir(path_below(root, directory))
    ):
        os.rmdir(path_below(root, directory))


def ensure_files(root: str, files: Sequence[Mapping[str, Any]], check_mode: bool) -> dict[str, Any]:
    """Bring several files to their content in one go.

    Args:
        root: Directory that stands for ``/``.
        files: Dictionaries with ``path`` and ``content`` (None: the file must not exist) and ``mode`` (default 0644).
            ``secret_content`` takes the place of ``content`` where it must not be shown.
        check_mode: Only say what would change.

    Returns:
        ``changed``, ``changed_paths`` in the given order, and ``diff``; of a file that only its owner may read (before
        or after) the diff says no more than that it changes.
    """
    changed: list[str] = []
    diff: list[dict[str, str]] = []
    for wanted in files:
        path = str(wanted["path"])
        text = wanted.get("content") if wanted.get("secret_content") is None else wanted["secret_content"]
        after = None if text is None else str(text).encode("utf-8")
        mode = int(str(wanted.get("mode") or "0644"), 8)
        before = read_bytes(root, path)
        mode_now = None if before is None else stat.S_IMODE(os.stat(path_below(root, path)).st_mode)
        if before == after and (after is None or mode_now == mode):
            continue
        changed.append(path)
        entry = diff_entry(path, before, after)
        if before == after:
            entry["before"], entry["after"] = f"mode {mode_now or 0:04o}\n", f"mode {mode:04o}\n"
        elif wanted.get("secret_content") is not None or 0 in (mode & 0o077, (mode_now or 0o077) & 0o077):
            entry["before"], entry["after"] = _hidden(before), _hidden(after)
        diff.append(entry)
        if check_mode:
            continue
        if after is None:
            os.unlink(path_below(root, path))
            _forget_empty_drop_ins(root, path)
        else:
            replace_file(root, path, after, mode)
    return {"changed": bool(changed), "changed_paths": changed, "diff": diff}
