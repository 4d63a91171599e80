#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_entry
short_description: Choose the kernel that boots, for good or once
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Makes the entry of one kernel the boot loader's default. A kernel that is installed later does not boot by itself.
  - Starts a kernel at the next boot alone. If it dies, the boot after it starts the default again.
  - Kernels are named by their release. One that is not in the menu is refused with a list of those that are.
  - Without options it only tells what the boot loader has and will do.
  - The files of GRUB are written in such an order, and each in one step, that a power cut at any moment leaves the
    former default or the new one.
  - C(GRUB_DEFAULT=saved) goes to C(/etc/default/grub.d/gpu-node.cfg) where it is not set yet, and the menu is made
    anew only where it does not use the saved entry. C(GRUB_SAVEDEFAULT=true), with which an entry for one boot would
    stay, is switched off in the same file, with a warning.
  - The menu is made by C(grub-mkconfig) and moved into place, since C(update-grub) leaves half a menu when it is cut
    off.
  - On Enterprise Linux C(grubby) is used. That part was tested on texts only, not on a machine.
attributes:
  check_mode:
    support: full
    description: Says what would change.
  diff_mode:
    support: full
    description: Shows default and next boot, and the settings file, before and after.
  platform:
    support: full
    platforms: linux
    description: GRUB on Debian and Ubuntu, untested on Enterprise Linux.
options:
  default:
    description: Release of the kernel to start from now on. Not given, the default stays as it is.
    type: str
  once:
    description:
      - Release of the kernel to start at the next boot alone, or an empty string for none.
      - Not given, an entry for the next boot stays as it is.
    type: str
  unpin:
    description:
      - Takes back what this module configured, so that the settings in C(/etc/default/grub) choose the default again.
      - Not together with O(default) or O(once).
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Boot the kernel that runs, whatever else gets installed
  aiinfra.gpu_node.boot_entry:
    default: "{{ ansible_facts['kernel'] }}"

- name: Try another kernel once
  aiinfra.gpu_node.boot_entry:
    once: 6.12.95+deb12-amd64

- name: Do not try it after all
  aiinfra.gpu_node.boot_entry:
    once: ""

- name: See what there is
  aiinfra.gpu_node.boot_entry:
  register: loader
"""

RETURN = r"""
boot:
  description: What the boot loader will do, or in check mode would do.
  returned: success
  type: dict
  contains:
    loader:
      description: V(grub) or V(grubby).
      type: str
    default:
      description: Default entry as C(spec), C(found), C(entry), C(title) and C(kernel).
      type: dict
    one_shot:
      description: Entry for the next boot alone, in the same form; null where none is set.
      type: dict
    next_kernel:
      description: Release that the next boot starts; null where that is unknown.
      type: str
    entries:
      description: Every kernel entry as C(entry), C(title) and C(kernel).
      type: list
      elements: dict
running_kernel:
  description: Release of the running kernel.
  returned: success
  type: str
steps:
  description: What was or would be done, in order and in words.
  returned: success
  type: list
  elements: str
notes:
  description: What the operator should know although nothing failed; each is a warning too.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _boot_control
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "default": {"type": "str"},
            "once": {"type": "str"},
            "unpin": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    default, once, unpin = (module.params[name] for name in ("default", "once", "unpin"))
    if default == "":
        module.fail_json(msg="default: a kernel release, as uname -r tells it, is wanted; it must not be empty")
    if unpin and (default is not None or once is not None):
        module.fail_json(msg="unpin: true goes with neither default nor once")
    try:
        if unpin:
            result = _boot_control.release(SystemRunner(), module.check_mode)
        else:
            result = _boot_control.manage(SystemRunner(), default, once, module.check_mode)
    except _boot_control.BootError as fault:
        module.fail_json(msg=str(fault))
    for note in result["notes"]:
        module.warn(note)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
