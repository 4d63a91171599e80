"""Ten lab nodes in one batch with a cache of compiled modules: who compiles, and what compiling costs against loading.

Compiling and loading are timed on one of the nodes, one after the other and each from the same state, so that a machine
whose speed drifts moves both.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

from figures import gpulab, machine, playbook, spread, write_inventory, write_section

NODES = [f"gpu-bench-batch-{number}" for number in range(1, 11)]
VERSION = "535.261.03"
#: Leaves a line for every compilation of a DKMS module.
COUNTER = """
dpkg-divert --quiet --local --rename --divert /usr/bin/make.real --add /usr/bin/make
cat > /usr/bin/make <<'END'
#!/bin/sh
case "$PWD $*" in */var/lib/dkms/*KERNEL_UNAME*) echo "$PWD" >> /root/compiled;; esac
exec /usr/bin/make.real "$@"
END
chmod +x /usr/bin/make
"""
MODULE = "nvidia-current"
#: Prints the seconds of one compilation and of one loading, from a tree that has the source only.
TIMED = f"""
set -e
kernel=$(uname -r)
known="-m {MODULE} -v {VERSION} -k $kernel"
archive=/root/modules.tgz
exec 3>&1 >/dev/null 2>&1
test -e $archive || dkms mktarball $known --binaries-only --archive=$archive
now() {{ date +%s.%N; }}
dkms unbuild $known
start=$(now); dkms build $known; dkms install --force $known; compiled=$(now)
dkms unbuild $known
between=$(now); dkms ldtarball --force --archive=$archive || true; dkms install --force $known; loaded=$(now)
echo "$start $compiled $between $loaded" >&3
"""


def on_node(node: str, script: str) -> str:
    """Run a shell script on a node and return what it prints."""
    done = subprocess.run(
        ["docker", "exec", "-i", node, "bash", "-c", script], check=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    return done.stdout.decode().strip()


def measure(suite: str, pairs: int) -> bool:
    """Measure and write the section; returns whether one node compiled and the others loaded."""
    compiling: list[float] = []
    loading: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        inventory = write_inventory(Path(scratch) / "batch.yml", *NODES)
        try:
            for node in NODES:
                gpulab("down", node)
                gpulab("up", node, "--suite", suite, "--gpus", "2")
                on_node(node, COUNTER)
            wishes = {"nvidia_driver_version": VERSION, "nvidia_driver_flavour": "proprietary"}
            cache = str(Path(scratch) / "cache")
            took, _ = playbook("tests/lab/driver.yml", inventory, NODES, nvidia_driver_module_cache=cache, **wishes)
            print(f"batch of {len(NODES)}: {took:.1f} s", flush=True)
            compiled = [int(on_node(node, "cat /root/compiled 2>/dev/null | wc -l")) for node in NODES]
            have = [on_node(node, f"modinfo -F version {MODULE}") for node in NODES]
            for _ in range(pairs):
                start, built, between, loaded = map(float, on_node(NODES[0], TIMED).split())
                compiling.append(built - start)
                loading.append(loaded - between)
                print(f"compiling: {compiling[-1]:.1f} s, loading: {loading[-1]:.1f} s", flush=True)
        finally:
            for node in NODES:
                gpulab("down", node)

    ratio = statistics.median(a / b for a, b in zip(compiling, loading))
    whole = sorted(compiled, reverse=True) == [1] + [0] * (len(NODES) - 1) and set(have) == {VERSION}
    write_section(
        f"Ten nodes in one batch, compile once ({suite}; {machine()})",
        f"""| what | seconds | runs |
|---|---|---|
| role nvidia_driver on {len(NODES)} bare nodes side by side, with an empty cache | {took:.1f} | 1 |
| compile the stand-in module on a node | {spread(compiling)} | {len(compiling)} |
| load it from an archive | {spread(loading)} | {len(loading)} |

- Nodes that compiled: {sum(1 for count in compiled if count)} of {len(NODES)} ({sum(compiled)} compilations); the \
module is there on {have.count(VERSION)}.
- Compiling against loading, pair by pair: median {ratio:.1f}. The stand-in compiles in seconds; the real 535.261.03 \
takes 9 minutes on 2 cores and loads in 7 seconds.
""",
    )
    return whole
