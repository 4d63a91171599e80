#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: drift_info
short_description: Read what drifts on a node beside what every role verifies
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Reads package sources that are neither the distribution's nor the driver's, the record of the last known good state,
    and whether DKMS is told to build nothing. Changes nothing and runs no program.
  - Used by C(playbooks/drift.yml) with the filter P(aiinfra.gpu_node.drift_findings#filter).
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Changes nothing.
  platform:
    support: full
    platforms: debian
    description: Debian and Ubuntu.
"""

EXAMPLES = r"""
- name: Read what may have drifted
  aiinfra.gpu_node.drift_info:
  register: result
"""

RETURN = r"""
drift:
  description: What was read.
  returned: success
  type: dict
  contains:
    foreign_sources:
      description: Package sources of others, each with C(file), C(uri) and C(suite).
      type: list
      elements: dict
    last_known_good:
      description: C(time), C(version), C(kernel) and C(damage) of the record; C(reason) why there is none.
      type: dict
    no_autoinstall:
      description: Whether DKMS is told to build nothing.
      type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _drift


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, drift=_drift.collect())


if __name__ == "__main__":
    main()
