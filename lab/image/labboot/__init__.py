# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab node's simulated boot: which kernel GRUB would start, which GPU module that kernel would load."""
