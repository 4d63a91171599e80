# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the shipped profiles and the Xid policy along with a health check; documented in plugins/modules/gpu_health.py.

They are YAML on the controller, and nodes need no YAML library.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

FILES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "files")


@functools.lru_cache(maxsize=1)
def shipped() -> dict[str, Any]:
    """Return the content of files/gpu_profiles and files/xid_policy.yml of the collection."""
    folder = os.path.join(FILES, "gpu_profiles")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".yml"))
    return {
        "profiles": [_content(os.path.join(folder, name)) for name in names],
        "xid_policy": _content(os.path.join(FILES, "xid_policy.yml")),
    }


def captured(path: str) -> Any:
    """Return the content of a profile that was captured, a file on the controller."""
    try:
        return _content(os.path.abspath(os.path.expanduser(path)))
    except (OSError, yaml.YAMLError) as error:
        raise AnsibleActionFail(
            f"The profile {path} cannot be read: {error}. It is a file on the controller, which"
            " playbooks/capture_profile.yml writes"
        ) from error


def _content(path: str) -> Any:
    with open(path, encoding="utf-8") as handle:
        # The C reader, where there is one: the files are read once for each node of a run.
        return yaml.load(handle, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class ActionModule(ActionBase):
    """Runs the module of the same name with what it is judged by."""

    #: Options that are filled in here where the task does not give them.
    SENT: tuple[str, ...] = ("profiles", "xid_policy")
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        """Add what the task does not give, and run the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = {key: value for key, value in self._task.args.items() if value is not None}
        profile = args.get("profile")
        if isinstance(profile, str) and profile.endswith((".yml", ".yaml")):
            args["profile"] = captured(profile)
        try:
            args = {**{name: shipped()[name] for name in self.SENT}, **args}
        except (OSError, yaml.YAMLError) as error:
            raise AnsibleActionFail(f"The collection is not whole: {error}. Install it anew") from error
        result.update(
            self._execute_module(
                module_name=f"aiinfra.gpu_node.{self._task.action.rpartition('.')[2]}",
                module_args=args,
                task_vars=task_vars,
                wrap_async=self._task.async_val,
            )
        )
        given = result.get("invocation", {}).get("module_args")
        if isinstance(given, dict):
            # Long, the same in every run, and not what the task says.
            for name in self.SENT:
                given.pop(name, None)
        return result
