# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The Python on a node that reads NVML: a virtual environment with one pinned wheel, nvidia-ml-py, and nothing else.

It is made without pip, so Debian's python3-venv is not needed, and filled by unpacking the wheel, which holds Python
only. It is made beside the present one and put into its place when it works.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_snapshot import NVML_PYTHON
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import read_bytes

PLACE = os.path.dirname(os.path.dirname(NVML_PYTHON))
#: Beside pyvenv.cfg: what was unpacked.
RECORD = "gpu-node.json"
SCHEMA = 1
#: Seconds; a slow disk, not a network.
TIMEOUT_S = 120.0
#: A wheel of some 60 KB; more than this unpacked is none.
MAX_BYTES = 32 << 20
_TRIAL = "import pynvml, sysconfig; print(sysconfig.get_path('purelib'))"


class VenvError(RuntimeError):
    """An environment that cannot be made; the text says why and what to do."""


def digest(path: str) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    found = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            found.update(block)
    return found.hexdigest()


def missing(runner: Runner, wheel_sha256: str, root: str = "/") -> str:
    """Return why the environment has to be made anew; empty when it is right.

    Args:
        runner: Runs its Python, which an upgrade of the distribution may have taken away.
        wheel_sha256: Hash of the wheel that it must hold.
        root: Directory that stands for ``/``.
    """
    place = path_below(root, PLACE)
    try:
        record: Any = json.loads((read_bytes(root, f"{PLACE}/{RECORD}") or b"").decode("utf-8"))
        files, sha256 = dict(record["files"]), str(record["wheel_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return "there is none" if not os.path.lexists(place) else "it has no record of what is in it"
    if sha256 != wheel_sha256:
        return f"it holds another wheel ({sha256[:16]})"
    for name, wanted in files.items():
        try:
            found = digest(os.path.join(place, name))
        except OSError:
            return f"{name} is missing"
        if found != wanted:
            return f"{name} was changed"
    tried = runner.run([path_below(root, NVML_PYTHON), "-I", "-B", "-c", _TRIAL], timeout=TIMEOUT_S)
    return "" if tried.ok else f"its Python does not import pynvml: {(tried.text.splitlines() or ['no answer'])[-1]}"


def make(runner: Runner, python: str, wheel: str, wheel_sha256: str, root: str = "/") -> None:
    """Make the environment and put it in place of the present one.

    Args:
        runner: Runs Python.
        python: Interpreter that it is made of.
        wheel: Path of the wheel on the node.
        wheel_sha256: What its hash must be.
        root: Directory that stands for ``/``.

    Raises:
        VenvError: with what to do.
    """
    try:
        found = digest(wheel)
    except OSError as error:
        raise VenvError(f"the wheel {wheel} cannot be read: {error.strerror or error}") from error
    if found != wheel_sha256:
        raise VenvError(
            f"{os.path.basename(wheel)} is not the pinned wheel: its SHA-256 is {found}, wanted is {wheel_sha256}"
        )
    place = path_below(root, PLACE)
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    work = tempfile.mkdtemp(prefix=".nvml-new-", dir=os.path.dirname(place))
    try:
        fresh = os.path.join(work, "nvml")
        _create(runner, python, fresh)
        _unpack(runner, wheel, wheel_sha256, fresh)
        if os.path.lexists(place):
            os.rename(place, os.path.join(work, "old"))
        os.rename(fresh, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _create(runner: Runner, python: str, fresh: str) -> None:
    made = runner.run([python, "-I", "-m", "venv", "--without-pip", fresh], timeout=TIMEOUT_S)
    if not made.ok:
        raise VenvError(f"{python} -m venv --without-pip failed: {made.text[-500:]}. Is it the distribution's Python?")
    os.chmod(fresh, 0o755)
    # They would name the folder that this one is moved away from, and nobody works in this environment.
    for name in os.listdir(os.path.join(fresh, "bin")):
        if name.lower().startswith("activate"):
            os.unlink(os.path.join(fresh, "bin", name))


def _unpack(runner: Runner, wheel: str, wheel_sha256: str, fresh: str) -> None:
    python = os.path.join(fresh, "bin", "python")
    asked = runner.run([python, "-I", "-B", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    site = asked.out.strip()
    if not asked.ok or not site.startswith(fresh + os.sep):
        raise VenvError(f"the new environment does not tell where its modules lie: {asked.text[-300:]}")
    files = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            _checked(entries)
            for entry in entries:
                target = os.path.join(site, entry.filename)
                os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
                with open(target, "wb") as handle:
                    handle.write(archive.read(entry))
                os.chmod(target, 0o644)
                files[os.path.relpath(target, fresh)] = digest(target)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise VenvError(f"the wheel {os.path.basename(wheel)} cannot be unpacked: {error}") from error
    tried = runner.run([python, "-I", "-B", "-c", _TRIAL], timeout=TIMEOUT_S)
    if not tried.ok:
        raise VenvError(f"the new environment does not import pynvml: {tried.text[-300:]}")
    record = {"schema": SCHEMA, "wheel": os.path.basename(wheel), "wheel_sha256": wheel_sha256, "files": files}
    with open(os.path.join(fresh, RECORD), "w", encoding="utf-8") as stream:
        json.dump(record, stream, indent=1, sort_keys=True)
        stream.write("\n")
    os.chmod(os.path.join(fresh, RECORD), 0o644)


def _checked(entries: list[zipfile.ZipInfo]) -> None:
    """Refuse a wheel that is more than Python files, or that would write outside of its folder."""
    for entry in entries:
        parts = entry.filename.split("/")
        if entry.filename.startswith("/") or ".." in parts or "\\" in entry.filename:
            raise VenvError(f"the wheel has a file that leads elsewhere: {entry.filename!r}")
        if parts[0].endswith(".data") or entry.filename.endswith(".so"):
            raise VenvError(f"the wheel is not of Python alone: {entry.filename!r}")
    if sum(entry.file_size for entry in entries) > MAX_BYTES:
        raise VenvError(f"the wheel unpacks to more than {MAX_BYTES >> 20} MiB")
