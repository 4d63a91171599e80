"""`make test`: everything is run once, in lanes that share a queue."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))
run_all = __import__("run_all")


@pytest.fixture
def ran(monkeypatch):
    """Record jobs instead of running them; what is in ``failing`` fails."""
    jobs, failing = [], set()

    def run_job(job, results):
        jobs.append(job.name)
        results[job.name] = (1 if job.name in failing else 0, 0.0)
        return results[job.name][0]

    monkeypatch.setattr(run_all, "run_job", run_job)
    return type("Ran", (), {"jobs": jobs, "failing": failing})


def test_every_scenario_and_every_module_of_lab_tests_is_a_job_and_the_long_ones_come_first():
    names = [job.name for job in run_all.container_jobs()]
    scenarios = {path.parent.name for path in (TESTS.parent / "molecule").glob("*/molecule.yml")}
    modules = {path.stem for path in (TESTS / "lab").glob("test_*.py")}
    assert modules >= set(run_all.NOT_YET), "a name in NOT_YET is no module"
    modules -= set(run_all.NOT_YET)
    wanted = {f"molecule-{name}" for name in scenarios - {"nvidia_driver_real"}} | {f"lab-{name}" for name in modules}
    assert set(names) == wanted | set(run_all.QUEUED) and len(names) == len(set(names))
    longest = [name for name in names if name.split("-", 1)[1] in run_all.LONG]
    assert names[len(run_all.QUEUED) :][: len(longest)] == longest
    assert len(longest) == len(set(run_all.LONG) - set(run_all.NOT_YET)), "a name in LONG is no job"


def test_a_failing_job_stops_nothing_behind_it(ran):
    ran.failing.update({"lint", "two"})
    lanes = run_all.Lanes([run_all.Job(name, ("true",)) for name in ("one", "two", "three")])
    lanes.run()
    assert sorted(ran.jobs) == sorted(lanes.names)
    assert {name for name, result in lanes.results.items() if result[0]} == {"lint", "two"}


def test_without_images_no_container_job_is_run_and_none_counts_as_passed(ran, monkeypatch, capsys, tmp_path):
    ran.failing.add("images")
    monkeypatch.setattr(run_all, "LOGS", tmp_path)
    monkeypatch.setattr(run_all, "container_jobs", lambda: [run_all.Job("one", ("true",))])
    assert run_all.main() == 1
    assert "one" not in ran.jobs
    assert "not run" in capsys.readouterr().out


def test_why_a_job_failed_is_said_last_where_a_cut_log_still_shows_it(ran, monkeypatch, capsys, tmp_path):
    ran.failing.add("one")
    monkeypatch.setattr(run_all, "LOGS", tmp_path)
    monkeypatch.setattr(run_all, "container_jobs", lambda: [run_all.Job("one", ("true",))])
    log = "ok: [node]\nfatal: [node]: FAILED! => the disk is full\n" + "skipping: [node]\n" * 500
    (tmp_path / "one.log").write_text(log, encoding="utf-8")
    assert run_all.main() == 1
    assert capsys.readouterr().out.rstrip().endswith("one: fatal: [node]: FAILED! => the disk is full")
