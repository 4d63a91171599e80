# Copyright: aiinfra.gpu_node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiles what the packages carry: the NVML library of each version, the tools, stub libraries, kernel modules.

Names of artifacts: "nvml:535.261.03", "cuda:535.261.03", "stub:libnvcuvid.so.1", "tool:nvidia-smi",
"persistenced:535.171.04", "key:cuda", "module:<kernel release>:<driver>:<flavour>:<file>".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packages.model import DRIVERS, HERE, branch

FLAGS = ["-std=gnu11", "-O1", "-g0", "-Wall", "-Wextra", "-Werror", "-Wl,--build-id=none"]
SHARED = ["-fPIC", "-shared", "-fvisibility=hidden"]
# BUILT_MODULE_NAME of the DKMS source; the packages rename the files.
MODULES = ("nvidia", "nvidia-modeset", "nvidia-uvm")
# The prebuilt packages carry this one; compiling all for each kernel would only cost time.
PREBUILT_MODULES = ("nvidia",)
BANNERS = {
    "proprietary": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Stand-in Build",
    "open": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Stand-in Build",
}
LICENSES = {"proprietary": "NVIDIA", "open": "Dual MIT/GPL"}


class BuildError(Exception):
    """A step of the build failed; the text says which."""


def execute(argv: list[str], where: Path | None = None) -> str:
    """Run a command, return what it printed, fail with its output."""
    result = subprocess.run(
        argv,
        cwd=where,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C"},
    )
    if result.returncode:
        raise BuildError(f"{' '.join(argv)}: exit code {result.returncode}\n{result.stdout.strip()}")
    return result.stdout


def module_source(name: str, version: str, flavour: str, module_prefix: str, where: Path) -> None:
    """Write the DKMS source tree of one driver version: name is the DKMS name, module_prefix the installed file's."""
    where.mkdir(parents=True, exist_ok=True)
    for item in ("nvidia.c", "part.c", "Kbuild", "Makefile"):
        shutil.copyfile(HERE / "dkms" / item, where / item)
    driver = DRIVERS[version]
    last = (driver.beyond[0], driver.beyond[1] - 1)
    known = ".".join(map(str, driver.first)) + ("" if last == driver.first else " to " + ".".join(map(str, last)))
    header = {
        "VERSION": version,
        "LICENSE": LICENSES[flavour],
        "BANNER": BANNERS[flavour],
        "KERNELS": known,
        "FIRST": "{}, {}".format(*driver.first),
        "BEYOND": "{}, {}".format(*driver.beyond),
    }
    (where / "stand_in.h").write_text(fill(HERE / "dkms/stand_in.h.in", header), encoding="utf-8")
    lines = []
    for number, module in enumerate(MODULES):
        lines.append(f'BUILT_MODULE_NAME[{number}]="{module}"')
        lines.append(f'DEST_MODULE_NAME[{number}]="{module.replace("nvidia", module_prefix, 1)}"')
        lines.append(f'DEST_MODULE_LOCATION[{number}]="/updates/dkms"')
    values = {"NAME": name, "VERSION": version, "MODULES": "\n".join(lines)}
    (where / "dkms.conf").write_text(fill(HERE / "dkms/dkms.conf.in", values), encoding="utf-8")


def fill(template: Path, values: dict[str, str]) -> str:
    """Return a template with @KEY@ replaced."""
    content = template.read_text(encoding="utf-8")
    for key, value in values.items():
        content = content.replace(f"@{key}@", value)
    return content


class Artifacts:
    """Compiles each artifact once and keeps it in a folder."""

    def __init__(
        self,
        folder: Path,
        headers: dict[str, Path] | None = None,
        prebuilt: dict[str, Path] | None = None,
        compiler: str = "gcc",
    ) -> None:
        self.folder = folder
        self.headers = headers or {}
        self.prebuilt = prebuilt or {}
        self.compiler = compiler
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / name.replace(":", "_").replace("/", "_")

    def put(self, name: str, content: bytes) -> None:
        """Give an artifact its content, which nothing here can make."""
        self._path(name).write_bytes(content)

    def get(self, name: str) -> Path:
        """Return the compiled file."""
        path = self._path(name)
        if not path.exists():
            kind, _, rest = name.partition(":")
            getattr(self, f"_{kind}")(rest, path)
        return path

    def _key(self, _name: str, path: Path) -> None:
        path.write_bytes(b"")  # no key was given: the package is whole, apt will not trust what it names

    def _compile(self, path: Path, *arguments: str) -> None:
        execute([self.compiler, *FLAGS, *arguments, "-o", str(path)])

    def _nvml(self, version: str, path: Path) -> None:
        build_nvml(version, path, compiler=self.compiler)

    def _cuda(self, version: str, path: Path) -> None:
        self._compile(
            path,
            *SHARED,
            "-Wl,-soname,libcuda.so.1",
            *defines(version),
            str(HERE / "nvml/cuda.c"),
            str(HERE / "nvml/state.c"),
        )

    def _stub(self, soname: str, path: Path) -> None:
        self._compile(path, *SHARED, f"-Wl,-soname,{soname}", "-x", "c", os.devnull)

    def _tool(self, _name: str, path: Path) -> None:
        self._compile(path, str(HERE / "tools/nvidia_smi.c"), "-ldl")

    def _persistenced(self, version: str, path: Path) -> None:
        self._compile(
            path, f'-DDRIVER_VERSION="{version}"', str(HERE / "tools/nvidia_persistenced.c"), str(HERE / "nvml/state.c")
        )

    def _module(self, rest: str, path: Path) -> None:
        release, version, flavour, file = rest.split(":")
        done = self.prebuilt.get(release)
        if done is not None:
            candidates = [done / f"{version}-{flavour}" / file, done / file]
            found = next((item for item in candidates if item.is_file()), None)
            if found is None:
                raise BuildError(f"--prebuilt-modules {done}:{release} has neither {candidates[0]} nor {candidates[1]}")
            shutil.copyfile(found, path)
            return
        build = self.folder / f"modules-{release}-{version}-{flavour}"
        if not (build / "nvidia.ko").exists():
            module_source("nvidia", version, flavour, "nvidia", build)
            compile_modules(self.headers[release], build)
        shutil.copyfile(build / file, path)


def build_nvml(version: str, path: Path, hide: Iterable[str] = (), compiler: str = "gcc") -> None:
    """Compile libnvidia-ml.so.1 of a driver version, without the symbols of newer branches and without those in hide.

    A symbol cannot be taken out of a finished library, so what is hidden is left local by the linker.
    """
    source = HERE / "nvml"
    exports = source / "exports.map"
    hidden = "".join(f" {symbol};" for symbol in hide)
    if hidden:
        text = exports.read_text(encoding="utf-8").replace("local:", f"local:{hidden}")
        exports = path.with_name(f"{path.name}.map")
        exports.write_text(text, encoding="utf-8")
    execute(
        [
            compiler,
            *FLAGS,
            *SHARED,
            "-Wl,-soname,libnvidia-ml.so.1",
            f"-Wl,--version-script={exports}",
            *defines(version),
            *(str(item) for item in sorted(source.glob("nvml*.c"))),
            str(source / "state.c"),
            "-o",
            str(path),
        ]
    )


def compile_modules(headers: Path, source: Path) -> None:
    """Compile the module source against a kernel's headers, which need not lie where they will be installed.

    Debian's headers name other packages by absolute paths. Where the folder beside it ends in -common, that is given to
    make as the source and the kernel's own folder as its output, so that an unpacked tree works too.
    """
    common = sorted(headers.parent.glob(f"{headers.name.rsplit('-', 1)[0]}-common"))
    where = ["-C", str(common[0]), f"O={headers}"] if common else ["-C", str(headers)]
    execute(
        [
            "make",
            *where,
            f"M={source}",
            "KCFLAGS=-g0",
            "CONFIG_DEBUG_INFO_BTF_MODULES=",
            f"STAND_IN_MODULES={' '.join(PREBUILT_MODULES)}",
            "modules",
        ]
    )
    for module in PREBUILT_MODULES:
        if not (source / f"{module}.ko").exists():
            raise BuildError(f"{source}: make left no {module}.ko")


def kernel_compiler(headers: Path) -> str:
    """Return the compiler that Debian's headers ask for."""
    variables = headers / ".kernelvariables"
    found = re.search(r"gcc-\d+", variables.read_text(encoding="utf-8")) if variables.exists() else None
    return found.group(0) if found else "gcc"


def unpack_headers(pool: Path, where: Path) -> dict[str, Path]:
    """Unpack the kernel headers among the .deb files below pool; return those that can be used here, by release.

    Left out are kernels that want another compiler than this machine has, or whose helper programs do not run here, as
    is the case with those of another Debian release.
    """
    found = [
        deb
        for deb in sorted(pool.rglob("linux-*.deb"))
        if re.match(r"linux-(headers-\d.*-(amd64|common)|kbuild-\d.*)_", deb.name)
    ]
    own = [deb for deb in found if "-amd64_" in deb.name and deb.name.startswith("linux-headers-")]
    for deb in own:
        execute(["dpkg-deb", "-x", str(deb), str(where)])
    result = {}
    for folder in sorted((where / "usr/src").glob("linux-headers-*-amd64")):
        compiler = kernel_compiler(folder)
        if shutil.which(compiler):
            result[folder.name.partition("linux-headers-")[2]] = folder
        else:
            print(f"{folder.name}: no {compiler} here, no prebuilt modules for it", file=sys.stderr)
    for deb in found if result else ():
        if deb not in own:
            execute(["dpkg-deb", "-x", str(deb), str(where)])
    for release, folder in list(result.items()):
        helper = folder / "scripts/mod/modpost"
        if not helper.exists() or subprocess.run([str(helper)], capture_output=True, check=False, cwd=where).returncode:
            print(f"{folder.name}: its programs do not run here, no prebuilt modules for it", file=sys.stderr)
            del result[release]
    return result


def defines(version: str) -> list[str]:
    """Return the macros that make a library one of this driver version, also of one that no package here has."""
    known = DRIVERS.get(version)
    return [
        f'-DDRIVER_VERSION="{version}"',
        f"-DDRIVER_BRANCH={branch(version)}",
        f"-DCUDA_VERSION={known.cuda if known else _cuda_of(branch(version))}",
    ]


def _cuda_of(number: int) -> int:
    """Return the CUDA version of the nearest branch that is not newer, as NVML counts (12020 for 12.2)."""
    known = {450: 11000, 470: 11040, 510: 11060, 525: 12000, 535: 12020, 550: 12040, 570: 12080, 580: 13000, 590: 13010}
    return known[max((item for item in known if item <= number), default=450)]
