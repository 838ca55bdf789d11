"""The views of windows: what telemetry says of a run's time and of a job's."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import pytest

from whorl.store import Store
from whorl.store.instants import nanoseconds
from whorl.store.schema import arrow_rows
from whorl.store.windows import figures as figures_of
from whorl.tests.stores import new_store

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

BEGAN = dt.datetime(2026, 11, 2, 23, 59)
Windows = dict[str, dict[str, Any]]


def at(second: float) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=second)


def rows(table: str, *records: dict[str, Any]) -> Any:
    names = dict.fromkeys(name for record in records for name in record)
    return arrow_rows(table, {n: [record.get(n) for record in records] for n in names})


def readings(gpu: str, seconds: range, watts: Any, **metrics: Any) -> list[dict[str, Any]]:
    """A reading a second; what is callable is a function of the second."""

    def value(metric: Any, second: int) -> Any:
        return metric(second) if callable(metric) else metric

    return [
        {"ts": at(s), "cluster": "c", "gpu": gpu, "power_mw": value(watts, s)}
        | {name: value(metric, s) for name, metric in metrics.items()}
        for s in seconds
    ]


def run(name: str, gpu: str, began: float | None, ended: float | None) -> dict[str, Any]:
    times = {"began": None if began is None else at(began), "ended": None if ended is None else at(ended)}
    return {"run_id": name, "cluster": "c", "gpu": gpu, "workload": "w", **times}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two days, as the minute of midnight is among the readings."""
    made = new_store(tmp_path_factory.mktemp("windows") / "store")
    telemetry = [
        # 100 W to 199 W, and a counter that sees 1 W more; one reading has no values.
        *readings("steady", range(100), lambda s: None if s == 50 else (100 + s) * 1000,
                  energy_mj=lambda s: None if s == 50 else 7_000_000 + 150_000 * s, sm_clock_mhz=1000,
                  temperature_c=lambda s: 40 + s % 7),
        *readings("reset", range(100), 200_000, energy_mj=lambda s: 10**9 + 200_000 * s if s < 50 else 200_000 * s),
        *readings("still", range(100), 200_000, energy_mj=5),
        *readings("stuck", range(100), 300_000, quality="power_stuck"),
        *readings("zero", range(100), lambda s: 0 if s < 10 else 80_000),
        *readings("late", range(0, 100, 10), 100_000),
    ]  # fmt: skip
    runs = [
        run("steady", "steady", 10, 20), run("over it", "steady", 15, 60), run("all", "steady", -10, 110),
        run("reset", "reset", 0, 100), run("before it", "reset", 0, 40), run("still", "still", 0, 100),
        run("stuck", "stuck", 0, 100), run("zero", "zero", 0, 100), run("gaps", "zero", 90, 300),
        run("none", "steady", 500, 600), run("instant", "steady", 5, 5), run("backwards", "steady", 20, 10),
        run("open", "steady", 0, None), run("unknown", "steady", None, 10), run("elsewhere", "other", 0, 10),
        run("late", "late", 0, 100),
    ]  # fmt: skip
    made.append({"telemetry": rows("telemetry", *telemetry), "runs": rows("runs", *runs)}, "x")
    return made


@pytest.fixture(scope="module")
def windows(store: Store) -> Windows:
    """The row of each run."""
    rows = store.sql("from run_windows order by run_id").to_pylist()
    windows = {row["run_id"]: row for row in rows}
    assert len(windows) == len(rows)
    return windows


def figures(windows: Windows, name: str, columns: str) -> tuple[Any, ...]:
    return tuple(windows[name][column] for column in columns.split(", "))


def test_a_reading_when_a_run_began_counts_and_one_when_it_ended_does_not(windows: Windows) -> None:
    names = "n, power_mean_w, power_median_w, power_p95_w, temperature_max_c, sm_clock_mean_mhz"
    assert figures(windows, "steady", names) == (10, 114.5, 114.0, 119.0, 46, 1000.0)
    # This one runs beside it; the reading without values counts in `n` alone.
    mean = sum(100 + second for second in range(15, 60) if second != 50) / 44
    assert figures(windows, "over it", "n, power_mean_w, power_median_w") == (45, pytest.approx(mean), 136.0)


@pytest.mark.parametrize(
    ("name", "n", "joules", "source"),
    [
        # what the counter grew by to both ends of the window
        ("steady", 10, 1500.0, "counter"), ("all", 100, 120 * 150.0, "counter"), ("before it", 40, 8000.0, "counter"),
        # mean power times seconds, where the counter cannot be right
        ("reset", 100, 20_000.0, "power"), ("still", 100, 20_000.0, "power"), ("zero", 100, 8_000.0, "power"),
        # too few readings
        ("none", 0, None, None), ("instant", 0, None, None), ("backwards", 0, None, None),
        ("elsewhere", 0, None, None), ("stuck", 100, None, None), ("gaps", 10, None, None),
    ],
)  # fmt: skip
def test_where_the_energy_of_a_run_comes_from(
    windows: Windows, name: str, n: int, joules: float | None, source: str | None
) -> None:
    assert figures(windows, name, "n, energy_j, energy_from") == (n, joules and pytest.approx(joules), source)


def test_late_rows_and_those_of_an_open_journal_count(tmp_path: Path) -> None:
    made = new_store(tmp_path / "S")
    names = ("g", "h")
    telemetry = rows("telemetry", *(row for name in names for row in readings(name, range(10), 100_000)))
    runs = rows("runs", *(run(name, name, 0, 20) for name in names))
    made.append({"telemetry": telemetry, "runs": runs}, "x")
    late = rows("telemetry", *(row for name in names for row in readings(name, range(5), 200_000)))
    made.correct(late, "y")
    query = "select n, power_mean_w, power_median_w, energy_j from run_windows"
    half = {"n": 10, "power_mean_w": 150.0, "power_median_w": 100.0, "energy_j": None}
    assert made.sql(query).to_pylist() == [half] * 2
    with made.journal("j", background=False) as journal:
        for second in range(10, 20):
            journal.append(nanoseconds(at(second)), names, {"cluster": "c", "power_mw": [250_000] * 2})
        whole = {"n": 20, "power_mean_w": 200.0, "power_median_w": 200.0, "energy_j": 4000.0}
        assert made.sql(query).to_pylist() == [whole] * 2


def test_a_window_has_the_readings_of_all_files_and_days_whatever_cluster_else_has_its_gpu(tmp_path: Path) -> None:
    """A file a minute, of two clusters with a GPU of one name, and of no GPU; midnight is after the first one."""
    made = new_store(tmp_path / "S")
    for minute in range(3):
        seconds = range(60 * minute, 60 * minute + 60)
        mine = readings(
            "g", seconds, lambda s: (s if s < 60 else 120) * 1000, energy_mj=lambda s: None if s < 70 else s
        )
        others = [row | {"cluster": "d", "power_mw": 1_000_000} for row in mine]
        nobodys = [row | {"gpu": None} for row in mine]
        made.append({"telemetry": rows("telemetry", *mine, *others, *nobodys)}, f"m{minute}")
    windows = [run("all", "g", 0, 180), run("first", "g", 59, 61), run("second", "g", 60, 90)]
    windows += [run("nobody", "g", 0, 180) | {"cluster": None}]
    made.append({"runs": rows("runs", *windows)}, "runs")
    query = "select run_id, n, power_mean_w, power_median_w, power_p95_w from run_windows order by began, run_id"
    assert [tuple(row.values()) for row in made.sql(query).to_pylist()] == [
        ("all", 180, pytest.approx(sum(range(1, 60)) / 179 + 120 * 120 / 179), 120.0, 120.0),
        ("nobody", 0, None, None, None), ("first", 2, 89.5, 59.0, 120.0), ("second", 30, 120.0, 120.0, 120.0),
    ]  # fmt: skip


def test_quantiles_of_a_window_over_midnight_are_of_both_days_for_gpus_in_files_of_their_own(tmp_path: Path) -> None:
    made = new_store(tmp_path / "S")
    for gpu in ("g", "h"):
        telemetry = rows("telemetry", *readings(gpu, range(100), lambda s: (300 - s) * 1000))
        made.append({"telemetry": telemetry, "runs": rows("runs", run(gpu, gpu, 0, 100))}, gpu)
    answer = made.sql("select n, power_median_w, power_p95_w from run_windows").to_pylist()
    assert answer == [{"n": 100, "power_median_w": 250.0, "power_p95_w": 295.0}] * 2


def test_a_window_over_midnight_without_readings_on_its_last_day_has_quantiles(tmp_path: Path) -> None:
    made = new_store(tmp_path / "S")
    telemetry = rows("telemetry", *readings("g", range(60), lambda s: (100 + s) * 1000))
    made.append({"telemetry": telemetry, "runs": rows("runs", run("g", "g", 0, 90))}, "g")
    answer = made.sql("select n, power_median_w, power_p95_w from run_windows").to_pylist()
    assert answer == [{"n": 60, "power_median_w": 129.0, "power_p95_w": 156.0}]


def test_windows_may_be_asked_for_in_any_query(store: Store) -> None:
    queries = {
        "select count(*) from run_windows where run_id in (select run_id from runs where gpu = 'steady')": 6,
        "select count(*) from (from run_windows limit 3)": 3,
        "select max(a.n) from run_windows a join run_windows b using (run_id) where b.gpu = 'zero'": 100,
        "select sum(n) from (select n from run_windows where run_id = 'gaps' union all select n from job_windows)": 10,
    }
    assert {query: store.sql(query).column(0).to_pylist()[0] for query in queries} == queries
    assert store.stream("from run_windows", lambda answer: answer.parts().read_all()).num_rows == 14


def test_a_job_has_a_row_for_each_gpu_and_one_that_runs_goes_on_to_its_last_reading(store: Store) -> None:
    job = {"cluster": "c", "recorded": at(0)}
    store.append({"jobs": rows(
        "jobs",
        job | {"allocation": "1@1", "job_id": "1", "gpu": "steady", "began": at(10), "ended": at(20)},
        job | {"allocation": "1@1", "job_id": "1", "gpu": "reset", "began": at(10), "ended": at(20)},
        job | {"allocation": "2@1", "job_id": "2", "gpu": "still", "began": at(50)},
        job | {"allocation": "3@1", "job_id": "3", "began": at(50), "node": "n1"},
    )}, "jobs")  # fmt: skip
    figures = store.sql("select job_id, gpu, n, energy_j from job_windows order by job_id, gpu").to_pylist()
    assert [tuple(row.values()) for row in figures] == [
        ("1", "reset", 10, pytest.approx(2000.0)), ("1", "steady", 10, pytest.approx(1500.0)),
        ("2", "still", 50, pytest.approx(49 * 200.0)),
    ]  # fmt: skip


def test_windows_that_are_being_read_can_be_stopped(store: Store) -> None:
    asked = store.sql("select cluster, gpu, began, ended, ended as until from runs where run_id = 'steady'").table
    stopped = threading.Event()
    telemetry = store.rows(["telemetry"])["telemetry"]
    assert figures_of(telemetry, asked, stopped).field("n").to_pylist() == [10]
    stopped.set()
    with pytest.raises(InterruptedError):
        figures_of(telemetry, asked, stopped)
