# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Finishing what dpkg left half done on the way back to the last known good state, with the record's files alone.

A driver update that was cut off while packages were unpacked cannot be finished where its other half never came, and
``apt-get -f install`` would need the repositories. So the record's own files are unpacked over what is half done or of
another version, and only then everything is configured. The mark of the killed transaction goes when the package
database is in order, never before: as long as it is there, every later run knows whose work this is.
"""

from __future__ import annotations

import re
from typing import Collection, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import (
    _apt_get,
    _dpkg,
    _driver_names,
    _kernel_names,
    _transaction_repair,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as _state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import (
    read_installed,
    unfinished_names,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_tools import Tools

#: States of a package whose files may be incomplete: it has to be unpacked again.
_TORN = ("half-installed",)
#: One more than it takes: what keeps a package out goes after the first, and one that needs another to be configured
#: before it is even unpacked comes in the second or third.
_ROUNDS = 4
#: The release in the name of a package of one kernel; metas have none, and Debian's headers come in a common part too.
_RELEASE = re.compile(r"^linux-(?:[a-z0-9.-]+-)?(?:image|image-unsigned|modules|modules-extra|headers)-(\d.*)$")
_COMMON = re.compile(r"-common(-rt)?$")


def repair(
    tools: Tools,
    owner: str,
    packages: Mapping[str, str],
    debs: Mapping[str, str],
    remove: Collection[str],
    kernels: Collection[str],
) -> str:
    """Bring the package database in order; return why it is not, empty when it is.

    Args:
        tools: The node's package tools.
        owner: Who answers for packages that come back.
        packages: Name to version of the packages of the good driver, and of what has to come along.
        debs: Name to path of the record's package files.
        remove: Packages of the driver that was tried.
        kernels: Releases whose packages stay, whatever they are like: the good, the running and the next one.
    """
    before = read_installed(tools.root)
    purged: set[str] = set()
    result = CommandResult(0)
    if _dpkg.interrupted(tools.root):
        # What the journal holds is not in the status file yet, by which everything here is judged.
        result = tools.dpkg("--configure", "-a")
    for _round in range(_ROUNDS):
        unfinished = _dpkg.unfinished(tools.root)
        if not unfinished:
            # Whatever else differs is a transaction's affair, which judges what it does.
            break
        torn = [one.name for one in unfinished if one.status in _TORN or one.flag != "ok"]
        purged |= _purge(tools, [name for name in torn if name not in debs and expendable(name, remove, kernels)])
        # Where the driver is not concerned, what differs of it is left to the transaction that follows.
        concerned = any(one.name in packages or _driver_names.is_family(one.name) for one in unfinished)
        wanted = _differing(tools.root, packages, torn) if concerned else []
        wanted += [name for name in torn if name in debs and name not in packages]
        if wanted:
            tools.dpkg("--auto-deconfigure", "--unpack", *(debs[name] for name in wanted))
        result = tools.dpkg("--configure", "-a")
        # What the tried driver brought cannot be configured beside the good one, or keeps it out.
        stuck = {one.name for one in _dpkg.unfinished(tools.root)}
        if stuck:
            family = {name for name in stuck if _driver_names.is_family(name)}
            purged |= _purge(tools, sorted((family | set(remove)) - set(packages) - set(debs)))
    after = read_installed(tools.root)
    came = [name for name in packages if name in after and name not in before]
    _state.note_brought(tools.root, owner, came, tools.gone(purged))
    left = unfinished_names(tools.root)
    if left:
        cause = _apt_get.failure_cause(result.text, tools.root) or result.text
        return "These packages stay half done: {}. Cause:\n{}".format(", ".join(left), cause)
    mark = _state.read_json(tools.root, _state.MARK)
    if mark is not None:
        _transaction_repair.settle(tools, mark)
    # One that cannot be read says nothing any more, and would keep every later run from working.
    _state.remove_file(tools.root, _state.MARK)
    return ""


def expendable(name: str, remove: Collection[str], kernels: Collection[str]) -> bool:
    """Whether a torn package belongs to what was tried: its driver, or one kernel that is none of ``kernels``."""
    if name in remove or _driver_names.is_family(name):
        return True
    match = _RELEASE.match(name)
    if not match or not _kernel_names.is_kernel_package(name):
        # Metas are nobody's try: without them no kernel gets its updates any more.
        return False
    release = _COMMON.sub("", match.group(1))
    return not any(kernel == release or kernel.startswith(release + "-") for kernel in kernels)


def _differing(root: str, packages: Mapping[str, str], torn: Collection[str] = ()) -> list[str]:
    """Return the packages that are not there, of another version, or torn; configuring is enough for the rest."""
    installed = read_installed(root, packages.__contains__)
    return [
        name
        for name, version in sorted(packages.items())
        if name not in installed or installed[name].version != version or name in torn
    ]


def _purge(tools: Tools, names: Collection[str]) -> set[str]:
    """Purge those of the packages that are there; return them."""
    present = read_installed(tools.root, frozenset(names).__contains__)
    if present:
        tools.dpkg("--purge", "--force-depends", "--force-remove-reinstreq", *sorted(present))
    return set(present)
