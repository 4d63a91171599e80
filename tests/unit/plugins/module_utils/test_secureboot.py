"""Secure Boot in mokutil's wordings and from the EFI variables."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _secureboot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult


@pytest.mark.parametrize(
    ("text", "state", "setup", "validation"),
    [
        ("SecureBoot enabled", "enabled", False, True),
        ("SecureBoot disabled", "disabled", False, True),
        ("SecureBoot disabled\nPlatform is in Setup Mode", "disabled", True, True),
        ("SecureBoot enabled\nSecureBoot validation is disabled in shim", "enabled", False, False),
        ("This system doesn't support Secure Boot", "unsupported", False, True),
        ("EFI variables are not supported on this system", "unsupported", False, True),
        ("Failed to read SecureBoot", "unknown", False, True),
    ],
)
def test_krn_05_every_wording_of_mokutil(text, state, setup, validation):
    assert _secureboot.parse_sb_state(text) == {"state": state, "setup_mode": setup, "shim_validation": validation}


def efi(root, value=None, shim=None):
    directory = root / "sys/firmware/efi/efivars"
    directory.mkdir(parents=True)
    if value is not None:
        (directory / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(b"\x06\0\0\0" + bytes([value]))
    if shim is not None:
        (directory / "MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23").write_bytes(b"\x06\0\0\0" + bytes([shim]))


@pytest.mark.parametrize(
    ("value", "shim", "state", "enforced"),
    [(1, None, "enabled", True), (0, None, "disabled", False), (1, 1, "enabled", False), (None, None, "unknown", None)],
)
def test_krn_05_without_mokutil_the_efi_variables_answer(tmp_path, fake_runner, value, shim, state, enforced):
    efi(tmp_path, value, shim)
    facts = _secureboot.secure_boot(fake_runner(), str(tmp_path))
    assert (facts["state"], facts["enforced"], facts["source"]) == (state, enforced, "efivars")


def test_machine_without_efi_enforces_nothing(tmp_path, fake_runner):
    assert _secureboot.secure_boot(fake_runner(), str(tmp_path))["state"] == "unsupported"
    assert _secureboot.secure_boot(fake_runner(), str(tmp_path))["enforced"] is False


def test_mokutil_is_believed_first(tmp_path, fake_runner):
    efi(tmp_path, 0)
    facts = _secureboot.secure_boot(fake_runner({"mokutil --sb-state": "SecureBoot enabled\n"}), str(tmp_path))
    assert (facts["state"], facts["enforced"], facts["source"]) == ("enabled", True, "mokutil")


@pytest.mark.parametrize(
    ("rc", "text", "enrolled"),
    [
        (1, "/var/lib/dkms/mok.pub is already enrolled\n", True),
        (0, "/var/lib/dkms/mok.pub is not enrolled\n", False),
        (1, "/var/lib/dkms/mok.pub is already in the enrollment request\n", False),
        (255, "EFI variables are not supported on this system\n", None),
    ],
)
def test_krn_05_test_key_is_read_by_its_words(fake_runner, rc, text, enrolled):
    runner = fake_runner({"mokutil --test-key": CommandResult(rc, out=text)})
    assert _secureboot.key_enrolled(runner, "/var/lib/dkms/mok.pub") is enrolled


def test_krn_05_signers_come_from_the_kernel_and_from_enrolled_keys(tmp_path, fake_runner):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/keys").write_text(
        "0d6f2a2e I------ 1 perm 1f030000 0 0 asymmetri Debian Secure Boot CA: 6ccece7e4c6c0d1f: X509.rsa 1b []\n"
        "1a2b3c4d I------     1 perm 1f0b0000     0     0 keyring   .builtin_trusted_keys: 2\n"
    )
    listing = (
        "[key 1]\nSHA1 Fingerprint: 53:61:0c:f8\nCertificate:\n    Data:\n        Issuer: CN=DKMS module signing key\n"
        "        Subject: CN=DKMS module signing key\n[key 2]\n        Subject: O=Example, CN = site key, C=DE\n"
    )
    runner = fake_runner({"mokutil --list-enrolled": listing})
    assert _secureboot.trusted_signers(runner, str(tmp_path)) == [
        "DKMS module signing key",
        "Debian Secure Boot CA",
        "site key",
    ]


def test_keys_of_the_node(tmp_path, fake_runner):
    (tmp_path / "var/lib/dkms").mkdir(parents=True)
    (tmp_path / "var/lib/dkms/mok.pub").write_bytes(b"x")
    runner = fake_runner({"mokutil --test-key": "mok.pub is not enrolled"})
    assert _secureboot.signing_keys(runner, str(tmp_path)) == [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]
