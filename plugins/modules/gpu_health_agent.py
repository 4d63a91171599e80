#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_health_agent
short_description: Put the health checks onto a node, where a timer runs them without Ansible
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Writes the code that M(aiinfra.gpu_node.gpu_health) itself runs to C(/opt/gpu_node/health), in a folder named by a
    hash of it, and switches the link C(current) to it in one step. The folder before is kept, older ones go.
  - Makes the Python that reads NVML in C(/opt/gpu_node/nvml), without pip, from one wheel that the controller sends.
  - Writes C(/etc/gpu_node/health.json) and the units, enables the timer, and runs the checks once after a change.
  - Everything that is wrong in the options is found before anything is changed, in check mode too.
  - The wheel is sent only where it is needed. By default the controller fetches it with its own pip, once.
attributes:
  check_mode:
    support: full
    description: Says what would change. No wheel is fetched; one that is given is checked.
  diff_mode:
    support: full
    description: Shows configuration and units before and after, and the code as a list of files with their hashes.
  platform:
    support: full
    platforms: linux
    description: Linux with systemd and Python 3.8 or newer.
options:
  state:
    description: V(absent) removes all of it, results included, and leaves the directory of the metrics.
    type: str
    choices: [present, absent]
    default: present
  units:
    description: Text of the systemd units C(gpu-node-health.service) and C(gpu-node-health.timer), by name.
    type: dict
    default: {}
  timer:
    description: Whether the timer is enabled and runs.
    type: bool
    default: true
  wheel:
    description:
      - Path of the wheel of C(nvidia-ml-py) on the controller, for an air gap.
      - By default the controller fetches it with pip from wherever pip is configured to.
    type: path
  wheel_sha256:
    description: SHA-256 of the wheel. It is checked on the controller and again on the node.
    type: str
  wheel_requirement:
    description: What pip fetches, such as V(nvidia-ml-py==13.615.71).
    type: str
  cache_dir:
    description: Directory on the controller that keeps the fetched wheel.
    type: path
    default: ~/.cache/aiinfra.gpu_node
  python:
    description: Interpreter on the node that the environment is made of.
    type: path
    default: /usr/bin/python3
  settings:
    description: What the checks are told.
    type: dict
    default: {}
    suboptions:
      profile:
        description: As in M(aiinfra.gpu_node.gpu_health).
        type: raw
        default: auto
      expected:
        description: As in M(aiinfra.gpu_node.gpu_health).
        type: str
        default: auto
      thresholds:
        description: As in M(aiinfra.gpu_node.gpu_health).
        type: dict
        default: {}
      xid_overrides:
        description: As in M(aiinfra.gpu_node.gpu_health).
        type: list
        elements: dict
        default: []
      skip:
        description: As in M(aiinfra.gpu_node.gpu_health).
        type: list
        elements: dict
        default: []
      repaired_at:
        description:
          - When the node was last repaired, as V(2026-01-31T10:00:00Z). What was seen before does not count any more.
          - One that lies in the future is not believed, and is said.
        type: str
        default: ""
      deadline:
        description: Seconds after which NVML is given up, V(1) to V(300).
        type: float
        default: 10.0
      interval:
        description: Seconds between two runs, V(10) to V(1800). From it follows when a result counts as stale.
        type: int
        default: 60
      nvml_library:
        description: Path of C(libnvidia-ml.so.1). By default the one that the loader finds.
        type: str
        default: ""
      kernel_log:
        description: The kernel's log.
        type: str
        default: /dev/kmsg
      textfile_dir:
        description:
          - Directory of node_exporter's textfile collector; made where it is missing.
          - An empty text writes no metrics.
        type: str
        default: /var/lib/prometheus/node-exporter
  profiles:
    description:
      - The profiles that O(settings.profile) chooses from, each as its file in files/gpu_profiles has it.
      - By default the shipped ones, which the controller sends along.
    type: list
    elements: dict
  xid_policy:
    description:
      - Content of files/xid_policy.yml.
      - By default the shipped one, which the controller sends along.
    type: dict
requirements:
  - pip on the controller, unless O(wheel) is given
notes:
  - Between the runs nothing of it is in memory.
seealso:
  - module: aiinfra.gpu_node.gpu_health
"""

EXAMPLES = r"""
- name: Take the timer, the code and its results away
  aiinfra.gpu_node.gpu_health_agent:
    state: absent

- name: See whether the timer runs the controller's code, and whether its last result is fresh
  aiinfra.gpu_node.gpu_health_agent:
    units:
      gpu-node-health.service: "{{ lookup('ansible.builtin.template', 'gpu-node-health.service.j2') }}"
      gpu-node-health.timer: "{{ lookup('ansible.builtin.template', 'gpu-node-health.timer.j2') }}"
    wheel_sha256: 959bf4adf6fe1308e4bd739e722236b0d1ec8392e2cefad33ff70c311380b9b6
  check_mode: true
  register: agent
"""

RETURN = r"""
changed_paths:
  description: What changed, or would.
  returned: success
  type: list
  elements: str
generation:
  description: Name of the folder with the code, a hash of it.
  returned: O(state=present)
  type: str
  sample: 3f1c52a90b7d4e68
findings:
  description:
    - C(health.timer) (does it run), C(health.last_run) (did the last run come to its end), C(health.state) (is the last
      result fresh and of this boot) and C(health.agent) (is everything as the role writes it), after the change.
  returned: O(state=present)
  type: list
  elements: dict
  contains:
    check:
      description: Name of the check.
      type: str
    target:
      description: Unit, file or V(node).
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
wheel_needed:
  description: Why the wheel has to be sent; empty when the environment is right.
  returned: O(state=present)
  type: str
"""

import json
import re
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _health_bundle,
    _health_install,
    _health_settings,
    _health_watch,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_venv import VenvError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import as_dicts
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner

_SHA256 = re.compile(r"^[0-9a-fA-F]{64}$")
UNITS = (_health_watch.SERVICE, _health_watch.TIMER)
#: Settings that have another name in the configuration file, where their unit belongs to it.
RENAMED = {"deadline": "deadline_s", "interval": "interval_s"}
ARGUMENT_SPEC = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "units": {"type": "dict", "default": {}},
    "timer": {"type": "bool", "default": True},
    "wheel": {"type": "path"},
    "wheel_sha256": {"type": "str"},
    "wheel_requirement": {"type": "str"},
    "cache_dir": {"type": "path", "default": "~/.cache/aiinfra.gpu_node"},
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "settings": {
        "type": "dict",
        "default": {},
        "apply_defaults": True,
        "options": {
            "profile": {"type": "raw", "default": "auto"},
            "expected": {"type": "str", "default": "auto"},
            "thresholds": {"type": "dict", "default": {}},
            "xid_overrides": {"type": "list", "elements": "dict", "default": []},
            "skip": {"type": "list", "elements": "dict", "default": []},
            "repaired_at": {"type": "str", "default": ""},
            "deadline": {"type": "float", "default": 10.0},
            "interval": {"type": "int", "default": 60},
            "nvml_library": {"type": "str", "default": ""},
            "kernel_log": {"type": "str", "default": "/dev/kmsg"},
            "textfile_dir": {"type": "str", "default": "/var/lib/prometheus/node-exporter"},
        },
    },
    "profiles": {"type": "list", "elements": "dict"},
    "xid_policy": {"type": "dict"},
}


def configuration(params: dict[str, Any]) -> tuple[str, _health_settings.Settings]:
    """Return the text of the configuration, and what it means.

    Raises:
        SettingsError: naming every mistake.
    """
    given = {RENAMED.get(name, name): value for name, value in params["settings"].items()}
    data = {"schema": _health_settings.SCHEMA, **given}
    data.update({name: params[name] for name in ("profiles", "xid_policy") if params[name] is not None})
    profiles, wanted = data.get("profiles") or [], given["profile"]
    parsed = _health_settings.parse(data)
    # Of the shipped profiles only those that may be chosen: the others would be read in each run for nothing.
    if isinstance(wanted, dict):
        data["profiles"] = []
    elif wanted != "auto":
        data["profiles"] = [profile for profile in profiles if profile.get("name") == wanted]
    return json.dumps(data, indent=1, sort_keys=True) + "\n", parsed


def present(module: AnsibleModule) -> None:
    """Bring the agent onto the node, or say what would change."""
    params, runner = module.params, SystemRunner()
    missing = [name for name in UNITS if name not in params["units"]]
    if missing or set(params["units"]) - set(UNITS):
        module.fail_json(msg=f"units are {', '.join(sorted(params['units'])) or 'none'}; wanted are {', '.join(UNITS)}")
    if not _SHA256.match(params["wheel_sha256"]):
        module.fail_json(msg=f"wheel_sha256 is {params['wheel_sha256']!r}; allowed are 64 hexadecimal digits")
    text, settings = configuration(params)
    wanted = _health_install.Wanted(
        bundle=_health_bundle.bundle(),
        config=text,
        units=params["units"],
        wheel_sha256=params["wheel_sha256"].lower(),
        python=params["python"],
        textfile_dir=settings.textfile_dir,
        timer=params["timer"],
        settle_s=settings.deadline_s + _health_settings.SLACK_S + 10,
    )
    found = _health_install.plan(wanted, runner)
    result = {
        "changed": bool(found.differs),
        "changed_paths": found.differs,
        "generation": wanted.bundle.generation,
        "wheel_needed": found.venv,
        "diff": list(found.diff),
    }
    left = found.differs
    if not module.check_mode and found.differs:
        if found.venv and not params["wheel"]:
            # Nothing was changed yet: the controller sends the wheel and asks again.
            module.exit_json(**{**result, "changed": False}, findings=[])
        _health_install.apply(wanted, found, params["wheel"] or "", runner)
        left = _health_install.plan(wanted, runner).differs
    seen = _health_watch.facts(runner, time.time())
    findings = _health_watch.findings(seen, params["timer"], settings.stale_after_s, left)
    module.exit_json(**result, findings=as_dicts(findings))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        required_if=[("state", "present", ["wheel_sha256", "units"])],
        supports_check_mode=True,
    )
    try:
        if module.params["state"] == "absent":
            module.exit_json(**_health_install.remove(SystemRunner(), list(UNITS[::-1]), check_mode=module.check_mode))
        present(module)
    except _health_settings.SettingsError as error:
        module.fail_json(msg=f"The health checks cannot be set up as asked: {error}")
    except (VenvError, _health_install.InstallError, _health_bundle.BundleError) as error:
        module.fail_json(msg=f"The health agent cannot be installed: {error}")
    except OSError as error:
        module.fail_json(msg=f"The health agent cannot be installed: {error}. Is the disk full, or mounted read-only?")


if __name__ == "__main__":
    main()
