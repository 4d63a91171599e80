# SPDX-License-Identifier: GPL-3.0-or-later
"""The container level of the GPU node lab: images, local repositories, nodes. See lab/README.md."""
