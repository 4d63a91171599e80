# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Where the NVIDIA driver stands on a node: one plain dictionary, read without changing or starting anything.

Nearly all of it is read from files; what needs a program is asked with one call each (modinfo for all kernels together,
systemctl, mokutil, apt-config), so that the whole takes a fraction of a second. What takes seconds is done on request.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _dkms,
    _dpkg,
    _driver_names,
    _driver_pins,
    _fabricmanager,
    _gpu_holders,
    _grub,
    _initramfs,
    _kernel_names,
    _kernel_policy,
    _kernels,
    _modules_index,
    _os_release,
    _pci,
    _persistenced,
    _secureboot,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._loaded_module import loaded_facts
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, list_dir, path_below, read_text

RECORD = "var/lib/gpu_node/driver.json"
KERNEL_HOLD = "var/lib/gpu_node/kernel_hold.json"
#: A mark that is there while nothing runs belongs to a package transaction that a kill cut.
TRANSACTION = "var/lib/gpu_node/transaction.json"
#: What was tried and did not serve; written when a node went back to its last known good state.
ROLLBACK = "var/lib/gpu_node/rollback.json"
LIBRARY_DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib64",
)
MODPROBE_DIRECTORIES = (
    "etc/modprobe.d",
    "run/modprobe.d",
    "usr/local/lib/modprobe.d",
    "usr/lib/modprobe.d",
    "lib/modprobe.d",
)
#: What NVML's initialisation answers in each state, by its own numbers.
NVML_OK, NVML_NO_DRIVER, NVML_NO_LIBRARY, NVML_MISMATCH = 0, 9, 12, 18
_NVML_NAMES = {
    NVML_OK: "SUCCESS",
    NVML_NO_DRIVER: "DRIVER_NOT_LOADED",
    NVML_NO_LIBRARY: "LIBRARY_NOT_FOUND",
    NVML_MISMATCH: "LIB_RM_VERSION_MISMATCH",
}

_LIBRARY = re.compile(r"^libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)*)$")
_BLACKLIST = re.compile(
    r"^\s*(?:blacklist\s+nouveau\s*$|install\s+nouveau\s+\S*/(?:false|true)\b|alias\s+nouveau\s+off\s*$)", re.MULTILINE
)
_BLACKLIST_CMDLINE = re.compile(
    r"(?:^|\s)(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=\S*\bnouveau\b"
)
#: Priority of an ordinary archive; apt does not take newer versions from below by itself.
_AUTOMATIC = 500
_APT_BLACKLIST = re.compile(r'^Unattended-Upgrade::Package-Blacklist::\S* "(.*)";$', re.MULTILINE)
_APT_ENABLED = re.compile(r'^APT::Periodic::Unattended-Upgrade "(.*)";$', re.MULTILINE)


def collect(
    runner: Runner,
    root: str = "/",
    running: str | None = None,
    initramfs: bool = False,
    dkms_status: bool = False,
    persistence: bool = False,
    kernel_candidates: bool = False,
    holders: bool = False,
) -> dict[str, Any]:
    """Return the facts; the module driver_info documents every key.

    Args:
        runner: Runs the few commands.
        root: Stands for ``/``.
        running: Release of the running kernel; asked from the kernel when None.
        initramfs: Whether to look for nouveau in every kernel's early boot image (seconds each).
        dkms_status: Whether to run ``dkms status`` as well as reading DKMS's tree.
        persistence: Whether to ask the driver for the GPUs' persistence mode.
        kernel_candidates: Whether to ask apt's cache about missing headers and held kernel metas, where there are any.
        holders: Whether to look for processes that hold the GPUs, through every open file of the node.
    """
    release = running or os.uname().release
    devices = _pci.nvidia_devices(root)
    kernels = kernel_facts(runner, root, release, initramfs)
    loaded, library = loaded_facts(root), library_facts(root)
    packages = package_facts(root, _driver_names.is_family)
    gpus = [device.as_dict() for device in devices if device.is_gpu]
    nouveau = nouveau_facts(root, gpus)
    nvml = nvml_state(loaded["version"], library["version"])
    # A driver that cannot work is not asked: the answer is known, and a client may hang.
    ask_modes = persistence and bool(gpus) and nvml["code"] == NVML_OK
    kernel_packages = package_facts(root, _kernel_names.is_kernel_package)
    asked = _kernel_policy.questions(kernels, kernel_packages) if kernel_candidates else []
    secure_boot = _secureboot.secure_boot(runner, root)
    if secure_boot["enforced"]:
        secure_boot["signers"] = _secureboot.trusted_signers(runner, root)
        secure_boot["keys"] = _secureboot.signing_keys(runner, root)
    record = read_json(root, RECORD)
    return {
        "os": _os_release.read(root),
        "machine": os.uname().machine,
        "running_kernel": release,
        "kernels": kernels,
        "boot": _grub.boot_facts(root),
        "kernel_packages": kernel_packages,
        "candidates": candidate_facts(runner, asked),
        "packages": packages,
        "package_database": {
            "unfinished": {package.name: package.status for package in _dpkg.unfinished(root)},
            "interrupted": _dpkg.interrupted(root),
            "transaction": read_json(root, TRANSACTION),
        },
        "pins": [pin for pin in _driver_pins.read(root) if pin["kind"] == "version"],
        "unattended_upgrades": unattended_facts(runner, root),
        "dkms": _dkms.dkms_facts(runner, root, dkms_status),
        "loaded": loaded,
        "library": library,
        "nvml": nvml,
        "nouveau": nouveau,
        "secure_boot": secure_boot,
        "gpus": gpus,
        "nvswitches": [device.as_dict() for device in devices if device.is_nvswitch],
        "persistenced": _persistenced.unit_facts(runner, root, ask_modes),
        "fabricmanager": _fabricmanager.unit_facts(runner, root),
        "record": record,
        "kernel_hold": read_json(root, KERNEL_HOLD),
        "rollback": read_json(root, ROLLBACK),
        "holders": _gpu_holders.holders(root) if holders else None,
        "reboot": reboot_facts(loaded, library["version"], record, gpus, bool(nouveau["bound"])),
    }


def kernel_facts(runner: Runner, root: str, running: str, initramfs: bool) -> list[dict[str, Any]]:
    """Return the bootable kernels, oldest first, each with the nvidia modules that its index knows."""
    kernels = _kernels.bootable(root)
    modules = {kernel.release: _modules_index.indexed(kernel.release, root) for kernel in kernels}
    _modules_index.describe(runner, modules, root)
    return [
        dict(
            kernel.as_dict(),
            running=kernel.release == running,
            nvidia=modules[kernel.release],
            initramfs=_initramfs.inspect(runner, kernel.release, root) if initramfs else None,
        )
        for kernel in kernels
    ]


def package_facts(root: str, wanted: Any) -> dict[str, dict[str, Any]]:
    """Return the packages on the disk by name; one of a second architecture as ``name:architecture``."""
    found: dict[str, dict[str, Any]] = {}
    for package in sorted(_dpkg.read_packages(root, wanted), key=lambda item: item.architecture == "i386"):
        name = package.name if package.name not in found else f"{package.name}:{package.architecture}"
        found[name] = package.as_dict()
    return dict(sorted(found.items()))


def library_facts(root: str) -> dict[str, Any]:
    """Return NVML's library by its file name: ``version`` (None where none, the newest where many) and ``files``."""
    files: list[tuple[str, str]] = []
    for directory in LIBRARY_DIRECTORIES:
        matches = [_LIBRARY.match(name) for name in list_dir(root, directory)]
        files.extend((match.group(1), f"/{directory}/{match.group(0)}") for match in matches if match)
    files.sort(key=lambda item: [int(part) for part in item[0].split(".")])
    return {"version": files[-1][0] if files else None, "files": [path for _version, path in files]}


def nvml_state(loaded: str | None, library: str | None) -> dict[str, Any]:
    """Return what NVML will answer, by the versions of its two halves, and the action that mends it."""
    if library is None:
        code, action = NVML_NO_LIBRARY, "install the driver's libraries"
    elif loaded is None:
        code, action = NVML_NO_DRIVER, "load the module or reboot"
    elif loaded != library:
        code, action = NVML_MISMATCH, "reboot or reload"
    else:
        code, action = NVML_OK, ""
    return {"code": code, "name": _NVML_NAMES[code], "loaded": loaded, "library": library, "action": action}


def reboot_facts(
    loaded: dict[str, Any],
    library: str | None,
    record: dict[str, Any] | None,
    gpus: list[dict[str, Any]],
    nouveau: bool,
) -> dict[str, Any]:
    """Return whether the installed driver needs a reboot (or a reload of the module) to be in force, and why."""
    version, have, flavour = loaded["version"], loaded["flavour"], (record or {}).get("flavour")
    reasons = []
    if library and version and version != library:
        reasons.append(f"module {version} is loaded, library {library} is installed")
    elif library and version and have and flavour and have != flavour:
        reasons.append(f"the {have} module is loaded, the {flavour} one is installed")
    if library and gpus and not version:
        reasons.append(f"driver {library} is installed, its module is not loaded")
    if library and nouveau:
        reasons.append("nouveau holds a GPU")
    return {"required": bool(reasons), "reasons": reasons}


def nouveau_facts(root: str, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what keeps nouveau away (``blacklisted_by``), and whether it is there anyway (``loaded``, ``bound``)."""
    files = []
    seen = set()
    # The first directory wins where two hold a file of the same name.
    for directory in MODPROBE_DIRECTORIES:
        for name in list_dir(root, directory):
            if not name.endswith(".conf") or name in seen:
                continue
            seen.add(name)
            if _BLACKLIST.search(read_text(root, f"{directory}/{name}") or ""):
                files.append(f"/{directory}/{name}")
    if _BLACKLIST_CMDLINE.search(read_text(root, "proc/cmdline") or ""):
        files.append("kernel command line")
    return {
        "blacklisted_by": files,
        "loaded": os.path.isdir(path_below(root, "sys/module/nouveau")),
        "bound": [gpu["address"] for gpu in gpus if gpu["driver"] == "nouveau"],
    }


def unattended_facts(runner: Runner, root: str) -> dict[str, Any]:
    """Return whether unattended-upgrades may run, and its blacklist as apt merges it from all files."""
    installed = os.path.exists(path_below(root, "usr/bin/unattended-upgrade"))
    if not installed:
        return {"installed": False, "enabled": False, "blacklist": []}
    text = runner.run(["apt-config", "dump"], timeout=20).out
    enabled = _APT_ENABLED.findall(text)
    return {
        "installed": True,
        "enabled": bool(enabled) and enabled[-1] not in ("", "0"),
        "blacklist": _APT_BLACKLIST.findall(text),
    }


def candidate_facts(runner: Runner, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return what apt's cache offers for packages; see ``parse_policy``."""
    if not names:
        return {}
    return parse_policy(runner.run(["apt-cache", "policy"] + sorted(names), timeout=60).out)


def parse_policy(text: str) -> dict[str, dict[str, Any]]:
    """Return ``apt-cache policy`` by package: ``installed``, ``candidate``, ``versions`` (all on offer) and ``newer``.

    ``newer`` holds the versions above the installed one that apt would take by itself (not those of backports), newest
    first; each is ``{version, security}``, where ``security`` says that an archive for security updates has it.
    """
    found: dict[str, dict[str, Any]] = {}
    entry: dict[str, Any] = {}
    version: dict[str, Any] | None = None
    below = False
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith(":"):
            entry = found.setdefault(line[:-1], {"installed": None, "candidate": None, "versions": [], "newer": []})
            version, below = None, False
            continue
        words = line.split()
        if words[:1] in (["Installed:"], ["Candidate:"]):
            entry[words[0][:-1].lower()] = words[1] if words[1:] and words[1] != "(none)" else None
        elif line.startswith(" *** "):
            below, version = True, None
            entry["versions"].append(words[1])
        elif re.match(r"^     \S+ -?\d+$", line):
            entry["versions"].append(words[0])
            version = None if below else {"version": words[0], "security": False}
            if version is not None and int(words[1]) >= _AUTOMATIC:
                entry["newer"].append(version)
        elif version is not None and re.match(r"^ {8,}-?\d+ ", line):
            version["security"] = bool(version["security"]) or "security" in line
    for entry in found.values():
        if entry["installed"] is None:
            entry["newer"] = []
    return found


def read_json(root: str, path: str) -> dict[str, Any] | None:
    """Return a record of ours; an unreadable one as ``{"unreadable": reason}``, None where there is none."""
    text = read_text(root, path)
    if text is None:
        return None
    try:
        data = json.loads(text)
    except ValueError as error:
        return {"unreadable": str(error)}
    return data if isinstance(data, dict) else {"unreadable": "not a JSON object"}
