"""The example inventory names every variable a person would set, none that does not exist, and passes its checks."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _compat, _preflight_driver

ROOT = pathlib.Path(__file__).parents[3]
PROD = ROOT / "inventories" / "prod"
DATA = yaml.safe_load((ROOT / "files" / "compatibility.yml").read_text(encoding="utf-8"))
FILES = sorted((PROD / "group_vars").glob("*.yml")) + sorted((PROD / "host_vars").glob("*.yml"))
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
#: Set, or commented out with a value.
MENTIONED = set(re.findall(r"^(?:# )?([a-z][a-z0-9_]+):", TEXT, re.MULTILINE))
ROLES = sorted(path.parent.parent.name for path in (ROOT / "roles").glob("*/defaults/main.yml"))
#: Too long for an example, and changed through tuning_sysctl_overrides.
NOT_SHOWN = {"tuning_sysctl"}
#: Read by playbooks, not by a role.
OF_PLAYBOOKS = {
    "gpu_node_allow_drain",
    "gpu_node_cluster_name",
    "gpu_node_drain_arguments",
    "gpu_node_drain_timeout",
    "gpu_node_ignore_kubelet",
    "gpu_node_kubectl",
    "gpu_node_report_path",
    "gpu_node_serial",
    "kernel_upgrade_release",
    "kernel_upgrade_without_fallback",
}


def documented(role):
    """Return the public variables of a role."""
    specs = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    return set(specs["argument_specs"]["main"]["options"])


@pytest.mark.parametrize("role", ROLES)
def test_every_public_variable_is_shown(role):
    assert documented(role) - MENTIONED - NOT_SHOWN == set()


def test_no_variable_is_made_up():
    known = set().union(*(documented(role) for role in ROLES)) | OF_PLAYBOOKS
    ours = {name for name in MENTIONED if name.startswith((*[f"{role}_" for role in ROLES], "gpu_node_"))}
    assert ours - known == set()


def test_hosts_and_addresses_are_those_of_documentation():
    hosts = (PROD / "hosts.yml").read_text(encoding="utf-8")
    names = re.findall(r"^\s+([\w.-]+\.[a-z]+):$", hosts, re.MULTILINE)
    assert names and all(name.endswith(".example.com") for name in names)
    addresses = re.findall(r"\d+\.\d+\.\d+\.\d+", hosts)
    assert addresses and all(address.startswith(("192.0.2.", "198.51.100.", "203.0.113.")) for address in addresses)


def variables(host_file=None):
    """Return the merged variables of a GPU node."""
    merged = {}
    for path in (PROD / "group_vars" / "all.yml", PROD / "group_vars" / "gpu_nodes.yml", host_file):
        if path is not None:
            merged.update(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    return merged


@pytest.mark.parametrize(
    ("host_file", "device", "count"),
    [(None, "2330", 8), (PROD / "host_vars" / "gpu-3.example.com.yml", "1db6", 2)],
    ids=["group", "gpu-3"],
)
def test_the_example_asks_for_nothing_impossible(host_file, device, count):
    wishes = variables(host_file)
    assert wishes["preflight_expect_gpus"] == count
    gpus = [_compat.match(DATA, device)] * count
    driver = wishes["nvidia_driver_version"]
    want = {
        "driver_version": driver,
        "cuda_releases": wishes["preflight_cuda_releases"],
        "cuda_policy": "refuse",
    }
    found = [
        *_preflight_driver.driver_version(driver, DATA, "2026-11-30"),
        _preflight_driver.support(driver, DATA, gpus),
        *_preflight_driver.flavour(driver, "auto", DATA, gpus),
        *_preflight_driver.cuda(driver, want, DATA, gpus),
    ]
    assert {one.status for one in found} == {"ok"}


def test_the_fingerprint_of_the_example_is_that_of_the_table():
    wishes = variables()
    rows = {row["distro"]: row for row in DATA["repository_keys"]}
    assert wishes["nvidia_driver_repo_key_fingerprint"] == rows["debian12"]["fingerprint"]
    assert wishes["nvidia_driver_repo_key"].endswith("/debian12/x86_64/" + rows["debian12"]["file"])
