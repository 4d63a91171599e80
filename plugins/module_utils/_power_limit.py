# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""Power limits of GPUs: what each card shall have, what it has, and the program that sets it at boot.

This file is that program as well: the role tuning puts it on the node as it is, so it imports nothing of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Mapping, Sequence

VARIABLE = "tuning_gpu_power_limit_w"
#: The key that stands for every card without an entry of its own.
ALL = "*"
_ALLOWED = (
    "allowed are a whole number of watts above 0 for every card, or a dictionary of these by UUID or product name as "
    "nvidia-smi -L shows them"
)
FIELDS = (
    "uuid",
    "name",
    "persistence_mode",
    "power.limit",
    "enforced.power.limit",
    "power.min_limit",
    "power.max_limit",
)
QUERY = ("nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits")
#: nvidia-smi shows hundredths of a watt.
_SAME = 0.5
_DRIVER = "/sys/bus/pci/drivers/nvidia"


def read_wishes(value: Any) -> dict[str, int]:
    """Return the limits by UUID or product name, ``*`` for every card; empty where all are left alone.

    Raises:
        ValueError: with the variable and what is allowed.
    """
    if value is None or value == "":
        return {}
    entries = value if isinstance(value, Mapping) else {ALL: value}
    found = {}
    for key, watt in entries.items():
        text = str(watt).strip()
        if isinstance(watt, bool) or not text.isdigit() or int(text) == 0 or not str(key).strip() or "=" in str(key):
            shown = f"{key}: {watt!r}" if isinstance(value, Mapping) else repr(watt)
            raise ValueError(f"{VARIABLE}: {shown} is no power limit; {_ALLOWED}")
        found[str(key).strip()] = int(text)
    return found


def wishes_text(wishes: Mapping[str, int]) -> str:
    """Return the wishes as the file that the program reads."""
    return "".join(f"{key} = {wishes[key]}\n" for key in sorted(wishes))


def parse_wishes(text: str) -> dict[str, int]:
    """Read back what ``wishes_text`` wrote; other lines count as comments."""
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key.strip(): int(watt) for key, _unused, watt in pairs}


def parse_listing(text: str) -> list[dict[str, Any]]:
    """Return the cards that nvidia-smi lists; a value that a card does not have is None."""
    found = []
    for line in text.splitlines():
        values = [part.strip() for part in line.split(", ")]
        if len(values) != len(FIELDS):
            continue
        card: dict[str, Any] = dict(zip(("uuid", "name", "persistence"), values))
        for name, value in zip(("limit", "enforced", "lowest", "highest"), values[3:]):
            try:
                card[name] = float(value)
            except ValueError:
                card[name] = None
        found.append(card)
    return found


def wish(card: Mapping[str, Any], wishes: Mapping[str, int]) -> int | None:
    """Return the limit that is wanted of a card: by its UUID, else by its product name, else that of every card."""
    keys = {key.casefold(): watt for key, watt in wishes.items()}
    for key in (str(card["uuid"]), str(card["name"]), ALL):
        if key.casefold() in keys:
            return keys[key.casefold()]
    return None


def target(card: Mapping[str, Any], wishes: Mapping[str, int]) -> float | None:
    """Return the limit that a card shall have, kept within its range; None where it has none or is left alone."""
    watt = wish(card, wishes)
    if watt is None or card["limit"] is None or card["lowest"] is None or card["highest"] is None:
        return None
    return float(min(max(watt, card["lowest"]), card["highest"]))


def same(one: float | None, other: float | None) -> bool:
    """Whether two limits are the same, rounding aside."""
    return one is not None and other is not None and abs(one - other) < _SAME


def pending(cards: Sequence[Mapping[str, Any]], wishes: Mapping[str, int]) -> list[str]:
    """Return the UUIDs of the cards whose limit is not the one that they shall have."""
    return [
        str(card["uuid"])
        for card in cards
        if target(card, wishes) is not None and not same(card["limit"], target(card, wishes))
    ]


def set_limits(path: str) -> int:
    """Set what differs and look again; the exit status of the program."""
    with open(path, encoding="utf-8") as handle:
        wishes = parse_wishes(handle.read())
    cards = _list_cards()
    for card in cards:
        watt = target(card, wishes)
        if watt is None or same(card["limit"], watt):
            continue
        if watt != wish(card, wishes):
            _say("{}: {} W is out of its range, {:g} W is taken".format(card["uuid"], wish(card, wishes), watt))
        done = _run(["nvidia-smi", "-i", str(card["uuid"]), "-pl", f"{watt:g}"])
        _say((done.stdout + done.stderr).strip())
    cards = _list_cards()
    left = pending(cards, wishes)
    if left:
        _say("not at its power limit: {}".format(", ".join(left)))
    # Right after the module was loaded a card may not be listed yet; systemd tries again.
    missing = len([name for name in os.listdir(_DRIVER) if ":" in name]) - len(cards) if os.path.isdir(_DRIVER) else 0
    if missing > 0:
        _say(f"{missing} card(s) of the driver are not listed by nvidia-smi")
    return 1 if left or missing > 0 or not cards else 0


def _say(text: str) -> None:
    """Write a line for the unit's journal."""
    sys.stdout.write(text + "\n")


def _list_cards() -> list[dict[str, Any]]:
    done = _run(QUERY)
    if done.returncode:
        _say((done.stdout + done.stderr).strip())
    return parse_listing(done.stdout) if done.returncode == 0 else []


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # systemd bounds the whole run by TimeoutStartSec.
    return subprocess.run(list(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(set_limits(sys.argv[1]))
