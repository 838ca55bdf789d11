"""Of which times a store holds readings, those in journals too, and which of them are meant."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from whorl.analysis.telemetry.extent import extent, last_hour, meant, newest
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
