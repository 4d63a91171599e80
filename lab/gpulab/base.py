# SPDX-License-Identifier: GPL-3.0-or-later
"""The slow part, made once a suite: base system, closure of what roles install later, small kernels.

Only what decides the content is in here: a change of this file makes everything again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Callable

from . import chroot, compose, debs, overlay, paths, repack
from .progress import LabError, run, step
from .suites import BASE_PACKAGES, NODE_PACKAGES, OFFERED_PACKAGES, Suite

_INST = re.compile(r"^Inst (\S+) (?:\[[^\]]*\] )?\((\S+) .*\[(\w+)\]\)")
_SMALL = re.compile(r"^linux-(image|modules)-\d")
_APT = "apt-get -o Acquire::Retries=3"
_NO_DOCS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "force-unsafe-io",
)
# Files that the installer of a real machine would have left behind.
_NODE_SETUP = """
debconf-set-selections <<'END'
grub-pc grub-pc/install_devices_empty boolean true
grub-pc grub2/linux_cmdline_default string quiet
grub-pc grub2/linux_cmdline string
END
mkdir -p /boot/grub
apt-get update
apt-get install -y --no-install-recommends initramfs-tools
sed -i 's/^COMPRESS=.*/COMPRESS=zstd/; s/^# COMPRESSLEVEL=.*/COMPRESSLEVEL=1/' /etc/initramfs-tools/initramfs.conf
apt-get install -y --no-install-recommends {packages}
update-grub
test -s /boot/grub/grub.cfg
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt/* /var/log/dpkg.log /etc/resolv.conf
: > /etc/machine-id
rm -f /var/lib/dbus/machine-id
"""


def _bootstrap(suite: Suite, root: Path, archives: Path, log: Path) -> None:
    archives.mkdir(parents=True, exist_ok=True)
    cache = str(archives)
    run(
        f"[{suite.name}] base system with mmdebstrap",
        [
            *("unshare", "--mount", "--propagation", "private"),  # its mounts end with it, however it ends
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            "--format=directory",
            "--include=" + ",".join(BASE_PACKAGES),
            *("--dpkgopt=" + option for option in _NO_DOCS),
            '--setup-hook=mkdir -p "$1"/var/cache/apt/archives/',
            f"--setup-hook=sync-in '{cache}' /var/cache/apt/archives/",
            f"--customize-hook=sync-out /var/cache/apt/archives '{cache}'",
            "--skip=download/empty",
            "--skip=essential/unlink",
            "--skip=cleanup/apt",
            suite.name,
            str(root),
        ],
        log,
        {**os.environ, "LC_ALL": "C.UTF-8"},
    )


def read_index(folder: Path) -> dict[str, dict[str, object]]:
    """archive -> {"release": {...}, "stanzas": [...]} of the real packages."""
    data: dict[str, dict[str, object]] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return data


def _lists(root: Path) -> dict[str, tuple[Path, Path]]:
    """archive -> (Packages, InRelease) as apt in the root file system has them."""
    shown = chroot.ask(
        root, "apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(FILENAME)' 'Created-By: Packages'"
    )
    found: dict[str, tuple[Path, Path]] = {}
    for line in shown.splitlines():
        archive, component, name = line.split()
        if component != "main":
            continue
        packages = Path(str(root) + name)
        release = packages.with_name(packages.name.partition("_main_binary-")[0] + "_InRelease")
        found[archive] = (packages, release)
    return found


def _kernels(suite: Suite, lists: dict[str, tuple[Path, Path]]) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Image and headers of every offered kernel by name, and the meta packages that bring them."""
    metas = ("linux-image-amd64", "linux-headers-amd64")
    names: list[str] = []
    found: list[tuple[str, str, str]] = []
    for archive in suite.kernel_suites:
        for stanza in debs.stanzas(lists[archive][0].read_text(encoding="utf-8")):
            if stanza.partition("\n")[0].partition(": ")[2] in metas:
                head = debs.fields(stanza)
                names.append(head["Depends"].split()[0])
                found.append((head["Package"], head["Version"], head["Architecture"]))
    if not names:
        raise LabError("no linux-image-amd64 in the package lists of {}".format(", ".join(suite.kernel_suites)))
    return names, found


def _download(
    suite: Suite, root: Path, archives: Path, log: Path
) -> tuple[set[tuple[str, str, str]], dict[str, tuple[Path, Path]]]:
    """Downloads the closure into the cache; returns it as (package, version, architecture), and the package lists."""
    for name in ("resolv.conf", "hosts"):
        shutil.copy("/etc/" + name, root / "etc" / name)
    sources = (root / "etc/apt/sources.list").read_text(encoding="utf-8")
    line = next(row for row in sources.splitlines() if f" {suite.name} main" in row)
    extra = root / "etc/apt/sources.list.d/backports.list"
    extra.write_text(line.replace(f" {suite.name} ", f" {suite.name}-backports ") + "\n", encoding="utf-8")
    binds = {archives: "/var/cache/apt/archives"}
    update = f"{_APT} -o Acquire::Languages=none -o APT::Update::Error-Mode=any update"
    chroot.inside(f"[{suite.name}] package lists", root, update, log, binds)
    lists = _lists(root)

    found: set[tuple[str, str, str]] = set()
    apt = f"{_APT} -o APT::Install-Recommends=false -o APT::Sandbox::User=root -y"
    kernels, metas = _kernels(suite, lists)
    groups = [" ".join([*OFFERED_PACKAGES, *NODE_PACKAGES, *suite.extra_packages, *kernels]), *suite.alone_packages]
    questions = ["dpkg-query -W -f 'Inst ${Package} (${Version} . [${Architecture}])\\n'"]
    questions += [f"{apt} -s install {group}" for group in groups]
    with step(f"[{suite.name}] which packages belong together"):
        shown = chroot.ask(root, "\n".join(questions), binds)
    for row in shown.splitlines():
        match = _INST.match(row)
        if match:
            found.add((match.group(1), match.group(2), match.group(3)))
    found.update(metas)
    commands = [f"{apt} --download-only install {group}" for group in groups]
    commands.append("cd /var/cache/apt/archives")
    commands.append("{} download {}".format(apt, " ".join("{}={}".format(*meta[:2]) for meta in metas)))
    chroot.inside(
        f"[{suite.name}] {len(found)} real packages into {archives.relative_to(paths.ROOT)}",
        root,
        "\n".join(commands),
        log,
        binds,
    )
    return found, lists


def _index(
    suite: Suite,
    folder: Path,
    archives: Path,
    found: set[tuple[str, str, str]],
    lists: dict[str, tuple[Path, Path]],
    log: Path,
) -> None:
    """Index fragments and pool of the real packages, taken over from the archive's own lists."""
    data: dict[str, dict[str, object]] = {}
    names = {package for package, _, _ in found}
    for archive in suite.archives:
        packages, release = lists[archive]
        kept: list[str] = []
        for stanza in debs.stanzas(packages.read_text(encoding="utf-8")):
            if stanza.partition("\n")[0].partition(": ")[2] not in names:
                continue
            head = debs.fields(stanza)
            ident = (head["Package"], head["Version"], head["Architecture"])
            if ident not in found:
                continue
            name = debs.archive_name(*ident)
            source = next((path for path in (archives / name, archives / "bootstrap" / name) if path.exists()), None)
            if source is None or source.stat().st_size != int(head["Size"]):
                raise LabError(f"{name} was not downloaded, or only in part")
            if _SMALL.match(ident[0]) and "kernel" in head.get("Section", ""):
                source = repack.repack(source, log)
                stanza = debs.replace_fields(stanza, debs.file_fields(source))
            target = folder / head["Filename"]
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                os.link(source, target)
            kept.append(stanza)
        fields = debs.Release.from_text(release.read_text(encoding="utf-8")).fields
        data[archive] = {"release": fields, "stanzas": kept}
    (folder / "index.json").write_text(json.dumps(data), encoding="utf-8")


def make(suite: Suite, root: Path, target: Path, archives: Path, log: Path, indexed: Callable[[], Path]) -> None:
    """Fills root with the base system and target with index and pool of the real packages.

    Calls back once target is complete, long before root is; the caller may move it, and says where to.
    """
    _bootstrap(suite, root, archives / "bootstrap", log)
    found, lists = _download(suite, root, archives, log)
    _index(suite, target, archives, found, lists, log)
    folder = indexed()
    tree = root.with_name("repo-" + suite.name)
    with step(f"[{suite.name}] repository for the base image"):
        compose.compose(suite, read_index(folder), folder, None, tree)
    shutil.rmtree(root / "var/lib/apt/lists")
    (root / "var/lib/apt/lists").mkdir()
    (root / "etc/apt/sources.list.d/backports.list").unlink()
    (root / "etc/apt/sources.list").unlink()
    overlay.apply_to_tree(overlay.base_contents(suite), root, log)
    chroot.inside(
        f"[{suite.name}] kernel and boot loader into the base image",
        root,
        "/usr/lib/gpu-node-lab/install-base.sh\n" + _NODE_SETUP.format(packages=" ".join(NODE_PACKAGES)),
        log,
        {tree: "/srv/lab"},
    )
    shutil.rmtree(tree)
