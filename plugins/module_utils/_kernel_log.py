# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""What the driver wrote to the kernel's log in this boot: Xid errors, GPUs off the bus, GPUs that need a reset.

The log is read from its first record on, so that what came before the first run is seen, and seen again by every later
run; a start instant hides what was repaired since. The kernel keeps records in a ring: on a node that logs much, old
ones are overwritten.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from typing import Iterable, Iterator

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._gpu_reading import LogEvent
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import path_below

KMSG = "/dev/kmsg"
#: The kernel's own bound for one record with its header.
_RECORD = 8192
#: Records that are read at most; the ring holds far fewer, but more can come while it is read.
MAX_RECORDS = 500_000
#: Events that are kept: the first ones of each kind and GPU, and the newest.
MAX_EVENTS = 2000
#: Lines of one report come within moments; seconds.
_JOIN_S = 5.0
#: A GPU that is off the bus is reported again by everyone who asks for it; seconds since the last report.
_REPEAT_S = 600.0
XID_OFF_BUS = 79

_HEADER = re.compile(r"^(\d+),(\d+),(\d+),[^;]*;(.*)$")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_BUS = r"(?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(rf"NVRM: Xid \({_BUS}\)[^:]*: (?P<xid>\d+)\b(?P<rest>.*)")
#: NVLink 5: "145, RLW_REMAP Nonfatal XC0 i0 Link 03 (0x... 0x... 0x... 0x...)", with the severity as a word.
_NVLINK5 = re.compile(
    r"\b(?P<severity>Nonfatal|Fatal)\s+XC\d+\s+i\d+\s+Link\s+-?\d+(?:\s+\((?P<words>[0-9a-fA-Fx ]+)\)?)?"
)
_OFF_BUS = re.compile(r"fallen off the bus", re.IGNORECASE)
_OFF_BUS_HEAD = re.compile(rf"NVRM: The NVIDIA GPU {_BUS}\s*$")
_OFF_BUS_MIDDLE = re.compile(r"NVRM: \(PCI ID: [0-9a-fA-F:]+\) installed in this system has")
_ANY_BUS = re.compile(rf"(?:GPU(?: at)? |\()?{_BUS}")
_RESET = re.compile(r"NV_ERR_RESET_REQUIRED|\(0x0*62\)")


@dataclasses.dataclass(frozen=True)
class Record:
    """One record of the log: seconds since the boot, and its text."""

    at: float
    text: str


def events(path: str = KMSG, root: str = "/", since: float = 0.0) -> tuple[tuple[LogEvent, ...], str]:
    """Return the driver's events in the kernel's log of this boot.

    Args:
        path: The kernel's device, or a file with records in its format.
        root: Directory that stands for ``/``.
        since: Seconds since the boot; earlier records do not count.

    Returns:
        The events, oldest first, and why the log could not be read (empty when it could).
    """
    place = path_below(root, path)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return (), f"{path}: {error.strerror}: read it as root" if error.errno in (
            1,
            13,
        ) else f"{path}: {error.strerror}"
    try:
        found = joined(record for record in _records(descriptor) if record.at >= since)
    except OSError as error:
        return (), f"{path}: {error.strerror}"
    finally:
        os.close(descriptor)
    return bounded(found), ""


def _records(descriptor: int) -> Iterator[Record]:
    """Yield the records until there is none left."""
    rest = b""
    for _number in range(MAX_RECORDS):
        try:
            # The device gives one record at a time, a file as much as there is room for.
            data = os.read(descriptor, _RECORD)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten before it was read: the next read goes on behind it
                continue
            raise
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        yield from parse(line.decode("utf-8", "replace") for line in lines)
    if rest:
        yield from parse([rest.decode("utf-8", "replace")])


def parse(lines: Iterable[str]) -> Iterator[Record]:
    """Yield records; lines of a record's dictionary (they begin with a space) are left out."""
    for line in lines:
        match = _HEADER.match(line)
        if match:
            # The kernel writes what cannot be printed, a line break too, as \xNN.
            text = _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), match.group(4))
            yield Record(int(match.group(3)) / 1e6, text)


def joined(records: Iterable[Record]) -> list[LogEvent]:
    """Return the events; reports that span several lines are one, and so are several reports of a GPU off the bus."""
    found: list[LogEvent] = []
    heads: list[LogEvent] = []
    for record in records:
        if "NVRM" not in record.text and not _OFF_BUS.search(record.text):
            continue
        for line in record.text.splitlines():
            heads = [head for head in heads if record.at - head.at <= _JOIN_S]
            event = _event(record.at, line.strip(), heads)
            if event is not None:
                _add(found, event)
    return found


def _event(at: float, line: str, heads: list[LogEvent]) -> LogEvent | None:
    """Return what a line tells; ``heads`` are reports whose last line is still to come."""
    match = _XID.search(line)
    if match:
        return _xid(at, line, match)
    head = _OFF_BUS_HEAD.search(line)
    if head:
        heads.append(LogEvent(at, "off_bus", bus_id=bus_id(head.group("bus")), text=line))
        return None
    if _OFF_BUS.search(line):
        bus = _ANY_BUS.search(line)
        if bus:
            return LogEvent(at, "off_bus", bus_id=bus_id(bus.group("bus")), text=line)
        if heads:
            # Two GPUs at once: their lines come in the same order.
            first = heads.pop(0)
            return dataclasses.replace(first, text=f"{first.text} {line}")
        return LogEvent(at, "off_bus", text=line)
    if _OFF_BUS_MIDDLE.search(line):
        for number, open_head in enumerate(heads):
            if "PCI ID" not in open_head.text:
                heads[number] = dataclasses.replace(open_head, text=f"{open_head.text} {line}")
                break
        return None
    if _RESET.search(line):
        bus = _ANY_BUS.search(line)
        return LogEvent(at, "reset_required", bus_id=bus_id(bus.group("bus")) if bus else "", text=line)
    return None


def _xid(at: float, line: str, match: re.Match[str]) -> LogEvent:
    fatal, injected = None, False
    extended = _NVLINK5.search(match.group("rest"))
    if extended:
        fatal = extended.group("severity") == "Fatal"
        words = (extended.group("words") or "").split()
        # Only exactly this: a real error that is taken for a test would be worse than a test that counts.
        injected = len(words) >= 4 and words[3].lower() in ("0x00000001", "0x1")
    return LogEvent(at, "xid", int(match.group("xid")), bus_id(match.group("bus")), line, fatal, injected)


def _add(found: list[LogEvent], event: LogEvent) -> None:
    """Add an event, or join it with the report of the same GPU off the bus that is there already."""
    if not _is_off_bus(event):
        found.append(event)
        return
    for number in range(len(found) - 1, -1, -1):
        earlier = found[number]
        if event.at - earlier.at > _REPEAT_S:
            break
        if not _is_off_bus(earlier):
            continue
        same = earlier.bus_id == event.bus_id
        nameless = (not earlier.bus_id or not event.bus_id) and event.at - earlier.at <= _JOIN_S
        if same or nameless:
            found[number] = _merged(earlier, event)
            return
    found.append(event)


def _is_off_bus(event: LogEvent) -> bool:
    return event.kind == "off_bus" or event.xid == XID_OFF_BUS


def _merged(earlier: LogEvent, later: LogEvent) -> LogEvent:
    """Return one event of two; the number makes it an Xid."""
    number = XID_OFF_BUS if XID_OFF_BUS in (earlier.xid, later.xid) else None
    # Of reports that repeat themselves the first is enough.
    told = later.kind != earlier.kind or later.xid != earlier.xid
    return dataclasses.replace(
        earlier,
        kind="xid" if number else "off_bus",
        xid=number,
        bus_id=earlier.bus_id or later.bus_id,
        text=f"{earlier.text} {later.text}" if told and later.text not in earlier.text else earlier.text,
    )


def bounded(found: list[LogEvent], most: int = MAX_EVENTS) -> tuple[LogEvent, ...]:
    """Return at most so many events: the first of each kind, number and GPU, then the newest, in their order."""
    if len(found) <= most:
        return tuple(found)
    seen: set[tuple[str, int | None, str]] = set()
    kept: set[int] = set()
    for number, event in enumerate(found):
        key = (event.kind, event.xid, event.bus_id)
        if key not in seen and len(kept) < most:
            seen.add(key)
            kept.add(number)
    for number in range(len(found) - 1, -1, -1):
        if len(kept) >= most:
            break
        kept.add(number)
    return tuple(found[number] for number in sorted(kept))


def bus_id(text: str) -> str:
    """Return a PCI address as sysfs writes it: four digits of the domain, small letters, with the function."""
    domain, bus, rest = text.lower().split(":")
    device, _dot, function = rest.partition(".")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}"
