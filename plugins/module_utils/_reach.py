# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Do the package sources answer? Each index is asked for in a thread of its own, as apt would, within one deadline."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._repo_login import split_login
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import Runner, path_below

#: Schemes that need no check, each with the reason that the finding shows.
_NOT_CHECKED = {"cdrom": "a medium in a drive is not checked"}
_PROXY = re.compile(r'^Acquire::(https?)::Proxy(?:::(\S+))? "(.*)";$', re.MULTILINE | re.IGNORECASE)
_DETECT = re.compile(r'^Acquire::(?:https?::)?Proxy-Auto-Detect "(.+)";$', re.MULTILINE | re.IGNORECASE)

_FORMAT = "$(REPO_URI)\t$(RELEASE)\t$(SOURCESENTRY)"

#: (uri, timeout, proxy) to (HTTP status or 0, text of the failure).
Fetch = Callable[[str, float, str], "tuple[int, str]"]


def package_sources(runner: Runner) -> dict[str, Any]:
    """Return apt's own reading of the node's sources: ``entries`` (uri, suite, origin) and ``error``, its complaint.

    No package cache is opened, and it works before the first ``apt-get update``. With a directory of downloaded lists
    apt would read all of them, which takes seconds; it is shown none.
    """
    argv = [
        "apt-get",
        "-o",
        "Dir::State::lists=/nonexistent/",
        "indextargets",
        "--no-release-info",
        "--format",
        _FORMAT,
    ]
    result = runner.run(argv, timeout=30)
    if not result.ok:
        lines = [line[2:].strip() for line in result.text.splitlines() if line.startswith("E:")]
        return {"entries": [], "error": " ".join(dict.fromkeys(lines)) or result.text or f"exit status {result.rc}"}
    entries = []
    for line in dict.fromkeys(result.out.splitlines()):
        uri, _tab, rest = line.partition("\t")
        suite, _tab, origin = rest.partition("\t")
        if uri:
            # apt names the root of a flat repository by an empty suite.
            entries.append({"uri": uri, "suite": suite or "/", "origin": origin})
    return {"entries": entries, "error": ""}


def index_files(uri: str, suite: str) -> list[str]:
    """Return the addresses of a repository's index, signed form first; a suite that ends in a slash is flat."""
    base = uri.rstrip("/") + "/"
    if suite.endswith("/"):
        folder = base if suite in ("/", "./") else base + suite.lstrip("/")
    else:
        folder = f"{base}dists/{suite}/"
    return [folder + "InRelease", folder + "Release"]


def apt_proxies(runner: Runner) -> dict[str, Any]:
    """Return apt's proxy settings: ``by_scheme``, ``by_host`` and ``detected`` (a helper program that decides)."""
    text = runner.run(["apt-config", "dump"], timeout=10).out
    by_scheme: dict[str, str] = {}
    by_host: dict[str, str] = {}
    for scheme, host, value in _PROXY.findall(text):
        if host:
            by_host[host.lower()] = value
        else:
            by_scheme[scheme.lower()] = value
    detect = _DETECT.search(text)
    return {"by_scheme": by_scheme, "by_host": by_host, "detected": detect.group(1) if detect else ""}


def proxy_for(uri: str, proxies: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the proxy apt would use for an address: per host, per scheme, then the environment; empty for none."""
    parts = urllib.parse.urlsplit(uri)
    host = (parts.hostname or "").lower()
    by_scheme = proxies["by_scheme"]
    # apt's https falls back to what is set for http.
    value = proxies["by_host"].get(host) or by_scheme.get(parts.scheme, by_scheme.get("http"))
    if value is None:
        value = environment.get(f"{parts.scheme}_proxy") or ""
        if value and _no_proxy(host, environment.get("no_proxy") or ""):
            value = ""
    return "" if value.upper() == "DIRECT" else value


def fetch(uri: str, timeout: float, proxy: str) -> tuple[int, str]:
    """Ask for one file without reading it. A server that refuses HEAD is asked with GET."""
    handlers = {"http": proxy, "https": proxy} if proxy else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(handlers))
    bare, login = split_login(uri)
    headers = {"User-Agent": "Debian APT-HTTP/1.3 (gpu_node)"}
    if login:
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode("utf-8")).decode("ascii")
    for method in ("HEAD", "GET"):
        request = urllib.request.Request(bare, method=method, headers=headers)
        try:
            with opener.open(request, timeout=timeout) as answer:
                return int(answer.status), ""
        except urllib.error.HTTPError as error:
            if method == "HEAD" and error.code in (400, 403, 405, 501):
                continue
            return error.code, f"HTTP {error.code} {error.reason}"
        except urllib.error.URLError as error:
            return 0, str(error.reason)
        except (OSError, ValueError) as error:
            return 0, str(error)
    return 0, "no answer"


def check_one(entry: Mapping[str, Any], root: str, timeout: float, proxy: str, ask: Fetch = fetch) -> dict[str, Any]:
    """Return whether one repository answers: ``reachable`` is True, False, or None with a reason in ``detail``."""
    uri, suite = str(entry["uri"]), str(entry["suite"])
    scheme = urllib.parse.urlsplit(uri).scheme.lower()
    files = index_files(uri, suite)
    if scheme in ("file", "copy"):
        paths = [urllib.parse.unquote(urllib.parse.urlsplit(name).path) for name in files]
        if any(os.path.exists(path_below(root, path)) for path in paths):
            return _answer(entry, True, "")
        return _answer(entry, False, f"neither {paths[0]} nor Release exists")
    if scheme not in ("http", "https"):
        return _answer(entry, None, _NOT_CHECKED.get(scheme, f"addresses of the kind {scheme}: cannot be checked"))
    status, detail = 0, ""
    for name in files:
        status, detail = ask(name, timeout, proxy)
        if status == 200:
            return _answer(entry, True, "")
        if status == 401:
            return _answer(entry, None, "the server wants a login; apt's own login data is not used by this check")
        if status != 404:
            break
    if status == 404:
        detail = f"the server answers, but has no index at {split_login(files[0])[0]}"
    return _answer(entry, False, detail)


def check_all(
    entries: Iterable[Mapping[str, Any]],
    proxies: Mapping[str, Any],
    root: str = "/",
    timeout: float = 5.0,
    deadline: float = 20.0,
    ask: Fetch = fetch,
) -> list[dict[str, Any]]:
    """Check all repositories side by side; the order is kept, and what is not done by the deadline is not reachable."""
    wanted = _unique(entries)
    results: list[dict[str, Any] | None] = [None] * len(wanted)

    def work(position: int) -> None:
        entry = wanted[position]
        proxy = proxy_for(str(entry["uri"]), proxies, os.environ)
        if proxies["detected"] and str(entry["uri"]).startswith("http"):
            results[position] = _answer(entry, None, f"apt asks {proxies['detected']} for a proxy; not followed here")
            return
        results[position] = check_one(entry, root, timeout, proxy, ask)

    threads = [threading.Thread(target=work, args=(position,), daemon=True) for position in range(len(wanted))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [
        result if result is not None else _answer(entry, False, f"no answer within {deadline:g} s")
        for entry, result in zip(wanted, list(results))
    ]


def _answer(entry: Mapping[str, Any], reachable: bool | None, detail: str) -> dict[str, Any]:
    # A login in an address never leaves this module.
    return dict(entry, uri=split_login(str(entry["uri"]))[0], reachable=reachable, detail=detail)


def _unique(entries: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return each (uri, suite) once; the first one's origin is named, and a login that any of them has is used."""
    seen: dict[tuple[str, str], Mapping[str, Any]] = {}
    for entry in entries:
        bare, login = split_login(str(entry["uri"]))
        key = (bare.rstrip("/"), str(entry["suite"]))
        known = seen.setdefault(key, entry)
        if login and not split_login(str(known["uri"]))[1]:
            seen[key] = dict(known, uri=entry["uri"])
    return list(seen.values())


def _no_proxy(host: str, names: str) -> bool:
    for name in (part.strip().lower().lstrip(".") for part in names.split(",")):
        if name == "*" or (name and (host == name or host.endswith("." + name))):
            return True
    return False
