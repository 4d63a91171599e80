"""What is asked for, judged before a node is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _driver_flavour

DATA = yaml.safe_load((Path(__file__).parents[4] / "files/compatibility.yml").read_text())
KEY = (Path(__file__).parent / "fixtures/openpgp/key-a.asc").read_text()
FINGERPRINT = "0A5ED38872B874C2A7DB892BD7085B7A74D56F52"
DEBIAN = {"id": "debian", "version": "12"}


def gpu(device, class_code="030200"):
    return {"vendor": "10de", "device": device, "class": class_code, "subsystem": ""}


def decide(devices=(), system=None, **wanted):
    asked = {"version": "535.261.03", "source": "distro", "flavour": "auto", "components": ["compute"], **wanted}
    return _driver_flavour.decide(asked, list(devices), DATA, system or DEBIAN)


def problems(**wanted):
    return "\n".join(decide(**wanted).problems)


@pytest.mark.parametrize(
    ("device", "version", "flavour", "expected"),
    [
        ("2330", "535.261.03", "auto", "open"),
        ("2330", "535.261.03-1~deb12u1", "auto", "open"),
        ("1db6", "535.261.03", "auto", "proprietary"),
        ("2901", "580.126.20", "auto", "open"),
        ("2342", "580.126.20", "auto", "open"),
        ("20b0", "470.256.02", "auto", "proprietary"),
        ("2330", "535.261.03", "proprietary", "proprietary"),
    ],
)
def test_drv_08_flavour_by_the_targets_pci_id(device, version, flavour, expected):
    decision = decide([gpu(device)], version=version, flavour=flavour)
    assert (decision.flavour, decision.problems) == (expected, ())


@pytest.mark.parametrize(
    ("device", "version", "flavour", "message"),
    [
        ("2901", "580.126.20", "proprietary", "nvidia_driver_flavour: B200"),
        ("2342", "580.126.20", "proprietary", "nvidia_driver_flavour: GH200"),
        ("1db6", "535.261.03", "open", "nvidia_driver_flavour: V100"),
        ("1db6", "590.48.01", "auto", "nvidia_driver_version: V100 PCIe 32 GB (10de:1db6) is driven up to branch 580"),
        ("2901", "535.261.03", "auto", "nvidia_driver_version: B200 (10de:2901) needs branch 570"),
        ("2330", "615.71.09", "proprietary", "nvidia_driver_flavour: branch 615 has no proprietary modules"),
    ],
)
def test_drv_08_impossible_pairs_are_refused(device, version, flavour, message):
    decision = decide([gpu(device)], version=version, flavour=flavour)
    assert decision.flavour == "" and any(message in text for text in decision.problems)


def test_drv_08_audio_functions_and_switches_do_not_decide():
    strangers = [gpu("10f7", "040300"), gpu("1af1", "068000")]
    assert decide([gpu("2330"), *strangers]).flavour == "open"
    assert decide(strangers).problems == ()


def test_auto_names_a_fallback_only_where_both_flavours_will_do():
    assert decide([gpu("2330")]).fallback == "proprietary"
    assert decide([gpu("2330")], flavour="open").fallback == ""
    assert decide([gpu("2901")], version="580.126.20").fallback == ""
    assert decide([gpu("2330")], version="620.10.01").fallback == ""
    assert decide().fallback == "proprietary"


@pytest.mark.parametrize("version", ["", "535", "535.*", "latest", "535-server", None])
def test_a_missing_or_inexact_version_names_the_variable_and_what_is_allowed(version):
    text = problems(version=version)
    assert "nvidia_driver_version" in text and "one exact release, such as 535.261.03" in text


def test_unknown_choices_are_all_told_at_once():
    text = problems(source="ppa", flavour="best", components=["compute", "x11"])
    assert "nvidia_driver_source is 'ppa'; allowed are distro, cuda_repo, local_repo" in text
    assert "nvidia_driver_flavour is 'best'; allowed are auto, open, proprietary" in text
    assert "nvidia_driver_components is ['compute', 'x11']; allowed is a list of compute, video, mps" in text


def repo(**more):
    return {"source": "cuda_repo", "repo_uri": "https://c.example", "repo_key": "k.asc", "key_text": KEY, **more}


def test_cud_01_the_right_key_passes_and_a_wrong_one_stops_before_anything_is_fetched():
    assert decide(**repo(repo_key_fingerprint=FINGERPRINT)).problems == ()
    text = problems(**repo(repo_key_fingerprint=FINGERPRINT[::-1]))
    assert "nvidia_driver_repo_key: k.asc holds 0A5E" in text and "nothing was fetched" in text


def test_cud_01_the_known_fingerprint_depends_on_the_distribution():
    assert "EB693B3035CD5710E231E123A4B469963BF863CC" in problems(**repo())
    text = "\n".join(decide(system={"id": "debian", "version": "13"}, **repo()).problems)
    assert "02182E60104FCDC26EAE1B8597A5D4CB8793F200" in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"repo_uri": ""}, "nvidia_driver_repo_uri is not set"),
        ({"repo_key": "", "key_text": ""}, "nvidia_driver_repo_key is not set"),
        ({"key_text": ""}, "nvidia_driver_repo_key: 'k.asc' cannot be read"),
        ({"key_text": "<html>", "repo_key_fingerprint": FINGERPRINT}, "is no usable key"),
        ({"repo_key_fingerprint": "74D56F52"}, "nvidia_driver_repo_key_fingerprint: '74D56F52' is not a whole"),
        ({"repo_key_fingerprint": "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"}, "was revoked"),
        ({"source": "local_repo"}, "nvidia_driver_repo_key_fingerprint is not set"),
    ],
)
def test_cud_01_each_fault_of_a_repository_names_its_variable(more, message):
    assert message in problems(**repo(**more))


def test_svc_04_debian_has_no_fabric_manager_for_a_node_that_needs_one():
    required = {"fabricmanager": "4 NVSwitches on PCI (10de:22a3)"}
    text = problems(required=required, components=["compute", "fabricmanager"])
    assert "nvidia_driver_source 'distro' has no fabricmanager" in text and "4 NVSwitches" in text
    assert "cuda_repo" in text and "nvidia_fabricmanager_enabled" in text
    assert decide(system={"id": "ubuntu", "version": "22.04"}, required=required).problems == ()
    assert decide(required={}).problems == ()
