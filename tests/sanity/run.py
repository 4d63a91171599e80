# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ansible-test on an exported copy of the collection.

ansible-test wants the collection below a directory ``ansible_collections/<namespace>/<name>`` and accepts no directory
symlink, so the working tree (committed and uncommitted files alike, ignored ones left out) is copied there first: what
the built collection holds, plus the tests that ansible-test knows. The lab and the benchmark are no part of it.

Its environments are kept below a home directory of their own in the user's cache, so that a second run makes none.
pip comes into them from the standard library: ansible-test would otherwise download a bootstrap script.

Usage: run.py [sanity|units] [arguments for ansible-test, for example --test validate-modules]
"""

from __future__ import annotations

import ast
import configparser
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE, NAME = "aiinfra", "gpu_node"
#: Left out of the built collection, but checked and used by ansible-test all the same.
TESTS = ("tests/unit/", "tests/sanity/", "tests/integration/")

BOOTSTRAP = """\
\"\"\"Stand-in for the bootstrap script of pip: installs the pip that comes with Python.\"\"\"
import ensurepip

ensurepip.bootstrap(default_pip=True)
"""


def export(target: Path) -> None:
    """Copy what git knows or would add into ``target`` and make it a repository, as ansible-test wants it."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout.decode("utf-8", "surrogateescape")
    ignored = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["build_ignore"]
    for name in sorted(filter(None, names.split("\0"))):
        source = ROOT / name
        # A file that git knows may be gone from the working tree.
        if not (source.is_file() or source.is_symlink()):
            continue
        shipped = not any(fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in ignored)
        if not shipped and not name.startswith(TESTS):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name, follow_symlinks=False)
    subprocess.run(["git", "init", "-q"], cwd=target, check=True)
    subprocess.run(["git", "add", "-A"], cwd=target, check=True)


def prepare_home(python: str) -> Path:
    """Return the home directory that ansible-test gets, with pip's settings of this user and the bootstrap stand-in."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / f"{NAMESPACE}.{NAME}" / "ansible-test"
    (home / ".ansible/test/cache").mkdir(parents=True, exist_ok=True)
    for version in _pip_versions():
        (home / f".ansible/test/cache/get_pip_{version}.py").write_text(BOOTSTRAP, encoding="utf-8")
    _write_pip_config(python, home)
    return home


def _pip_versions() -> set[str]:
    """Return the versions of pip that this ansible-test asks for, as they stand in the names of its cached scripts."""
    import ansible_test

    versions = {"24_2"}
    sources = Path(next(iter(ansible_test.__path__))) / "_internal"
    for source in sources.rglob("*.py"):
        for version in re.findall(r"['\"](2\d\.\d(?:\.\d)?)['\"]", source.read_text(encoding="utf-8")):
            versions.add(version.replace(".", "_"))
    return versions


def _write_pip_config(python: str, home: Path) -> None:
    """Write the user's effective pip settings as a file, since ansible-test hands on neither variables nor the home."""
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
    config = configparser.RawConfigParser()
    config.add_section("global")
    for line in listed:
        key, _sign, value = line.partition("=")
        section, _dot, option = key.rpartition(".")
        section = "global" if section == ":env:" else section
        if not config.has_section(section):
            config.add_section(section)
        config.set(section, option, ast.literal_eval(value))
    path = home / ".config/pip/pip.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as handle:
        config.write(handle)


def main(arguments: list[str]) -> int:
    """Export, run, and return ansible-test's exit status."""
    command = arguments[0] if arguments and not arguments[0].startswith("-") else "sanity"
    rest = arguments[1:] if arguments and arguments[0] == command else arguments
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    ansible_test = Path(sys.executable).parent / "ansible-test"
    home = prepare_home(sys.executable)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTEST_"))}
    environment["HOME"] = str(home)
    # The tools of the environment that runs this script come first, as an activated environment would have it.
    environment["PATH"] = f"{ansible_test.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    with tempfile.TemporaryDirectory(prefix="gpu-node-sanity-") as scratch:
        target = Path(scratch) / "ansible_collections" / NAMESPACE / NAME
        target.mkdir(parents=True)
        export(target)
        # The user's git settings (safe.directory, for example) stay out: this home has none.
        done = subprocess.run(
            [str(ansible_test), command, "--local", "--python", version, "--color", "no", *rest],
            cwd=target,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
