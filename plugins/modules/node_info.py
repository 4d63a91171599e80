#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_info
short_description: Facts about a machine before anything is done to it
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Reads what decides whether a machine can become a GPU node. That is system, interpreter, memory, physical cores,
    root file system, package database, clock, Secure Boot, GPUs on PCI, fstab, compiler, and whether its package
    sources answer.
  - Changes nothing, needs no GPU driver, and works with an interpreter that cannot use apt.
  - Run it as root, since some of these facts are not readable for others.
extends_documentation_fragment:
  - aiinfra.gpu_node.read_only
attributes:
  platform:
    support: full
    platforms: debian
    description: Other Linux systems give fewer facts.
options:
  check_addresses:
    description:
      - Whether to ask each package source of the node, and those of O(addresses), for its index.
      - Everything is asked side by side, through the proxy that apt is configured with.
    type: bool
    default: true
  addresses:
    description: Further repositories to ask, such as one that is not yet on the node.
    type: list
    elements: dict
    default: []
    suboptions:
      uri:
        description: Address of the repository. A V(file:) address is looked up on the node.
        type: str
        required: true
      suite:
        description: Suite, V(/) for a flat repository.
        type: str
        default: /
      login:
        description: C(user:password) where the repository wants one.
        type: str
        default: ''
      origin:
        description: Where the address comes from, for messages.
        type: str
        default: ''
  timeout:
    description: Seconds to wait for one answer.
    type: float
    default: 5
  deadline:
    description: Seconds to wait for all answers together.
    type: float
    default: 20
  lock_wait:
    description: Seconds to wait until nobody works on the package database any more.
    type: float
    default: 0
"""

EXAMPLES = r"""
- name: Look at the machine
  aiinfra.gpu_node.node_info:
    addresses:
      - uri: https://mirror.example.com/cuda
        origin: nvidia_driver_repo_uri
  register: machine

- name: Show its GPUs
  ansible.builtin.debug:
    msg: "{{ machine.node.gpus }}"
"""

RETURN = r"""
node:
  description: The facts.
  type: dict
  returned: success
  contains:
    time:
      description: Clock of the node, RFC 3339 in UTC.
      type: str
    os:
      description: C(id), C(version), C(codename) and C(name) of os-release.
      type: dict
    architecture:
      description: As the kernel names it.
      type: str
    kernel:
      description: Release of the running kernel.
      type: str
    virtualisation:
      description: Kind of C(container) and of virtual C(machine); null for a real one.
      type: dict
    interpreter:
      description: C(path) and C(version) of the Python that ran this module, and whether it can use C(apt).
      type: dict
    memory_mib:
      description: Memory that the kernel manages; null where unreadable.
      type: int
    cpu:
      description: C(threads), physical C(cores) (null where nothing tells them) and their C(source).
      type: dict
    root_fs:
      description: Size, use and inodes of the root file system.
      type: dict
    packages:
      description:
        - What was left C(unfinished) or C(interrupted), the mark of a C(transaction) in flight, and who holds the
          C(lock).
      type: dict
    clock:
      description: Whether it is C(synchronised); null when unknown; and the C(source) of that.
      type: dict
    secure_boot:
      description: State, whether signatures are C(enforced), and then the C(keys) that sign modules here.
      type: dict
    gpus:
      description: NVIDIA's GPUs on PCI, with the driver that is bound to each.
      type: list
      elements: dict
    nvswitches:
      description: NVIDIA's NVSwitches on PCI.
      type: list
      elements: dict
    fstab:
      description: Lines of fstab that are broken.
      type: list
      elements: dict
    compiler:
      description: Major version of the gcc that built the running C(kernel), and of the C(default) gcc.
      type: dict
    sources_error:
      description: What apt says about unreadable source files; empty when all is well.
      type: str
    addresses:
      description:
        - Each repository and whether it is C(reachable), with the reason in C(detail) if not; V(null) when that cannot
          be told.
        - V(null) as a whole when nothing was asked.
      type: list
      elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _node_info
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "check_addresses": {"type": "bool", "default": True},
            "addresses": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "uri": {"type": "str", "required": True},
                    "suite": {"type": "str", "default": "/"},
                    "login": {"type": "str", "default": "", "no_log": True},
                    "origin": {"type": "str", "default": ""},
                },
            },
            "timeout": {"type": "float", "default": 5},
            "deadline": {"type": "float", "default": 20},
            "lock_wait": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, node=_node_info.everything(SystemRunner(), module.params))


if __name__ == "__main__":
    main()
