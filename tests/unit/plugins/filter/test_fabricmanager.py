"""The filters on the fabric manager, as roles call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.filter.fabricmanager import FilterModule
from node_facts import healthy

FILTERS = FilterModule().filters()
DATA = yaml.safe_load((Path(__file__).parents[4] / "files/compatibility.yml").read_text())


def test_each_filter_returns_plain_data():
    facts = healthy()
    need = FILTERS["fabricmanager_need"](facts, DATA)
    for result in (
        need,
        FILTERS["fabricmanager_plan"](facts, need, True, {"LOG_LEVEL": 3}),
        FILTERS["fabricmanager_findings"](facts, need, True),
    ):
        assert json.loads(json.dumps(result)) == result


def test_wrong_input_is_named():
    with pytest.raises(AnsibleFilterError, match="driver_info"):
        FILTERS["fabricmanager_need"]({"changed": False}, DATA)
    need = FILTERS["fabricmanager_need"](healthy(), DATA)
    with pytest.raises(AnsibleFilterError, match="nvidia_fabricmanager_config"):
        FILTERS["fabricmanager_plan"](healthy(), need, True, {"log level": 3})
