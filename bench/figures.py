"""Shared by the parts of the benchmark: the lab, playbook runs, and the sections of bench/RESULTS.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
HEADER = """# Measured figures

Written by `make bench`. Seconds are medians with the range in brackets; compare ratios, not seconds.
"""
RECAP = re.compile(r"^(?P<host>\S+)\s*: ok=(?P<ok>\d+)\s+changed=(?P<changed>\d+)\s+.*skipped=(?P<skipped>\d+)", re.M)


def gpulab(*arguments: str) -> None:
    """Run the lab's command line; its progress stays on the screen."""
    subprocess.run([str(ROOT / "lab" / "bin" / "gpulab"), *arguments], check=True)


def write_inventory(path: Path, *nodes: str) -> Path:
    """Write an inventory of lab nodes."""
    path.write_text("gpu_nodes:\n  hosts:\n" + "".join(f"    {node}:\n" for node in nodes), encoding="utf-8")
    return path


def playbook(path: str, inventory: Path, nodes: list[str], **extra: object) -> tuple[float, str]:
    """Run a playbook on nodes; returns seconds and the text it printed.

    Raises:
        SystemExit: when the play fails, with the end of its output: a failed run has no time worth noting.
    """
    command = ["ansible-playbook", path, "-i", "inventories/lab", "-i", str(inventory), "--limit", ",".join(nodes)]
    command += ["-e", json.dumps(extra)] if extra else []
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    took = time.monotonic() - started
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    return took, done.stdout


def recap(output: str, node: str) -> dict[str, int]:
    """Return a node's counts from the play recap."""
    for match in RECAP.finditer(output):
        if match["host"] == node:
            return {name: int(match[name]) for name in ("ok", "changed", "skipped")}
    sys.exit(f"no recap of {node} in:\n{output[-2000:]}")


def spread(values: list[float]) -> str:
    """Return median and range, in seconds."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def machine() -> str:
    """Return where and when it was measured."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {datetime.date.today():%Y-%m-%d}"


def write_section(title: str, text: str) -> None:
    """Put a section into the results in place of the one whose title begins alike up to the first bracket."""
    known = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else HEADER
    sections = re.split(r"(?m)^(?=## )", known)[1:]
    start = "## " + title.split(" (")[0] + " ("
    kept = [section.rstrip() + "\n" for section in sections if not section.startswith(start)]
    kept.append(f"## {title}\n\n{text.rstrip()}\n")
    RESULTS.write_text("\n".join([HEADER, *sorted(kept)]), encoding="utf-8")
    print(kept[-1])
