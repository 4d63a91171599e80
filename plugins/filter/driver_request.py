# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that judge what is asked of the driver, on the controller."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_flavour, _openpgp, _repo_login


def driver_request(
    wanted: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], data: Mapping[str, Any], system: Mapping[str, str]
) -> dict[str, Any]:
    """Return flavour, fallback and problems of a request, and the very key text that was judged."""
    judged = _driver_flavour.decide(wanted, devices, data, system).as_dict()
    return {**judged, "key_text": str(wanted.get("key_text") or "")}


def openpgp_fingerprints(key: str) -> list[str]:
    """Return the fingerprints of the public keys in a text."""
    try:
        return _openpgp.fingerprints(key)
    except _openpgp.OpenPGPError as error:
        raise AnsibleFilterError(f"openpgp_fingerprints: {error}") from error


def repo_address(uri: str) -> dict[str, str]:
    """Return a repository's address without its login, the login, and apt's login file for it."""
    bare, login = _repo_login.split_login(str(uri or ""))
    return {"uri": bare, "login": login, "auth_text": _repo_login.auth_text(str(uri or ""))}


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "driver_request": driver_request,
            "openpgp_fingerprints": openpgp_fingerprints,
            "repo_address": repo_address,
        }
