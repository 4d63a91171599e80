#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tuning_info
short_description: Facts on host tuning, fresh and in one read
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Reads kernel settings with the files that decide them, swap and its sources, huge pages, CPU governor, PCIe
    link power, limits of services, what stands between GPUs on PCI and, when asked, the power limits of the GPUs.
  - Changes nothing.
extends_documentation_fragment:
  - aiinfra.gpu_node.read_only
attributes:
  platform:
    support: full
    platforms: linux
    description: Linux with C(/proc) and C(/sys).
options:
  sysctl:
    description: Names of the kernel settings of interest.
    type: list
    elements: str
    default: []
  sysctl_file:
    description: The file of C(/etc/sysctl.d) that is called our own.
    type: path
    default: /etc/sysctl.d/90-gpu-node.conf
  power_limits:
    description: Whether the driver is asked for the power limits of the GPUs, which takes a moment without persistence.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Look at swap and two settings
  aiinfra.gpu_node.tuning_info:
    sysctl:
      - vm.overcommit_memory
      - fs.inotify.max_user_instances
  register: tuning
"""

RETURN = r"""
tuning:
  description: The facts.
  type: dict
  returned: success
  contains:
    container:
      description: Kind of container, empty on a machine of its own.
      type: str
    virtual:
      description: Whether this is a virtual machine.
      type: bool
    page_size:
      description: Bytes of a page.
      type: int
    nr_open:
      description: Most open files that the kernel gives to a process.
      type: int
    sysctl:
      description:
        - Name to live value C(live), the reason C(obstacle) why it cannot be written, and the line that
          decides at C(boot) and with C(sysctl_system).
      type: dict
    swap:
      description: Active areas, sources that would bring swap back, and lines of fstab that are broken.
      type: dict
    thp:
      description: Transparent huge pages; null where the kernel has none.
      type: dict
    governor:
      description: Governors with the number of frequency policies each; null without frequency scaling.
      type: dict
    aspm:
      description: Policy of PCIe link power; null where the kernel has none.
      type: dict
    limits:
      description: Default limits of the running systemd, and the files that set them.
      type: dict
    i915:
      description: Whether Intel's graphics driver is loaded, and its parameters.
      type: dict
    files:
      description: Path to text of the files of the tuning role; null for an absent one.
      type: dict
    pci:
      description: GPUs with the bridges that redirect their peer traffic and the mode of their IOMMU group.
      type: dict
    power:
      description:
        - Whether the driver is C(loaded), its C(cards) with limit, range and persistence (null when it was not asked
          or did not answer), and C(error).
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _sysctl_plan, _tuning_info, _tuning_plan
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "sysctl": {"type": "list", "elements": "str", "default": []},
            "sysctl_file": {"type": "path", "default": _sysctl_plan.OWN_FILE},
            "power_limits": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    facts = _tuning_info.collect(
        SystemRunner(),
        module.params["sysctl"],
        _tuning_plan.FILES,
        module.params["sysctl_file"],
        ask_power=module.params["power_limits"],
    )
    module.exit_json(changed=False, tuning=facts)


if __name__ == "__main__":
    main()
