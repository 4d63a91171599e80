"""Early boot images."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _initramfs
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

WITH = """.
etc
etc/modprobe.d
etc/modprobe.d/nvidia-blacklists-nouveau.conf
usr/lib/modules/6.1.0-41-amd64/kernel/drivers/gpu/drm/drm.ko
usr/lib/modules/6.1.0-41-amd64/kernel/drivers/gpu/drm/nouveau
usr/lib/modules/6.1.0-41-amd64/kernel/drivers/gpu/drm/nouveau/nouveau.ko
"""


def image(root, name):
    (root / "boot").mkdir()
    (root / "boot" / name).write_text("")


def test_krn_04_nouveau_inside_is_seen_with_the_blacklist_beside_it(tmp_path, fake_runner):
    image(tmp_path, "initrd.img-6.1.0-41-amd64")
    facts = _initramfs.inspect(fake_runner({"lsinitramfs": WITH}), "6.1.0-41-amd64", str(tmp_path))
    assert facts == {
        "image": "/boot/initrd.img-6.1.0-41-amd64",
        "nouveau": True,
        "blacklists": ["modprobe.d/nvidia-blacklists-nouveau.conf"],
        "error": "",
    }


@pytest.mark.parametrize("suffix", ["", ".xz", ".zst", ".gz"])
def test_krn_04_compressed_modules_count(suffix):
    assert _initramfs.parse_listing(f"usr/lib/modules/x/kernel/nouveau.ko{suffix}\n")["nouveau"]


def test_krn_04_clean_image():
    assert _initramfs.parse_listing("usr/lib/modules/x/kernel/drm.ko\n") == {"nouveau": False, "blacklists": []}


def test_unreadable_image_is_unknown_never_clean(tmp_path, fake_runner):
    image(tmp_path, "initrd.img-6.1.0-41-amd64")
    runner = fake_runner({"lsinitramfs": CommandResult(1, err="cpio: premature end of archive")})
    facts = _initramfs.inspect(runner, "6.1.0-41-amd64", str(tmp_path))
    assert facts["nouveau"] is None
    assert facts["error"]


def test_dracut_image_is_read_with_its_own_tool(tmp_path, fake_runner):
    image(tmp_path, "initramfs-5.14.0-503.11.1.el9_5.x86_64.img")
    facts = _initramfs.inspect(
        fake_runner({"lsinitrd": "lib/nouveau.ko.xz\n"}), "5.14.0-503.11.1.el9_5.x86_64", str(tmp_path)
    )
    assert facts["nouveau"] is True
    assert facts["image"].endswith("el9_5.x86_64.img")


def test_no_image(tmp_path, fake_runner):
    assert _initramfs.inspect(fake_runner(), "6.1.0-41-amd64", str(tmp_path))["image"] is None
