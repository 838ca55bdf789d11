"""What telemetry says of runs and of sensors, made by workers of Dask and here."""

from __future__ import annotations

from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import whorl
from whorl.analysis.power_classes import power_profiles
from whorl.analysis.runs import windows
from whorl.analysis.runs.windows import windows_of_runs
from whorl.analysis.spread.passive import read_in_runs
from whorl.analysis.verdicts.judge import judge
from whorl.tests.analysis.runs.test_windows import drawn_store


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
