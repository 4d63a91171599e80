#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_closure
short_description: Plan, install or remove an NVIDIA driver as a whole
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Used by the role P(aiinfra.gpu_node.nvidia_driver#role), which writes the files that a plan names.
  - O(state=planned) resolves every package that carries the driver to the exact version, simulates the one
    transaction, and refuses it when it would remove or move anything else, mix versions or origins, or bring a kernel.
    It changes nothing, not even package lists; a source that is not on the node yet is read in a private directory.
  - O(state=present) does what a plan says in one transaction, pins and holds exactly that set, and records it in
    C(/var/lib/gpu_node/driver.json). When a package script fails, packages, holds and pins are as before.
  - O(state=absent) removes exactly the recorded set and what came with it, and lets nouveau in again.
  - While record, packages, holds and pins agree with the request, a plan is answered from files and apt is not opened.
attributes:
  check_mode:
    support: full
    description: Says what would change; V(planned) never changes anything.
  diff_mode:
    support: full
    description: Shows packages with version and hold, and the pins.
  platform:
    support: full
    platforms: debian
    description: Debian and Ubuntu.
options:
  state:
    description: What to do.
    type: str
    choices: [planned, present, absent]
    required: true
  version:
    description: Exact driver version, such as V(535.261.03), or the full version of a package.
    type: str
    default: ""
  source:
    description: Where the driver comes from.
    type: str
    choices: [distro, cuda_repo, local_repo]
    default: distro
  flavour:
    description: Flavour of the kernel module.
    type: str
    choices: [open, proprietary, ""]
    default: ""
  decision:
    description:
      - What the filter P(aiinfra.gpu_node.driver_request#filter) said, which then wins over O(flavour).
      - C(flavour), C(fallback) (taken where the source lacks the first one in this version), and C(problems), which are
        told together with what is found here.
    type: dict
    default: {}
  components:
    description: What of the driver is wanted.
    type: list
    elements: str
    choices: [compute, video, mps, fabricmanager, imex]
    default: [compute]
  kernels:
    description: Releases of the kernels that can boot.
    type: list
    elements: str
    default: []
  repo_uri:
    description: Address of the repository without a login, unless O(source=distro).
    type: str
    default: ""
  repo_auth:
    description: Content of the login file that apt needs for it, as P(aiinfra.gpu_node.repo_address#filter) makes it.
    type: str
    default: ""
  repo_suite:
    description: Its suite; V(/) for a flat repository.
    type: str
    default: /
  repo_components:
    description: Its components; none for a flat repository.
    type: list
    elements: str
    default: []
  repo_key:
    description: Content of its armored public key, checked already.
    type: str
    default: ""
  allow_redirect:
    description: Whether another branch will do where the packages of the wanted one only forward to it.
    type: bool
    default: false
  prefer_prebuilt:
    description: Whether modules that the distribution built and signed are taken where they exist.
    type: bool
    default: true
  interrupt_users:
    description:
      - Whether the loaded driver may be replaced although processes use the GPUs. When not, they are listed and the
        plan is refused.
    type: bool
    default: false
  plan:
    description: What O(state=planned) returned.
    type: dict
  module_archives:
    description:
      - Archives of compiled modules for the plan, on the node, as M(aiinfra.gpu_node.driver_module_archive) packs them.
      - They are checked before anything changes. Where they serve every kernel that the packages would compile for,
        nothing is compiled, and they are loaded after the transaction; otherwise the packages compile as always.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      sha256:
        description: What it was recorded with.
        type: str
        required: true
      kernel:
        description: Release of the kernel that it is for.
        type: str
        required: true
"""

EXAMPLES = r"""
- name: Plan a driver
  aiinfra.gpu_node.driver_closure:
    state: planned
    version: 535.261.03
    flavour: proprietary
    kernels:
      - 6.1.0-57-amd64
  register: result

- name: Install it
  aiinfra.gpu_node.driver_closure:
    state: present
    plan: "{{ result.plan }}"

- name: Remove it again
  aiinfra.gpu_node.driver_closure:
    state: absent
"""

RETURN = r"""
plan:
  description: The plan.
  returned: O(state=planned)
  type: dict
  contains:
    version:
      description: Driver version that the node will have.
      type: str
    requested:
      description: Version that was asked for; another one only after an allowed redirect.
      type: str
    flavour:
      description: Flavour of the module.
      type: str
    roots:
      description: Packages that were asked for by name.
      type: list
      elements: str
    packages:
      description: Packages at the driver's version, with their full versions.
      type: dict
    independent:
      description: Packages of the driver whose version is their own.
      type: dict
    to_install:
      description: Packages that the transaction installs or moves, others that come along included.
      type: dict
    to_remove:
      description: Driver packages that have to go.
      type: list
      elements: str
    holds:
      description: Packages that are held.
      type: list
      elements: str
    already:
      description: Whether the node is as planned.
      type: bool
    dkms_name:
      description: Name of the module in DKMS; empty where only prebuilt modules are used.
      type: str
    needs_headers:
      description: Kernels that DKMS builds for.
      type: list
      elements: str
    files:
      description: Files that differ from what they should be, C(path) and C(content); no content where one should go.
      type: list
      elements: dict
    login_differs:
      description: Whether the repository's login file has to be written or removed; its content is nowhere in a result.
      type: bool
    pins_text:
      description: The preferences.
      type: str
    repair_first:
      description: Whether a killed transaction has to be repaired first; most other keys are then missing.
      type: bool
installed:
  description: Packages that were installed or moved, with their new version.
  returned: O(state=present) or O(state=absent)
  type: dict
stale_images:
  description: Kernels whose early boot image still keeps nouveau away, so that it has to be built again.
  returned: O(state=absent)
  type: list
  elements: str
removed:
  description: Packages that were removed.
  returned: O(state=present) or O(state=absent)
  type: list
  elements: str
loaded_kernels:
  description: Kernels whose modules came from O(module_archives).
  returned: O(state=present)
  type: list
  elements: str
repaired:
  description: What was repaired because an earlier run had been killed.
  returned: O(state=present) or O(state=absent)
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _os_release
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_refuse import Refusal
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_closure import Closure
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_files import let_nouveau_in
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_names import COMPONENTS, SOURCES
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._module_archive import ArchiveError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import TransactionError


def request(params: dict[str, Any]) -> dict[str, Any]:
    """Return the module's options as a request."""
    own = params["source"] != "distro"
    decision = params["decision"] or {"flavour": params["flavour"]}
    # The decision carries the key whose fingerprint was checked; reading it a second time could give another one.
    key = decision.get("key_text") or params["repo_key"]
    return {
        "version": params["version"],
        "source": params["source"],
        "flavours": [flavour for flavour in (decision.get("flavour"), decision.get("fallback")) if flavour],
        "components": params["components"],
        "kernels": params["kernels"],
        "repo_uri": params["repo_uri"] if own else "",
        "auth_text": params["repo_auth"] if own else "",
        "repo_suite": params["repo_suite"] if own else "",
        "repo_components": params["repo_components"] if own else [],
        "key_text": key.strip() + "\n" if own and key else "",
        "allow_redirect": params["allow_redirect"],
        "prefer_prebuilt": params["prefer_prebuilt"],
        "interrupt_users": params["interrupt_users"],
        "problems": list(decision.get("problems") or []),
    }


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what the state says and return the module's result."""
    closure = Closure(SystemRunner(), "/", _os_release.read("/"))
    if module.params["state"] == "planned":
        return {"changed": False, "plan": closure.plan(request(module.params))}
    if module.params["state"] == "present":
        outcome, files = closure.install(module.params["plan"], module.check_mode, module.params["module_archives"])
        for problem in closure.not_loaded:
            module.warn(f"Compiled modules could not be loaded and have to be compiled here: {problem}")
    else:
        outcome, files = closure.remove(module.check_mode)
    result = outcome.as_dict()
    if module.params["state"] == "absent":
        more, result["stale_images"] = let_nouveau_in("/", module.check_mode)
        files += more
        result["changed"] = bool(result["changed"] or more)
    result["diff"] = [result["diff"], *files]
    result["loaded_kernels"] = closure.loaded_kernels
    return result


def main() -> None:
    """Run the module."""
    choices = ["open", "proprietary", ""]
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["planned", "present", "absent"], "required": True},
            "version": {"type": "str", "default": ""},
            "source": {"type": "str", "choices": list(SOURCES), "default": "distro"},
            "flavour": {"type": "str", "choices": choices, "default": ""},
            "decision": {"type": "dict", "default": {}},
            "components": {"type": "list", "elements": "str", "choices": list(COMPONENTS), "default": ["compute"]},
            "kernels": {"type": "list", "elements": "str", "default": []},
            "repo_uri": {"type": "str", "default": ""},
            "repo_auth": {"type": "str", "default": "", "no_log": True},
            "repo_suite": {"type": "str", "default": "/"},
            "repo_components": {"type": "list", "elements": "str", "default": []},
            "repo_key": {"type": "str", "default": "", "no_log": False},
            "allow_redirect": {"type": "bool", "default": False},
            "prefer_prebuilt": {"type": "bool", "default": True},
            "interrupt_users": {"type": "bool", "default": False},
            "plan": {"type": "dict"},
            "module_archives": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "sha256": {"type": "str", "required": True},
                    "kernel": {"type": "str", "required": True},
                },
            },
        },
        required_if=[("state", "present", ["plan"])],
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except Refusal as refusal:
        module.fail_json(msg="Nothing was changed. " + " | ".join(refusal.problems), refusals=refusal.problems)
    except ArchiveError as error:
        module.fail_json(msg=f"Nothing was changed. nvidia_driver_module_cache: {error}")
    except TransactionError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
