"""Lines of a store's telemetry: gaps, NULL, counters, masks, marks, pruned minutes and journals."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from whorl.analysis.telemetry.bands import LEVELS, SAMPLE, bands, sample
from whorl.analysis.telemetry.extent import extent, last_hour, meant, newest
from whorl.analysis.telemetry.lines import Line, lines
from whorl.analysis.telemetry.readings import Key
from whorl.errors import QueryError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import reason_bit

S = 1_000_000_000
BEGAN = 1_790_000_040 * S  # a whole minute
KEY = ("c", "GPU-a")


def _fill(store: Store, seconds: Sequence[float], gpu: str = "GPU-a", **columns: Any) -> None:
    n = len(seconds)
    rows = {"ts": [BEGAN + round(second * S) for second in seconds], "cluster": ["c"] * n, "gpu": [gpu] * n, **columns}
    store.append({"telemetry": arrow_rows("telemetry", rows)}, f"rows-{zlib.crc32(gpu.encode())}")


def _line(store: Store, metric: str, since_s: float = 0, until_s: float = 1000, **options: Any) -> Line:
    answer = lines(store, [KEY], [metric], BEGAN + round(since_s * S), BEGAN + round(until_s * S), **options)
    (line,) = answer.lines
    return line


def _points(line: Line) -> list[tuple[float, float | None]]:
    return [
        ((at - BEGAN) / S, None if np.isnan(value) else value)
        for at, value in zip(line.ts.tolist(), line.value.tolist(), strict=True)
    ]


def test_a_reading_of_two_metrics_counts_once(store: Store) -> None:
    _fill(store, [0, 1, 2], power_mw=[1, 2, 3], temperature_c=[40, None, 41])
    _fill(store, [0, 1], gpu="GPU-b", power_mw=[1, 2], temperature_c=[40, 41])
    answer = lines(store, [KEY, ("c", "GPU-b")], ["power_mw", "temperature_c"], BEGAN, BEGAN + 9 * S)
    assert (len(answer.lines), answer.readings) == (4, 5)


def test_a_null_is_a_gap_and_so_is_a_pause(store: Store) -> None:
    power = [100_000] * 40
    seconds = [float(number) for number in range(40)]
    missing: list[int | None] = [None if place == 10 else value for place, value in enumerate(power)]
    late = [second + 30 * (second >= 20) for second in seconds]
    _fill(store, late, power_mw=missing)
    points = _points(_line(store, "power_mw"))
    assert [round(at) for at, value in points if value is None] == [11, 50]
    assert len(points) == 41


def test_a_spike_of_one_reading_stays_at_every_width(store: Store) -> None:
    power = np.full(20_000, 300_000)
    power[12_345] = 700_000
    power[17_000] = 1_000
    _fill(store, [number / 10 for number in range(20_000)], power_mw=power)
    for points in (8, 50, 1000):
        points_drawn = _points(_line(store, "power_mw", until_s=2000, points=points))
        assert len(points_drawn) <= points
        assert {(1234.5, 700.0), (1700.0, 1.0)} <= set(points_drawn)


def test_a_counter_is_a_rate_and_no_spike_where_it_begins_anew(store: Store) -> None:
    counted = [*range(0, 200_000, 10_000), *range(5_000, 205_000, 10_000)]  # mJ, 10 J a second
    _fill(store, [float(number) for number in range(40)], energy_mj=counted)
    points = _points(_line(store, "energy_mj"))
    assert {value for _, value in points if value is not None} == {10.0}
    assert [round(at) for at, value in points if value is None] == [21]
    assert len(points) == 1 + 39 - 1


def test_the_reasons_of_a_mask_are_spans(store: Store) -> None:
    cap, idle = reason_bit("power_cap"), reason_bit("idle")
    held = [idle] * 5 + [cap] * 10 + [0] * 5 + [cap | idle] + [0] * 9
    _fill(store, [float(number) for number in range(30)], clock_event_reasons=held)
    answer = lines(store, [KEY], ["clock_event_reasons"], BEGAN, BEGAN + 30 * S)
    assert not answer.lines
    spans = [(span.what, (span.began - BEGAN) // S, (span.ended - BEGAN) // S) for span in answer.reasons]
    assert sorted(spans) == [("idle", 0, 5), ("idle", 20, 21), ("power_cap", 5, 15), ("power_cap", 20, 21)]


def test_marks_of_sensors_are_spans(store: Store) -> None:
    quality = [None] * 3 + ["power_stuck"] * 4 + [None] * 3
    _fill(store, [float(number) for number in range(10)], quality=quality, power_mw=[1000] * 10)
    (mark,) = lines(store, [KEY], ["power_mw"], BEGAN, BEGAN + 10 * S).marks
    assert (mark.what, mark.began, mark.ended) == ("power_stuck", BEGAN + 3 * S, BEGAN + 7 * S)


@pytest.fixture
def pruned(store: Store) -> Store:
    """Ten minutes at 1 Hz, of which the first five became minutes; the power of second 100 was a spike."""
    power = np.full(600, 200_000)
    power[100], power[200] = 650_000, 10_000
    counted = 200_000 * np.arange(600)
    _fill(
        store, [float(number) for number in range(600)], power_mw=power, energy_mj=counted,
        clock_event_reasons=[4 if number == 70 else 0 for number in range(600)],
    )  # fmt: skip
    now = BEGAN + 600 * S
    store.prune("5m", offline=True, now=now)
    ((minutes, rows),) = store.sql(
        "select (select count(*) from telemetry_minutes), (select count(*) from telemetry)"
    ).polars().rows()  # fmt: skip
    assert (minutes, rows) == (5, 300)
    return store


def test_pruned_minutes_show_their_lowest_and_highest_value_beside_readings(pruned: Store) -> None:
    answer = lines(pruned, [KEY], ["power_mw"], BEGAN, BEGAN + 600 * S)
    (line,) = answer.lines
    points = _points(line)
    assert {(90.0, 650.0), (210.0, 10.0)} <= set(points)
    assert None not in [value for _, value in points], "minutes and readings follow each other"
    assert line.readings == 600
    assert answer.pruned_ns == BEGAN + 300 * S
    assert max(at for at, _ in points) == 599


@pytest.mark.long
def test_readings_in_a_journal_are_there_at_once(store: Store) -> None:
    _fill(store, [0, 1, 2], power_mw=[1000, 1000, 1000])
    rows = arrow_rows("telemetry", {"ts": [BEGAN + 3 * S], "cluster": ["c"], "gpu": ["GPU-a"], "power_mw": [5000]})
    with store.journal("n1", background=False) as journal:
        journal.append_batch(rows.to_batches()[0])
        assert _points(_line(store, "power_mw"))[-1] == (3, 5.0)


def test_two_gpus_of_one_name_in_two_clusters_are_two_lines(store: Store) -> None:
    for cluster, power in (("c", 1000), ("d", 2000)):
        rows = {"ts": [BEGAN, BEGAN + S], "cluster": [cluster] * 2, "gpu": ["n1/0"] * 2, "power_mw": [power] * 2}
        store.append({"telemetry": arrow_rows("telemetry", rows)}, cluster)
    answer = lines(store, [("d", "n1/0"), ("c", "n1/0"), ("e", "n1/0")], ["power_mw"], BEGAN, BEGAN + 10 * S)
    by_cluster = [(line.key[0], line.value.tolist()) for line in answer.lines]
    assert by_cluster == [("d", [2.0, 2.0]), ("c", [1.0, 1.0]), ("e", [])]


def test_too_many_readings_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(store, [float(number) for number in range(100)], power_mw=[1] * 100)
    monkeypatch.setattr("whorl.analysis.telemetry.readings.MOST_ROWS", 50)
    with pytest.raises(QueryError, match="choose fewer GPUs or a shorter time"):
        lines(store, [KEY], ["power_mw"], BEGAN, BEGAN + 100 * S)


def test_many_rows_are_read_a_gpu_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu in ("GPU-a", "GPU-b"):
        _fill(store, [float(number) for number in range(100)], gpu, power_mw=[1000] * 100)
    monkeypatch.setattr("whorl.analysis.telemetry.readings._AT_ONCE", 150)
    answer = lines(store, [KEY, ("c", "GPU-b")], ["power_mw"], BEGAN, BEGAN + 100 * S)
    assert [line.readings for line in answer.lines] == [100, 100]


# -- extent ------------------------------------------------------------------------------------------------------------
# Of which times a store holds readings, those in journals too, and which of them are meant.


FIRST_NS = 1_790_000_000 * S
KEYS: tuple[Key, Key] = (("c", "GPU-a"), ("c", "GPU-b"))
WINDOW, WIDTH = 300 * S, 2 * S


def _rows(seconds: list[float], gpu: str = "GPU-a") -> pa.RecordBatch:
    power = [round(1000 * (100 + 50 * np.sin(second) + 300 * (round(second * 2) % 41 == 0))) for second in seconds]
    rows = {
        "ts": [FIRST_NS + round(second * S) for second in seconds],
        "cluster": ["c"] * len(seconds),
        "gpu": [gpu] * len(seconds),
    }
    (batch,) = arrow_rows("telemetry", {**rows, "power_mw": power}).to_batches()
    return batch


def test_the_extent_counts_readings_in_journals(store: Store) -> None:
    assert extent(store) is None
    assert newest(store) is None
    with store.journal("n1", background=False) as journal:
        journal.append_batch(_rows([0.0, 7000.0, 7001.0]))
        journal.append_batch(_rows([10.0], "GPU-b"))
        assert extent(store) == (FIRST_NS, FIRST_NS + 7001 * S)
        assert extent(store, [KEYS[1]]) == (FIRST_NS + 10 * S, FIRST_NS + 10 * S)
        assert extent(store, "other") is None
        assert newest(store, "c") == FIRST_NS + 7001 * S
        assert FIRST_NS + 6990 * S < last_hour(store, KEYS, FIRST_NS, FIRST_NS + 7001 * S) < FIRST_NS + 7000 * S


FIRST, LAST = FIRST_NS, FIRST_NS + 86_400 * S


@pytest.mark.parametrize(
    ("since", "until", "is_meant"),
    [
        (None, None, (LAST + S - 3600 * S, LAST + S)),
        (FIRST_NS + S, None, (FIRST_NS + S, LAST + S)),
        (None, FIRST_NS + 7200 * S, (FIRST_NS + 3600 * S, FIRST_NS + 7200 * S)),
        (FIRST_NS + 5 * S, FIRST_NS + 6 * S, (FIRST_NS + 5 * S, FIRST_NS + 6 * S)),
        (0, 2 * FIRST_NS, (FIRST - S, LAST + S)),
    ],
)
def test_the_range_that_is_meant(since: int | None, until: int | None, is_meant: tuple[int, int]) -> None:
    bounds = meant(FIRST, LAST, since, until)
    assert (bounds.since, bounds.until) == is_meant
    assert bool(bounds.says) == (since == 0), "a range of years is cut, and a sentence says so"


@pytest.mark.parametrize(("since", "until"), [(LAST + 2 * S, None), (0, FIRST - 1), (None, FIRST - 5 * S)])
def test_a_range_without_readings_says_what_there_is(since: int | None, until: int | None) -> None:
    with pytest.raises(QueryError, match=r"no reading .*first one is of 2026-09-21 .* last one of 2026-09-22"):
        meant(FIRST, LAST, since, until)


# -- bands -------------------------------------------------------------------------------------------------------------
# Bands over many GPUs are the quantiles of their means, with the lowest and highest reading of any.


GPUS, SECONDS = 40, 600
Values = NDArray[np.int64]
ALL_KEYS: tuple[Key, ...] = tuple(("c", f"GPU-{number:02d}") for number in range(GPUS))


@pytest.fixture
def fleet(store: Store) -> tuple[Store, Values]:
    """Forty GPUs at 1 Hz; one draws far less, one has a spike of one reading, one was not read for two minutes."""
    random = np.random.default_rng(1)
    power = 300_000 + random.integers(-5_000, 5_000, (GPUS, SECONDS))
    power[7] -= 80_000
    power[11, 333] = 699_000
    rows: dict[str, Any] = {
        "ts": np.tile(BEGAN + S * np.arange(SECONDS), GPUS),
        "cluster": ["c"] * power.size,
        "gpu": np.repeat([gpu for _, gpu in ALL_KEYS], SECONDS),
        "power_mw": power.ravel(),
        "energy_mj": np.cumsum(power, axis=1).ravel(),
        "clock_event_reasons": np.where(np.repeat(np.arange(GPUS), SECONDS) < 10, reason_bit("power_cap"), 0),
    }
    visible = ~((rows["gpu"] == "GPU-20") & (rows["ts"] >= BEGAN + 240 * S) & (rows["ts"] < BEGAN + 360 * S))
    columns = {name: np.asarray(values)[visible] for name, values in rows.items()}
    store.append({"telemetry": arrow_rows("telemetry", columns)}, "fleet")
    return store, power


def test_a_band_is_the_quantiles_of_means_and_the_extremes_of_readings(fleet: tuple[Store, Values]) -> None:
    store, power = fleet
    drawn = bands(store, ALL_KEYS, ["power_mw"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    (band,) = drawn.bands
    assert (drawn.asked, drawn.taken, drawn.seen, drawn.readings) == (GPUS, GPUS, GPUS, power.size - 120)
    at = 100  # a stretch in which all GPUs were read
    began = int(drawn.ts[at] - drawn.width_ns // 2)
    seconds_of_step = [second for second in range(SECONDS) if began <= BEGAN + second * S < began + drawn.width_ns]
    assert band.levels[:, at] == pytest.approx(np.quantile(power[:, seconds_of_step].mean(axis=1) / 1000, LEVELS))
    assert (band.low[at], band.high[at]) == (
        power[:, seconds_of_step].min() / 1000,
        power[:, seconds_of_step].max() / 1000,
    )
    assert np.nanmax(band.high) == 699.0
    assert set(band.gpus) == {GPUS, GPUS - 1}
    assert [(key[1], round(apart)) for key, apart in band.far] == [("GPU-07", -80)]


def test_reasons_are_shares_of_the_gpus(fleet: tuple[Store, Values]) -> None:
    store, _ = fleet
    drawn = bands(store, ALL_KEYS, ["clock_event_reasons"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    (share,) = drawn.shares
    assert share.reason == "power_cap"
    assert share.percent[5] == pytest.approx(100 * 10 / GPUS)


def test_pruned_minutes_are_in_a_band_with_their_extremes(fleet: tuple[Store, Values]) -> None:
    store, power = fleet
    store.prune("1m", offline=True, now=BEGAN + SECONDS * S)
    drawn = bands(store, ALL_KEYS, ["power_mw"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    (band,) = drawn.bands
    assert np.nanmax(band.high) == 699.0
    assert drawn.readings == power.size - 120
    measured = ~np.isnan(band.levels[2])
    assert band.levels[2][measured] == pytest.approx(300.0, rel=0.02)


def test_too_many_readings_are_answered_from_fewer_gpus(
    fleet: tuple[Store, Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = fleet
    monkeypatch.setattr("whorl.analysis.telemetry.bands._ROWS", 20 * SECONDS)
    drawn = bands(store, ALL_KEYS, ["power_mw"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    assert drawn.taken == 20
    assert 15 < drawn.off_points < 20, "196 * sqrt(0.25 / 20 * 20 / 39)"


def test_a_sample_is_spread_evenly_and_always_the_same() -> None:
    keys: tuple[Key, ...] = tuple(("c", f"{number}") for number in range(27_648))
    chosen_keys = sample(keys)
    assert len(set(chosen_keys)) == SAMPLE
    assert chosen_keys == sample(keys)
    assert np.diff([int(gpu) for _, gpu in chosen_keys]) == pytest.approx(108, abs=1)
    assert sample(keys[:10]) == keys[:10]
