"""A universe from plain dictionaries or captured Packages files, with a solver just good enough for the tests."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get, _dpkg
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_pick import satisfies
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._universe import (
    Offer,
    Origin,
    Universe,
    parse_packages,
    parse_relations,
)

FIXTURES = Path(__file__).parent / "fixtures/apt"
DEBIAN = Origin(
    "Debian", "Debian", "stable", "bookworm", "http://mirror.example/debian", "http://mirror.example/debian/"
)
SECURITY = Origin("Debian", "Debian-Security", "stable-security", "bookworm-security", "http://sec.example/debian", "u")
BACKPORTS = Origin(
    "Debian Backports", "Debian Backports", "stable-backports", "bookworm-backports", "http://b.example/debian", "u"
)
UBUNTU = Origin("Ubuntu", "Ubuntu", "noble", "noble", "http://mirror.example/ubuntu", "http://mirror.example/ubuntu/")
CUDA = Origin("NVIDIA", "NVIDIA CUDA", "", "", "https://cuda.example", "https://cuda.example/debian12/x86_64/")


def package(name, version, status="installed", want="install"):
    """Return an installed package."""
    return _dpkg.Package(name, version, "amd64", want, "ok", status, name)


def offer(name, version, origin=DEBIAN, depends="", provides=""):
    """Return an offer from control file fields."""
    return Offer(
        name, version, origin, parse_relations(depends), tuple(group[0] for group in parse_relations(provides))
    )


def bookworm():
    """Return the driver packages of the real bookworm: main 535.261.03, security 535.309.01, backports 535.216.03."""
    found = []
    for name, origin in (("main", DEBIAN), ("security", SECURITY), ("backports", BACKPORTS)):
        text = (FIXTURES / f"bookworm-{name}.packages").read_text()
        found += parse_packages(text, origin, lambda _name: True)
    return found


class DictUniverse(Universe):
    """Solves by taking each wanted package and, for what it lacks, the newest that fits.

    Args:
        offers: Offers.
        installed: Name to version.
        extra: What a package that is no offer pulls when apt installs it: name to [(name, old, new)].
    """

    def __init__(self, offers, installed=None, distribution=("Debian",)):
        super().__init__(
            offers, {name: package(name, version) for name, version in (installed or {}).items()}, distribution
        )
        self.effects = {}
        self.error = ""
        self.pins = []

    def simulate(self, arguments, pins_text, lifted):
        self.pins.append(pins_text)
        if self.error:
            return _apt_get.Simulation({}, {}, self.error)
        words = arguments[arguments.index("install") + 1 :]
        removes = {word[:-1]: self.installed[word[:-1]].version for word in words if word.endswith("-")}
        final = {name: one.version for name, one in self.installed.items() if name not in removes}
        queue = [word.partition("=")[::2] for word in words if not word.endswith("-")]
        installs = {}
        while queue:
            name, version = queue.pop(0)
            if name in self.effects:
                for other, old, new in self.effects[name]:
                    installs[other] = (old, new)
            chosen = self._offer(name, version)
            if chosen is None:
                final.setdefault(name, "1")
                if name not in self.installed:
                    installs.setdefault(name, ("", "1"))
                continue
            if final.get(name) != chosen.version:
                installs[name] = (self.installed[name].version if name in self.installed else "", chosen.version)
                final[name] = chosen.version
            queue += [(need, "") for need in self._needs(chosen, final, queue)]
        return _apt_get.Simulation(installs, removes)

    def _offer(self, name, version):
        offers = [one for one in self.offers(name) if not version or one.version == version]
        offers.sort(key=lambda one: [int(part) for part in one.upstream.split(".") if part.isdigit()])
        return offers[-1] if offers else None

    def _needs(self, chosen, final, queue):
        asked = {name: version for name, version in queue if version}
        present = [self._offer(name, version) for name, version in {**final, **asked}.items()]
        for group in chosen.depends:
            if any(relation.name in final or relation.name in asked for relation in group):
                continue
            if any(one and satisfies(one, relation) for one in present for relation in group):
                continue
            relation = group[0]
            providers = self.providers(relation)
            yield relation.name if self.offers(relation.name) or not providers else providers[0].name
