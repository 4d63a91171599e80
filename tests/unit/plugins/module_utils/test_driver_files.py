"""The files beside a driver: what is stale because of them, also after a kill."""

from __future__ import annotations

import os

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _driver_files

KERNELS = ["6.1.0-57-amd64", "6.12.0-1-amd64"]


@pytest.fixture
def root(tmp_path):
    """Two kernels with early boot images from an hour ago."""
    (tmp_path / "boot").mkdir()
    for kernel in KERNELS:
        for name in ("vmlinuz", "initrd.img"):
            (tmp_path / f"boot/{name}-{kernel}").write_text("x")
            os.utime(tmp_path / f"boot/{name}-{kernel}", (1000, 1000))
    return tmp_path


def nouveau(root, text):
    _driver_files.write(str(root), _apt_prefs.NOUVEAU_PATH, text)


def rebuild(root, *kernels):
    for kernel in kernels:
        (root / f"boot/initrd.img-{kernel}").write_text("y")


def test_krn_04_images_older_than_the_blacklist_are_stale(root):
    assert _driver_files.stale_images(str(root), KERNELS) == KERNELS, "it is going to be written"
    nouveau(root, _apt_prefs.NOUVEAU_TEXT)
    rebuild(root, KERNELS[0])
    assert _driver_files.stale_images(str(root), KERNELS) == KERNELS[1:]


def test_drv_09_images_that_a_killed_removal_left_stale_are_known_to_the_next_run(root):
    nouveau(root, _apt_prefs.NOUVEAU_TEXT)
    rebuild(root, *KERNELS)
    diffs, stale = _driver_files.let_nouveau_in(str(root), check=True)
    assert stale == KERNELS and "\nblacklist" not in diffs[0]["after"]
    assert (root / _apt_prefs.NOUVEAU_PATH.lstrip("/")).read_text() == _apt_prefs.NOUVEAU_TEXT
    assert _driver_files.let_nouveau_in(str(root), check=False) == (diffs, KERNELS)
    # Killed here, or with one image built: the next run goes on with what is left.
    assert _driver_files.let_nouveau_in(str(root), check=False) == ([], KERNELS)
    rebuild(root, KERNELS[0])
    assert _driver_files.let_nouveau_in(str(root), check=False) == ([], KERNELS[1:])
    rebuild(root, KERNELS[1])
    assert _driver_files.let_nouveau_in(str(root), check=False) == ([], [])
    nouveau(root, None)
    assert _driver_files.let_nouveau_in(str(root), check=False) == ([], [])


def test_the_file_on_its_way_out_keeps_nothing_away():
    lines = [line for line in _apt_prefs.NOUVEAU_GONE_TEXT.splitlines() if not line.startswith("#")]
    assert lines == []
