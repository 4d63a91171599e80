"""Package sources as apt reads them, and whether they answer."""

from __future__ import annotations

import http.server
import threading

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _reach, _repo_login
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

NO_PROXY = {"by_scheme": {}, "by_host": {}, "detected": ""}
INDEXTARGETS = "apt-get -o Dir::State::lists=/nonexistent/ indextargets"
#: apt 2.6 on Debian 12: one line per index, so each source several times; a flat repository has no release.
TARGETS = (
    "file:/srv/mirror/debian/\tbookworm\t/etc/apt/sources.list.d/debian.sources:1\n"
    "file:/srv/mirror/debian/\tbookworm\t/etc/apt/sources.list.d/debian.sources:1\n"
    "file:/srv/mirror/debian/\tbookworm-security\t/etc/apt/sources.list.d/debian.sources:1\n"
    "http://user:secret@mirror.example.com/cuda/\t\t/etc/apt/sources.list:1\n"
    "http://mirror.example.com/flat/\t./sub/\t/etc/apt/sources.list:2\n"
    "cdrom://Debian 12/\tbookworm\t/etc/apt/sources.list:3\n"
)
MALFORMED = (
    "E: Malformed entry 1 in list file /etc/apt/sources.list.d/bad.list (Suite)\n"
    "E: The list of sources could not be read.\n"
)
APT_CONFIG = """APT "";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example.com:3128";
Acquire::http::Proxy::mirror.example.com "DIRECT";
Acquire::https::Proxy "http://secure.example.com:3128";
"""


def entry(uri, suite="bookworm"):
    return {"uri": uri, "suite": suite, "origin": "/etc/apt/sources.list:1"}


def test_sources_are_listed_once_in_order(fake_runner):
    found = _reach.package_sources(fake_runner({INDEXTARGETS: TARGETS}))
    assert found["error"] == ""
    assert [(one["uri"], one["suite"]) for one in found["entries"]] == [
        ("file:/srv/mirror/debian/", "bookworm"),
        ("file:/srv/mirror/debian/", "bookworm-security"),
        ("http://user:secret@mirror.example.com/cuda/", "/"),
        ("http://mirror.example.com/flat/", "./sub/"),
        ("cdrom://Debian 12/", "bookworm"),
    ]
    assert found["entries"][0]["origin"] == "/etc/apt/sources.list.d/debian.sources:1"


def test_malformed_source_file_is_named(fake_runner):
    found = _reach.package_sources(fake_runner({INDEXTARGETS: CommandResult(100, err=MALFORMED * 2)}))
    assert found["entries"] == []
    assert found["error"] == (
        "Malformed entry 1 in list file /etc/apt/sources.list.d/bad.list (Suite) The list of sources could not be read."
    )


def test_node_without_apt_says_so(fake_runner):
    assert "command not found" in _reach.package_sources(fake_runner())["error"]


@pytest.mark.parametrize(
    ("uri", "suite", "first"),
    [
        ("http://m.example.com/debian/", "bookworm", "http://m.example.com/debian/dists/bookworm/InRelease"),
        (
            "http://m.example.com/debian",
            "bookworm/updates",
            "http://m.example.com/debian/dists/bookworm/updates/InRelease",
        ),
        ("https://m.example.com/cuda", "/", "https://m.example.com/cuda/InRelease"),
        ("https://m.example.com/cuda", "./", "https://m.example.com/cuda/InRelease"),
        ("https://m.example.com/x/", "deb/", "https://m.example.com/x/deb/InRelease"),
    ],
)
def test_address_of_the_index(uri, suite, first):
    assert _reach.index_files(uri, suite)[0] == first


def test_proxies_as_apt_is_configured(fake_runner):
    proxies = _reach.apt_proxies(fake_runner({"apt-config dump": APT_CONFIG}))
    assert _reach.proxy_for("http://deb.example.org/x", proxies, {}) == "http://proxy.example.com:3128"
    assert _reach.proxy_for("https://deb.example.org/x", proxies, {}) == "http://secure.example.com:3128"
    assert _reach.proxy_for("http://mirror.example.com/x", proxies, {}) == ""


def test_https_falls_back_to_the_proxy_for_http():
    proxies = dict(NO_PROXY, by_scheme={"http": "http://proxy.example.com:3128"})
    assert _reach.proxy_for("https://deb.example.org/x", proxies, {}) == "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("no_proxy", "proxy"),
    [("", "http://p:1"), ("example.org", ""), (".example.org,x", ""), ("*", ""), ("other.org", "http://p:1")],
)
def test_proxy_of_the_environment(no_proxy, proxy):
    environment = {"http_proxy": "http://p:1", "no_proxy": no_proxy}
    assert _reach.proxy_for("http://deb.example.org/x", NO_PROXY, environment) == proxy


@pytest.mark.parametrize("name", ["InRelease", "Release"])
def test_local_repository_exists(tmp_path, name):
    folder = tmp_path / "srv/mirror/debian/dists/bookworm"
    folder.mkdir(parents=True)
    (folder / name).write_text("")
    assert _reach.check_one(entry("file:/srv/mirror/debian/"), str(tmp_path), 1, "")["reachable"] is True
    assert _reach.check_one(entry("file:///srv/mirror/debian"), str(tmp_path), 1, "")["reachable"] is True


def test_local_repository_is_missing(tmp_path):
    answer = _reach.check_one(entry("file:/srv/none"), str(tmp_path), 1, "")
    assert answer["reachable"] is False
    assert "/srv/none/dists/bookworm/InRelease" in answer["detail"]


@pytest.mark.parametrize("uri", ["cdrom://Debian 12/", "tor+http://x.example.com/debian", "mirror+file:/etc/apt/m.txt"])
def test_what_cannot_be_checked_has_a_reason(uri):
    answer = _reach.check_one(entry(uri), "/", 1, "")
    assert answer["reachable"] is None and answer["detail"]


@pytest.mark.parametrize(
    ("answers", "reachable", "word"),
    [
        ([(200, "")], True, ""),
        ([(404, "HTTP 404 Not Found"), (200, "")], True, ""),
        ([(404, "HTTP 404 Not Found"), (404, "HTTP 404 Not Found")], False, "no index at http://m.example.com/dists"),
        ([(0, "Name or service not known")], False, "Name or service"),
        ([(503, "HTTP 503 Service Unavailable")], False, "503"),
        ([(401, "HTTP 401 Unauthorized")], None, "login"),
    ],
)
def test_answers_of_a_server(answers, reachable, word):
    left = iter(answers)
    answer = _reach.check_one(entry("http://m.example.com/"), "/", 1, "", lambda *args: next(left))
    assert answer["reachable"] is reachable and word in answer["detail"]
    assert next(left, None) is None


def test_login_in_an_address_is_used_but_never_shown():
    asked = []

    def ask(uri, timeout, proxy):
        asked.append(uri)
        return 404, "HTTP 404 Not Found"

    answer = _reach.check_one(entry("http://user:secret@m.example.com/cuda", "/"), "/", 1, "", ask)
    assert "secret" in asked[0]
    assert "secret" not in str(answer) and answer["uri"] == "http://m.example.com/cuda"
    assert _repo_login.split_login("http://u:p%40ss@m.example.com/x") == ("http://m.example.com/x", "u:p@ss")


def test_all_addresses_are_asked_side_by_side_and_once():
    barrier = threading.Barrier(3)
    asked = []

    def ask(uri, timeout, proxy):
        asked.append(uri)
        barrier.wait(60)
        return 200, ""

    entries = [entry("http://a.example.com"), entry("http://b.example.com"), entry("http://c.example.com")]
    answers = _reach.check_all([*entries, entry("http://a.example.com/")], NO_PROXY, ask=ask)
    assert [answer["reachable"] for answer in answers] == [True] * 3
    assert len(asked) == 3


def test_deadline_ends_what_does_not_answer():
    release = threading.Event()

    def ask(uri, timeout, proxy):
        release.wait(60)
        return 200, ""

    answers = _reach.check_all([entry("http://slow.example.com")], NO_PROXY, deadline=0.05, ask=ask)
    release.set()
    assert answers[0]["reachable"] is False and "within 0.05 s" in answers[0]["detail"]


def test_proxy_that_a_helper_finds_is_not_followed():
    proxies = dict(NO_PROXY, detected="/usr/local/bin/find-proxy")
    answers = _reach.check_all([entry("http://m.example.com")], proxies)
    assert answers[0]["reachable"] is None and "find-proxy" in answers[0]["detail"]


class Handler(http.server.BaseHTTPRequestHandler):
    seen = []

    def _answer(self):
        Handler.seen.append((self.command, self.path, self.headers.get("Authorization")))
        code = 405 if self.command == "HEAD" and self.path.startswith("/nohead") else 200
        self.send_response(404 if self.path.startswith("/gone") else code)
        self.end_headers()

    do_HEAD = do_GET = _answer

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    Handler.seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_real_server_that_answers_head(server):
    assert _reach.fetch(f"http://{server}/dists/x/InRelease", 30, "") == (200, "")
    assert [one[0] for one in Handler.seen] == ["HEAD"]


def test_real_server_that_refuses_head_is_asked_with_get(server):
    assert _reach.fetch(f"http://{server}/nohead", 30, "") == (200, "")
    assert [one[0] for one in Handler.seen] == ["HEAD", "GET"]


def test_real_server_gets_the_login(server):
    assert _reach.fetch(f"http://user:secret@{server}/x", 30, "") == (200, "")
    assert Handler.seen[0][2] == "Basic dXNlcjpzZWNyZXQ="


def test_real_server_without_the_file(server):
    assert _reach.fetch(f"http://{server}/gone", 30, "")[0] == 404


def test_port_where_nobody_listens(server):
    status, detail = _reach.fetch("http://127.0.0.1:1/x", 30, "")
    assert status == 0 and "refused" in detail.lower()


def test_a_repository_that_is_known_without_its_login_is_asked_once_with_it():
    asked = []

    def answer(uri, timeout, proxy):
        asked.append(uri)
        return 200, ""

    entries = [
        {"uri": "https://m.example.com/x/", "suite": "/", "origin": "apt"},
        {"uri": "https://u:p@m.example.com/x", "suite": "/", "origin": "nvidia_driver_repo_uri"},
    ]
    (found,) = _reach.check_all(entries, {"by_scheme": {}, "by_host": {}, "detected": ""}, ask=answer)
    assert asked == ["https://u:p@m.example.com/x/InRelease"]
    assert found["uri"] == "https://m.example.com/x" and found["origin"] == "apt" and found["reachable"]
