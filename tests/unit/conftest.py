"""Shared by all unit tests: a command runner that answers from a table."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import NOT_FOUND, CommandResult, Runner


class FakeRunner(Runner):
    """Answers commands from ``answers``: argv prefix (as one string) to result; the longest prefix wins.

    A command without an answer behaves like one that is not installed. ``calls`` records what was run.
    """

    def __init__(self, answers=None):
        self.answers = dict(answers or {})
        self.calls = []

    def run(self, argv, timeout=60.0, env=None, stdin=None):
        line = " ".join(argv)
        self.calls.append(line)
        hits = [prefix for prefix in self.answers if line == prefix or line.startswith(prefix + " ")]
        if not hits:
            return CommandResult(NOT_FOUND, err=f"{argv[0]}: command not found")
        answer = self.answers[max(hits, key=len)]
        if callable(answer):
            answer = answer(list(argv))
        return answer if isinstance(answer, CommandResult) else CommandResult(0, answer)


@pytest.fixture(scope="session")
def build_tools():
    """Fail, and say what to do, where a compiler or dpkg-deb is missing: a test that is skipped tests nothing."""
    missing = [tool for tool in ("gcc", "dpkg-deb") if shutil.which(tool) is None]
    assert not missing, "{} missing: `make unit` installs it, as lab/bin/gpulab tools does".format(", ".join(missing))


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory, build_tools):
    """Return library(version, hide=()): the path of the simulated libnvidia-ml.so.1 of that driver, compiled once.

    What else a node of simulated GPUs needs is in tests/unit/lab/nvml_build.py.
    """
    from lab import nvml_build

    base = tmp_path_factory.mktemp("nvml_library")

    def library(version=nvml_build.DEFAULT_VERSION, hide=()):
        return nvml_build.library(base / "-".join([version, *sorted(hide)]), version, hide)

    return library


@pytest.fixture
def fake_runner():
    """Return the FakeRunner class, so that a test says its answers in one line."""
    return FakeRunner
