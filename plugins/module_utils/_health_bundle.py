# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The code of the health agent as files: the very modules that an Ansible module was shipped with, not copies of them.

Inside an Ansible module they lie in a zip file, so their texts come from their loaders. Which are needed is read from
their import statements, starting at the agent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import re
from typing import Any, Callable, Iterator, Mapping

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_agent
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._health_state import GENERATION_LENGTH

PACKAGE = _health_agent.__name__.rpartition(".")[0]
ENTRY = "run.py"
#: The folder itself comes last in the path, so that no file in it can stand in for one of the standard library.
ENTRY_TEXT = "\n".join(
    (
        '"""Judge the GPUs of this node once. Written by the role gpu_health of aiinfra.gpu_node."""',
        "",
        "import os",
        "import sys",
        "",
        "sys.path.append(os.path.dirname(os.path.realpath(__file__)))",
        "",
        f"from {_health_agent.__name__} import main  # noqa: E402  (the path above must come first)",
        "",
        "sys.exit(main(sys.argv[1:]))",
        "",
    )
)

_IMPORT = re.compile(r"^[ ]*(?:from[ ]+(\S+)[ ]+import[ ]+(\([^)]*\)|[^\n(]+)|import[ ]+([^\n]+))", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")

Source = Callable[[str], str]


class BundleError(RuntimeError):
    """Code that cannot be put onto a node; the text says which module and why."""


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The agent's code.

    Args:
        files: Path below the folder to text.
    """

    files: Mapping[str, str]

    @property
    def generation(self) -> str:
        """Name of the folder: a hash of everything in it."""
        digest = hashlib.sha256()
        for path, text in sorted(self.files.items()):
            digest.update(f"{path}\0{len(text)}\0{text}\0".encode())
        return digest.hexdigest()[:GENERATION_LENGTH]


def source_of(name: str) -> str:
    """Return the text of a module, wherever it was loaded from.

    Raises:
        BundleError: where its loader does not give it.
    """
    spec = importlib.util.find_spec(name)
    loader: Any = spec.loader if spec else None
    try:
        text = loader.get_source(name)
    except (AttributeError, ImportError, OSError) as error:
        raise BundleError(f"the source of {name} is not to be had ({error})") from error
    if text is None:
        raise BundleError(f"{name} has no source")
    return str(text)


def bundle(source: Source = source_of, entry: str = _health_agent.__name__) -> Bundle:
    """Return the agent's code.

    Args:
        source: Gives the text of a module.
        entry: The module to start at.

    Raises:
        BundleError: for a module that needs Ansible, which a node does not have.
    """
    texts: dict[str, str] = {}
    todo = [entry]
    while todo:
        name = todo.pop()
        if name in texts:
            continue
        texts[name] = source(name)
        todo += list(_ours(name, texts[name]))
    files = {f"{name.replace('.', '/')}.py": text for name, text in texts.items()}
    return Bundle({**files, ENTRY: ENTRY_TEXT})


def _ours(name: str, text: str) -> Iterator[str]:
    """Yield the modules of the collection that a module imports."""
    for module in imports(text):
        if module.startswith(PACKAGE + "."):
            yield module
        elif module.split(".")[0] in ("ansible", "ansible_collections"):
            raise BundleError(f"{name} imports {module}, which a node without Ansible does not have")


def imports(text: str) -> list[str]:
    """Return the modules that a text imports, those of the package by their full names.

    By its lines: to parse a whole program for that takes ten times as long.
    """
    found = []
    for match in _IMPORT.finditer(text):
        module, names, plain = match.groups()
        if plain:
            found += [part.split()[0] for part in plain.split(",")]
            continue
        parts = [part.split()[0] for part in _COMMENT.sub("", names).strip("()\n ").split(",") if part.strip()]
        found += [f"{module}.{part}" for part in parts] if module == PACKAGE else [module]
    return found
