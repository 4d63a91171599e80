"""playbooks/capture_profile.yml: one file a node on the controller, from good nodes only.

The real playbook runs with stand-ins for the two modules, which have tests of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]

HEALTH = """
from ansible.module_utils.basic import AnsibleModule

names = "expected thresholds skip xid_overrides since deadline nvml_python enforce".split()
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in names}, supports_check_mode=True)
if module.params["expected"] == 8:
    module.fail_json(msg="This node may not serve")
module.exit_json(changed=False)
"""
PROFILE = """
from ansible.module_utils.basic import AnsibleModule

names = "name identities base deadline nvml_python".split()
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in names}, supports_check_mode=True)
module.exit_json(changed=False, profile={"schema": 1, "name": module.params["name"], "device_ids": ["2330"]})
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Return a copy of the collection with the stand-ins."""
    copy = tmp_path_factory.mktemp("collections") / "ansible_collections/aiinfra/gpu_node"
    copy.mkdir(parents=True)
    for name in ("plugins", "playbooks", "meta"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "galaxy.yml", copy)
    for name, text in (("gpu_health", HEALTH), ("gpu_profile", PROFILE)):
        (copy / f"plugins/action/{name}.py").unlink()
        (copy / f"plugins/modules/{name}.py").write_text(text, encoding="utf-8")
    return copy


@pytest.fixture
def capture(collection, tmp_path):
    """Return capture(arguments): the finished run over a good node and one that is not."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {"Good_1": local, "bad": {**local, "gpu_health_expected_gpus": 8}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts}}), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment.update(
        ANSIBLE_COLLECTIONS_PATH=str(collection.parents[2]),
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_LOCAL_TEMP=str(tmp_path / "ansible"),
    )

    def run(*arguments):
        program = str(Path(sys.executable).parent / "ansible-playbook")
        return subprocess.run(
            [program, "-i", "hosts.yml", *arguments, str(collection / "playbooks/capture_profile.yml")],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    return run


def test_good_nodes_are_written_beside_the_inventory_and_bad_ones_refused(capture, tmp_path):
    shown = capture("--check", "--diff")
    assert "+name: good_1" in shown.stdout and not (tmp_path / "gpu_profiles").exists()
    done = capture()
    assert done.returncode != 0 and "This node may not serve" in done.stdout
    assert [path.name for path in (tmp_path / "gpu_profiles").iterdir()] == ["Good_1.yml"]
    text = (tmp_path / "gpu_profiles/Good_1.yml").read_text(encoding="utf-8")
    assert text.startswith("---\n#") and "Good_1" in text.splitlines()[1]
    # A node's name need not be a name of a profile.
    assert yaml.safe_load(text) == {"schema": 1, "name": "good_1", "device_ids": ["2330"]}
    again = capture("--limit", "Good_1")
    assert again.returncode == 0 and "changed=0" in again.stdout
    elsewhere = capture("--limit", "Good_1", "-e", f"gpu_health_golden_dir={tmp_path}/golden")
    assert elsewhere.returncode == 0 and (tmp_path / "golden/Good_1.yml").exists()
