"""The simulated boot: what GRUB would start, and what /proc says afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from labboot import grub, kernels
from labboot.gpus import Gpu, config_space, gpus, parse_state, refusal, version_text

FIXTURE = Path(__file__).parent / "fixtures" / "grub_three_kernels.cfg"
ROOT = "6b2e1d84-0c5f-4a39-9d27-51c3f0a8e6b7"
ADVANCED = f"gnulinux-advanced-{ROOT}"
NEWEST, MIDDLE, OLDEST = "6.12.95+deb12-amd64", "6.1.0-57-amd64", "6.1.0-50-amd64"


def _id(release: str) -> str:
    return f"{ADVANCED}>gnulinux-{release}-advanced-{ROOT}"


def _works(_entry: grub.Entry) -> str:
    return ""


def _without(*gone: str):
    return lambda entry: "not found" if any(release in entry.linux for release in gone) else ""


@pytest.fixture(name="menu")
def _menu() -> grub.Menu:
    return grub.parse_menu(FIXTURE.read_text(encoding="utf-8"))


def test_menu_of_three_kernels(menu: grub.Menu) -> None:
    assert [entry.title for entry in menu.entries] == ["Debian GNU/Linux", "Advanced options for Debian GNU/Linux"]
    submenu = menu.entries[1].children
    assert submenu is not None
    assert [entry.ident for entry in submenu][::2] == [
        f"gnulinux-{r}-advanced-{ROOT}" for r in (NEWEST, MIDDLE, OLDEST)
    ]
    assert menu.entries[0].linux == f"/boot/vmlinuz-{NEWEST}"
    assert menu.entries[0].arguments.split() == [f"root=UUID={ROOT}", "ro", "quiet"]
    assert menu.entries[0].initrd == f"/boot/initrd.img-{NEWEST}"
    assert menu.reads_next_entry
    assert menu.default == "${saved_entry}"


def test_no_saved_entry_starts_the_first_entry(menu: grub.Menu) -> None:
    choice = grub.choose(menu, {}, _works)
    assert choice is not None
    assert (choice.entry.linux, choice.one_shot, choice.notes) == (f"/boot/vmlinuz-{NEWEST}", False, [])


@pytest.mark.parametrize(
    "saved",
    [
        _id(MIDDLE),
        f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {MIDDLE}",
        "1>2",
        f"{ADVANCED}>2",
    ],
)
def test_saved_entry_by_id_title_and_number(menu: grub.Menu, saved: str) -> None:
    choice = grub.choose(menu, {"saved_entry": saved}, _works)
    assert choice is not None
    assert choice.path == _id(MIDDLE)


def test_krn_one_shot_entry_is_used_once(menu: grub.Menu) -> None:
    before = {"saved_entry": _id(MIDDLE), "next_entry": _id(NEWEST)}
    first = grub.choose(menu, before, _works)
    assert first is not None
    assert (first.path, first.one_shot) == (_id(NEWEST), True)
    assert first.environment == {"saved_entry": _id(MIDDLE), "next_entry": ""}
    second = grub.choose(menu, first.environment, _works)
    assert second is not None
    assert (second.path, second.one_shot) == (_id(MIDDLE), False)


def test_unknown_default_starts_the_first_entry_and_says_so(menu: grub.Menu) -> None:
    choice = grub.choose(menu, {"saved_entry": _id("6.1.0-1-amd64")}, _works)
    assert choice is not None
    assert choice.path == f"gnulinux-simple-{ROOT}"
    assert "is not in the menu" in choice.notes[0]


def test_kernel_file_gone_goes_on_with_the_next_entry(menu: grub.Menu) -> None:
    choice = grub.choose(menu, {"next_entry": _id(NEWEST)}, _without(NEWEST))
    assert choice is not None
    assert choice.path == _id(MIDDLE)
    assert not choice.one_shot
    assert choice.environment["next_entry"] == ""
    assert choice.notes == [f"{_id(NEWEST)}: not found"]


def test_nothing_can_start(menu: grub.Menu) -> None:
    assert grub.choose(menu, {}, _without(NEWEST, MIDDLE, OLDEST)) is None


def test_a_fixed_default_ignores_the_saved_entry() -> None:
    text = FIXTURE.read_text(encoding="utf-8").replace('set default="${saved_entry}"', 'set default="0"')
    choice = grub.choose(grub.parse_menu(text), {"saved_entry": _id(OLDEST)}, _works)
    assert choice is not None
    assert choice.entry.linux == f"/boot/vmlinuz-{NEWEST}"


def test_environment_block_keeps_its_size_and_values() -> None:
    values = {"saved_entry": "a>b", "next_entry": "", "odd": "back\\slash"}
    text = grub.format_environment(values)
    assert len(text) == grub.ENVIRONMENT_SIZE
    assert text.startswith("# GRUB Environment Block\n")
    assert grub.parse_environment(text) == values


def test_environment_block_too_small() -> None:
    with pytest.raises(ValueError, match="too small"):
        grub.format_environment({"x": "y" * 1024})


def test_banner_of_a_kernel_image(tmp_path: Path) -> None:
    text = b"6.1.0-57-amd64 (debian-kernel@example) #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2026-11-26)\0"
    image = bytearray(0x4000)
    image[0x202:0x206] = b"HdrS"
    image[0x20E:0x210] = (0x3000 - 0x200).to_bytes(2, "little")
    image[0x3000 : 0x3000 + len(text)] = text
    path = tmp_path / "vmlinuz"
    path.write_bytes(image)
    banner = kernels.kernel_banner(str(path))
    assert banner is not None
    assert banner.release == "6.1.0-57-amd64"
    assert banner.version == "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2026-11-26)"


def test_a_damaged_kernel_image_has_no_banner(tmp_path: Path) -> None:
    path = tmp_path / "vmlinuz"
    path.write_bytes(b"not a kernel" * 100)
    assert kernels.kernel_banner(str(path)) is None
    assert kernels.kernel_banner(str(tmp_path / "missing")) is None


def test_module_index_is_the_kernels_own(tmp_path: Path) -> None:
    folder = tmp_path / "lib/modules/6.1.0-57-amd64"
    folder.mkdir(parents=True)
    (folder / "modules.dep").write_text(
        "updates/dkms/nvidia-current-uvm.ko.xz: updates/dkms/nvidia-current.ko.xz\nupdates/dkms/nvidia-current.ko.xz:\n"
    )
    index = kernels.module_index(str(tmp_path), "6.1.0-57-amd64")
    assert index == {
        "nvidia_current_uvm": "updates/dkms/nvidia-current-uvm.ko.xz",
        "nvidia_current": "updates/dkms/nvidia-current.ko.xz",
    }
    assert kernels.module_index(str(tmp_path), "6.12") == {}


def test_blacklist_counts_dead_install_lines() -> None:
    shown = (
        "blacklist nouveau\ninstall nvidia-drm /bin/false\ninstall nvidia modprobe -i nvidia-current $CMDLINE_OPTS\n"
    )
    assert kernels.blacklist(shown) == {"nouveau", "nvidia_drm"}


STATE = """
# comment
gpu.count=2
gpu.0.pci=0000:17:00.0
gpu.0.device_id=2330
gpu.0.subsystem_id=16c1
gpu.0.class=030200
gpu.0.name=NVIDIA H100 80GB HBM3
gpu.1.pci=0000:2A:00.0
gpu.1.device_id=1db5
gpu.1.minor=5
"""


def test_gpus_of_the_state_file() -> None:
    first, second = gpus(parse_state(STATE))
    assert (first.address, first.device, first.subsystem_device, first.pci_class) == (
        "0000:17:00.0",
        0x2330,
        0x16C1,
        0x30200,
    )
    assert (second.address, second.device, second.index) == ("0000:2a:00.0", 0x1DB5, 5)
    assert gpus(parse_state(STATE + "gpu.0.on_bus=0\n"))[0].device == 0x1DB5
    assert gpus(parse_state("")) == []


def test_configuration_space_for_lspci() -> None:
    space = config_space(gpus(parse_state(STATE))[0])
    assert space[:4] == bytes.fromhex("de103023")
    assert space[9:12] == bytes.fromhex("000203")


@pytest.mark.parametrize(
    ("device", "version", "flavour", "refused"),
    [
        (0x2330, "535.261.03", "proprietary", ""),
        (0x2330, "535.261.03", "open", ""),
        (0x2330, "470.256.02", "proprietary", "525"),
        (0x1DB5, "535.261.03", "open", "GSP"),
        (0x1DB5, "535.261.03", "proprietary", ""),
        (0x1DB5, "590.48.01", "proprietary", "Turing"),
        (0x2901, "580.126.20", "proprietary", "open kernel modules"),
        (0x2901, "550.163.01", "open", "570"),
        (0x2901, "580.126.20", "open", ""),
        (0x2342, "580.126.20", "proprietary", "open kernel modules"),
    ],
)
def test_drv_which_driver_binds_to_which_card(device: int, version: str, flavour: str, refused: str) -> None:
    reason = refusal(Gpu(0, "0000:17:00.0", device), version, flavour)
    assert (refused in reason) if refused else reason == ""


def test_text_of_the_loaded_version() -> None:
    built, compiler = "Tue Jun 24 11:22:33 UTC 2025", "gcc version 12.2.0"
    assert version_text("535.261.03", "proprietary", built, compiler) == (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jun 24 11:22:33 UTC 2025\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    assert version_text("580.95.05", "open", built, compiler).startswith(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    )
