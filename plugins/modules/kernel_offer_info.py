#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_offer_info
short_description: Tell which kernels the package sources of a node offer
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Asks apt's cache for kernels with the packages that belong together, and which kernel the installed metas bring.
  - Asks whether the boot loader could try one of them at one boot alone.
  - Package lists are not read again.
  - For the filter P(aiinfra.gpu_node.kernel_upgrade_plan#filter).
extends_documentation_fragment:
  - aiinfra.gpu_node.read_only
attributes:
  platform:
    support: full
    platforms: debian
    description: Debian and Ubuntu.
"""

EXAMPLES = r"""
- name: See what kernels there are
  aiinfra.gpu_node.kernel_offer_info:
  register: result
"""

RETURN = r"""
offers:
  description: What is on offer.
  returned: success
  type: dict
  contains:
    kernels:
      description: By release, the C(packages) of a kernel with their versions; newest last.
      type: dict
    metas:
      description:
        - Installed metas of kernel images, those of the running kernel's flavour first, as C(installed), C(candidate),
          C(release) of the candidate's kernel, and the version of the C(headers) meta that goes with it.
      type: dict
    one_shot:
      description:
        - Whether the boot loader forgets an entry for one boot by itself, as C(clears), null where that is unknown, and
          the C(reason) why not.
      type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernel_offers import read
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, offers=read(SystemRunner(), "/", os.uname().release))


if __name__ == "__main__":
    main()
