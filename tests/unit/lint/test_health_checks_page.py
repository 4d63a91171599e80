"""The page of the health checks is what the code says."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_health, _health_policy

ROOT = pathlib.Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "health-checks.md").read_text(encoding="utf-8")


def test_the_page_is_current():
    done = subprocess.run(
        [sys.executable, "tests/lint/gen_health_checks.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(_gpu_health.REGISTRY))
def test_a_check_is_there_with_what_to_do(name):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
    assert len(row.split(" | ")) == 6
    assert _gpu_health.REGISTRY[name].action in row


def test_every_threshold_is_there():
    for row in _health_policy.describe():
        assert f"| `{row['name']}` |" in PAGE


def test_a_page_that_is_not_current_is_a_problem(tmp_path, monkeypatch, capsys):
    sys.path.insert(0, str(ROOT / "tests" / "lint"))
    try:
        import gen_health_checks as generator
    finally:
        sys.path.pop(0)
    monkeypatch.setattr(generator, "PAGE", str(tmp_path / "page.md"))
    (tmp_path / "page.md").write_text("old", encoding="utf-8")
    assert generator.main(["--check"]) == 1
    assert "make readmes" in capsys.readouterr().out
    assert generator.main([]) == 0 and generator.main(["--check"]) == 0
