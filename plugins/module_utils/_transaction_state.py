# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What a package transaction leaves on the node: the mark of one in flight, and which packages came through us.

Both files are written whole or not at all. A mark that is found at the start of a run belongs to a run that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from typing import Any, Callable, Iterable, Iterator

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below, read_text

STATE_DIR = "var/lib/gpu_node"
MARK = STATE_DIR + "/transaction.json"
LEDGER = STATE_DIR + "/packages.json"
LOCK = STATE_DIR + "/transaction.lock"
#: Beside the owners in that list: packages that we asked for by name, which is why apt takes them for somebody's wish.
NAMED = "(named)"
DPKG_LOCK = "var/lib/dpkg/lock-frontend"


def read_json(root: str, path: str) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None where there is none or it cannot be read as one."""
    text = read_text(root, path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write_json(root: str, path: str, value: dict[str, Any]) -> None:
    """Replace a JSON file so that a reader, or a power cut, sees either the old or the new content."""
    target = path_below(root, path)
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(target))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(value, stream, indent=2, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def remove_file(root: str, path: str) -> None:
    """Remove a file that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path_below(root, path))


def brought(root: str, owner: str) -> list[str]:
    """Return the packages that transactions of ``owner`` newly brought to the node, dependencies included."""
    entry = (read_json(root, LEDGER) or {}).get(owner)
    return sorted(str(name) for name in entry) if isinstance(entry, list) else []


def named(root: str) -> frozenset[str]:
    """Return the packages that came through us and were asked for by name."""
    return frozenset(brought(root, NAMED))


def note_brought(root: str, owner: str, added: Iterable[str], gone: Iterable[str], asked: Iterable[str] = ()) -> None:
    """Record packages that ``owner`` brought, and forget those that are gone, whoever brought them.

    Args:
        root: Directory that stands for ``/``.
        owner: Whose transaction it was.
        added: Packages that it brought.
        gone: Packages of which nothing is left.
        asked: Packages that it named, so that apt does not count them among those nobody asked for; noted for what
            ``owner`` brought, now or earlier.
    """
    ledger = read_json(root, LEDGER) or {}
    former = json.dumps(ledger, sort_keys=True)
    left = frozenset(gone)
    for name in list(ledger):
        ledger[name] = sorted(frozenset(ledger[name]) - left) if isinstance(ledger[name], list) else []
    ledger[owner] = sorted((frozenset(ledger.get(owner, [])) | frozenset(added)) - left)
    ledger[NAMED] = sorted(frozenset(ledger.get(NAMED, [])) | (frozenset(asked) & frozenset(ledger[owner])))
    ledger = {name: names for name, names in ledger.items() if names}
    if not ledger:
        remove_file(root, LEDGER)
    elif json.dumps(ledger, sort_keys=True) != former:
        write_json(root, LEDGER, ledger)


@contextlib.contextmanager
def exclusive(root: str, timeout: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[bool]:
    """Hold the collection's own lock; yields whether it was got in time.

    A module whose controller was killed goes on working on the node: the next run waits here for it to end.
    """
    target = path_below(root, LOCK)
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    with open(target, "a", encoding="utf-8") as handle:
        yield _wait(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB), timeout, sleep)


def wait_for_dpkg(root: str, timeout: float, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Wait until no other program works on dpkg's database; False when one still does after ``timeout`` seconds."""
    target = path_below(root, DPKG_LOCK)
    if not os.path.exists(target):
        return True
    with open(target, "r+", encoding="utf-8") as handle:
        return _wait(lambda: fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB), timeout, sleep)


def _wait(attempt: Callable[[], None], timeout: float, sleep: Callable[[float], None]) -> bool:
    deadline = time.monotonic() + timeout
    while True:
        try:
            attempt()
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            sleep(0.5)
