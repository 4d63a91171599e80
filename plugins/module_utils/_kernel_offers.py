# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which kernels the package sources of a node offer, with the packages that belong together, and which one is wanted.

A kernel is its image and its headers in one version: DKMS skips a kernel without headers and says nothing. The meta
packages follow when the kernel has proved itself, so that giving it up needs no version that the archive dropped.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _boot_control,
    _driver_info,
    _kernel_names,
    _kernel_policy,
    _kernels,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner

#: Taken as the release: whatever the kernel meta package of the node brings.
NEWEST = "newest"
#: Goes on where a kernel that dies would be started again and again.
WITHOUT_FALLBACK = "kernel_upgrade_without_fallback: true"
_PARTS = ("image", "modules", "modules-extra", "headers")
_KERNEL = re.compile(r"^linux-(?P<part>image|modules|modules-extra|headers)-(?P<release>\d\S*)$")
_SKIPPED = re.compile(r"-(?:dbg|dbgsym|common|common-rt|all|all-\w+)$")
_FLAVOUR = re.compile(r"-([a-z].*)$")
_RELEASE = re.compile(r"\blinux-image-(\d[^\s,(|]*)")


def flavour_of(release: str) -> str:
    """Return the flavour of a kernel release: amd64 of 6.12.95+deb12-amd64, generic of 5.15.0-25-generic."""
    match = _FLAVOUR.search(release)
    return match.group(1) if match else ""


def read(runner: Runner, root: str, running: str) -> dict[str, Any]:
    """Return what is on offer.

    Returns:
        ``kernels``: release to ``packages`` (name to version), newest last, and ``metas``: each installed image meta as
        ``installed``, ``candidate``, ``release`` (kernel of the candidate) and ``headers`` (version of the headers meta
        that goes with it, None where none does), those of the running kernel's flavour first. ``one_shot`` says whether
        the boot loader forgets an entry for one boot by itself: ``clears``, None where that is unknown, and ``reason``.
    """
    packages = _driver_info.package_facts(root, _kernel_names.is_kernel_package)
    metas = _kernel_policy.image_metas(packages)
    listed = runner.run(["apt-cache", "pkgnames", "linux-"], timeout=120.0).out.split()
    images = [name for name in listed if _KERNEL.match(name) and not _SKIPPED.search(name)]
    asked = images + metas + [_kernel_policy.header_meta(name) for name in metas]
    offers = _driver_info.candidate_facts(runner, asked)
    found: dict[str, Any] = {"kernels": _kernels_on_offer(offers), "metas": {}, "one_shot": _one_shot(runner, root)}
    flavour = flavour_of(running)
    for name in sorted(metas, key=lambda name: (name != f"linux-image-{flavour}", name)):
        offer = offers.get(name) or {"installed": None, "candidate": None}
        headers = offers.get(_kernel_policy.header_meta(name)) or {}
        candidate = offer["candidate"]
        shown = runner.run(["apt-cache", "show", f"{name}={candidate}"], timeout=120.0).out if candidate else ""
        found["metas"][name] = {
            "installed": offer["installed"],
            "candidate": candidate,
            "release": _release_of(shown),
            "headers": candidate if candidate in headers.get("versions", ()) else None,
        }
    return found


def _one_shot(runner: Runner, root: str) -> dict[str, Any]:
    try:
        clears, reason = _boot_control.detect(runner, root).one_shot_clears()
    except _boot_control.BootError as fault:
        clears, reason = None, str(fault)
    return {"clears": clears, "reason": reason}


def _kernels_on_offer(offers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    releases: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, offer in offers.items():
        match = _KERNEL.match(name)
        if match and offer["candidate"]:
            releases.setdefault(match.group("release"), {})[match.group("part")] = offer
    found = {}
    for release in sorted(releases, key=_kernels.release_key):
        parts = releases[release]
        if "image" not in parts:
            continue
        version = parts["image"]["candidate"]
        found[release] = {
            "packages": {
                f"linux-{part}-{release}": version
                for part in _PARTS
                if part in parts and version in {*parts[part]["versions"], parts[part]["candidate"]}
            }
        }
    return found


def _release_of(shown: str) -> str:
    depends = next((line for line in shown.splitlines() if line.startswith("Depends:")), "")
    match = _RELEASE.search(depends)
    return match.group(1) if match else ""


def plan(
    facts: Mapping[str, Any], offers: Mapping[str, Any], wanted: str, without_fallback: bool = False
) -> dict[str, Any]:
    """Return what an upgrade to a kernel means on a node.

    Args:
        facts: What driver_info returned.
        offers: What ``read`` returned.
        wanted: A release as ``uname -r`` says it, or ``newest``.
        without_fallback: Whether it may be booted where the boot loader would start it again after it died.

    Returns:
        ``release`` (empty when it cannot be told), ``problems``, ``packages`` to install before the boot (name to
        version), ``metas`` to install after it has served, ``boot`` (whether it has to be booted), ``default`` (whether
        the boot loader has to take it from then on), ``already`` (nothing at all is to be done), and ``offered``.
    """
    metas, kernels = offers["metas"], offers["kernels"]
    flavour = flavour_of(str(facts["running_kernel"]))
    offered = [release for release in kernels if flavour_of(release) == flavour]
    release, problems = _target(wanted, metas, facts, offered)
    plan: dict[str, Any] = {"release": release, "problems": problems, "offered": offered, "packages": {}, "metas": {}}
    present = {kernel["release"]: kernel for kernel in facts["kernels"]}
    if release and not problems:
        plan["packages"], plan["problems"] = _packages(release, present, kernels, offered)
    plan["metas"] = _metas(release, metas, facts) if release and not plan["problems"] else {}
    boot = facts["boot"]
    plan["boot"] = facts["running_kernel"] != release
    plan["default"] = boot["default"] is None or boot["default"]["kernel"] != release or boot["one_shot"] is not None
    if release and plan["boot"] and not without_fallback:
        plan["problems"] = [*plan["problems"], *_no_fallback(offers["one_shot"], release)]
    pending = plan["packages"] or plan["metas"] or plan["boot"] or plan["default"]
    plan["already"] = not plan["problems"] and not pending
    return plan


def _no_fallback(one_shot: Mapping[str, Any], release: str) -> list[str]:
    if one_shot["clears"]:
        return []
    verb = "is not known to forget" if one_shot["clears"] is None else "does not forget"
    return [
        f"the boot loader {verb} an entry for one boot ({one_shot['reason']}), so that kernel {release}, should it "
        "die, is started again at every power cycle; put /boot on a plain partition with ext4, or, with the machine's "
        f"console at hand to choose the good kernel there, allow it with {WITHOUT_FALLBACK}"
    ]


def _target(
    wanted: str, metas: Mapping[str, Any], facts: Mapping[str, Any], offered: list[str]
) -> tuple[str, list[str]]:
    allowed = "it must be one release as uname -r says it, or newest; on offer here: {}".format(
        ", ".join(offered) or "none"
    )
    if not wanted:
        return "", [f"kernel_upgrade_release is not set: {allowed}"]
    if wanted != NEWEST:
        return wanted, []
    meta = next(iter(metas), None)
    if meta is None:
        return "", [f"kernel_upgrade_release is newest, and no kernel meta package is installed: {allowed}"]
    release = str(metas[meta]["release"])
    if not release:
        return "", [f"kernel_upgrade_release is newest, and {meta} does not tell which kernel it brings: {allowed}"]
    # A node that was brought to a newer kernel on purpose stays with it.
    running = str(facts["running_kernel"])
    return max(release, running, key=_kernels.release_key), []


def _packages(
    release: str, present: Mapping[str, Any], kernels: Mapping[str, Any], offered: list[str]
) -> tuple[dict[str, str], list[str]]:
    """Return what is missing of a kernel, and what keeps it from being installed."""
    kernel = present.get(release)
    if kernel is not None and kernel["headers"]:
        return {}, []
    offer = kernels.get(release)
    headers = f"linux-headers-{release}"
    if offer is None and kernel is None:
        text = "kernel_upgrade_release: kernel {} is neither on this node nor on offer; on offer are {}"
        return {}, [text.format(release, ", ".join(offered) or "none")]
    if offer is None or headers not in offer["packages"]:
        return {}, [f"kernel_upgrade_release: no package source has {headers}, so it would have no module"]
    packages = dict(offer["packages"])
    # An image that is there stays as it is; its headers need not be of the same revision.
    return ({headers: packages[headers]} if kernel is not None else packages), []


def _metas(release: str, metas: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the metas that bring this very kernel and are not at that version yet."""
    packages = facts["kernel_packages"]
    found = {}
    for name, meta in metas.items():
        image = packages.get(f"linux-image-{release}", {}).get("version", meta["candidate"])
        # Another revision of the same release is no new kernel: it comes with the system's ordinary upgrades.
        if meta["release"] != release or image != meta["candidate"]:
            continue
        wanted = {name: meta["candidate"]}
        if meta["headers"]:
            wanted[_kernel_policy.header_meta(name)] = meta["headers"]
        found.update(
            {one: version for one, version in wanted.items() if packages.get(one, {}).get("version") != version}
        )
    return found
