# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Fingerprints of OpenPGP public keys, so that a repository's key can be checked before anything trusts it.

Only what that needs: ASCII armor, packet headers, and version 4 primary keys. Older and newer key versions are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Iterator

_PUBLIC_KEY = 6
_ARMOR = re.compile(r"-----BEGIN PGP PUBLIC KEY BLOCK-----(?P<body>.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)


class OpenPGPError(ValueError):
    """The text is no public key that can be checked."""


def fingerprints(key: str | bytes) -> list[str]:
    """Return the fingerprints of the primary keys in a key file, in order, as 40 capital hexadecimal digits.

    Args:
        key: Content of the file, armored or binary.

    Raises:
        OpenPGPError: when it holds no version 4 public key.
    """
    found = []
    for block in _blocks(key):
        for tag, body in _packets(block):
            if tag == _PUBLIC_KEY:
                found.append(_fingerprint(body))
    if not found:
        raise OpenPGPError("there is no OpenPGP public key in it")
    return found


def normalised(fingerprint: str) -> str:
    """Return a fingerprint as people write it (blanks, colons, 0x, lower case) in the form of ``fingerprints()``.

    Raises:
        OpenPGPError: when it is not a whole fingerprint; short key ids can be forged and are refused.
    """
    plain = re.sub(r"[\s:]", "", fingerprint).upper()
    plain = plain[2:] if plain.startswith("0X") else plain
    if not re.match(r"^[0-9A-F]{40}$", plain):
        raise OpenPGPError(f"{fingerprint!r} is not a whole fingerprint of 40 hexadecimal digits")
    return plain


def _fingerprint(body: bytes) -> str:
    version = body[0] if body else 0
    if version != 4:
        raise OpenPGPError(f"it holds a version {version} key; only version 4 keys can be checked here")
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()


def _blocks(key: str | bytes) -> list[bytes]:
    if isinstance(key, bytes):
        if key[:1] and key[0] & 0x80:
            return [key]
        key = key.decode("ascii", "replace")
    blocks = []
    for match in _ARMOR.finditer(key):
        # Header lines end at the first blank line; where there is none, the armor has no headers.
        body = match.group("body").replace("\r", "")
        body = body.split("\n\n", 1)[1] if "\n\n" in body else body
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        checksum = lines.pop()[1:] if lines and lines[-1].startswith("=") and len(lines[-1]) == 5 else ""
        try:
            data = base64.b64decode("".join(lines), validate=True)
            if checksum and base64.b64decode(checksum) != _crc24(data).to_bytes(3, "big"):
                raise OpenPGPError("its checksum is wrong: the file is damaged")
        except binascii.Error as error:
            raise OpenPGPError(f"its armor cannot be read: {error}") from error
        blocks.append(data)
    if not blocks:
        raise OpenPGPError("it is not an armored OpenPGP public key")
    return blocks


def _crc24(data: bytes) -> int:
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _bit in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        head = data[position]
        if not head & 0x80:
            raise OpenPGPError("it is damaged: no packet where one must begin")
        if head & 0x40:
            tag, (length, width) = head & 0x3F, _new_length(data, position + 1)
        else:
            tag, width = (head >> 2) & 0x0F, {0: 1, 1: 2, 2: 4, 3: 0}[head & 3]
            length = int.from_bytes(data[position + 1 : position + 1 + width], "big") if width else len(data)
        start = position + 1 + width
        body = data[start : start + length]
        if len(body) < length and width:
            raise OpenPGPError("it is damaged: it ends inside a packet")
        yield tag, body
        position = start + length


def _new_length(data: bytes, position: int) -> tuple[int, int]:
    first = data[position] if position < len(data) else 0
    if first < 192:
        return first, 1
    if first < 224:
        return ((first - 192) << 8) + data[position + 1] + 192, 2
    if first == 255:
        return int.from_bytes(data[position + 1 : position + 5], "big"), 5
    raise OpenPGPError("it uses partial lengths, which key files do not have")
