#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: swap_off
short_description: No swap, now and after every boot
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Comments out the lines of type swap in C(/etc/fstab) and leaves every other byte of it as it is.
  - Masks systemd's C(*.swap) units, generated ones included, and services and generators that make swap on zram.
  - Switches active swap off, after a look at whether memory can take in what is swapped out.
  - In a container active swap belongs to the host. It is reported and left alone.
attributes:
  check_mode:
    support: full
    description: Says what would be disabled.
  diff_mode:
    support: full
    description: Shows C(/etc/fstab), the masks and the active areas, before and after.
  platform:
    support: full
    platforms: linux
    description: Linux with systemd.
options:
  state:
    description:
      - V(off) takes every source of swap away.
      - V(restored) takes back what V(off) did to C(/etc/fstab) and to units. The next boot brings swap up again.
    type: str
    choices: ["off", restored]
    default: "off"
"""

EXAMPLES = r"""
- name: No swap on this machine, for good
  aiinfra.gpu_node.swap_off:

- name: Swap as it was
  aiinfra.gpu_node.swap_off:
    state: restored
"""

RETURN = r"""
active_before:
  description: Swap areas that were active.
  type: list
  elements: str
  returned: success
fstab_lines:
  description: Numbers of the lines of fstab that were commented out, or are in force again.
  type: list
  elements: int
  returned: success
masked:
  description: Units that were masked, or are no longer.
  type: list
  elements: str
  returned: success
not_applied:
  description: What cannot be done here, each with C(name) and C(reason).
  type: list
  elements: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _swap
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def main() -> None:
    """Run the module."""
    spec = {"state": {"type": "str", "choices": ["off", "restored"], "default": "off"}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    try:
        if module.params["state"] == "restored":
            result = _swap.restore(check_mode=module.check_mode)
        else:
            result = _swap.disable(SystemRunner(), check_mode=module.check_mode)
    except _swap.SwapError as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
