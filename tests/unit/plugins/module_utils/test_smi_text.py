"""The text of nvidia-smi: error markers in place of values fail, whatever the exit status says."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _smi_text as smi
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED

FIELDS = ("index", "pci.bus_id", "temperature.gpu", "fan.speed")


def judge(*lines, **more):
    return smi.judge("\n".join(lines) + "\n", FIELDS, **more)


@pytest.mark.parametrize(
    "marker",
    ["ERR!", "[Unknown Error]", "[GPU is lost]", "Unknown Error", "GPU is lost", "[GPU requires reset]", "[ERR!]"],
)
def test_hlt_05_an_error_marker_fails_its_gpu_with_the_raw_field(marker):
    good, bad = judge("0, 00000000:17:00.0, 40, 30", f"1, 00000000:2A:00.0, {marker}, 30", rc=0)
    assert good.status == OK
    assert bad.status == FAIL and bad.value == {"temperature.gpu": marker}
    assert bad.target == "gpu1 00000000:2A:00.0"


@pytest.mark.parametrize("text", ["[N/A]", "N/A", "[Not Supported]"])
def test_hlt_05_not_available_alone_is_skipped(text):
    (found,) = judge(f"0, 00000000:17:00.0, 40, {text}")
    assert found.status == SKIPPED and "fan.speed" in found.hint
    (both,) = judge(f"0, 00000000:17:00.0, ERR!, {text}")
    assert both.status == FAIL


@pytest.mark.parametrize(("rc", "hint"), [(8, "power cables"), (15, "fallen off"), (124, "in time"), (77, "output")])
def test_an_exit_status_fails_the_node_beside_what_was_said(rc, hint):
    found = judge("0, 00000000:17:00.0, 40, 30", rc=rc)
    assert [item.status for item in found] == [FAIL, OK]
    assert hint in found[0].hint


def test_too_few_lines_and_no_line_are_bad():
    assert [item.status for item in judge("0, 00000000:17:00.0, 40, 30", expected=2)] == [OK, FAIL]
    assert [item.status for item in smi.judge("", FIELDS)] == [ERROR]
    assert [item.status for item in smi.judge(" \n\n", FIELDS, expected=1)] == [FAIL]


def test_a_line_that_is_no_answer_is_no_good_answer():
    assert judge("Unable to determine the device handle for GPU 0000:65:00.0: Unknown Error")[0].status == FAIL
    assert judge("WARNING: infoROM is corrupted at gpu 0000:65:00.0")[0].status == ERROR
    assert judge("0, 00000000:17:00.0, , 30")[0].status == ERROR
