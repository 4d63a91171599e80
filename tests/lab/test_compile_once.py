"""Three nodes in one batch: one compiles the module, the others load it; and what is refused."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import subprocess

import pytest

from tests.lab.conftest import ROOT, Play, running_node

NAMES = ("gpu-test-once-1", "gpu-test-once-2", "gpu-test-once-3")
OLD, NEW = "535.183.06", "535.261.03"
#: Every compilation of a DKMS module leaves a line; a kernel's own makefile calls the real make by its name.
COUNTER = """
dpkg-divert --quiet --local --rename --divert /usr/bin/make.real --add /usr/bin/make
cat > /usr/bin/make <<'END'
#!/bin/sh
case "$PWD $*" in */var/lib/dkms/*KERNEL_UNAME*) echo "$PWD" >> /root/compiled;; esac
case "$PWD" in */var/lib/dkms/*/"$(cat /root/broken 2>/dev/null)"/build) exit 2;; esac
exec /usr/bin/make.real "$@"
END
chmod +x /usr/bin/make
"""


class Batch:
    """Nodes that go through a playbook side by side."""

    def __init__(self, nodes, cache):
        self.nodes = nodes
        self.cache = cache

    def drive(self, version, *nodes, **variables):
        """Run the role on these nodes, on all when none are named."""
        chosen = nodes or self.nodes
        command = ["ansible-playbook", "tests/lab/driver.yml", "-i", "inventories/lab"]
        for node in self.nodes:
            command += ["-i", str(node.inventory)]
        wishes = {
            "nvidia_driver_version": version,
            "nvidia_driver_flavour": "proprietary",
            "nvidia_driver_module_cache": str(self.cache),
            **variables,
        }
        command += ["--limit", ",".join(node.name for node in chosen), "-e", json.dumps(wishes)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
        return Play(done.returncode, done.stdout)

    def compiled(self):
        """Return how often each node compiled since the last time."""
        return [
            int(node.out("cat /root/compiled 2>/dev/null | wc -l; rm -f /root/compiled").split()[0])
            for node in self.nodes
        ]

    def archive(self, version):
        (found,) = self.cache.glob(f"debian-12-proprietary/nvidia-current-{version}-*-x86_64.tgz")
        return found


def module(node):
    """Return version and kernel of the module that the running kernel would load."""
    return node.out("modinfo -F version nvidia-current; modinfo -F vermagic nvidia-current | cut -d' ' -f1").split()


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("lab")
        nodes = [
            stack.enter_context(running_node(folder, name, "--suite", "bookworm", "--gpus", "2")) for name in NAMES
        ]
        for node in nodes:
            node.sh(COUNTER)
        yield Batch(nodes, tmp_path_factory.mktemp("cache"))


def test_one_node_compiles_and_the_others_load(batch):
    play = batch.drive(OLD).passed()
    assert batch.compiled() == [1, 0, 0], play.output
    kernel = batch.nodes[0].out("uname -r")
    for node in batch.nodes:
        assert module(node) == [OLD, kernel]
        assert node.out("dkms status").endswith(": installed")
        assert (
            node.out("dpkg --audit; ls /var/lib/gpu_node/module_archives /etc/dkms/no-autoinstall 2>/dev/null || true")
            == ""
        )
    archive = batch.archive(OLD)
    seal = archive.with_name(archive.name + ".sha256").read_text().split()
    assert seal == [hashlib.sha256(archive.read_bytes()).hexdigest(), archive.name]
    # The very same code on all of them.
    sums = {node.out("sha256sum /lib/modules/*/updates/dkms/*.ko") for node in batch.nodes}
    assert len(sums) == 1


def test_the_second_run_changes_nothing_and_does_not_look_at_the_cache(batch):
    play = batch.drive(OLD).passed()
    assert [play.changed(node.name) for node in batch.nodes] == [0, 0, 0]
    assert "cache" not in play.output
    assert batch.compiled() == [0, 0, 0]


@contextlib.contextmanager
def replaced(archive, content, sealed):
    """Put other content in the place of an archive, with a seal that fits it or the old one."""
    seal = archive.with_name(archive.name + ".sha256")
    before = archive.read_bytes(), seal.read_text()
    archive.write_bytes(content)
    if sealed:
        seal.write_text(f"{hashlib.sha256(content).hexdigest()}  {archive.name}\n")
    try:
        yield
    finally:
        archive.write_bytes(before[0])
        seal.write_text(before[1])


def test_an_altered_archive_and_one_for_another_kernel_are_refused(batch):
    node, archive = batch.nodes[2], batch.archive(OLD)
    before = node.packages(), module(node)
    good = archive.read_bytes()
    more = {"nvidia_driver_components": ["compute", "video"]}
    with replaced(archive, good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], sealed=False):
        batch.drive(OLD, node, **more).refused(
            "Nothing was changed", "nvidia_driver_module_cache", "sha256", archive.name
        )
    # Another kernel's modules under the name of this one: everything fits but the version magic.
    kernel = node.out("uname -r").encode()
    other = kernel.replace(b"-", b"_")
    with replaced(
        archive, gzip.compress(gzip.decompress(good).replace(b"vermagic=" + kernel, b"vermagic=" + other)), True
    ):
        batch.drive(OLD, node, **more).refused("Nothing was changed", "does not fit the kernel", other.decode())
    assert (node.packages(), module(node)) == before
    assert node.out("ls /var/lib/gpu_node/module_archives 2>/dev/null || true") == ""
    assert batch.compiled() == [0, 0, 0]


def test_krn_03_where_the_one_that_compiles_fails_the_others_do_it_themselves_and_say_so(batch):
    first, *others = batch.nodes
    first.sh(f"echo {NEW} > /root/broken")
    play = batch.drive(NEW).refused("in the scripts of nvidia-kernel-dkms", "did not deliver them")
    # The first one tries, and compiles its former driver again.
    assert batch.compiled()[1:] == [1, 1], play.output
    assert module(first)[0] == OLD and first.out("dpkg --audit") == ""
    assert [module(node)[0] for node in others] == [NEW, NEW], play.output
    assert not list(batch.cache.glob(f"*/*{NEW}*"))
    first.sh("rm /root/broken")


def test_a_node_without_headers_and_compiler_takes_the_module_from_the_cache(batch):
    first, *others = batch.nodes
    batch.drive(NEW, first).passed()
    assert batch.compiled() == [1, 0, 0]
    node = others[0]
    node.sh(
        f"apt-get -y -qq purge linux-headers-$(uname -r) linux-headers-amd64 >/dev/null 2>&1; echo {NEW} > /root/broken"
    )
    batch.drive(NEW, node, nvidia_driver_state="absent").passed()
    assert node.out("ls /lib/modules/*/updates 2>/dev/null || true") == ""
    batch.drive(NEW, node, without_headers=True).passed()
    assert module(node)[0] == NEW
    assert batch.compiled() == [0, 0, 0]
