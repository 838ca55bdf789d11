"""The parts of an answer, made by each engine: the order, the failures, and how many are under way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import whorl
from whorl.analysis.energy import minutes
from whorl.analysis.engines import HERE, Here, PartFailure, opened
from whorl.analysis.power_classes import power_profiles
from whorl.analysis.runs import windows
from whorl.analysis.runs.windows import windows_of_runs
from whorl.analysis.spread.passive import read_in_runs
from whorl.analysis.verdicts.judge import judge
from whorl.errors import InputError
from whorl.tests.analysis.runs.test_windows import drawn_store
from whorl.tests.beyond.fleet import BEGAN_NS, GPUS, S
from whorl.tests.beyond.squares import FAILURES, PARTS, SQUARES, Square, failing, named, refused, squared, wrong
from whorl.tests.stores import new_store


@pytest.mark.parametrize("engine", [HERE, Here(1), Here(3)], ids=["default", "one thread", "threads"])
class TestHere:
    def test_results_have_the_order_of_the_parts(self, engine: Here) -> None:
        progress: list[str] = []
        results = list(engine.map(squared, PARTS, name=named, progress=progress.append))
        assert results == SQUARES
        assert progress[-1] == "12 of 12 parts"

    def test_a_part_that_fails_is_named_and_others_stay(self, engine: Here) -> None:
        results = list(engine.map(failing, PARTS, name=named))
        assert [result for result in results if not isinstance(result, PartFailure)] == [
            number**2 for number in range(12) if number not in FAILURES
        ]
        assert [result for result in results if isinstance(result, PartFailure)] == [
            PartFailure("square 2", "a.parquet is damaged"),
            PartFailure("square 5", "[Errno 5] Input/output error"),
            PartFailure("square 7", "no Parquet"),
            PartFailure("square 9", "the memory did not suffice"),
        ]

    def test_bad_input_and_errors_of_the_program_are_raised(self, engine: Here) -> None:
        with pytest.raises(InputError, match="is not asked for"):
            list(engine.map(refused, PARTS, name=named))
        with pytest.raises(ZeroDivisionError):
            list(engine.map(wrong, PARTS, name=named))

    def test_only_a_few_parts_are_ahead_of_who_reads(self, engine: Here) -> None:
        numbers: list[int] = []

        def noted(part: Square) -> int:
            numbers.append(part.number)
            return part.number

        results = engine.map(noted, [Square(number) for number in range(100)], name=named)
        assert next(results) == 0
        time.sleep(0.02)
        assert len(numbers) <= 2 * engine.workers + 2

    def test_no_parts_give_no_results(self, engine: Here) -> None:
        assert list(engine.map(squared, [], name=named)) == []


def test_each_thread_opens_a_store_once(tmp_path: Path) -> None:
    root = str(new_store(tmp_path / "fleet").root)
    stores = []
    thread = threading.Thread(target=lambda: stores.append(opened(root)))
    thread.start()
    thread.join()
    assert opened(root) is opened(root) is not stores[0]


def test_parts_of_energy_have_about_the_rows_they_should_on_a_day_of_some_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a day, four hours have readings: parts are made by the rows of these, not by a share of the day."""
    monkeypatch.setattr(minutes, "ROWS_OF_PART", 1_100)
    store, seconds = new_store(tmp_path / "fleet"), np.arange(0, 4 * 3600, 14.4)
    telemetry = {
        "ts": np.tile((BEGAN_NS + seconds * S).astype("datetime64[ns]"), len(GPUS)),
        "cluster": ["c"] * (len(GPUS) * len(seconds)),
        "gpu": np.repeat(GPUS, len(seconds)),
        "power_mw": np.full(len(GPUS) * len(seconds), 200_000, np.int32),
    }
    store.append({"telemetry": pa.table(telemetry), "gpus": pa.table({"cluster": ["c"] * len(GPUS), "gpu": GPUS})}, "x")
    hours = [minutes.meter_parts(store, since_ns=BEGAN_NS, until_ns=BEGAN_NS + n * 3600 * S) for n in (1, 4)]
    assert [len(parts) for parts in hours] == [2, 8]


# -- windows -----------------------------------------------------------------------------------------------------------
# What telemetry says of runs and of sensors, made by workers of Dask and here.


@pytest.mark.long
def test_workers_say_the_same_of_runs_and_sensors(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "READINGS", 300)  # a day of a GPU
    store = drawn_store(tmp_path / "S", 3)
    with whorl.engine(address) as engine:
        assert_frame_equal(windows_of_runs(store).rows, windows_of_runs(store, engine=engine).rows, rel_tol=1e-9)
        read, coverage = read_in_runs(store, engine=engine)
        assert_frame_equal(read_in_runs(store)[0], read, rel_tol=1e-9, check_row_order=False)
        assert (coverage.parts > 4, coverage.failures) == (True, ())
        rows = [profile.as_row() for profile in power_profiles(store, engine=engine)]
        assert rows == [profile.as_row() for profile in power_profiles(store)]
        here, on_workers = judge(store, cluster="c"), judge(store, cluster="c", engine=engine)
        assert here == on_workers
        assert here.rows
