#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: last_known_good
short_description: Keep what a node needs to go back to the driver and kernel that work now
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Keeps, in C(/var/lib/gpu_node/last_known_good/), the package files of the installed driver and its compiled modules,
    with a manifest of versions, checksums, kernel, boot entry, holds and pins. A rollback then needs no network and no
    compiler.
  - Call it after a verification that found the driver and the kernels in order, as the playbooks C(site.yml) and
    C(verify.yml) do. The module itself makes sure that the running kernel is the boot loader's default, that packages,
    holds and pins are as recorded by the role nvidia_driver, and that the loaded module is that of the recorded driver.
    A node without GPUs loads none, so there the running kernel has to have the right one.
  - A state that is recorded already is left alone, and none of its files is read. One that cannot be recorded whole is
    not recorded at all; the finding says why, and the former record stays in force.
  - A package file is taken from an older record, from apt's cache, or from the package sources. It has to have the
    sha256 of apt's signed lists; where no source offers the version any more, it has to be what is installed.
attributes:
  check_mode:
    support: full
    description: Says whether the state would be recorded. Whether every file can be had shows only when it is.
  diff_mode:
    support: full
    description: Shows driver, kernel, boot entry, packages and holds of the former record and of the new one.
  platform:
    support: full
    platforms: debian
    description: Debian and Ubuntu.
options:
  state:
    description:
      - V(present) records the state of the node unless it is recorded.
      - V(described) reads the record and changes nothing.
      - V(absent) removes the record with all its files.
    type: str
    choices: [present, described, absent]
    default: present
  generations:
    description:
      - How many states are kept, 1 to 10, the newest included.
      - A state that differs from a newer one in holds, pins or boot entry alone is not counted, but replaced.
    type: int
    default: 2
  max_size_mib:
    description:
      - How much room all states may take together, in MiB; older ones go first. The newest is kept even where it alone
        takes more, and the finding says so.
      - The real driver takes some 400 MiB. Files that several states share take room once.
    type: int
    default: 4096
  verify_files:
    description: Whether O(state=described) compares the sha256 of every file, instead of looking at their sizes.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Keep what runs now
  aiinfra.gpu_node.last_known_good:

- name: Look at what is kept, and prove it
  aiinfra.gpu_node.last_known_good:
    state: described
    verify_files: true
  register: result
"""

RETURN = r"""
findings:
  description:
    - One finding C(last_known_good.record); ok, skipped with the reason, or warn where a state could not be kept.
  type: list
  elements: dict
  returned: always
current:
  description: The state that a rollback goes back to; null where there is none.
  type: dict
  returned: always
  contains:
    generation:
      description: Its name.
      type: str
    path:
      description: Its directory.
      type: str
    time:
      description: When it was recorded, in UTC.
      type: str
    version:
      description: Driver version.
      type: str
    kernel:
      description: Kernel release.
      type: str
generations:
  description: All states, the current one first, each as in RV(current).
  type: list
  elements: dict
  returned: always
size_mib:
  description: Room that all of them take.
  type: float
  returned: always
swept:
  description: Remains of a killed run that were removed.
  type: list
  elements: str
  returned: always
pruned:
  description: States that were removed because there were too many, or because a newer one has all of them.
  type: list
  elements: str
  returned: always
damage:
  description: What is wrong with the current state's files.
  type: list
  elements: str
  returned: O(state=described)
manifest:
  description: The current state with everything that is recorded of it; null where there is none.
  type: dict
  returned: O(state=described)
  contains:
    format:
      description: Version of this structure.
      type: int
    time:
      description: When it was recorded, in UTC.
      type: str
    driver:
      description: The record of the role nvidia_driver, C(/var/lib/gpu_node/driver.json).
      type: dict
    packages:
      description:
        - By name, C(version), C(architecture), C(sha256), C(file) and C(companion).
        - Companions came along with the driver and are needed only where they are missing.
      type: dict
    unavailable:
      description: Companions whose file could not be had, with the reason.
      type: dict
    kernel:
      description: Release of the kernel that ran.
      type: str
    kernels:
      description: All kernels that had a good module.
      type: list
      elements: str
    boot_entry:
      description: The boot loader's entry of the kernel that ran.
      type: str
    module_archives:
      description:
        - The compiled modules, each with C(dkms_name), C(version), C(kernel), C(arch), C(file), C(sha256), C(vermagic)
          and C(signer).
      type: list
      elements: dict
    holds:
      description: Held packages of driver and kernel.
      type: list
      elements: str
    pins_text:
      description: The driver's preferences.
      type: str
    blacklist_text:
      description: The driver's entries for unattended upgrades.
      type: str
    sources_text:
      description: The driver's package source; empty where it needs none of its own.
      type: str
    key_text:
      description: Public key of that source.
      type: str
    files:
      description: Every file with C(sha256) and C(size).
      type: dict
"""

from typing import Any, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _last_known_good
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the state says and return the module's result."""
    params: Mapping[str, Any] = module.params
    if params["state"] == "described":
        return _last_known_good.read("/", params["verify_files"])
    if params["state"] == "absent":
        return _last_known_good.remove("/", module.check_mode)
    recorder = _last_known_good.Recorder(SystemRunner(), "/")
    return recorder.record(params["generations"], params["max_size_mib"] << 20, module.check_mode)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "described", "absent"], "default": "present"},
            "generations": {"type": "int", "default": 2},
            "max_size_mib": {"type": "int", "default": 4096},
            "verify_files": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    if not 1 <= module.params["generations"] <= 10:
        module.fail_json(msg="generations is {}, but wants 1 to 10".format(module.params["generations"]))
    if module.params["max_size_mib"] < 1:
        module.fail_json(msg="max_size_mib is {}, but wants at least 1".format(module.params["max_size_mib"]))
    module.exit_json(**run(module))


if __name__ == "__main__":
    main()
