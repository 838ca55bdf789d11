"""Samples as rows: whatever the order in which they come, each is used once, and none is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from whorl.collectors.backends import Readings, Status
from whorl.collectors.dcgm.reading import Samples
from whorl.collectors.dcgm.rows import SETTLED_US, Assembler
from whorl.store.metrics import METRICS, ROW
from whorl.tests.sizes import count

BEGAN_US = 1_700_000_000_000_000
EVERY_US = 100_000
ENERGY, POWER, CLOCK, HEAT, SENSOR = (
    ROW[name] for name in ("energy_mj", "power_mw", "sm_clock_mhz", "temperature_c", "power_instant_mw")
)
FAST = (ENERGY, POWER, CLOCK, HEAT)
LIMIT, ACTIVE = ROW["power_limit_mw"], ROW["sm_active_ppm"]
One = tuple[int, int, int, int, Status | int]  # device, row, ts, value, status


def samples(those: Sequence[One]) -> Samples:
    table = np.array(those, np.int64).reshape(-1, 5).T
    return Samples(table[0].astype(np.intp), table[1].astype(np.intp), table[2], table[3], table[4].astype(np.uint8))


def assembler(devices: int = 1, *, rows: tuple[int, ...] = FAST, every_us: int = EVERY_US) -> Assembler:
    made = Assembler()
    for _ in range(devices):
        expected = np.zeros(len(METRICS), bool)
        expected[list(rows)] = True
        made.meet(every_us, expected, 25)
    return made


def cycles(number: int, device: int = 0, *, jitter_us: int = 0, offset_us: int = 700, seed: int = 1) -> list[One]:
    """Samples of an engine that asks for the fields of FAST one after the other; a value says which cycle it is of."""
    pick = random.Random(seed + device)
    return [
        (device, row, BEGAN_US + k * EVERY_US + at * offset_us + pick.randint(0, jitter_us), 1000 + k, Status.OK)
        for k in range(number)
        for at, row in enumerate(FAST)
    ]


def values(parts: list[Readings], row: int, device: int = 0) -> list[int | None]:
    return [
        int(part.values[row, at]) if part.status[row, at] == Status.OK else None
        for part in parts
        for at in np.flatnonzero(part.device == device)
    ]


def stamps(parts: list[Readings], device: int = 0) -> list[int]:
    return [int(ts) // 1000 for part in parts for ts in part.ts[part.device == device]]


def test_the_samples_of_a_cycle_are_one_row_with_the_stamp_of_the_energy_counter() -> None:
    made = assembler(2)
    parts = [made.rows(samples(cycles(5) + cycles(5, device=1)), BEGAN_US + 5 * EVERY_US)]
    for device in (0, 1):
        assert stamps(parts, device) == [BEGAN_US + k * EVERY_US for k in range(5)]
        for row in FAST:
            assert values(parts, row, device) == [1000, 1001, 1002, 1003, 1004]
        assert values(parts, ROW["power_age_us"], device) == [-700] * 5
        assert values(parts, ROW["power_window_ms"], device) == [25] * 5
        assert set(values(parts, LIMIT, device)) == {None}


@pytest.mark.parametrize("seed", range(count(40, short=6)))
def test_samples_that_come_late_twice_and_cut_anywhere_give_the_same_rows(seed: int) -> None:
    pick = random.Random(seed)
    number = 40
    every = [
        one for device in (0, 1) for one in cycles(number, device, jitter_us=9_000, offset_us=pick.randint(0, 12_000))
    ]
    # Each is seen up to 0.3 s after its stamp; those of one field in the order of their stamps.
    seen: dict[tuple[int, int], int] = {}
    visible: list[tuple[int, One]] = []
    for one in sorted(every, key=lambda sample: sample[2]):
        key = one[:2]
        seen[key] = max(seen.get(key, 0), one[2] + pick.randint(0, 300_000))
        visible.append((seen[key], one))
    made, parts, now, overlap = assembler(2), [], BEGAN_US, 400_000
    while now < BEGAN_US + number * EVERY_US + 2 * SETTLED_US:
        before, now = now, now + pick.randint(1000, 1_500_000)
        parts.append(made.rows(samples([one for at, one in visible if before - overlap < at <= now]), now))
    for device in (0, 1):
        for row in FAST:
            assert values(parts, row, device) == list(range(1000, 1000 + number))
        assert stamps(parts, device) == [one[2] for one in every if one[:2] == (device, ENERGY)]
    assert made.late == 0


@pytest.mark.parametrize("seed", range(count(40, short=6)))
def test_an_engine_that_is_held_up_and_hurries_loses_no_sample(seed: int) -> None:
    pick = random.Random(1000 + seed)
    began, every = BEGAN_US, []
    for k in range(60):
        began += pick.choice(
            (EVERY_US, EVERY_US, EVERY_US, pick.randint(10_000, 60_000), pick.randint(120_000, 400_000))
        )
        at = began
        for row in FAST:
            every.append((0, row, at, 1000 + k, Status.OK))
            at += pick.choice((700, 700, 700, 700, pick.randint(0, 60_000)))
        began = max(began, at)
    seen: dict[int, int] = {}
    visible: list[tuple[int, One]] = []
    for one in every:
        seen[one[1]] = max(seen.get(one[1], 0), one[2] + pick.randint(0, 30_000))
        visible.append((seen[one[1]], one))
    made, parts, now = assembler(), [], BEGAN_US
    while now < began + 2 * SETTLED_US:
        before, now = now, now + pick.randint(1000, 1_500_000)
        parts.append(made.rows(samples([one for at, one in visible if before - 200_000 < at <= now]), now))
    for row in FAST:
        assert sorted(value for value in values(parts, row) if value is not None) == list(range(1000, 1060))
    assert made.late == 0


def test_a_row_waits_for_its_samples_and_not_for_ever() -> None:
    made = assembler()
    whole = cycles(3)
    last = whole.pop()  # a temperature that never comes
    parts = [made.rows(samples(whole), BEGAN_US + 3 * EVERY_US)]
    assert values(parts, POWER) == [1000, 1001]
    parts.append(made.rows(Samples.none(), last[2] + SETTLED_US))
    assert values(parts, POWER) == [1000, 1001, 1002]
    assert values(parts, HEAT) == [1000, 1001, None]
    # It is not waited for again until it comes back.
    more = [one for one in cycles(7) if one[2] > last[2] and one[1] != HEAT]
    parts.append(made.rows(samples(more), BEGAN_US + 7 * EVERY_US))
    assert values(parts, POWER) == list(range(1000, 1007))


def test_a_field_that_goes_on_without_a_sample_holds_no_row_up() -> None:
    made = assembler()
    without = [one for one in cycles(6) if (one[1], one[3]) != (CLOCK, 1002)]
    parts = [made.rows(samples(without), BEGAN_US + 6 * EVERY_US)]
    assert values(parts, CLOCK) == [1000, 1001, None, 1003, 1004, 1005]
    assert values(parts, POWER) == list(range(1000, 1006))


def test_a_cycle_without_a_new_energy_value_is_a_row_at_the_stamp_of_its_power() -> None:
    made = assembler()
    without = [one for one in cycles(6) if (one[1], one[3]) not in ((ENERGY, 1002), (ENERGY, 1003))]
    parts = [made.rows(samples(without), BEGAN_US + 6 * EVERY_US)]
    assert values(parts, ENERGY) == [1000, 1001, None, None, 1004, 1005]
    assert values(parts, POWER) == list(range(1000, 1006))
    assert stamps(parts)[2:4] == [BEGAN_US + 2 * EVERY_US + 700, BEGAN_US + 3 * EVERY_US + 700]


def test_fields_that_another_client_has_sampled_faster_give_no_more_rows() -> None:
    made, parts = assembler(), []
    fast: list[One] = [
        (0, row, BEGAN_US + k * EVERY_US // 10 + row, k, Status.OK) for k in range(300) for row in (ENERGY, POWER)
    ]
    slow = [one for one in cycles(30) if one[1] in (CLOCK, HEAT)]
    for second in range(4):
        now = BEGAN_US + second * 1_000_000
        new = [one for one in fast + slow if now - 1_000_000 <= one[2] < now]
        parts.append(made.rows(samples(new), now))
    assert 24 <= len(stamps(parts)) <= 31
    assert np.diff(stamps(parts)).min() >= 0.9 * EVERY_US
    assert values(parts, CLOCK)[1:25].count(None) == 0
    assert made.late == 0


def test_means_that_come_faster_than_rows_are_averaged() -> None:
    made = assembler()
    shares: list[One] = [
        (0, ACTIVE, BEGAN_US + k * 25_000, share, Status.OK) for k, share in enumerate((0, 0, 600, 600, 800, 600, 0))
    ]
    parts = [made.rows(samples(cycles(2) + shares), BEGAN_US + 3 * EVERY_US)]
    assert values(parts, ACTIVE) == [200, 500]  # of three and of four


def test_the_reading_of_a_sensor_stands_until_there_is_a_new_one() -> None:
    made = assembler(rows=(*FAST, SENSOR))
    sensor: list[One] = [(0, SENSOR, BEGAN_US + 30_000 + k * 2 * EVERY_US, 500 + k, Status.OK) for k in range(3)]
    parts = [made.rows(samples(cycles(6) + sensor), BEGAN_US + 5 * EVERY_US + SETTLED_US)]
    assert values(parts, SENSOR) == [500, 500, 501, 501, 502, 502]
    assert values(parts, ROW["power_age_us"]) == [-30_000, 70_000] * 3


def test_a_slow_metric_lies_in_the_row_nearest_to_it() -> None:
    made = assembler()
    limit: list[One] = [(0, LIMIT, BEGAN_US + 2 * EVERY_US + 30_000, 700, Status.OK)]
    parts = [made.rows(samples(cycles(6) + limit), BEGAN_US + 6 * EVERY_US)]
    assert values(parts, LIMIT) == [None, None, 700, None, None, None]


def test_blanks_of_a_gpu_are_one_row_however_many_come() -> None:
    made, parts = assembler(), []
    parts.append(made.rows(samples(cycles(3)), BEGAN_US + 3 * EVERY_US))
    blanks = [(0, row, BEGAN_US + 3 * EVERY_US + k * 12_000, 0, Status.FAILED) for k in range(200) for row in FAST]
    for at in range(4):
        parts.append(made.rows(samples(blanks[at * 200 : at * 200 + 200]), BEGAN_US + (4 + 6 * at) * EVERY_US))
        assert made.silent == ([0] if at == 0 else [])
    assert values(parts, POWER) == [1000, 1001, 1002, None]
    back = [(0, row, BEGAN_US + 60 * EVERY_US + row, 7, Status.OK) for row in FAST]
    parts.append(made.rows(samples(back), BEGAN_US + 61 * EVERY_US))
    assert values(parts, POWER) == [1000, 1001, 1002, None, 7]
    assert stamps(parts) == sorted(set(stamps(parts)))


def test_an_engine_whose_clock_was_set_back_goes_on() -> None:
    made = assembler()
    parts = [made.rows(samples(cycles(4)), BEGAN_US + 4 * EVERY_US)]
    made.forget_times()
    earlier = [(device, row, ts - 3_600_000_000, value, status) for device, row, ts, value, status in cycles(4)]
    parts.append(made.rows(samples(earlier), BEGAN_US - 3_600_000_000 + 4 * EVERY_US))
    assert values(parts, POWER) == [1000, 1001, 1002, 1003] * 2
