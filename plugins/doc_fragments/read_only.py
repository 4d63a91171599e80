# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all modules have in common that only look."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of a module that changes nothing; the platform is each module's own."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    support: full
    description: Changes nothing in any mode.
  diff_mode:
    support: none
    description: There is nothing to compare.
"""
