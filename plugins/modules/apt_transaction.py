#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_transaction
short_description: One judged apt transaction that survives being killed
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Brings named packages to named versions, removes others and sets holds, in one apt transaction.
  - The exact command is simulated first. It is refused when it would remove or move anything that was not asked for, or
    bring or remove a kernel.
  - When a package script fails, the former packages are put back and the cause is shown.
  - A run that was killed leaves a mark; the next run repairs the package database first and says so.
  - When nothing is to be done, only dpkg's status file is read.
attributes:
  check_mode:
    support: full
    description: Simulates and changes nothing; package lists are not read again.
  diff_mode:
    support: full
    description: Shows the packages with version and hold, before and after.
  platform:
    support: full
    platforms: debian
    description: Debian and Ubuntu.
options:
  packages:
    description:
      - Package names with the exact version each shall have.
      - With an empty version any installed version is right, and the candidate is installed where there is none.
    type: dict
    default: {}
  absent:
    description: Packages that shall not be installed.
    type: list
    elements: str
    default: []
  remove_brought:
    description:
      - Whether packages go too that earlier transactions of O(owner) brought to the node. Those that something else on
        it needs, or that somebody has marked as manually installed since, stay.
    type: bool
    default: false
  brought_only:
    description:
      - Beginnings of names. Of the packages of O(remove_brought) only those go whose name has one of them; all where
        none is given.
    type: list
    elements: str
    default: []
  hold:
    description: Packages that shall be held afterwards. Holds that exist already stay.
    type: list
    elements: str
    default: []
  unhold:
    description: Packages that shall not be held afterwards.
    type: list
    elements: str
    default: []
  allow_remove:
    description: Whether packages may be removed that O(absent) does not name.
    type: bool
    default: false
  allow_upgrade:
    description:
      - Whether dependencies that are installed already may be moved to a newer version.
      - Kernels and held packages never are.
    type: bool
    default: false
  automatic:
    description:
      - Whether packages that are installed anew are marked as automatically installed, although they are named here.
        For tools that something else is about to depend on.
    type: bool
    default: false
  purge:
    description: Whether removed packages take their configuration files with them.
    type: bool
    default: false
  owner:
    description: Who asks, e.g. V(kernel). Packages that came with a transaction are recorded under this name.
    type: str
    required: true
  update_cache:
    description: Whether the package lists are read again before a change.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for another package program.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Headers of a kernel, whatever version is there
  aiinfra.gpu_node.apt_transaction:
    owner: kernel
    packages:
      linux-headers-6.1.0-57-amd64: ""
    update_cache: true

- name: Hold a kernel meta package at its version
  aiinfra.gpu_node.apt_transaction:
    owner: kernel
    packages:
      linux-image-amd64: 6.1.192-1
    hold:
      - linux-image-amd64
"""

RETURN = r"""
installed:
  description: Packages that were installed or moved, with their new version.
  type: dict
  returned: success
removed:
  description: Packages that were removed.
  type: list
  elements: str
  returned: success
brought:
  description: Packages that were not on the node before, dependencies included.
  type: list
  elements: str
  returned: success
repaired:
  description: What was repaired because an earlier run had been killed.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_record import removable
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction import Transaction
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import Request, TransactionError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_state import brought


def leaving(root: str, owner: str, only: tuple[str, ...] = ()) -> list[str]:
    """Return what transactions of an owner brought and nothing else needs, of names that begin with one of ``only``."""
    return removable(root, {}, [name for name in brought(root, owner) if not only or name.startswith(only)])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "default": {}},
            "absent": {"type": "list", "elements": "str", "default": []},
            "remove_brought": {"type": "bool", "default": False},
            "brought_only": {"type": "list", "elements": "str", "default": []},
            "hold": {"type": "list", "elements": "str", "default": []},
            "unhold": {"type": "list", "elements": "str", "default": []},
            "allow_remove": {"type": "bool", "default": False},
            "allow_upgrade": {"type": "bool", "default": False},
            "automatic": {"type": "bool", "default": False},
            "purge": {"type": "bool", "default": False},
            "owner": {"type": "str", "required": True},
            "update_cache": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    wanted = dict(module.params)
    transaction = Transaction(SystemRunner(), lock_timeout=wanted.pop("lock_timeout"))
    only = tuple(wanted.pop("brought_only"))
    if wanted.pop("remove_brought"):
        wanted["absent"] = sorted({*wanted["absent"], *leaving("/", wanted["owner"], only)})
    wanted["packages"] = {name: str(version or "") for name, version in wanted["packages"].items()}
    try:
        outcome = transaction.run(Request(**wanted), check=module.check_mode)
    except TransactionError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**outcome.as_dict())


if __name__ == "__main__":
    main()
