"""What apt-get's simulation and failures say, on captured outputs."""

from __future__ import annotations

from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _apt_get
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

CAPTURED = """Reading package lists...
Building dependency tree...
Reading state information...
The following additional packages will be installed:
  libnvidia-cfg1
Remv nvidia-persistenced [535.171.04-1~deb12u1]
Purg xserver-xorg [1:7.7+23]
Inst libc6 [2.36-9+deb12u9] (2.36-9+deb12u10 Debian:12.9/oldstable [amd64]) []
Inst libnvidia-cfg1 (535.261.03-1 Debian:12.12/oldstable [amd64])
Inst libcuda1:i386 (535.261.03-1 Debian:12.12/oldstable [i386])
Conf libnvidia-cfg1 (535.261.03-1 Debian:12.12/oldstable [amd64])
"""

UNMET = """Reading package lists...
Some packages could not be installed. This may mean that you have
requested an impossible situation or if you are using the unstable
distribution that some required packages have not yet been created
or been moved out of Incoming.
The following information may help to resolve the situation:

The following packages have unmet dependencies:
 nvidia-open-kernel-dkms : Depends: firmware-nvidia-gsp (= 535.261.03) but 535.309.01-0+deb12u1 is to be installed or
                                    firmware-nvidia-gsp-535.261.03
E: Unable to correct problems, you have held broken packages.
"""


def test_simulation_lines_are_read():
    simulation = _apt_get.parse_simulation(CommandResult(0, CAPTURED))
    assert simulation.installs == {
        "libc6": ("2.36-9+deb12u9", "2.36-9+deb12u10"),
        "libnvidia-cfg1": ("", "535.261.03-1"),
        "libcuda1:i386": ("", "535.261.03-1"),
    }
    assert simulation.removes == {"nvidia-persistenced": "535.171.04-1~deb12u1", "xserver-xorg": "1:7.7+23"}
    assert simulation.error == ""


def test_drv_05_unmet_dependencies_are_told_with_their_names():
    error = _apt_get.parse_simulation(CommandResult(100, UNMET)).error
    assert "nvidia-open-kernel-dkms : Depends: firmware-nvidia-gsp (= 535.261.03)" in error
    assert "held broken packages" in error


def test_operands_name_versions_and_removals():
    assert _apt_get.operands({"b": "", "a": "1:2-3"}, ["z", "c"]) == ["a=1:2-3", "b", "c-", "z-"]


def test_krn_03_the_cause_is_in_the_log_that_the_output_points_to(tmp_path):
    log = tmp_path / "var/lib/dkms/nvidia-current/535.261.03/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "DKMS make.log\n  CC [M] nv.o\nerror: implicit declaration of function 'in_irq'\nmake[2]: *** [nv.o] Error 1\n"
    )
    output = "Consult /var/lib/dkms/nvidia-current/535.261.03/build/make.log for more information.\n"
    cause = _apt_get.failure_cause(output, str(tmp_path))
    assert "implicit declaration" in cause and "CC [M]" not in cause


def test_krn_03_without_a_log_the_last_words_before_the_failure_count():
    output = "Setting up x\nsad story\ndpkg: error processing package x (--configure):\n post-installation script\nmore"
    assert _apt_get.failure_cause(output) == "Setting up x\nsad story"
    assert _apt_get.failed_packages(output) == ["x"]


def test_holds_are_lifted_in_the_copy_only_for_the_named():
    text = "Package: a\nStatus: hold ok installed\n\nPackage: b\nStatus: hold ok installed\nVersion: 1\n"
    lifted = _apt_get.lift_holds(text, ["b"])
    assert lifted == text.replace("Package: b\nStatus: hold", "Package: b\nStatus: install")


def test_sizes_count_each_version_once():
    stanza = "Package: a\nVersion: 1\nInstalled-Size: 10\nSize: 2048\n"
    assert _apt_get.sizes(stanza + "\n" + stanza + "\nPackage: b\nVersion: 2\nSize: 1\n") == (2049, 10240)
