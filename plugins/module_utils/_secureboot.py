# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Secure Boot: is it on, who may sign modules, and is a given key enrolled.

mokutil is asked first, since it also knows what the shim was told; without it the EFI variables themselves are read.
Nothing here changes a setting: enrolling a key needs a person at the console.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import NOT_FOUND, Runner, path_below, read_text

ENABLED = "enabled"
DISABLED = "disabled"
#: Booted without EFI, or firmware without the feature: nothing checks signatures at boot.
UNSUPPORTED = "unsupported"
UNKNOWN = "unknown"

#: Where dkms and shim-signed keep the public half of the key that signs modules built on the node.
SIGNING_CERTIFICATES = ("var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub")

_EFI = "sys/firmware/efi"
_SECURE_BOOT = _EFI + "/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SHIM_OFF = _EFI + "/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
_COMMON_NAME = re.compile(r"^\s*Subject:.*?\bCN\s*=\s*([^,/\n]+)", re.MULTILINE)
_PROC_KEY = re.compile(r"\basymmetri\w*\s+(.+?):\s*[0-9a-f]{8,}:\s*X509", re.IGNORECASE)


def parse_sb_state(text: str) -> dict[str, Any]:
    """Return what ``mokutil --sb-state`` says: ``state``, ``setup_mode`` and ``shim_validation``."""
    low = text.lower()
    if "doesn't support secure boot" in low or "efi variables are not supported" in low:
        state = UNSUPPORTED
    elif "secureboot enabled" in low:
        state = ENABLED
    elif "secureboot disabled" in low:
        state = DISABLED
    else:
        state = UNKNOWN
    return {
        "state": state,
        "setup_mode": "setup mode" in low,
        "shim_validation": "validation is disabled in shim" not in low,
    }


def read_efi(root: str = "/") -> dict[str, Any]:
    """Return the same from the EFI variables: four bytes of attributes, then the value."""
    if not os.path.isdir(path_below(root, _EFI)):
        return {"state": UNSUPPORTED, "setup_mode": False, "shim_validation": True}
    value = _efi_byte(root, _SECURE_BOOT)
    state = UNKNOWN if value is None else (ENABLED if value == 1 else DISABLED)
    return {"state": state, "setup_mode": False, "shim_validation": _efi_byte(root, _SHIM_OFF) != 1}


def secure_boot(runner: Runner, root: str = "/") -> dict[str, Any]:
    """Return the node's state.

    Returns:
        ``state`` (enabled, disabled, unsupported, unknown), ``setup_mode``, ``shim_validation``, ``source`` (mokutil or
        efivars) and ``enforced``: whether the kernel will refuse a module without a known signature; None if unknown.
    """
    result = runner.run(["mokutil", "--sb-state"], timeout=20)
    facts = parse_sb_state(result.text) if result.rc != NOT_FOUND else {"state": UNKNOWN}
    source = "mokutil"
    if facts["state"] == UNKNOWN:
        facts, source = read_efi(root), "efivars"
    enforced = None if facts["state"] == UNKNOWN else facts["state"] == ENABLED and facts["shim_validation"]
    return dict(facts, source=source, enforced=enforced)


def trusted_signers(runner: Runner, root: str = "/") -> list[str]:
    """Return the names of the keys whose signatures the running kernel accepts: its own and the enrolled ones."""
    names = [match.group(1).strip() for match in _PROC_KEY.finditer(read_text(root, "proc/keys") or "")]
    enrolled = runner.run(["mokutil", "--list-enrolled"], timeout=20)
    names.extend(match.group(1).strip() for match in _COMMON_NAME.finditer(enrolled.out))
    return sorted(set(names))


def key_enrolled(runner: Runner, certificate: str) -> bool | None:
    """Whether a certificate file is enrolled, None where that cannot be told; by words, mokutil's exit codes lie."""
    text = runner.run(["mokutil", "--test-key", certificate], timeout=20).text.lower()
    if "is already enrolled" in text or "is already in the enrollment request" in text:
        return "is already enrolled" in text
    if "is not enrolled" in text:
        return False
    return None


def signing_keys(runner: Runner, root: str = "/") -> list[dict[str, Any]]:
    """Return the certificates that sign modules built on this node, and whether each is enrolled."""
    return [
        {"path": "/" + path, "enrolled": key_enrolled(runner, path_below(root, path))}
        for path in SIGNING_CERTIFICATES
        if os.path.exists(path_below(root, path))
    ]


def _efi_byte(root: str, path: str) -> int | None:
    try:
        with open(path_below(root, path), "rb") as handle:
            data = handle.read()
    except OSError:
        return None
    return data[4] if len(data) > 4 else None
