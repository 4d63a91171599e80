"""A login in an address goes into a file of its own and is shown nowhere else."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_flavour, _repo_login


def test_an_address_is_taken_apart_and_put_together():
    assert _repo_login.split_login("https://u:p%40%3As@m.example.com:8443/x/") == (
        "https://m.example.com:8443/x/",
        "u:p@:s",
    )
    assert _repo_login.join_login("https://m.example.com/x", "u:p@:s") == "https://u:p%40%3As@m.example.com/x"
    for plain in ("https://m.example.com/x", "file:/srv/a@b", "file:///srv/a@b", ""):
        assert _repo_login.split_login(plain) == (plain, "")
        assert _repo_login.join_login(plain, "") == plain


def test_the_login_file_names_protocol_port_and_path():
    text = _repo_login.auth_text("http://apt:s%20e@m.example.com:8080/cuda")
    assert text.splitlines()[1] == "machine http://m.example.com:8080/cuda/ login apt password s e"
    assert _repo_login.auth_text("https://m.example.com/cuda") == ""


@pytest.mark.parametrize(
    ("uri", "fragment"),
    [
        ("https://apt:secret@m.example.com/cuda", ""),
        ("https://m.example.com/cuda", ""),
        ("https://apt@m.example.com/cuda", "must be user:password"),
        ("https://:secret@m.example.com/cuda", "must be user:password"),
        ("https://apt:se%20cret@m.example.com/cuda", "a blank"),
        ("ftp://apt:secret@m.example.com/cuda", "only http and https"),
    ],
)
def test_what_apt_cannot_be_given_is_refused_without_showing_it(uri, fragment):
    problem = _repo_login.login_problem(uri)
    assert bool(problem) == bool(fragment) and fragment in problem and "cret" not in problem
    wanted = {"source": "local_repo", "repo_uri": uri}
    told = _driver_flavour.repository_problems(wanted, {}, {})
    assert told == [f"nvidia_driver_repo_uri: {problem}"] if fragment else "repo_key is not set" in told[0]
