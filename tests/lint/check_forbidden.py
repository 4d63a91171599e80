"""Find what must not be in the repository: names of package registries' hosts, and paths of somebody's machine.

Where packages come from is each machine's own setting (sources.list, pip.conf, npmrc); a registry named here would
break behind a mirror and in an air gap. Usage: [ROOT]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import common

# Written as regular expressions, these do not match themselves.
PATTERNS = {
    "host of a Debian registry": (
        r"\b(?:deb|security|ftp|archive|snapshot|httpredir|cdn|incoming)[\w.-]*\.debian\.(?:org|net)\b"
    ),
    "host of a Python registry": r"\b(?:pypi|test\.pypi)\.(?:org|io)\b|\bpypi\.python\.org\b|\bpythonhosted\.org\b",
    "host of an npm registry": r"\bregistry\.(?:npmjs\.(?:org|com)|yarnpkg\.com)\b",
    "path of a home directory": r"(?<![\w.~$}-])/(?:home|Users)/[a-z][\w.-]*/",
    "path of a workplace": r"(?<![\w.~$}/-])/(?:work|workspace|workspaces|builds|github/workspace)/[\w.-]",
}
COMPILED = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}


def check_text(text: str) -> list[tuple[int, str, str]]:
    """Return line number, what was found and its text, for each forbidden thing."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for name, pattern in COMPILED.items():
            found += [(number, name, match.group()) for match in pattern.finditer(line)]
    return found


def main(arguments: list[str]) -> int:
    """Check every file that git has or would add, and their names."""
    root = Path(arguments[0]) if arguments else common.ROOT
    problems = []
    for name in common.files(root):
        # Undecodable bytes cannot hide a host name: they are replaced, not skipped.
        text = (root / name).read_bytes().decode("utf-8", "replace")
        problems += [f"{name}:{number}: {what}: {match}" for number, what, match in check_text(text)]
    return common.report(problems, "forbidden content")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
