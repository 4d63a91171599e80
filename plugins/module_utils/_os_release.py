# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What a distribution calls itself."""

from __future__ import annotations

import re

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import read_text

_FIELD = re.compile(r"^[ \t]*([A-Z_]+)[ \t]*=(.*)$", re.MULTILINE)


def read(root: str = "/") -> dict[str, str]:
    """Return ``id``, ``version``, ``codename`` and ``name`` of os-release; empty texts where it is missing."""
    text = read_text(root, "etc/os-release") or read_text(root, "usr/lib/os-release") or ""
    fields = {key: value.strip().strip("\"'") for key, value in _FIELD.findall(text)}
    return {
        "id": fields.get("ID", ""),
        "version": fields.get("VERSION_ID", ""),
        "codename": fields.get("VERSION_CODENAME", ""),
        "name": fields.get("PRETTY_NAME", ""),
    }
