#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_rollback
short_description: Go back to the last known good driver and kernel of a node
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Used by C(playbooks/rollback.yml) and by planned changes that failed.
  - Compares the node with the state that M(aiinfra.gpu_node.last_known_good) recorded, and puts back what differs,
    whatever caused it. Packages come from the record's own files, modules from its archives, so it needs no network,
    no compiler and no headers.
  - Never reboots; RV(plan.reboot) says whether a reboot is needed.
attributes:
  check_mode:
    support: full
    description: Says what would be done.
  diff_mode:
    support: full
    description: Shows packages, modules and the next kernel, before and after.
  platform:
    support: full
    platforms: debian
    description: Debian and Ubuntu with GRUB.
options:
  state:
    description: V(planned) says what leads back and changes nothing; V(applied) does it.
    type: str
    choices: [planned, applied]
    default: applied
  prefer:
    description:
      - Which way is taken where both are open. V(kernel) goes back to the good kernel, V(driver) restores the good
        driver on the kernel that runs now, which needs a compiled module for it in the record.
    type: str
    choices: [kernel, driver]
    default: kernel
  interrupt_users:
    description: Whether processes that use the GPUs may lose them. When not, they are listed and nothing is done.
    type: bool
    default: false
  reason:
    description: Why, for C(/var/lib/gpu_node/rollback.json).
    type: str
    default: asked for by an operator
"""

EXAMPLES = r"""
- name: See the way back
  aiinfra.gpu_node.driver_rollback:
    state: planned
  register: result

- name: Take it
  aiinfra.gpu_node.driver_rollback:
    reason: kernel 6.12 has no module of this driver
"""

RETURN = r"""
good:
  description:
    - The state that is gone back to, with C(driver), C(kernel), C(flavour), C(source), C(components) and C(time).
  returned: success
  type: dict
plan:
  description: What differs and what leads back.
  returned: success
  type: dict
  contains:
    symptoms:
      description: What differs from the good state, in words.
      type: list
      elements: str
    kernel:
      description: Kernel that will run.
      type: str
    repair:
      description: Packages that dpkg has to finish first.
      type: list
      elements: str
    restore:
      description:
        - Packages that are installed from the record, with their versions.
        - What merely came along with the driver, such as DKMS, is among them only where it is gone.
      type: dict
    remove:
      description: Packages that the driver that was tried brought.
      type: list
      elements: str
    hold:
      description: Packages that lost their hold.
      type: list
      elements: str
    texts:
      description: The driver's files for apt that are put back, which are pins, blacklist, package source and its key.
      type: list
      elements: str
    load_modules:
      description:
        - Kernels whose compiled module comes from the record, RV(plan.kernel) first.
        - Packages that are put back take the modules of every kernel with them.
      type: list
      elements: str
    set_default:
      description: Whether the boot loader's default changes.
      type: bool
    reboot:
      description: Whether a reboot is needed afterwards.
      type: bool
    changes:
      description: Whether anything has to be done before the reboot.
      type: bool
steps:
  description: What is done, in order and in words; the reboot is the caller's.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _rollback
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_control import BootError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._module_archive import ArchiveError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._rollback_apply import (
    Rollback,
    RollbackError,
    good_of,
    state_lines,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import TransactionError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["planned", "applied"], "default": "applied"},
            "prefer": {"type": "str", "choices": list(_rollback.PREFER), "default": _rollback.KERNEL},
            "interrupt_users": {"type": "bool", "default": False},
            "reason": {"type": "str", "default": "asked for by an operator"},
        },
        supports_check_mode=True,
    )
    rollback = Rollback(SystemRunner(), "/", module.params["prefer"], module.params["interrupt_users"])
    try:
        plan, manifest, facts = rollback.plan()
        applied = module.params["state"] == "applied"
        if applied and plan.changes and not module.check_mode:
            for warning in rollback.apply(plan, manifest, facts, module.params["reason"]):
                module.warn(warning)
    except (RollbackError, TransactionError, ArchiveError, BootError) as fault:
        module.fail_json(msg=str(fault))
    good = good_of(manifest)
    before, after = state_lines(facts, good, plan)
    header = "driver and kernel"
    module.exit_json(
        changed=applied and plan.changes,
        good={
            "driver": good.driver,
            "kernel": good.kernel,
            "flavour": good.flavour,
            "source": manifest.driver.get("source"),
            "components": manifest.driver.get("components"),
            "time": manifest.time,
        },
        plan=plan.as_dict(),
        steps=plan.steps(good),
        diff={"before_header": header, "after_header": header, "before": before, "after": after},
    )


if __name__ == "__main__":
    main()
