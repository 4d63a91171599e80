"""The texts that keep a driver where it is."""

from __future__ import annotations

import re

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _driver_pins


def test_drv_05_members_are_pinned_exactly_and_another_origin_away_even_at_the_same_version():
    """Debian and NVIDIA both have a 535.261.03-1: apt sees two versions with one name, and the first record decides."""
    text = _apt_prefs.pins_text(
        {"libcuda1": "535.261.03-1", "nvidia-modprobe": "535.161.07-1"},
        [
            ("nvidia-imex", "release o=NVIDIA"),
            ("libcuda1", "release o=NVIDIA"),
            ("nvidia-modprobe", "version 610.1"),
            ("nvidia-settings", "version 610.1"),
        ],
    )
    pins = _driver_pins.parse(text)
    assert [(pin["packages"], pin["pin"], pin["priority"]) for pin in pins] == [
        (["libcuda1", "nvidia-imex"], "o=NVIDIA", -1),
        (["nvidia-settings"], "610.1", -1),
        (["nvidia-modprobe"], "535.161.07-1", 1001),
        (["libcuda1"], "535.261.03-1", 1001),
        (["libcuda1", "nvidia-modprobe"], "*", -1),
    ]
    assert text.startswith("# Managed by the aiinfra.gpu_node collection (role nvidia_driver)")


def test_drv_06_the_blacklist_names_exactly_the_members():
    text = _apt_prefs.blacklist_text(["libcuda1", "libstdc++6"])
    entries = re.findall(r'"(.*)";', text)
    assert entries == ["^libcuda1$", r"^libstdc\+\+6$"]
    assert all(re.match(entry, name) for entry, name in zip(entries, ["libcuda1", "libstdc++6"]))
    assert not re.match(entries[0], "libcuda10")


def test_needrestart_leaves_gpu_services_alone():
    assert r"$nrconf{override_rc}{qr(^nvidia-persistenced\.service$)} = 0;" in _apt_prefs.needrestart_text()


def test_nothing_to_add_gives_no_sources_file():
    assert _apt_prefs.sources_text("") == ""
    assert _apt_prefs.sources_text("Types: deb\n").endswith("\n\nTypes: deb\n")
