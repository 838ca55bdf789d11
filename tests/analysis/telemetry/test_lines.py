"""Lines of a store's telemetry: gaps, NULL, counters, masks, marks, pruned minutes and journals."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from whorl.analysis.telemetry.lines import Line, lines
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


def _line(store: Store, metric: str, since_s: float = 0, until_s: float = 1000, **more: Any) -> Line:
    answer = lines(store, [KEY], [metric], BEGAN + round(since_s * S), BEGAN + round(until_s * S), **more)
    (line,) = answer.lines
    return line


def _points(line: Line) -> list[tuple[float, float | None]]:
    return [
        ((at - BEGAN) / S, None if np.isnan(value) else value)
        for at, value in zip(line.ts.tolist(), line.value.tolist(), strict=True)
    ]


def test_a_line_is_in_the_unit_that_people_read(store: Store) -> None:
    _fill(store, [0, 1, 2], power_mw=[100_000, 250_500, 100_000])
    line = _line(store, "power_mw")
    assert _points(line) == [(0, 100.0), (1, 250.5), (2, 100.0)]
    assert (line.readings, line.step_ns) == (3, S)


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
        found = _points(_line(store, "power_mw", until_s=2000, points=points))
        assert len(found) <= points
        assert {(1234.5, 700.0), (1700.0, 1.0)} <= set(found)


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
