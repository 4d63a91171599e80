#!/usr/bin/env python3
"""Records the GPUs of a real machine as a fixture for tests: what gpu_info reads there, and how gpu_health judges it.

Run as root on a machine with NVIDIA GPUs, from a checkout, by a Python (3.8 or newer) with PyYAML and nvidia-ml-py:

    python3 tests/real_gpu/record.py h200-sxm-580 --good

It reads with the code of the two modules and changes no setting of the machine, the driver or the GPUs; the one file
that it writes is the fixture. What tells whose machine it is is taken out first (redaction.py); when any of it is left,
nothing is written. Look at the file before you give it away all the same.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import socket
import sys
from pathlib import Path
from typing import Any, Sequence

ROOT = Path(__file__).resolve().parents[2]
for place in (ROOT / "collections", Path(__file__).resolve().parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import redaction  # noqa: E402

try:
    import yaml
except ImportError:
    sys.exit("PyYAML is not there: install it (Debian: python3-yaml), or run this with the Python of `make setup`")

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_snapshot, _health_request  # noqa: E402
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Snapshot  # noqa: E402
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import SystemRunner  # noqa: E402

FIXTURES = ROOT / "tests/unit/plugins/module_utils/fixtures/real_gpu"
SCHEMA = 1
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*$")


class RecordError(RuntimeError):
    """Nothing was recorded; the text says why and what to do."""


def machine_names() -> list[str]:
    """Return the names of this machine, the short ones too."""
    names = {platform.node(), socket.gethostname(), socket.getfqdn()}
    return sorted(names | {name.partition(".")[0] for name in names})


def judged(snapshot: Snapshot) -> dict[str, Any]:
    """Return what gpu_health says, without its texts: they follow from the snapshot, and may hold anything of it."""
    profiles = [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "files/gpu_profiles").glob("*.yml"))
    ]
    xids = yaml.safe_load((ROOT / "files/xid_policy.yml").read_text(encoding="utf-8"))
    verdict, _history = _health_request.judge(
        _health_request.parse({"profiles": profiles, "xid_policy": xids}), snapshot
    )
    return {
        "verdict": verdict.status,
        "may_serve": verdict.may_serve,
        "findings": [[finding.check, finding.target, finding.status] for finding in verdict.findings],
    }


def fixture(snapshot: Snapshot, names: Sequence[str], good: bool = False) -> dict[str, Any]:
    """Return the content of a fixture.

    Args:
        snapshot: The machine as it was read.
        names: Names of the machine.
        good: Whether its GPUs are known to be well: the tests then want the checks to let it serve.

    Raises:
        RecordError: when there is no GPU in it, or something of the machine's identity would be left.
    """
    if snapshot.nvml.state != "ok" or not snapshot.gpus:
        raise RecordError(f"NVML is {snapshot.nvml.state} ({snapshot.nvml.text}), {len(snapshot.gpus)} GPUs were read")
    # Through JSON: what is looked at is exactly what is written.
    redacted = redaction.Redactor(names).data(json.loads(json.dumps(snapshot.as_dict())))
    health = judged(snapshot)
    # The verdict has words of ours and PCI addresses only; a machine that is called "gpu" is not meant by them.
    left = redaction.survivors(redacted, names) + redaction.survivors(health)
    if left:
        raise RecordError(f"the redaction left {', '.join(left)}: add it to tests/real_gpu/redaction.py")
    return {"schema": SCHEMA, "good": good, "snapshot": redacted, "health": health}


def main(arguments: Sequence[str]) -> int:
    """Record; 0 when the fixture was written."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="name of the fixture: model and driver branch, such as h200-sxm-580")
    parser.add_argument("--good", action="store_true", help="the GPUs are known to be well: tests want that verdict")
    parser.add_argument(
        "--python", default="", help="Python that has nvidia-ml-py (default: the role's, else this one)"
    )
    parser.add_argument("--library", default="", help="path of libnvidia-ml.so.1 (default: the loader's)")
    parser.add_argument(
        "--deadline", type=float, default=60.0, help="seconds until NVML is given up (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=FIXTURES, help="directory of the fixture (default: the tests' own)")
    options = parser.parse_args(arguments)
    if not NAME.match(options.name):
        parser.error(f"{options.name!r}: a name has small letters, digits, points and hyphens")
    snapshot = _gpu_snapshot.collect(
        SystemRunner(), python=options.python, library=options.library, deadline_s=options.deadline
    )
    try:
        content = fixture(snapshot, machine_names(), options.good)
    except RecordError as error:
        print(f"Nothing was recorded: {error}", file=sys.stderr)
        return 1
    if not snapshot.root:
        print("Not run as root: values that NVML keeps from others are missing.", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.name}.json"
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(
        f"{path}: {len(snapshot.gpus)} GPUs, verdict {content['health']['verdict']}. Read it before you give it away."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
