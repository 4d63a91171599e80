"""The agent comes onto a node in one piece, is told apart from what it should be, and goes again without a trace."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import stat
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_bundle, _health_install, _nvml_venv
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, SystemRunner

SERVICE, TIMER = "gpu-node-health.service", "gpu-node-health.timer"
METRICS = "/var/lib/prometheus/node-exporter"


class Systemd(SystemRunner):
    """A systemd that remembers; Python is run for real."""

    def __init__(self):
        self.enabled, self.active, self.calls, self.refuse = False, False, [], ""

    def run(self, argv, timeout=60.0, env=None, stdin=None):
        if argv[0] != "systemctl":
            return super().run(argv, timeout, env, stdin)
        if argv[1] == "show":
            state = "active" if self.active else "inactive"
            return CommandResult(0, f"ActiveState={state}\nUnitFileState={'enabled' if self.enabled else 'disabled'}\n")
        self.calls.append(" ".join(argv[1:]))
        if argv[1] == self.refuse:
            return CommandResult(1, err="no")
        if argv[1] in ("enable", "disable"):
            self.enabled = argv[1] == "enable"
        if argv[1] in ("start", "restart", "stop") and argv[-1] == TIMER:
            self.active = argv[1] != "stop"
        return CommandResult(0)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return a wheel with a module pynvml in it."""
    path = tmp_path_factory.mktemp("wheel") / "nvidia_ml_py-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pynvml.py", "VERSION = '0.0.1'\n")
        archive.writestr("nvidia_ml_py-0.0.1.dist-info/METADATA", "Name: nvidia-ml-py\n")
    return path


@pytest.fixture
def wanted(wheel):
    return _health_install.Wanted(
        bundle=_health_bundle.Bundle({"run.py": "print('one')\n", "pkg/part.py": "x = 1\n"}),
        config=json.dumps({"textfile_dir": METRICS}) + "\n",
        units={SERVICE: "[Service]\n", TIMER: "[Timer]\n"},
        wheel_sha256=_nvml_venv.digest(str(wheel)),
        python=sys.executable,
        textfile_dir=METRICS,
    )


@pytest.fixture
def systemd():
    return Systemd()


@pytest.fixture
def install(tmp_path, systemd, wheel):
    """Return a function that brings a node to what is wanted and returns what differed."""

    def act(wanted):
        found = _health_install.plan(wanted, systemd, str(tmp_path))
        if found.differs:
            _health_install.apply(wanted, found, str(wheel), systemd, str(tmp_path))
        return found.differs

    return act


def tree(root):
    return {str(path.relative_to(root)): path.lstat().st_mtime_ns for path in sorted(root.rglob("*"))}


def test_a_clean_node_is_predicted_and_not_touched(tmp_path, wanted, systemd):
    found = _health_install.plan(wanted, systemd, str(tmp_path))
    assert found.venv == "there is none" and found.code and found.link and found.folder
    assert found.timer == ("enable", "start")
    assert list(tmp_path.iterdir()) == [] and systemd.calls == []
    shown = "".join(entry["after"] for entry in found.diff)
    assert f"{wanted.wheel_sha256}" in shown and "  pkg/part.py\n" in shown and "[Timer]" in shown


def test_a_second_run_finds_nothing_to_do(tmp_path, wanted, install):
    assert install(wanted)
    before = tree(tmp_path)
    assert install(wanted) == []
    assert tree(tmp_path) == before


def test_the_code_is_complete_before_the_link_leads_to_it(tmp_path, wanted, install, systemd):
    install(wanted)
    current = tmp_path / "opt/gpu_node/health/current"
    assert os.readlink(current) == wanted.bundle.generation
    assert {str(path.relative_to(current.resolve())) for path in current.resolve().rglob("*.py")} == {
        "run.py",
        "pkg/part.py",
    }
    # After it is there it is run once, and last of all.
    assert systemd.calls[-1] == f"start {SERVICE}"
    assert "daemon-reload" in systemd.calls


def test_it_is_compiled_so_that_a_changed_file_is_never_run_as_the_old_one(tmp_path, wanted, install):
    install(wanted)
    home = tmp_path / "opt/gpu_node/health/current"
    (compiled,) = home.resolve().glob("__pycache__/run.*.pyc")
    # Bits 0 and 1 of the flags: by hash, and the hash is compared with the source.
    assert compiled.read_bytes()[4] == 0b11


def test_of_older_code_only_the_one_before_is_kept(tmp_path, wanted, install):
    names = []
    for number in range(4):
        newer = dataclasses.replace(wanted, bundle=_health_bundle.Bundle({"run.py": f"print({number})\n"}))
        install(newer)
        names.append(newer.bundle.generation)
    kept = {path.name for path in (tmp_path / "opt/gpu_node/health").iterdir()}
    assert kept == {"current", names[-1], names[-2]}


@pytest.mark.parametrize("damage", ["changed", "removed", "link"])
def test_damaged_code_is_seen_and_mended(tmp_path, wanted, install, damage):
    install(wanted)
    part = tmp_path / "opt/gpu_node/health" / wanted.bundle.generation / "pkg/part.py"
    if damage == "changed":
        part.write_text("x = 2\n", encoding="utf-8")
    elif damage == "removed":
        part.unlink()
    else:
        (tmp_path / "opt/gpu_node/health/current").unlink()
    assert install(wanted) == [_health_install.CURRENT]
    assert part.read_text(encoding="utf-8") == "x = 1\n"
    assert not [path for path in (tmp_path / "opt/gpu_node/health").iterdir() if path.name.startswith(".")]


def test_everything_is_for_everybody_to_read_whatever_the_umask(tmp_path, wanted, install):
    before = os.umask(0o077)
    try:
        install(wanted)
    finally:
        os.umask(before)
    for path in (tmp_path / "opt", tmp_path / "etc", tmp_path / "var"):
        for one in (path, *path.rglob("*")):
            if not one.is_symlink():
                assert stat.S_IMODE(one.stat().st_mode) & 0o044 == 0o044, one


def test_a_changed_timer_is_restarted(wanted, install, systemd):
    install(wanted)
    systemd.calls.clear()
    install(dataclasses.replace(wanted, units={**wanted.units, TIMER: "[Timer]\nOnBootSec=1\n"}))
    assert systemd.calls == ["daemon-reload", f"restart {TIMER}", f"start {SERVICE}"]


def test_turned_off_it_is_stopped_and_its_metrics_go(tmp_path, wanted, install, systemd):
    install(wanted)
    prom = tmp_path / METRICS.lstrip("/") / "gpu_node_health.prom"
    prom.write_text("gpu_node_health_verdict 0\n", encoding="utf-8")
    systemd.calls.clear()
    assert install(dataclasses.replace(wanted, timer=False)) == [f"{TIMER}: disable", f"{TIMER}: stop"]
    assert systemd.calls == [f"disable {TIMER}", f"stop {TIMER}"]
    assert not prom.exists()
    assert install(dataclasses.replace(wanted, timer=False)) == []


def test_metrics_that_move_do_not_stay_where_they_were(tmp_path, wanted, install):
    install(wanted)
    prom = tmp_path / METRICS.lstrip("/") / "gpu_node_health.prom"
    prom.write_text("gpu_node_health_verdict 0\n", encoding="utf-8")
    install(dataclasses.replace(wanted, config='{"textfile_dir": "/srv/metrics"}\n', textfile_dir="/srv/metrics"))
    assert not prom.exists() and (tmp_path / "srv/metrics").is_dir()


def test_a_refusal_of_systemd_is_an_error(tmp_path, wanted, install, systemd):
    systemd.refuse = "enable"
    with pytest.raises(_health_install.InstallError, match=f"systemctl enable {TIMER} failed: no"):
        install(wanted)


def test_it_goes_without_a_trace(tmp_path, wanted, install, systemd):
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/other").mkdir()
    install(wanted)
    state = tmp_path / "var/lib/gpu_node/health"
    state.mkdir(parents=True)
    (state / "state.json").write_text("{}", encoding="utf-8")
    (tmp_path / METRICS.lstrip("/") / "gpu_node_health.prom").write_text("x 0\n", encoding="utf-8")
    foretold = _health_install.remove(systemd, [TIMER, SERVICE], str(tmp_path), check_mode=True)
    assert foretold["changed"] and state.exists()
    systemd.calls.clear()
    done = _health_install.remove(systemd, [TIMER, SERVICE], str(tmp_path))
    assert done["changed_paths"] == foretold["changed_paths"]
    assert systemd.calls[:2] == [f"disable --now {TIMER}", f"stop {SERVICE}"]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left == set()
    assert not (tmp_path / "opt/gpu_node").exists() and (tmp_path / "opt/other").exists()
    assert not (tmp_path / "etc/gpu_node").exists()
    assert _health_install.remove(systemd, [TIMER, SERVICE], str(tmp_path))["changed"] is False


# The environment ------------------------------------------------------------------------------------------------------


def made(tmp_path, wheel, systemd, sha256=""):
    sha256 = sha256 or _nvml_venv.digest(str(wheel))
    _nvml_venv.make(systemd, sys.executable, str(wheel), sha256, str(tmp_path))
    return sha256


def test_the_environment_has_the_wheel_and_no_pip(tmp_path, wheel, systemd):
    sha256 = made(tmp_path, wheel, systemd)
    assert _nvml_venv.missing(systemd, sha256, str(tmp_path)) == ""
    python = tmp_path / "opt/gpu_node/nvml/bin/python"
    asked = subprocess.run(
        [str(python), "-I", "-c", "import pynvml, importlib.util as u; print(pynvml.VERSION, u.find_spec('pip'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout == "0.0.1 None\n"
    assert [path.name for path in (tmp_path / "opt/gpu_node").iterdir()] == ["nvml"]


def test_what_is_wrong_with_it_is_said(tmp_path, wheel, systemd):
    root, place = str(tmp_path), tmp_path / "opt/gpu_node/nvml"
    assert _nvml_venv.missing(systemd, "0" * 64, root) == "there is none"
    sha256 = made(tmp_path, wheel, systemd)
    assert _nvml_venv.missing(systemd, "0" * 64, root).startswith("it holds another wheel")
    (module,) = place.rglob("pynvml.py")
    module.write_text("raise SystemExit\n", encoding="utf-8")
    assert _nvml_venv.missing(systemd, sha256, root).endswith("pynvml.py was changed")
    module.unlink()
    assert _nvml_venv.missing(systemd, sha256, root).endswith("pynvml.py is missing")
    (place / "gpu-node.json").write_text("{", encoding="utf-8")
    assert "no record" in _nvml_venv.missing(systemd, sha256, root)


def test_a_distribution_upgrade_that_takes_its_python_away_is_seen_and_mended(tmp_path, wheel, systemd):
    sha256 = made(tmp_path, wheel, systemd)
    for link in (tmp_path / "opt/gpu_node/nvml/bin").iterdir():
        link.unlink()
        link.symlink_to("/usr/bin/python3.1")
    assert "does not import pynvml" in _nvml_venv.missing(systemd, sha256, str(tmp_path))
    made(tmp_path, wheel, systemd)
    assert _nvml_venv.missing(systemd, sha256, str(tmp_path)) == ""


def test_another_wheel_than_the_pinned_one_changes_nothing(tmp_path, wheel, systemd):
    with pytest.raises(_nvml_venv.VenvError, match=f"is not the pinned wheel: its SHA-256 is .*, wanted is {'0' * 64}"):
        made(tmp_path, wheel, systemd, "0" * 64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../outside.py", "leads elsewhere"),
        ("/etc/x", "leads elsewhere"),
        ("a.data/scripts/x", "Python alone"),
        ("b.so", "Python alone"),
    ],
)
def test_a_wheel_that_is_more_than_python_is_refused_and_the_present_one_stays(tmp_path, wheel, systemd, name, said):
    sha256 = made(tmp_path, wheel, systemd)
    other = tmp_path / "other-1-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr(name, "x = 1\n")
    with pytest.raises(_nvml_venv.VenvError, match=said):
        made(tmp_path, other, systemd)
    assert _nvml_venv.missing(systemd, sha256, str(tmp_path)) == ""
    assert [path.name for path in (tmp_path / "opt/gpu_node").iterdir()] == ["nvml"]
    assert not (tmp_path / "opt/gpu_node/outside.py").exists()


def test_a_wheel_without_the_module_is_refused(tmp_path, systemd):
    empty = tmp_path / "empty-1-py3-none-any.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("other.py", "x = 1\n")
    with pytest.raises(_nvml_venv.VenvError, match="does not import pynvml"):
        made(tmp_path, empty, systemd)


def test_a_python_that_makes_no_environment_is_said(tmp_path, wheel, systemd):
    with pytest.raises(_nvml_venv.VenvError, match="venv --without-pip failed"):
        _nvml_venv.make(systemd, "/bin/false", str(wheel), _nvml_venv.digest(str(wheel)), str(tmp_path))


def test_the_record_names_the_wheel(tmp_path, wheel, systemd):
    sha256 = made(tmp_path, wheel, systemd)
    record = json.loads((tmp_path / "opt/gpu_node/nvml/gpu-node.json").read_text(encoding="utf-8"))
    assert record["wheel"] == pathlib.Path(wheel).name and record["wheel_sha256"] == sha256
    assert len(record["files"]) == 2
