# SPDX-License-Identifier: GPL-3.0-or-later
"""What today's inputs ask for: names of images and folders, each with a hash over what decides its content.

base         package lists of suites.py, the code of base.py and what it uses, lab/image/base
repository   base, the simulated packages (lab/packages), the code that writes indexes, the archive keys
image        base, repository (its lists are in the image), everything else below lab/image
Command line, Docker, progress and nodes decide nothing of this and are in no hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import docker, keys, overlay, paths, suites
from .hashing import digest, files_below
from .suites import Suite

IMAGE_COMMAND = 'CMD ["/usr/lib/gpu-node-lab/lab-init"]'
_HERE = Path(__file__).parent
_BASE_CODE = ("base.py", "chroot.py", "debs.py", "repack.py")
_REPOSITORY_CODE = ("compose.py", "debs.py")


@dataclass(frozen=True)
class Plan:
    """One suite, complete when image and repository are there."""

    suite: Suite
    base_key: str
    packages_key: str
    repository_key: str
    image_key: str

    @property
    def base_folder(self) -> Path:
        """Index and pool of the real packages."""
        return paths.BASES / f"{self.suite.name}-{self.base_key}"

    @property
    def base_image(self) -> str:
        """The engine's image before the lab's own part."""
        return f"{paths.IMAGE_NAME}-base:{self.suite.name}-{self.base_key}"

    @property
    def simulated(self) -> Path:
        """Output of lab/packages/build.py, the same for all suites."""
        return paths.SIMULATED / f"all-{self.packages_key}"

    @property
    def modules(self) -> Path:
        """Its output once more with prebuilt modules for the kernels of this base."""
        key = digest([], _HERE, self.packages_key, self.base_key)
        return paths.SIMULATED / f"modules-{self.suite.name}-{key}"

    @property
    def repository(self) -> Path:
        """What nodes see as /srv/lab."""
        return paths.REPOS / f"{self.suite.name}-{self.repository_key}"

    @property
    def image(self) -> str:
        """What nodes are started from."""
        return f"{paths.IMAGE_NAME}:{self.suite.name}-{self.image_key}"

    def base_complete(self) -> bool:
        """Whether the slow part is done."""
        return (self.base_folder / "index.json").exists() and docker.image_exists(self.base_image)

    def complete(self) -> bool:
        """Whether a node can start."""
        return self.repository.is_dir() and docker.image_exists(self.image)


def packages_key() -> str:
    """Hash over the sources of the simulated packages."""
    found = [path for path in files_below(paths.PACKAGES) if path.suffix != ".md"]
    return digest([*found, _HERE / "simulated.py"], paths.LAB, keys.fingerprint("cuda"))


def plan(suite: Suite) -> Plan:
    """Pure computation over files; needs the archive keys, changes nothing."""
    lists = (suites.BASE_PACKAGES, suites.NODE_PACKAGES, suites.OFFERED_PACKAGES, suites.KERNEL_MODULES)
    base = digest([_HERE / name for name in _BASE_CODE], _HERE, repr(suite), *map(repr, lists), overlay.base_key(suite))
    packages = packages_key()
    fingerprints = [keys.fingerprint(name) for name in sorted(keys.OWNERS)]
    repository = digest([_HERE / name for name in _REPOSITORY_CODE], _HERE, base, packages, *fingerprints)
    image = digest([], _HERE, repository, overlay.key(suite), IMAGE_COMMAND)
    return Plan(suite, base, packages, repository, image)
