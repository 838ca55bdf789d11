"""What came since: readings in journals, added to lines so that these are what a whole reading would give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from whorl.analysis.telemetry.extent import extent, last_hour, meant, newest
from whorl.analysis.telemetry.lines import Line, following, lines
from whorl.analysis.telemetry.readings import Key
from whorl.errors import QueryError
from whorl.store import Store
from whorl.store.schema import arrow_rows

S = 1_000_000_000
BEGAN = 1_790_000_000 * S
KEYS: tuple[Key, Key] = (("c", "GPU-a"), ("c", "GPU-b"))
WINDOW, WIDTH = 300 * S, 2 * S


def _rows(seconds: list[float], gpu: str = "GPU-a") -> pa.RecordBatch:
    power = [round(1000 * (100 + 50 * np.sin(one) + 300 * (round(one * 2) % 41 == 0))) for one in seconds]
    rows = {
        "ts": [BEGAN + round(one * S) for one in seconds],
        "cluster": ["c"] * len(seconds),
        "gpu": [gpu] * len(seconds),
    }
    (batch,) = arrow_rows("telemetry", {**rows, "power_mw": power}).to_batches()
    return batch


def _added(line: Line, since: int, more: Line | None) -> tuple[list[int], list[float]]:
    """As the browser adds them."""
    kept = line.ts < since if more is not None else np.ones(len(line.ts), bool)
    ts, value = line.ts[kept].tolist(), line.value[kept].tolist()
    return (ts, value) if more is None else (ts + more.ts.tolist(), value + more.value.tolist())


def test_lines_that_are_added_to_are_as_if_read_at_once(store: Store) -> None:
    with store.journal("n1", background=False) as journal:
        journal.append_batch(_rows([one / 2 for one in range(100)]))
        journal.append_batch(_rows([0.0, 1.0], "GPU-b"))
        known: dict[Key, int] = {KEYS[0]: BEGAN + round(49.5 * S), KEYS[1]: BEGAN + S}
        now = lines(store, KEYS, ["power_mw"], BEGAN - WINDOW, BEGAN + 50 * S, width_ns=WIDTH)
        line = now.lines[0]
        for began, ended in ((100, 103), (103, 190), (230, 260)):  # a gap of 20 s before the last ones
            journal.append_batch(_rows([one / 2 for one in range(began, ended)]))
            tail = following(store, KEYS, ["power_mw"], known, WIDTH, WINDOW)
            assert [one.key for one in tail.lines] == [KEYS[0]], "nothing came of the other GPU"
            assert tail.until - tail.since < 60 * S, "only what came since is read"
            ts, value = _added(line, tail.since, tail.lines[0])
            line = Line(line.key, line.metric, np.array(ts), np.array(value), 0, None)
            known = tail.last
        every = lines(store, KEYS, ["power_mw"], BEGAN - WINDOW, BEGAN + 130 * S, width_ns=WIDTH).lines[0]
    assert (line.ts.tolist(), np.isnan(line.value).tolist()) == (every.ts.tolist(), np.isnan(every.value).tolist())
    assert np.nan_to_num(line.value) == pytest.approx(np.nan_to_num(every.value))
    assert np.count_nonzero(np.isnan(every.value)) == 1


def test_after_a_long_sleep_only_the_window_is_read(store: Store) -> None:
    with store.journal("n1", background=False) as journal:
        journal.append_batch(_rows([float(one) for one in range(2000)]))
        tail = following(store, KEYS, ["power_mw"], {KEYS[0]: BEGAN + S}, WIDTH, WINDOW)
    assert tail.until - tail.since <= WINDOW + WIDTH
    assert tail.lines[0].ts[0] >= tail.since - 1


def test_the_extent_counts_readings_in_journals(store: Store) -> None:
    assert extent(store) is None
    assert newest(store) is None
    with store.journal("n1", background=False) as journal:
        journal.append_batch(_rows([0.0, 7000.0, 7001.0]))
        journal.append_batch(_rows([10.0], "GPU-b"))
        assert extent(store) == (BEGAN, BEGAN + 7001 * S)
        assert extent(store, [KEYS[1]]) == (BEGAN + 10 * S, BEGAN + 10 * S)
        assert extent(store, "other") is None
        assert newest(store, "c") == BEGAN + 7001 * S
        assert BEGAN + 6990 * S < last_hour(store, KEYS, BEGAN, BEGAN + 7001 * S) < BEGAN + 7000 * S


FIRST, LAST = BEGAN, BEGAN + 86_400 * S


@pytest.mark.parametrize(
    ("since", "until", "is_meant"),
    [
        (None, None, (LAST + S - 3600 * S, LAST + S)),
        (BEGAN + S, None, (BEGAN + S, LAST + S)),
        (None, BEGAN + 7200 * S, (BEGAN + 3600 * S, BEGAN + 7200 * S)),
        (BEGAN + 5 * S, BEGAN + 6 * S, (BEGAN + 5 * S, BEGAN + 6 * S)),
        (0, 2 * BEGAN, (FIRST - S, LAST + S)),
    ],
)
def test_the_range_that_is_meant(since: int | None, until: int | None, is_meant: tuple[int, int]) -> None:
    found = meant(FIRST, LAST, since, until)
    assert (found.since, found.until) == is_meant
    assert bool(found.says) == (since == 0), "a range of years is cut, and a sentence says so"


@pytest.mark.parametrize(("since", "until"), [(LAST + 2 * S, None), (0, FIRST - 1), (None, FIRST - 5 * S)])
def test_a_range_without_readings_says_what_there_is(since: int | None, until: int | None) -> None:
    with pytest.raises(QueryError, match=r"no reading .*first one is of 2026-09-21 .* last one of 2026-09-22"):
        meant(FIRST, LAST, since, until)
