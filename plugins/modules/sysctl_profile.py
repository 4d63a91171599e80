#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sysctl_profile
short_description: Kernel settings as a profile with policies, in one file and live
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Owns one file in C(/etc/sysctl.d), each line with its reason, and the live values of the same keys.
  - A key with the policy V(floor) is never lowered. What another file, the running kernel or an earlier run has
    higher is kept and reported.
  - A live value is written only where it differs and can be written. The rest is listed in RV(not_applied).
  - Where another file wins at boot, the live value is left alone and the file is listed in RV(foreign).
attributes:
  check_mode:
    support: full
    description: Says what would be written to the file and live.
  diff_mode:
    support: full
    description: Shows the file and the live values, before and after.
  platform:
    support: full
    platforms: linux
    description: Linux with C(/proc/sys).
options:
  profile:
    description:
      - Key to entry. An entry is a dictionary with C(value), C(policy), C(reason) and C(source), or a bare value.
      - C(policy) is V(set) (exactly this value, the default), V(floor) (at least this value) or V(never) (not
        managed, but reported where a file sets it).
      - Values are whole numbers or text. Booleans are refused.
    type: dict
    default: {}
  path:
    description: The file. Its name ends in C(.conf) and its directory is C(/etc/sysctl.d).
    type: path
    default: /etc/sysctl.d/90-gpu-node.conf
  state:
    description: V(absent) removes the file and leaves live values alone.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Two settings, one of them only upwards
  aiinfra.gpu_node.sysctl_profile:
    profile:
      vm.overcommit_memory:
        value: 1
        reason: The kubelet insists on it.
      fs.inotify.max_user_instances:
        value: 8192
        policy: floor
        reason: Each container runtime and log reader takes some.
"""

RETURN = r"""
path:
  description: The file.
  type: str
  returned: success
live:
  description: Live values that were written, each with C(name), C(before) and C(after).
  type: list
  elements: dict
  returned: success
not_applied:
  description: Live values that should differ but cannot be written here, each with C(name) and C(reason).
  type: list
  elements: dict
  returned: success
  sample:
    - name: vm.overcommit_memory
      reason: read-only /proc/sys
kept:
  description:
    - Floors that are reached already, each with C(name), C(live), C(wanted), the value C(kept) and its
      C(origin).
  type: list
  elements: dict
  returned: success
foreign:
  description:
    - The same keys in other files, each with C(name), C(file), C(line) and C(value).
    - C(wins_at_boot) and C(wins_sysctl_system) say whether that line decides, at boot and with C(sysctl --system).
  type: list
  elements: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _sysctl_plan


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "dict", "default": {}},
            "path": {"type": "path", "default": _sysctl_plan.OWN_FILE},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    try:
        result = _sysctl_plan.run(
            module.params["profile"],
            path=module.params["path"],
            state=module.params["state"],
            check_mode=module.check_mode,
        )
    except _sysctl_plan.ProfileError as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
