"""Facts of a healthy node, from which a test takes what it needs and spoils one thing."""

from __future__ import annotations

import copy

VERSION = "535.261.03"
RUNNING = "6.1.0-41-amd64"
OTHER = "6.1.0-28-amd64"
MEMBERS = ("firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "nvidia-kernel-dkms", "nvidia-smi")
LOOSE = {"nvidia-modprobe": "535.161.07-1~deb12u1", "nvidia-persistenced": "535.171.04-1~deb12u1"}


def package(version, hold=True):
    """Return one package as driver_info tells it."""
    upstream = version.rsplit("-", 1)[0]
    return {
        "version": version,
        "upstream": upstream,
        "architecture": "amd64",
        "status": "installed",
        "hold": hold,
        "source": "",
    }


def kernel(release, running=False, version=VERSION, signer=""):
    """Return one bootable kernel; without a version it has no nvidia module."""
    module = {
        "name": "nvidia-current",
        "path": f"/lib/modules/{release}/updates/dkms/nvidia-current.ko",
        "indexed": True,
        "exists": True,
        "version": version,
        "signer": signer,
        "flavour": "proprietary",
        "fits": True,
    }
    return {
        "release": release,
        "image": "/boot/vmlinuz-" + release,
        "modules": True,
        "headers": True,
        "running": running,
        "nvidia": [module] if version else [],
        "initramfs": None,
    }


def choice(release):
    """Return a boot entry."""
    entry = f"gnulinux-advanced-x>gnulinux-{release}-advanced-x"
    return {"spec": entry, "found": True, "entry": entry, "title": release, "kernel": release}


def dkms(release, version=VERSION, state="installed", differs=False):
    """Return one DKMS entry."""
    return {
        "module": "nvidia-current",
        "version": version,
        "kernel": release,
        "arch": "x86_64",
        "state": state,
        "differs": differs,
        "note": "",
    }


def healthy():
    """Return a node on which nothing is wrong: two kernels, one driver, two GPUs."""
    packages = {name: package(VERSION + "-1") for name in MEMBERS}
    packages.update({name: package(version) for name, version in LOOSE.items()})
    pins = [
        {
            "file": "/etc/apt/preferences.d/x.pref",
            "kind": "version",
            "priority": 1001,
            "packages": [n],
            "pin": p["version"],
        }
        for n, p in packages.items()
    ]
    facts = {
        "os": {"id": "debian", "version": "12"},
        "machine": "x86_64",
        "running_kernel": RUNNING,
        "kernels": [kernel(OTHER), kernel(RUNNING, running=True)],
        "boot": {
            "loader": "grub",
            "config": "/boot/grub/grub.cfg",
            "configured": "saved",
            "effective": "${saved_entry}",
            "default": choice(RUNNING),
            "one_shot": None,
            "next_kernel": RUNNING,
            "entries": [],
        },
        "kernel_packages": {
            "linux-image-amd64": package("6.1.158-1", hold=False),
            "linux-headers-amd64": package("6.1.158-1", hold=False),
            "linux-image-" + RUNNING: package("6.1.158-1", hold=False),
            "linux-headers-" + RUNNING: package("6.1.158-1", hold=False),
        },
        "candidates": {},
        "packages": packages,
        "package_database": {"unfinished": {}, "interrupted": False},
        "pins": pins,
        "unattended_upgrades": {
            "installed": True,
            "enabled": True,
            "blacklist": ["nvidia-", "libnvidia-", "libcuda", "firmware-nvidia"],
        },
        "dkms": {
            "source": "tree",
            "entries": [dkms(OTHER), dkms(RUNNING)],
            "orphans": [],
            "error": "",
            "switched_off": False,
        },
        "loaded": {"version": VERSION, "flavour": "proprietary"},
        "library": {
            "version": VERSION,
            "files": ["/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so." + VERSION],
        },
        "nvml": {"code": 0, "name": "SUCCESS", "loaded": VERSION, "library": VERSION, "action": ""},
        "nouveau": {"blacklisted_by": ["/etc/modprobe.d/gpu-node-nouveau.conf"], "loaded": False, "bound": []},
        "secure_boot": {
            "state": "disabled",
            "setup_mode": False,
            "shim_validation": True,
            "source": "mokutil",
            "enforced": False,
        },
        "gpus": [
            {"address": a, "vendor": "10de", "device": "2330", "class": "030200", "subsystem": "", "driver": "nvidia"}
            for a in ("0000:17:00.0", "0000:65:00.0")
        ],
        "nvswitches": [],
        "fabricmanager": {
            "present": False,
            "link": False,
            "load": "",
            "enabled": "",
            "active": "",
            "result": "",
            "reload_needed": False,
            "config": None,
            "config_newer": False,
            "driven": [],
            "users": [],
            "subnet_manager": False,
        },
        "persistenced": {
            "packaging": "debian",
            "vendor_exec": "/usr/bin/nvidia-persistenced --user nvpd",
            "installable": True,
            "load": "loaded",
            "enabled": "enabled",
            "active": "active",
            "result": "success",
            "command": "/usr/bin/nvidia-persistenced --user nvpd",
            "reload_needed": False,
            "drop_in": None,
            "modes": {"00000000:17:00.0": "Enabled", "00000000:65:00.0": "Enabled"},
            "modes_error": "",
        },
        "record": {
            "version": VERSION,
            "source": "distro",
            "flavour": "proprietary",
            "packages": dict.fromkeys(MEMBERS, VERSION + "-1"),
            "independent": dict(LOOSE),
        },
        "kernel_hold": None,
        "reboot": {"required": False, "reasons": []},
    }
    return copy.deepcopy(facts)
