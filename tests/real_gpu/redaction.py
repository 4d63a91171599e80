"""Takes out of a recorded snapshot what tells whose machine it is, and keeps what tells how its GPUs are.

The same text always becomes the same placeholder, numbered in the order of appearance: two GPUs stay two, and a process
that is named twice stays one. Redacting twice changes nothing. Where a name may be anything (processes, units, words of
the kernel's command line, paths), what is known to be harmless is kept and the rest replaced, not the other way round.

Kept, since they name a model and no card: names, part numbers (``board_part``), VBIOS and infoROM versions and
checksums, PCI ids and addresses; also when it was recorded.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Iterable, Mapping

_HEX = "[0-9a-fA-F]"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
UUID = re.compile(rf"(?<!{_HEX}){_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(?!{_HEX})")
#: Ids of containers and machines.
LONG_HEX = re.compile(rf"(?<!{_HEX}){_HEX}{{32,}}(?!{_HEX})")
#: A card's serial number has 13 digits. Not in "0x" words, and not in versions.
SERIAL = re.compile(r"(?<![\w.])\d{10,}(?!\w|\.\w)")
#: What each of them looks like when it is nobody's: a placeholder, or the UUID of a fabric that has none.
PLACEHOLDERS = {
    UUID: re.compile(r"00000000-0000-(?:4000-8000|0000-0000)-\d{12}$"),
    LONG_HEX: re.compile(r"0{24}\d+$"),
    SERIAL: re.compile(r"0{7}\d+$"),
}
ADDRESSES = {
    "mac": re.compile(rf"(?<![\w:])(?:{_HEX}{{2}}:){{5}}{_HEX}{{2}}(?![\w:])"),
    # NVML's version has four numbers as well, but its second is the driver's branch, which is larger.
    "ip": re.compile(rf"(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?!\w|\.\w)"),
    # Not a PCI address in a domain such as 2000.
    "ip6": re.compile(rf"(?<![\w:])(?:fe80|f[cd]{_HEX}{{2}}|2{_HEX}{{3}}):[0-9a-fA-F:]+(?![\w:]|\.[0-7])"),
}
#: Paths that lead elsewhere than where a system keeps its own files.
PATH = re.compile(
    r"(?<![\w./])/(?!(?:usr|lib|lib64|bin|sbin|dev|sys|proc|etc|opt/gpu_node|redacted)(?![\w.-]))"
    r"[\w.@+-]+(?:/[\w.@+-]*)*"
)
_PID_IN_TEXT = re.compile(r"(\bpid[ =:]+)(\d+)")
_NAME_IN_TEXT = re.compile(r"(\bname=)([^,]*)")
#: Words of the kernel's command line that concern GPUs, memory and PCI.
_CMDLINE = re.compile(
    r"(?:iommu(?:\.\w+)?|intel_iommu|amd_iommu|pci|pcie_aspm|(?:default_)?hugepages(?:z)?|transparent_hugepage"
    r"|nomodeset|numa_balancing|modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist|nouveau\.\w+"
    r"|nvidia[\w.-]*)(?:=|$)"
)
_PROCESS = re.compile(r"(?:nvidia-|nv-|nv_|dcgm)|(?:process-\d+|<unknown>)$")
_UNIT = re.compile(r"(?:nvidia-|dcgm|gpu-node-)|unit-\d+\.")
#: Keys of texts and readings that are serial numbers whatever they look like.
_SERIAL_KEYS = frozenset({"serial", "board_serial", "board_id"})
#: Placeholders of process ids begin behind it.
FIRST_PID = 900_000


class Redactor:
    """Replaces; one for everything that belongs together.

    Args:
        names: Names of the machine, as they may appear in a text.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = _word_of(names)
        self._known: dict[str, dict[str, int]] = {}

    def _number(self, kind: str, original: Any) -> int:
        known = self._known.setdefault(kind, {})
        return known.setdefault(str(original), len(known) + 1)

    def _pid(self, pid: Any) -> int:
        return FIRST_PID + self._number("pid", pid)

    def _process(self, name: str) -> str:
        return name if not name or _PROCESS.match(name) else f"process-{self._number('process', name)}"

    def _unit(self, name: str) -> str:
        if not name or _UNIT.match(name):
            return name
        kind = "scope" if name.endswith(".scope") else "service"
        return f"unit-{self._number('unit', name)}.{kind}"

    def _part(self, part: str, pod: Mapping[str, Any]) -> str:
        return f"{part}-{self._number(part, pod[part])}" if pod.get(part) else ""

    def _serial(self, value: Any) -> Any:
        if value in (None, "", 0) or PLACEHOLDERS[SERIAL].match(str(value)):
            return value
        return f"{self._number('serial', value):013d}"

    def _id(self, pattern: re.Pattern[str], found: re.Match[str]) -> str:
        text = found[0]
        if PLACEHOLDERS[pattern].match(text):
            return text
        if pattern is UUID:
            return f"00000000-0000-4000-8000-{self._number('uuid', text.lower()):012d}"
        return f"{self._number('hex', text.lower()):0{len(text)}d}" if pattern is LONG_HEX else str(self._serial(text))

    def _address(self, kind: str, found: re.Match[str]) -> str:
        return f"{kind}-{self._number(kind, found[0])}"

    def text(self, text: str) -> str:
        """Return a text with everything in it replaced."""
        if self._names:
            text = self._names.sub("node-1", text)
        text = _PID_IN_TEXT.sub(lambda found: f"{found[1]}{self._pid(found[2])}", text)
        text = _NAME_IN_TEXT.sub(lambda found: found[1] + self._process(found[2]), text)
        text = PATH.sub("/redacted", text)
        for kind, pattern in ADDRESSES.items():
            text = pattern.sub(partial(self._address, kind), text)
        for pattern in PLACEHOLDERS:
            text = pattern.sub(partial(self._id, pattern), text)
        return text

    def data(self, value: Any) -> Any:
        """Return plain data with everything in it replaced; keys stay, since they are ours."""
        if isinstance(value, Mapping):
            return {key: self._entry(key, item, value) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _entry(self, key: str, item: Any, beside: Mapping[str, Any]) -> Any:
        if key == "pid":
            return self._pid(item)
        if key in ("name", "unit") and "pid" in beside:
            return self._process(item) if key == "name" else self._unit(item)
        if key == "pod" and isinstance(item, Mapping):
            return {**self.data(item), **{part: self._part(part, item) for part in ("namespace", "name")}}
        if key in _SERIAL_KEYS:
            # A text, or a reading that has it as its value.
            if isinstance(item, Mapping):
                return {**self.data(item), "value": self._serial(item["value"])}
            return self._serial(item)
        if key == "cmdline":
            return self.text(" ".join(word if _CMDLINE.match(word) else "redacted" for word in item.split()))
        return self.data(item)


def survivors(data: Any, names: Iterable[str] = ()) -> list[str]:
    """Return what in the texts of redacted data could still tell whose machine it is; empty when nothing does.

    Args:
        data: Plain data.
        names: Names of the machine.
    """
    wanted, found = _word_of(names), []
    for text in sorted(set(_texts(data))):
        for pattern, harmless in PLACEHOLDERS.items():
            found += [match[0] for match in pattern.finditer(text) if not harmless.match(match[0])]
        for pattern in (*ADDRESSES.values(), PATH, *([wanted] if wanted else [])):
            found += [match[0] for match in pattern.finditer(text)]
    return found


def _word_of(names: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds each name as a word of its own, the longest first; None for no names."""
    useful = sorted({name for name in names if len(name) > 1 and name not in ("localhost", "node-1")}, key=len)
    words = "|".join(re.escape(name) for name in reversed(useful))
    return re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE) if words else None


def _texts(data: Any) -> Iterable[str]:
    if isinstance(data, Mapping):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, (list, tuple)):
        for item in data:
            yield from _texts(item)
    elif isinstance(data, str):
        yield data
