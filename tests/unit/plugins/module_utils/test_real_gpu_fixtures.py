"""The checks on what was recorded of real GPUs by tests/real_gpu/record.py; skipped while there is nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpu_snapshots as make
import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading_names

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "real_gpu"))
redaction = __import__("redaction")

RECORDED = sorted((Path(__file__).parent / "fixtures/real_gpu").glob("*.json"))
NONE = pytest.param(None, marks=pytest.mark.skip(reason="no real GPU was recorded yet: docs/real-gpu.md"), id="none")


@pytest.fixture(params=RECORDED or [NONE], ids=lambda path: path.stem if path else "none")
def recorded(request):
    return json.loads(request.param.read_text(encoding="utf-8"))


def test_the_checks_accept_what_a_real_machine_tells(recorded):
    node = r.Snapshot.from_dict(recorded["snapshot"])
    assert json.loads(json.dumps(node.as_dict())) == recorded["snapshot"]
    # Strict: a check that cannot digest a value raises here.
    verdict = make.judge(node, wanted=make.profiles())[0]
    assert set(verdict.gpus) and len(verdict.gpus) == len(node.gpus)
    unknown = [(item.check, item.target, item.hint) for item in verdict.findings if item.status == "error"]
    assert unknown == [], "nothing is misread, and nothing was not reached"
    if recorded["good"]:
        assert verdict.may_serve, [(item.check, item.target, item.value, item.hint) for item in verdict.bad]


def test_every_reading_was_asked_for(recorded):
    for gpu in recorded["snapshot"]["gpus"]:
        assert set(gpu["readings"]) == set(_gpu_reading_names.READINGS)


def test_nothing_tells_whose_machine_it_was(recorded):
    assert redaction.survivors(recorded["snapshot"]) == []
    assert redaction.survivors(recorded["health"]) == []
