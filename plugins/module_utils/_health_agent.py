# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the timer of the role gpu_health runs on a node, without Ansible: read, judge, write down, say what changed.

It never changes the GPUs. Each run is a process of its own, so nothing can leak from one to the next but files, and
those have bounded sizes. Whatever goes wrong ends in a verdict: a run that cannot judge writes ``error``, which nobody
can take for the good verdict of the run before.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Callable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _gpu_snapshot,
    _health_history,
    _health_metrics,
    _health_request,
    _health_state,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_health import Verdict
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_settings import Settings, SettingsError, parse
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, SystemRunner, path_below
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import read_bytes, replace_file

CONFIG = "/etc/gpu_node/health.json"
#: Exit statuses. A bad node is no failure of the run: the verdict says it, and the unit stays what it is.
DONE, UNWRITTEN, UNUSABLE = 0, 1, 2

Collect = Callable[..., Snapshot]
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Places:
    """Where a node's health is kept.

    Args:
        root: Directory that stands for ``/``.
        textfile_dir: Directory of node_exporter's textfile collector; empty: no metrics.
    """

    root: str = "/"
    textfile_dir: str = ""

    @property
    def metrics(self) -> str:
        """Path of the file with the metrics; empty where none is wanted."""
        return os.path.join(self.textfile_dir, _health_metrics.FILE) if self.textfile_dir else ""

    def clean(self, now: float) -> None:
        """Remove what a run left half written when it was killed."""
        for folder in (_health_state.FOLDER, self.textfile_dir):
            if folder:
                _health_state.remove_leftovers(path_below(self.root, folder), now)


def settings(root: str = "/", path: str = CONFIG) -> Settings:
    """Return what the node is judged by.

    Raises:
        SettingsError: where the file is missing, is no JSON or holds mistakes; all are named.
    """
    try:
        content = read_bytes(root, path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    if content is None:
        raise SettingsError(f"{path} is missing: run the role gpu_health")
    try:
        data = json.loads(content.decode("utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} is no JSON ({error}): run the role gpu_health") from error
    return parse(data, path)


def run_once(
    wanted: Settings,
    runner: Runner,
    places: Places,
    say: Say,
    collect: Collect = _gpu_snapshot.collect,
    clock: Callable[[], float] = time.time,
) -> tuple[Verdict, list[str]]:
    """Do one run.

    Args:
        wanted: What the node is judged by.
        runner: Runs systemctl.
        places: Where the result goes.
        say: Takes the lines for the journal, each with its priority in front.
        collect: Reads the node.
        clock: Seconds since the epoch.

    Returns:
        The verdict, and what could not be written.
    """
    started, began = clock(), time.monotonic()
    places.clean(started)
    history = _health_state.load_history(places.root)
    snapshot = collect(
        runner,
        root=places.root,
        library=wanted.nvml_library,
        deadline_s=wanted.deadline_s,
        kmsg=wanted.kernel_log,
    )
    history = _after_repair(history, wanted, snapshot)
    verdict, kept = _health_request.judge(wanted.request, snapshot, history)
    before = _health_state.load_state(places.root)
    took = round(time.monotonic() - began, 3)
    state = _health_state.document(
        _health_request.answer(snapshot, verdict), snapshot.boot_id, clock(), took, wanted, history.problem
    )
    metrics = _health_metrics.metrics(
        verdict.status,
        verdict.may_serve,
        verdict.findings,
        verdict.gpus,
        snapshot.taken_at,
        took,
        snapshot.nvml.duration_s,
        snapshot.nvml.calls,
        {"driver": snapshot.nvml.driver_version, "agent": generation()},
    )
    for line in _health_state.changes(before, state):
        say(line)
    failed = _written(
        places.root,
        {
            _health_state.HISTORY: _health_state.encoded(kept.as_dict()),
            _health_state.STATE: _health_state.encoded(state),
            places.metrics: _health_metrics.text(metrics).encode("utf-8"),
        },
    )
    return verdict, failed


def _after_repair(history: _health_history.History, wanted: Settings, snapshot: Snapshot) -> _health_history.History:
    """Return a history that has forgotten what came before a repair that it does not know yet."""
    at = _health_request.since_epoch(wanted.request.since, snapshot)
    # One that lies in the future is not believed: the verdict says so, and nothing is forgotten for it.
    if at is None or at > snapshot.taken_at + 1 or (history.repaired_at is not None and at <= history.repaired_at):
        return history
    return dataclasses.replace(_health_history.repaired(history, at), problem=history.problem)


def _written(root: str, files: Mapping[str, bytes]) -> list[str]:
    """Write files, each in one step; one that fails does not keep the others from being written."""
    failed = []
    for path, content in files.items():
        if not path:
            continue
        try:
            replace_file(root, path, content, 0o644)
        except OSError as error:
            failed.append(f"{path} could not be written: {error.strerror or error}")
    return failed


def generation() -> str:
    """Return the name of the folder that this code was installed in; empty where it was not installed."""
    folder = os.path.realpath(__file__)
    for _level in __name__.split("."):
        folder = os.path.dirname(folder)
    name = os.path.basename(folder)
    return name if len(name) == _health_state.GENERATION_LENGTH and not set(name) - set("0123456789abcdef") else ""


def give_up(reason: str, places: Places, say: Say, now: float) -> list[str]:
    """Write that the truth is not known, in place of what the run before found out.

    Returns:
        What could not be written.
    """
    say(f"<3>verdict error: {reason}")
    state = _health_state.failed_document(reason, now, _health_state.load_state(places.root))
    return _written(
        places.root,
        {
            _health_state.STATE: _health_state.encoded(state),
            places.metrics: _health_metrics.text(_health_metrics.crashed(reason, now)).encode("utf-8"),
        },
    )


def main(
    arguments: Sequence[str] = (),
    root: str = "/",
    runner: Runner | None = None,
    collect: Collect = _gpu_snapshot.collect,
    say: Say | None = None,
) -> int:
    """Run once; returns the exit status.

    Args:
        arguments: The path of the configuration, where it is not the usual one.
        root: Directory that stands for ``/``.
        runner: Runs systemctl; None: really.
        collect: Reads the node.
        say: Takes the lines for the journal; None: standard output.
    """
    tell = say or _say
    places = Places(root)
    try:
        wanted = settings(root, arguments[0] if arguments else CONFIG)
        places = Places(root, wanted.textfile_dir)
        _verdict, failed = run_once(wanted, runner or SystemRunner(), places, tell, collect)
        status = DONE
    except SettingsError as error:
        # Where the metrics are wanted is not known for sure any more: what the file says of it still serves.
        places = Places(root, textfile_dir(root, arguments[0] if arguments else CONFIG))
        failed, status = give_up(str(error), places, tell, time.time()), UNUSABLE
    except Exception as error:  # whatever it is: a good verdict of before must not outlive it
        reason = f"the run failed ({type(error).__name__}: {error}): this is a mistake in the collection, report it"
        failed, status = give_up(reason, places, tell, time.time()), UNUSABLE
    for line in failed:
        tell(f"<3>{line}")
    return status or (UNWRITTEN if failed else DONE)


def textfile_dir(root: str, path: str) -> str:
    """Return where the metrics go by a configuration file, even one with mistakes; empty where it does not tell."""
    try:
        found = json.loads((read_bytes(root, path) or b"").decode("utf-8"))["textfile_dir"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) and os.path.isabs(found) else ""


def _say(line: str) -> None:
    """Write a line for the journal, with its priority in front as systemd reads it."""
    sys.stdout.write(line.replace("\n", " ") + "\n")
    sys.stdout.flush()
