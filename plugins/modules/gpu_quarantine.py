#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_quarantine
short_description: Take a GPU node out of service, and put it back, without touching what others have set
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Marks a node by a file, which load balancers and start scripts can look for, and optionally starts a target of
    systemd that units are bound to.
  - The mark holds its owner, the reason, the boot in which it was set and what was there before. Only a mark of this
    collection is ever lifted, and only as far as nobody has changed it since.
  - Neither drains the node nor ends a process nor touches a GPU.
  - Nothing uses it by itself. It is for playbooks that take bad nodes out of service.
notes:
  - A taint of K3s is not set by this module. The logic of owners is the same and is there for it.
  - The default of O(path) lies below C(/run), which a reboot empties. What is wrong after it has to be marked anew.
options:
  state:
    description:
      - V(present) takes the node out of service.
      - V(absent) lifts a quarantine that this module has set, and no other.
    type: str
    choices: [present, absent]
    default: present
  reason:
    description:
      - Why, in a line. It is kept in the mark.
      - Required for V(present).
    type: str
  path:
    description: The file that marks the node.
    type: path
    default: /run/gpu_node/quarantine
  target:
    description:
      - A target of systemd that is started with the quarantine and stopped with its end, such as
        V(gpu-node-quarantined.target). It has to be there.
      - By default none.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what would be done.
  diff_mode:
    support: full
    description: Shows the mark before and after.
  platform:
    support: full
    platforms: linux
    description: Linux; with O(target) one with systemd.
seealso:
  - module: aiinfra.gpu_node.gpu_health
"""

EXAMPLES = r"""
- name: Judge the GPUs
  aiinfra.gpu_node.gpu_health:
  register: health

- name: Take a bad node out of service, and put a good one back
  aiinfra.gpu_node.gpu_quarantine:
    state: "{{ 'absent' if health.may_serve else 'present' }}"
    reason: "{{ health.bad | first | default('nothing was judged') }}"
"""

RETURN = r"""
action:
  description:
    - V(take) (it was set), V(keep) (it was set by us before), V(update) (as V(keep), with another reason), V(release)
      (it was lifted) or V(leave) (nothing was to do, or it is not ours to touch).
  type: str
  returned: success
reason:
  description: Why that was done.
  type: str
  returned: success
quarantined:
  description: Whether the node is out of service now, by whomever.
  type: bool
  returned: success
owner:
  description: Who set the mark that is there; empty without one.
  type: str
  returned: success
  sample: aiinfra.gpu_node
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _quarantine_file
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "reason": {"type": "str"},
            "path": {"type": "path", "default": _quarantine_file.PATH},
            "target": {"type": "str", "default": ""},
        },
        required_if=[("state", "present", ["reason"])],
        supports_check_mode=True,
    )
    reason = " ".join((module.params["reason"] or "").split())
    if module.params["state"] == "present" and not reason:
        module.fail_json(msg="reason is empty: say why the node is taken out of service, for who finds it so")
    try:
        result = _quarantine_file.change(
            SystemRunner(),
            healthy=module.params["state"] == "absent",
            reason=reason,
            now=time.time(),
            path=module.params["path"],
            target=module.params["target"],
            check_mode=module.check_mode,
        )
    except _quarantine_file.QuarantineError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
