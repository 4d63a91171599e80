# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH to lab machines: a key of the checkout's own, and one configuration file that people and Ansible use alike."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Mapping

from . import paths, vm_image
from .hashing import digest
from .progress import output, short

KEY = paths.KEYS / "vm_ed25519"
CONFIG = vm_image.FOLDER / "ssh_config"
#: One exchange may take long on a busy machine; a connection that a power cut left behind has to end all the same.
ANSWER_TIMEOUT_S = 300.0
BANNER_TIMEOUT_S = 10.0


def ensure_key() -> Path:
    """The private key; its public part lies beside it."""
    if not KEY.with_suffix(".pub").exists():
        paths.KEYS.mkdir(parents=True, exist_ok=True)
        paths.KEYS.chmod(0o700)
        KEY.unlink(missing_ok=True)
        output(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpu-node-lab", "-f", str(KEY)])
    return KEY


def _control_folder() -> Path:
    """Short, because a socket's path may have 107 characters; one a checkout and user."""
    return Path("/tmp") / f"gpulab-ssh-{os.getuid()}-{digest([], paths.ROOT, str(paths.ROOT))}"


def config(ports: Mapping[str, int], control: Path) -> str:
    """The text of the configuration file."""
    text = ""
    for name, port in sorted(ports.items()):
        text += f"Host {name}\n    HostName 127.0.0.1\n    Port {port}\n\n"
    return text + (
        "Host *\n"
        "    User root\n"
        f'    IdentityFile "{KEY}"\n'
        "    IdentitiesOnly yes\n"
        "    StrictHostKeyChecking no\n"
        "    UserKnownHostsFile /dev/null\n"
        "    LogLevel ERROR\n"
        "    ConnectTimeout 120\n"
        "    ServerAliveInterval 30\n"
        "    ServerAliveCountMax 20\n"
        "    ControlMaster auto\n"
        f'    ControlPath "{control}/%n-%p"\n'
        "    ControlPersist 600\n"
    )


def write_config(ports: Mapping[str, int]) -> None:
    """Replaces the configuration file in one step."""
    control = _control_folder()
    control.mkdir(mode=0o700, exist_ok=True)
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    part = CONFIG.with_suffix(f".{os.getpid()}")
    part.write_text(config(ports, control), encoding="utf-8")
    part.rename(CONFIG)


def command() -> list[str]:
    """ssh, without machine and command."""
    return ["ssh", "-F", str(CONFIG)]


def answers(port: int) -> bool:
    """Whether a ssh server greets: QEMU accepts connections long before the machine does."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=BANNER_TIMEOUT_S) as wire:
            return wire.recv(4).startswith(b"SSH-")
    except OSError:
        return False


def ask(name: str, script: str) -> str:
    """What a shell script prints on the machine; "" when it does not answer."""
    try:
        done = short([*command(), name, script], text=True, stdin=subprocess.DEVNULL, timeout=ANSWER_TIMEOUT_S)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return str(done.stdout).strip()


def hang_up(name: str) -> None:
    """Ends the shared connection; one to a machine that is gone would only time out."""
    if CONFIG.exists():
        short([*command(), "-O", "exit", name], stdin=subprocess.DEVNULL)
