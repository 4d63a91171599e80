# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The way back to the last known good driver and kernel, planned from facts; nothing is read or changed here.

The plan follows from where the node is, not from what somebody tried: whatever broke it, what differs from the record
of the last good state is put back, and no more. Packages come from the record's own files and modules from its
archives, so no repository, no compiler and no headers are needed.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_verdict import module_problem

#: Which way is tried first where both lead back: the good kernel, or the good driver on the kernel that runs now.
KERNEL, DRIVER = "kernel", "driver"
PREFER = (KERNEL, DRIVER)


@dataclasses.dataclass(frozen=True)
class Good:
    """The last known good state, as far as the way back needs it.

    Args:
        driver: Driver version.
        kernel: Kernel release.
        flavour: Flavour of the kernel module.
        packages: Name to version of the whole closure.
        holds: Packages that were held.
        kernels: Kernels for which the record has a compiled module, or whose module comes in a package.
    """

    driver: str
    kernel: str
    flavour: str
    packages: Mapping[str, str]
    holds: Sequence[str]
    kernels: Sequence[str]


@dataclasses.dataclass
class Plan:
    """What leads back.

    Args:
        symptoms: What differs from the good state, in words.
        refusals: Why there is no way back; nothing may be done then.
        kernel: The kernel that will run.
        repair: Packages that dpkg has to finish first.
        restore: Name to version of packages that are installed from the record.
        remove: Packages of the driver that was tried and that the good one does not know.
        hold: Packages that lost their hold.
        load_module: Whether the compiled module of ``kernel`` has to come from the record.
        set_default: Whether the boot loader's default has to change to ``kernel``.
        default_first: Whether it may change before anything else: that kernel could be booted as it is.
        modprobe: Whether the module only has to be loaded into the running kernel.
        reboot: Whether a reboot is needed.
    """

    symptoms: list[str] = dataclasses.field(default_factory=list)
    refusals: list[str] = dataclasses.field(default_factory=list)
    kernel: str = ""
    repair: list[str] = dataclasses.field(default_factory=list)
    restore: dict[str, str] = dataclasses.field(default_factory=dict)
    remove: list[str] = dataclasses.field(default_factory=list)
    hold: list[str] = dataclasses.field(default_factory=list)
    load_module: bool = False
    set_default: bool = False
    default_first: bool = False
    modprobe: bool = False
    reboot: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything has to be done on the disk."""
        return bool(
            self.repair or self.restore or self.remove or self.hold or self.load_module or self.set_default
        ) or bool(self.modprobe)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for module results."""
        return {**dataclasses.asdict(self), "changes": self.changes}

    def steps(self, good: Good) -> list[str]:
        """Return what will be done, in order and in words."""
        steps = []
        default = f"make {self.kernel} the boot loader's default"
        if self.set_default and self.default_first:
            steps.append(default)
        if self.repair:
            steps.append("finish what dpkg left half done, without compiling: {}".format(", ".join(self.repair)))
        for name, version in sorted(self.restore.items()):
            steps.append(f"install {name} {version} from the last known good")
        steps += [f"remove {name}, which the driver that was tried brought" for name in self.remove]
        if self.hold:
            steps.append("hold {}".format(", ".join(self.hold)))
        if self.load_module:
            steps.append(f"put the compiled module {good.driver} for {self.kernel} back from the last known good")
        if self.set_default and not self.default_first:
            steps.append(default)
        if self.modprobe:
            steps.append("load the module")
        if self.reboot:
            steps.append(f"reboot into {self.kernel}")
        return steps


def plan(facts: Mapping[str, Any], good: Good | None, prefer: str = KERNEL) -> Plan:
    """Return the way back.

    Args:
        facts: What the module driver_info returned under ``driver``.
        good: The last known good state; None where none is recorded.
        prefer: ``kernel`` (default) or ``driver``.
    """
    if good is None:
        return Plan(
            refusals=[
                "this node has no record of a last known good state; one is made by playbooks/verify.yml or site.yml "
                "on a node that passes"
            ]
        )
    found = Plan()
    _packages(found, facts, good)
    found.kernel = _target(found, facts, good, prefer)
    if found.refusals:
        return found
    _modules(found, facts, good)
    _boot(found, facts)
    _running(found, facts, good)
    return found


def _packages(found: Plan, facts: Mapping[str, Any], good: Good) -> None:
    database = facts["package_database"]
    installed = facts["packages"]
    unfinished = dict(database["unfinished"])
    for name, version in sorted(good.packages.items()):
        package = installed.get(name)
        if package is None:
            found.symptoms.append(f"package {name} is gone")
            found.restore[name] = version
        elif package["version"] != version:
            found.symptoms.append("package {} is {} instead of {}".format(name, package["version"], version))
            found.restore[name] = version
        elif unfinished.get(name) not in (None, "triggers-pending", "triggers-awaited", "half-configured", "unpacked"):
            found.restore[name] = version
        elif not package["hold"] and name in good.holds:
            found.symptoms.append(f"package {name} is no longer held")
            found.hold.append(name)
    found.repair = sorted(unfinished)
    if unfinished:
        found.symptoms.append("packages are half done: {}".format(", ".join(sorted(unfinished))))
    elif database["interrupted"] or database["transaction"] is not None:
        found.symptoms.append("a package transaction was cut off")
        found.repair = ["dpkg's journal"]
    record = facts["record"] or {}
    tried = {**(record.get("packages") or {}), **(record.get("independent") or {})}
    found.remove = sorted(name for name in tried if name not in good.packages and name in installed)


def _kernel(facts: Mapping[str, Any], release: str) -> Mapping[str, Any] | None:
    return next((kernel for kernel in facts["kernels"] if kernel["release"] == release), None)


def _target(found: Plan, facts: Mapping[str, Any], good: Good, prefer: str) -> str:
    """Return the kernel to run: the good one, or the running one where the good driver can be had for it."""
    running = str(facts["running_kernel"])
    ways = {KERNEL: good.kernel, DRIVER: running}
    order = [ways[prefer], ways[DRIVER if prefer == KERNEL else KERNEL]]
    reasons = []
    for release in dict.fromkeys(order):
        problem = _obstacle(facts, good, release, bool(found.restore))
        if not problem:
            return release
        reasons.append(f"kernel {release}: {problem}")
    found.refusals.append("there is no way back to driver {}: {}".format(good.driver, "; ".join(reasons)))
    return ""


def _obstacle(facts: Mapping[str, Any], good: Good, release: str, replaced: bool) -> str:
    kernel = _kernel(facts, release)
    if kernel is None:
        return "it is not in /boot any more"
    if not kernel["modules"]:
        return "it has no directory below /lib/modules"
    if release in good.kernels:
        return ""
    problem = module_problem(kernel, good.driver, good.flavour or None)
    # Installing the driver's packages again takes the modules that DKMS has now with it.
    if problem or replaced:
        return problem or "its module would go with the packages, and the record holds no copy of it"
    return ""


def _modules(found: Plan, facts: Mapping[str, Any], good: Good) -> None:
    kernel = _kernel(facts, found.kernel)
    # _target took a kernel that is there.
    problem = module_problem(kernel, good.driver, good.flavour or None) if kernel else "it is not in /boot"
    if problem:
        found.symptoms.append(f"kernel {found.kernel}: {problem}")
    found.load_module = bool(problem or found.restore) and found.kernel in good.kernels
    found.default_first = not problem


def _boot(found: Plan, facts: Mapping[str, Any]) -> None:
    boot = facts["boot"]
    chosen = [choice["kernel"] for choice in (boot["default"], boot["one_shot"]) if choice is not None]
    if boot["default"] is None or any(kernel != found.kernel for kernel in chosen):
        found.symptoms.append(
            "the boot loader would start {}".format(boot["next_kernel"] or "a kernel that cannot be told")
        )
        found.set_default = True


def _running(found: Plan, facts: Mapping[str, Any], good: Good) -> None:
    running, loaded = facts["running_kernel"], facts["loaded"]["version"]
    if running != found.kernel:
        found.symptoms.append(f"kernel {running} runs instead of {found.kernel}")
        found.reboot = True
    elif loaded is not None and loaded != good.driver:
        found.symptoms.append(f"module {loaded} is loaded instead of {good.driver}")
        found.reboot = True
    elif facts["gpus"] and facts["nouveau"]["bound"]:
        found.symptoms.append("nouveau holds a GPU")
        found.reboot = True
    elif facts["gpus"] and loaded is None:
        found.symptoms.append("the module is not loaded")
        found.modprobe = True
