"""Shared by the tests of the simulated NVML library."""

from __future__ import annotations

import pytest
from lab.nvml_node import Node


@pytest.fixture(name="node")
def _node(tmp_path, nvml_library):
    def node(version="535.261.03", hide=(), **options):
        return Node(tmp_path, nvml_library(version, hide), version, **options)

    return node
