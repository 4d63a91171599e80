# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Compiled kernel modules as files: compression, the signature at their end, and signing with the node's own key.

A signature says who compiled a module, not what is in it: two nodes that sign the same module with keys of their own
have the same code. So modules are compared without it.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import lzma
import os
import re
import zlib
from typing import Iterable, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._kernels import MODULES_DIR
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._modules_index import parse_modinfo
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import NOT_FOUND, Runner, path_below, read_text
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._secureboot import key_enrolled

MODULE_FILE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*\.ko(?:\.(?:gz|xz|zst))?$")

#: Ends a signed module; before it: 12 bytes of which the last four are the length of the signature (include/linux).
_MARK = b"~Module signature appended~\n"
_TRAILER = 12
_SERIAL = re.compile(
    r"^\s*Serial Number:\s*(?:\d+\s*\(0x([0-9a-f]+)\)|\n?\s*([0-9a-f]{2}(?::[0-9a-f]{2})*))", re.M | re.I
)
#: Private key and certificate that DKMS signs with, the distribution's own first.
_KEYS = (
    ("var/lib/shim-signed/mok/MOK.priv", "var/lib/shim-signed/mok/MOK.der"),
    ("var/lib/dkms/mok.key", "var/lib/dkms/mok.pub"),
)
_SIG_HASH = re.compile(r'^CONFIG_MODULE_SIG_HASH="(\w+)"', re.M)
_INDEXED = re.compile(r"^(kernel/[^:\n]+\.ko(?:\.(?:gz|xz|zst))?):", re.M)


class ModuleFileError(Exception):
    """A module that cannot be read, or not be signed."""


@dataclasses.dataclass(frozen=True)
class SigningKey:
    """A private key and its certificate, as paths below the root."""

    private: str
    certificate: str


def read_module(runner: Runner, path: str) -> bytes:
    """Return a module as the kernel sees it: uncompressed.

    Raises:
        ModuleFileError: when it cannot be read.
    """
    try:
        if path.endswith(".zst"):
            plain = path + ".plain"
            result = runner.run(["zstd", "-d", "-q", "-f", "-o", plain, path], timeout=120.0)
            if not result.ok:
                raise ModuleFileError(f"{path} cannot be unpacked: {result.text}")
            try:
                with open(plain, "rb") as stream:
                    return stream.read()
            finally:
                os.unlink(plain)
        with open(path, "rb") as stream:
            data = stream.read()
        if path.endswith(".xz"):
            return lzma.decompress(data)
        return gzip.decompress(data) if path.endswith(".gz") else data
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ModuleFileError(f"{path} cannot be read: {error}") from error


def write_module(runner: Runner, path: str, data: bytes) -> None:
    """Write a module with the compression that its name says, in a form that the kernel itself can unpack."""
    if path.endswith(".xz"):
        data = lzma.compress(data, check=lzma.CHECK_CRC32)
    elif path.endswith(".gz"):
        data = gzip.compress(data)
    plain = path[: -len(".zst")] if path.endswith(".zst") else path
    with open(plain, "wb") as stream:
        stream.write(data)
    if plain != path:
        result = runner.run(["zstd", "-q", "-f", "--rm", "-o", path, plain], timeout=300.0)
        if not result.ok:
            raise ModuleFileError(f"{path} cannot be packed: {result.text}")


def without_signature(data: bytes) -> bytes:
    """Return a module without the signatures at its end."""
    while data.endswith(_MARK) and len(data) > len(_MARK) + _TRAILER:
        end = len(data) - len(_MARK)
        start = end - _TRAILER - int.from_bytes(data[end - 4 : end], "big")
        if start <= 0:
            break
        data = data[:start]
    return data


def code_digest(runner: Runner, path: str) -> str:
    """Return the sha256 of a module's code: uncompressed and without signature."""
    return hashlib.sha256(without_signature(read_module(runner, path))).hexdigest()


def module_info(runner: Runner, paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what modinfo says of each file."""
    wanted = list(paths)
    if not wanted:
        return {}
    result = runner.run(["modinfo", *wanted], timeout=60.0)
    if result.rc == NOT_FOUND:
        raise ModuleFileError("modinfo is missing; install the package kmod")
    return parse_modinfo(result.out)


def kernel_vermagic(runner: Runner, kernel: str, root: str) -> str:
    """Return the version magic of a kernel's own modules; empty where it has none to read."""
    base = f"{MODULES_DIR}/{kernel}"
    for name in _INDEXED.findall(read_text(root, base + "/modules.dep") or ""):
        path = path_below(root, f"{base}/{name}")
        if os.path.exists(path):
            return module_info(runner, [path]).get(path, {}).get("vermagic", "").strip()
    return ""


# --- signatures ------------------------------------------------------------------------------------------------------


def plain_serial(text: str) -> str:
    """Return a certificate's serial number in one form: ``0F:a1`` and ``fa1`` are the same."""
    return re.sub(r"[^0-9a-f]", "", text.lower()).lstrip("0")


def enrolled_serials(runner: Runner) -> set[str]:
    """Return the serial numbers of the enrolled keys; names do not do, since DKMS names the keys of all nodes alike."""
    text = runner.run(["mokutil", "--list-enrolled"], timeout=20.0).out
    return {plain_serial(short or long) for short, long in _SERIAL.findall(text)}


def trusted(info: Mapping[str, Mapping[str, str]], serials: set[str]) -> bool:
    """Whether each module carries the signature of an enrolled key."""
    return bool(info) and all(plain_serial(said.get("sig_key", "")) in serials - {""} for said in info.values())


def signing_key(runner: Runner, root: str) -> SigningKey | None:
    """Return a key of this node whose certificate is enrolled."""
    for private, certificate in _KEYS:
        key = SigningKey(path_below(root, private), path_below(root, certificate))
        if os.path.exists(key.private) and os.path.exists(key.certificate) and key_enrolled(runner, key.certificate):
            return key
    return None


def sign(runner: Runner, root: str, kernel: str, key: SigningKey, path: str) -> None:
    """Replace the signature of a module by one of this node.

    Raises:
        ModuleFileError: when there is no program for it, or it fails.
    """
    tool = _sign_tool(runner, root, kernel)
    found = _SIG_HASH.search(read_text(root, f"boot/config-{kernel}") or "")
    plain = re.sub(r"\.(gz|xz|zst)$", "", path)
    write_module(runner, plain, without_signature(read_module(runner, path)))
    algorithm = found.group(1) if found else "sha512"
    result = runner.run([tool, algorithm, key.private, key.certificate, plain], timeout=60.0)
    if not result.ok:
        raise ModuleFileError(f"signing {os.path.basename(path)} with {key.private} failed: {result.text}")
    if plain != path:
        with open(plain, "rb") as stream:
            data = stream.read()
        write_module(runner, path, data)
        if os.path.exists(plain):
            os.unlink(plain)


def _sign_tool(runner: Runner, root: str, kernel: str) -> str:
    branch = kernel.rsplit(".", 1)[0]
    for path in (
        f"usr/lib/linux-kbuild-{branch}/scripts/sign-file",
        f"{MODULES_DIR}/{kernel}/build/scripts/sign-file",
        f"usr/src/linux-headers-{kernel}/scripts/sign-file",
    ):
        if os.path.exists(path_below(root, path)):
            return path_below(root, path)
    if runner.run(["kmodsign"], timeout=10.0).rc != NOT_FOUND:
        return "kmodsign"
    raise ModuleFileError(
        f"Secure Boot wants a signature of this node, and there is no sign-file; install linux-headers-{kernel}"
    )
