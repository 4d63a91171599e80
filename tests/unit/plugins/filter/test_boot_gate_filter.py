"""The reboot gate's filter, as playbooks call it."""

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter.boot_gate import FilterModule
from node_facts import VERSION, healthy

gate = FilterModule().filters()["boot_gate_findings"]


def test_krn_01_it_returns_plain_data_and_empty_texts_ask_for_nothing():
    findings = gate(healthy(), VERSION, "", "auto")
    assert json.loads(json.dumps(findings)) == findings
    assert [(item["check"], item["status"]) for item in findings if item["status"] != "ok"] == [
        ("boot_gate.initramfs", "error")
    ]
    assert "boot_gate.flavour" in [item["check"] for item in gate(healthy(), VERSION, None, "open")]


def test_wrong_input_is_named():
    with pytest.raises(AnsibleFilterError, match="driver_info"):
        gate({"changed": False}, VERSION)
    with pytest.raises(AnsibleFilterError, match="open, proprietary or auto, not 'free'"):
        gate(healthy(), VERSION, None, "free")
