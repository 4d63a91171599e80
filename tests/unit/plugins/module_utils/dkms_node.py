"""A node with DKMS as a directory tree: modules are small texts, and commands do to it what the real ones do."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile

from conftest import FakeRunner

NAME, VERSION, KERNEL, ARCH = "nvidia-current", "535.261.03", "6.1.0-57-amd64", "x86_64"
MAGIC = KERNEL + " SMP preempt mod_unload modversions "
CONF = f'PACKAGE_NAME="{NAME}"\nPACKAGE_VERSION="{VERSION}"\n'
MARK = b"~Module signature appended~\n"


def module(code="code", magic=MAGIC, licence="NVIDIA"):
    """Return the content of a module."""
    return f"{code}\nvermagic={magic}\nlicense={licence}\n".encode()


def signed(data, serial):
    """Return a module with a signature at its end, as the kernel's sign-file appends it."""
    signature = f"sig_key={serial}\n".encode()
    return data + signature + bytes(8) + len(signature).to_bytes(4, "big") + MARK


class DkmsNode(FakeRunner):
    """The node and its commands at once.

    Args:
        root: Where its tree goes.
        secure_boot: Whether mokutil says that it is on.
        enrolled: Serial numbers of the enrolled keys, the node's own one among them or not.
    """

    OWN = "0A:11"

    def __init__(self, root, secure_boot=False, enrolled=()):
        self.root = root
        listing = "".join(f"Serial Number:\n            {serial.lower()}\n" for serial in enrolled)
        own = self.OWN in enrolled
        super().__init__(
            {
                "uname -m": ARCH + "\n",
                "mokutil --sb-state": "SecureBoot " + ("enabled" if secure_boot else "disabled"),
                "mokutil --list-enrolled": listing,
                "mokutil --test-key": "mok.pub is already enrolled" if own else "mok.pub is not enrolled",
                "modinfo": self.modinfo,
                "depmod": self.depmod,
                "dkms add": self.add,
                "dkms ldtarball": self.ldtarball,
                "dkms install": self.install,
                "dkms mktarball": self.mktarball,
                str(root / "usr/lib/linux-kbuild-6.1/scripts/sign-file"): self.sign,
            }
        )
        self.modules = root / "lib/modules" / KERNEL
        (self.modules / "kernel").mkdir(parents=True)
        (self.modules / "kernel/loop.ko").write_bytes(module("loop"))
        for path in ("usr/lib/linux-kbuild-6.1/scripts/sign-file", "var/lib/dkms/mok.key", "var/lib/dkms/mok.pub"):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("")
        self.depmod([])
        self.source = root / f"usr/src/{NAME}-{VERSION}"
        self.source.mkdir(parents=True)
        (self.source / "dkms.conf").write_text(CONF)
        self.tree = root / "var/lib/dkms" / NAME

    @property
    def build(self):
        return self.tree / VERSION / KERNEL / ARCH / "module"

    def compile(self, **files):
        """Have modules compiled by DKMS; keys are names without .ko."""
        self.add([])
        self.build.mkdir(parents=True)
        for name, data in (files or {"nvidia_current": module()}).items():
            (self.build / (name.replace("_", "-") + ".ko")).write_bytes(data)

    # --- commands ----------------------------------------------------------------------------------------------------

    def modinfo(self, argv):
        out = ""
        for path in argv[1:]:
            with open(path, "rb") as stream:
                fields = dict(line.split("=", 1) for line in stream.read().decode("latin-1").split("\n") if "=" in line)
            out += f"filename:       {path}\n" + "".join(f"{key}:       {value}\n" for key, value in fields.items())
        return out

    def depmod(self, _argv):
        found = sorted(path.relative_to(self.modules) for path in self.modules.rglob("*.ko"))
        (self.modules / "modules.dep").write_text("".join(f"{path}:\n" for path in found))
        return ""

    def add(self, _argv):
        self.tree.joinpath(VERSION).mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(self.tree / VERSION / "source"):
            os.symlink(self.source, self.tree / VERSION / "source")
        return ""

    def ldtarball(self, argv):
        scratch = self.root / "ldtarball"
        with tarfile.open(argv[-1].split("=", 1)[1]) as tar:
            tar.extractall(scratch)  # noqa: S202 made by the test
        target = self.tree / VERSION / KERNEL / ARCH
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(scratch / "dkms_main_tree" / KERNEL / ARCH, target)
        shutil.rmtree(scratch)
        return ""

    def install(self, _argv):
        place = self.modules / "updates/dkms"
        place.mkdir(parents=True, exist_ok=True)
        for path in self.build.iterdir():
            shutil.copy(path, place / path.name)
        link = self.tree / f"kernel-{KERNEL}-{ARCH}"
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(f"{VERSION}/{KERNEL}/{ARCH}", link)
        return self.depmod([])

    def mktarball(self, argv):
        scratch = self.root / "mktarball"
        shutil.copytree(self.build.parent, scratch / "dkms_main_tree" / KERNEL / ARCH)
        write_archive(argv[-1].split("=", 1)[1], scratch)
        shutil.rmtree(scratch)
        return ""

    def sign(self, argv):
        with open(argv[-1], "rb") as stream:
            data = stream.read()
        with open(argv[-1], "wb") as stream:
            stream.write(signed(data, self.OWN))
        return ""


def write_archive(path, scratch, conf=CONF, name=NAME, version=VERSION):
    """Write what dkms mktarball would of a directory with dkms_main_tree."""
    about = scratch / "dkms_binaries_only"
    about.mkdir(parents=True)
    for file, text in {"dkms.conf": conf, "PACKAGE_NAME": name + "\n", "PACKAGE_VERSION": version + "\n"}.items():
        (about / file).write_text(text)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(scratch, arcname=".")


def archive(folder, files=None, kernel=KERNEL, **about):
    """Make an archive; return its path and sha256."""
    inside = folder / "inside"
    place = inside / "dkms_main_tree" / kernel / ARCH / "module"
    place.mkdir(parents=True)
    for name, data in (files or {"nvidia-current.ko": module()}).items():
        (place / name).write_bytes(data)
    path = folder / f"{NAME}.tgz"
    write_archive(path, inside, **about)
    shutil.rmtree(inside)
    return str(path), hashlib.sha256(path.read_bytes()).hexdigest()
