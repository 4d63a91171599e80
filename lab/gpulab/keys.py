# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's own archive keys: made once a checkout, kept in the cache, worthless outside the lab."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator

from . import paths
from .progress import LabError, output, say

OWNERS = {
    "debian": "GPU node lab, Debian archive (stand-in)",
    "ubuntu": "GPU node lab, Ubuntu archive (stand-in)",
    "cuda": "GPU node lab, CUDA repository (stand-in)",
}


@contextlib.contextmanager
def _home() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="gpulab-", dir="/tmp") as folder:
        os.chmod(folder, 0o700)
        try:
            yield ["gpg", "--homedir", folder, "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
        finally:
            subprocess.run(["gpgconf", "--homedir", folder, "--kill", "all"], capture_output=True, check=False)


def public(name: str) -> Path:
    """Armoured public key."""
    return paths.KEYS / (name + ".asc")


def _secret(name: str) -> Path:
    return paths.KEYS / (name + ".secret")


def fingerprint(name: str) -> str:
    """Forty hex digits."""
    return (paths.KEYS / (name + ".fingerprint")).read_text(encoding="ascii").strip()


def _complete(name: str) -> bool:
    # The public key is written last.
    return public(name).exists() and public(name).stat().st_size > 0 and _secret(name).exists()


def complete() -> bool:
    """Whether all keys are there."""
    return all(_complete(name) for name in OWNERS)


def ensure() -> None:
    """Makes the keys that are missing."""
    wanted = [name for name in OWNERS if not _complete(name)]
    if not wanted:
        return
    say("making the lab's archive keys")
    paths.KEYS.mkdir(parents=True, exist_ok=True)
    paths.KEYS.chmod(0o700)
    for name in wanted:
        with _home() as gpg:
            output([*gpg, "--passphrase", "", "--quick-generate-key", OWNERS[name], "rsa3072", "sign", "never"])
            listing = output([*gpg, "--with-colons", "--list-keys"])
            print_line = next(line for line in listing.splitlines() if line.startswith("fpr:"))
            (paths.KEYS / (name + ".fingerprint")).write_text(print_line.split(":")[9] + "\n", encoding="ascii")
            secret = output([*gpg, "--armor", "--export-secret-keys"])
            if "PRIVATE KEY" not in secret:
                raise LabError(f"gpg did not export the lab's {name} key")
            _secret(name).touch(0o600)
            _secret(name).write_text(secret, encoding="ascii")
            public(name).write_text(output([*gpg, "--armor", "--export"]), encoding="ascii")


def sign(name: str, releases: list[Path]) -> None:
    """InRelease and Release.gpg beside each Release file."""
    with _home() as gpg:
        output([*gpg, "--import", str(_secret(name))])
        for release in releases:
            inline = release.with_name("InRelease")
            detached = release.with_name("Release.gpg")
            for target in (inline, detached):
                target.unlink(missing_ok=True)
            output([*gpg, "--digest-algo", "SHA256", "--output", str(inline), "--clearsign", str(release)])
            output(
                [*gpg, "--digest-algo", "SHA256", "--armor", "--output", str(detached), "--detach-sign", str(release)]
            )
