# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Which state of a node is good enough to be recorded, what belongs to it, and when two of them are the same."""

from __future__ import annotations

import os
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _dkms, _driver_record, _grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._driver_verdict import module_problem
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._lkg_collect import MODULE_KEYS
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import BAD
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import read_installed

#: Layers whose findings decide whether a state is good to boot again; the others can be put right on a running node.
DECIDING = ("driver.", "kernel.", "nvidia_driver.", "node.reachable")
#: Without a finding of this one the driver was not looked at.
_NEEDED = "driver."
_TEXTS = {
    "pins_text": _apt_prefs.PINS_PATH,
    "blacklist_text": _apt_prefs.BLACKLIST_PATH,
    "sources_text": _apt_prefs.SOURCES_PATH,
    "key_text": _apt_prefs.KEY_PATH,
}


class NotNow(Exception):
    """The state of the node is not one to record; the message says why."""


def bars(findings: list[dict[str, Any]]) -> list[str]:
    """Return the checks that keep a node's state from being recorded; empty where the verdict on it is good.

    Only findings on the driver and on what a boot needs count; without any on the driver nothing was judged.
    """
    found = [
        str(finding.get("check"))
        for finding in findings
        if str(finding.get("check", "")).startswith(DECIDING) and finding.get("status") in BAD
    ]
    if not any(str(finding.get("check", "")).startswith(_NEEDED) for finding in findings):
        found.append("the driver was not verified")
    return found


def check_state(root: str, facts: Mapping[str, Any]) -> None:
    """Make sure that the node is in a state that would come up again by itself.

    Raises:
        NotNow: when it is not.
    """
    record = facts["record"] or {}
    version = record.get("version")
    if not version or not _driver_record.members(record):
        raise NotNow("no driver was installed by the role nvidia_driver")
    if facts["package_database"]["transaction"] is not None or facts["package_database"]["unfinished"]:
        raise NotNow("a package transaction is not finished")
    blacklist = _apt_prefs.blacklist_text(_driver_record.members(record))
    if not _driver_record.holds_true(root, record, str(record.get("pins_text")), blacklist):
        raise NotNow("packages, holds or pins are not as the driver's record has them")
    running, following = facts["running_kernel"], facts["boot"]["next_kernel"]
    default = (facts["boot"]["default"] or {}).get("kernel")
    if following is None or default is None:
        raise NotNow("which kernel boots by default is not known")
    if not running == following == default:
        raise NotNow(f"kernel {running} runs, but {default} boots by default, and {following} next")
    kernel = next((item for item in facts["kernels"] if item["release"] == running), None)
    problem = module_problem(kernel, version, record.get("flavour")) if kernel else "its image is not in /boot"
    if problem:
        raise NotNow(f"kernel {running}: {problem}")
    if facts["library"]["version"] != version:
        raise NotNow("library {} is installed, not {}".format(facts["library"]["version"], version))
    # A node without GPUs loads no module; that the running kernel has the right one is what can be said of it.
    if facts["gpus"]:
        if facts["reboot"]["required"]:
            raise NotNow("a reboot is pending: {}".format("; ".join(facts["reboot"]["reasons"])))
        if facts["loaded"]["version"] != version:
            raise NotNow("module {} is loaded, not {}".format(facts["loaded"]["version"], version))


def describe(root: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a manifest says of the node as it is, without files: ``packages`` are those of the driver alone.

    Raises:
        NotNow: when the compiled module of the running kernel cannot be told.
    """
    record = dict(facts["record"])
    members = _driver_record.members(record)
    installed = read_installed(root, members.__contains__)
    modules, kernels = _modules(root, facts, record)
    held = {**facts["kernel_packages"], **facts["packages"]}
    return {
        "driver": record,
        "packages": {
            name: {"version": version, "architecture": installed[name].architecture, "companion": False}
            for name, version in sorted(members.items())
        },
        "kernel": facts["running_kernel"],
        "kernels": kernels,
        "boot_entry": _grub.entry_for(facts["boot"], facts["running_kernel"]) or "",
        "module_archives": modules,
        "holds": sorted(name for name, package in held.items() if package["hold"]),
        **{key: read_text(root, path) or "" for key, path in _TEXTS.items()},
    }


def _modules(root: str, facts: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the compiled modules to keep, and the kernels that have a good module, compiled here or prebuilt."""
    name, version = str(record.get("dkms_name") or ""), str(record["version"])
    modules: list[dict[str, Any]] = []
    kernels: list[str] = []
    for kernel in facts["kernels"]:
        release = kernel["release"]
        if module_problem(kernel, version, record.get("flavour")):
            continue
        built = [
            item
            for item in facts["dkms"]["entries"]
            if (item["module"], item["version"], item["kernel"]) == (name, version, release)
            and item["state"] == "installed"
        ]
        # Prebuilt modules come in a package that is named after its kernel, and so is among the driver's own.
        prebuilt = any(package.endswith(release) for package in _driver_record.members(record))
        if name and not built and not prebuilt:
            if kernel["running"]:
                raise NotNow(f"the module of the running kernel {release} is neither DKMS's {name} nor a package's")
            continue
        kernels.append(release)
        for item in built:
            folder = f"{_dkms.TREE}/{name}/{version}/{release}/{item['arch']}/module"
            sizes = [os.stat(path_below(root, f"{folder}/{file}")).st_size for file in list_dir(root, folder)]
            signer = next((module["signer"] for module in kernel["nvidia"] if module["indexed"]), "")
            keys = {"dkms_name": name, "version": version, "kernel": release, "arch": item["arch"], "signer": signer}
            modules.append({**keys, "size": sum(sizes)})
    return modules, kernels


def texts(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the driver's own files for apt as recorded, by path; an empty text is a file that was not there."""
    return {path: str(data[key]) for key, path in _TEXTS.items() if key in data}


def identity(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a state the same: all but time, files and what merely came along."""
    driver = {key: value for key, value in data["driver"].items() if key != "time"}
    return {
        "driver": driver,
        **core(data),
        "signers": sorted([one["kernel"], str(one["signer"])] for one in data["module_archives"]),
        **{key: data[key] for key in ("boot_entry", "holds", *sorted(_TEXTS))},
    }


def core(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rollback would bring back: of two generations that agree in this, only the newer is of use."""
    keys = [key for key in MODULE_KEYS if key != "signer"]
    return {
        "packages": {
            name: [item["version"], item["architecture"]]
            for name, item in data["packages"].items()
            if not item["companion"]
        },
        "kernel": data["kernel"],
        "kernels": sorted(data["kernels"]),
        "modules": sorted([str(one[key]) for key in keys] for one in data["module_archives"]),
    }
