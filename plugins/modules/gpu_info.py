#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read the state of a node's GPUs
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Reads every GPU through NVML, in a child process that is killed at a deadline, so that a driver that hangs is a
    result and not a play that hangs.
  - Reads beside it what the kernel shows of the GPUs on PCI, the processes at them, the driver's units and the driver's
    errors in the kernel's log of this boot.
  - Judges nothing and changes nothing. A GPU that is lost, a library that is missing and a call that hangs do not make
    the module fail; they are in RV(snapshot.nvml) and RV(snapshot.gpus).
  - To be run as root; NVML and the kernel keep some of it from others.
extends_documentation_fragment:
  - aiinfra.gpu_node.read_only
attributes:
  platform:
    support: full
    platforms: linux
    description: Linux with systemd. What the role nvidia_driver recorded is there on Debian and Ubuntu.
options:
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
requirements:
  - nvidia-ml-py on the node, in the Python that O(nvml_python) names
notes:
  - The default of O(deadline) is ours. The operator's validator has none, the node health check of clusters 30 seconds;
    the timer of this collection runs each minute.
"""

EXAMPLES = r"""
- name: Read the GPUs
  aiinfra.gpu_node.gpu_info:
  register: node

- name: Show what could not be read of the first one, and why
  ansible.builtin.debug:
    msg: "{{ node.snapshot.gpus[0].readings | dict2items | rejectattr('value.why', 'eq', '') | list }}"
"""

RETURN = r"""
snapshot:
  description: The node at one instant.
  returned: success
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
      description: NVML as a whole.
      type: dict
      contains:
        state:
          description:
            - V(ok), V(absent) (no library), V(not_loaded) (no driver), V(mismatch) (library and module of different
              versions), V(timeout) (a call did not return), V(no_binding) (the Python has no C(nvidia-ml-py)) or
              V(error).
          type: str
        code:
          description: NVML's code of the call that failed; null where there is none.
          type: int
        text:
          description: What the error says.
          type: str
        library:
          description: Path of the library that was opened.
          type: str
        driver_version:
          description: Version of the driver by NVML's word.
          type: str
        nvml_version:
          description: Version of NVML.
          type: str
        cuda_version:
          description: Newest CUDA that the driver can do, such as V(12.2).
          type: str
        count:
          description: GPUs that NVML counts; null where it did not tell.
          type: int
        hung_in:
          description: Call, and GPU where there is one, that did not return; empty where all did.
          type: str
        duration_s:
          description: Seconds that the child ran.
          type: float
        calls:
          description: NVML calls that were made.
          type: int
    gpus:
      description: The GPUs that NVML counts.
      type: list
      elements: dict
      contains:
        index:
          description: NVML's index.
          type: int
        bus_id:
          description: PCI address as sysfs writes it; empty where it is not known.
          type: str
        lost:
          description: Whether it cannot be talked to; nothing was asked after the call that said so.
          type: bool
        lost_code:
          description: The code that said so, such as V(15) (lost) or V(16) (reset required); null for others.
          type: int
        readings:
          description:
            - What was read, by name, each with the keys below. The units are in the names.
            - "Identity: C(name), C(uuid), C(serial), C(minor), C(board_part), C(vbios), C(inforom_version),
              C(inforom_checksum), C(inforom_valid), C(gsp_mode) (C(enabled) and C(default)), C(gsp_version),
              C(architecture), C(compute_capability), C(numa_node)."
            - "Modes: C(persistence_mode), C(compute_mode) (0 default, 1 thread, 2 prohibited, 3 exclusive process),
              C(ecc_mode_current), C(ecc_mode_pending), C(mig_mode_current), C(mig_mode_pending),
              C(virtualization_mode), C(pstate)."
            - "Memory: C(memory_total_mib), C(memory_used_mib), C(memory_reserved_mib), C(bar1_total_mib),
              C(bar1_used_mib), C(ecc_uncorrected_volatile), C(ecc_corrected_volatile), C(ecc_uncorrected_aggregate),
              C(ecc_corrected_aggregate), C(sram_threshold_exceeded), C(remap_correctable), C(remap_uncorrectable),
              C(remap_pending), C(remap_failure), C(remap_bank_max), C(remap_bank_high), C(remap_bank_partial),
              C(remap_bank_low), C(remap_bank_none), C(retired_sbe), C(retired_dbe), C(retired_pending),
              C(repair_channel_pending), C(repair_tpc_pending), C(unrepairable_memory), C(recovery_action),
              C(reset_status)."
            - "PCIe: C(pcie_gen), C(pcie_gen_max), C(pcie_gen_gpu_max), C(pcie_width), C(pcie_width_max),
              C(pcie_replay), C(pcie_nonfatal), C(pcie_fatal), C(pcie_correctable), C(pcie_bad_tlp), C(pcie_lcrc)."
            - "NVLink: C(nvlink_states) (1 active and 0 inactive, for each link that there is), C(nvlink_count),
              C(nvlink_errors) and C(nvlink5_errors) (sums over the active links), C(fabric_state) (3 completed),
              C(fabric_status), C(fabric_clique), C(fabric_cluster), C(fabric_health_mask)."
            - "Heat and power: C(temperature), C(temperature_margin), C(tlimit_slowdown), C(tlimit_shutdown),
              C(tlimit_mem), C(memory_temperature), C(temperature_slowdown), C(temperature_mem_max) (degrees Celsius),
              C(power_mw), C(power_limit_mw), C(power_enforced_mw), C(power_default_mw), C(power_min_mw),
              C(power_max_mw), C(fan_count), C(fan_speed) (percent, for each fan), C(clock_reasons) (bit mask),
              C(clock_ns_sw_thermal), C(clock_ns_hw_thermal), C(clock_ns_hw_brake), C(clock_sm_mhz), C(clock_mem_mhz),
              C(clock_sm_max_mhz), C(utilization_gpu), C(utilization_memory)."
            - "Occupants: C(processes) and C(mig_devices), how many there are."
          type: dict
          contains:
            value:
              description: The value; null where there is none.
              type: raw
            why:
              description:
                - Empty when it was read, else V(unsupported), V(no_symbol) (the driver's library has no such
                  function), V(no_permission) (not root), V(failed) or V(not_reached) (the child was stopped, or the
                  GPU lost, before).
              type: str
            code:
              description: NVML's code where there is one.
              type: int
            note:
              description: What has to be known about the value, or what the error says.
              type: str
        processes:
          description: Its users by the driver's word.
          type: list
          elements: dict
          contains:
            pid:
              description: Process id.
              type: int
            used_mib:
              description: GPU memory that it holds; null where the driver does not tell.
              type: int
            kind:
              description: V(compute), V(graphics) or V(mps).
              type: str
            exists:
              description: Whether there is such a process.
              type: bool
            name:
              description: Its name.
              type: str
            unit:
              description: Its systemd unit; empty where it is in none.
              type: str
        mig:
          description: Its MIG devices.
          type: list
          elements: dict
          contains:
            index:
              description: Place on the GPU.
              type: int
            uuid:
              description: Its UUID.
              type: str
            profile_name:
              description: Such as V(1g.10gb).
              type: str
            memory_mib:
              description: Its memory.
              type: int
            readings:
              description: What else was read, in the form of RV(snapshot.gpus[].readings).
              type: dict
    pci:
      description: GPUs that sysfs shows; values are null where it has none.
      type: list
      elements: dict
      contains:
        address:
          description: PCI address.
          type: str
        device_id:
          description: Four hexadecimal digits.
          type: str
        subsystem:
          description: Board as C(vendor:device).
          type: str
        driver:
          description: Kernel driver that is bound to it.
          type: str
        link_width:
          description: Lanes in use.
          type: int
        max_link_width:
          description: Lanes of the GPU.
          type: int
        link_speed_gts:
          description: Speed in use, in GT/s; low while idle.
          type: float
        max_link_speed_gts:
          description: Speed of the GPU.
          type: float
        port_max_width:
          description: Lanes of the port above it.
          type: int
        numa_node:
          description: Its NUMA node; V(-1) where the firmware does not tell.
          type: int
        aer:
          description: Errors that it counted as C(correctable), C(nonfatal) and C(fatal).
          type: dict
        port_aer:
          description: The same of the port above it.
          type: dict
    nvswitches:
      description: Addresses of the NVSwitches on PCI.
      type: list
      elements: str
    software:
      description: The software below NVML.
      type: dict
      contains:
        module_version:
          description: Version of the loaded module; null where none is.
          type: str
        library_path:
          description: File of the library.
          type: str
        library_version:
          description: Its version, by its file name.
          type: str
        wanted_version:
          description: Version that the role nvidia_driver recorded; null where it never ran.
          type: str
        held:
          description: Whether every recorded package is held; null without a record.
          type: bool
        nouveau_loaded:
          description: Whether nouveau is loaded.
          type: bool
        device_nodes:
          description: The driver's device nodes.
          type: list
          elements: str
        cmdline:
          description: The kernel's command line.
          type: str
        iommu:
          description: Whether devices are in IOMMU groups; null where the kernel does not tell.
          type: bool
    units:
      description: nvidia-persistenced, nvidia-fabricmanager, nvidia-imex and nvidia-dcgm.
      type: list
      elements: dict
      contains:
        name:
          description: Name of the unit.
          type: str
        load_state:
          description: V(loaded), V(not-found), V(masked); empty where systemd did not answer.
          type: str
        active_state:
          description: V(active), V(inactive), V(failed) and so on.
          type: str
        sub_state:
          description: V(running), V(dead) and so on.
          type: str
        restarts:
          description: How often systemd restarted it by itself.
          type: int
        since_s:
          description: Seconds since it became active; null while it is not.
          type: float
    occupants:
      description:
        - Processes by the kernel's word. C(dstate) hang in the driver, C(zombies) have ended and still count as users
          (both as C(pid) and C(name)); C(holders) have a device open, in the form of
          RV(aiinfra.gpu_node.driver_info#module:driver.holders).
      type: dict
    log:
      description: What the driver wrote to the kernel's log in this boot, oldest first.
      type: list
      elements: dict
      contains:
        at:
          description: Seconds since the boot.
          type: float
        kind:
          description: V(xid), V(off_bus) (fallen off the bus, and no line has a number) or V(reset_required).
          type: str
        xid:
          description: The number; null where there is none.
          type: int
        bus_id:
          description: PCI address; empty where the lines have none.
          type: str
        text:
          description: The lines, joined.
          type: str
        fatal:
          description: Severity in the text of NVLink 5 errors; null for others.
          type: bool
        injected:
          description: Whether the error was injected for a test.
          type: bool
    log_error:
      description: Why the log could not be read; empty when it could.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner

#: Seconds.
_DEADLINES = (1.0, 300.0)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "nvml_python": {"type": "path"},
            "nvml_library": {"type": "path"},
            "deadline": {"type": "float", "default": 10.0},
            "kernel_log": {"type": "path", "default": "/dev/kmsg"},
        },
        supports_check_mode=True,
    )
    deadline = module.params["deadline"]
    if not _DEADLINES[0] <= deadline <= _DEADLINES[1]:
        module.fail_json(msg="deadline is {:g}; allowed are {:g} to {:g} seconds".format(deadline, *_DEADLINES))
    snapshot = _gpu_snapshot.collect(
        SystemRunner(),
        python=module.params["nvml_python"] or "",
        library=module.params["nvml_library"] or "",
        deadline_s=deadline,
        kmsg=module.params["kernel_log"],
    )
    module.exit_json(changed=False, snapshot=snapshot.as_dict())


if __name__ == "__main__":
    main()
