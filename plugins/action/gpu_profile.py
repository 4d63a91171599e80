# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the shipped profiles along with the capture of one; documented in plugins/modules/gpu_profile.py."""

from __future__ import annotations

from ansible_collections.aiinfra.gpu_node.plugins.action.gpu_health import ActionModule as HealthAction


class ActionModule(HealthAction):
    """Runs the module of the same name with the profiles of the models."""

    SENT = ("profiles",)
