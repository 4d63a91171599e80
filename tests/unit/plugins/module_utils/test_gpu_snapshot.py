"""The snapshot of a node: what belongs together is put together, and a fault in one part leaves the others."""

from __future__ import annotations

import json
import os
import sys

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _gpu_snapshot as snapshot
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import Gpu, Nvml, PciGpu, Process, Snapshot

from lab import nvml_build

A, B, C, D = "0000:17:00.0", "0000:2a:00.0", "0000:3d:00.0", "0000:5e:00.0"

PLACES = {
    "nothing lacks": ((A, B), (A, B), (A, B)),
    "one is lost": ((A, "", C), (A, B, C), (A, B, C)),
    "two are lost, in order": ((A, "", "", D), (A, B, C, D), (A, B, C, D)),
    "none was reached": (("", ""), (A, B), (A, B)),
    "one, and NVML counts in another order": ((C, "", A), (A, B, C), (C, B, A)),
    "two, and NVML counts in another order": ((D, "", "", A), (A, B, C, D), (D, "", "", A)),
    "the lost one is gone from PCI": ((A, "", C), (A, C), (A, "", C)),
    "PCI has more than NVML": ((A, "", C), (A, B, C, D), (A, "", C)),
    "no sysfs": ((A, ""), (), (A, "")),
}


@pytest.mark.parametrize(("have", "pci", "wanted"), PLACES.values(), ids=PLACES)
def test_hlt_03_a_lost_gpu_gets_its_address_where_there_is_no_doubt(have, pci, wanted):
    gpus = [Gpu(index, address, lost=not address) for index, address in enumerate(have)]
    found = snapshot.placed(gpus, [PciGpu(address) for address in pci])
    assert tuple(gpu.bus_id for gpu in found) == wanted
    assert [gpu.lost for gpu in found] == [gpu.lost for gpu in gpus]


@pytest.fixture
def root(tmp_path):
    """A node's files: two cards on PCI, a loaded module, a record of the driver."""
    nvml_build.simgpu(tmp_path / "state", "init", "--gpus", "2")
    nvml_build.simgpu(tmp_path / "state", "sysfs", "--root", str(tmp_path), "--driver", "nvidia")
    status = "".join(
        f"Package: {name}\nStatus: {want} ok installed\nVersion: 535.261.03-1\nArchitecture: amd64\n\n"
        for name, want in (("libnvidia-ml1", "hold"), ("nvidia-smi", "hold"))
    )
    files = {
        "proc/uptime": "300.25 1000.0\n",
        "proc/cmdline": "quiet iommu=pt\n",
        "proc/sys/kernel/random/boot_id": "0f0e\n",
        "proc/driver/nvidia/version": nvml_build.BANNER.format("535.261.03"),
        "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03": "",
        "dev/nvidia0": "",
        "dev/kmsg": "4,1,40000000,-;NVRM: Xid (PCI:0000:2a:00): 79, pid=1\n",
        "var/lib/dpkg/status": status,
        "var/lib/gpu_node/driver.json": json.dumps(
            {"version": "535.261.03", "packages": {"libnvidia-ml1": "535.261.03-1", "nvidia-smi": "535.261.03-1"}}
        ),
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def collect(root, fake_runner, **more):
    gpus = (Gpu(0, A, processes=(Process(77),)), Gpu(1, lost=True, lost_code=15))
    more.setdefault("probe", lambda: (Nvml("ok", count=2), gpus))
    return snapshot.collect(fake_runner(), root=str(root), **more)


def test_everything_of_a_node(root, fake_runner):
    found = collect(root, fake_runner)
    assert (found.boot_id, found.uptime_s, found.root) == ("0f0e", 300.25, os.geteuid() == 0)
    assert [gpu.bus_id for gpu in found.gpus] == [A, B]
    assert not found.gpus[0].processes[0].exists
    assert [device.address for device in found.pci] == [A, B]
    assert (found.software.module_version, found.software.library_version) == ("535.261.03", "535.261.03")
    assert found.software.library_path == "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03"
    assert (found.software.wanted_version, found.software.held) == ("535.261.03", True)
    assert (found.software.device_nodes, found.software.cmdline) == (("/dev/nvidia0",), "quiet iommu=pt")
    assert [(event.xid, event.bus_id) for event in found.log] == [(79, B)]
    assert (found.log_error, len(found.units)) == ("", 4)
    assert Snapshot.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_hlt_14_a_start_instant_hides_what_was_repaired(root, fake_runner):
    assert collect(root, fake_runner, since_s=60.0).log == ()


def test_one_package_without_hold_and_no_record(root, fake_runner):
    status = root / "var/lib/dpkg/status"
    status.write_text(status.read_text().replace("hold", "install", 1))
    assert collect(root, fake_runner).software.held is False
    (root / "var/lib/gpu_node/driver.json").write_text("{")
    found = collect(root, fake_runner).software
    assert (found.wanted_version, found.held) == (None, None)


def test_a_bare_machine_has_a_snapshot_too(tmp_path, fake_runner):
    found = collect(tmp_path, fake_runner, probe=lambda: (Nvml("absent", 12), ()))
    assert (found.nvml.state, found.gpus, found.pci, found.uptime_s) == ("absent", (), (), 0.0)
    assert found.log_error
    assert (found.software.module_version, found.software.library_version) == (None, None)


def test_the_library_that_was_opened_counts(root, fake_runner, tmp_path):
    folder = tmp_path / "opt"
    folder.mkdir()
    (folder / "libnvidia-ml.so.550.54.14").write_text("")
    os.symlink("libnvidia-ml.so.550.54.14", folder / "libnvidia-ml.so.1")
    opened = Nvml("ok", library=str(folder / "libnvidia-ml.so.1"))
    found = collect(root, fake_runner, probe=lambda: (opened, ())).software
    assert (found.library_version, os.path.basename(found.library_path)) == ("550.54.14", "libnvidia-ml.so.550.54.14")


def test_the_python_that_reads_nvml(tmp_path):
    assert snapshot.nvml_python("/x/python", str(tmp_path)) == "/x/python"
    assert snapshot.nvml_python("", str(tmp_path)) == sys.executable
    place = tmp_path / snapshot.NVML_PYTHON.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("")
    assert snapshot.nvml_python("", str(tmp_path)) == snapshot.NVML_PYTHON
