#!/usr/bin/env python3
"""Runs molecule scenarios one after the other (each has its two platforms side by side) and sums up.

Without arguments: every scenario that is part of `make test`. With names: these.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Scenarios with long downloads or builds; `make test-real` runs them.
REAL = frozenset({"nvidia_driver_real"})


def scenarios() -> list[str]:
    """Return the names of all scenarios, in the order in which the roles run."""
    return sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))


def main(wanted: list[str]) -> int:
    """Run the scenarios; 0 when all passed."""
    known = scenarios()
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        print(f"no such scenario: {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted or [name for name in known if name not in REAL]:
        started = time.monotonic()
        print(f"==> molecule {name}", flush=True)
        status = subprocess.call(
            ["molecule", "test", "--scenario-name", name], cwd=ROOT, env={**os.environ, "PY_COLORS": "0"}
        )
        print(
            f"==> molecule {name}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if status != 0:
            failed.append(name)
    if failed:
        print(f"failed scenarios: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
