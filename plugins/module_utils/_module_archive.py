# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Archives of compiled DKMS modules: made on one node, loaded on others, without a compiler and without headers.

Compiling the real driver takes minutes, loading it takes seconds. An archive is what ``dkms mktarball`` writes: the
modules of one kernel and no source. The source comes with the driver's package, which has to be there first.

DKMS's package script throws away whatever its tree holds for the version it configures, so nothing can be put there
beforehand; while packages are installed for which an archive is at hand, ``_dkms_guard`` keeps it from compiling.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _module_files as _files
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._dkms import TREE
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernels import MODULES_DIR
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._module_tar import (
    Archive,
    ArchiveError,
    file_name,
    inspect,
    repack,
    sha256_of,
    unpacked,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._modules_index import flavour
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, list_dir, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._secureboot import secure_boot

__all__ = [
    "Archive",
    "ArchiveError",
    "built_arch",
    "describe",
    "file_name",
    "inspect",
    "judge",
    "load",
    "pack",
    "packed_already",
]

SOURCES = "usr/src"
_HOUR = 3600.0


# --- making ----------------------------------------------------------------------------------------------------------


def pack(runner: Runner, root: str, dkms_name: str, version: str, kernel: str, destination_dir: str) -> dict[str, str]:
    """Pack the compiled modules of one kernel.

    Args:
        runner: Runs dkms and modinfo.
        root: Directory that stands for ``/``.
        dkms_name: DKMS's name of the module.
        version: Its version.
        kernel: Kernel release.
        destination_dir: Where the archive goes; it appears there whole or not at all.

    Returns:
        ``file`` (its path), ``sha256``, ``vermagic``, ``arch``, ``dkms_name``, ``version`` and ``kernel``.

    Raises:
        ArchiveError: when nothing is compiled for that kernel, or it cannot be packed.
    """
    arch = built_arch(root, dkms_name, version, kernel)
    if arch is None:
        raise ArchiveError(f"DKMS has no compiled {dkms_name}/{version} for {kernel}: there is nothing to pack")
    compiled = path_below(root, _build_dir(dkms_name, version, kernel, arch) + "/module")
    vermagic = _vermagic(runner, _modules_in(compiled))
    if vermagic.split(" ")[0] != kernel:
        raise ArchiveError(
            f"The compiled {dkms_name}/{version} for {kernel} is made for {vermagic or 'an unknown kernel'}; build it "
            f"again: dkms build --force -m {dkms_name} -v {version} -k {kernel}"
        )
    os.makedirs(destination_dir, mode=0o755, exist_ok=True)
    target = os.path.join(destination_dir, file_name(dkms_name, version, kernel, arch))
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=destination_dir) as scratch:
        made = os.path.join(scratch, "modules.tgz")
        words = ["-m", dkms_name, "-v", version, "-k", kernel, "-a", arch]
        result = runner.run(["dkms", "mktarball", *words, "--binaries-only", f"--archive={made}"], timeout=_HOUR)
        if not result.ok or not os.path.exists(made):
            raise ArchiveError(f"dkms mktarball of {dkms_name}/{version} for {kernel} failed: {result.text}")
        inside = inspect(made)
        if (inside.dkms_name, inside.version, inside.kernel, inside.arch) != (dkms_name, version, kernel, arch):
            raise ArchiveError(f"dkms mktarball packed {inside} instead of {dkms_name}/{version} for {kernel}")
        digest = sha256_of(made)
        os.chmod(made, 0o644)
        _sync(made)
        os.replace(made, target)
    _sync(destination_dir)
    facts = {"dkms_name": dkms_name, "version": version, "kernel": kernel, "arch": arch}
    return {**facts, "file": target, "sha256": digest, "vermagic": vermagic}


def packed_already(
    runner: Runner, root: str, dkms_name: str, version: str, kernel: str, directory: str
) -> dict[str, str] | None:
    """Return what ``pack`` would, if the archive is there already and holds what DKMS has compiled; else None."""
    arch = built_arch(root, dkms_name, version, kernel) or ""
    path = os.path.join(directory, file_name(dkms_name, version, kernel, arch))
    compiled = _modules_in(path_below(root, _build_dir(dkms_name, version, kernel, arch) + "/module"))
    try:
        found = inspect(path)
        with unpacked(root, found) as scratch:
            packed = {os.path.basename(one): _digest(runner, one) for one in _modules_in(scratch)}
        same = packed == {os.path.basename(one): _digest(runner, one) for one in compiled}
    except ArchiveError:
        return None
    facts = {"dkms_name": dkms_name, "version": version, "kernel": kernel, "arch": arch}
    if not same or any(getattr(found, key) != value for key, value in facts.items()):
        return None
    return {**facts, "file": path, "sha256": sha256_of(path), "vermagic": _vermagic(runner, compiled)}


def built_arch(root: str, dkms_name: str, version: str, kernel: str) -> str | None:
    """Return the architecture that DKMS has compiled a module for, None where it has not."""
    for arch in list_dir(root, f"{TREE}/{dkms_name}/{version}/{kernel}"):
        if _modules_in(path_below(root, _build_dir(dkms_name, version, kernel, arch) + "/module")):
            return arch
    return None


# --- judging ---------------------------------------------------------------------------------------------------------


def describe(runner: Runner, root: str, path: str) -> dict[str, Any]:
    """Return all about an archive: who it is for, and what its modules say.

    Raises:
        ArchiveError: when it is none.
    """
    archive = inspect(path)
    with unpacked(root, archive) as scratch:
        info = _info(runner, _modules_in(scratch))
    main = next((info[file] for file in sorted(info)), {})
    return {
        "file": path,
        "sha256": sha256_of(path),
        "dkms_name": archive.dkms_name,
        "version": archive.version,
        "kernel": archive.kernel,
        "arch": archive.arch,
        "modules": sorted(archive.members),
        "vermagic": main.get("vermagic", ""),
        "flavour": flavour(main.get("license", "")),
        "signed_by": sorted({said["sig_key"] for said in info.values() if said.get("sig_key")}),
    }


def judge(runner: Runner, root: str, archive: str, sha256: str, kernel: str) -> Archive:
    """Return an archive that may be loaded for a kernel of this node.

    Raises:
        ArchiveError: when it is another file than the one recorded, was compiled for another kernel, or could not be
            loaded under Secure Boot.
    """
    found = _identified(runner, archive, sha256, kernel)
    with unpacked(root, found) as scratch:
        _judge_magic(runner, root, found, _modules_in(scratch))
        if secure_boot(runner, root)["enforced"] is True:
            _key_to_sign_with(runner, root, found, _modules_in(scratch))
    return found


def _identified(runner: Runner, archive: str, sha256: str, kernel: str) -> Archive:
    digest = sha256_of(archive)
    if digest != sha256.strip().lower():
        raise ArchiveError(
            f"The module archive {archive} is not the one that was recorded (sha256 {digest}, recorded "
            f"{sha256.strip() or 'nothing'}); remove it, so that it is made again"
        )
    found = inspect(archive)
    machine = runner.run(["uname", "-m"]).out.strip()
    if found.kernel != kernel or found.arch != machine:
        raise ArchiveError(f"The module archive {archive} holds {found}; wanted is {kernel} on {machine}")
    return found


def _judge_magic(runner: Runner, root: str, archive: Archive, modules: list[str]) -> None:
    """Compare the version magic of the modules with that of the kernel's own: the kernel refuses what differs."""
    if not os.path.isdir(path_below(root, f"{MODULES_DIR}/{archive.kernel}")):
        raise ArchiveError(
            f"The kernel {archive.kernel} is not on this node: /{MODULES_DIR}/{archive.kernel} is missing"
        )
    wanted = _files.kernel_vermagic(runner, archive.kernel, root)
    for path, said in _info(runner, modules).items():
        magic = said.get("vermagic", "").strip()
        if magic != wanted if wanted else magic.split(" ")[0] != archive.kernel:
            raise ArchiveError(
                f"The module archive {archive.path} does not fit the kernel {archive.kernel}: the version magic of "
                f"{os.path.basename(path)} is '{magic}', the kernel's is '{wanted or archive.kernel}'"
            )


# --- loading ---------------------------------------------------------------------------------------------------------


def load(runner: Runner, root: str, archive: str, sha256: str, kernel: str, check: bool = False) -> bool:
    """Make the modules of an archive those that a kernel loads; return whether anything had to be done.

    Args:
        runner: Runs dkms, modinfo, depmod and, where Secure Boot asks for it, the signing program.
        root: Directory that stands for ``/``.
        archive: The archive.
        sha256: What it was recorded with.
        kernel: Kernel release that it is wanted for.
        check: Only say whether anything would have to be done.

    Raises:
        ArchiveError: when it may not be loaded (nothing has changed then), or DKMS fails.
    """
    found = _identified(runner, archive, sha256, kernel)
    if read_text(root, f"{SOURCES}/{found.dkms_name}-{found.version}/dkms.conf") is None:
        raise ArchiveError(
            f"/{SOURCES}/{found.dkms_name}-{found.version} is missing; install the package that brings the source of "
            f"{found.dkms_name} {found.version} first: the archive holds compiled modules only"
        )
    enforced = secure_boot(runner, root)["enforced"] is True
    with unpacked(root, found) as scratch:
        modules = _modules_in(scratch)
        _judge_magic(runner, root, found, modules)
        wanted = {os.path.basename(path): _digest(runner, path) for path in modules}
        if _in_place(runner, root, found, wanted, enforced):
            return False
        if check:
            return True
        source = found.path
        key = _key_to_sign_with(runner, root, found, modules) if enforced else None
        if key is not None:
            source = _signed_again(runner, root, found, scratch, key)
        _into_tree(runner, root, found, source, wanted)
    _clear(runner, root, found, wanted)
    _install(runner, found)
    if not _in_place(runner, root, found, wanted, enforced):
        raise ArchiveError(f"DKMS reports success, but {found} is not what the kernel would load now")
    return True


def _in_place(runner: Runner, root: str, archive: Archive, wanted: Mapping[str, str], enforced: bool) -> bool:
    """Whether DKMS has these modules, says that they are installed, and the kernel's index knows the very same."""
    build = _build_dir(archive.dkms_name, archive.version, archive.kernel, archive.arch)
    link = path_below(root, f"{TREE}/{archive.dkms_name}/kernel-{archive.kernel}-{archive.arch}")
    if not os.path.islink(link) or not os.readlink(link).endswith(f"{archive.version}/{archive.kernel}/{archive.arch}"):
        return False
    index = read_text(root, f"{MODULES_DIR}/{archive.kernel}/modules.dep") or ""
    paths = re.findall(r"^([^:\n]+):", index, re.M)
    installed: list[str] = []
    for name, digest in wanted.items():
        entries = [path for path in paths if path.rsplit("/", 1)[-1] == name]
        places = [path_below(root, build + "/module/" + name)]
        places += [
            path_below(root, path if path.startswith("/") else f"{MODULES_DIR}/{archive.kernel}/{path}")
            for path in entries
        ]
        if len(entries) != 1 or not all(_is(runner, path, digest) for path in places):
            return False
        installed += places[1:]
    return not enforced or _files.trusted(_info(runner, installed), _files.enrolled_serials(runner))


def _key_to_sign_with(runner: Runner, root: str, archive: Archive, modules: list[str]) -> _files.SigningKey | None:
    """Return the key that has to sign the modules before Secure Boot lets them in; None where they are signed."""
    if _files.trusted(_info(runner, modules), _files.enrolled_serials(runner)):
        return None
    key = _files.signing_key(runner, root)
    if key is None:
        raise ArchiveError(
            f"Secure Boot is on, and the modules in {archive.path} are not signed by an enrolled key; nor has this "
            "node an enrolled key of its own to sign them with. Enrol one: mokutil --import /var/lib/dkms/mok.pub, "
            "then reboot and confirm it on the console"
        )
    return key


def _signed_again(runner: Runner, root: str, archive: Archive, scratch: str, key: _files.SigningKey) -> str:
    """Return a copy of an archive whose modules carry the signature of this node's enrolled key."""
    try:
        for path in _modules_in(scratch):
            _files.sign(runner, root, archive.kernel, key, path)
    except _files.ModuleFileError as error:
        raise ArchiveError(str(error)) from error
    copy = os.path.join(scratch, "signed.tgz")
    repack(archive, scratch, copy)
    return copy


def _into_tree(runner: Runner, root: str, archive: Archive, source: str, wanted: Mapping[str, str]) -> None:
    said = []
    known = ["-m", archive.dkms_name, "-v", archive.version]
    if not os.path.exists(path_below(root, f"{TREE}/{archive.dkms_name}/{archive.version}/source")):
        said.append(runner.run(["dkms", "add", *known], timeout=_HOUR).text)
    # Its exit status says nothing: a version that is known already makes it fail after everything was loaded.
    said.append(runner.run(["dkms", "ldtarball", "--force", f"--archive={source}"], timeout=_HOUR).text)
    build = _build_dir(archive.dkms_name, archive.version, archive.kernel, archive.arch)
    for name, digest in wanted.items():
        path = path_below(root, build + "/module/" + name)
        if not _is(runner, path, digest):
            raise ArchiveError(f"dkms ldtarball of {archive.path} failed: {' '.join(said)}")


def _clear(runner: Runner, root: str, archive: Archive, wanted: Mapping[str, str]) -> None:
    """Remove torn modules from DKMS's own directory: it would keep them as originals, to be put back one day."""
    link = path_below(root, f"{TREE}/{archive.dkms_name}/kernel-{archive.kernel}-{archive.arch}")
    if os.path.islink(link) and not os.readlink(link).startswith(f"{archive.version}/"):
        return
    directory = path_below(root, f"{MODULES_DIR}/{archive.kernel}/updates/dkms")
    stems = {name.split(".ko")[0] for name in wanted}
    for path in _modules_in(directory):
        name = os.path.basename(path)
        if name.split(".ko")[0] in stems and not _is(runner, path, wanted.get(name, "")):
            os.unlink(path)


def _install(runner: Runner, archive: Archive) -> None:
    known = ["-m", archive.dkms_name, "-v", archive.version, "-k", archive.kernel, "-a", archive.arch]
    # Without --force a module of the same version that is in the kernel's directory already stays.
    result = runner.run(["dkms", "install", "--force", *known], timeout=_HOUR)
    if not result.ok:
        raise ArchiveError(f"dkms install of {archive} failed: {result.text}")
    result = runner.run(["depmod", archive.kernel], timeout=600.0)
    if not result.ok:
        raise ArchiveError(f"depmod {archive.kernel} failed: {result.text}")


# --- pieces ----------------------------------------------------------------------------------------------------------


def _build_dir(dkms_name: str, version: str, kernel: str, arch: str) -> str:
    return f"{TREE}/{dkms_name}/{version}/{kernel}/{arch}"


def _modules_in(directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in list_dir(directory, "") if _files.MODULE_FILE.match(name)]


def _info(runner: Runner, paths: list[str]) -> dict[str, dict[str, str]]:
    try:
        found = _files.module_info(runner, paths)
    except _files.ModuleFileError as error:
        raise ArchiveError(str(error)) from error
    # A file that modinfo could not read has said nothing, and so fits nothing.
    return {path: found.get(path, {}) for path in paths}


def _vermagic(runner: Runner, paths: list[str]) -> str:
    magics = {said.get("vermagic", "").strip() for said in _info(runner, paths).values()}
    return magics.pop() if len(magics) == 1 else ""


def _is(runner: Runner, path: str, digest: str) -> bool:
    """Whether a file is a module with that code; one that is missing or cut off is not."""
    try:
        return os.path.isfile(path) and _files.code_digest(runner, path) == digest
    except _files.ModuleFileError:
        return False


def _digest(runner: Runner, path: str) -> str:
    try:
        return _files.code_digest(runner, path)
    except _files.ModuleFileError as error:
        raise ArchiveError(str(error)) from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
