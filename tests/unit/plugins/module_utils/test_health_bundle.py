"""The agent's code is the modules' own, complete, and runs on a bare Python."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _health_bundle as bundles

UTILS = pathlib.Path(bundles.__file__).parent
PREFIX = bundles.PACKAGE.replace(".", "/")


def parsed(text):
    """Return what the interpreter would import, in the form that ``imports`` has."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            ours = node.module == bundles.PACKAGE
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if ours else {node.module}
    return found


@pytest.mark.parametrize("path", sorted(UTILS.glob("_*.py")), ids=lambda path: path.stem)
def test_imports_are_found_as_the_interpreter_finds_them(path):
    text = path.read_text(encoding="utf-8")
    assert set(bundles.imports(text)) == parsed(text)


def test_every_file_is_the_module_itself():
    files = bundles.bundle().files
    assert f"{PREFIX}/_health_agent.py" in files
    for path, text in files.items():
        if path != bundles.ENTRY:
            assert text == (UTILS / pathlib.Path(path).name).read_text(encoding="utf-8")


def test_it_runs_on_a_bare_python_from_any_folder(tmp_path):
    for path, text in bundles.bundle().files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    # As far as it comes without a node: every module is loaded, and none comes from elsewhere.
    program = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import {bundles.PACKAGE}._health_agent as agent;"
        f" print(agent.__file__); print([n for n in sys.modules if n.split('.')[0] in ('ansible', 'yaml', 'pynvml')])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", program], cwd="/", capture_output=True, text=True, check=True
    )
    where, foreign = done.stdout.splitlines()
    assert pathlib.Path(where) == tmp_path / PREFIX / "_health_agent.py"
    assert foreign == "[]"


def test_the_name_of_the_folder_follows_the_content_and_nothing_else():
    first = bundles.Bundle({"a.py": "x = 1\n", "b.py": ""})
    assert first.generation == bundles.Bundle({"b.py": "", "a.py": "x = 1\n"}).generation
    assert first.generation != bundles.Bundle({"a.py": "x = 2\n", "b.py": ""}).generation
    assert first.generation != bundles.Bundle({"a.py": "", "b.py": "x = 1\n"}).generation
    assert len(first.generation) == 16


def test_a_module_that_needs_ansible_is_refused():
    def source(name):
        return (
            "from ansible.module_utils.basic import AnsibleModule\n"
            if name.endswith("_gpu_snapshot")
            else (f"from {bundles.PACKAGE} import _gpu_snapshot\n")
        )

    with pytest.raises(bundles.BundleError, match=r"_gpu_snapshot imports ansible\.module_utils\.basic"):
        bundles.bundle(source)


def test_a_module_without_source_is_said():
    with pytest.raises(bundles.BundleError, match="_no_such_module"):
        bundles.source_of(f"{bundles.PACKAGE}._no_such_module")
