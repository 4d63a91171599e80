# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The boot loader of this node, whichever it is: which kernels it knows, which it starts, and how to change that."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_base import (
    BootControl,
    BootError,
    Plan,
    state_lines,
)
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_grub import Grub
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._boot_grubby import Grubby
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, list_dir, path_below, read_text

__all__ = ["BootControl", "BootError", "Grub", "Grubby", "Plan", "detect", "manage", "release"]

_GRUBBY = ("usr/sbin/grubby", "usr/bin/grubby", "sbin/grubby")
_HEADER = "boot loader"
_SNIPPETS = "boot/loader/entries"


def detect(runner: Runner, root: str = "/") -> BootControl:
    """Return the boot loader of the node.

    Raises:
        BootError: when it is none that this collection knows.
    """
    snippets = any(name.endswith(".conf") for name in list_dir(root, _SNIPPETS))
    if snippets and any(os.path.exists(path_below(root, path)) for path in _GRUBBY):
        return Grubby(runner, root)
    if any(read_text(root, f"{directory}/grub.cfg") is not None for directory in _grub.DIRECTORIES):
        return Grub(runner, root)
    raise BootError(
        "No boot loader that this collection can steer: neither a readable /boot/grub/grub.cfg nor grubby with "
        f"/{_SNIPPETS}. Mount /boot, or install grub-pc or grub-efi-amd64; other boot loaders are not supported"
    )


def release(runner: Runner, check_mode: bool = False, root: str = "/") -> dict[str, Any]:
    """Let the distribution's settings choose the default again; the result is that of ``manage``.

    Raises:
        BootError: when that fails.
    """
    control = detect(runner, root)
    before = control.facts()
    changed = control.unpin(check_mode)
    after = before if check_mode else control.facts()
    text = "default: what the settings in /etc/default/grub say\n" if changed and check_mode else state_lines(after)
    entry = {"before_header": _HEADER, "after_header": _HEADER, "before": state_lines(before), "after": text}
    return {
        "changed": changed,
        "boot": after,
        "steps": ["let the settings in /etc/default/grub choose the default"] if changed else [],
        "notes": [],
        "running_kernel": os.uname().release,
        "diff": [entry] if changed else [],
    }


def manage(
    runner: Runner, default: str | None, once: str | None, check_mode: bool = False, root: str = "/"
) -> dict[str, Any]:
    """Bring the boot loader to a default and an entry for one boot; what the module boot_entry does.

    Args:
        runner: Runs the boot loader's programs.
        default: Kernel to start from now on; None leaves the default as it is.
        once: Kernel to start at the next boot alone; empty for none, None leaves it as it is.
        check_mode: Only say what would change.
        root: Directory that stands for ``/``.

    Returns:
        ``changed``, ``boot`` (facts as they are or would be), ``steps``, ``notes``, ``running_kernel`` and ``diff``.

    Raises:
        BootError: when that is refused or fails.
    """
    control = detect(runner, root)
    plan = control.plan(default, once)
    diff = []
    if plan.changes:
        before, after = state_lines(plan.before), state_lines(plan.after)
        diff.append({"before_header": _HEADER, "after_header": _HEADER, "before": before, "after": after})
        for path, text in plan.files.items():
            diff.append(
                {
                    "before_header": path,
                    "after_header": path,
                    "before": read_text(root, path) or "",
                    "after": text,
                }
            )
        if not check_mode:
            control.apply(plan)
    return {
        "changed": plan.changes,
        "boot": control.facts() if plan.changes and not check_mode else plan.after,
        "steps": plan.steps,
        "notes": plan.notes,
        "running_kernel": os.uname().release,
        "diff": diff,
    }
