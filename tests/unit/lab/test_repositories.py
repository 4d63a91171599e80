"""Hashes of inputs, repacked kernels and repository indexes of the lab."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from gpulab import compose, debs, hashing, overlay, repack
from gpulab.suites import SUITES

STANZA = """Package: dkms
Version: 3.0.10-8+deb12u1
Architecture: all
Description: Dynamic Kernel Module System
 with a second line
Filename: pool/main/d/dkms/dkms_3.0.10-8+deb12u1_all.deb
Size: 48716
SHA256: 00"""
INRELEASE = """-----BEGIN PGP SIGNED MESSAGE-----
Hash: SHA256

Origin: Debian Backports
Label: Debian Backports
Suite: oldstable-backports
Codename: bookworm-backports
Date: Mon, 30 Nov 2026 08:00:00 UTC
NotAutomatic: yes
ButAutomaticUpgrades: yes
Components: main contrib
SHA256:
 00 1 main/binary-amd64/Packages
-----BEGIN PGP SIGNATURE-----

xyz
-----END PGP SIGNATURE-----
"""


def test_hash_follows_content_name_and_mode(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.write_text("x")
    first = hashing.digest([one], tmp_path)
    assert first == hashing.digest([one], tmp_path)
    one.chmod(0o755)
    assert hashing.digest([one], tmp_path) != first
    one.chmod(0o644)
    assert hashing.digest([one], tmp_path, "text") != first
    one.write_text("y")
    assert hashing.digest([one], tmp_path) != first
    two = one.rename(tmp_path / "two")
    two.write_text("x")
    assert hashing.digest([two], tmp_path) != first


def test_caches_do_not_count_as_input(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "code.py").write_text("")
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "code.pyc").write_text("")
    assert hashing.files_below(tmp_path) == [tmp_path / "a" / "code.py"]


def test_replacing_fields_keeps_the_rest() -> None:
    changed = debs.replace_fields(STANZA, {"Size": "1", "SHA256": "ff", "Description": "", "New": "field"})
    head = debs.fields(changed)
    assert (head["Size"], head["SHA256"], head["New"], head["Package"]) == ("1", "ff", "field", "dkms")
    assert "Description" not in head
    assert "second line" not in changed
    assert debs.fields(STANZA)["Description"] == "Dynamic Kernel Module System\n with a second line"


def test_stanzas_are_split_at_empty_lines() -> None:
    assert list(debs.stanzas(STANZA + "\n\n" + STANZA + "\n\n")) == [STANZA, STANZA]


def test_release_keeps_what_clients_decide_by() -> None:
    release = debs.Release.from_text(INRELEASE)
    assert release.fields == {
        "Origin": "Debian Backports",
        "Label": "Debian Backports",
        "Suite": "oldstable-backports",
        "Codename": "bookworm-backports",
        "NotAutomatic": "yes",
        "ButAutomaticUpgrades": "yes",
    }
    text = release.text({"main/binary-amd64/Packages": b"data"}, 0.0, ["main"])
    assert "Components: main\nArchitectures: amd64\n" in text
    assert "Date: Thu, 01 Jan 1970 00:00:00 UTC\n" in text
    assert f" {hashlib.sha256(b'data').hexdigest()} {4:16d} main/binary-amd64/Packages\n" in text


def test_dist_writes_plain_and_packed_indexes(tmp_path: Path) -> None:
    release = compose.dist(
        tmp_path, "bookworm", debs.Release({"Origin": "Debian"}), {"main": [STANZA], "contrib": []}, 0.0
    )
    folder = tmp_path / "dists" / "bookworm"
    assert release == folder / "Release"
    plain = (folder / "main/binary-amd64/Packages").read_bytes()
    assert plain.decode() == STANZA + "\n\n"
    assert gzip.decompress((folder / "main/binary-amd64/Packages.gz").read_bytes()) == plain
    assert (folder / "contrib/binary-amd64/Packages").read_bytes() == b""


def test_apt_writes_an_epoch_into_file_names() -> None:
    assert debs.archive_name("cpp", "4:12.2.0-3", "amd64") == "cpp_4%3a12.2.0-3_amd64.deb"


def test_repacking_keeps_what_a_kept_module_needs(tmp_path: Path) -> None:
    def module(name: str, info: bytes) -> Path:
        path = tmp_path / f"{name}.ko"
        path.write_bytes(b"\x7fELF\0" + info + b"\0license=GPL\0")
        return path

    files = {
        "nouveau": module("nouveau", b"depends=drm,i2c-algo-bit"),
        "drm": module("drm", b"depends="),
        "i2c_algo_bit": module("i2c-algo-bit", b"depends="),
        "ext4": module("ext4", b"softdep=pre: crc32c\0depends=jbd2"),
        "jbd2": module("jbd2", b"depends="),
        "crc32c": module("crc32c", b"depends="),
        "amdgpu": module("amdgpu", b"depends=drm"),
    }
    kept = repack.closure(files, ("nouveau", "ext4", "absent"))
    assert kept == {"nouveau", "drm", "i2c_algo_bit", "ext4", "jbd2", "crc32c"}


@pytest.mark.parametrize("path", ["kernel/x/i2c-algo-bit.ko", "i2c_algo_bit.ko.xz", "a/i2c-algo-bit.ko.zst"])
def test_module_names(path: str) -> None:
    assert repack.module_name(path) == "i2c_algo_bit"


@pytest.mark.parametrize("name", sorted(SUITES))
def test_a_fresh_node_knows_only_component_main(name: str) -> None:
    text = overlay.sources(SUITES[name])
    suites = [word for line in text.splitlines() if line.startswith("Suites:") for word in line.split()[1:]]
    assert sorted(suites) == sorted(SUITES[name].archives)
    assert {line for line in text.splitlines() if line.startswith("Components:")} == {"Components: main"}
    assert {line for line in text.splitlines() if line.startswith("URIs:")} == {"URIs: file:/srv/lab/debian"}
