"""One package transaction: refused, run, undone, repaired after a kill."""

from __future__ import annotations

import json

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as state
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._transaction_request import Request, TransactionError
from plugins.module_utils.fake_apt import FakeNode

ROOMY = 1 << 40
OLD, NEW = "535.183.06-1", "535.261.03-1"


def transaction(node, free=ROOMY):
    return _transaction.Transaction(node, root=str(node.root), lock_timeout=1, free_bytes=lambda path: (1, free))


def request(packages=None, owner="test", **more):
    return Request(owner=owner, packages=packages or {}, **more)


@pytest.fixture
def node(tmp_path):
    """A node with a held two-package driver and a newer version on offer."""
    return FakeNode(
        tmp_path,
        available={"drv": [NEW, OLD], "lib": [NEW, OLD], "dkms": ["3.0"], "gcc": ["12"], "linux-image-6.1.0-99": ["1"]},
        installed={"drv": OLD, "lib": OLD, "libc6": "2.36-9", "bash": "5.2"},
        held=["drv", "lib"],
    )


def mark(node):
    return node.root / state.MARK


def test_nothing_to_do_runs_no_command(node):
    wanted = request({"drv": OLD, "lib": ""}, hold=["drv"], absent=["nouveau-firmware"])
    assert transaction(node).run(wanted).changed is False
    assert node.calls == []


def test_check_mode_says_what_would_change_and_changes_nothing(node):
    outcome = transaction(node).run(request({"drv": NEW, "dkms": ""}), check=True)
    diff = outcome.as_dict()["diff"]
    assert outcome.changed
    assert diff["before"].splitlines() == [f"drv {OLD} (held)"]
    assert diff["after"].splitlines() == ["dkms 3.0", f"drv {NEW} (held)"]
    assert node.state()["drv"] == OLD
    assert not (node.root / "var/lib/gpu_node").exists()
    assert all(" -s " in call or call.startswith("apt-cache") for call in node.calls)


def test_drv_04_holds_are_lifted_and_set_again(node):
    outcome = transaction(node).run(request({"drv": NEW, "lib": NEW}, hold=["drv", "lib"]))
    assert outcome.installed == {"drv": NEW, "lib": NEW}
    assert node.holds() == ["drv", "lib"]
    assert not mark(node).exists()
    real = [i for i, call in enumerate(node.calls) if call.startswith("apt-get -q")]
    assert node.environments[real[0]]["DEBIAN_FRONTEND"] == "noninteractive"
    assert node.environments[real[0]]["NEEDRESTART_SUSPEND"] == "1"
    assert transaction(node).run(request({"drv": NEW, "lib": NEW}, hold=["drv", "lib"])).changed is False


def test_holds_alone_are_a_change(node):
    outcome = transaction(node).run(request(hold=["bash"], unhold=["lib"]))
    assert outcome.changed
    assert node.holds() == ["bash", "drv"]
    assert not any(call.startswith("apt-get") for call in node.calls)


def test_a_hold_of_a_package_that_is_not_there_is_refused(node):
    with pytest.raises(TransactionError, match="Cannot hold packages that would not be installed: vim"):
        transaction(node).run(request(hold=["vim"]))


@pytest.mark.parametrize(
    ("pulls", "message"),
    [
        ({"dkms": ["linux-image-6.1.0-99"]}, "bring a kernel that nobody asked for: linux-image-6.1.0-99 1"),
        ({"removes": ["bash"]}, "it would remove bash"),
        ({"dkms": ["libc6"]}, "change the version of libc6 2.36-9 -> 2.36-10"),
        ({"removes": ["linux-image-amd64"]}, "remove a kernel: linux-image-amd64"),
    ],
)
def test_krn_07_what_was_not_asked_for_is_refused_by_name(node, pulls, message):
    node.available["libc6"] = ["2.36-10"]
    node.packages["linux-image-amd64"] = ["install", "ok", "installed", "6.1"]
    node.write()
    node.pulls = pulls
    before = node.state()
    with pytest.raises(TransactionError, match=message):
        transaction(node).run(request({"dkms": ""}))
    assert node.state() == before


def test_upgrades_of_dependencies_can_be_allowed_but_not_of_held_ones(node):
    node.available["libc6"] = ["2.36-10"]
    node.pulls = {"dkms": ["libc6"]}
    assert transaction(node).run(request({"dkms": ""}, allow_upgrade=True)).changed
    node.available["bash"] = ["5.3"]
    node.pulls = {"gcc": ["bash"]}
    node.packages["bash"][0] = "hold"
    node.write()
    with pytest.raises(TransactionError, match="Held packages were changed"):
        transaction(node).run(request({"gcc": ""}, allow_upgrade=True))


def test_an_unknown_version_is_refused_with_apts_words(node):
    with pytest.raises(TransactionError, match="Version '1' for 'drv' was not found"):
        transaction(node).run(request({"drv": "1"}))


def test_check_mode_before_the_lists_are_read_does_not_fail(node):
    outcome = transaction(node).run(request({"nvtop": ""}, update_cache=True), check=True)
    assert outcome.changed and outcome.brought == ["nvtop"]


def test_brought_packages_are_recorded_by_owner(node):
    node.pulls = {"dkms": ["gcc"]}
    transaction(node).run(request({"dkms": ""}, owner="kernel"))
    assert state.brought(str(node.root), "kernel") == ["dkms", "gcc"]
    transaction(node).run(request(absent=["gcc"], owner="other"))
    assert state.brought(str(node.root), "kernel") == ["dkms"]


def test_tools_are_marked_as_ones_that_nobody_asked_for_and_the_rest_is_noted_as_named(node):
    node.pulls = {"dkms": ["gcc"]}
    transaction(node).run(request({"dkms": ""}, automatic=True))
    assert node.automatic == {"dkms", "gcc"} and state.named(str(node.root)) == set()
    node.available["headers"] = ["1"]
    transaction(node).run(request({"headers": "", "gcc": "12"}))
    assert node.automatic == {"dkms"} and state.named(str(node.root)) == {"headers", "gcc"}
    transaction(node).run(request(absent=["headers"]))
    assert state.named(str(node.root)) == {"gcc"}
    # What was there before keeps its mark.
    transaction(node).run(request({"bash": ""}, automatic=True))
    assert "bash" not in node.automatic


def test_an_undone_run_gives_back_the_marks_too(node):
    node.automatic = {"lib"}
    node.write()
    node.failing["drv", NEW] = "no"
    with pytest.raises(TransactionError, match="former packages are back"):
        transaction(node).run(request({"drv": NEW, "lib": NEW}))
    assert node.automatic == {"lib"}


def test_a_killed_run_keeps_its_marks(node):
    node.packages["dkms"] = ["install", "ok", "half-configured", "3.0"]
    node.packages["headers"] = ["install", "ok", "installed", "1"]
    node.write()
    left = {"owner": "t", "before": {"dkms": "", "headers": ""}, "automatic": ["dkms", "gone"], "named": ["headers"]}
    mark(node).parent.mkdir(parents=True)
    mark(node).write_text(json.dumps(left))
    transaction(node).run(request())
    assert node.automatic == {"dkms"} and state.named(str(node.root)) == {"headers"}
    assert state.brought(str(node.root), "t") == ["dkms", "headers"]


def test_krn_03_a_failing_script_brings_the_former_set_back_and_shows_the_build_log(node):
    log = node.root / "var/lib/dkms/nvidia/535/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text("warning: x\nerror: the compiler differs from the one of the kernel\nmake: *** [all] Error 2\n")
    node.failing["drv", NEW] = "Error! Bad return status\nSee /var/lib/dkms/nvidia/535/build/make.log"
    node.pulls = {("drv", NEW): ["dkms"]}
    with pytest.raises(TransactionError) as failure:
        transaction(node).run(request({"drv": NEW, "lib": NEW}, hold=["drv", "lib"]))
    assert "in the scripts of drv" in str(failure.value)
    assert "the compiler differs" in str(failure.value)
    assert "former packages are back" in str(failure.value)
    assert node.state() == {"drv": OLD, "lib": OLD, "libc6": "2.36-9", "bash": "5.2"}
    assert node.holds() == ["drv", "lib"]
    assert _transaction.unfinished_names(str(node.root)) == []
    assert not mark(node).exists()
    assert state.brought(str(node.root), "test") == []


def test_a_newcomer_that_cannot_be_configured_is_removed_again(node):
    node.failing["dkms", "3.0"] = "post-installation script: no space"
    with pytest.raises(TransactionError, match="no space"):
        transaction(node).run(request({"dkms": ""}))
    assert "dkms" not in node.packages


def test_a_killed_run_is_repaired_first_and_told(node):
    node.die_in = "lib"
    with pytest.raises(KeyboardInterrupt):
        transaction(node).run(request({"drv": NEW, "lib": NEW}, hold=["drv", "lib"]))
    # A kill leaves no time for the finally clause: play that.
    left = {"started": "then", "owner": "test", "holds_to_restore": ["drv", "lib"], "before": {"drv": OLD, "lib": OLD}}
    node.packages["drv"][0] = node.packages["lib"][0] = "install"
    node.write()
    mark(node).write_text(json.dumps(left))
    node.die_in = None
    checked = transaction(node).run(request({"drv": NEW}), check=True)
    assert checked.changed and "would be repaired" in checked.repaired[0]
    outcome = transaction(node).run(request({"drv": NEW, "lib": NEW}, hold=["drv", "lib"]))
    assert "was killed; repaired with: dpkg --configure -a, apt-get -f install" in outcome.repaired[0]
    assert outcome.changed
    assert node.state()["lib"] == NEW and node.holds() == ["drv", "lib"]
    assert not mark(node).exists()


def test_a_killed_run_that_cannot_be_finished_is_rolled_back(node):
    node.packages["drv"] = ["install", "ok", "half-configured", NEW]
    node.failing["drv", NEW] = "broken"
    node.write()
    mark(node).parent.mkdir(parents=True)
    mark(node).write_text(json.dumps({"owner": "t", "before": {"drv": OLD}, "holds_to_restore": ["drv"]}))
    outcome = transaction(node).run(request({"drv": OLD}))
    assert node.state()["drv"] == OLD
    assert "put back" in outcome.repaired[0]
    assert node.holds() == ["drv", "lib"]


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ({"removes": ["bash"], "moves": {}}, "remove bash 5.2"),
        ({"removes": [], "moves": {"libc6": "2.36-10"}}, "change libc6 2.36-9 -> 2.36-10"),
        ({"removes": [], "moves": {"linux-image-6.1.0-99": "1"}}, "bring the kernel linux-image-6.1.0-99 1"),
    ],
)
def test_a_repair_takes_nothing_along_that_the_killed_run_did_not_touch(node, fix, words):
    node.packages["drv"] = ["install", "ok", "half-configured", NEW]
    node.failing["drv", NEW] = node.failing["drv", OLD] = "broken"
    node.fix = fix
    node.write()
    mark(node).parent.mkdir(parents=True)
    mark(node).write_text(json.dumps({"owner": "t", "before": {"drv": OLD}, "holds_to_restore": ["drv"]}))
    with pytest.raises(TransactionError, match=f"apt-get would {words} .*dpkg --configure -a && apt-get -f install"):
        transaction(node).run(request({"lib": NEW}))
    assert node.packages["bash"][3] == "5.2" and node.packages["libc6"][3] == "2.36-9"
    assert "linux-image-6.1.0-99" not in node.packages
    assert mark(node).exists(), "the next run looks at it again"


def test_a_repair_that_would_take_others_along_puts_the_former_packages_back_instead(node):
    node.packages["drv"] = ["install", "ok", "half-configured", NEW]
    node.failing["drv", NEW] = "broken"
    node.fix = {"removes": ["bash"], "moves": {}}
    node.write()
    mark(node).parent.mkdir(parents=True)
    mark(node).write_text(json.dumps({"owner": "t", "before": {"drv": OLD}, "holds_to_restore": ["drv"]}))
    outcome = transaction(node).run(request({"drv": OLD}))
    assert node.state()["drv"] == OLD and node.state()["bash"] == "5.2" and not mark(node).exists()
    assert "put back" in outcome.repaired[0] and "apt-get -f install" not in outcome.repaired[0]


def test_a_failed_run_is_not_undone_at_the_cost_of_others(node):
    node.failing["drv", NEW] = node.failing["drv", OLD] = "broken"
    node.fix = {"removes": ["bash"], "moves": {}}
    with pytest.raises(TransactionError, match=r"could NOT all be put back .*unfinished: drv\)\. apt-get would remove"):
        transaction(node).run(request({"drv": NEW}))
    assert node.state()["bash"] == "5.2"


def test_a_database_broken_by_others_is_refused_with_the_repair(node):
    node.packages["bash"][2] = "half-configured"
    node.write()
    with pytest.raises(TransactionError, match=r"bash.*dpkg --configure -a && apt-get -f install"):
        transaction(node).run(request({"drv": NEW}))
    assert node.calls == []


def test_a_full_disk_is_found_before_anything_changes(node):
    node.sizes = {"drv": 2000}
    with pytest.raises(TransactionError, match="/var/cache/apt/archives and /usr and /var: 1024 MiB are free"):
        transaction(node, free=1 << 30).run(request({"drv": NEW}))
    assert node.state()["drv"] == OLD


def test_absent_purges_only_on_request_and_is_idempotent(node):
    node.packages["bash"][0] = "install"
    outcome = transaction(node).run(request(absent=["bash", "gone"], purge=True))
    assert outcome.removed == ["bash"]
    assert any("--purge install bash-" in call for call in node.calls)
    assert transaction(node).run(request(absent=["bash", "gone"], purge=True)).changed is False
