"""Fingerprints of key files, against what gpg says of the same files."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _openpgp

KEYS = Path(__file__).parent / "fixtures/openpgp"
A = "0A5ED38872B874C2A7DB892BD7085B7A74D56F52"
B = "0AA7240AD31100DA88E042844EADB143E809FFE8"
RSA = "33580F7B5D8D60F966CB392995AAFB04B05971EC"


def text(name):
    return (KEYS / f"key-{name}.asc").read_text()


def binary(name):
    lines = [line for line in text(name).splitlines() if line and not line.startswith(("-", "="))]
    return base64.b64decode("".join(lines))


@pytest.mark.parametrize(("name", "fingerprint"), [("a", A), ("b", B), ("rsa", RSA)])
def test_armored_and_binary_give_the_same(name, fingerprint):
    assert _openpgp.fingerprints(text(name)) == [fingerprint]
    assert _openpgp.fingerprints(binary(name)) == [fingerprint]
    assert _openpgp.fingerprints(text(name).replace("\n", "\r\n")) == [fingerprint]


def test_several_blocks_give_several_fingerprints():
    assert _openpgp.fingerprints(text("a") + text("b")) == [A, B]


def test_new_packet_headers_are_read():
    body = binary("a")
    length = body[1]
    assert body[0] == 0x98
    assert _openpgp.fingerprints(bytes([0xC0 | 6, length]) + body[2 : 2 + length]) == [A]


@pytest.mark.parametrize("version", [3, 5, 6])
def test_other_key_versions_are_refused_plainly(version):
    body = binary("a")
    changed = body[:2] + bytes([version]) + body[3:]
    with pytest.raises(_openpgp.OpenPGPError, match=f"version {version} key"):
        _openpgp.fingerprints(changed)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("<html>404</html>", "not an armored"),
        ("", "not an armored"),
        (b"\x98\x33\x04", "ends inside a packet"),
    ],
)
def test_what_is_no_key_is_refused(key, message):
    with pytest.raises(_openpgp.OpenPGPError, match=message):
        _openpgp.fingerprints(key)


def test_a_damaged_file_is_found_by_its_checksum():
    damaged = text("a").replace("mDM", "mDN", 1)
    with pytest.raises(_openpgp.OpenPGPError):
        _openpgp.fingerprints(damaged)


def test_fingerprints_as_people_write_them():
    assert _openpgp.normalised("0x0a5e d388 72b8 74c2 a7db  892b d708 5b7a 74d5 6f52") == A
    with pytest.raises(_openpgp.OpenPGPError, match="not a whole fingerprint"):
        _openpgp.normalised("74D56F52")
