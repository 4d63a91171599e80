"""The kernel's log: records as /dev/kmsg gives them, lines as the driver writes them."""

from __future__ import annotations

import os
import random
import threading

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _kernel_log as log

from lab import nvml_build

BUS = "0000:b3:00.0"
XID = "NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', name=<unknown>"
HEAD = "NVRM: The NVIDIA GPU 0000:b3:00.0"
MIDDLE = "NVRM: (PCI ID: 10de:26b5) installed in this system has"
END = "NVRM: fallen off the bus and is not responding to commands."
TEXT = (HEAD, MIDDLE, END)


def read(tmp_path, *lines, since=0.0):
    """Write lines (text, or (seconds, text)) as records, and read them."""
    pairs = [line if isinstance(line, tuple) else (40.0 + number / 1000, line) for number, line in enumerate(lines)]
    text = "".join(f"3,{number},{int(at * 1e6)},-;{line}\n" for number, (at, line) in enumerate(pairs))
    (tmp_path / "kmsg").write_text(text)
    found, error = log.events(str(tmp_path / "kmsg"), since=since)
    assert error == ""
    return found


OFF_BUS = {
    "number only": ([XID], 79),
    "text only": (TEXT, None),
    "both in one line": ([XID + ", GPU has fallen off the bus."], 79),
    "number, then text": ([XID, *TEXT], 79),
    "text, then number": ([*TEXT, XID], 79),
    "one record": (["\\x0a".join(TEXT)], None),
    "other lines between": ([HEAD, "eth0: link up", "NVRM: loading", MIDDLE, "audit: x", END, XID], 79),
    "one line with the address": (["NVRM: GPU at PCI:0000:b3:00 has fallen off the bus"], None),
    "all that a driver says": (
        [
            "NVRM: GPU at PCI:0000:b3:00: GPU-5a1f0000-0000-0000-0000-000000000000",
            XID + ", GPU has fallen off the bus.",
            "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
            "NVRM: GPU 0000:b3:00.0: GPU serial number is 0.",
        ],
        79,
    ),
}


@pytest.mark.parametrize(("lines", "number"), OFF_BUS.values(), ids=OFF_BUS)
def test_hlt_08_a_gpu_off_the_bus_is_one_event_with_its_address(tmp_path, lines, number):
    found = read(tmp_path, *lines)
    assert [(event.bus_id, event.xid) for event in found] == [(BUS, number)]
    assert found[0].kind == ("xid" if number else "off_bus")
    assert found[0].at in (40.0, 40.001)
    assert number or "fallen off the bus" in found[0].text


def test_hlt_08_two_gpus_at_once_keep_their_own_address(tmp_path):
    other = HEAD.replace("b3", "17")
    found = read(tmp_path, HEAD, other, MIDDLE, MIDDLE, END, END, XID.replace("b3", "17"))
    assert [(event.bus_id, event.xid) for event in found] == [(BUS, None), ("0000:17:00.0", 79)]


def test_hlt_08_the_last_line_without_the_first_is_an_event_all_the_same(tmp_path):
    found = read(tmp_path, (5, HEAD), (400, END))
    assert [(event.kind, event.bus_id, event.at) for event in found] == [("off_bus", "", 400.0)]


@pytest.mark.parametrize("lines", [(END, XID), (XID, END)])
def test_hlt_08_a_last_line_without_address_belongs_to_the_number_beside_it(tmp_path, lines):
    found = read(tmp_path, *lines)
    assert [(event.xid, event.bus_id) for event in found] == [(79, BUS)]


def test_hlt_08_much_later_it_is_a_new_event(tmp_path):
    found = read(tmp_path, (5, XID), (30, XID), (90, XID), (5000, XID))
    assert [event.at for event in found] == [5.0, 5000.0]


@pytest.mark.parametrize("with_xid", [(), ("--with-xid", "before"), ("--with-xid", "after"), ("--with-xid", "inline")])
@pytest.mark.parametrize("joined", [(), ("--joined",)])
def test_hlt_08_as_the_simulated_card_falls_off(tmp_path, with_xid, joined):
    nvml_build.simgpu(tmp_path / "state", "init", "--gpus", "2")
    nvml_build.simgpu(tmp_path / "state", "off-bus", "gpu=1", "--kmsg", str(tmp_path / "kmsg"), *with_xid, *joined)
    found, error = log.events(str(tmp_path / "kmsg"))
    assert (len(found), error) == (1, "")
    assert (found[0].bus_id, found[0].xid) == ("0000:2a:00.0", 79 if with_xid else None)


def test_hlt_14_an_early_error_is_seen_by_every_run_until_the_repair(tmp_path):
    lines = [(40.0, XID), (41.0, "NVRM: Xid (PCI:0000:17:00): 31, pid=1, name=python3, Ch 00000008")]
    first, second = read(tmp_path, *lines), read(tmp_path, *lines)
    assert first == second
    assert [(event.at, event.xid) for event in first] == [(40.0, 79), (41.0, 31)]
    assert read(tmp_path, *lines, since=60.0) == ()
    assert [event.xid for event in read(tmp_path, *lines, (100.0, XID), since=60.0)] == [79]


NVLINK5 = {
    "145, RLW_REMAP Nonfatal XC0 i0 Link 03 (0x01 0x02 0x00000000 0x00000000 0x00 0x00)": (145, False, False),
    "149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000)": (149, True, False),
    "149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0 0x0 0x00000001 0x0 0x0)": (149, True, True),
    "145, pid=8, name=Fatal::Worker, RLW_RXPIPE Nonfatal XC1 i0 Link 13 (0x0409a0c2 0x8": (145, False, False),
    "31, pid=8, name=Fatal, Ch 00000008": (31, None, False),
}


@pytest.mark.parametrize(("text", "wanted"), NVLINK5.items())
def test_errors_of_nvlink_5_say_how_bad_they_are_in_words(tmp_path, text, wanted):
    (event,) = read(tmp_path, "NVRM: Xid (PCI:0018:01:00): " + text)
    assert (event.xid, event.fatal, event.injected, event.bus_id) == (*wanted, "0018:01:00.0")


@pytest.mark.parametrize("place", ["0000:03:00", "PCI:0000:03:00", "PCI:00000000:03:00.0", "PCI:0000:03:00.0"])
def test_an_address_is_written_as_in_sysfs(tmp_path, place):
    (event,) = read(tmp_path, f"NVRM: Xid ({place}): 14, Channel 00000001")
    assert (event.bus_id, event.xid) == ("0000:03:00.0", 14)


@pytest.mark.parametrize(
    "line", ["NVRM: nvidia_open: NV_ERR_RESET_REQUIRED", "NVRM: GPU 0000:b3:00.0: rm_init_adapter failed (0x00000062)"]
)
def test_a_gpu_that_needs_a_reset_says_so_without_a_number(tmp_path, line):
    (event,) = read(tmp_path, line)
    assert (event.kind, event.xid) == ("reset_required", None)
    assert event.bus_id == ("0000:b3:00.0" if "0000:b3" in line else "")


def test_what_is_not_the_drivers_does_not_count(tmp_path):
    lines = ["Xid 79", "bus: NV_ERR", "usb 1-1: (0x00000062)", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.1"]
    assert read(tmp_path, *lines, " SUBSYSTEM=pci", "garbage") == ()


def test_every_job_abort_is_an_event_but_a_flood_is_bounded_and_keeps_the_first_cause(tmp_path):
    aborts = [f"NVRM: Xid (PCI:0000:b3:00): 45, pid={number}, Ch 00000008" for number in range(500)]
    assert len(read(tmp_path, *aborts)) == 500
    lines = ["NVRM: Xid (PCI:0000:b3:00): 48, DBE", *(aborts * 8), "NVRM: Xid (PCI:0000:17:00): 63, x"]
    found = read(tmp_path, *lines)
    assert len(found) == log.MAX_EVENTS
    assert (found[0].xid, found[1].text, found[-1].xid) == (48, aborts[0], 63)
    assert list(found) == sorted(found, key=lambda event: event.at)


def test_a_log_that_cannot_be_read_is_an_error_and_not_an_empty_log(tmp_path):
    assert log.events(str(tmp_path / "none")) == ((), f"{tmp_path}/none: No such file or directory")
    assert log.events(str(tmp_path))[1].startswith(str(tmp_path))


class Device:
    """Answers reads as /dev/kmsg does: one record each, an error where records were overwritten."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self, _descriptor, _size):
        answer = self.answers.pop(0) if self.answers else BlockingIOError()
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_overwritten_records_do_not_end_the_reading(tmp_path, monkeypatch):
    (tmp_path / "kmsg").write_text("")
    record = f"4,7,90000000,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:{BUS}\n".encode()
    monkeypatch.setattr(log.os, "read", Device(b"6,1,5,-;Linux\n", BrokenPipeError(32, "x"), record))
    found, error = log.events(str(tmp_path / "kmsg"))
    assert ([(event.xid, event.at) for event in found], error) == ([(79, 90.0)], "")
    monkeypatch.setattr(log.os, "read", Device(OSError(5, "Input/output error")))
    assert log.events(str(tmp_path / "kmsg"))[1].endswith("Input/output error")


def test_a_reader_ends_even_though_records_keep_coming(tmp_path, monkeypatch):
    (tmp_path / "kmsg").write_text("")
    monkeypatch.setattr(log, "MAX_RECORDS", 1000)
    monkeypatch.setattr(log.os, "read", lambda _descriptor, _size: f"4,7,90000000,-;{XID}\n".encode())
    assert len(log.events(str(tmp_path / "kmsg"))[0]) == 1


def test_a_pipe_without_a_writer_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "kmsg")
    done = threading.Thread(target=log.events, args=(str(tmp_path / "kmsg"),), daemon=True)
    done.start()
    done.join(60)
    assert not done.is_alive()


def test_the_device_of_this_machine_can_be_read_or_says_why_not():
    found, error = log.events()
    assert isinstance(found, tuple)
    assert error == "" or error.startswith("/dev/kmsg: ")


def test_no_text_ever_raises(tmp_path):
    chance = random.Random(4)
    parts = [
        XID,
        *TEXT,
        "NVRM:",
        "Xid (PCI:",
        "0000:b3:00",
        "):",
        "79,",
        "\\x0a",
        "\\xff",
        "(0x00000062)",
        ";",
        ",",
        "é",
    ]
    for _round in range(300):
        lines = ["".join(chance.choices(parts, k=chance.randint(1, 6))) for _line in range(10)]
        (tmp_path / "kmsg").write_bytes("\n".join(f"1,2,{chance.randint(0, 99)},-;{line}" for line in lines).encode())
        found, error = log.events(str(tmp_path / "kmsg"))
        assert error == ""
        assert all(event.kind in ("xid", "off_bus", "reset_required") for event in found)
