# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""apt's sources read in both their forms, and the text of the one that the driver comes from.

No address is invented here: what the distribution's own source lacks is derived from the sources that the node has.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Collection, Iterable

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._repo_login import split_login
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import list_dir, read_text

SOURCES_FILE = "etc/apt/sources.list"
SOURCES_DIR = "etc/apt/sources.list.d"

#: What follows the codename in the suites that belong to a distribution.
_SUITE_TAILS = ("", "-updates", "-security", "-backports", "-proposed", "-proposed-updates", "-backports-sloppy")
_ALIASES = ("stable", "oldstable", "oldoldstable", "testing")
#: Components beside main that carry drivers: firmware is one of its own in Debian since 12.
COMPONENTS = {"debian": ("contrib", "non-free", "non-free-firmware"), "ubuntu": ("restricted",)}

_ONE_LINE = re.compile(r"^(?P<type>deb(?:-src)?)\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<rest>\S.*)$")
_OPTION_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets", "pdiffs": "PDiffs"}
_PLACED = ("types", "uris", "suites", "components", "enabled")


@dataclasses.dataclass(frozen=True)
class Source:
    """One entry of apt's sources.

    Args:
        path: File it stands in, as an absolute path on the node.
        types: ``deb``, ``deb-src``.
        uris: Addresses.
        suites: Suites; one that ends with a slash is a flat repository.
        components: Components, none for a flat repository.
        options: Further fields with their deb822 names and raw values, e.g. ``Signed-By``.
        enabled: Whether apt reads it.
    """

    path: str
    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()
    enabled: bool = True


def read_sources(root: str = "/", ignore: Collection[str] = ()) -> list[Source]:
    """Return all sources of the node, those of the files in ``ignore`` (absolute paths) left out."""
    found = []
    paths = [SOURCES_FILE] + [f"{SOURCES_DIR}/{name}" for name in list_dir(root, SOURCES_DIR)]
    for path in paths:
        if "/" + path in ignore or not path.endswith((".list", ".sources")):
            continue
        text = read_text(root, path) or ""
        parse = parse_deb822 if path.endswith(".sources") else parse_one_line
        found.extend(parse(text, "/" + path))
    return found


def parse_one_line(text: str, path: str = "") -> list[Source]:
    """Return the entries of a file in the one-line form; lines that are commented out are not entries."""
    found = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#", 1)[0].strip())
        if not match:
            continue
        words = match.group("rest").split()
        options = []
        for option in (match.group("options") or "").split():
            key, _equals, value = option.partition("=")
            key = key.rstrip("+-")
            name = _OPTION_NAMES.get(key, "-".join(part.capitalize() for part in key.split("-")))
            options.append((name, value.replace(",", " ")))
        found.append(
            Source(path, (match.group("type"),), (match.group("uri"),), (words[0],), tuple(words[1:]), tuple(options))
        )
    return found


def parse_deb822(text: str, path: str = "") -> list[Source]:
    """Return the entries of a file in the deb822 form; values of several lines, such as a whole key, are kept."""
    found = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for block in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        names: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if line[:1] in (" ", "\t") and key:
                fields[key] += "\n" + line
            elif ":" in line:
                name, _colon, value = line.partition(":")
                key = name.strip().lower()
                names[key] = name.strip()
                fields[key] = value.strip()
        if "uris" not in fields or "suites" not in fields:
            continue
        found.append(
            Source(
                path,
                tuple(fields.get("types", "deb").split()),
                tuple(fields["uris"].split()),
                tuple(fields["suites"].split()),
                tuple(fields.get("components", "").split()),
                tuple((names[key], value) for key, value in fields.items() if key not in _PLACED),
                fields.get("enabled", "yes").lower() not in ("no", "false", "0", "without", "off", "disable"),
            )
        )
    return found


def distribution_text(
    sources: Iterable[Source], system: str, codename: str, foreign: Collection[tuple[str, str]] = ()
) -> str:
    """Return deb822 text that adds the components drivers come from, where the node's own sources lack them.

    Args:
        sources: The node's sources, without the file this text is for.
        system: ``ID`` of its os-release.
        codename: ``VERSION_CODENAME``, e.g. ``bookworm``.
        foreign: (address, suite) pairs that are known not to be the distribution's, though they look so.
    """
    own = [source for source in sources if source.enabled and "deb" in source.types and "main" in source.components]
    have: dict[tuple[str, str], set[str]] = {}
    for source in sources:
        if source.enabled and "deb" in source.types:
            for uri in source.uris:
                for suite in source.suites:
                    have.setdefault((plain_uri(uri), suite), set()).update(source.components)
    wanted = COMPONENTS.get(system, COMPONENTS["debian"])
    stanzas: list[str] = []
    done: set[tuple[str, str]] = set()
    for source in own:
        groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for uri in source.uris:
            for suite in source.suites:
                place = (plain_uri(uri), suite)
                if place in done or place in foreign or not _is_distribution(suite, codename):
                    continue
                done.add(place)
                missing = tuple(name for name in wanted if name not in have[place])
                if missing:
                    groups.setdefault((uri, missing), []).append(suite)
        stanzas += [
            stanza((uri,), suites, missing, source.options) for (uri, missing), suites in sorted(groups.items())
        ]
    return "\n".join(stanzas)


def repository_text(uri: str, suite: str, components: Iterable[str], key_path: str) -> str:
    """Return the deb822 text of one repository, flat where the suite is ``/``."""
    return stanza((uri,), (suite or "/",), tuple(components), (("Signed-By", key_path),))


def stanza(
    uris: Iterable[str], suites: Iterable[str], components: Iterable[str], options: Iterable[tuple[str, str]]
) -> str:
    """Return one deb822 stanza for binary packages."""
    fields = [("Types", "deb"), ("URIs", " ".join(uris)), ("Suites", " ".join(suites))]
    words = " ".join(components)
    if words:
        fields.append(("Components", words))
    # A value that begins on the next line, as a whole key does, has nothing after the colon.
    return "".join(
        "{}:{}{}\n".format(name, "" if value.startswith("\n") else " ", value) for name, value in (*fields, *options)
    )


def duplicates(sources: Iterable[Source], uri: str) -> dict[str, bool]:
    """Return the files that define a repository too, and whether such a file defines nothing else.

    NVIDIA's keyring package brings a file of its own; apt warns about every package that is defined twice.
    """
    found: dict[str, bool] = {}
    others: dict[str, bool] = {}
    for source in sources:
        if not source.enabled:
            continue
        same = [one for one in source.uris if plain_uri(one) == plain_uri(uri)]
        if same:
            found[source.path] = True
        if len(same) < len(source.uris):
            others[source.path] = True
    return {path: path not in others for path in found}


def plain_uri(uri: str) -> str:
    """Return an address in one form: no login, no trailing slash, and ``file:/x`` for ``file:///x``."""
    plain = split_login(uri)[0].rstrip("/")
    return re.sub(r"^(file|copy):/+", r"\1:/", plain)


def _is_distribution(suite: str, codename: str) -> bool:
    return any(suite == base + tail for base in (codename, *_ALIASES) for tail in _SUITE_TAILS)
