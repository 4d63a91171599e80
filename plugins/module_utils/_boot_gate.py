# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The reboot gate: may this node be rebooted? Only when the kernel that will boot comes up with the wanted driver.

Every condition is a finding of its own, so that all that is missing is named at once. What is not known is an error:
the gate opens only on what was seen.
"""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_verdict, _grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, FAIL, OK, Finding

#: Names of the checks, in order.
ENTRY, IMAGE, INITRAMFS, NOUVEAU = "boot_gate.entry", "boot_gate.image", "boot_gate.initramfs", "boot_gate.nouveau"
MODULE, VERSION, FLAVOUR, SIGNATURE = (
    "boot_gate.module",
    "boot_gate.version",
    "boot_gate.flavour",
    "boot_gate.signature",
)


def gate(
    facts: Mapping[str, Any],
    wanted: str | None,
    kernel: str | None = None,
    flavour: str | None = None,
    next_boot: bool = False,
) -> list[Finding]:
    """Judge whether a kernel may be booted.

    Args:
        facts: What the module driver_info returned under ``driver``, read with ``check_initramfs``.
        wanted: Driver version that has to come up.
        kernel: Release of the kernel; None for the one that boots next (a one-shot entry before the default).
        flavour: open or proprietary, where one is asked for.
        next_boot: Whether the named kernel has to be the one that boots next, as before a reboot.

    Returns:
        Findings; the gate is open when none of them is ``fail`` or ``error``.
    """
    release, entry = _entry(facts, kernel, next_boot)
    found = [entry]
    if not release:
        return found
    item = next((one for one in facts["kernels"] if one["release"] == release), None)
    if item is None:
        known = [one["release"] for one in facts["kernels"]]
        hint = "it has no image in /boot: install linux-image-{}, or boot one of {}".format(
            release, ", ".join(known) or "none"
        )
        return [*found, Finding(IMAGE, release, FAIL, None, "an image in /boot", "/boot", hint)]
    found.append(Finding(IMAGE, release, OK, item["image"], "an image in /boot", "/boot"))
    found += _early_boot(item)
    found += _module(facts, item, wanted, flavour)
    return found


def target_kernel(facts: Mapping[str, Any], kernel: str | None = None) -> str | None:
    """Return the release that the gate judges."""
    following = facts["boot"]["next_kernel"]
    return kernel or (str(following) if following else None)


def _entry(facts: Mapping[str, Any], kernel: str | None, next_boot: bool) -> tuple[str, Finding]:
    boot = facts["boot"]
    choice = boot["one_shot"] or boot["default"]
    if choice is None:
        hint = "which kernel boots next is not known: no grub.cfg could be read; is /boot mounted?"
        return kernel or "", Finding(ENTRY, kernel or "node", ERROR, None, kernel, "grub.cfg", hint)
    following = choice["kernel"]
    if kernel is not None and _grub.entry_for(dict(boot), kernel) is None:
        known = ", ".join(sorted({item["kernel"] for item in boot["entries"]}))
        hint = f"it is not in the boot loader's menu, which has {known or 'no kernel'}: run update-grub"
        return kernel, Finding(ENTRY, kernel, FAIL, None, "an entry", "grub.cfg", hint)
    if kernel is not None and not next_boot:
        return kernel, Finding(ENTRY, kernel, OK, _grub.entry_for(dict(boot), kernel), "an entry", "grub.cfg")
    problem = _driver_verdict.choice_problem(choice)
    if not following:
        problem = problem or "the entry {!r} that boots next starts no kernel".format(choice["spec"])
    if not problem and kernel not in (None, following):
        problem = f"the next boot starts {following}: choose {kernel} with the module boot_entry"
    target = kernel or following or "node"
    status = FAIL if problem else OK
    return target if target != "node" else "", Finding(ENTRY, target, status, following, kernel, "grub.cfg", problem)


def _early_boot(item: Mapping[str, Any]) -> list[Finding]:
    release, image = item["release"], item["initramfs"]
    wanted = "an early boot image"
    if image is None:
        hint = "the early boot image was not looked at: driver_info needs check_initramfs: true"
        return [Finding(INITRAMFS, release, ERROR, None, wanted, "/boot", hint)]
    if image["image"] is None:
        hint = f"it has no early boot image: update-initramfs -c -k {release}"
        return [Finding(INITRAMFS, release, FAIL, None, wanted, "/boot", hint)]
    found = [Finding(INITRAMFS, release, OK, image["image"], wanted, "/boot")]
    status, hint = _driver_verdict.nouveau_problem(item)
    value = None if status == ERROR else bool(image["nouveau"])
    return [*found, Finding(NOUVEAU, release, status, value, "no nouveau at early boot", "lsinitramfs", hint)]


def _module(
    facts: Mapping[str, Any], item: Mapping[str, Any], wanted: str | None, flavour: str | None
) -> list[Finding]:
    release = item["release"]
    known = [module for module in item["nvidia"] if module["indexed"]]
    paths = [module["path"] for module in known]
    problem = _driver_verdict.module_problem(item, None)
    status = FAIL if problem else OK
    if not problem and any(module["fits"] is None for module in known):
        status, problem = ERROR, f"for which kernel {paths[0]} was built cannot be told: modinfo says nothing"
    found = [Finding(MODULE, release, status, paths, "a module in its modules.dep", "modules.dep", problem)]
    if status == FAIL:
        return found
    versions = sorted({module["version"] or "unknown" for module in known})
    if not wanted:
        hint = "which driver version has to come up is not known: set nvidia_driver_version"
        found.append(Finding(VERSION, release, ERROR, versions, None, "nvidia_driver_version", hint))
    else:
        problem = _driver_verdict.module_problem(item, wanted)
        status = FAIL if problem else OK
        found.append(Finding(VERSION, release, status, versions, wanted, "nvidia_driver_version", problem))
    if flavour:
        problem = _driver_verdict.module_problem(item, None, flavour)
        status = FAIL if problem else OK
        if not problem and not all(module["flavour"] for module in known):
            status, problem = ERROR, "the module does not tell its flavour"
        flavours = sorted({module["flavour"] or "unknown" for module in known})
        found.append(Finding(FLAVOUR, release, status, flavours, flavour, "nvidia_driver_flavour", problem))
    return [*found, _signature(facts["secure_boot"], item)]


def _signature(state: Mapping[str, Any], item: Mapping[str, Any]) -> Finding:
    release, source = item["release"], state["source"]
    if state["enforced"] is None:
        hint = "the state of Secure Boot could not be read"
        return Finding(SIGNATURE, release, ERROR, state["state"], None, source, hint)
    if not state["enforced"]:
        return Finding(SIGNATURE, release, OK, "not needed", None, source)
    problems = _driver_verdict.signature_problems(state, item)
    if not problems:
        return Finding(SIGNATURE, release, OK, "known signer", "signed by an enrolled key", source)
    hint = "Secure Boot will refuse the module" + _driver_verdict.enrolment_hint(state)
    return Finding(SIGNATURE, release, FAIL, problems, "signed by an enrolled key", source, hint)
