# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The kernel policy: headers for every bootable kernel, and a hold that is opt-in, dated and honest about its price."""

from __future__ import annotations

import datetime
import re
from typing import Any, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import (
    ERROR,
    FAIL,
    OK,
    SKIPPED,
    WARN,
    Finding,
)

GATE, HOLD, NONE = "gate", "hold", "none"
POLICIES = (GATE, HOLD, NONE)

#: linux-image-amd64, linux-image-generic-hwe-22.04 and alike; an image of one release starts with a number.
_IMAGE_META = re.compile(r"^linux-image-(?!unsigned-)(\D.*)$")
#: Debian's metas. Their headers depend on the image of the same version: a newer headers meta would bring a new kernel.
_DEBIAN_META = re.compile(r"^linux-image-(?:cloud-|rt-)?(?:amd64|arm64)$")
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def image_metas(packages: Mapping[str, Any]) -> list[str]:
    """Return the installed metas that bring new kernel images."""
    return sorted(name for name in packages if _IMAGE_META.match(name) and ":" not in name and "-dbg" not in name)


def header_meta(image_meta: str) -> str:
    """Return the meta package with the headers for the kernels of an image meta."""
    return image_meta.replace("linux-image-", "linux-headers-", 1)


def metas(packages: Mapping[str, Any]) -> list[str]:
    """Return every installed kernel meta: of images, of their headers, and those that bring both."""
    found: set[str] = set()
    for name in image_metas(packages):
        both = name.replace("linux-image-", "linux-", 1)
        found.update(meta for meta in (name, header_meta(name), both) if meta in packages)
    return sorted(found)


def missing_headers(kernels: Sequence[Mapping[str, Any]], packages: Mapping[str, Any]) -> list[str]:
    """Return the header packages that bootable kernels and installed image metas lack."""
    found = {"linux-headers-{}".format(kernel["release"]) for kernel in kernels if not kernel["headers"]}
    found.update(header_meta(name) for name in image_metas(packages) if header_meta(name) not in packages)
    return sorted(found)


def questions(kernels: Sequence[Mapping[str, Any]], packages: Mapping[str, Any]) -> list[str]:
    """Return the packages to ask apt about: missing headers, and metas that are held; often none."""
    held = [name for name in metas(packages) if packages[name]["hold"]]
    return sorted(set(missing_headers(kernels, packages)) | set(held))


def meta_version(image_meta: str, packages: Mapping[str, Any], offer: Mapping[str, Any]) -> str | None:
    """Return the version of the headers meta to install beside an image meta; None where none goes with it.

    It is the image's own version, so that headers never run ahead of the kernel. Ubuntu's archive drops that version at
    the next update, and its headers bring no kernel, so there the candidate will do.
    """
    version = str(packages[image_meta]["version"])
    if version in offer.get("versions", ()):
        return version
    return None if _DEBIAN_META.match(image_meta) else offer.get("candidate")


def plan(facts: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """Return what the role has to do on a node.

    Args:
        facts: What driver_info returned, with kernel_candidates.
        policy: gate, hold or none.

    Returns:
        ``packages`` to install (name to version, empty for any), ``unavailable`` (header packages that no source has),
        ``unpaired`` (headers metas on offer only for another kernel than the installed one), ``hold`` and ``unhold``
        lists, ``held`` (name to version to be recorded; empty unless the policy is hold) and ``skipped``
        (versions that the hold keeps out).
    """
    packages, kernels, boot = facts["kernel_packages"], facts["kernels"], facts["boot"]
    if _grub.is_pinned(boot):
        # Headers make DKMS build. A kernel that boots only when asked may be one that this driver cannot be built for.
        kernels = [kernel for kernel in kernels if kernel["running"] or kernel["release"] == boot["next_kernel"]]
    wanted = missing_headers(kernels, packages)
    offers = facts["candidates"]
    available = [name for name in wanted if offers.get(name, {}).get("candidate")]
    images = {header_meta(name): name for name in image_metas(packages)}
    install: dict[str, str] = {}
    for name in available:
        version = meta_version(images[name], packages, offers[name]) if name in images else ""
        if version is not None:
            install[name] = version
    all_metas = sorted(set(metas(packages)) | {header_meta(name) for name in image_metas(packages)})
    holdable = [name for name in all_metas if name in packages or name in install]
    recorded = facts.get("kernel_hold") or {}
    ours = [name for name in recorded.get("held", {}) if name in packages and packages[name]["hold"]]
    held = [name for name in metas(packages) if packages[name]["hold"]]
    if policy == HOLD:
        hold, unhold = [name for name in holdable if name not in held], []
    elif policy == NONE:
        hold, unhold = [], sorted(set(held) | set(ours))
    else:
        # The gate sets no hold, and lifts only what this role has recorded: a hold of somebody else is theirs.
        hold, unhold = [], sorted(ours)
    return {
        "packages": install,
        "unavailable": [name for name in wanted if name not in available],
        "unpaired": [name for name in available if name not in install],
        "hold": hold,
        "unhold": unhold,
        "held": {name: packages.get(name, {}).get("version", "") for name in holdable} if policy == HOLD else {},
        "skipped": skipped_versions(facts) if policy == HOLD else {},
    }


def record(facts: Mapping[str, Any], planned: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the content of kernel_hold.json; the date of an existing hold stays.

    Args:
        facts: Fresh facts, taken after the holds were set.
        planned: What ``plan`` returned for them.
        now: Time as ``2026-01-31T12:00:00Z``.
    """
    before = facts.get("kernel_hold") or {}
    return {
        "since": before.get("since") or now,
        "held": dict(sorted(planned["held"].items())),
        "skipped": planned["skipped"],
    }


def skipped_versions(facts: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the versions that holds on kernel metas keep out, by package."""
    return {
        name: list(offer["newer"])
        for name, offer in sorted(facts["candidates"].items())
        if offer["newer"] and facts["kernel_packages"].get(name, {}).get("hold")
    }


def findings(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    """Judge headers, boot default and hold.

    Args:
        facts: What driver_info returned, with kernel_candidates.
        expected: ``policy``, ``now`` (time as in ``record``) and ``hold_warn_days``.
    """
    return [*_headers(facts), _default(facts), *_hold(facts, expected)]


def _headers(facts: Mapping[str, Any]) -> list[Finding]:
    found = []
    following = facts["boot"]["next_kernel"]
    if not facts["kernels"]:
        return [Finding("kernel.headers", "node", ERROR, value=[], hint="no kernel image in /boot")]
    for kernel in facts["kernels"]:
        release = kernel["release"]
        matters = kernel["running"] or release == following
        if kernel["headers"]:
            status, hint = OK, ""
        else:
            status = FAIL if matters else WARN
            package = f"linux-headers-{release}"
            offered = facts["candidates"].get(package, {}).get("candidate")
            hint = (
                f"install {package}" if offered else f"no package source has {package}: boot or install another kernel"
            )
            hint += ", no module can be built for this one"
        value = "present" if kernel["headers"] else "missing"
        found.append(Finding("kernel.headers", release, status, value, "present", "kernel role", hint))
    packages = facts["kernel_packages"]
    for name in image_metas(packages):
        there = header_meta(name) in packages
        offer = facts["candidates"].get(header_meta(name), {})
        hint = "the next kernel of this meta will come without headers, so without a module"
        if offer.get("candidate") and meta_version(name, packages, offer) is None:
            hint += "; no package source has {} {} any more: install both metas in a planned kernel upgrade".format(
                header_meta(name), packages[name]["version"]
            )
        found.append(
            Finding(
                "kernel.headers_meta",
                name,
                OK if there else WARN,
                header_meta(name) if there else None,
                header_meta(name),
                "kernel role",
                "" if there else hint,
            )
        )
    return found


def _default(facts: Mapping[str, Any]) -> Finding:
    boot = facts["boot"]
    releases = [kernel["release"] for kernel in facts["kernels"]]
    if boot["default"] is None:
        hint = "no grub.cfg is readable, so nothing can be said about the next boot"
        return Finding("kernel.default", "node", WARN, None, releases, "grub.cfg", hint)
    choice = boot["default"]
    if choice["kernel"] not in releases:
        hint = "the boot loader's default is not a kernel in /boot: run update-grub and set the default again"
        return Finding("kernel.default", "node", FAIL, choice["kernel"] or choice["spec"], releases, "grub.cfg", hint)
    if not choice["found"]:
        hint = "entry {!r} does not exist, so GRUB takes the first one".format(choice["spec"])
        return Finding("kernel.default", "node", WARN, choice["kernel"], releases, "grub.cfg", hint)
    one_shot = boot["one_shot"]
    hint = "the next boot alone starts {}".format(one_shot["kernel"]) if one_shot else ""
    return Finding("kernel.default", "node", OK, choice["kernel"], releases, "grub.cfg", hint)


def _hold(facts: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    policy = expected["policy"]
    packages = facts["kernel_packages"]
    names = metas(packages)
    held = [name for name in names if packages[name]["hold"]]
    source = "kernel_policy"
    if policy != HOLD:
        if not held:
            return [Finding("kernel.hold", "node", OK, [], [], source)]
        hint = f"kernel packages are held although the policy is {policy}; kernel_policy: none releases them"
        return [Finding("kernel.hold", "node", WARN, held, [], source, hint)]
    if not names:
        hint = "no kernel meta package is installed, so no new kernel can come by itself"
        return [Finding("kernel.hold", "node", SKIPPED, [], None, source, hint)]
    if held != names:
        loose = [name for name in names if name not in held]
        return [Finding("kernel.hold", "node", FAIL, held, names, source, "not held: {}".format(", ".join(loose)))]
    note = facts.get("kernel_hold") or {}
    age = _age(note.get("since", ""), expected["now"])
    skipped = skipped_versions(facts)
    security = sorted(
        "{} {}".format(name, item["version"]) for name, newer in skipped.items() for item in newer if item["security"]
    )
    value = {"since": note.get("since"), "days": age, "skipped": skipped}
    hints = []
    if age is None:
        hints.append("the date of the hold is not recorded")
    elif age > int(expected["hold_warn_days"]):
        hints.append(f"the kernel has been held for {age} days")
    if security:
        hints.append("it keeps security updates out: {}".format(", ".join(security)))
    if hints:
        hints.append("kernel_policy: none releases it")
    return [Finding("kernel.hold", "node", WARN if hints else OK, value, None, source, "; ".join(hints))]


def _age(since: str, now: str) -> int | None:
    try:
        return (datetime.datetime.strptime(now, _TIME) - datetime.datetime.strptime(since, _TIME)).days
    except (TypeError, ValueError):
        return None
