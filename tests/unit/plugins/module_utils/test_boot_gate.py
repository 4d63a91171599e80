"""The reboot gate: a healthy node with one thing spoilt, and everything spoilt at once."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _boot_gate
from node_facts import OTHER, RUNNING, VERSION, choice, healthy, kernel

CHECKS = ["entry", "image", "initramfs", "nouveau", "module", "version", "signature"]


def node():
    facts = healthy()
    for item in facts["kernels"]:
        image = f"/boot/initrd.img-{item['release']}"
        item["initramfs"] = {"image": image, "nouveau": False, "blacklists": [], "error": ""}
    releases = [item["release"] for item in facts["kernels"]]
    facts["boot"]["entries"] = [{"entry": choice(r)["entry"], "title": r, "kernel": r} for r in releases]
    return facts


def running(facts):
    (item,) = [item for item in facts["kernels"] if item["release"] == RUNNING]
    return item


def bad(findings):
    """Return what closes the gate, as (check, status)."""
    return [(item.check[len("boot_gate.") :], item.status) for item in findings if item.status != "ok"]


def hint(findings, check):
    (found,) = [item for item in findings if item.check == "boot_gate." + check]
    return found.hint


def test_open_for_a_kernel_that_has_everything():
    findings = _boot_gate.gate(node(), VERSION)
    assert [item.check for item in findings] == ["boot_gate." + name for name in CHECKS]
    assert bad(findings) == []
    assert {item.target for item in findings} == {RUNNING}
    assert bad(_boot_gate.gate(node(), VERSION, OTHER, "proprietary")) == []


def test_krn_01_the_one_shot_entry_is_judged_before_the_default():
    facts = node()
    facts["boot"]["one_shot"], facts["boot"]["next_kernel"] = choice(OTHER), OTHER
    facts["kernels"][0]["nvidia"] = []
    findings = _boot_gate.gate(facts, VERSION)
    assert bad(findings) == [("module", "fail")]
    assert findings[-1].target == OTHER
    assert bad(_boot_gate.gate(facts, VERSION, RUNNING)) == []


def test_krn_01_before_a_reboot_the_named_kernel_has_to_be_the_next_one():
    facts = node()
    assert bad(_boot_gate.gate(facts, VERSION, RUNNING, next_boot=True)) == []
    findings = _boot_gate.gate(facts, VERSION, OTHER, next_boot=True)
    assert bad(findings) == [("entry", "fail")]
    assert f"the next boot starts {RUNNING}" in hint(findings, "entry")


@pytest.mark.parametrize(
    ("change", "check", "status", "text"),
    [
        ({"nvidia": [], "headers": False}, "module", "fail", "no nvidia module, and no headers to build one"),
        ({"modules": False}, "module", "fail", "no directory below /lib/modules"),
        ({"initramfs": None}, "initramfs", "error", "check_initramfs: true"),
        (
            {"initramfs": {"image": None, "nouveau": None, "blacklists": [], "error": ""}},
            "initramfs",
            "fail",
            f"update-initramfs -c -k {RUNNING}",
        ),
        (
            {"initramfs": {"image": "/boot/i", "nouveau": None, "blacklists": [], "error": "premature end"}},
            "nouveau",
            "error",
            "premature end",
        ),
    ],
)
def test_krn_01_what_a_kernel_lacks(change, check, status, text):
    facts = node()
    running(facts).update(change)
    findings = _boot_gate.gate(facts, VERSION)
    assert bad(findings) == [(check, status)]
    assert text in hint(findings, check)


@pytest.mark.parametrize(
    ("change", "check", "status", "text"),
    [
        ({"indexed": False}, "module", "fail", f"run depmod {RUNNING}"),
        ({"exists": False}, "module", "fail", "which does not exist"),
        ({"fits": False}, "module", "fail", "built for another kernel"),
        ({"fits": None}, "module", "error", "modinfo says nothing"),
        ({"version": "535.183.06"}, "version", "fail", "has version 535.183.06"),
        ({"version": ""}, "version", "fail", "has version unknown"),
        ({"flavour": "open"}, "flavour", "fail", "is the open flavour"),
        ({"flavour": ""}, "flavour", "error", "does not tell its flavour"),
    ],
)
def test_krn_01_what_a_module_lacks(change, check, status, text):
    facts = node()
    running(facts)["nvidia"][0].update(change)
    findings = _boot_gate.gate(facts, VERSION, flavour="proprietary")
    assert bad(findings) == [(check, status)]
    assert text in hint(findings, check)


def test_krn_04_early_boot_image_with_nouveau():
    facts = node()
    running(facts)["initramfs"].update(nouveau=True)
    findings = _boot_gate.gate(facts, VERSION)
    assert bad(findings) == [("nouveau", "fail")]
    assert f"update-initramfs -u -k {RUNNING}" in hint(findings, "nouveau")
    running(facts)["initramfs"].update(blacklists=["modprobe.d/gpu-node-nouveau.conf"])
    assert bad(_boot_gate.gate(facts, VERSION)) == []


def test_krn_05_module_without_a_known_signer():
    facts = node()
    facts["secure_boot"].update(state="enabled", enforced=True, signers=["Debian Secure Boot CA"])
    facts["secure_boot"]["keys"] = [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]
    findings = _boot_gate.gate(facts, VERSION)
    assert bad(findings) == [("signature", "fail")]
    assert findings[-1].value == ["not signed"]
    assert "mokutil --import /var/lib/dkms/mok.pub" in findings[-1].hint
    running(facts)["nvidia"][0]["signer"] = "Debian Secure Boot CA"
    assert bad(_boot_gate.gate(facts, VERSION)) == []
    facts["secure_boot"].update(state="unknown", enforced=None)
    assert bad(_boot_gate.gate(facts, VERSION)) == [("signature", "error")]


def test_unknown_boot_loader_is_an_error():
    facts = node()
    facts["boot"].update(loader="unknown", default=None, next_kernel=None, entries=[])
    assert bad(_boot_gate.gate(facts, VERSION)) == [("entry", "error")]
    assert bad(_boot_gate.gate(facts, VERSION, RUNNING)) == [("entry", "error")]
    assert _boot_gate.target_kernel(facts) is None


def test_entry_that_does_not_exist_or_starts_no_kernel():
    facts = node()
    facts["boot"]["default"].update(found=False, spec="gone")
    assert "'gone' does not exist" in hint(_boot_gate.gate(facts, VERSION), "entry")
    facts = node()
    facts["boot"]["default"]["kernel"], facts["boot"]["next_kernel"] = "", None
    findings = _boot_gate.gate(facts, VERSION)
    assert bad(findings) == [("entry", "fail")]
    assert "starts no kernel" in findings[0].hint


def test_kernel_without_entry_or_image():
    facts = node()
    findings = _boot_gate.gate(facts, VERSION, "6.12.95+deb12-amd64")
    assert bad(findings) == [("entry", "fail"), ("image", "fail")]
    assert f"which has {OTHER}, {RUNNING}" in hint(findings, "entry")
    assert "install linux-image-6.12.95+deb12-amd64" in hint(findings, "image")
    facts["kernels"].append(kernel("6.12.95+deb12-amd64", version=""))
    assert bad(_boot_gate.gate(facts, VERSION, "6.12.95+deb12-amd64")) == [
        ("entry", "fail"),
        ("initramfs", "error"),
        ("module", "fail"),
    ]


def test_without_a_wanted_version_the_gate_is_closed():
    assert bad(_boot_gate.gate(node(), None)) == [("version", "error")]
    assert bad(_boot_gate.gate(node(), "")) == [("version", "error")]


def test_everything_that_is_missing_is_named_at_once():
    facts = node()
    facts["secure_boot"].update(state="enabled", enforced=True, signers=[], keys=[])
    facts["boot"]["default"].update(found=False)
    running(facts)["nvidia"][0].update(version="535.183.06", flavour="open")
    running(facts)["initramfs"].update(nouveau=True)
    names = ["entry", "nouveau", "version", "flavour", "signature"]
    assert bad(_boot_gate.gate(facts, VERSION, flavour="proprietary")) == [(name, "fail") for name in names]
