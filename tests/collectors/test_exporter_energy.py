"""Joules from pages of an exporter that reads its GPUs more rarely than it is asked: a row for each look, no more."""

from __future__ import annotations

import numpy as np

from whorl.analysis.energy.meter import Energies
from whorl.analysis.energy.sensor import Readings
from whorl.collectors.exporter.history import History
from whorl.collectors.exporter.page import PageLimits
from whorl.store.metrics import ROW
from whorl.tests.analysis.energy.stored import build
from whorl.tests.exporter import Exported, page, usual

S = 10**9
BEGAN_NS = 1_763_632_800 * S
REFRESH_S, POLL_S, LASTS_S = 30, 5, 3600
LOW_W, HIGH_W, PERIOD_S = 250, 600, 430  # the load changes at other times than the exporter reads


def watts(second: float) -> float:
    return HIGH_W if second % PERIOD_S < PERIOD_S / 2 else LOW_W


def joules(second: float) -> float:
    """What the GPU has drawn since the beginning."""
    whole, rest = divmod(second, PERIOD_S)
    half = PERIOD_S / 2
    return whole * half * (LOW_W + HIGH_W) + min(rest, half) * HIGH_W + max(rest - half, 0) * LOW_W


def shown_at(second: int) -> bytes:
    """The page at this second: what the exporter read at its last look."""
    read = second // REFRESH_S * REFRESH_S
    return page([Exported(0, usual(watts(read), round(1000 * joules(read))))]).encode()


def metered(rows: list[tuple[int, float, float]], windows: list[tuple[int, int]]) -> Energies:
    """The energy by rows of time, power and counter."""
    columns = list(zip(*rows, strict=True))
    ts, power, counter = np.array(columns[0], np.int64), *(np.array(column, float) for column in columns[1:])
    none = np.full(len(ts), np.nan)
    limit = np.full(len(ts), 700.0)
    readings = Readings(ts, np.zeros(len(ts), bool), power, none, counter, none, none, limit)
    begin, end = (np.array(ends, np.int64) * S + BEGAN_NS for ends in zip(*windows, strict=True))
    return build("c", "g", readings).over(begin, end)


def test_energy_of_rows_of_new_pages_is_that_of_the_gpu() -> None:
    history, rows = History("http://n1:9400/metrics", None, 120 * S, PageLimits()), []
    for second in range(0, LASTS_S, POLL_S):
        new, _ = history.take(shown_at(second), asked_ns=BEGAN_NS + second * S, now_ns=second * S)
        for reading in new:
            assert reading.ts_ns is not None
            values = reading.values
            rows.append((reading.ts_ns, values[ROW["power_mw"]] / 1000, values[ROW["energy_mj"]] / 1000))
    assert len(rows) == LASTS_S // REFRESH_S
    windows = [(300, 900), (600, 3000), (95, 1295)]
    truth = np.array([joules(end) - joules(begin) for begin, end in windows])
    found = metered(rows, windows)
    assert np.allclose(found.counter_s, [end - begin for begin, end in windows])
    assert np.all(
        np.abs(found.energy_j - truth) <= np.maximum(found.above_j, found.below_j) + 2 * np.sqrt(found.variance_j2)
    )
    assert np.all(np.abs(found.energy_j - truth) < 0.04 * truth)
