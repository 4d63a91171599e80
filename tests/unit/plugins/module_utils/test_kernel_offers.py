"""Which kernels are on offer, by real answers of apt-cache on Debian 12 with backports, and what an upgrade means."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _kernel_offers

FIXTURES = Path(__file__).parent / "fixtures" / "kernel_offers"
NOW, OLD, NEXT = "6.1.0-57-amd64", "6.1.0-50-amd64", "6.12.95+deb12-amd64"
BACKPORT = "6.12.95-1~bpo12+1"


@pytest.fixture
def root(tmp_path):
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text((FIXTURES / "status").read_text())
    (tmp_path / "boot/grub").mkdir(parents=True)
    (tmp_path / "boot/grub/grub.cfg").write_text("menuentry 'Debian' {\n}\n")
    return str(tmp_path)


@pytest.fixture
def offers(root, fake_runner):
    answers = {
        "apt-cache pkgnames": (FIXTURES / "pkgnames").read_text(),
        "apt-cache policy": (FIXTURES / "policy").read_text(),
        "apt-cache show": (FIXTURES / "show").read_text(),
        "grub-probe --target=abstraction": "\n",
        "grub-probe --target=fs": "ext2\n",
    }
    return _kernel_offers.read(fake_runner(answers), root, NOW)


def facts(*kernels, running=NOW, default=NOW, one_shot=None, **packages):
    known = {"linux-image-amd64": "6.1.192-3", "linux-headers-amd64": "6.1.192-3", f"linux-image-{NOW}": "6.1.192-3"}
    known.update(packages)
    return {
        "running_kernel": running,
        "kernels": [{"release": release, "headers": True} for release in kernels or (NOW,)],
        "boot": {"default": {"kernel": default}, "one_shot": one_shot},
        "kernel_packages": {name: {"version": version} for name, version in known.items()},
    }


@pytest.mark.parametrize(
    "release, flavour",
    [
        (NOW, "amd64"),
        (NEXT, "amd64"),
        ("6.1.0-57-cloud-amd64", "cloud-amd64"),
        ("6.1.0-0.deb11.13-amd64", "amd64"),
        ("5.15.0-1030-aws", "aws"),
        ("5.15.0-25-generic", "generic"),
        ("6.6.1", ""),
    ],
)
def test_flavours(release, flavour):
    assert _kernel_offers.flavour_of(release) == flavour


def test_kernels_on_offer_with_image_and_headers_of_one_version(offers):
    assert list(offers["kernels"]) == [OLD, NOW, NEXT]
    assert offers["kernels"][NEXT]["packages"] == {
        f"linux-image-{NEXT}": BACKPORT,
        f"linux-headers-{NEXT}": BACKPORT,
    }
    meta = offers["metas"]["linux-image-amd64"]
    assert (meta["candidate"], meta["release"], meta["headers"]) == ("6.1.192-3", NOW, "6.1.192-3")


def test_a_named_kernel_comes_with_its_headers_and_leaves_the_metas(offers):
    plan = _kernel_offers.plan(facts(), offers, NEXT)
    assert plan["packages"] == {f"linux-image-{NEXT}": BACKPORT, f"linux-headers-{NEXT}": BACKPORT}
    assert (plan["metas"], plan["boot"], plan["default"], plan["already"], plan["problems"]) == (
        {},
        True,
        True,
        False,
        [],
    )


@pytest.mark.parametrize(
    ("clears", "fragment"), [(False, "does not forget an entry for one boot"), (None, "is not known to forget")]
)
def test_a_kernel_that_could_not_be_left_again_is_not_tried(offers, clears, fragment):
    assert offers["one_shot"] == {"clears": True, "reason": ""}
    offers["one_shot"] = {"clears": clears, "reason": "GRUB cannot write to mdraid1x, on which /boot/grub lies"}
    plan = _kernel_offers.plan(facts(), offers, NEXT)
    (problem,) = plan["problems"]
    assert fragment in problem and "mdraid1x" in problem and "kernel_upgrade_without_fallback: true" in problem
    assert plan["packages"] and not plan["already"]
    assert _kernel_offers.plan(facts(), offers, NEXT, True)["problems"] == []
    # What runs needs no entry for one boot.
    assert _kernel_offers.plan(facts(), offers, NOW)["already"]
    assert _kernel_offers.plan(facts(NOW, NEXT, running=NEXT), offers, NEXT)["problems"] == []


def test_a_boot_loader_that_cannot_be_told_is_unknown(root, fake_runner):
    (Path(root) / "boot/grub/grub.cfg").unlink()
    found = _kernel_offers.read(fake_runner({}), root, NOW)["one_shot"]
    assert found["clears"] is None and "No boot loader that this collection can steer" in found["reason"]


def test_newest_on_a_node_that_has_it_changes_nothing(offers):
    plan = _kernel_offers.plan(facts(), offers, "newest")
    assert (plan["release"], plan["already"], plan["packages"], plan["metas"]) == (NOW, True, {}, {})


def test_newest_never_leads_to_an_older_kernel(offers):
    plan = _kernel_offers.plan(facts(NOW, NEXT, running=NEXT, default=NEXT), offers, "newest")
    assert (plan["release"], plan["already"]) == (NEXT, True)
    assert _kernel_offers.plan(facts(NOW, NEXT, running=NEXT, default=NEXT), offers, NOW)["boot"]


def test_newest_takes_the_metas_along_once_the_kernel_serves(offers):
    behind = facts(
        OLD,
        running=OLD,
        default=OLD,
        **{"linux-image-amd64": "6.1.176-1", "linux-headers-amd64": "6.1.176-1", f"linux-image-{NOW}": "6.1.192-3"},
    )
    plan = _kernel_offers.plan(behind, offers, "newest")
    assert set(plan["packages"]) == {f"linux-image-{NOW}", f"linux-headers-{NOW}"}
    assert plan["metas"] == {"linux-image-amd64": "6.1.192-3", "linux-headers-amd64": "6.1.192-3"}
    # Cut off after the kernel became the default: the metas are still to come.
    there = facts(**{"linux-image-amd64": "6.1.176-1"})
    plan = _kernel_offers.plan(there, offers, "newest")
    assert (plan["already"], plan["boot"], plan["metas"]) == (False, False, {"linux-image-amd64": "6.1.192-3"})


def test_another_revision_of_the_running_release_is_no_new_kernel(offers):
    revised = facts(**{"linux-image-amd64": "6.1.192-1", f"linux-image-{NOW}": "6.1.192-1"})
    assert _kernel_offers.plan(revised, offers, "newest")["already"]


def test_a_kernel_that_came_behind_our_back_needs_no_packages(offers):
    plan = _kernel_offers.plan(facts(NOW, NEXT), offers, NEXT)
    assert (plan["packages"], plan["boot"], plan["problems"]) == ({}, True, [])
    bare = facts(NOW, NEXT)
    bare["kernels"][1]["headers"] = False
    assert _kernel_offers.plan(bare, offers, NEXT)["packages"] == {f"linux-headers-{NEXT}": BACKPORT}


def test_a_kernel_that_runs_and_is_not_the_default_is_still_to_be_kept(offers):
    plan = _kernel_offers.plan(facts(NOW, NEXT, running=NEXT), offers, NEXT)
    assert (plan["boot"], plan["default"], plan["already"]) == (False, True, False)
    assert not _kernel_offers.plan(facts(one_shot={"kernel": NEXT}), offers, NOW)["already"]


def test_an_unknown_release_lists_what_is_on_offer(offers):
    plan = _kernel_offers.plan(facts(), offers, "6.13.1-amd64")
    (problem,) = plan["problems"]
    assert problem.startswith("kernel_upgrade_release: kernel 6.13.1-amd64") and f"{OLD}, {NOW}, {NEXT}" in problem
    assert not plan["already"]
    assert "is not set" in _kernel_offers.plan(facts(), offers, "")["problems"][0]


def test_a_kernel_without_headers_on_offer_is_refused(offers):
    del offers["kernels"][NEXT]["packages"][f"linux-headers-{NEXT}"]
    (problem,) = _kernel_offers.plan(facts(), offers, NEXT)["problems"]
    assert f"no package source has linux-headers-{NEXT}" in problem


def test_newest_without_a_meta_is_refused_with_what_is_on_offer(offers):
    offers["metas"] = {}
    (problem,) = _kernel_offers.plan(facts(), offers, "newest")["problems"]
    assert "no kernel meta package" in problem and NEXT in problem
