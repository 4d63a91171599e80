#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_profile
short_description: Capture the profile of a good GPU node
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Reads a node that is as it should be and returns what M(aiinfra.gpu_node.gpu_health) may then expect of it. The
    number of GPUs, memory, power limits, PCIe link and VBIOS of each slot, NVLinks, NVSwitches and modes.
  - What a node cannot tell (which readings must exist, how its memory is repaired) comes from the shipped profile of
    the model, where there is one.
  - Refuses a node that is no model for others. One without GPUs, with a GPU that is lost or that could not be read to
    the end, with GPUs of several models, or where PCI and NVML disagree.
  - Does not judge. Run M(aiinfra.gpu_node.gpu_health) with C(enforce) before, as the playbook
    aiinfra.gpu_node.capture_profile does, which also writes the profile on the controller.
extends_documentation_fragment:
  - aiinfra.gpu_node.read_only
attributes:
  platform:
    support: full
    platforms: linux
    description: Linux with systemd.
options:
  name:
    description:
      - Name of the profile, for findings.
      - Lower-case letters, digits, V(.), V(_) and V(-).
    type: str
    required: true
  identities:
    description:
      - Whether serial numbers and UUIDs of the GPUs are kept.
      - They tell a card that was swapped for another one of the same model, and should then not be published.
    type: bool
    default: false
  base:
    description:
      - Where that comes from which a node cannot tell.
      - V(auto) takes the shipped profile of the model, V(none) takes nothing. Else the name of a shipped profile.
    type: str
    default: auto
  nvml_python:
    description:
      - Python on the node that has C(nvidia-ml-py) and reads NVML.
      - By default C(/opt/gpu_node/nvml/bin/python) where it exists, else the one that runs the module.
    type: path
  nvml_library:
    description: Path of C(libnvidia-ml.so.1). By default the one that the loader finds.
    type: path
  deadline:
    description:
      - Seconds after which NVML is given up. The module ends within one second more.
      - Allowed are V(1) to V(300).
    type: float
    default: 10.0
  profiles:
    description:
      - The profiles that O(base) chooses from, each as its file in files/gpu_profiles has it.
      - By default the shipped ones, which the controller sends along.
    type: list
    elements: dict
requirements:
  - nvidia-ml-py on the node, in the Python that O(nvml_python) names
seealso:
  - module: aiinfra.gpu_node.gpu_health
"""

EXAMPLES = r"""
- name: Capture the profile of a node that was tested
  aiinfra.gpu_node.gpu_profile:
    name: rack-7-h100
  register: captured

- name: Judge another node by it
  aiinfra.gpu_node.gpu_health:
    profile: "{{ hostvars['node-1'].captured.profile }}"
    enforce: true
"""

RETURN = r"""
profile:
  description: The profile, as the option O(aiinfra.gpu_node.gpu_health#module:profile) takes it.
  returned: success
  type: dict
  contains:
    schema:
      description: Version of the form.
      type: int
    name:
      description: Its name.
      type: str
    title:
      description: Name of the GPUs.
      type: str
    device_ids:
      description: PCI ids of the GPUs, four hexadecimal digits.
      type: list
      elements: str
    gpu_count:
      description: How many GPUs the node has.
      type: int
    slots:
      description:
        - PCI address to what the slot has, C(pcie_width), C(pcie_generation), C(vbios), C(numa_node), and with
          O(identities) C(serial) and C(uuid).
      type: dict
    sources:
      description: Fact to C(source) and C(certainty).
      type: dict
  sample:
    schema: 1
    name: rack-7-h100
    device_ids: ["2330"]
    gpu_count: 8
    memory_mib: 81559
base:
  description: Name of the shipped profile that filled in what a node cannot tell; empty where none did.
  returned: success
  type: str
  sample: h100-sxm
duration_s:
  description: Seconds that reading NVML took.
  returned: success
  type: float
calls:
  description: NVML calls that were made.
  returned: success
  type: int
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_profile, _gpu_snapshot, _health_request
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner

AUTO = "auto"
NONE = "none"


def run(params: dict[str, Any]) -> dict[str, Any]:
    """Read the node and capture; returns the module's result.

    Raises:
        ProfileError: where none can be made.
        RequestError: for parameters that cannot be used.
    """
    _health_request.check_deadline(params["deadline"])
    shipped = _health_request.parse_profiles(params["profiles"] or [], AUTO)
    if params["base"] not in (AUTO, NONE):
        shipped = _health_request.parse_profiles(params["profiles"] or [], params["base"])
    snapshot = _gpu_snapshot.collect(
        SystemRunner(),
        python=params["nvml_python"] or "",
        library=params["nvml_library"] or "",
        deadline_s=params["deadline"],
    )
    base = None
    if params["base"] != NONE and snapshot.pci:
        base = _gpu_profile.match(shipped, snapshot.pci[0])
        if base is None and params["base"] != AUTO:
            raise _gpu_profile.ProfileError(
                "base {} does not describe the GPUs of this node ({})".format(
                    params["base"], ", ".join(sorted({pci.device_id for pci in snapshot.pci}))
                )
            )
    profile = _gpu_profile.capture(snapshot, params["name"], base, params["identities"])
    # What is written today has to be readable tomorrow: a mistake is told now, not by every run that uses it.
    _gpu_profile.parse(profile, "the captured profile")
    return {
        "profile": profile,
        "base": base.name if base else "",
        "duration_s": snapshot.nvml.duration_s,
        "calls": snapshot.nvml.calls,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "identities": {"type": "bool", "default": False},
            "base": {"type": "str", "default": AUTO},
            "nvml_python": {"type": "path"},
            "nvml_library": {"type": "path"},
            "deadline": {"type": "float", "default": 10.0},
            "profiles": {"type": "list", "elements": "dict"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module.params)
    except (_gpu_profile.ProfileError, _health_request.RequestError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
