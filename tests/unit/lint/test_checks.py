"""The project's own checks: each finds what it is for, and is content with what is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

LINT = Path(__file__).resolve().parents[2] / "lint"


def run(tool, *arguments):
    """Run a check; return its exit status and output."""
    done = subprocess.run(
        [sys.executable, str(LINT / f"{tool}.py"), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def option(kind="str", **more):
    return {"description": ["What it is."], "type": kind, **more}


def entry(**options):
    return {"short_description": "Short", "description": ["Long."], "options": options}


@pytest.fixture
def role(tmp_path):
    """Return a function that writes a role: specs, defaults and task files; the root comes back."""

    def write(specs, defaults, tasks=None):
        base = tmp_path / "roles/demo"
        for name in ("meta", "defaults", "tasks"):
            (base / name).mkdir(parents=True, exist_ok=True)
        (base / "meta/argument_specs.yml").write_text(yaml.safe_dump({"argument_specs": specs}))
        (base / "defaults/main.yml").write_text(yaml.safe_dump(defaults))
        for name, content in (tasks or {"main": []}).items():
            (base / f"tasks/{name}.yml").write_text(yaml.safe_dump(content))
        return tmp_path

    return write


def test_specs_that_agree_with_defaults_and_entry_points_pass(role):
    root = role(
        {
            "main": entry(
                demo_mode=option(choices=["a", "b"], default="a"),
                demo_count=option("int", default=3),
                demo_list=option("list", elements="str", default=[]),
                demo_needed=option(required=True),
                demo_maybe=option(),
                demo_from=option(default="{{ demo_mode }}"),
            ),
            "verify": entry(demo_mode=option(default="a")),
        },
        {
            "demo_mode": "a",
            "demo_count": 3,
            "demo_list": [],
            "demo_from": "{{ demo_mode }}",
            "demo_maybe": None,
            "__demo_private": 1,
        },
        {
            "main": [
                {"ansible.builtin.import_tasks": "plan.yml"},
                {"block": [{"ansible.builtin.include_tasks": {"file": "{{ demo_mode }}_more.yml"}}]},
            ],
            "verify": [],
            "plan": [],
            "a_more": [],
        },
    )
    assert run("check_argument_specs", root) == (0, "argument specs: fine\n")


@pytest.mark.parametrize(
    ("specs", "defaults", "tasks", "words"),
    [
        ({"main": entry()}, {"demo_x": 1}, None, "demo_x is in defaults/main.yml but in no argument spec"),
        ({"main": entry(demo_x=option(default="a"))}, {"demo_x": "b"}, None, "says default 'a', but defaults/main.yml"),
        ({"main": entry(demo_x=option("bool", default=True))}, {"demo_x": 1}, None, "says default True"),
        ({"main": entry(demo_x=option(default="a"))}, {}, None, "defaults/main.yml does not set it"),
        ({"main": entry(demo_x=option())}, {"demo_x": "b"}, None, "the spec has no default"),
        ({"main": entry(demo_x={"description": "x"})}, {}, None, "type None is none of"),
        ({"main": entry(demo_x=option("list"))}, {}, None, "a list without elements"),
        ({"main": entry(demo_x=option("int", default="3"))}, {"demo_x": "3"}, None, "the default '3' is no int"),
        ({"main": entry(demo_x=option("int", default=True))}, {"demo_x": True}, None, "the default True is no int"),
        ({"main": entry(demo_x=option(default="c", choices=["a"]))}, {"demo_x": "c"}, None, "not among the choices"),
        ({"main": entry(demo_x=option("dict", options={"y": {}}))}, {}, None, "demo_x.y: type None"),
        ({"main": entry(), "other": entry()}, {}, None, "there is no tasks/other.yml"),
        ({"main": entry()}, {}, {"main": [], "other": []}, "tasks/other.yml is an entry point"),
        (
            {"main": entry()},
            {},
            {"main": [{"ansible.builtin.import_tasks": "verify.yml"}], "verify": []},
            "tasks/verify.yml is an entry point",
        ),
        ({"main": {"options": {}}}, {}, None, "has no description"),
        ({}, {}, None, "missing or empty"),
    ],
)
def test_specs_that_disagree_are_told(role, specs, defaults, tasks, words):
    status, output = run("check_argument_specs", role(specs, defaults, tasks))
    assert status == 1
    assert words in output


def test_a_readme_is_made_checked_and_stable(role):
    root = role({"main": entry(demo_x=option(required=True), demo_y=option("int", default=3, choices=[3, 4]))}, {})
    (root / "roles/demo/docs.md").write_text("## Notes\n\nBy hand.\n")
    assert run("gen_role_readme", "--check", root)[0] == 1
    assert run("gen_role_readme", root)[0] == 0
    text = (root / "roles/demo/README.md").read_text()
    assert run("gen_role_readme", "--check", root)[0] == 0
    assert "# aiinfra.gpu_node.demo\n\nLong.\n\n## Notes\n\nBy hand.\n" in text
    assert "| `demo_x` | str | **required** | What it is. |" in text
    assert "| `demo_y` | int | `3` | What it is. One of `3`, `4`. |" in text
    assert yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])[0]["vars"] == {"demo_x": "..."}
    (root / "roles/demo/README.md").write_text(text + "edited")
    assert run("gen_role_readme", "--check", root)[0] == 1


def test_a_readme_reads_as_markdown_and_tells_nothing_twice(role):
    meant = "Either V(a|b) or C(f(x)), see O(demo_y) and L(the guide, https://example.com/x)."
    long = [f"entry {number}" for number in range(30)]
    options = {"demo_x": option(description=[meant], default="{{ a | b }}"), "demo_y": option("list", default=long)}
    root = role({"main": entry(**options), "verify": entry(demo_x=options["demo_x"])}, {})
    run("gen_role_readme", root)
    text = (root / "roles/demo/README.md").read_text()
    assert "Either `a\\|b` or `f(x)`, see `demo_y` and [the guide](https://example.com/x)." in text
    assert "[defaults](defaults/main.yml)" in text
    assert "entry 7" not in text
    assert "Takes of the variables above: `demo_x`.\n" in text
    assert text.count("| `demo_x` |") == 1


# Put together here, so that this file does not hold what it looks for.
REGISTRIES = [
    "deb." + "debian.org",
    "security." + "debian.org",
    "ftp.de." + "debian.org",
    "cdn-fastly.deb." + "debian.org",
    "pypi." + "org",
    "files.python" + "hosted.org",
    "registry.npm" + "js.org",
]
PLACES = ["/ho" + "me/somebody/x", "/wo" + "rk/main", "/wo" + "rkspace/x", "'/Us" + "ers/me/'"]


@pytest.mark.parametrize("text", [*REGISTRIES, *PLACES])
def test_forbidden_content_is_found_with_its_line(tmp_path, text):
    (tmp_path / "file.txt").write_text(f"fine\nuri: {text} \xff\n", encoding="latin-1")
    status, output = run("check_forbidden", tmp_path)
    assert status == 1
    assert "file.txt:2: " in output


@pytest.mark.parametrize(
    "text",
    [
        "www.debian.org",
        "https://download.nvidia.com/",
        "lab/work/x",
        "~/work/x",
        "{{ dir }}/work/x",
        "/srv/lab",
    ],
)
def test_what_is_allowed_passes(tmp_path, text):
    (tmp_path / "file.txt").write_text(text)
    assert run("check_forbidden", tmp_path)[0] == 0


def test_licence_headers(tmp_path):
    head = "# Copyright: aiinfra.gpu_node contributors\n# SPDX-License-Identifier: {}\n"
    utils = tmp_path / "plugins/module_utils/_x.py"
    utils.parent.mkdir(parents=True)
    utils.write_text(head.format("BSD-2-Clause"))
    assert run("check_headers", tmp_path)[0] == 0
    utils.write_text(head.format("GPL-3.0-or-later"))
    status, output = run("check_headers", tmp_path)
    assert status == 1 and "BSD-2-Clause" in output
