#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_files
short_description: Several small files in one trip
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Brings text files to their content, or removes them, all in one trip to the node. A loop over
    M(ansible.builtin.copy) takes two trips a file.
  - Each file is replaced in one step. Missing directories are made.
  - Of a file that only its owner may read, before or after the change, a diff does not show the content.
attributes:
  check_mode:
    support: full
    description: Says what would change.
  diff_mode:
    support: full
    description: Shows each file, before and after.
  platform:
    support: full
    platforms: posix
    description: Any system with Python.
options:
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      content:
        description: Its text. The file is removed when this is not given.
        type: str
      secret_content:
        description: The same for a text that must not appear in any output.
        type: str
      mode:
        description: Permissions as an octal number.
        type: str
        default: "0644"
"""

EXAMPLES = r"""
- name: One file there, another gone
  aiinfra.gpu_node.managed_files:
    files:
      - path: /etc/modprobe.d/example.conf
        content: "options example quiet=1\n"
      - path: /etc/modprobe.d/example-old.conf
"""

RETURN = r"""
changed_paths:
  description: The files that changed.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._textfile import ensure_files


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str"},
                    "secret_content": {"type": "str", "no_log": True},
                    "mode": {"type": "str", "default": "0644"},
                },
                "mutually_exclusive": [("content", "secret_content")],
            }
        },
        supports_check_mode=True,
    )
    module.exit_json(**ensure_files("/", module.params["files"], module.check_mode))


if __name__ == "__main__":
    main()
