"""Snapshots of simulated GPU nodes for tests of the health checks: a healthy one, and ways to change it."""

from __future__ import annotations

import dataclasses
import functools
import pathlib

import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_health as health
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_profile, _xid_policy
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_reading as r

FILES = pathlib.Path(__file__).parents[2] / "files"
DRIVER = "580.105.08"
BOOT = "5e1f7a70-0000-4000-8000-000000000001"
START = 1_700_000_000.0
UPTIME = 3600.0
BUSES = ("17", "2a", "3d", "5e", "a8", "bb", "ce", "e1")

#: A healthy H100 SXM at rest, as NVML tells it.
HEALTHY = {
    "name": "NVIDIA H100 80GB HBM3",
    "serial": "1",
    "board_part": "692-2G520-0200-000",
    "vbios": "96.00.99.00.01",
    "inforom_version": "G520.0200.00.05",
    "inforom_checksum": 7,
    "inforom_valid": True,
    "gsp_mode": {"enabled": True, "default": True},
    "gsp_version": DRIVER,
    "architecture": 9,
    "compute_capability": "9.0",
    "numa_node": 0,
    "persistence_mode": 1,
    "compute_mode": 0,
    "ecc_mode_current": 1,
    "ecc_mode_pending": 1,
    "mig_mode_current": 0,
    "mig_mode_pending": 0,
    "virtualization_mode": 0,
    "pstate": 0,
    "memory_total_mib": 81559,
    "memory_used_mib": 1,
    "memory_reserved_mib": 480,
    "bar1_total_mib": 131072,
    "bar1_used_mib": 1,
    "ecc_uncorrected_volatile": 0,
    "ecc_corrected_volatile": 0,
    "ecc_uncorrected_aggregate": 3,
    "ecc_corrected_aggregate": 9,
    "sram_threshold_exceeded": False,
    "remap_correctable": 0,
    "remap_uncorrectable": 0,
    "remap_pending": False,
    "remap_failure": False,
    "remap_bank_max": 2560,
    "remap_bank_high": 0,
    "remap_bank_partial": 0,
    "remap_bank_low": 0,
    "remap_bank_none": 0,
    "repair_channel_pending": False,
    "repair_tpc_pending": False,
    "unrepairable_memory": False,
    "recovery_action": 0,
    "reset_status": 0,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_gen_gpu_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_replay": 150,
    "pcie_nonfatal": 0,
    "pcie_fatal": 0,
    "pcie_correctable": 0,
    "pcie_bad_tlp": 0,
    "pcie_lcrc": 0,
    "nvlink_states": [1] * 18,
    "nvlink_count": 18,
    "nvlink_errors": {"replay": 5, "recovery": 0, "crc_flit": 40, "crc_data": 0},
    "fabric_state": 3,
    "fabric_status": 0,
    "fabric_clique": 0,
    "fabric_cluster": "00000000-0000-0000-0000-000000000000",
    "fabric_health_mask": 0b0001_10_10_10_10,
    "temperature": 29,
    "temperature_margin": 58,
    "tlimit_slowdown": -2,
    "tlimit_shutdown": -8,
    "tlimit_mem": 0,
    "memory_temperature": 37,
    "power_mw": 68570,
    "power_limit_mw": 700_000,
    "power_enforced_mw": 700_000,
    "power_default_mw": 700_000,
    "power_min_mw": 200_000,
    "power_max_mw": 700_000,
    "fan_count": 1,
    "fan_speed": [30],
    "clock_reasons": 1,
    "clock_ns_sw_thermal": 10**9,
    "clock_ns_hw_thermal": 0,
    "clock_ns_hw_brake": 0,
    "clock_sm_mhz": 345,
    "clock_mem_mhz": 2619,
    "clock_sm_max_mhz": 1980,
    "utilization_gpu": 0,
    "utilization_memory": 0,
    "processes": 0,
    "mig_devices": 0,
}
#: What such a card does not have. The fans are ours: without them no check of fans would be seen to work.
UNSUPPORTED = (
    "retired_sbe",
    "retired_dbe",
    "retired_pending",
    "nvlink5_errors",
    "temperature_slowdown",
    "temperature_mem_max",
)


def bus(index):
    return f"0000:{BUSES[index]}:00.0"


def reading(value):
    """Turn a value into a reading; a reading stays one."""
    return value if isinstance(value, r.Reading) else r.Reading(value)


def unread(why, code=None, note=""):
    return r.Reading(None, why, code, note)


def gpu(index=0, **changes):
    own = {key: changes.pop(key) for key in ("lost", "lost_code", "processes_list", "mig") if key in changes}
    values = {name: reading(value) for name, value in HEALTHY.items()}
    values["uuid"] = reading(f"GPU-{index:08d}")
    values["minor"] = reading(index)
    values.update({name: unread(r.UNSUPPORTED, 3) for name in UNSUPPORTED})
    values.update({name: reading(value) for name, value in changes.items()})
    return r.Gpu(
        index=index,
        bus_id=bus(index),
        lost=own.get("lost", False),
        lost_code=own.get("lost_code"),
        readings=values,
        processes=tuple(own.get("processes_list", ())),
        mig=tuple(own.get("mig", ())),
    )


def pci_gpu(index=0, **changes):
    values = {
        "address": bus(index),
        "device_id": "2330",
        "subsystem": "10de:16c1",
        "driver": "nvidia",
        "link_width": 16,
        "max_link_width": 16,
        "link_speed_gts": 32.0,
        "max_link_speed_gts": 32.0,
        "port_max_width": 16,
        "numa_node": 0,
        "aer": {"correctable": 0, "nonfatal": 0, "fatal": 0},
        "port_aer": {"correctable": 0, "nonfatal": 0, "fatal": 0},
    }
    return r.PciGpu(**{**values, **changes})


def snapshot(gpus=None, count=2, minutes=0, **changes):
    """Return a healthy node ``minutes`` after the first look, with parts of it replaced."""
    gpus = tuple(gpu(index) for index in range(count)) if gpus is None else tuple(gpus)
    values = {
        "taken_at": START + minutes * 60,
        "boot_id": BOOT,
        "uptime_s": UPTIME + minutes * 60,
        "root": True,
        "nvml": r.Nvml("ok", driver_version=DRIVER, count=len(gpus), library="/usr/lib/libnvidia-ml.so.1"),
        "gpus": gpus,
        "pci": tuple(pci_gpu(one.index) for one in gpus),
        "nvswitches": ("0000:05:00.0", "0000:06:00.0"),
        "software": r.Software(
            module_version=DRIVER,
            library_path="/usr/lib/libnvidia-ml.so.1",
            library_version=DRIVER,
            wanted_version=DRIVER,
            held=True,
            device_nodes=("/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{one.index}" for one in gpus)),
            cmdline="root=/dev/sda1 iommu=pt",
            iommu=True,
        ),
        "units": (
            r.Unit("nvidia-fabricmanager.service", "loaded", "active", "running", 0, 3000.0),
            r.Unit("nvidia-persistenced.service", "loaded", "active", "running", 0, 3000.0),
        ),
    }
    return r.Snapshot(**{**values, **changes})


@functools.lru_cache(maxsize=1)
def xid_data():
    return yaml.safe_load((FILES / "xid_policy.yml").read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=1)
def xids():
    return _xid_policy.parse(xid_data())


@functools.lru_cache(maxsize=1)
def profile_data():
    """Return name of the file to content of every shipped profile."""
    paths = sorted((FILES / "gpu_profiles").glob("*.yml"))
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths}


@functools.lru_cache(maxsize=1)
def profiles():
    return tuple(_gpu_profile.parse(data, name) for name, data in profile_data().items())


def shipped(name):
    return next(profile for profile in profiles() if profile.name == name)


def h100(**changes):
    """Return the profile of the healthy node with what only a captured profile says."""
    return dataclasses.replace(shipped("h100-sxm"), nvswitch=2, **changes)


def judge(node, history=None, wanted=None, **options):
    """Judge without letting a mistake in a check pass as a finding."""
    wanted = (h100(), *profiles()) if wanted is None else wanted
    return health.judge(node, wanted, xids(), history=history, strict=True, **options)


def settled(count=2, wanted=None, **options):
    """Return the history of a node that was seen healthy a minute before."""
    return judge(snapshot(count=count, minutes=-1), wanted=wanted, **options)[1]


def only(verdict, check, target=""):
    """Return the findings of one check, of one target where it is named."""
    return [item for item in verdict.findings if item.check == check and target in ("", *item.target.split())]


def one(verdict, check, target=""):
    found = only(verdict, check, target)
    assert len(found) == 1, found
    return found[0]
