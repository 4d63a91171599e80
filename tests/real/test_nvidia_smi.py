"""NVIDIA's own nvidia-smi, from Debian's package, on the simulated NVML library; `make test-real` runs it.

It is unpacked into a temporary directory, never installed. With a working library it stops before it asks for any GPU,
since it wants tables of functions that are private to NVIDIA (lab/packages/README.md). What it says when the library or
the driver does not start needs public functions only, and that is what nodes are in trouble with: there its words and
exit codes have to be those of the state file, and those of the lab's stand-in.

GPU_NODE_REAL_NVIDIA_SMI names a program that is there already; GPU_NODE_REAL_MIRROR another mirror than the machine's.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packages.artifacts import Artifacts

from lab import nvml_build

SUITE = "bookworm"
PACKAGE = "nvidia-smi"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
TIMEOUT_S = 60


def mirror() -> str:
    """Return the address of a Debian mirror: the one that was asked for, else the machine's own; empty for none."""
    named = os.environ.get("GPU_NODE_REAL_MIRROR", "")
    own = SOURCES.read_text(encoding="utf-8") if SOURCES.exists() else ""
    uris = [uri for uri in re.findall(r"(?m)^URIs:\s*(\S+)", own) if "security" not in uri]
    return named or next(iter(uris), "")


def download(folder: Path, uri: str) -> Path:
    """Download and unpack Debian's package with a configuration of apt that shares nothing with the machine's."""
    for name in ("lists/partial", "cache/archives/partial", "unpacked"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [arch=amd64 signed-by={KEYRING}] {uri} {SUITE} non-free\n")
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": folder,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": "amd64",
        # The directory is the tester's alone, so the user _apt cannot write into it.
        "APT::Sandbox::User": "root",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    for command in (["update", "--error-on=any"], ["download", PACKAGE]):
        done = subprocess.run(
            ["apt-get", "-q", *words, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, f"{PACKAGE} cannot be downloaded from {uri}:\n{done.stdout}{done.stderr}"
    (archive,) = folder.glob(f"{PACKAGE}_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "unpacked")], check=True)
    (program,) = folder.glob(f"unpacked/usr/lib/nvidia/*/{PACKAGE}")
    return program


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Return the path of NVIDIA's program."""
    given = os.environ.get("GPU_NODE_REAL_NVIDIA_SMI")
    if given:
        assert os.access(given, os.X_OK), f"GPU_NODE_REAL_NVIDIA_SMI: {given} is no program"
        return Path(given).resolve()
    if platform.machine() != "x86_64":
        pytest.skip(f"Debian has {PACKAGE} for amd64 only, and this machine is {platform.machine()}")
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing or not KEYRING.exists():
        pytest.skip(f"no GPU_NODE_REAL_NVIDIA_SMI, and not here to download it with: {missing or KEYRING}")
    uri = mirror()
    if not uri:
        pytest.skip(f"no GPU_NODE_REAL_NVIDIA_SMI or GPU_NODE_REAL_MIRROR, and no mirror in {SOURCES}")
    return download(tmp_path_factory.mktemp("real"), uri)


@pytest.fixture(scope="module")
def version(real):
    """Return the program's own version; its help needs no library."""
    text = subprocess.run([str(real), "--help"], capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
    return re.search(r"System Management Interface -- v([\d.]+)", text).group(1)


@pytest.fixture(scope="module")
def library(tmp_path_factory, version):
    return nvml_build.library(tmp_path_factory.mktemp("library"), version)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    path = tmp_path_factory.mktemp("stand-in") / PACKAGE
    shutil.copyfile(Artifacts(path.parent / "artifacts").get("tool:nvidia-smi"), path)
    path.chmod(0o755)
    return path


@pytest.fixture
def node(tmp_path, library, version):
    """Return a node of two simulated GPUs, and the environment in which programs see it."""
    nvml_build.simgpu(tmp_path / "state", "init", "--gpus", "2", "--model", "h100-sxm", "--seed", "test")
    return nvml_build.environment(tmp_path, library, version)


def ask(program, environment, *words):
    done = subprocess.run(
        [str(program), *words], env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    return done.returncode, done.stdout


QUESTIONS = ([], ["-L"], ["--query-gpu=pci.bus_id,persistence_mode", "--format=csv,noheader"])


@pytest.mark.parametrize("words", QUESTIONS)
def test_svc_08_a_module_that_is_not_loaded(real, stand_in, node, words):
    Path(node["SIMGPU_PROC_VERSION"]).unlink()
    code, text = ask(real, node, *words)
    assert code == 9 and "couldn't communicate with the NVIDIA driver" in text
    assert ask(stand_in, node, *words) == (code, text)


@pytest.mark.parametrize("words", QUESTIONS)
def test_drv_07_a_module_of_another_version(real, stand_in, node, version, words):
    Path(node["SIMGPU_PROC_VERSION"]).write_text(nvml_build.BANNER.format("390.10.01"), encoding="ascii")
    code, text = ask(real, node, *words)
    assert (code, text.splitlines()) == (
        18,
        [
            "Failed to initialize NVML: Driver/library version mismatch",
            f"NVML library version: {version.rpartition('.')[0]}",
        ],
    )
    assert ask(stand_in, node, *words) == (code, text)


def test_no_library(real, stand_in, node, tmp_path):
    # An empty directory in place of the library's; a machine with a driver of its own finds that one.
    if any(Path(folder, "libnvidia-ml.so.1").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")):
        pytest.skip("this machine has an NVML library of its own")
    node["LD_LIBRARY_PATH"] = str(tmp_path)
    code, text = ask(real, node, "-L")
    assert code == 12 and "couldn't find libnvidia-ml.so library" in text
    assert ask(stand_in, node, "-L") == (code, text)


@pytest.mark.parametrize("key", ["nvml.init_error", "rc.nvmlInitWithFlags"])
@pytest.mark.parametrize(
    ("nvml", "code", "text"),
    [
        (4, 4, "Insufficient Permissions"),
        (6, 6, "Not Found"),
        (8, 8, "Insufficient External Power"),
        (10, 255, "Timeout"),
        (11, 11, "Interrupt Request Issue"),
        (14, 14, "Corrupted infoROM"),
        (15, 15, "GPU is lost"),
        (16, 255, "GPU requires reset"),
        (20, 255, "Insufficient Memory"),
        (999, 255, "Unknown Error"),
    ],
)
def test_an_initialisation_that_fails_as_the_state_says(real, stand_in, node, key, nvml, code, text):
    nvml_build.simgpu(Path(node["SIMGPU_STATE"]), "set", f"{key}={nvml}")
    said = ask(real, node, "-L")
    assert said == (code, f"Failed to initialize NVML: {text}\n")
    # The stand-in starts the library by nvmlInit_v2, which the other key does not mean.
    if key == "nvml.init_error":
        assert ask(stand_in, node, "-L") == said


@pytest.mark.parametrize("words", [*QUESTIONS, ["-q"]])
def test_with_a_working_library_it_wants_private_tables_and_says_so(real, node, words):
    """When this fails, what lab/packages/README.md says of the real program is not true any more."""
    assert ask(real, node, *words) == (
        255,
        "Mismatch in versions between nvidia-smi and NVML.\n"
        "Are you sure you are using nvidia-smi provided with the driver?\n",
    )


def looked_up(program, environment):
    """Return the functions of NVML that a program asks the loader for."""
    done = subprocess.run(
        [str(program), "-L"],
        env={**environment, "LD_DEBUG": "symbols"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return set(re.findall(r"symbol=(nvml\w+);", done.stderr))


def test_it_looks_up_public_functions_that_are_there_and_one_that_is_private(real, node):
    found = looked_up(real, node)
    Path(node["SIMGPU_PROC_VERSION"]).write_text(nvml_build.BANNER.format("390.10.01"), encoding="ascii")
    found |= looked_up(real, node)
    assert found == {"nvmlInitWithFlags", "nvmlShutdown", "nvmlSystemGetNVMLVersion", "nvmlInternalGetExportTable"}
