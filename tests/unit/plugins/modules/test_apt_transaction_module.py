"""Which of the packages that came with a transaction go again."""

from __future__ import annotations

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _transaction_state as state
from ansible_collections.aiinfra.gpu_node.plugins.modules import apt_transaction
from plugins.module_utils.fake_apt import FakeNode

OWNER = "kernel_upgrade 6.12.95+deb12-amd64"
IMAGE, HEADERS = "linux-image-6.12.95+deb12-amd64", "linux-headers-6.12.95+deb12-amd64"


def test_headers_may_go_without_the_kernel_that_came_with_them(tmp_path):
    node = FakeNode(tmp_path, {}, installed={"bash": "5", IMAGE: "6.12.95-1", HEADERS: "6.12.95-1"})
    state.note_brought(str(node.root), OWNER, [IMAGE, HEADERS], [], [IMAGE, HEADERS])
    assert apt_transaction.leaving(str(node.root), OWNER, ("linux-headers-", "linux-kbuild-")) == [HEADERS]
    assert apt_transaction.leaving(str(node.root), OWNER) == [HEADERS, IMAGE]
    assert apt_transaction.leaving(str(node.root), "kernel", ("linux-",)) == []
