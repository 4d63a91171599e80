#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_health
short_description: Tell whether a GPU node may serve
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Reads the node as M(aiinfra.gpu_node.gpu_info) does and judges it by every check of docs/health-checks.md.
  - It fails closed. A call that hangs, a GPU that is gone, a code that is not known and a library that is missing are
    findings with the status C(fail) or C(error), never C(ok). One bad GPU does not hide the others.
  - Changes nothing, neither on the GPUs nor in the files of the timer that runs the same checks on the node. What the
    timer saw earlier (rates of counters, how often a check was bad) is read from O(history).
  - Does not fail because a node is bad, unless O(enforce=true).
  - To be run as root; NVML and the kernel keep some of it from others, which is then skipped or an error.
extends_documentation_fragment:
  - aiinfra.gpu_node.read_only
attributes:
  platform:
    support: full
    platforms: linux
    description: Linux with systemd. What the role nvidia_driver recorded is there on Debian and Ubuntu.
options:
  profile:
    description:
      - What the GPUs are compared with.
      - V(auto) takes the shipped profile that describes a GPU, by its PCI ids.
      - The name of a shipped profile, such as V(h100-sxm), or a dictionary as M(aiinfra.gpu_node.gpu_profile) captures
        it, says which GPU it must be; another one fails.
      - A text that ends in C(.yml) is the path of a file on the controller with such a dictionary. A relative path
        starts at the directory in which C(ansible-playbook) was started.
    type: raw
    default: auto
  expected:
    description:
      - How many GPUs the node must have. V(0) says that it has none and that this is right.
      - V(auto) takes the number that a captured profile has, else the number that PCI shows.
    type: str
    default: auto
  thresholds:
    description:
      - Thresholds by their names in docs/health-checks.md, in place of their defaults.
      - A name that is not known and a value out of range are refused.
    type: dict
    default: {}
  xid_overrides:
    description:
      - Own decisions about the driver's errors (Xid), over those of files/xid_policy.yml.
      - Each has C(code), C(verdict) and C(reason), and may have the other keys of that file.
    type: list
    elements: dict
    default: []
  skip:
    description: Checks that are left out, each with a reason that is shown.
    type: list
    elements: dict
    default: []
    suboptions:
      check:
        description: Name of the check. Those without which nothing else can be believed are refused.
        type: str
        required: true
      reason:
        description: Why it is left out.
        type: str
        required: true
      gpu:
        description:
          - Index or PCI address of the GPU, or the whole target of the finding that is meant.
          - By default all.
        type: str
  since:
    description:
      - From when on errors in the kernel's log count, for example the end of a repair.
      - Seconds since the boot, or a time such as V(2026-01-31T10:00:00Z); a time without a zone is UTC.
      - By default the boot. A later repair that the timer knows of counts as well.
    type: str
  history:
    description:
      - What earlier runs of the timer saw; only read. Where there is none, rates are not known and a check that has to
        be bad several times warns.
      - An empty text leaves it out.
    type: str
    default: /var/lib/gpu_node/health/history.json
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
  kernel_log:
    description: The kernel's log, its device or a file with records in the same format.
    type: path
    default: /dev/kmsg
  enforce:
    description: Whether the module fails when the node may not serve. It returns the same then.
    type: bool
    default: false
  return_snapshot:
    description: Whether RV(snapshot) is returned. It is long.
    type: bool
    default: false
  profiles:
    description:
      - The profiles that O(profile) chooses from, each as its file in files/gpu_profiles has it.
      - By default the shipped ones, which the controller sends along.
    type: list
    elements: dict
  xid_policy:
    description:
      - Content of files/xid_policy.yml.
      - By default the shipped one, which the controller sends along.
    type: dict
requirements:
  - nvidia-ml-py on the node, in the Python that O(nvml_python) names
notes:
  - Where the module finds no C(nvidia-ml-py), that is the finding C(node.nvml), since nothing can be known then.
seealso:
  - module: aiinfra.gpu_node.gpu_info
  - module: aiinfra.gpu_node.gpu_profile
"""

EXAMPLES = r"""
- name: Judge the GPUs
  aiinfra.gpu_node.gpu_health:
  register: health

- name: Show why the node may not serve
  ansible.builtin.debug:
    var: health.bad
  when: not health.may_serve

- name: Stop unless eight H100 are well; the card in slot 5e is known to be slow
  aiinfra.gpu_node.gpu_health:
    profile: h100-sxm
    expected: 8
    thresholds:
      margin_warn_c: 8
    skip:
      - check: gpu.clock_reasons
        gpu: "0000:5e:00.0"
        reason: fan is on order
    enforce: true
"""

RETURN = r"""
verdict:
  description: The worst status of all findings. C(skipped) counts as C(ok), unless nothing else is there.
  returned: success or O(enforce=true)
  type: str
  sample: ok
may_serve:
  description: Whether the node may serve. Nothing failed, nothing is unknown, and something was judged.
  returned: success or O(enforce=true)
  type: bool
counts:
  description: How many findings have each status.
  returned: success or O(enforce=true)
  type: dict
  sample: {ok: 61, skipped: 9, warn: 0, fail: 0, error: 0}
bad:
  description: A line for each finding that keeps the node from serving.
  returned: success or O(enforce=true)
  type: list
  elements: str
findings:
  description: All findings, in the order of docs/health-checks.md.
  returned: success or O(enforce=true)
  type: list
  elements: dict
  contains:
    check:
      description: Name of the check.
      type: str
    target:
      description: What was looked at. C(node), a GPU as C(gpu3 0000:65:00.0), a PCI address or a unit.
      type: str
    status:
      description: V(ok), V(skipped), V(warn), V(fail) or V(error).
      type: str
    value:
      description: What was seen.
      type: raw
    expected:
      description: What was wanted.
      type: raw
    source:
      description: Where the wanted value comes from.
      type: str
    hint:
      description: What to do, or why it was skipped.
      type: str
gpus:
  description: The GPUs that NVML counts, each with its own verdict.
  returned: success or O(enforce=true)
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index.
      type: int
    bus_id:
      description: PCI address; empty where it is not known.
      type: str
    target:
      description: How findings name it.
      type: str
    name:
      description: Its name; empty where it was not told.
      type: str
    uuid:
      description: Its UUID; empty where it was not told.
      type: str
    lost:
      description: Whether it cannot be talked to.
      type: bool
    status:
      description: The worst status of its own findings.
      type: str
    remedy:
      description:
        - What the driver asks for (NVML field 230), as the next step. Nothing of it is done.
        - C(step) is V(none), V(drain), V(reset), V(reboot) or V(person) (somebody has to decide), C(then) what comes
          after a drain, C(reason) why, and C(users) the processes that have to end before. A GPU that is in use, or of
          which that is not known, is never to be reset next.
      type: dict
summary:
  description: What the verdict is to be read with.
  returned: success or O(enforce=true)
  type: dict
  contains:
    taken_at:
      description: When, in seconds since the epoch.
      type: float
    boot_id:
      description: The kernel's id of this boot.
      type: str
    uptime_s:
      description: Seconds since the boot.
      type: float
    root:
      description: Whether it was read as root.
      type: bool
    nvml:
      description: State of NVML, as in RV(aiinfra.gpu_node.gpu_info#module:snapshot.nvml.state).
      type: str
    nvml_text:
      description: What NVML's error says.
      type: str
    hung_in:
      description: Call, and GPU where there is one, that did not return.
      type: str
    driver_version:
      description: Version of the driver.
      type: str
    cuda_version:
      description: Newest CUDA that the driver can do.
      type: str
    library:
      description: Path of the library that was opened.
      type: str
    pci_gpus:
      description: GPUs that PCI shows.
      type: int
    nvml_gpus:
      description: GPUs that NVML counts; null where it did not tell.
      type: int
snapshot:
  description: The node, as RV(aiinfra.gpu_node.gpu_info#module:snapshot).
  returned: O(return_snapshot=true)
  type: dict
duration_s:
  description: Seconds that reading NVML took.
  returned: success or O(enforce=true)
  type: float
calls:
  description: NVML calls that were made.
  returned: success or O(enforce=true)
  type: int
nvml_python:
  description: The Python that read NVML.
  returned: success or O(enforce=true)
  type: str
  sample: /opt/gpu_node/nvml/bin/python
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_snapshot, _health_history, _health_request
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner

ARGUMENT_SPEC = {
    "profile": {"type": "raw", "default": "auto"},
    "expected": {"type": "str", "default": "auto"},
    "thresholds": {"type": "dict", "default": {}},
    "xid_overrides": {"type": "list", "elements": "dict", "default": []},
    "skip": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "check": {"type": "str", "required": True},
            "reason": {"type": "str", "required": True},
            "gpu": {"type": "str"},
        },
    },
    "since": {"type": "str"},
    "history": {"type": "str", "default": _health_request.HISTORY},
    "nvml_python": {"type": "path"},
    "nvml_library": {"type": "path"},
    "deadline": {"type": "float", "default": 10.0},
    "kernel_log": {"type": "path", "default": "/dev/kmsg"},
    "enforce": {"type": "bool", "default": False},
    "return_snapshot": {"type": "bool", "default": False},
    "profiles": {"type": "list", "elements": "dict"},
    "xid_policy": {"type": "dict"},
}


def read_history(path: str) -> _health_history.History:
    """Return what earlier runs saw; an empty one where there is none, one with a problem where it cannot be read."""
    if not path:
        return _health_history.History()
    try:
        with open(path, encoding="utf-8") as handle:
            return _health_history.load(json.load(handle))
    except FileNotFoundError:
        return _health_history.History()
    except (OSError, ValueError) as error:
        return _health_history.History(problem=f"{path} could not be read ({error})")


def run(params: dict[str, Any]) -> dict[str, Any]:
    """Read and judge; returns the module's result.

    Raises:
        RequestError: for parameters that cannot be judged by.
    """
    request = _health_request.parse(params)
    _health_request.check_deadline(params["deadline"])
    python = _gpu_snapshot.nvml_python(params["nvml_python"] or "")
    snapshot = _gpu_snapshot.collect(
        SystemRunner(),
        python=python,
        library=params["nvml_library"] or "",
        deadline_s=params["deadline"],
        kmsg=params["kernel_log"],
    )
    verdict, _kept = _health_request.judge(request, snapshot, read_history(params["history"]))
    result = {**_health_request.answer(snapshot, verdict), "nvml_python": python}
    return {**result, "snapshot": snapshot.as_dict()} if params["return_snapshot"] else result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        result = run(module.params)
    except _health_request.RequestError as error:
        module.fail_json(msg=f"The health check cannot be done as asked: {error}")
    if module.params["enforce"] and not result["may_serve"]:
        why = "\n".join(result["bad"]) or "nothing was judged"
        module.fail_json(msg=f"This node may not serve ({result['verdict']}):\n{why}", changed=False, **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
