# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Verdicts on the driver of a node: facts of driver_info and expectations in, findings out; nothing is read here.

What decides is what the next boot would find, kernel by kernel, and what is loaded now; a package manager's success
counts for nothing.
"""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _dkms_guard,
    _driver_info,
    _driver_packages,
    _grub,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, SKIPPED, WARN, Finding


def findings(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    """Judge the driver.

    Args:
        facts: What the module driver_info returned under ``driver``.
        expected: All keys are optional:
            ``version``: exact driver version; without it the recorded one, then the library's, is the measure;
            ``source``: distro, cuda_repo or local_repo, which says whose companions have versions of their own;
            ``components`` and ``repo_uri`` (without a login): compared with the record, as ``source`` is;
            ``flavour``: open or proprietary, compared where the module tells its own;
            ``pending_reboot``: status of what a reboot alone will mend: ``fail`` (default) or ``warn``.
    """
    wanted = wanted_version(facts, expected)
    return [
        *_driver_packages.findings(facts, expected),
        *_modules(facts, expected, wanted),
        *_headers(facts),
        *_boot(facts, wanted),
        *_dkms_findings(facts, wanted),
        _secure_boot(facts, wanted),
        *_loaded(facts, expected, wanted),
        *_nouveau(facts, expected),
    ]


def wanted_version(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """Return the version by which modules are measured."""
    record = facts.get("record") or {}
    value = expected.get("version") or record.get("version") or facts["library"]["version"]
    return str(value) if value else None


def module_problem(kernel: Mapping[str, Any], wanted: str | None, flavour: str | None = None) -> str:
    """Return what is wrong with a kernel's nvidia module; empty when that kernel comes up with the wanted driver."""
    known = [module for module in kernel["nvidia"] if module["indexed"]]
    stray = [module["path"] for module in kernel["nvidia"] if not module["indexed"]]
    if not kernel["modules"]:
        return "it has no directory below /lib/modules"
    if not known:
        if stray:
            return "{} exists, but the kernel's index does not know it: run depmod {}".format(
                stray[0], kernel["release"]
            )
        return "no nvidia module" + ("" if kernel["headers"] else ", and no headers to build one")
    for module in known:
        if not module["exists"]:
            return "the index names {}, which does not exist".format(module["path"])
        if module["fits"] is False:
            return "{} was built for another kernel".format(module["path"])
        if wanted is not None and module["version"] != wanted:
            return "{} has version {}".format(module["path"], module["version"] or "unknown")
        if flavour and module["flavour"] and module["flavour"] != flavour:
            return "{} is the {} flavour".format(module["path"], module["flavour"])
    return ""


def choice_problem(choice: Mapping[str, Any]) -> str:
    """Return what is wrong with an entry of the boot loader; empty when it exists."""
    if choice["found"]:
        return ""
    return "entry {!r} does not exist, so GRUB takes the first one".format(choice["spec"])


def signature_problems(state: Mapping[str, Any], kernel: Mapping[str, Any]) -> list[str]:
    """Return who signed those nvidia modules of a kernel that Secure Boot will refuse; empty where it accepts all."""
    signers = state.get("signers") or []
    found = []
    for module in kernel["nvidia"]:
        name = module.get("signer", "")
        if not module["indexed"] or not module["exists"]:
            continue
        if not name or not any(name == signer or name in signer for signer in signers):
            found.append("signed by " + name if name else "not signed")
    return found


def enrolment_hint(state: Mapping[str, Any]) -> str:
    """Return how the node's own signing key is enrolled, where that would help."""
    pending = [key["path"] for key in state.get("keys") or [] if key["enrolled"] is False]
    if not pending:
        return ""
    return f"; enrol the node's key: mokutil --import {pending[0]}, then confirm at the console during the next boot"


def nouveau_problem(kernel: Mapping[str, Any]) -> tuple[str, str]:
    """Return the status of a kernel's early boot image, which was looked into, and what is wrong with it."""
    image = kernel["initramfs"]
    if image["nouveau"] is None:
        return ERROR, str(image["error"] or "not readable")
    if image["nouveau"] and not image["blacklists"]:
        return FAIL, "the early boot image loads nouveau: update-initramfs -u -k {}".format(kernel["release"])
    return OK, ""


def _modules(facts: Mapping[str, Any], expected: Mapping[str, Any], wanted: str | None) -> list[Finding]:
    found = []
    following = facts["boot"]["next_kernel"]
    # Every bootable kernel needs a module. Where the boot loader is pinned to one, the others boot only when asked.
    pinned = _grub.is_pinned(facts["boot"])
    if not facts["kernels"]:
        return [Finding("driver.module", "node", ERROR, [], wanted, "/boot", "no kernel image in /boot")]
    for kernel in facts["kernels"]:
        release = kernel["release"]
        problem = module_problem(kernel, wanted, expected.get("flavour"))
        built = [item for item in facts["dkms"]["entries"] if item["kernel"] == release and item["state"] == "built"]
        if problem and built:
            problem += "; DKMS has built {}/{} and not installed it".format(built[0]["module"], built[0]["version"])
        bears = not pinned or kernel["running"] or release == following
        status = OK if not problem else FAIL if bears else WARN
        value = sorted({module["version"] or "unknown" for module in kernel["nvidia"] if module["indexed"]})
        shown = ", ".join(value) if value else "none"
        found.append(Finding("driver.module", release, status, shown, wanted, "modules.dep", problem))
    return found


def _headers(facts: Mapping[str, Any]) -> list[Finding]:
    """Headers matter to the driver where DKMS has to build for a kernel; prebuilt modules do without."""
    if not facts["dkms"]["entries"]:
        return []
    found = []
    for kernel in facts["kernels"]:
        hint = "" if kernel["headers"] else "DKMS will silently skip this kernel: run the role kernel"
        value = "present" if kernel["headers"] else "missing"
        status = OK if kernel["headers"] else WARN
        found.append(Finding("driver.headers", kernel["release"], status, value, "present", "DKMS", hint))
    return found


def _boot(facts: Mapping[str, Any], wanted: str | None) -> list[Finding]:
    boot = facts["boot"]
    by_release = {kernel["release"]: kernel for kernel in facts["kernels"]}
    check = "driver.boot"
    if boot["default"] is None:
        bad = [release for release, kernel in by_release.items() if module_problem(kernel, wanted)]
        hint = "which kernel boots next is not known: no grub.cfg could be read"
        return [Finding(check, "node", ERROR if bad or not by_release else WARN, None, wanted, "grub.cfg", hint)]
    found = []
    for target, choice in (("default", boot["default"]), ("one-shot", boot["one_shot"])):
        if choice is None:
            continue
        kernel = by_release.get(choice["kernel"])
        problem = module_problem(kernel, wanted) if kernel else "this is no kernel in /boot"
        if not problem and choice_problem(choice):
            hint = choice_problem(choice)
            found.append(Finding(check, target, WARN, choice["kernel"], wanted, "grub.cfg", hint))
            continue
        hint = f"do not reboot: {problem}" if problem else ""
        found.append(Finding(check, target, FAIL if problem else OK, choice["kernel"], wanted, "grub.cfg", hint))
    return found


def _dkms_findings(facts: Mapping[str, Any], wanted: str | None) -> list[Finding]:
    state = facts["dkms"]
    found = []
    for orphan in state["orphans"]:
        hint = "left-over tree without dkms.conf: remove {}".format(orphan["path"])
        name = "{}/{}".format(orphan["module"], orphan["version"])
        found.append(Finding("driver.dkms", name, WARN, "orphan", None, "DKMS", hint))
    versions = sorted({(item["module"], item["version"]) for item in state["entries"] if item["state"] != "broken"})
    for module, version in versions:
        entries = [item for item in state["entries"] if (item["module"], item["version"]) == (module, version)]
        value = {item["kernel"] or "source": item["state"] for item in entries}
        name = f"{module}/{version}"
        if wanted is not None and version != wanted:
            # DKMS builds the highest version it finds, for every new kernel.
            newer = _numbers(version) > _numbers(wanted)
            hint = f"left-over tree: dkms remove {name} --all"
            hint += "; it is newer than the wanted version, so DKMS would build it for the next kernel" if newer else ""
            found.append(Finding("driver.dkms", name, FAIL if newer else WARN, value, wanted, "DKMS", hint))
            continue
        unlike = [item["kernel"] for item in entries if item["differs"]]
        hint = "the installed module is not the one DKMS built for {}".format(", ".join(unlike)) if unlike else ""
        found.append(Finding("driver.dkms", name, WARN if unlike else OK, value, wanted, "DKMS", hint))
    if state["switched_off"]:
        hint = (
            f"{_dkms_guard.SWITCH} exists, so no new kernel gets a module: remove it, unless somebody keeps DKMS from "
            "building on purpose or a driver is being installed right now"
        )
        found.append(Finding("driver.dkms", "autoinstall", WARN, False, True, "DKMS", hint))
    if state["error"]:
        hint = "dkms status failed: {}".format(state["error"].splitlines()[0])
        found.append(Finding("driver.dkms", "status", WARN, None, None, "DKMS", hint))
    return found


def _numbers(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]


def _secure_boot(facts: Mapping[str, Any], wanted: str | None) -> Finding:
    state = facts["secure_boot"]
    check, source = "driver.secure_boot", state["source"]
    if state["enforced"] is None:
        return Finding(check, "node", ERROR, state["state"], None, source, "the state of Secure Boot could not be read")
    if not state["enforced"]:
        return Finding(check, "node", OK, state["state"], None, source)
    unknown = [
        "{} ({})".format(kernel["release"], text)
        for kernel in facts["kernels"]
        for text in signature_problems(state, kernel)
    ]
    if not unknown:
        return Finding(check, "node", OK, state["state"], "signed modules", source)
    hint = "the kernel will refuse the module of {}".format(", ".join(unknown)) + enrolment_hint(state)
    return Finding(check, "node", FAIL, unknown, "signed by an enrolled key", source, hint)


def _loaded(facts: Mapping[str, Any], expected: Mapping[str, Any], wanted: str | None) -> list[Finding]:
    check = "driver.loaded"
    if not facts["gpus"]:
        return [Finding(check, "node", SKIPPED, facts["loaded"]["version"], wanted, "PCI", "no NVIDIA GPU on PCI")]
    nvml, source = facts["nvml"], "/proc/driver/nvidia/version"
    waiting = WARN if expected.get("pending_reboot", FAIL) == WARN else FAIL
    value = {"code": nvml["code"], "name": nvml["name"], "loaded": nvml["loaded"], "library": nvml["library"]}
    if nvml["code"] == _driver_info.NVML_NO_LIBRARY:
        return [Finding(check, "node", FAIL, value, wanted, source, "libnvidia-ml.so is not installed")]
    if nvml["code"] == _driver_info.NVML_MISMATCH:
        hint = "{}: module {} is loaded, library {} is installed; nothing has to be installed again".format(
            nvml["action"], nvml["loaded"], nvml["library"]
        )
        return [Finding(check, "node", waiting, value, wanted, source, hint)]
    if nvml["code"] == _driver_info.NVML_NO_DRIVER:
        kernel = next((kernel for kernel in facts["kernels"] if kernel["running"]), None)
        problem = module_problem(kernel, wanted) if kernel else "its image is not in /boot"
        if problem:
            hint = "the running kernel {} cannot load it: {}".format(facts["running_kernel"], problem)
            return [Finding(check, "node", FAIL, value, wanted, source, hint)]
        return [Finding(check, "node", waiting, value, wanted, source, nvml["action"])]
    if wanted is not None and nvml["loaded"] != wanted:
        return [Finding(check, "node", FAIL, value, wanted, source, "another version is installed and loaded")]
    flavour, have = expected.get("flavour"), facts["loaded"]["flavour"]
    if flavour and have and flavour != have:
        hint = f"the {have} flavour is loaded: reboot or reload"
        return [Finding(check, "node", waiting, value, flavour, "nvidia_driver_flavour", hint)]
    return [Finding(check, "node", OK, value, wanted, source)]


def _nouveau(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    state = facts["nouveau"]
    check = "driver.nouveau"
    waiting = WARN if expected.get("pending_reboot", FAIL) == WARN else FAIL
    found = []
    # Whatever the files say: the driver that holds the card decides.
    for gpu in facts["gpus"]:
        address, driver = gpu["address"], gpu["driver"]
        if driver == "nouveau":
            hint = "nouveau holds the GPU: reboot; if it comes back, look for it in the early boot image"
            found.append(Finding(check, address, waiting, driver, "nvidia", "sysfs", hint))
        elif driver not in ("nvidia", None):
            hint = "another driver holds the GPU, perhaps on purpose"
            found.append(Finding("driver.bound", address, WARN, driver, "nvidia", "sysfs", hint))
        elif driver is None and facts["nvml"]["code"] == _driver_info.NVML_OK:
            hint = "the module is loaded and did not take this GPU: look in the kernel's log"
            found.append(Finding("driver.bound", address, FAIL, driver, "nvidia", "sysfs", hint))
        elif driver is None:
            hint = "no driver holds the GPU, since the module is not in order: see driver.loaded"
            found.append(Finding("driver.bound", address, SKIPPED, driver, "nvidia", "sysfs", hint))
        else:
            found.append(Finding("driver.bound", address, OK, driver, "nvidia", "sysfs"))
    hint = "" if state["blacklisted_by"] else "nothing in modprobe.d keeps nouveau away"
    status = OK if state["blacklisted_by"] else FAIL
    found.append(Finding(check, "blacklist", status, state["blacklisted_by"], None, "modprobe.d", hint))
    for kernel in facts["kernels"]:
        image = kernel["initramfs"]
        if image is None or image["image"] is None:
            continue
        status, hint = nouveau_problem(kernel)
        value = image["blacklists"] if status == OK else "nouveau inside" if status == FAIL else None
        found.append(Finding(check, image["image"], status, value, None, "lsinitramfs", hint))
    return found
