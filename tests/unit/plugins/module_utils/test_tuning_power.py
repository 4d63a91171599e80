"""Power limits of GPUs: wishes, what each card gets, the unit, the program and the verdict (case TUN-05)."""

from __future__ import annotations

import re
import subprocess

import pytest
from ansible_collections.aiinfra.gpu_node.plugins.module_utils import _power_limit, _tuning_power
from ansible_collections.aiinfra.gpu_node.plugins.module_utils._run import CommandResult

H100 = "NVIDIA H100 80GB HBM3"
PROGRAM = "print('the program')\n"


def card(number, limit=700.0, **more):
    return {
        "uuid": f"GPU-{number}",
        "name": H100,
        "persistence": "Enabled",
        "limit": limit,
        "enforced": limit,
        "lowest": 200.0,
        "highest": 700.0,
        **more,
    }


def facts(*cards, loaded=True, error="", wishes=None):
    files = _tuning_power.texts(wishes if wishes is not None else {"*": 450}, PROGRAM)
    return {"power": {"loaded": loaded, "cards": list(cards) if loaded else None, "error": error}, "files": files}


def judged(seen, wishes=None):
    found = _tuning_power.findings(seen, wishes if wishes is not None else {"*": 450}, PROGRAM)
    return {item.target: item for item in found}


@pytest.mark.parametrize(
    ("value", "wishes"),
    [
        ({}, {}),
        (None, {}),
        ("", {}),
        (450, {"*": 450}),
        ("450", {"*": 450}),
        ({H100: 600, "GPU-1": "500"}, {H100: 600, "GPU-1": 500}),
    ],
)
def test_wishes(value, wishes):
    assert _power_limit.read_wishes(value) == wishes
    assert _power_limit.parse_wishes("# a = comment\n" + _power_limit.wishes_text(wishes)) == wishes


@pytest.mark.parametrize(
    "value", [0, -5, "450W", 4.5, True, [450], {H100: None}, {H100: "much"}, {"": 450}, {"a=b": 450}]
)
def test_bad_wishes_name_the_variable_and_what_is_allowed(value):
    with pytest.raises(ValueError, match=r"tuning_gpu_power_limit_w: .* is no power limit; allowed are a whole number"):
        _power_limit.read_wishes(value)


def test_a_cards_own_entry_goes_before_its_model_and_that_before_all():
    wishes = {"*": 300, H100.lower(): 400, "gpu-1": 500}
    assert [_power_limit.wish(card(number), wishes) for number in (1, 2)] == [500, 400]
    assert _power_limit.wish(card(3, name="Tesla T4"), wishes) == 300
    assert _power_limit.wish(card(3, name="Tesla T4"), {H100: 400}) is None


@pytest.mark.parametrize(("wanted", "gets"), [(450, 450.0), (900, 700.0), (50, 200.0)])
def test_the_value_stays_within_the_cards_range(wanted, gets):
    assert _power_limit.target(card(0), {"*": wanted}) == gets


def test_a_card_without_limits_is_left_alone():
    listing = "GPU-0, Tesla T4, Enabled, [N/A], [N/A], [N/A], [N/A]\nGPU-1, NVIDIA, L4, odd\n"
    (only,) = _power_limit.parse_listing(listing)
    assert only["limit"] is None and _power_limit.target(only, {"*": 70}) is None
    assert _power_limit.pending([only], {"*": 70}) == []


def test_tun_05_three_of_four_not_at_the_value_fail():
    seen = facts(card(0), card(1), card(2, 450.0), card(3, 400.0))
    found = judged(seen)
    assert [found[f"GPU-{number}"].status for number in range(4)] == ["fail", "fail", "ok", "fail"]
    assert found[_tuning_power.NAME].status == "ok"
    assert _tuning_power.pending(seen, {"*": 450}) == ["GPU-0", "GPU-1", "GPU-3"]


def test_the_second_run_has_nothing_to_do():
    seen = facts(card(0, 450.0), card(1, 450.0))
    assert _tuning_power.pending(seen, {"*": 450}) == []
    assert {item.status for item in judged(seen).values()} == {"ok"}


@pytest.mark.parametrize(
    ("seen", "target", "status", "word"),
    [
        (facts(card(0, 450.0, enforced=300.0)), "GPU-0", "warn", "holds the card at 300 W"),
        (facts(card(0, 450.0, enforced=700.0)), "GPU-0", "fail", "not in force"),
        (facts(card(0, 450.0, persistence="Disabled")), "GPU-0", "warn", "persistence is off"),
        (facts(card(0, None, lowest=None, highest=None)), "GPU-0", "skipped", "no power limit to set"),
        (facts(loaded=False), "node", "skipped", "not loaded"),
        (facts(), "node", "error", "lists no GPU"),
    ],
)
def test_verdicts(seen, target, status, word):
    found = judged(seen)[target]
    assert (found.status, word in found.hint) == (status, True), found


def test_out_of_range_is_a_warning_and_a_name_that_fits_no_card_too():
    wishes = {"*": 900, "Tesla T4": 70}
    found = judged(facts(card(0, 700.0), wishes=wishes), wishes)
    assert found["GPU-0"].status == "warn" and "200 to 700 W" in found["GPU-0"].hint
    assert found["Tesla T4"].status == "warn"


def test_nothing_wanted_nothing_written_nothing_judged():
    assert set(_tuning_power.texts({}, PROGRAM).values()) == {None}
    assert _tuning_power.findings(facts(card(0)), {}, "") == []


def test_a_changed_unit_is_seen():
    seen = facts(card(0, 450.0))
    seen["files"][_tuning_power.UNIT] = "[Service]\n"
    found = judged(seen)[_tuning_power.NAME]
    assert found.status == "fail" and _tuning_power.UNIT in found.hint


def test_tun_05_the_unit_comes_after_driver_and_persistence_and_with_each_start_of_the_daemon():
    files = _tuning_power.texts({"*": 450}, PROGRAM)
    after = re.search(r"^After=(.*)$", files[_tuning_power.UNIT], re.MULTILINE).group(1).split()
    assert {"nvidia-persistenced.service", "systemd-modules-load.service"} <= set(after)
    assert f"ExecStart={_tuning_power.PROGRAM} {_tuning_power.WISHES}\n" in files[_tuning_power.UNIT]
    for path in (_tuning_power.WITH_BOOT, _tuning_power.WITH_DAEMON):
        assert f"[Unit]\nWants={_tuning_power.NAME}\n" in files[path]
    assert (
        files[_tuning_power.PROGRAM].startswith("#!/usr/bin/python3\n# Managed by")
        and PROGRAM in files[_tuning_power.PROGRAM]
    )


def test_facts_ask_only_a_loaded_driver(tmp_path, fake_runner):
    runner = fake_runner({"nvidia-smi": CommandResult(0, f"GPU-0, {H100}, Enabled, 450.00, 450.00, 200.00, 700.00\n")})
    assert _tuning_power.read(runner, str(tmp_path))["cards"] is None
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM\n")
    assert _tuning_power.read(runner, str(tmp_path), ask=False)["cards"] is None
    assert _tuning_power.read(runner, str(tmp_path))["cards"] == [card(0, 450.0)]
    broken = fake_runner({"nvidia-smi": CommandResult(18, "Failed to initialize NVML\n")})
    assert _tuning_power.read(broken, str(tmp_path))["error"] == "Failed to initialize NVML"


class Cards:
    """A machine whose nvidia-smi sets limits, except on cards that do not listen."""

    def __init__(self, *cards, deaf=()):
        self.cards = {item["uuid"]: item for item in cards}
        self.deaf = deaf
        self.calls = []

    def __call__(self, argv):
        if tuple(argv) == _power_limit.QUERY:
            rows = [
                "{uuid}, {name}, {persistence}, {limit}, {enforced}, {lowest}, {highest}".format(**item)
                for item in self.cards.values()
            ]
            return subprocess.CompletedProcess(argv, 0, "\n".join(rows), "")
        self.calls.append(list(argv))
        if argv[2] not in self.deaf:
            self.cards[argv[2]]["limit"] = float(argv[4])
        return subprocess.CompletedProcess(argv, 0, "All done.", "")


@pytest.mark.parametrize(("deaf", "status"), [((), 0), (("GPU-1",), 1)])
def test_the_program_sets_what_differs_and_looks_again(tmp_path, monkeypatch, deaf, status):
    machine = Cards(card(0, 450.0), card(1), card(2, 300.0), deaf=deaf)
    monkeypatch.setattr(_power_limit, "_run", machine)
    monkeypatch.setattr(_power_limit, "_DRIVER", str(tmp_path / "none"))
    wishes = tmp_path / "wishes"
    wishes.write_text(_tuning_power.texts({"*": 450, "GPU-2": 900}, PROGRAM)[_tuning_power.WISHES])
    assert _power_limit.set_limits(str(wishes)) == status
    assert machine.calls == [["nvidia-smi", "-i", "GPU-1", "-pl", "450"], ["nvidia-smi", "-i", "GPU-2", "-pl", "700"]]


def test_the_program_fails_while_a_card_of_the_driver_is_not_listed_yet(tmp_path, monkeypatch):
    (tmp_path / "0000:17:00.0").mkdir()
    (tmp_path / "0000:2a:00.0").mkdir()
    monkeypatch.setattr(_power_limit, "_run", Cards(card(0, 450.0)))
    monkeypatch.setattr(_power_limit, "_DRIVER", str(tmp_path))
    wishes = tmp_path / "wishes"
    wishes.write_text("* = 450\n")
    assert _power_limit.set_limits(str(wishes)) == 1
