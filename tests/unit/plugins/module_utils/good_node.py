"""A node whose driver works, made of files; apt and dpkg-deb are played from a table. To test the last known good."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from pathlib import Path

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _last_known_good
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult, Runner

VERSION = "535.261.03"
KERNEL = "6.1.0-57-amd64"
NEWER = "6.12.95-amd64"
DKMS = "nvidia-current-open"
PACKAGES = {"libcuda1": VERSION + "-1", "nvidia-open-kernel-dkms": VERSION + "-1"}
INDEPENDENT = {"nvidia-modprobe": "1:535.161.07-1"}
COMPANIONS = {"dkms": "3.0.10-8", "glx-alternative-nvidia": "1.2.2"}
#: Came with the driver, but nothing of it needs them.
LOOSE = {"bzip2": "1.0.8-5"}
RELATIONS = {
    "nvidia-open-kernel-dkms": "Pre-Depends: nvidia-alternative-any | glx-alternative-nvidia\nDepends: dkms (>= 3.0)\n",
    "libcuda1": "Depends: libc6 (>= 2.34)\n",
    "dkms": "Depends: gcc | c-compiler, dkms-helper\n",
}
GRUB = """
set default="${{saved_entry}}"
if [ "${{next_entry}}" ] ; then set default="${{next_entry}}" ; fi
submenu 'Advanced' $menuentry_id_option 'adv' {{
{entries}
}}
"""
MODINFO = "filename: {path}\nversion: {version}\nlicense: Dual MIT/GPL\nvermagic: {kernel} SMP\n"


def write(root, path, text=""):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def deb(name, version, architecture="amd64"):
    """Return the content of a package file."""
    return f"{name} {version} {architecture}\n"


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


class GoodNode(Runner):
    """Plays the few commands that recording needs, on a tree below ``root``."""

    def __init__(self, root):
        self.root = root
        self.calls = []
        #: What the package sources offer: (name, version) to architecture.
        self.offered = {}
        self.reachable = True
        self.kernels = [KERNEL]
        self.time = datetime.datetime(2026, 1, 31, 12, 0, 0, tzinfo=datetime.timezone.utc)
        self.driver(VERSION)
        self.system()

    # --- the node ----------------------------------------------------------------------------------------------------

    def driver(self, version):
        """Install a version of the driver: packages, holds, pins, record, library."""
        self.version = version
        packages = {name: value.replace(VERSION, version) for name, value in PACKAGES.items()}
        members = {**packages, **INDEPENDENT}
        self.members = members
        pins = _apt_prefs.pins_text(members, [])
        write(self.root, _apt_prefs.PINS_PATH.lstrip("/"), pins)
        write(self.root, _apt_prefs.BLACKLIST_PATH.lstrip("/"), _apt_prefs.blacklist_text(members))
        record = {
            "version": version,
            "source": "distro",
            "flavour": "open",
            "dkms_name": DKMS,
            "packages": packages,
            "independent": INDEPENDENT,
            "pins_text": pins,
            "time": "2026-01-31T11:00:00Z",
        }
        write(self.root, "var/lib/gpu_node/driver.json", json.dumps(record))
        write(
            self.root, "var/lib/gpu_node/packages.json", json.dumps({"nvidia_driver": [*COMPANIONS, *LOOSE, *members]})
        )
        for folder in ("usr/lib/x86_64-linux-gnu",):
            for old in (self.root / folder).glob("libnvidia-ml.so.*"):
                old.unlink()
            write(self.root, f"{folder}/libnvidia-ml.so.{version}")
        for name, value in {**members, **COMPANIONS, **LOOSE}.items():
            self.offered[(name, value)] = "all" if name == "dkms" else "amd64"
        self.status()
        self.load(version)

    def status(self, held=True):
        """Write dpkg's status file."""
        stanzas = []
        for name, value in {**self.members, **COMPANIONS, **LOOSE}.items():
            want = "hold" if held and name in self.members else "install"
            architecture = "all" if name == "dkms" else "amd64"
            stanzas.append(
                f"Package: {name}\nStatus: {want} ok installed\nArchitecture: {architecture}\nVersion: {value}\n"
                + RELATIONS.get(name, "")
            )
        stanzas.append("Package: gcc\nStatus: install ok installed\nArchitecture: amd64\nVersion: 12\n")
        write(self.root, "var/lib/dpkg/status", "\n".join(stanzas))

    def load(self, version):
        """Load a version of the module; None unloads it."""
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
        if version:
            write(self.root, "proc/driver/nvidia/version", text)
            write(self.root, "sys/module/nvidia/version", version + "\n")
        else:
            (self.root / "proc/driver/nvidia/version").unlink()
            (self.root / "sys/module/nvidia/version").unlink()

    def system(self):
        """Write kernels with their modules, the boot loader and one GPU."""
        entries = []
        for kernel in self.kernels:
            write(self.root, "boot/vmlinuz-" + kernel)
            write(self.root, f"lib/modules/{kernel}/modules.dep", f"updates/dkms/{DKMS}.ko:\n")
            write(self.root, f"lib/modules/{kernel}/updates/dkms/{DKMS}.ko")
            write(self.root, f"lib/modules/{kernel}/build/include/x.h")
            tree = f"var/lib/dkms/{DKMS}/{self.version}"
            write(self.root, f"{tree}/source/dkms.conf")
            write(self.root, f"{tree}/{kernel}/x86_64/module/{DKMS}.ko", "module" * 10)
            link = self.root / f"var/lib/dkms/{DKMS}/kernel-{kernel}-x86_64"
            if link.is_symlink():
                link.unlink()
            os.symlink(f"{self.version}/{kernel}/x86_64", link)
            entries.append(
                f"menuentry '{kernel}' $menuentry_id_option 'id-{kernel}' {{\n linux /boot/vmlinuz-{kernel}\n}}"
            )
        write(self.root, "boot/grub/grub.cfg", GRUB.format(entries="\n".join(entries)))
        self.boots(KERNEL)
        device = "sys/bus/pci/devices/0000:17:00.0/"
        for name, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
            write(self.root, device + name, value + "\n")
        if not (self.root / device / "driver").is_symlink():
            os.symlink("../../../bus/pci/drivers/nvidia", self.root / device / "driver")

    def boots(self, kernel, once=""):
        """Set the boot loader's default, and a one-shot entry."""
        text = f"saved_entry=adv>id-{kernel}\n" + (f"next_entry=adv>id-{once}\n" if once else "")
        write(self.root, "boot/grub/grubenv", text)

    def cache(self, *names):
        """Put package files into apt's cache."""
        for name, version in {**self.members, **COMPANIONS}.items():
            if not names or name in names:
                architecture = self.offered.get((name, version), "all" if name == "dkms" else "amd64")
                file = "{}_{}_{}.deb".format(name, version.replace(":", "%3a"), architecture)
                write(self.root, "var/cache/apt/archives/" + file, deb(name, version, architecture))

    # --- its commands ------------------------------------------------------------------------------------------------

    def run(self, argv, timeout=60.0, env=None, stdin=None):
        self.calls.append(" ".join(argv))
        if argv[0] == "modinfo":
            found = [path for path in argv[1:] if path.endswith(".ko") and "/lib/modules/" in path]
            texts = [
                MODINFO.format(path=path, version=self.version, kernel=path.split("/lib/modules/")[1].split("/")[0])
                for path in found
            ]
            return CommandResult(0, "".join(texts))
        if argv[:2] == ["apt-cache", "show"]:
            return CommandResult(0, "\n".join(self._stanza(*key) for key in self.offered if key[0] in argv[2:]))
        if argv[:2] == ["env", "-C"]:
            return self._download(argv[2], argv)
        if argv[:2] == ["dpkg-deb", "--field"]:
            name, version, architecture = Path(argv[2]).read_text().split()
            return CommandResult(0, f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n")
        if argv[:2] == ["dpkg-deb", "--info"]:
            return CommandResult(2, err="contains no control component 'md5sums'")
        return CommandResult(127, err="command not found")

    def _stanza(self, name, version):
        text = deb(name, version, self.offered[(name, version)])
        return (
            f"Package: {name}\nVersion: {version}\nArchitecture: {self.offered[(name, version)]}\n"
            f"Size: {len(text)}\nSHA256: {digest(text)}\n"
        )

    def _download(self, folder, argv):
        if not self.reachable:
            return CommandResult(100, err="E: Failed to fetch http://archive.invalid/x.deb  Could not connect")
        for word in argv[argv.index("download") + 1 :]:
            name, version = word.split("=")
            architecture = self.offered[(name, version)]
            file = "{}_{}_{}.deb".format(name, version.replace(":", "%3a"), architecture)
            with open(os.path.join(folder, file), "w", encoding="utf-8") as handle:
                handle.write(deb(name, version, architecture))
        return CommandResult(0)

    def downloads(self):
        return [call for call in self.calls if " download " in call]


def pack(runner, root, dkms_name, version, kernel, destination):
    """Stand in for the packer of compiled modules."""
    text = f"{dkms_name} {version} {kernel} compiled\n"
    path = os.path.join(destination, f"{dkms_name}-{version}-{kernel}-x86_64.tgz")
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)
    return {"file": path, "sha256": digest(text), "vermagic": f"{kernel} SMP", "arch": "x86_64"}


def recorder(node, packer=pack, **more):
    """Return the recorder of a node; each record is an hour younger than the one before."""

    def clock():
        node.time += datetime.timedelta(hours=1)
        return node.time

    more.setdefault("free_bytes", lambda path: (1, 1 << 40))
    return _last_known_good.Recorder(node, str(node.root), packer, running=KERNEL, clock=clock, **more)
