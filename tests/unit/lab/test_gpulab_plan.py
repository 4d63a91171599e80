"""What makes the lab build something again, which nodes a checkout may touch, and what a setup cleans up."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from gpulab import build, docker, hashing, keys, node, overlay, paths, progress, suites
from gpulab import plan as plans
from gpulab.plan import Plan

ALL = {"base_key", "packages_key", "repository_key", "image_key"}
LATER = {"repository_key", "image_key"}


@pytest.fixture(name="lab")
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the lab's sources with made-up keys, where tests may edit."""
    lab = tmp_path / "lab"
    ignore = shutil.ignore_patterns("cache", "__pycache__", ".ruff_cache", ".mypy_cache")
    shutil.copytree(paths.LAB, lab, ignore=ignore)
    for name, value in {
        "LAB": lab,
        "IMAGE": lab / "image",
        "PACKAGES": lab / "packages",
        "CACHE": lab / "cache",
        "KEYS": lab / "cache" / "keys",
    }.items():
        monkeypatch.setattr(paths, name, value)
    monkeypatch.setattr(plans, "_HERE", lab / "gpulab")
    monkeypatch.setattr(overlay, "SIMGPU", lab / "bin" / "simgpu")
    monkeypatch.setattr(overlay, "_SOURCE", lab / "image" / "src" / "uname.c")
    paths.KEYS.mkdir(parents=True)
    for name in keys.OWNERS:
        keys.public(name).write_text(f"public key {name}\n")
        (paths.KEYS / f"{name}.fingerprint").write_text(name * 5)
    return lab


def _changed(before: Plan, after: Plan) -> set[str]:
    return {name for name in ALL if getattr(before, name) != getattr(after, name)}


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        ("gpulab/cli.py", set()),
        ("gpulab/node.py", set()),
        ("gpulab/docker.py", set()),
        ("gpulab/progress.py", set()),
        ("gpulab/build.py", set()),
        ("gpulab/plan.py", set()),
        ("README.md", set()),
        ("packages/README.md", set()),
        ("bin/gpulab", set()),
        ("bin/simgpu", {"image_key"}),
        ("image/src/uname.c", {"image_key"}),
        ("image/install.sh", {"image_key"}),
        ("image/like.sh", {"image_key"}),
        ("image/bin/modprobe", {"image_key"}),
        ("image/labboot/grub.py", {"image_key"}),
        ("image/units/lab-boot.service", {"image_key"}),
        ("gpulab/compose.py", LATER),
        ("gpulab/simulated.py", {"packages_key", *LATER}),
        ("packages/catalog.py", {"packages_key", *LATER}),
        ("packages/dkms/nvidia.c", {"packages_key", *LATER}),
        ("gpulab/base.py", {"base_key", *LATER}),
        ("gpulab/repack.py", {"base_key", *LATER}),
        ("gpulab/debs.py", {"base_key", *LATER}),
        ("image/base/install-base.sh", {"base_key", *LATER}),
        ("image/base/disk.conf", {"base_key", *LATER}),
        ("image/base/grub-probe", {"base_key", *LATER}),
    ],
)
def test_an_edit_builds_again_what_it_goes_into(lab: Path, edited: str, expected: set[str]) -> None:
    suite = suites.SUITES["bookworm"]
    before = plans.plan(suite)
    with (lab / edited).open("a", encoding="utf-8") as handle:
        handle.write("# edited\n")
    assert _changed(before, plans.plan(suite)) == expected


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("name", ["BASE_PACKAGES", "NODE_PACKAGES", "OFFERED_PACKAGES", "KERNEL_MODULES"])
def test_the_package_lists_decide_the_base(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plans.plan(suites.SUITES["bookworm"])
    monkeypatch.setattr(suites, name, (*getattr(suites, name), "one-more"))
    assert _changed(before, plans.plan(suites.SUITES["bookworm"])) == {"base_key", *LATER}


@pytest.mark.usefixtures("lab")
def test_suites_and_their_names_differ() -> None:
    bookworm, trixie = (plans.plan(suites.SUITES[name]) for name in ("bookworm", "trixie"))
    assert bookworm.packages_key == trixie.packages_key
    assert bookworm.simulated == trixie.simulated
    for name in ("base_folder", "base_image", "modules", "repository", "image"):
        assert getattr(bookworm, name) != getattr(trixie, name)


@pytest.mark.usefixtures("lab")
def test_keys_of_another_checkout_make_other_images() -> None:
    suite = suites.SUITES["trixie"]
    before = plans.plan(suite)
    keys.public("debian").write_text("another key\n")
    assert _changed(before, plans.plan(suite)) == {"base_key", *LATER}
    before = plans.plan(suite)
    (paths.KEYS / "ubuntu.fingerprint").write_text("F" * 40)
    assert _changed(before, plans.plan(suite)) == LATER


@pytest.mark.usefixtures("lab")
def test_what_changes_while_it_is_used_is_not_kept_under_the_old_name(lab: Path) -> None:
    wish = plans.plan(suites.SUITES["trixie"])
    build._still(wish)
    (lab / "image" / "install.sh").write_text("changed")
    with pytest.raises(progress.LabError, match="changed while they were being used"):
        build._still(wish)


def test_contents_in_memory_are_hashed_by_name_mode_and_bytes() -> None:
    first = hashing.digest_contents({"a": (b"x", 0o644), "b": (b"y", 0o755)})
    assert first == hashing.digest_contents({"b": (b"y", 0o755), "a": (b"x", 0o600)})
    assert first != hashing.digest_contents({"a": (b"x", 0o755), "b": (b"y", 0o755)})
    assert first != hashing.digest_contents({"a": (b"x", 0o644), "c": (b"y", 0o755)})


def test_the_newest_of_each_kind_stay() -> None:
    names = ["i:bookworm-3", "i:trixie-2", "i:bookworm-2", "i:bookworm-1", "i-base:bookworm-1"]
    assert build._beyond(names, 2) == {"i:bookworm-1"}
    assert build._beyond(names, 0) == set(names)


@pytest.fixture(name="container")
def _container(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Labels of the one container there is."""
    labels: dict[str, str] = {}
    monkeypatch.setattr(node, "_label", lambda name, key: labels.get(key, ""))
    monkeypatch.setattr(node, "exists", lambda name: True)
    return labels


@pytest.mark.parametrize("action", [node.down, node.reboot, lambda name: node.up(node.Wish(name, "bookworm"))])
def test_what_is_not_ours_is_left_alone(container: dict[str, str], action: object, tmp_path: Path) -> None:
    assert callable(action)
    with pytest.raises(progress.LabError, match="none of the lab's"):
        action("gpu-lab-1")
    container.update({"": "1", ".root": str(tmp_path)})
    with pytest.raises(progress.LabError) as caught:
        action("gpu-lab-1")
    assert f"belongs to the checkout {tmp_path}" in str(caught.value)
    assert "LAB_NODE=NAME" in str(caught.value)


def test_a_node_whose_checkout_is_gone_belongs_to_whoever_asks(container: dict[str, str], tmp_path: Path) -> None:
    container.update({"": "1", ".root": str(tmp_path / "gone")})
    node._check_ours("gpu-lab-1")
    container[".root"] = str(paths.ROOT)
    node._check_ours("gpu-lab-1")


def test_an_existing_node_keeps_its_properties(container: dict[str, str]) -> None:
    container.update({"": "1", ".root": str(paths.ROOT), ".wish": "bookworm//2/h100-sxm/"})
    with pytest.raises(progress.LabError, match=r"other properties: `lab/bin/gpulab down gpu-lab-1`"):
        node.up(node.Wish("gpu-lab-1", "bookworm", gpus=4))


def test_only_this_checkouts_nodes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(node, "running", lambda: True)
    monkeypatch.setattr(node, "docker", lambda *words, **_: asked.extend(words) or "b\na\n")
    assert node.names() == ["a", "b"]
    assert f"label={paths.LABEL}.root={paths.ROOT}" in asked
    monkeypatch.setattr(node, "running", lambda: False)
    assert node.names() == []


@pytest.mark.parametrize(("text", "stale"), [("", True), ("nonsense", True), ("4194304999", True), ("1", False)])
def test_pid_file_of_an_engine_that_is_gone(
    text: str, stale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfile = tmp_path / "docker.pid"
    pidfile.write_text(text)
    monkeypatch.setattr(docker, "ENGINE_PIDFILE", pidfile)
    monkeypatch.setattr(docker, "_process_name", lambda pid: "dockerd" if pid == 1 else "")
    docker._clear_stale_pid()
    assert pidfile.exists() is not stale


def test_the_engine_runs_on_while_others_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pidfile = tmp_path / "dockerd.pid"
    pidfile.write_text("1\n")
    monkeypatch.setattr(docker, "PIDFILE", pidfile)
    monkeypatch.setattr(docker, "_process_name", lambda pid: "dockerd")
    monkeypatch.setattr(docker, "running", lambda: True)
    monkeypatch.setattr(docker, "docker", lambda *words: "0123456789ab\n")
    assert docker.stop_engine() is False
    assert pidfile.exists()


def test_nothing_begins_after_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = threading.Event()
    monkeypatch.setattr(progress, "_stopping", stopping)
    progress.run("a step", ["true"], tmp_path / "log")
    stopping.set()
    with pytest.raises(progress.LabError, match="being stopped"):
        progress.run("a step", ["true"], tmp_path / "log")
    with pytest.raises(progress.LabError, match="being stopped"), progress.step("another"):
        pass


def test_a_failed_step_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(progress.LabError, match=r"(?s)a step failed \(exit 3\).*why it failed"):
        progress.run("a step", ["sh", "-c", "echo why it failed; exit 3"], tmp_path / "log")
