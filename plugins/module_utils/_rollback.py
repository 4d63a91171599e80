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
#: Stands for packages that only dpkg's journal, or the mark of a killed transaction, can name.
JOURNAL = "dpkg's journal"


@dataclasses.dataclass(frozen=True)
class Good:
    """The last known good state, as far as the way back needs it.

    Args:
        driver: Driver version.
        kernel: Kernel release.
        flavour: Flavour of the kernel module.
        packages: Name to version of the whole closure.
        holds: Packages that were held.
        kernels: Kernels that had a good module: those of ``archives``, and those whose module comes in a package.
        archives: Kernels for which the record has a compiled module.
        companions: Name to version of what came along with the driver (DKMS, alternatives).
    """

    driver: str
    kernel: str
    flavour: str
    packages: Mapping[str, str]
    holds: Sequence[str]
    kernels: Sequence[str]
    archives: Sequence[str] = ()
    companions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Differences:
    """What of the node differs from the record, beside what the module driver_info tells.

    Args:
        texts: Paths of the driver's own files for apt (pins, blacklist, package source, key) that differ.
        companions: Packages that came along with the driver and are gone.
    """

    texts: Sequence[str] = ()
    companions: Sequence[str] = ()


@dataclasses.dataclass
class Plan:
    """What leads back.

    Args:
        symptoms: What differs from the good state, in words.
        refusals: Why there is no way back; nothing may be done then.
        kernel: The kernel that will run.
        repair: Packages that dpkg has to finish first.
        restore: Name to version of packages that are installed from the record; companions only where they are gone.
        remove: Packages of the driver that was tried and that the good one does not know.
        hold: Packages that lost their hold.
        texts: Paths of the driver's files for apt that are put back.
        load_modules: Kernels whose compiled module has to come from the record, ``kernel`` first.
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
    texts: list[str] = dataclasses.field(default_factory=list)
    load_modules: list[str] = dataclasses.field(default_factory=list)
    set_default: bool = False
    default_first: bool = False
    modprobe: bool = False
    reboot: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything has to be done on the disk."""
        return bool(self.repair or self.restore or self.remove or self.hold or self.texts or self.load_modules) or (
            self.set_default or self.modprobe
        )

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
        steps += [f"put {path} back" for path in self.texts]
        for name, version in sorted(self.restore.items()):
            steps.append(f"install {name} {version} from the last known good")
        steps += [f"remove {name}, which the driver that was tried brought" for name in self.remove]
        if self.hold:
            steps.append("hold {}".format(", ".join(self.hold)))
        modules = [
            f"put the compiled module {good.driver} for {kernel} back from the last known good"
            for kernel in self.load_modules
        ]
        # A power cut after the first of them finds a boot loader that starts a kernel which is whole.
        steps += [step for kernel, step in zip(self.load_modules, modules) if kernel == self.kernel]
        if self.set_default and not self.default_first:
            steps.append(default)
        steps += [step for kernel, step in zip(self.load_modules, modules) if kernel != self.kernel]
        if self.modprobe:
            steps.append("load the module")
        if self.reboot:
            steps.append(f"reboot into {self.kernel}")
        return steps


def plan(
    facts: Mapping[str, Any], good: Good | None, prefer: str = KERNEL, differences: Differences = Differences()
) -> Plan:
    """Return the way back.

    Args:
        facts: What the module driver_info returned under ``driver``.
        good: The last known good state; None where none is recorded.
        prefer: ``kernel`` (default) or ``driver``.
        differences: What differs beside the facts.
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
    _apt_files(found, good, differences)
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
        found.repair = [JOURNAL]
    record = facts["record"] or {}
    tried = {**(record.get("packages") or {}), **(record.get("independent") or {})}
    # A driver is recorded when it is installed; of one whose installation was cut off only the mark tells.
    former = dict((database["transaction"] or {}).get("before") or {})
    newcomers = {name for name, version in former.items() if not version}
    found.remove = sorted(name for name in {*tried, *newcomers} if name not in good.packages and name in installed)


def _kernel(facts: Mapping[str, Any], release: str) -> Mapping[str, Any] | None:
    return next((kernel for kernel in facts["kernels"] if kernel["release"] == release), None)


def _target(found: Plan, facts: Mapping[str, Any], good: Good, prefer: str) -> str:
    """Return the kernel to run: the good one, or the running one where the good driver can be had for it."""
    running = str(facts["running_kernel"])
    ways = {KERNEL: good.kernel, DRIVER: running}
    order = [ways[prefer], ways[DRIVER if prefer == KERNEL else KERNEL]]
    reasons = []
    for release in dict.fromkeys(order):
        problem = _obstacle(found, facts, good, release)
        if not problem:
            return release
        reasons.append(f"kernel {release}: {problem}")
    found.refusals.append("there is no way back to driver {}: {}".format(good.driver, "; ".join(reasons)))
    return ""


def _obstacle(found: Plan, facts: Mapping[str, Any], good: Good, release: str) -> str:
    kernel = _kernel(facts, release)
    if kernel is None:
        return "it is not in /boot any more"
    if not kernel["modules"]:
        return "it has no directory below /lib/modules"
    if release in good.archives:
        return ""
    problem = module_problem(kernel, good.driver, good.flavour or None)
    if release in good.kernels:
        # Modules that the distribution built come with packages that are named after their kernel.
        carried = any(name.endswith(release) for name in found.restore)
        return (
            "" if carried or not problem else f"{problem}; its module comes in a package, which has to be reinstalled"
        )
    # Installing the driver's packages again takes the modules that DKMS has now with it.
    if problem or _replaced(found, good):
        return problem or "its module would go with the packages, and the record holds no copy of it"
    return ""


def _replaced(found: Plan, good: Good) -> bool:
    """Whether scripts of the good driver's packages run, or may: DKMS's throw away the modules of every kernel."""
    return bool(found.restore or any(name in good.packages or name == JOURNAL for name in found.repair))


def _modules(found: Plan, facts: Mapping[str, Any], good: Good) -> None:
    found.default_first = True
    others = [kernel["release"] for kernel in facts["kernels"] if kernel["release"] != found.kernel]
    for release in (found.kernel, *others):
        kernel = _kernel(facts, release)
        # _target took a kernel that is there; of the others those count that had a good module.
        if kernel is None or (release != found.kernel and not (kernel["modules"] and release in good.kernels)):
            continue
        problem = module_problem(kernel, good.driver, good.flavour or None)
        if problem:
            found.symptoms.append(f"kernel {release}: {problem}")
            found.default_first = found.default_first and release != found.kernel
        if (problem or _replaced(found, good)) and release in good.archives:
            found.load_modules.append(release)


def _apt_files(found: Plan, good: Good, differences: Differences) -> None:
    found.texts = list(differences.texts)
    found.symptoms += [f"{path} is not as recorded" for path in found.texts]
    # What came along is needed where packages or modules are put back; a node that works does without.
    if found.restore or found.repair or found.load_modules:
        missing = {name: good.companions[name] for name in differences.companions}
        found.symptoms += [f"package {name}, which came with the driver, is gone" for name in sorted(missing)]
        found.restore.update(missing)


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
    elif loaded is not None and good.flavour and facts["loaded"]["flavour"] not in ("", good.flavour):
        found.symptoms.append(
            "the {} flavour of the module is loaded instead of the {} one".format(
                facts["loaded"]["flavour"], good.flavour
            )
        )
        found.reboot = True
    elif facts["gpus"] and facts["nouveau"]["bound"]:
        found.symptoms.append("nouveau holds a GPU")
        found.reboot = True
    elif facts["gpus"] and loaded is None:
        found.symptoms.append("the module is not loaded")
        found.modprobe = True
