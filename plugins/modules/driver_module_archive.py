#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_module_archive
short_description: Compiled kernel modules of a driver, packed on one node and loaded on others
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Compiling the modules of a driver takes minutes, loading them compiled takes seconds and needs neither a compiler
    nor kernel headers.
  - O(state=packed) writes one archive a kernel with DKMS's own tarball command. An archive appears whole or not at all.
  - O(state=loaded) makes the modules of archives those that their kernels load. An archive is refused before anything
    changes when it is not the file that was recorded (sha256), has anything but compiled modules of one kernel in it,
    or was compiled for another kernel (release, architecture, version magic). Where Secure Boot is enforced and the
    modules are not signed by an enrolled key, they are signed with this node's own enrolled key, or refused.
  - The package with the module's source has to be installed before; the archive holds no source.
attributes:
  check_mode:
    support: full
    description: Says what would change.
  diff_mode:
    support: full
    description: Shows the modules of each kernel.
  platform:
    support: full
    platforms: linux
    description: Any system with DKMS.
options:
  state:
    description: What to do.
    type: str
    choices: [packed, loaded, described]
    default: described
  dkms_name:
    description: DKMS's name of the module, such as V(nvidia-current). Needed for O(state=packed).
    type: str
  version:
    description: Its version. Needed for O(state=packed).
    type: str
  kernels:
    description: Releases of the kernels to pack for.
    type: list
    elements: str
    default: []
  directory:
    description: Where archives are written, on the node. Needed for O(state=packed).
    type: path
  archives:
    description: The archives to load or to look at, on the node.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      sha256:
        description: What it was recorded with. Needed for O(state=loaded).
        type: str
        default: ""
      kernel:
        description: Release of the kernel that it is wanted for. Needed for O(state=loaded).
        type: str
        default: ""
"""

EXAMPLES = r"""
- name: Pack what this node compiled
  aiinfra.gpu_node.driver_module_archive:
    state: packed
    dkms_name: nvidia-current
    version: 535.261.03
    kernels:
      - 6.1.0-57-amd64
    directory: /var/tmp/modules
  register: packed

- name: Load it on another node
  aiinfra.gpu_node.driver_module_archive:
    state: loaded
    archives:
      - path: /var/tmp/modules/nvidia-current-535.261.03-6.1.0-57-amd64-x86_64.tgz
        sha256: "{{ packed.archives[0].sha256 }}"
        kernel: 6.1.0-57-amd64
"""

RETURN = r"""
archives:
  description: The archives that were packed or looked at.
  returned: O(state=packed) or O(state=described)
  type: list
  elements: dict
  contains:
    file:
      description: Path on the node.
      type: str
    sha256:
      description: Checksum of the file.
      type: str
    dkms_name:
      description: DKMS's name of the module.
      type: str
    version:
      description: Its version.
      type: str
    kernel:
      description: Kernel release that it was compiled for.
      type: str
    arch:
      description: Architecture.
      type: str
    vermagic:
      description: Version magic of the modules.
      type: str
missing:
  description: Kernels for which DKMS has nothing compiled.
  returned: O(state=packed)
  type: list
  elements: str
loaded:
  description: Kernels whose modules changed.
  returned: O(state=loaded)
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _module_archive as archive
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, SystemRunner


def packed(runner: Runner, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Pack what is compiled and not packed yet."""
    name, version, directory = params["dkms_name"], params["version"], params["directory"]
    archives, missing, before, after = [], [], [], []
    for kernel in params["kernels"]:
        if archive.built_arch("/", name, version, kernel) is None:
            missing.append(kernel)
            continue
        known = archive.packed_already(runner, "/", name, version, kernel, directory)
        if known is not None:
            archives.append(known)
            before.append(f"{known['file']} {known['sha256']}\n")
        elif not check:
            archives.append(archive.pack(runner, "/", name, version, kernel, directory))
        line = archives[-1] if not check or known else {"file": f"archive of {name}/{version}", "sha256": kernel}
        after.append(f"{line['file']} {line['sha256']}\n")
    return {
        "changed": before != after,
        "archives": archives,
        "missing": missing,
        "diff": {"before": "".join(before), "after": "".join(after)},
    }


def loaded(runner: Runner, params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Load every archive, or say which would be."""
    # All of them are judged before the first one changes anything.
    found = [archive.judge(runner, "/", one["path"], one["sha256"], one["kernel"]) for one in params["archives"]]
    changed = [
        one["kernel"]
        for one in params["archives"]
        if archive.load(runner, "/", one["path"], one["sha256"], one["kernel"], check=check)
    ]
    lines = [f"{one} from {one.path}\n" for one in found if one.kernel in changed]
    return {"changed": bool(changed), "loaded": changed, "diff": {"before": "", "after": "".join(lines)}}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["packed", "loaded", "described"], "default": "described"},
            "dkms_name": {"type": "str"},
            "version": {"type": "str"},
            "kernels": {"type": "list", "elements": "str", "default": []},
            "directory": {"type": "path"},
            "archives": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "sha256": {"type": "str", "default": ""},
                    "kernel": {"type": "str", "default": ""},
                },
            },
        },
        required_if=[("state", "packed", ["dkms_name", "version", "directory"])],
        supports_check_mode=True,
    )
    runner = SystemRunner()
    try:
        if module.params["state"] == "packed":
            result = packed(runner, module.params, module.check_mode)
        elif module.params["state"] == "loaded":
            result = loaded(runner, module.params, module.check_mode)
        else:
            described = [archive.describe(runner, "/", one["path"]) for one in module.params["archives"]]
            result = {"changed": False, "archives": described}
    except archive.ArchiveError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
