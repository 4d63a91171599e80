"""The driver's closure: on Debian's real packages, and on small repositories that play the cases."""

from __future__ import annotations

import re

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _closure, _driver_names, _driver_origin
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._closure_refuse import Refusal, complete_versions
from plugins.module_utils.dict_universe import DictUniverse, offer

from plugins.module_utils import dict_universe as world


def ask(universe, version, source="distro", system="debian", **more):
    settings = {
        "flavours": ("proprietary",),
        "components": ("compute",),
        "kernels": ("6.1.0-57-amd64",),
        "packagings": _driver_names.packagings(source, system),
        "owned": _driver_origin.owner(source, "https://cuda.example/debian12/x86_64", universe.distribution),
    }
    settings.update(more)
    return _closure.resolve(universe, _closure.Question(version=version, source=source, **settings))[0]


def refusal(*args, **more):
    with pytest.raises(Refusal) as caught:
        ask(*args, **more)
    return "\n".join(caught.value.problems)


@pytest.fixture(scope="module")
def bookworm_offers():
    return world.bookworm()


def ubuntu(branch, version, origin=world.UBUNTU):
    """Return a small set of Ubuntu's server packages with their real relations."""
    b, full = f"{branch}-server", f"{version}-0ubuntu0.24.04.1"
    return [
        offer(
            f"nvidia-headless-no-dkms-{b}",
            full,
            origin,
            f"nvidia-kernel-common-{b} (>= {version}), libnvidia-compute-{b}",
        ),
        offer(f"nvidia-kernel-common-{b}", full, origin, f"nvidia-firmware-{b}-{version}"),
        offer(f"nvidia-firmware-{b}-{version}", full, origin),
        offer(f"libnvidia-compute-{b}", full, origin),
        offer(f"nvidia-utils-{b}", full, origin, f"libnvidia-compute-{b}"),
        offer(f"nvidia-dkms-{b}", full, origin, f"dkms, nvidia-kernel-common-{b} (>= {version})"),
        offer(
            f"nvidia-headless-no-dkms-{b}-open",
            full,
            origin,
            f"nvidia-kernel-common-{b} (>= {version}), libnvidia-compute-{b}",
        ),
        offer(f"nvidia-dkms-{b}-open", full, origin, f"dkms, nvidia-kernel-common-{b} (>= {version})"),
    ]


# --- Debian's real packages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["535.261.03", "535.261.03-1"])
def test_drv_03_real_bookworm_stays_at_the_pin_while_security_offers_more(bookworm_offers, wanted):
    plan = ask(DictUniverse(bookworm_offers), wanted)
    assert plan.version == "535.261.03"
    assert set(plan.packages.values()) == {"535.261.03-1"}
    assert plan.independent == {
        "nvidia-legacy-check": "535.261.03-1",
        "nvidia-modprobe": "535.161.07-1~deb12u1",
        "nvidia-persistenced": "535.171.04-1~deb12u1",
    }
    for name in (
        "libcuda1",
        "libnvidia-ml1",
        "nvidia-smi",
        "nvidia-kernel-dkms",
        "firmware-nvidia-gsp",
        "nvidia-kernel-support",
        "nvidia-alternative",
        "libnvidia-ptxjitcompiler1",
    ):
        assert name in plan.packages
    assert not any("-open-" in name for name in plan.packages)
    assert plan.dkms_name == "nvidia-current"
    assert plan.needs_toolchain and plan.needs_headers == ["6.1.0-57-amd64"]


def test_drv_05_real_open_modules_beside_securitys_firmware(bookworm_offers):
    plan = ask(DictUniverse(bookworm_offers), "535.261.03", flavours=("open", "proprietary"))
    assert plan.flavour == "open"
    assert plan.packages["nvidia-open-kernel-dkms"] == plan.packages["firmware-nvidia-gsp"] == "535.261.03-1"
    assert "nvidia-kernel-support" not in plan.packages
    # The security suite has no open modules: auto takes the other flavour, an explicit wish is refused.
    assert ask(DictUniverse(bookworm_offers), "535.309.01", flavours=("open", "proprietary")).flavour == "proprietary"
    text = refusal(DictUniverse(bookworm_offers), "535.309.01", flavours=("open",))
    assert "no package of source distro carries the open kernel module" in text
    assert "nvidia_driver_flavour" in text


def test_security_version_takes_the_newest_companions_that_are_not_above(bookworm_offers):
    plan = ask(DictUniverse(bookworm_offers), "535.309.01")
    assert plan.independent["nvidia-modprobe"] == "535.309.01-0+deb12u1"
    assert plan.independent["nvidia-persistenced"] == "535.171.04-1~deb12u1"


def test_components_bring_their_packages(bookworm_offers):
    plan = ask(DictUniverse(bookworm_offers), "535.261.03", components=("compute", "video", "mps"))
    assert {"libnvcuvid1", "libnvidia-encode1", "nvidia-cuda-mps"} <= set(plan.packages)
    text = refusal(DictUniverse(bookworm_offers), "535.261.03", components=("compute", "fabricmanager"))
    assert "nvidia_driver_components: fabricmanager does not exist in source distro" in text


def test_a_version_in_no_repository_lists_what_is(bookworm_offers):
    text = refusal(DictUniverse(bookworm_offers), "535.999.99")
    assert "535.999.99 is in no repository of source distro" in text
    assert "there are: 470.256.02, 535.216.03, 535.261.03, 535.309.01" in text


def test_debians_tesla_packages_have_names_of_their_own(bookworm_offers):
    plan = ask(DictUniverse(bookworm_offers), "470.256.02")
    assert plan.dkms_name == "nvidia-tesla-470"
    assert "nvidia-tesla-470-kernel-dkms" in plan.packages


def test_installed_companions_move_along_and_strangers_do_not(bookworm_offers):
    installed = {
        "libnvcuvid1": "535.309.01-0+deb12u1",
        "nvidia-settings": "535.309.01-0+deb12u1",
        "nvidia-cuda-toolkit": "11.8.89~11.8.0-5~deb12u1",
        "xserver-xorg-core": "2:21.1.7",
    }
    plan = ask(DictUniverse(bookworm_offers, installed), "535.261.03")
    assert plan.packages["libnvcuvid1"] == "535.261.03-1"
    assert plan.independent["nvidia-settings"] == "535.247.01-1~deb12u1"
    assert plan.to_remove == []
    assert "nvidia-cuda-toolkit" not in plan.members


def test_a_change_of_flavour_takes_the_other_module_away(bookworm_offers):
    first = ask(DictUniverse(bookworm_offers), "535.261.03").members
    plan = ask(DictUniverse(bookworm_offers, first), "535.261.03", flavours=("open",))
    assert plan.to_remove == ["nvidia-kernel-dkms", "nvidia-kernel-support"]
    assert plan.packages["nvidia-open-kernel-dkms"] == "535.261.03-1"


def test_the_second_plan_changes_nothing(bookworm_offers):
    first = ask(DictUniverse(bookworm_offers), "535.261.03")
    again = ask(
        DictUniverse(bookworm_offers, {**first.members, "dkms": "3", "nvidia-installer-cleanup": "1"}), "535.261.03"
    )
    assert again.members == first.members
    assert not set(again.to_install) & set(first.members)
    assert again.pins_text == first.pins_text


# --- cases -----------------------------------------------------------------------------------------------------------


def test_drv_01_a_meta_that_brings_no_module_is_named():
    offers = [offer("cuda-drivers", "615.71.09-1", world.CUDA), offer("nvidia-driver-cuda", "615.71.09-1", world.CUDA)]
    text = refusal(DictUniverse(offers), "615.71.09", "cuda_repo", flavours=("open",))
    assert "carries the open kernel module" in text and "nvidia-kernel-open-dkms does not exist" in text
    offers = [offer("cuda-drivers", "610.57.04-1", world.CUDA), offer("nvidia-driver-cuda", "610.57.04-1", world.CUDA)]
    text = refusal(DictUniverse(offers), "610.57.04", "cuda_repo")
    assert "the meta package cuda-drivers 610.57.04-1 depends on nothing" in text
    text = refusal(DictUniverse(offers[:1]), "610.57.04", "cuda_repo")
    assert "the meta package cuda-drivers 610.57.04-1 depends on nothing" in text
    assert "proprietary ones before branch 615" in refusal(DictUniverse(offers), "615.71.09", "cuda_repo")


def test_drv_02_retired_branch_is_refused_unless_allowed():
    forward = [
        offer(
            "nvidia-headless-no-dkms-570-server",
            "580.126.20-0ubuntu0.24.04.1",
            world.UBUNTU,
            "nvidia-headless-no-dkms-580-server",
        ),
        offer("nvidia-utils-570-server", "580.126.20-0ubuntu0.24.04.1", world.UBUNTU, "nvidia-utils-580-server"),
        offer("nvidia-dkms-570-server", "580.126.20-0ubuntu0.24.04.1", world.UBUNTU, "nvidia-dkms-580-server"),
    ]
    universe = DictUniverse(forward + ubuntu(580, "580.126.20"), distribution=("Ubuntu",))
    text = refusal(universe, "570.211.01", system="ubuntu")
    assert "wanted 570.211.01 (branch 570)" in text and "resolve to 580.126.20" in text
    assert "nvidia_driver_allow_redirect" in text
    plan = ask(universe, "570.211.01", system="ubuntu", allow_redirect=True)
    assert (plan.version, plan.requested) == ("580.126.20", "570.211.01")
    assert "nvidia-dkms-580-server" in plan.packages


def test_drv_03_a_floating_companion_of_another_version_is_refused_by_name():
    offers = [
        offer("nvidia-driver-cuda", "535.183.06-1", world.CUDA, "libcuda1 (>= 535.183.06), nvidia-modprobe (>= 535)"),
        offer("libcuda1", "535.183.06-1", world.CUDA),
        offer("libcuda1", "535.261.03-1", world.CUDA),
        offer("nvidia-kernel-dkms", "535.183.06-1", world.CUDA, "dkms"),
        offer("nvidia-modprobe", "610.57.04-1", world.CUDA),
    ]
    text = refusal(DictUniverse(offers), "535.183.06", "cuda_repo")
    assert "more than one driver version, beside 535.183.06 also: nvidia-modprobe 610.57.04-1" in text
    offers.append(offer("nvidia-modprobe", "535.183.06-1", world.CUDA))
    plan = ask(DictUniverse(offers), "535.183.06", "cuda_repo")
    assert set(plan.packages.values()) == {"535.183.06-1"} and not plan.independent


def test_svc_03_fabric_manager_has_the_drivers_version():
    base = [
        offer("nvidia-driver-cuda", "580.126.20-1", world.CUDA),
        offer("nvidia-kernel-open-dkms", "580.126.20-1", world.CUDA),
        offer("nvidia-fabricmanager", "580.95.05-1", world.CUDA),
        offer("libnvidia-nscq", "580.126.20-1", world.CUDA, "nvidia-fabricmanager"),
    ]
    more = {"flavours": ("open",), "components": ("compute", "fabricmanager")}
    text = refusal(DictUniverse(base), "580.126.20", "cuda_repo", **more)
    assert "nvidia-fabricmanager 580.95.05-1" in text and "580.126.20" in text
    plan = ask(
        DictUniverse([*base, offer("nvidia-fabricmanager", "580.126.20-1", world.CUDA)]),
        "580.126.20",
        "cuda_repo",
        **more,
    )
    assert plan.packages["nvidia-fabricmanager"] == "580.126.20-1"


def test_drv_04_another_branch_replaces_the_old_one_in_both_directions():
    offers = ubuntu(535, "535.288.01") + ubuntu(580, "580.126.20")
    old = ask(DictUniverse(offers, distribution=("Ubuntu",)), "535.288.01", system="ubuntu")
    new = ask(DictUniverse(offers, old.members), "580.126.20", system="ubuntu")
    assert new.to_remove == sorted(old.packages)
    assert all(_driver_names.name_branch(name) == 580 for name in new.packages)
    back = ask(DictUniverse(offers, new.members), "535.288.01", system="ubuntu")
    assert back.packages == old.packages and back.to_remove == sorted(new.packages)


def test_drv_05_one_origin_owns_the_names_and_the_other_is_pinned_away():
    ours = ubuntu(535, "535.54.03")
    theirs = ubuntu(535, "535.54.03", origin=world.CUDA) + [
        offer("nvidia-imex", "580.1.1-1", world.CUDA),
        offer("cuda-toolkit-12-4", "12.4.1-1", world.CUDA),
    ]
    theirs = [
        offer(one.name, "535.54.03-0ubuntu1" if "imex" not in one.name else one.version, world.CUDA) for one in theirs
    ]
    plan = ask(DictUniverse(ours + theirs, distribution=("Ubuntu",)), "535.54.03", system="ubuntu")
    assert set(plan.packages.values()) == {"535.54.03-0ubuntu0.24.04.1"}
    assert re.search(
        r"Package: [^\n]*nvidia-imex[^\n]*\nPin: release o=NVIDIA,l=NVIDIA CUDA\nPin-Priority: -1", plan.pins_text
    )
    assert "cuda-toolkit" not in plan.pins_text


def test_drv_05_a_package_from_another_origin_is_refused_by_name():
    ours = ubuntu(535, "535.54.03")[:-1]
    stray = offer("libnvidia-cfg1-535-server", "535.54.03-0ubuntu1", world.CUDA)
    ours[1] = offer(ours[1].name, ours[1].version, world.UBUNTU, "libnvidia-cfg1-535-server")
    text = refusal(DictUniverse([*ours, stray], distribution=("Ubuntu",)), "535.54.03", system="ubuntu")
    assert "libnvidia-cfg1-535-server 535.54.03-0ubuntu1 from NVIDIA CUDA" in text


def test_krn_07_a_kernel_in_the_transaction_is_refused_by_name():
    universe = DictUniverse(ubuntu(580, "580.126.20"), distribution=("Ubuntu",))
    universe.effects["nvidia-dkms-580-server"] = [("linux-image-6.8.0-99-generic", "", "6.8.0-99.99")]
    text = refusal(universe, "580.126.20", system="ubuntu")
    assert "bring a kernel that nobody asked for: linux-image-6.8.0-99-generic 6.8.0-99.99" in text


def test_what_moves_outside_the_driver_is_refused_unless_the_compiler_needs_it():
    universe = DictUniverse(ubuntu(580, "580.126.20"), {"libc6": "2.39-1", "mesa": "1"}, ("Ubuntu",))
    universe.effects["dkms"] = [("libc6", "2.39-1", "2.39-2")]
    assert ask(universe, "580.126.20", system="ubuntu").to_install["libc6"] == "2.39-2"
    universe.effects["nvidia-utils-580-server"] = [("mesa", "1", "2")]
    assert "change the version of mesa 1 -> 2" in refusal(universe, "580.126.20", system="ubuntu")


def test_apts_refusal_is_told():
    universe = DictUniverse(ubuntu(580, "580.126.20"), distribution=("Ubuntu",))
    universe.error = "nvidia-utils : Depends: x but it is not installable"
    assert "apt-get refuses it: nvidia-utils : Depends: x" in refusal(universe, "580.126.20", system="ubuntu")


# --- prebuilt modules ------------------------------------------------------------------------------------------------


def prebuilt(kernel, version, branch=580, driver="580.126.20"):
    needs = (
        f"nvidia-kernel-common-{branch}-server (<= {driver}-999), nvidia-kernel-common-{branch}-server (>= {driver})"
    )
    return offer(f"linux-modules-nvidia-{branch}-server-{kernel}", version, world.UBUNTU, needs)


def test_prebuilt_modules_are_preferred_where_they_belong_to_the_wanted_driver():
    kernels = ("6.8.0-60-generic", "6.8.0-62-generic")
    offers = ubuntu(580, "580.126.20") + [prebuilt(kernel, "6.8.0-1") for kernel in kernels]
    universe = DictUniverse(offers, distribution=("Ubuntu",))
    plan = ask(universe, "580.126.20", system="ubuntu", kernels=kernels)
    assert plan.needs_headers == [] and not plan.needs_toolchain and plan.dkms_name == ""
    assert "nvidia-dkms-580-server" not in plan.packages
    assert plan.packages["linux-modules-nvidia-580-server-6.8.0-60-generic"] == "6.8.0-1"
    without = ask(universe, "580.126.20", system="ubuntu", kernels=kernels, prefer_prebuilt=False)
    assert without.dkms_name == "nvidia-srv" and without.needs_headers == list(kernels)


def test_prebuilt_modules_of_another_driver_are_not_taken_and_dkms_serves_the_rest():
    kernels = ("6.8.0-60-generic", "6.8.0-62-generic")
    offers = ubuntu(580, "580.126.20") + [
        prebuilt(kernels[0], "6.8.0-1"),
        prebuilt(kernels[0], "6.8.0-2", driver="580.142"),
        prebuilt(kernels[1], "6.8.0-1", driver="580.142"),
    ]
    plan = ask(DictUniverse(offers, distribution=("Ubuntu",)), "580.126.20", system="ubuntu", kernels=kernels)
    assert plan.packages["linux-modules-nvidia-580-server-6.8.0-60-generic"] == "6.8.0-1"
    assert "linux-modules-nvidia-580-server-6.8.0-62-generic" not in plan.packages
    assert plan.needs_headers == [kernels[1]] and plan.needs_toolchain


def test_complete_versions_leave_out_halves():
    offers = ubuntu(580, "580.126.20") + ubuntu(535, "535.288.01")[:3]
    owned = _driver_origin.owner("distro", "", frozenset())
    assert complete_versions(DictUniverse(offers), owned, ("ubuntu",)) == ["580.126.20"]
