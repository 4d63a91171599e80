# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Put the health agent onto a node, or take it away: code, Python for NVML, configuration, units.

The code lies in a folder that is named by a hash of it. The link ``current`` is switched when the folder is complete:
a run of the timer sees the old code or the new, never half of both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from typing import Any, Iterator, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_state, _health_watch, _nvml_venv
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_snapshot import NVML_PYTHON
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_agent import CONFIG, textfile_dir
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_bundle import Bundle
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_metrics import FILE
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, list_dir, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import diff_entry, ensure_files

HOME = "/opt/gpu_node/health"
CURRENT = f"{HOME}/current"
UNITS = "/etc/systemd/system"
#: Folders with code that are kept: the one in use and the one before, in which a run may be at work.
KEPT = 2
TIMEOUT_S = 60.0


class InstallError(RuntimeError):
    """An agent that cannot be put onto the node; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What shall be on the node.

    Args:
        bundle: The code.
        config: Text of the configuration.
        units: Name of each unit to its text.
        wheel_sha256: Hash of the wheel with nvidia-ml-py.
        python: Interpreter that the environment is made of.
        textfile_dir: Directory for the metrics; made where it is missing. Empty: none.
        timer: Whether the timer shall run.
        settle_s: Seconds that the run after a change may take.
    """

    bundle: Bundle
    config: str
    units: Mapping[str, str]
    wheel_sha256: str
    python: str = "/usr/bin/python3"
    textfile_dir: str = ""
    timer: bool = True
    settle_s: float = TIMEOUT_S

    @property
    def folder(self) -> str:
        """Where the code lies."""
        return f"{HOME}/{self.bundle.generation}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What differs on the node.

    Args:
        venv: Why the environment has to be made anew; empty when it is right.
        code: Whether the folder with the code has to be written.
        link: Whether ``current`` leads elsewhere.
        folder: Whether the directory for the metrics is missing.
        files: Configuration and units that differ.
        timer: What systemctl has to be told about the timer.
        diff: Before and after.
    """

    venv: str
    code: bool
    link: bool
    folder: bool
    files: tuple[str, ...]
    timer: tuple[str, ...]
    diff: tuple[Mapping[str, str], ...]

    @property
    def differs(self) -> list[str]:
        """What differs, in words."""
        found = [f"{_nvml_venv.PLACE}: {self.venv}"] if self.venv else []
        found += [CURRENT] if self.code or self.link else []
        found += ["directory of the metrics"] if self.folder else []
        return [*found, *self.files, *[f"{_health_watch.TIMER}: {verb}" for verb in self.timer]]


def _files(wanted: Wanted) -> list[dict[str, Any]]:
    named = [{"path": f"{UNITS}/{name}", "content": text} for name, text in sorted(wanted.units.items())]
    return [{"path": CONFIG, "content": wanted.config}, *named]


def plan(wanted: Wanted, runner: Runner, root: str = "/") -> Plan:
    """Compare a node with what shall be on it; changes nothing."""
    present = _present(wanted.folder, root)
    code = any(present.get(path) != text for path, text in wanted.bundle.files.items())
    target = _link(root)
    link = target != wanted.bundle.generation
    files = ensure_files(root, _files(wanted), check_mode=True)
    venv = _nvml_venv.missing(runner, wanted.wheel_sha256, root)
    diff = list(files["diff"])
    if code or link:
        before = _listing(f"{HOME}/{target}", root) if target else b""
        diff.insert(0, diff_entry(CURRENT, before or None, _listed(wanted.bundle.files, wanted.bundle.generation)))
    if venv:
        after = f"SHA-256 of the wheel: {wanted.wheel_sha256}\n".encode()
        diff.insert(0, diff_entry(_nvml_venv.PLACE, f"{venv}\n".encode(), after))
    folder = bool(wanted.textfile_dir) and not os.path.isdir(path_below(root, wanted.textfile_dir))
    if folder:
        diff.append(diff_entry(wanted.textfile_dir, None, b"directory, mode 0755\n"))
    timer = _timer(wanted, runner)
    if timer:
        diff.append(diff_entry(_health_watch.TIMER, b"", "".join(f"systemctl {verb}\n" for verb in timer).encode()))
    return Plan(venv, code, link, folder, tuple(files["changed_paths"]), timer, tuple(diff))


def _timer(wanted: Wanted, runner: Runner) -> tuple[str, ...]:
    shown = runner.run(
        ["systemctl", "show", _health_watch.TIMER, "--property", "ActiveState,UnitFileState"], timeout=TIMEOUT_S
    )
    said = dict(line.split("=", 1) for line in shown.out.splitlines() if "=" in line)
    active, enabled = said.get("ActiveState") == "active", said.get("UnitFileState") == "enabled"
    if wanted.timer:
        return (*(() if enabled else ("enable",)), *(() if active else ("start",)))
    return (*(("disable",) if enabled else ()), *(("stop",) if active else ()))


def apply(wanted: Wanted, found: Plan, wheel: str, runner: Runner, root: str = "/") -> None:
    """Bring a node to what ``plan`` found missing.

    Args:
        wanted: What shall be there.
        found: What differs.
        wheel: Path of the wheel on the node; only needed where ``found.venv`` is set.
        runner: Runs Python and systemctl.
        root: Directory that stands for ``/``.

    Raises:
        InstallError: where systemd refuses; VenvError: for the environment.
    """
    with _open_umask():
        if found.venv:
            _nvml_venv.make(runner, wanted.python, wheel, wanted.wheel_sha256, root)
        if found.folder:
            os.makedirs(path_below(root, wanted.textfile_dir), mode=0o755)
        if found.code:
            _write_code(wanted, runner, root)
        if found.link:
            _switch(wanted.bundle.generation, root)
            _forget_old(wanted.bundle.generation, root)
        _drop_metrics(wanted, root)
        ensure_files(root, _files(wanted), check_mode=False)
    units = [path for path in found.files if path.startswith(UNITS)]
    if units:
        _systemctl(runner, "daemon-reload")
    for verb in found.timer:
        _systemctl(runner, verb, _health_watch.TIMER)
    if wanted.timer and f"{UNITS}/{_health_watch.TIMER}" in units and "start" not in found.timer:
        _systemctl(runner, "restart", _health_watch.TIMER)
    if wanted.timer:
        # A result by what is there now, and the proof that it runs in its sandbox. A failure is told by the findings.
        runner.run(["systemctl", "start", _health_watch.SERVICE], timeout=wanted.settle_s)


@contextlib.contextmanager
def _open_umask() -> Iterator[None]:
    """What is made here is to be read by everybody, whatever the umask of the shell was."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _systemctl(runner: Runner, *arguments: str) -> None:
    done = runner.run(["systemctl", *arguments], timeout=TIMEOUT_S)
    if not done.ok:
        raise InstallError(f"systemctl {' '.join(arguments)} failed: {done.text or done.rc}")


def _link(root: str) -> str:
    """Return the name of the folder in use; empty where there is none."""
    try:
        return os.readlink(path_below(root, CURRENT))
    except OSError:
        return ""


def _present(folder: str, root: str) -> dict[str, str]:
    """Return the texts below a folder, without what Python compiled."""
    found: dict[str, str] = {}
    top = path_below(root, folder)
    for place, _folders, names in os.walk(top):
        for name in names:
            if name.endswith(".py"):
                path = os.path.relpath(os.path.join(place, name), top)
                text = read_text(root, f"{folder}/{path}")
                found[path] = "" if text is None else text
    return found


def _listing(folder: str, root: str) -> bytes:
    return _listed(_present(folder, root), os.path.basename(folder))


def _listed(files: Mapping[str, str], name: str) -> bytes:
    lines = [f"{_health_state.digest(text)}  {path}" for path, text in sorted(files.items())]
    return ("\n".join([name, *lines]) + "\n").encode() if files else b""


def _write_code(wanted: Wanted, runner: Runner, root: str) -> None:
    """Write the folder with the code beside its place, and move it there when it is complete."""
    home = path_below(root, HOME)
    os.makedirs(home, mode=0o755, exist_ok=True)
    work = tempfile.mkdtemp(prefix=".new-", dir=home)
    try:
        fresh = os.path.join(work, wanted.bundle.generation)
        for path, text in wanted.bundle.files.items():
            target = os.path.join(fresh, path)
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            with open(target, "w", encoding="utf-8") as handle:
                handle.write(text)
            os.chmod(target, 0o644)
        # Compiled once, not in each run. Python compares hashes, so a changed file never runs as the old one. Where
        # compiling fails, each run takes a moment longer.
        python = path_below(root, NVML_PYTHON)
        argv = [python, "-I", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", fresh]
        runner.run(argv, timeout=TIMEOUT_S)
        place = path_below(root, wanted.folder)
        if os.path.lexists(place):
            os.rename(place, os.path.join(work, "damaged"))
        os.rename(fresh, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _switch(generation: str, root: str) -> None:
    """Let ``current`` lead to a folder, in one step."""
    link = path_below(root, CURRENT)
    temporary = f"{link}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(generation, temporary)
    os.replace(temporary, link)


def _forget_old(generation: str, root: str) -> None:
    """Remove the folders of older code but the newest of them."""
    home = path_below(root, HOME)
    folders = [
        name
        for name in list_dir(root, HOME)
        if len(name) == _health_state.GENERATION_LENGTH and name != generation and not os.path.islink(f"{home}/{name}")
    ]
    folders.sort(key=lambda name: os.stat(f"{home}/{name}").st_mtime, reverse=True)
    for name in folders[KEPT - 1 :]:
        shutil.rmtree(f"{home}/{name}", ignore_errors=True)


def remove(runner: Runner, units: list[str], root: str = "/", check_mode: bool = False) -> dict[str, Any]:
    """Take everything away that the role put onto a node, its results included.

    Args:
        runner: Runs systemctl.
        units: Names of the units.
        root: Directory that stands for ``/``.
        check_mode: Only say what would go.

    Returns:
        ``changed``, ``changed_paths`` and ``diff``.
    """
    paths = [f"{UNITS}/{name}" for name in units] + [CONFIG, HOME, _nvml_venv.PLACE, _health_state.FOLDER]
    metrics = _metrics_of(root)
    paths += [metrics] if metrics else []
    there = [path for path in paths if os.path.lexists(path_below(root, path))]
    result = {
        "changed": bool(there),
        "changed_paths": there,
        "diff": [diff_entry(path, b"there\n", None) for path in there],
    }
    if check_mode or not there:
        return result
    for name in units:
        if os.path.lexists(path_below(root, f"{UNITS}/{name}")):
            verb = ["disable", "--now"] if name.endswith(".timer") else ["stop"]
            _systemctl(runner, *verb, name)
    for path in there:
        target = path_below(root, path)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        else:
            os.unlink(target)
    for folder in (os.path.dirname(HOME), os.path.dirname(CONFIG), os.path.dirname(_health_state.FOLDER)):
        with contextlib.suppress(OSError):
            os.rmdir(path_below(root, folder))
    _systemctl(runner, "daemon-reload")
    # A run that had failed would be listed for ever, although its unit is gone.
    runner.run(["systemctl", "reset-failed", *units], timeout=TIMEOUT_S)
    return result


def _drop_metrics(wanted: Wanted, root: str) -> None:
    """Remove metrics that nobody will write any more: they would tell their last verdict for ever."""
    present = _metrics_of(root)
    if present and (not wanted.timer or os.path.dirname(present) != wanted.textfile_dir):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path_below(root, present))


def _metrics_of(root: str) -> str:
    """Return the file with the metrics, by the configuration that wrote it; empty where none is named."""
    folder = textfile_dir(root, CONFIG)
    return f"{folder}/{FILE}" if folder else ""
