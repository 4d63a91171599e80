"""The role preflight looks and leaves no trace; what it refuses is in tests/lab/test_preflight.py."""

from __future__ import annotations


def test_nothing_on_the_node_was_changed(host):
    after = host.check_output("/root/snapshot")
    before = host.file("/root/before").content_string
    assert len(before.splitlines()) > 500, "the snapshot sees next to nothing"
    assert after.strip() == before.strip()


def test_no_directory_of_the_collection_was_made(host):
    assert not host.file("/var/lib/gpu_node").exists


def test_dpkg_is_still_clean_and_its_lock_free(host):
    assert host.check_output("dpkg --audit") == ""
    # apt and dpkg lock with fcntl, not with flock.
    lock = "import fcntl; fcntl.lockf(open('/var/lib/dpkg/lock-frontend', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert host.run(f'python3 -c "{lock}"').rc == 0
