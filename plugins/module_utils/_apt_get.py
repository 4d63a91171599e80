# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""apt-get described once: how it is called, what its simulation says, and why a run failed.

The simulation is the same command as the real one, so that what was judged is what runs. Holds that the real run lifts
first are lifted for the simulation in a copy of dpkg's status file.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, read_text

#: Nothing asks, nothing restarts services behind our back, and a changed configuration file of the administrator stays.
ENVIRONMENT = {
    "APT_LISTCHANGES_FRONTEND": "none",
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
}

_INST = re.compile(r"^Inst (?P<name>\S+)(?: \[(?P<old>[^\]]+)\])? \((?P<new>\S+)")
_REMV = re.compile(r"^(?:Remv|Purg) (?P<name>\S+)(?: \[(?P<old>[^\]]+)\])?")
_MAKE_LOG = re.compile(r"/var/lib/dkms/[^\s'\"]*make\.log")
_FAILED_PACKAGE = re.compile(r"^dpkg: error processing (?:package|archive) (\S+)", re.MULTILINE)
_STANZA_SIZE = re.compile(r"^(Package|Version|Installed-Size|Size):[ \t]*(\S+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What apt-get would do.

    Args:
        installs: Name to (old version, new version); the old one is empty where the package is new.
        removes: Name to the version that goes.
        error: Why apt-get refuses; empty when it does not.
    """

    installs: Mapping[str, tuple[str, str]]
    removes: Mapping[str, str]
    error: str = ""


def options(lock_timeout: int = 0) -> list[str]:
    """Return the options of every apt-get call that changes, or pretends to change, packages."""
    chosen = [
        "-q",
        "-y",
        "--no-install-recommends",
        "--allow-downgrades",
        "-o",
        "APT::Get::AutomaticRemove=false",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        "Dpkg::Options::=--force-confdef",
        "-o",
        "Dpkg::Options::=--force-confold",
    ]
    if lock_timeout:
        chosen += ["-o", f"DPkg::Lock::Timeout={lock_timeout}"]
    return chosen


def operands(packages: Mapping[str, str], absent: Iterable[str], files: Mapping[str, str] | None = None) -> list[str]:
    """Return what follows ``apt-get install``: files, ``name=version``, ``name``, ``name-`` for removals; sorted."""
    known = files or {}
    words = [known.get(name, f"{name}={version}" if version else name) for name, version in sorted(packages.items())]
    return words + [f"{name}-" for name in sorted(absent)]


#: What keeps apt-get away from every repository: it then knows what is installed and the files that it is given. Not
#: --no-download, with which it loses the paths of files.
OFFLINE = ("-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=/dev/null")


def parse_simulation(result: CommandResult) -> Simulation:
    """Read the output of ``apt-get -s install``; names of the native architecture come without it."""
    installs: dict[str, tuple[str, str]] = {}
    removes: dict[str, str] = {}
    for line in result.out.splitlines():
        match = _INST.match(line)
        if match:
            installs[match.group("name")] = (match.group("old") or "", match.group("new"))
            continue
        match = _REMV.match(line)
        if match:
            removes[match.group("name")] = match.group("old") or ""
    # apt-get prints a removal followed by an installation for some replacements: the end counts.
    for name in installs:
        removes.pop(name, None)
    return Simulation(installs, removes, "" if result.ok else explain_error(result))


def explain_error(result: CommandResult) -> str:
    """Return the lines of an apt-get failure that say why."""
    wanted = []
    unmet = False
    for line in result.text.splitlines():
        if line.startswith("The following packages have unmet dependencies"):
            unmet = True
        elif unmet and line.startswith(" "):
            wanted.append(line.strip())
        else:
            unmet = False
            if line.startswith(("E:", "W: Failed", "Err:")):
                wanted.append(line)
    unique = list(dict.fromkeys(wanted))
    return "; ".join(unique) if unique else (last_lines(result.text, 5) or f"exit status {result.rc}")


def failed_packages(output: str) -> list[str]:
    """Return the packages whose scripts failed, as dpkg names them."""
    return list(dict.fromkeys(name.split(":")[0] for name in _FAILED_PACKAGE.findall(output)))


def failure_cause(output: str, root: str = "/") -> str:
    """Return why a package script failed: the end of the DKMS build log it points to, else what it printed.

    Must be called before the former packages are put back, since that removes the build tree with its log.
    """
    for path in dict.fromkeys(_MAKE_LOG.findall(output)):
        log = read_text(root, path)
        if log:
            telling = [
                line for line in log.splitlines() if re.search(r"\b(?:error|fatal|differs)\b|\*\*\*", line, re.I)
            ]
            return "{}:\n{}".format(path, "\n".join(telling[:8]) or last_lines(log, 12))
    match = _FAILED_PACKAGE.search(output)
    before = output[: match.start()] if match else output
    return last_lines(before, 12)


def last_lines(text: str, count: int) -> str:
    """Return the last lines of a text that are not blank."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def lift_holds(status_text: str, names: Iterable[str]) -> str:
    """Return dpkg's status text with the holds of some packages lifted, for a simulation."""
    lifted = frozenset(names)
    stanzas = status_text.split("\n\n")
    for index, stanza in enumerate(stanzas):
        if "\nStatus: hold " not in stanza:
            continue
        first = stanza.lstrip("\n").split("\n", 1)[0]
        if first[len("Package:") :].strip() in lifted:
            stanzas[index] = stanza.replace("\nStatus: hold ", "\nStatus: install ", 1)
    return "\n\n".join(stanzas)


def sizes(stanzas: str) -> tuple[int, int]:
    """Return (bytes to download, bytes on disk) of packages shown by ``apt-cache show``, each version once."""
    download = installed = 0
    seen = set()
    for stanza in stanzas.split("\n\n"):
        fields: dict[str, str] = {}
        for key, value in _STANZA_SIZE.findall(stanza):
            fields.setdefault(key, value)
        identity = (fields.get("Package"), fields.get("Version"))
        if not fields.get("Package") or identity in seen:
            continue
        seen.add(identity)
        download += int(fields.get("Size", "0"))
        installed += int(fields.get("Installed-Size", "0")) * 1024
    return download, installed


def simulate_command(arguments: Sequence[str], status_path: str | None = None) -> list[str]:
    """Return the simulating form of an apt-get command (its arguments after ``apt-get``)."""
    words = ["apt-get", "-s"]
    if status_path:
        # Nothing made from the copy may be kept as the node's own cache.
        words += ["-o", f"Dir::State::status={status_path}", "-o", "Dir::Cache::pkgcache="]
    return words + list(arguments)
