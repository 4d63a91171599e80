# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things lie in the checkout."""

from __future__ import annotations

from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
ROOT = LAB.parent
CACHE = LAB / "cache"
IMAGE = LAB / "image"
PACKAGES = LAB / "packages"

ARCHIVES = CACHE / "archives"  # real .deb files as downloaded, one folder a suite
REPACKED = CACHE / "repacked"  # kernels with few modules
BASES = CACHE / "base"  # pool and index of the real packages per hash
REPOS = CACHE / "repo"  # complete /srv/lab trees per hash
SIMULATED = CACHE / "simulated"  # output of lab/packages/build.py per hash
KEYS = CACHE / "keys"
LOGS = CACHE / "logs"
WORK = CACHE / "work"

LABEL = "gpu-node-lab"
IMAGE_NAME = "gpu-node-lab"
