#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_info
short_description: Tell where the NVIDIA driver stands on a node
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Reads packages with their holds and pins, bootable kernels with headers and the driver's module in each, what is
    loaded, what the boot loader will start, Secure Boot, DKMS, nouveau, the GPUs on PCI, and the unit of
    nvidia-persistenced.
  - Changes nothing, starts nothing, and opens no package cache unless O(kernel_candidates) has something to ask.
  - Everything is plain data, for the filters P(aiinfra.gpu_node.driver_findings#filter),
    P(aiinfra.gpu_node.kernel_findings#filter) and P(aiinfra.gpu_node.persistenced_findings#filter).
extends_documentation_fragment:
  - aiinfra.gpu_node.read_only
attributes:
  platform:
    support: full
    platforms: debian
    description: Debian and Ubuntu.
options:
  check_initramfs:
    description:
      - Whether every kernel's early boot image is searched for nouveau.
      - Takes seconds for each image.
    type: bool
    default: false
  check_dkms_status:
    description:
      - Whether C(dkms status) is run as well as reading DKMS's tree.
      - Takes seconds where big modules are compared.
    type: bool
    default: false
  check_persistence:
    description:
      - Whether the driver is asked for the persistence mode of the GPUs.
      - Takes seconds where the GPUs sleep.
    type: bool
    default: false
  kernel_candidates:
    description:
      - Whether apt's cache is asked about headers that bootable kernels lack, and about kernel metas that are held.
      - Where there are none, the cache is not opened.
    type: bool
    default: false
  check_holders:
    description: Whether to look for the processes that hold the GPUs; reads the open files of every process.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Look at the driver
  aiinfra.gpu_node.driver_info:
  register: node

- name: Stop unless the next boot brings the driver up
  ansible.builtin.assert:
    that: findings | aiinfra.gpu_node.blockers | length == 0
  vars:
    findings: "{{ node.driver | aiinfra.gpu_node.driver_findings({'version': '535.261.03'}) }}"
"""

RETURN = r"""
driver:
  description: All facts.
  returned: success
  type: dict
  contains:
    os:
      description: C(id), C(version), C(codename) and C(name) from os-release.
      type: dict
    machine:
      description: Architecture as C(uname -m) says it, by which DKMS names what it compiles.
      type: str
    running_kernel:
      description: Release of the running kernel.
      type: str
    kernels:
      description: Bootable kernels, oldest first.
      type: list
      elements: dict
      contains:
        release:
          description: What C(uname -r) says when it runs.
          type: str
        image:
          description: Path of the image.
          type: str
        modules:
          description: Whether its directory below C(/lib/modules) exists.
          type: bool
        headers:
          description: Whether modules can be built for it.
          type: bool
        running:
          description: Whether it runs now.
          type: bool
        nvidia:
          description:
            - The driver's main module in this kernel, under each name that packagings give it.
            - C(name), C(path), C(indexed) (its C(modules.dep) knows it), C(exists), C(version), C(signer), C(flavour)
              (V(open), V(proprietary) or empty) and C(fits) (built for this kernel).
          type: list
          elements: dict
        initramfs:
          description: C(image), C(nouveau), C(blacklists) and C(error); null unless O(check_initramfs).
          type: dict
    boot:
      description: What GRUB will start.
      type: dict
      contains:
        loader:
          description: V(grub), or V(unknown) where no C(grub.cfg) is readable.
          type: str
        config:
          description: Path of C(grub.cfg).
          type: str
        configured:
          description: C(GRUB_DEFAULT) in C(/etc/default/grub) and C(grub.d).
          type: str
        effective:
          description: The default that C(grub.cfg) itself sets.
          type: str
        saves_choice:
          description: Whether an entry that is started becomes the default (C(GRUB_SAVEDEFAULT)).
          type: bool
        default:
          description: Default entry as C(spec), C(found), C(entry), C(title) and C(kernel).
          type: dict
        one_shot:
          description: Entry for the next boot alone, in the same form; null where none is set.
          type: dict
        next_kernel:
          description: Release that the next boot starts; null where that is unknown.
          type: str
        entries:
          description: Every kernel entry as C(entry) (for grub-set-default), C(title) and C(kernel).
          type: list
          elements: dict
    kernel_packages:
      description: Installed kernel packages; values as in RV(driver.packages).
      type: dict
    candidates:
      description:
        - Of the packages that apt was asked about, C(installed), C(candidate), and C(newer) as C(version) and
          C(security).
      type: dict
    packages:
      description:
        - Driver packages on the disk, by name, as C(version), C(upstream), C(architecture), C(status), C(hold) and
          C(source).
      type: dict
    package_database:
      description: C(unfinished) packages with their state, and whether dpkg was C(interrupted).
      type: dict
    pins:
      description: Version pins in apt's preferences as C(file), C(packages), C(kind), C(pin) and C(priority).
      type: list
      elements: dict
    unattended_upgrades:
      description: C(installed), C(enabled) and the merged C(blacklist).
      type: dict
    dkms:
      description:
        - C(entries) (C(module), C(version), C(kernel), C(arch), C(state), C(differs), C(note)), C(orphans) (C(module),
          C(version), C(path)), C(source) (V(tree) or V(status)) and C(error).
        - C(switched_off) says whether C(/etc/dkms/no-autoinstall) keeps DKMS from building for new kernels.
      type: dict
    loaded:
      description: C(version) and C(flavour) of the loaded module; version null where none is.
      type: dict
    library:
      description: C(version) of C(libnvidia-ml) by its file name, and its C(files).
      type: dict
    nvml:
      description:
        - What NVML's initialisation answers by these two versions, as C(code), C(name), C(loaded), C(library) and
          C(action).
        - Code 0 is success, 9 no driver loaded, 12 no library, 18 library and module of different versions.
      type: dict
    nouveau:
      description: C(blacklisted_by) (files), C(loaded), and the addresses of GPUs to which it is C(bound).
      type: dict
    secure_boot:
      description:
        - C(state), C(setup_mode), C(shim_validation), C(source) and C(enforced).
        - Where it is enforced also C(signers) and the node's signing C(keys).
      type: dict
    gpus:
      description: NVIDIA GPUs on PCI as C(address), C(vendor), C(device), C(class), C(subsystem) and bound C(driver).
      type: list
      elements: dict
    nvswitches:
      description: NVSwitches in the same form.
      type: list
      elements: dict
    persistenced:
      description:
        - The unit as C(packaging), C(vendor_exec), C(installable), C(load), C(enabled), C(active), C(result),
          C(command), C(reload_needed), C(drop_in), and with O(check_persistence) C(modes) and C(modes_error).
      type: dict
    fabricmanager:
      description:
        - The unit of NVIDIA's fabric manager as C(present), C(link), C(load), C(enabled), C(active), C(result),
          C(reload_needed), C(config), C(config_newer), C(users) of the GPUs where the unit is there.
        - C(driven) has the NVSwitches that the driver has taken, C(subnet_manager) says whether nvlsm is installed.
      type: dict
    record:
      description: Content of C(/var/lib/gpu_node/driver.json); null where there is none.
      type: dict
    kernel_hold:
      description: Content of C(/var/lib/gpu_node/kernel_hold.json); null where there is none.
      type: dict
    rollback:
      description:
        - What was C(attempted) last and did not serve, what is C(active) instead, the C(reason) and the C(time).
        - Null where the node never went back to its last known good state.
      type: dict
    holders:
      description: Processes that hold the GPUs; null unless O(check_holders).
      type: list
      elements: dict
      contains:
        pid:
          description: Process id.
          type: int
        name:
          description: Its name, of which the kernel keeps 15 characters.
          type: str
        devices:
          description: The NVIDIA devices that it has open.
          type: list
          elements: str
        unit:
          description: Its systemd unit; empty where it is in none.
          type: str
        container:
          description: Id of its container; empty where it is in none.
          type: str
        pod:
          description: Its Kubernetes pod as C(uid), C(namespace) and C(name); null where it is in none.
          type: dict
        service:
          description: Whether it is a daemon that serves the GPUs, which loses no work when it is stopped.
          type: bool
    reboot:
      description: Whether a reboot is C(required) for the installed driver to be in force, and the C(reasons).
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_info import collect
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "check_initramfs": {"type": "bool", "default": False},
            "check_dkms_status": {"type": "bool", "default": False},
            "check_persistence": {"type": "bool", "default": False},
            "kernel_candidates": {"type": "bool", "default": False},
            "check_holders": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    facts = collect(
        SystemRunner(),
        initramfs=module.params["check_initramfs"],
        dkms_status=module.params["check_dkms_status"],
        persistence=module.params["check_persistence"],
        kernel_candidates=module.params["kernel_candidates"],
        holders=module.params["check_holders"],
    )
    module.exit_json(changed=False, driver=facts)


if __name__ == "__main__":
    main()
