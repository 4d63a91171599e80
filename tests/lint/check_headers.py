"""Check that each file of code says its licence: BSD-2-Clause for module_utils, GPL-3.0-or-later for other plugins.

Usage: [ROOT]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import common

OWNER = "Copyright: aiinfra.gpu_node contributors"
LICENCES = {
    "plugins/module_utils/": "SPDX-License-Identifier: BSD-2-Clause",
    "plugins/": "SPDX-License-Identifier: GPL-3.0-or-later",
}
#: The header stands at the top.
HEAD_LINES = 8


def check(name: str, text: str) -> list[str]:
    """Return what the header of a file lacks."""
    wanted = next((licence for place, licence in LICENCES.items() if name.startswith(place)), None)
    if wanted is None or not name.endswith((".py", ".yml")) or not text.strip():
        return []
    head = [line.lstrip("# ").strip() for line in text.splitlines()[:HEAD_LINES]]
    return [f"{name}: the first lines do not say {line!r}" for line in (OWNER, wanted) if line not in head]


def main(arguments: list[str]) -> int:
    """Check every plugin."""
    root = Path(arguments[0]) if arguments else common.ROOT
    names = [name for name in common.files(root) if name.startswith("plugins/")]
    problems = [problem for name in names for problem in check(name, (root / name).read_text(encoding="utf-8"))]
    return common.report(problems, "licence headers")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
