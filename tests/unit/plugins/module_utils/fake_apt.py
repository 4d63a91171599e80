"""A node whose apt and dpkg are played from a table: enough of both to test transactions without them."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, Runner


class FakeNode(Runner):
    """Plays apt-get, apt-cache and dpkg on a status file below ``root``.

    Args:
        root: Directory that stands for ``/``.
        available: Name to list of versions, the candidate first.
        installed: Name to version.
        held: Names that are held.
    """

    def __init__(self, root, available=None, installed=None, held=()):
        self.root = root
        self.available = available or {}
        self.packages = {name: ["install", "ok", "installed", version] for name, version in (installed or {}).items()}
        for name in held:
            self.packages[name][0] = "hold"
        self.pulls = {}
        self.failing = {}
        self.die_in = None
        #: Packages that nobody asked for.
        self.automatic = set()
        #: What ``apt-get -f install`` would do beside finishing: names to remove, and name to new version.
        self.fix = {"removes": [], "moves": {}}
        self.sizes = {}
        self.calls = []
        self.environments = []
        (root / "var/lib/dpkg").mkdir(parents=True)
        (root / "var/lib/apt").mkdir(parents=True)
        self.write()

    def write(self):
        stanzas = [
            f"Package: {name}\nStatus: {want} {flag} {status}\nArchitecture: amd64\nVersion: {version}\n"
            for name, (want, flag, status, version) in sorted(self.packages.items())
        ]
        (self.root / "var/lib/dpkg/status").write_text("\n".join(stanzas))
        self.automatic &= set(self.packages)
        marks = [f"Package: {name}\nArchitecture: amd64\nAuto-Installed: 1\n" for name in sorted(self.automatic)]
        (self.root / "var/lib/apt/extended_states").write_text("\n".join(marks))

    def state(self):
        return {name: entry[3] for name, entry in self.packages.items() if entry[2] == "installed"}

    def holds(self):
        return sorted(name for name, entry in self.packages.items() if entry[0] == "hold")

    def run(self, argv, timeout=60.0, env=None, stdin=None):
        self.calls.append(" ".join(argv))
        self.environments.append(dict(env or {}))
        if argv[0] == "apt-cache":
            return CommandResult(0, "\n\n".join(self._show(word) for word in argv[2:]))
        if argv[:2] == ["dpkg", "--set-selections"]:
            for line in stdin.splitlines():
                name, want = line.split()
                self.packages[name][0] = want
            self.write()
            return CommandResult(0)
        if argv[0] == "apt-mark":
            (self.automatic.update if argv[1] == "auto" else self.automatic.difference_update)(argv[2:])
            self.write()
            return CommandResult(0)
        if argv[0] == "dpkg":
            return self._dpkg(argv)
        if "update" in argv:
            return CommandResult(0)
        return self._apt_get(argv)

    def _show(self, word):
        name, version = word.split("=")
        size = self.sizes.get(name, 1)
        return f"Package: {name}\nVersion: {version}\nInstalled-Size: {size * 1024}\nSize: {size << 20}"

    def _dpkg(self, argv):
        if "--configure" in argv:
            return self._configure()
        for word in argv:
            self.packages.pop(word, None)
        self.write()
        return CommandResult(0)

    def _configure(self):
        out = []
        for name, entry in sorted(self.packages.items()):
            if entry[2] in ("unpacked", "half-configured"):
                if (name, entry[3]) in self.failing:
                    out.append(self.failing[name, entry[3]])
                    out.append(f"dpkg: error processing package {name} (--configure):")
                    entry[2] = "half-configured"
                else:
                    entry[2] = "installed"
        self.write()
        return CommandResult(1 if out else 0, "\n".join(out))

    def _plan(self, words):
        wanted, absent = {}, [word[:-1] for word in words if word.endswith("-") and word[:-1] in self.packages]
        pending = [word for word in words if not word.endswith("-")]
        while pending:
            name, _sign, version = pending.pop().partition("=")
            offers = self.available.get(name, [])
            if version and version not in offers:
                return None, f"E: Version '{version}' for '{name}' was not found"
            if not offers:
                return None, f"E: Unable to locate package {name}"
            if name in wanted:
                continue
            wanted[name] = version or offers[0]
            pending += self.pulls.get((name, wanted[name]), self.pulls.get(name, []))
        absent += [name for name in self.pulls.get("removes", []) if name in self.packages]
        return (wanted, absent), ""

    def _fixing(self, plan):
        """Add what a repair takes along, as long as something is unfinished."""
        if any(entry[2] != "installed" for entry in self.packages.values()):
            plan[0].update(self.fix["moves"])
            plan[1].extend(name for name in self.fix["removes"] if name in self.packages)

    def _apt_get(self, argv):
        words = argv[argv.index("install") + 1 :] if "install" in argv else []
        plan, error = self._plan(words)
        if plan is None:
            return CommandResult(100, "", error)
        if "-f" in argv:
            self._fixing(plan)
        wanted, absent = plan
        lines, held = [], []
        status = next((w.split("=", 1)[1] for w in argv if w.startswith("Dir::State::status=")), None)
        text = (self.root / "var/lib/dpkg/status").read_text() if status is None else Path(status).read_text()
        for name, new in sorted(wanted.items()):
            old = self.packages.get(name)
            if old and old[3] == new and old[2] == "installed":
                continue
            if f"Package: {name}\nStatus: hold" in text:
                held.append(name)
            lines.append(f"Inst {name}{f' [{old[3]}]' if old else ''} ({new} Lab:1/stable [amd64])")
        lines += [f"Remv {name} [{self.packages[name][3]}]" for name in absent]
        if held:
            return CommandResult(100, "", "E: Held packages were changed and -y was used.")
        if "-s" in argv:
            return CommandResult(0, "\n".join(lines))
        for name in absent:
            del self.packages[name]
        asked = {word.partition("=")[0] for word in words}
        for name, new in wanted.items():
            if name in asked:
                self.automatic.discard(name)
            elif name not in self.packages:
                self.automatic.add(name)
            entry = self.packages.setdefault(name, ["install", "ok", "unpacked", new])
            if entry[3] != new or entry[2] != "installed":
                entry[2:] = ["unpacked", new]
            if self.die_in == name:
                self.write()
                raise KeyboardInterrupt
        self.write()
        result = self._configure()
        return CommandResult(100 if result.rc else 0, "\n".join(lines) + "\n" + result.out)
