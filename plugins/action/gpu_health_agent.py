# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send what a node lacks to run the health checks by itself; documented in plugins/modules/gpu_health_agent.py.

The node is asked first. Only one that has no right environment is sent the wheel, and asked again.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.aiinfra.gpu_node.plugins.action.gpu_health import captured, shipped
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._nvml_venv import digest

#: Seconds that pip may take.
FETCH_S = 300
#: Options that are filled in here where the task does not give them.
SENT = ("profiles", "xid_policy")
CACHE = "~/.cache/aiinfra.gpu_node"


def checked(path: str, sha256: str) -> str:
    """Return the path of a wheel that is the pinned one.

    Raises:
        AnsibleActionFail: with what to do.
    """
    try:
        found = digest(path)
    except OSError as error:
        raise AnsibleActionFail(f"The wheel {path} cannot be read on the controller: {error.strerror}") from error
    if found != sha256:
        raise AnsibleActionFail(
            f"The wheel {path} is not the pinned one: its SHA-256 is {found}, wanted is {sha256}. Put the right file"
            " there, or set gpu_health_nvml_wheel_sha256 if you mean this one"
        )
    return path


def fetched(requirement: str, sha256: str, cache: str) -> str:
    """Return the path of the pinned wheel in the cache; pip fetches it where it is not there yet.

    Several nodes at once wait for each other: it is fetched once.

    Raises:
        AnsibleActionFail: with what to do.
    """
    folder = os.path.join(os.path.expanduser(cache), sha256)
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, ".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            present = _wheels(folder)
            if not present:
                _fetch(requirement, folder)
                present = _wheels(folder)
    except OSError as error:
        raise AnsibleActionFail(f"The cache {folder} cannot be used: {error}. Set gpu_health_cache_dir") from error
    if len(present) != 1:
        raise AnsibleActionFail(f"{folder} holds {len(present)} wheels instead of one: empty it, and try again")
    return checked(present[0], sha256)


def _wheels(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".whl")]


def _fetch(requirement: str, folder: str) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    argv += ["--only-binary=:all:", "--dest", folder, requirement]
    way_out = "Fetch it elsewhere and give its path in gpu_health_nvml_wheel"
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise AnsibleActionFail(f"pip did not fetch {requirement} within {FETCH_S} s. {way_out}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise AnsibleActionFail(f"pip on the controller did not fetch {requirement}: {said}. {way_out}")


class ActionModule(ActionBase):
    """Runs the module of the same name, and again with the wheel where the node needs it."""

    _supports_check_mode = True
    #: A folder on the node is made only where the wheel is sent.
    TRANSFERS_FILES = False

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        """Ask the node, and send it what it lacks."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = {key: value for key, value in self._task.args.items() if value is not None}
        wheel = os.path.expanduser(str(args.pop("wheel", "") or ""))
        if args.get("state", "present") == "absent":
            result.update(self._ask(args, task_vars))
            return result
        sha256 = str(args.get("wheel_sha256") or "").lower()
        if wheel and sha256:
            checked(wheel, sha256)
        settings = dict(args.get("settings") or {})
        profile = settings.get("profile")
        if isinstance(profile, str) and profile.endswith((".yml", ".yaml")):
            settings["profile"] = captured(profile)
        try:
            args = {**{name: shipped()[name] for name in SENT}, **args, "settings": settings}
        except (OSError, yaml.YAMLError) as error:
            raise AnsibleActionFail(f"The collection is not whole: {error}. Install it anew") from error
        answer = self._ask(args, task_vars)
        if answer.get("wheel_needed") and not answer.get("failed") and not self._task.check_mode:
            local = wheel or fetched(
                str(args.get("wheel_requirement") or ""), sha256, str(args.get("cache_dir") or CACHE)
            )
            answer = self._ask({**args, "wheel": self._sent(local)}, task_vars)
        result.update(answer)
        return result

    def _sent(self, local: str) -> str:
        """Send a file to the node; returns its path there."""
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        remote = self._connection._shell.join_path(folder, os.path.basename(local))
        self._transfer_file(local, remote)
        self._fixup_perms2((folder, remote))
        return str(remote)

    def _ask(self, args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="aiinfra.gpu_node.gpu_health_agent", module_args=args, task_vars=task_vars
        )
        given = answer.get("invocation", {}).get("module_args")
        if isinstance(given, dict):
            # Long, the same in every run, and not what the task says.
            for name in SENT:
                given.pop(name, None)
        return answer
