"""The wheel on the controller: the pinned one or none, fetched once, and every failure says what to do."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import types

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.aiinfra.gpu_node.plugins.action import gpu_health_agent as action

CONTENT = b"a wheel"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def pip(monkeypatch):
    """Stand in for pip: writes a file into the directory that it is given, and counts its calls."""
    seen = types.SimpleNamespace(calls=[], content=CONTENT, rc=0, stderr="")

    def run(argv, **_options):
        seen.calls.append(argv)
        if seen.rc == 0:
            folder = argv[argv.index("--dest") + 1]
            with open(f"{folder}/nvidia_ml_py-1-py3-none-any.whl", "wb") as handle:
                handle.write(seen.content)
        return subprocess.CompletedProcess(argv, seen.rc, "", seen.stderr)

    monkeypatch.setattr(action.subprocess, "run", run)
    return seen


def test_a_given_wheel_has_to_be_the_pinned_one(tmp_path):
    path = tmp_path / "a.whl"
    path.write_bytes(CONTENT)
    assert action.checked(str(path), SHA256) == str(path)
    with pytest.raises(AnsibleActionFail, match="is not the pinned one.*gpu_health_nvml_wheel_sha256"):
        action.checked(str(path), "0" * 64)


def test_a_given_wheel_that_is_not_there_is_said(tmp_path):
    with pytest.raises(AnsibleActionFail, match="cannot be read on the controller"):
        action.checked(str(tmp_path / "none.whl"), SHA256)


def test_it_is_fetched_once_for_all_nodes_at_once(tmp_path, pip):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(action.fetched("x==1", SHA256, str(tmp_path))))
        for _node in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pip.calls) == 1 and len(found) == 4 and len(set(found)) == 1
    # Without dependencies, and no source that would have to be built.
    assert {"--no-deps", "--only-binary=:all:", "x==1"} <= set(pip.calls[0])


def test_a_cached_wheel_that_was_changed_is_not_used(tmp_path, pip):
    path = action.fetched("x==1", SHA256, str(tmp_path))
    with open(path, "ab") as handle:
        handle.write(b"!")
    with pytest.raises(AnsibleActionFail, match="is not the pinned one"):
        action.fetched("x==1", SHA256, str(tmp_path))


def test_another_pin_is_another_file(tmp_path, pip):
    action.fetched("x==1", SHA256, str(tmp_path))
    pip.content = b"another"
    other = hashlib.sha256(b"another").hexdigest()
    assert action.fetched("x==2", other, str(tmp_path)) != action.fetched("x==1", SHA256, str(tmp_path))
    assert len(pip.calls) == 2


def test_a_pip_that_fails_says_how_to_go_on(tmp_path, pip):
    pip.rc, pip.stderr = 1, "WARNING: retrying\nERROR: No matching distribution found for x==1\n"
    with pytest.raises(AnsibleActionFail, match=r"No matching distribution found.*gpu_health_nvml_wheel"):
        action.fetched("x==1", SHA256, str(tmp_path))


def test_a_pip_that_hangs_is_given_up(tmp_path, monkeypatch):
    def hang(argv, **options):
        raise subprocess.TimeoutExpired(argv, options["timeout"])

    monkeypatch.setattr(action.subprocess, "run", hang)
    with pytest.raises(AnsibleActionFail, match="did not fetch x==1 within 300 s"):
        action.fetched("x==1", SHA256, str(tmp_path))


def test_a_cache_that_cannot_be_used_is_said(tmp_path, pip):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AnsibleActionFail, match="Set gpu_health_cache_dir"):
        action.fetched("x==1", SHA256, str(tmp_path / "file"))
