# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Look-ups in the compatibility data (files/compatibility.yml): generations, cards, branches, CUDA.

Everything here is pure: the data comes in as the parsed file, nothing is read from the node or the controller.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterable, Mapping, Sequence

AUTO = "auto"
OPEN = "open"
PROPRIETARY = "proprietary"

#: How a generation was found: by the card's own id, by the range of the id, by the pre-Turing rule, or not at all.
BY_CARD = "card"
BY_RANGE = "range"
BY_RULE = "rule"
UNKNOWN = "unknown"

#: 535.261.03, 580.65.06, and the two-part numbers that some branches start with (570.26).
_DRIVER = re.compile(r"^\d{3}\.\d{2,3}(?:\.\d{2,3})?$")
_RELEASE = re.compile(r"^\d+(?:\.\d+){1,2}$")

Data = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Match:
    """What the data says about one PCI device.

    Args:
        device: Device id in capitals, e.g. ``2330``.
        how: ``card``, ``range``, ``rule`` or ``unknown``.
        generation: Name of the generation, e.g. ``hopper``; ``pre_turing`` by rule; empty when unknown.
        title: The generation for people.
        card: Name of the card where the id is in the table.
        memory_mib: Nominal memory of one such GPU, None where not known.
        flavours: Kernel modules that can drive it; empty when unknown.
        recommended: The flavour to take; empty when unknown.
        first_branch: Oldest driver branch, None without a bound.
        last_branch: Newest driver branch, None without a bound.
        last_cuda_major: Newest CUDA major, None without a bound.
    """

    device: str
    how: str
    generation: str = ""
    title: str = ""
    card: str = ""
    memory_mib: int | None = None
    flavours: tuple[str, ...] = ()
    recommended: str = ""
    first_branch: int | None = None
    last_branch: int | None = None
    last_cuda_major: int | None = None

    @property
    def label(self) -> str:
        """Return the name to use in messages, with the id that an operator can look up."""
        name = self.card or self.title or "unknown GPU"
        return f"{name} (10de:{self.device.lower()})"


@dataclasses.dataclass(frozen=True)
class FlavourChoice:
    """The module flavour for a node, or why there is none.

    Args:
        flavour: ``open``, ``proprietary``, or empty when ``problems`` is not.
        problems: Reasons, each with the ids it is about and the way out.
    """

    flavour: str
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class CudaVerdict:
    """Whether a CUDA release runs on a driver.

    Args:
        ok: Whether it does.
        minimum: The oldest driver for that CUDA release; empty when the data does not know it.
        native: Whether the driver knows the release natively; else it runs by minor-version compatibility.
        ways_out: What an operator can do; empty when ``ok``.
    """

    ok: bool
    minimum: str = ""
    native: bool = True
    ways_out: str = ""


def version_tuple(text: str) -> tuple[int, ...]:
    """Return the numbers of a dotted version; anything that is not a number ends it."""
    numbers: list[int] = []
    for part in str(text).split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def exact_driver(text: str) -> bool:
    """Whether ``text`` names one driver release exactly: no branch, no glob, no package revision."""
    return bool(_DRIVER.match(str(text)))


def branch_of(driver: str) -> int | None:
    """Return the branch of a driver version (535 for 535.261.03)."""
    numbers = version_tuple(driver)
    return numbers[0] if numbers else None


def branch_row(data: Data, driver: str) -> dict[str, Any] | None:
    """Return the row of the branch a driver version belongs to."""
    branch = branch_of(driver)
    for row in data["branches"]:
        if row["branch"] == branch:
            return dict(row)
    return None


def branch_ended(row: Mapping[str, Any], today: str) -> bool:
    """Whether NVIDIA no longer maintains a branch: recorded so, or its last month is over.

    Args:
        row: A row of ``branches``.
        today: Date of the node, ``YYYY-MM-DD``; an empty one leaves it to the record.
    """
    return bool(row["ended"]) or bool(row["eol"] and today and today[:7] > row["eol"])


def living_branches(data: Data, today: str) -> list[int]:
    """Return the maintained branches with long support (LTSB and PB), the ones worth moving to."""
    return [row["branch"] for row in data["branches"] if row["type"] in ("LTSB", "PB") and not branch_ended(row, today)]


def is_gpu(data: Data, vendor: str, class_code: str) -> bool:
    """Whether a PCI function is an NVIDIA GPU; audio, USB-C and NVSwitch functions are not, whatever their id."""
    pci = data["pci"]
    return vendor.lower() == pci["vendor"] and class_code.lower().replace("0x", "").startswith(pci["gpu_class"])


def match(data: Data, device: str, subsystem: str = "") -> Match:
    """Return what the data knows about a GPU function.

    Args:
        data: The compatibility data.
        device: PCI device id, four hexadecimal digits in any case.
        subsystem: Subsystem device id, which tells apart cards that share a device id.
    """
    device = device.upper()
    card = _card(data, device, subsystem.upper())
    row = _by_name(data, card["generation"]) if card else _by_range(data, device)
    if row is not None:
        return Match(
            device=device,
            how=BY_CARD if card else BY_RANGE,
            generation=row["name"],
            title=row["title"],
            card=card["name"] if card else "",
            memory_mib=card["memory_mib"] if card else None,
            flavours=tuple(row["flavours"]),
            recommended=row["recommended"],
            first_branch=row["first_branch"],
            last_branch=row["last_branch"],
            last_cuda_major=row["last_cuda_major"],
        )
    if int(device, 16) < int(data["pre_turing_below"], 16):
        return Match(
            device=device,
            how=BY_RULE,
            generation="pre_turing",
            title="GPU older than Turing",
            flavours=(PROPRIETARY,),
            recommended=PROPRIETARY,
            last_branch=data["pre_turing_last_branch"],
            last_cuda_major=data["pre_turing_last_cuda_major"],
        )
    return Match(device=device, how=UNKNOWN)


def matches(data: Data, devices: Iterable[Mapping[str, Any]]) -> list[Match]:
    """Return a match per GPU among plain PCI devices (keys vendor, device, class, subsystem; as _pci writes them)."""
    found = []
    for device in devices:
        if is_gpu(data, str(device.get("vendor", "10de")), str(device.get("class", ""))):
            found.append(match(data, str(device["device"]), str(device.get("subsystem") or "").rsplit(":", 1)[-1]))
    return found


def hidden_nvswitches(data: Data, devices: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the cards among plain PCI devices whose boards have NVSwitches that do not show on PCI, each once."""
    cards = {row["name"] for row in data["cards"] if row.get("hidden_nvswitch")}
    return [one.label for one in _kinds(matches(data, devices)) if one.card in cards]


def branch_problems(found: Sequence[Match], driver: str) -> list[str]:
    """Return why a driver version cannot drive some of the GPUs; one reason per kind of GPU."""
    branch = branch_of(driver) or 0
    problems = []
    for one in _kinds(found):
        if one.last_branch is not None and branch > one.last_branch:
            problems.append(
                f"{one.label} is driven up to branch {one.last_branch}, not by {driver}: "
                f"choose a version of branch {one.last_branch}"
            )
        if one.first_branch is not None and branch < one.first_branch:
            problems.append(
                f"{one.label} needs branch {one.first_branch} or newer, not {driver}: choose a newer version"
            )
    return problems


def choose_flavour(data: Data, found: Sequence[Match], driver: str, wanted: str) -> FlavourChoice:
    """Return the module flavour for all GPUs of a node together.

    Only the node's own PCI ids and the branch decide; nothing of the controller enters. Without a GPU (a node that is
    prepared before its cards arrive) ``auto`` takes the open modules where the branch has them.

    Args:
        data: The compatibility data.
        found: The GPUs of the node.
        driver: Wanted driver version.
        wanted: ``auto``, ``open`` or ``proprietary``.
    """
    row = branch_row(data, driver)
    offered = tuple(row["flavours"]) if row else (OPEN, PROPRIETARY)
    known = [one for one in _kinds(found) if one.how != UNKNOWN]
    unknown = [one for one in _kinds(found) if one.how == UNKNOWN]
    if wanted != AUTO:
        return _check_flavour(known, offered, driver, wanted)
    if unknown:
        return _no_flavour(
            f"{_labels(unknown)} is in none of the tables, so the flavour cannot be derived: "
            "set nvidia_driver_flavour to open or proprietary"
        )
    possible = [name for name in (OPEN, PROPRIETARY) if all(name in one.flavours for one in known)]
    if not possible:
        needs = "; ".join(
            f"{one.label} takes {one.flavours[0]} modules only" for one in known if len(one.flavours) == 1
        )
        return _no_flavour(f"no flavour drives all GPUs of this node: {needs}")
    usable = [name for name in possible if name in offered]
    if not usable:
        return _no_flavour(
            f"{_labels(known)} needs {possible[0]} modules, which branch {branch_of(driver)} does not have: "
            "choose another version"
        )
    preferred = OPEN if all(one.recommended == OPEN for one in known) else PROPRIETARY
    return FlavourChoice(preferred if preferred in usable else usable[0])


def minimum_driver(data: Data, cuda: str) -> str:
    """Return the oldest driver for a CUDA release; empty when the data does not know its major."""
    wanted = version_tuple(cuda)
    minimum = ""
    for row in data["cuda_minimum_drivers"]:
        if wanted and row["major"] == wanted[0] and version_tuple(row["from"]) <= wanted[:2]:
            minimum = row["driver"]
    return minimum


def valid_release(text: str) -> bool:
    """Whether ``text`` looks like a CUDA release: 12.4 or 12.4.1."""
    return bool(_RELEASE.match(str(text)))


def check_cuda(data: Data, cuda: str, driver: str) -> CudaVerdict:
    """Return whether a CUDA release runs on a driver. There is a minimum per major and never an upper bound.

    Args:
        data: The compatibility data.
        cuda: Wanted release, e.g. ``12.4`` or ``13.0.1``.
        driver: Driver version.
    """
    minimum = minimum_driver(data, cuda)
    if not minimum:
        majors = sorted({row["major"] for row in data["cuda_minimum_drivers"]})
        return CudaVerdict(
            False,
            ways_out="CUDA {} is not in the compatibility data, which knows the majors {}: choose one of those".format(
                cuda, ", ".join(str(major) for major in majors)
            ),
        )
    row = branch_row(data, driver)
    native = bool(row and row["max_cuda"] and version_tuple(cuda)[:2] <= version_tuple(row["max_cuda"]))
    if version_tuple(driver) >= version_tuple(minimum):
        return CudaVerdict(True, minimum, native)
    fitting = newest_cuda(data, driver)
    ways = [f"set nvidia_driver_version to {minimum} or newer"]
    if fitting:
        ways.append(f"take CUDA {fitting}, which this driver runs")
    ways.append(
        "or, on data-centre cards, use NVIDIA's forward compatibility package cuda-compat-{}".format(
            "-".join(str(part) for part in version_tuple(cuda)[:2])
        )
    )
    return CudaVerdict(False, minimum, native, "; ".join(ways))


def newest_cuda(data: Data, driver: str) -> str:
    """Return what a driver runs at most, as ``12.x``; empty when it runs none of the majors in the data."""
    best = ""
    for row in data["cuda_minimum_drivers"]:
        if version_tuple(driver) >= version_tuple(row["driver"]):
            best = "{}.x".format(row["major"])
    return best


def supported_system(data: Data, system: str, version: str) -> dict[str, Any] | None:
    """Return the row of an operating system by the ID and VERSION_ID of its os-release; point releases are ignored."""
    for row in data["operating_systems"]:
        if row["id"] == system and (version == row["version"] or version.startswith(row["version"] + ".")):
            return dict(row)
    return None


def cuda_problems(found: Sequence[Match], cuda: str) -> list[str]:
    """Return which GPUs a CUDA release no longer supports, whatever the driver."""
    major = (version_tuple(cuda) or (0,))[0]
    return [
        f"{one.label} is supported up to CUDA {one.last_cuda_major}: take a {one.last_cuda_major}.x release"
        for one in _kinds(found)
        if one.last_cuda_major is not None and major > one.last_cuda_major
    ]


def _no_flavour(problem: str) -> FlavourChoice:
    return FlavourChoice("", (problem,))


def _check_flavour(known: Sequence[Match], offered: Sequence[str], driver: str, wanted: str) -> FlavourChoice:
    problems = [
        f"{one.label} cannot be driven by the {wanted} modules: set nvidia_driver_flavour to auto or {one.recommended}"
        for one in known
        if wanted not in one.flavours
    ]
    if wanted not in offered:
        problems.append(
            f"branch {branch_of(driver)} has no {wanted} modules: set nvidia_driver_flavour to auto or {offered[0]}"
        )
    return FlavourChoice("" if problems else wanted, tuple(problems))


def _card(data: Data, device: str, subsystem: str) -> Mapping[str, Any] | None:
    for row in data["cards"]:
        if row["device"] == device and row.get("subsystem", subsystem) == subsystem:
            card: Mapping[str, Any] = row
            return card
    return None


def _by_name(data: Data, name: str) -> Mapping[str, Any] | None:
    for row in data["generations"]:
        if row["name"] == name:
            generation: Mapping[str, Any] = row
            return generation
    return None


def _by_range(data: Data, device: str) -> Mapping[str, Any] | None:
    number = int(device, 16)
    for row in data["generations"]:
        for span in row["ranges"]:
            if int(span["first"], 16) <= number <= int(span["last"], 16):
                generation: Mapping[str, Any] = row
                return generation
    return None


def _kinds(found: Sequence[Match]) -> list[Match]:
    """Return each kind of GPU once, in order."""
    return list(dict.fromkeys(found))


def _labels(found: Sequence[Match]) -> str:
    return ", ".join(one.label for one in found)
