"""apt preferences."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_pins

TEXT = """# Managed
Package: libcuda1 libnvidia-ml1
Pin: version 535.261.03-1
Pin-Priority: 1001

Explanation: all the rest
Package: nvidia-* /^libnv/
Pin: version 535.261.*
Pin-Priority: 1001

Package: *
Pin: release l=NVIDIA CUDA
Pin-Priority: 600

Package: broken
Pin: version 1
Pin-Priority: high
"""


def test_stanzas():
    pins = _driver_pins.parse(TEXT, "/x")
    assert [(pin["packages"], pin["kind"], pin["priority"]) for pin in pins] == [
        (["libcuda1", "libnvidia-ml1"], "version", 1001),
        (["nvidia-*", "/^libnv/"], "version", 1001),
        (["*"], "release", 600),
    ]


@pytest.mark.parametrize(
    ("package", "pin"),
    [("libcuda1", "535.261.03-1"), ("nvidia-smi", "535.261.*"), ("libnvcuvid1", "535.261.*"), ("bash", None)],
)
def test_pin_of_a_package(package, pin):
    found = _driver_pins.pin_of(_driver_pins.parse(TEXT), package)
    assert (found["pin"] if found else None) == pin


def test_versions_that_a_pin_allows():
    pin = {"pin": "535.261.*"}
    assert _driver_pins.allows(pin, "535.261.03-1")
    assert not _driver_pins.allows(pin, "535.309.01-1")
    assert _driver_pins.allows({"pin": "/^535\\.261/"}, "535.261.03-1")


def test_files_that_apt_reads(tmp_path):
    directory = tmp_path / "etc/apt/preferences.d"
    directory.mkdir(parents=True)
    for name in ("a.pref", "b", "c.pref.dpkg-old", "d.bak"):
        (directory / name).write_text(f"Package: {name}\nPin: version 1\nPin-Priority: 1001\n")
    (tmp_path / "etc/apt/preferences").write_text("Package: first\nPin: version 1\nPin-Priority: 1001\n")
    assert [pin["packages"][0] for pin in _driver_pins.read(str(tmp_path))] == ["first", "a.pref", "b"]
