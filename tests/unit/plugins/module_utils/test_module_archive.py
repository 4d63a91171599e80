"""Compiled modules in archives: packed whole, judged before they are loaded, signed where Secure Boot asks for it."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _module_archive, _module_files
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._module_archive import ArchiveError
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult
from plugins.module_utils.dkms_node import ARCH, CONF, KERNEL, NAME, VERSION, DkmsNode, archive, module, signed

OTHER = "6.1.0-58-amd64"


@pytest.fixture
def node(tmp_path):
    return DkmsNode(tmp_path / "node")


def load(node, made, kernel=KERNEL, **more):
    return _module_archive.load(node, str(node.root), *made, kernel, **more)


def snapshot(node):
    return sorted(
        (str(path), path.read_bytes() if path.is_file() else b"")
        for path in node.root.rglob("*")
        if "var/tmp" not in str(path)
    )


def refused(node, made, *fragments, kernel=KERNEL):
    before = snapshot(node)
    with pytest.raises(ArchiveError) as caught:
        load(node, made, kernel)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert (
        snapshot(node) == before
        and list((node.root / "var/tmp").glob("*") if (node.root / "var/tmp").exists() else []) == []
    )


# --- packing ---------------------------------------------------------------------------------------------------------


def test_what_was_packed_says_what_it_is(node, tmp_path):
    node.compile()
    made = _module_archive.pack(node, str(node.root), NAME, VERSION, KERNEL, str(tmp_path / "out"))
    assert os.path.basename(made["file"]) == f"{NAME}-{VERSION}-{KERNEL}-{ARCH}.tgz"
    assert made["sha256"] == hashlib.sha256((tmp_path / "out" / made["file"]).read_bytes()).hexdigest()
    assert made["vermagic"] == KERNEL + " SMP preempt mod_unload modversions"
    assert os.listdir(tmp_path / "out") == [os.path.basename(made["file"])]
    described = _module_archive.describe(node, str(node.root), made["file"])
    assert (described["kernel"], described["modules"], described["flavour"]) == (
        KERNEL,
        ["nvidia-current.ko"],
        "proprietary",
    )
    again = _module_archive.packed_already(node, str(node.root), NAME, VERSION, KERNEL, str(tmp_path / "out"))
    assert again == made
    (node.build / "nvidia-current.ko").write_bytes(module("compiled anew"))
    assert _module_archive.packed_already(node, str(node.root), NAME, VERSION, KERNEL, str(tmp_path / "out")) is None


def test_nothing_compiled_is_not_packed(node, tmp_path):
    with pytest.raises(ArchiveError, match=f"no compiled {NAME}/{VERSION} for {KERNEL}"):
        _module_archive.pack(node, str(node.root), NAME, VERSION, KERNEL, str(tmp_path))


def test_a_module_of_another_kernel_in_the_tree_is_not_packed(node, tmp_path):
    node.compile(nvidia=module(magic=OTHER + " SMP "))
    with pytest.raises(ArchiveError, match="dkms build --force"):
        _module_archive.pack(node, str(node.root), NAME, VERSION, KERNEL, str(tmp_path))


@pytest.mark.parametrize("answer", [CommandResult(6, err="Failed to make tarball."), CommandResult(0)])
def test_a_packer_that_fails_leaves_the_old_archive_and_no_rest(node, tmp_path, answer):
    node.compile()
    out = tmp_path / "out"
    old = _module_archive.pack(node, str(node.root), NAME, VERSION, KERNEL, str(out))
    node.answers["dkms mktarball"] = answer
    with pytest.raises(ArchiveError, match="dkms mktarball"):
        _module_archive.pack(node, str(node.root), NAME, VERSION, KERNEL, str(out))
    assert os.listdir(out) == [os.path.basename(old["file"])]
    assert _module_archive.sha256_of(old["file"]) == old["sha256"]


# --- loading ---------------------------------------------------------------------------------------------------------


def test_loading_is_done_once(node, tmp_path):
    made = archive(tmp_path)
    assert load(node, made, check=True) and not (node.modules / "updates").exists()
    assert load(node, made)
    assert (node.modules / "updates/dkms/nvidia-current.ko").read_bytes() == module()
    calls = len(node.calls)
    assert not load(node, made)
    assert not [call for call in node.calls[calls:] if call.startswith(("dkms", "depmod"))]
    assert list((node.root / "var/tmp").iterdir()) == []


def test_a_version_that_dkms_knows_already_is_no_failure(node, tmp_path):
    node.add([])
    # The real one exits 3 after it has loaded everything.
    done = node.answers["dkms ldtarball"]
    node.answers["dkms ldtarball"] = lambda argv: CommandResult(3, err="DKMS tree already contains it" + done(argv))
    assert load(node, archive(tmp_path))
    assert not any(call.startswith("dkms add") for call in node.calls)


@pytest.mark.parametrize("harm", ["torn", "gone", "unindexed", "unlinked", "other code"])
def test_whatever_is_wrong_with_the_installed_module_is_mended(node, tmp_path, harm):
    made = archive(tmp_path)
    load(node, made)
    installed = node.modules / "updates/dkms/nvidia-current.ko"
    if harm == "torn":
        installed.write_bytes(module()[:9])
    elif harm == "gone":
        installed.unlink()
    elif harm == "unindexed":
        (node.modules / "modules.dep").write_text("kernel/loop.ko:\n")
    elif harm == "unlinked":
        (node.tree / f"kernel-{KERNEL}-{ARCH}").unlink()
    else:
        installed.write_bytes(module("other"))
    assert load(node, made) and not load(node, made)
    assert installed.read_bytes() == module()


def test_a_torn_module_is_out_of_the_way_before_dkms_could_keep_it_as_an_original(node, tmp_path):
    made = archive(tmp_path)
    load(node, made)
    installed = node.modules / "updates/dkms/nvidia-current.ko"
    installed.write_bytes(b"torn")
    seen = []
    install = node.answers["dkms install"]
    node.answers["dkms install"] = lambda argv: seen.append(installed.exists()) or install(argv)
    load(node, made)
    assert seen == [False]


@pytest.mark.parametrize("step", ["dkms ldtarball", "dkms install", "depmod"])
def test_a_step_that_fails_is_named(node, tmp_path, step):
    node.answers[step] = CommandResult(9, err="no space left")
    with pytest.raises(ArchiveError, match=f"{step}.*no space left"):
        load(node, archive(tmp_path))


# --- refusing --------------------------------------------------------------------------------------------------------


def test_an_altered_archive_is_refused(node, tmp_path):
    path, sha256 = archive(tmp_path)
    with open(path, "ab") as stream:
        stream.write(b"x")
    refused(node, (path, sha256), "is not the one that was recorded", sha256)
    refused(node, (path, ""), "recorded nothing")
    refused(node, (path + ".gone", sha256), "cannot be read")


def test_an_archive_for_another_kernel_is_refused(node, tmp_path):
    made = archive(tmp_path)
    (node.root / "lib/modules" / OTHER).mkdir()
    refused(node, made, f"holds {NAME}/{VERSION} for {KERNEL}", f"wanted is {OTHER}", kernel=OTHER)
    node.answers["uname -m"] = "aarch64"
    refused(node, made, "wanted is " + KERNEL + " on aarch64")


@pytest.mark.parametrize("magic", [OTHER + " SMP preempt mod_unload modversions ", KERNEL + " SMP mod_unload ", ""])
def test_a_version_magic_that_is_not_the_kernels_is_refused(node, tmp_path, magic):
    made = archive(tmp_path, {"nvidia-current.ko": module(), "nvidia-current-uvm.ko": module(magic=magic)})
    refused(node, made, "does not fit the kernel", "nvidia-current-uvm.ko", magic.strip())


def test_a_kernel_without_modules_of_its_own_is_compared_by_its_release(node, tmp_path):
    (node.modules / "kernel/loop.ko").unlink()
    (node.modules / "modules.dep").write_text("")
    assert load(node, archive(tmp_path))


def test_without_the_source_the_package_is_asked_for(node, tmp_path):
    (node.source / "dkms.conf").unlink()
    refused(node, archive(tmp_path), f"usr/src/{NAME}-{VERSION} is missing", "install the package")


def test_a_kernel_that_is_not_there_is_named(node, tmp_path):
    refused(node, archive(tmp_path, kernel=OTHER), f"The kernel {OTHER} is not on this node", kernel=OTHER)


def tampered(tmp_path, **extra):
    """Return an archive with one more member."""
    path = archive(tmp_path)[0]
    with tarfile.open(path) as before, tarfile.open(tmp_path / "more.tgz", "w:gz") as after:
        for member in before:
            after.addfile(member, before.extractfile(member) if member.isreg() else None)
        info = tarfile.TarInfo(extra.pop("name"))
        for key, value in extra.items():
            setattr(info, key, value)
        after.addfile(info, io.BytesIO(b""))
    return str(tmp_path / "more.tgz"), _module_archive.sha256_of(str(tmp_path / "more.tgz"))


@pytest.mark.parametrize(
    ("member", "fragment"),
    [
        ({"name": "./dkms_main_tree/../../etc/passwd"}, "reaches out"),
        ({"name": "/etc/passwd"}, "reaches out"),
        ({"name": "./dkms_binaries_only/x", "type": tarfile.SYMTYPE, "linkname": "/etc"}, "other than a file"),
        ({"name": "./dkms_binaries_only/x", "type": tarfile.CHRTYPE}, "other than a file"),
        ({"name": "./dkms_source_tree/Makefile"}, "an unknown file"),
        ({"name": f"./dkms_main_tree/{OTHER}/{ARCH}/module/nvidia.ko"}, "of one kernel"),
        ({"name": f"./dkms_main_tree/{KERNEL}/{ARCH}/module/a b.ko"}, "no DKMS archive"),
    ],
)
def test_an_archive_with_anything_else_in_it_is_refused(node, tmp_path, member, fragment):
    refused(node, tampered(tmp_path, **member), fragment)


def test_an_archive_that_calls_itself_two_names_is_refused(node, tmp_path):
    refused(node, archive(tmp_path, conf=CONF.replace(NAME, "other")), "dkms.conf of something other")


def test_something_that_is_no_archive_is_refused(node, tmp_path):
    path = tmp_path / "x.tgz"
    path.write_text("no archive")
    refused(node, (str(path), _module_archive.sha256_of(str(path))), "cannot be read")


# --- Secure Boot -----------------------------------------------------------------------------------------------------


def test_krn_05_a_module_of_an_enrolled_key_is_loaded_as_it_is(tmp_path):
    node = DkmsNode(tmp_path / "node", secure_boot=True, enrolled=["1F:CE"])
    made = archive(tmp_path, {"nvidia-current.ko": signed(module(), "1F:CE")})
    assert load(node, made) and not load(node, made)
    assert (node.modules / "updates/dkms/nvidia-current.ko").read_bytes() == signed(module(), "1F:CE")


def test_krn_05_a_module_of_another_nodes_key_is_signed_again_although_the_keys_have_one_name(tmp_path):
    node = DkmsNode(tmp_path / "node", secure_boot=True, enrolled=[DkmsNode.OWN])
    made = archive(tmp_path, {"nvidia-current.ko": signed(module(), "1F:CE")})
    assert load(node, made) and not load(node, made)
    assert (node.modules / "updates/dkms/nvidia-current.ko").read_bytes() == signed(module(), DkmsNode.OWN)
    assert any("sign-file sha512" in call for call in node.calls)


def test_krn_05_without_an_enrolled_key_it_is_refused_with_the_steps(tmp_path):
    node = DkmsNode(tmp_path / "node", secure_boot=True, enrolled=["77:77"])
    made = archive(tmp_path, {"nvidia-current.ko": signed(module(), "1F:CE")})
    refused(node, made, "Secure Boot is on", "mokutil --import")
    with pytest.raises(ArchiveError, match="Secure Boot is on"):
        _module_archive.judge(node, str(node.root), *made, KERNEL)


def test_krn_05_without_a_program_to_sign_with_the_headers_are_asked_for(tmp_path):
    node = DkmsNode(tmp_path / "node", secure_boot=True, enrolled=[DkmsNode.OWN])
    (node.root / "usr/lib/linux-kbuild-6.1/scripts/sign-file").unlink()
    refused(node, archive(tmp_path), f"install linux-headers-{KERNEL}")


def test_two_signatures_of_the_same_code_are_the_same_module(node, tmp_path):
    load(node, archive(tmp_path, {"nvidia-current.ko": signed(module(), "1F:CE")}))
    second = tmp_path / "second"
    second.mkdir()
    assert not load(node, archive(second, {"nvidia-current.ko": signed(module(), "2A:2A")}))


# --- module files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m.ko", "m.ko.xz", "m.ko.gz"])
def test_compressed_modules_come_back_as_they_were(node, tmp_path, name):
    path = str(tmp_path / name)
    _module_files.write_module(node, path, module())
    assert _module_files.read_module(node, path) == module()
    with open(path, "r+b") as stream:
        stream.truncate(20)
    if name != "m.ko":
        with pytest.raises(_module_files.ModuleFileError, match="cannot be read"):
            _module_files.read_module(node, path)


def test_zstd_is_left_to_its_program(node, tmp_path):
    path = tmp_path / "m.ko.zst"
    path.write_bytes(b"packed")

    def zstd(argv):
        with open(argv[argv.index("-o") + 1], "wb") as stream:
            stream.write(b"plain" if "-d" in argv else b"packed again")
        return ""

    node.answers["zstd"] = zstd
    assert _module_files.read_module(node, str(path)) == b"plain"
    _module_files.write_module(node, str(path), b"plain")
    assert path.read_bytes() == b"packed again"
    node.answers["zstd"] = CommandResult(1, err="corrupt")
    with pytest.raises(_module_files.ModuleFileError, match="corrupt"):
        _module_files.read_module(node, str(path))


def test_signatures_go_all_of_them_and_only_they():
    twice = signed(signed(module(), "01"), "02")
    assert _module_files.without_signature(twice) == module()
    assert _module_files.without_signature(module()) == module()
    broken = module() + bytes(8) + (1 << 30).to_bytes(4, "big") + b"~Module signature appended~\n"
    assert _module_files.without_signature(broken) == broken


def test_serial_numbers_in_both_wordings_of_certificates(fake_runner):
    text = "    Serial Number:\n            0f:ce:0e\n    Serial Number: 4096 (0x1000)\n"
    assert _module_files.enrolled_serials(fake_runner({"mokutil --list-enrolled": text})) == {"fce0e", "1000"}
    assert not _module_files.trusted({"a": {"sig_key": ""}}, {""})
    assert _module_files.trusted({"a": {"sig_key": "0F:CE:0E"}}, {"fce0e"})
