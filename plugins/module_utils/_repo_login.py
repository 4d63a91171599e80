# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""The login in a repository's address: taken off wherever that is shown or kept; apt gets it in a file of its own."""

from __future__ import annotations

import urllib.parse

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._apt_prefs import HEADER


def split_login(uri: str) -> tuple[str, str]:
    """Return an address without its login, and the login (``user:password``) that it carried."""
    parts = urllib.parse.urlsplit(uri)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return uri, ""
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), urllib.parse.unquote(login)


def join_login(uri: str, login: str) -> str:
    """Return an address with a login in it, as ``split_login`` takes it apart."""
    if not login:
        return uri
    parts = urllib.parse.urlsplit(uri)
    user, colon, password = login.partition(":")
    word = urllib.parse.quote(user, safe="") + colon + urllib.parse.quote(password, safe="")
    return urllib.parse.urlunsplit(parts._replace(netloc=f"{word}@{parts.netloc}"))


def login_problem(uri: str) -> str:
    """Return why the login in an address cannot be given to apt; empty when it can, or there is none."""
    login = split_login(uri)[1]
    if not login:
        return ""
    user, _colon, password = login.partition(":")
    if urllib.parse.urlsplit(uri).scheme not in ("http", "https"):
        return "its login is of no use: only http and https addresses have one"
    if not user or not password:
        return "its login must be user:password, with both of them (percent-encoded where they have special characters)"
    if any(character.isspace() for character in login):
        return "its login has a blank in it, which apt's login files cannot express"
    return ""


def auth_text(uri: str) -> str:
    """Return the login file (``auth.conf.d``) for an address; empty where it carries no login."""
    bare, login = split_login(uri)
    if not login:
        return ""
    user, _colon, password = login.partition(":")
    # Without a protocol an entry would count for https alone; with the path it counts for this repository alone.
    machine = bare.rstrip("/") + "/"
    return HEADER.format("#") + f"machine {machine} login {user} password {password}\n"
