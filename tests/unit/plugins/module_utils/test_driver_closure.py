"""Installing and removing a planned driver: pins, record and packages stand or fall together."""

from __future__ import annotations

import json

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_prefs, _driver_closure, _driver_record
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_refuse import Refusal
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction import Transaction
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import Request, TransactionError
from plugins.module_utils.fake_apt import FakeNode

OLD, NEW = "535.183.06-1", "535.261.03-1"
SYSTEM = {"id": "debian", "codename": "bookworm"}
WANTED = {
    "version": "535.261.03",
    "source": "distro",
    "flavours": ["proprietary"],
    "components": ["compute"],
    "kernels": [],
    "repo_uri": "",
    "repo_suite": "",
    "repo_components": [],
    "key_text": "",
    "auth_text": "",
    "allow_redirect": False,
    "prefer_prebuilt": True,
    "problems": [],
}


@pytest.fixture
def node(tmp_path):
    available = {"libcuda1": [NEW, OLD], "nvidia-kernel-dkms": [NEW, OLD], "nvidia-support": ["1"]}
    node = FakeNode(tmp_path, available, installed={"bash": "5", "cuda-toolkit-12-4": "12.4"})
    node.pulls = {"libcuda1": ["nvidia-support"]}
    return node


def closure(node):
    transaction = Transaction(node, str(node.root), lock_timeout=1, free_bytes=lambda path: (1, 1 << 40))
    return _driver_closure.Closure(node, str(node.root), SYSTEM, transaction)


def plan(version, **more):
    packages = {"libcuda1": version, "nvidia-kernel-dkms": version}
    return {
        "version": version.split("-")[0],
        "requested": version.split("-")[0],
        "source": "distro",
        "packaging": "debian",
        "flavour": "proprietary",
        "components": ["compute"],
        "packages": packages,
        "independent": {},
        "dkms_name": "nvidia-current",
        "needs_headers": [],
        "needs_toolchain": True,
        "pins_text": _apt_prefs.pins_text(packages, []),
        "blacklist_text": _apt_prefs.blacklist_text(packages),
        "to_remove": [],
        "to_install": {**packages, "nvidia-support": "1"},
        "removes": [],
        "request": {"repo_uri": "", "prefer_prebuilt": True, "kernels": []},
        **more,
    }


def text(node, path):
    target = node.root / path.lstrip("/")
    return target.read_text() if target.exists() else None


def test_install_pins_holds_and_records_and_the_plan_then_needs_no_apt(node):
    outcome, diffs = closure(node).install(plan(NEW), check=False)
    assert outcome.changed and [diff["after_header"] for diff in diffs] == [
        _apt_prefs.PINS_PATH,
        _apt_prefs.BLACKLIST_PATH,
    ]
    assert node.holds() == ["libcuda1", "nvidia-kernel-dkms"]
    assert json.loads(text(node, _driver_record.RECORD))["packages"]["libcuda1"] == NEW
    node.calls.clear()
    answer = closure(node).plan(WANTED)
    assert answer["already"] and node.calls == []
    assert closure(node).install(plan(NEW), check=False)[0].changed is False


def test_a_dry_run_tells_the_same_and_writes_nothing(node):
    before = sorted(str(path) for path in node.root.rglob("*"))
    outcome, diffs = closure(node).install(plan(NEW), check=True)
    assert outcome.changed and len(diffs) == 2
    assert f"libcuda1 {NEW} (held)" in outcome.after and "nvidia-support 1" in outcome.after
    assert sorted(str(path) for path in node.root.rglob("*")) == before


def test_krn_03_pins_and_record_go_back_with_the_packages(node):
    closure(node).install(plan(OLD), check=False)
    pins, record = text(node, _apt_prefs.PINS_PATH), text(node, _driver_record.RECORD)
    node.failing["nvidia-kernel-dkms", NEW] = "the compiler differs"
    with pytest.raises(TransactionError, match="the compiler differs"):
        closure(node).install(plan(NEW), check=False)
    assert text(node, _apt_prefs.PINS_PATH) == pins and text(node, _driver_record.RECORD) == record
    assert node.state()["libcuda1"] == OLD and node.holds() == ["libcuda1", "nvidia-kernel-dkms"]


def test_drv_11_work_that_began_since_the_plan_keeps_its_driver(node):
    closure(node).install(plan(OLD), check=False)
    pins = text(node, _apt_prefs.PINS_PATH)
    for path, content in (("sys/module/nvidia/version", "535.183.06\n"), ("proc/10/comm", "python3\n")):
        target = node.root / path
        target.parent.mkdir(parents=True)
        target.write_text(content)
    (node.root / "proc/10/fd").mkdir()
    (node.root / "proc/10/fd/3").symlink_to("/dev/nvidia0")
    with pytest.raises(TransactionError, match=r"Nothing was changed: .* in use .* 10 python3"):
        closure(node).install(plan(NEW), check=False)
    assert node.state()["libcuda1"] == OLD and text(node, _apt_prefs.PINS_PATH) == pins
    # What completes the loaded driver takes it from nobody.
    closure(node).install(plan(OLD), check=False)
    closure(node).install(plan(NEW, interrupt_users=True), check=False)
    assert node.state()["libcuda1"] == NEW


def test_krn_03_a_first_installation_that_fails_leaves_nothing(node):
    node.failing["nvidia-kernel-dkms", NEW] = "no"
    with pytest.raises(TransactionError):
        closure(node).install(plan(NEW), check=False)
    assert text(node, _apt_prefs.PINS_PATH) is None and text(node, _driver_record.RECORD) is None
    assert set(node.state()) == {"bash", "cuda-toolkit-12-4"}


def test_drv_09_removal_takes_what_came_and_nothing_else_twice(node):
    closure(node).install(plan(NEW), check=False)
    assert closure(node).remove(check=True)[0].removed == ["libcuda1", "nvidia-kernel-dkms", "nvidia-support"]
    outcome, _diffs = closure(node).remove(check=False)
    assert outcome.changed and set(node.state()) == {"bash", "cuda-toolkit-12-4"}
    assert text(node, _apt_prefs.PINS_PATH) is None and text(node, _apt_prefs.BLACKLIST_PATH) is None
    assert text(node, _driver_record.RECORD) is None and text(node, state.LEDGER) is None
    assert closure(node).remove(check=False)[0].changed is False


def test_drv_09_what_somebody_asked_for_since_stays(node):
    node.available.update({"dkms": ["3"], "gcc": ["12"], "make": ["4"]})
    node.pulls["dkms"] = ["gcc", "make"]
    tools = Transaction(node, str(node.root), lock_timeout=1, free_bytes=lambda path: (1, 1 << 40))
    tools.run(Request(owner=_driver_closure.OWNER, packages={"dkms": ""}, automatic=True))
    closure(node).install(plan(NEW), check=False)
    node.automatic -= {"make"}
    node.write()
    closure(node).remove(check=False)
    assert set(node.state()) == {"bash", "cuda-toolkit-12-4", "make"}


def test_problems_from_the_controller_stop_before_anything_is_read(node):
    with pytest.raises(Refusal, match="nvidia_driver_version is not set"):
        closure(node).plan({**WANTED, "problems": ["nvidia_driver_version is not set"]})
    assert node.calls == []


def test_a_killed_run_comes_first(node):
    state.write_json(str(node.root), state.MARK, {"owner": "kernel"})
    assert closure(node).plan(WANTED) == {"repair_first": True, "already": False, "changes": False}


def test_a_database_broken_by_others_is_refused_with_the_repair(node):
    node.packages["bash"][2] = "half-configured"
    node.write()
    with pytest.raises(Refusal, match="unfinished: bash.*dpkg --configure -a"):
        closure(node).plan(WANTED)


def test_cud_02_another_definition_beside_others_is_refused(node):
    folder = node.root / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    (folder / "mine.list").write_text("deb file:/srv/cuda /\ndeb file:/srv/other /\n")
    with pytest.raises(Refusal, match="nvidia_driver_repo_uri: file:/srv/cuda is defined in .*mine.list too"):
        closure(node).plan({**WANTED, "source": "cuda_repo", "repo_uri": "file:/srv/cuda", "key_text": "k"})


def test_a_login_file_that_differs_is_a_change_and_its_content_is_in_no_plan(node):
    closure(node).install(plan(NEW), check=False)
    assert closure(node).plan(WANTED)["login_differs"] is False
    auth = "machine https://m/ login u password secret\n"
    answer = closure(node).plan({**WANTED, "auth_text": auth})
    assert answer["login_differs"] and answer["changes"] and "secret" not in str(answer)
    target = node.root / _apt_prefs.AUTH_PATH.lstrip("/")
    target.parent.mkdir(parents=True)
    target.write_text(auth)
    target.chmod(0o644)
    assert closure(node).plan({**WANTED, "auth_text": auth})["login_differs"], "others can read it"
    target.chmod(0o600)
    assert closure(node).plan({**WANTED, "auth_text": auth})["login_differs"] is False
    assert closure(node).plan(WANTED)["login_differs"], "it should go"
