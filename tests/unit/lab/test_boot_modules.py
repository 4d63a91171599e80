"""Which file stands for which module name on a simulated node's kernel."""

from __future__ import annotations

import pytest
from labboot import gpus, modules


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("nvidia", "nvidia"),
        ("nvidia-uvm", "nvidia_uvm"),
        ("nvidia-current", "nvidia"),
        ("nvidia-current-uvm", "nvidia_uvm"),
        ("nvidia-current-open", "nvidia"),
        ("nvidia-current-open-uvm", "nvidia_uvm"),
        ("nvidia_current_open_drm", "nvidia_drm"),
        ("updates/dkms/nvidia-current-modeset.ko.xz", "nvidia_modeset"),
        ("nouveau", "nouveau"),
    ],
)
def test_a_modules_own_name(name: str, usual: str) -> None:
    assert modules.usual_name(name) == usual


@pytest.mark.parametrize(
    ("files", "name", "found"),
    [
        (["nvidia", "nvidia-uvm"], "nvidia_uvm", "nvidia-uvm"),
        (["nvidia-current", "nvidia-current-uvm"], "nvidia-uvm", "nvidia-current-uvm"),
        (["nvidia-current", "nvidia-current-uvm"], "nvidia", "nvidia-current"),
        (["nvidia-current-open", "nvidia-current-open-drm"], "nvidia-drm", "nvidia-current-open-drm"),
        (["nvidia-current-open", "nvidia-current-open-drm"], "nvidia-current-drm", "nvidia-current-open-drm"),
        (["nvidia-current"], "nvidia-uvm", ""),
        ([], "nvidia", ""),
        (["nouveau"], "nouveau", "nouveau"),
    ],
)
def test_drv_the_file_that_stands_for_a_name(
    files: list[str], name: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = {file.replace("-", "_"): f"updates/dkms/{file}.ko" for file in files}
    monkeypatch.setattr(modules, "module_index", lambda root, release: index)
    path = modules.candidates("6.1.0-57-amd64", name)
    assert path == (f"/lib/modules/6.1.0-57-amd64/updates/dkms/{found}.ko" if found else "")


def test_svc_04_switches_are_bridges_with_addresses_of_their_own() -> None:
    state = {"gpu.count": "8", "nvswitch.count": "4", "nvswitch.device_id": "22a3"}
    found = gpus.nvswitches(state)
    assert {(one.vendor, one.device, one.pci_class) for one in found} == {(0x10DE, 0x22A3, 0x068000)}
    assert len({one.address for one in [*found, *gpus.gpus(state)]}) == 12
    assert gpus.nvswitches({"gpu.count": "8"}) == []
