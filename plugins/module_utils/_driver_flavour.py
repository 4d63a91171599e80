# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What is asked for, judged on the controller before a node is touched: version, flavour, components, repository, key.

The flavour of the kernel module follows from the PCI ids of the *target*. Nothing of the controller enters.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _compat,
    _driver_names,
    _openpgp,
    _planned_change,
    _repo_login,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._dpkg import upstream_version

STATES = ("present", "absent")


@dataclasses.dataclass(frozen=True)
class Decision:
    """The request in a form that can be resolved, or why it cannot.

    Args:
        flavour: ``open``, ``proprietary``, or empty when ``problems`` is not.
        fallback: Flavour to take when the source lacks the first one; only where both will do and none was asked for.
        problems: Reasons against the request, each naming the variable and what is allowed.
    """

    flavour: str = ""
    fallback: str = ""
    problems: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"flavour": self.flavour, "fallback": self.fallback, "problems": list(self.problems)}


def decide(
    wanted: Mapping[str, Any], devices: Iterable[Mapping[str, Any]], data: _compat.Data, system: Mapping[str, str]
) -> Decision:
    """Judge a request.

    Args:
        wanted: Role variables without their prefix: version, source, flavour, components, repo_uri, repo_key,
            repo_key_fingerprint, ``key_text``, the content of the key, and ``required``, why the hardware needs a
            component, by its name. ``rollback`` (the record of the last way back), ``installed`` (the version that the
            node has) and ``retry`` decide whether a version that failed on this node may be tried again.
        devices: PCI devices of the target.
        data: The compatibility data.
        system: ``id`` and ``version`` of the target's os-release.
    """
    problems = [
        *version_problems(str(wanted.get("version") or "")),
        *_choices(wanted),
        *(repository_problems(wanted, data, system) if wanted.get("source") in ("cuda_repo", "local_repo") else []),
    ]
    if problems:
        return Decision(problems=tuple(problems))
    version = upstream_version(str(wanted["version"]))
    failed = _planned_change.rolled_back(
        wanted.get("rollback"), "driver", version, wanted.get("installed"), bool(wanted.get("retry"))
    )
    problems += [failed] if failed else []
    problems += _required(wanted, version, system)
    gpus = _compat.matches(data, devices)
    asked = str(wanted["flavour"])
    problems += [f"nvidia_driver_version: {text}" for text in _compat.branch_problems(gpus, version)]
    choice = _compat.choose_flavour(data, gpus, version, asked)
    problems += [f"nvidia_driver_flavour: {text}" for text in choice.problems]
    if problems:
        return Decision(problems=tuple(problems))
    return Decision(choice.flavour, _fallback(choice.flavour, asked, gpus, version))


def _fallback(chosen: str, asked: str, gpus: Sequence[_compat.Match], version: str) -> str:
    other = "proprietary" if chosen == "open" else "open"
    branch = _driver_names.branch_of(version)
    if asked != "auto" or not _driver_names.has_flavour(branch, other):
        return ""
    return other if all(other in gpu.flavours for gpu in gpus) else ""


def version_problems(version: str) -> list[str]:
    """Return what is wrong with a driver version; a full package version is accepted."""
    allowed = "it must be one exact release, such as 535.261.03, or the full version of a package, such as 535.261.03-1"
    if not version:
        return [f"nvidia_driver_version is not set: {allowed}"]
    if not _driver_names.is_driver_version(upstream_version(version)):
        return [f"nvidia_driver_version is {version!r}, which is not exact: {allowed}"]
    return []


def _choices(wanted: Mapping[str, Any]) -> list[str]:
    problems = []
    for name, allowed in (("source", _driver_names.SOURCES), ("flavour", ("auto", *_driver_names.FLAVOURS))):
        if wanted.get(name) not in allowed:
            problems.append(f"nvidia_driver_{name} is {wanted.get(name)!r}; allowed are {', '.join(allowed)}")
    components = wanted.get("components")
    known = _driver_names.COMPONENTS
    if not isinstance(components, (list, tuple)) or not components or any(name not in known for name in components):
        problems.append(f"nvidia_driver_components is {components!r}; allowed is a list of {', '.join(known)}")
    return problems


def _required(wanted: Mapping[str, Any], version: str, system: Mapping[str, str]) -> list[str]:
    """Name components that the hardware needs and no packaging of the source has."""
    source, branch = str(wanted["source"]), _driver_names.branch_of(version)
    problems = []
    for component, reason in (wanted.get("required") or {}).items():
        ways = [
            _driver_names.roots(packaging, branch, _driver_names.FLAVOURS[0], (component,), variant)
            for packaging in _driver_names.packagings(source, str(system.get("id", "")))
            for variant in _driver_names.variants(packaging, branch)
        ]
        if not any(names for way in ways for _component, names in way.any_of):
            problems.append(
                f"nvidia_driver_source {source!r} has no {component}, which this node needs in the driver's version: "
                f"{reason}. Set nvidia_driver_source to cuda_repo, or nvidia_{component}_enabled to false to do without"
            )
    return problems


def repository_problems(wanted: Mapping[str, Any], data: _compat.Data, system: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the address and the key of a repository of its own."""
    source = wanted["source"]
    if not wanted.get("repo_uri"):
        return [f"nvidia_driver_repo_uri is not set, which nvidia_driver_source {source!r} needs"]
    problem = _repo_login.login_problem(str(wanted["repo_uri"]))
    if problem:
        return [f"nvidia_driver_repo_uri: {problem}"]
    if not wanted.get("key_text"):
        given = wanted.get("repo_key")
        return [
            f"nvidia_driver_repo_key: {given!r} cannot be read on the controller; it must be a file or an https address"
            if given
            else f"nvidia_driver_repo_key is not set, which nvidia_driver_source {source!r} needs"
        ]
    expected = str(wanted.get("repo_key_fingerprint") or _known_fingerprint(data, system, source))
    if not expected:
        return ["nvidia_driver_repo_key_fingerprint is not set, and no fingerprint is known for this system"]
    try:
        expected = _openpgp.normalised(expected)
    except _openpgp.OpenPGPError as error:
        return [f"nvidia_driver_repo_key_fingerprint: {error}"]
    revoked = {row["fingerprint"]: row for row in data.get("revoked_repository_keys", [])}
    if expected in revoked:
        return [f"nvidia_driver_repo_key_fingerprint: {expected} was revoked by its owner and is not trusted any more"]
    try:
        found = _openpgp.fingerprints(str(wanted["key_text"]))
    except _openpgp.OpenPGPError as error:
        return [f"nvidia_driver_repo_key: {wanted.get('repo_key')} is no usable key: {error}"]
    if found != [expected]:
        return [
            f"nvidia_driver_repo_key: {wanted.get('repo_key')} holds {', '.join(found)}, but "
            f"nvidia_driver_repo_key_fingerprint says {expected}: not the expected key, so nothing was fetched"
        ]
    return []


def _known_fingerprint(data: _compat.Data, system: Mapping[str, str], source: str) -> str:
    row = _compat.supported_system(data, str(system.get("id", "")), str(system.get("version", "")))
    if source != "cuda_repo" or not row:
        return ""
    for key in data.get("repository_keys", []):
        if key["distro"] == row.get("cuda_repo"):
            return str(key["fingerprint"] or "")
    return ""
