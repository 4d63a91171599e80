"""Archives in place of compiling, while a driver's packages are installed."""

from __future__ import annotations

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._compiled_modules import CompiledModules
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._module_archive import ArchiveError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult
from plugins.module_utils.dkms_node import KERNEL, NAME, VERSION, DkmsNode, archive

OTHER = "6.12.95-amd64"


@pytest.fixture
def node(tmp_path):
    node = DkmsNode(tmp_path / "node")
    (node.root / "etc/dkms").mkdir(parents=True)
    for kernel in (KERNEL, OTHER):
        (node.root / "lib/modules" / kernel / "build/include").mkdir(parents=True)
    return node


def modules(node, made, kernels=(KERNEL,), **plan):
    archives = [{"path": made[0], "sha256": made[1], "kernel": KERNEL}] if made else []
    wanted = {"dkms_name": NAME, "version": VERSION, "needs_headers": list(kernels), **plan}
    return CompiledModules(node, str(node.root), wanted, archives)


def builds_off(node):
    return (node.root / "etc/dkms/no-autoinstall").exists()


def test_nothing_is_compiled_while_all_kernels_are_served(node, tmp_path):
    found = modules(node, archive(tmp_path))
    with found.around():
        assert builds_off(node)
    assert not builds_off(node)
    assert found.load() == ([KERNEL], [])
    assert found.load() == ([], [])


def test_a_kernel_that_is_not_served_is_compiled_in_the_transaction_as_always(node, tmp_path):
    found = modules(node, archive(tmp_path), [KERNEL, OTHER])
    with found.around():
        assert not builds_off(node)
    assert found.load() == ([], [])


def test_a_kernel_without_headers_would_not_be_compiled_for_either(node, tmp_path):
    (node.root / "lib/modules" / OTHER / "build/include").rmdir()
    assert modules(node, archive(tmp_path), [KERNEL, OTHER]).replace_compiling


def test_without_archives_nothing_is_asked(node):
    found = modules(node, None)
    with found.around():
        assert not builds_off(node)
    assert found.load() == ([], []) and node.calls == []


def test_an_archive_of_another_driver_is_refused_before_anything(node, tmp_path):
    with pytest.raises(
        ArchiveError, match=f"holds {NAME}/{VERSION} for {KERNEL} on x86_64; wanted is {NAME}/550.163.01"
    ):
        modules(node, archive(tmp_path), version="550.163.01")
    with pytest.raises(ArchiveError, match="is not the one that was recorded"):
        modules(node, (archive(tmp_path)[0], "0" * 64))


def test_krn_03_modules_that_cannot_be_loaded_are_told_and_left_to_the_compiler(node, tmp_path):
    found = modules(node, archive(tmp_path))
    node.answers["dkms install"] = CommandResult(6, err="no space left")
    loaded, (problem,) = found.load()
    assert loaded == [] and "no space left" in problem
