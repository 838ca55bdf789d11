"""Further telemetry of runs: columns of any spelling become figures, and never cost a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis import measurements
from whorl.store import Store
from whorl.store.importing import Options, Report, import_file

Write = Callable[..., Path]
HEADER = "exp,uuid,ts,perf,pwr"
UUIDS = [f"GPU-0a1b2c3d-0000-1111-2222-3333444455{i:02d}" for i in range(10)]


def rows(*more: object) -> list[list[object]]:
    """Ten runs; `more` ends each row, or is a function of the row's number."""
    tail = [[one(i) if callable(one) else one for one in more] for i in range(10)]
    return [["sgemm", uuid, 1_600_000_000 + i, 2440 + i, 290.5, *tail[i]] for i, uuid in enumerate(UUIDS)]


def add(store: Store, path: Path, **options: object) -> Report:
    return import_file(store, path, Options(units={"": "ms"}, **options))  # type: ignore[arg-type]


def figures(store: Store) -> dict[str, tuple[str, list[float]]]:
    """Unit and values by figure, `time` left out."""
    frame = store.scan("results").filter(pl.col("figure") != "time").sort("gpu").collect()
    return {
        str(name): (part["unit"][0], part["value"].to_list())
        for (name,), part in frame.group_by("figure", maintain_order=True)
    }


def test_each_becomes_a_figure_with_its_unit(store: Store, write: Write) -> None:
    header = f"{HEADER},max_pwr,pwr_min_mw,avg_clock [GHz],temp_p95 [K],std_temp,utilization.gpu [%],freq_p0"
    path = write(header, rows(301.25, 60_500, 1.41, 333.15, 2.5, 97, 1))
    report = add(store, path)
    assert figures(store) == {
        "power_max": ("W", [301.25] * 10),
        "power_min": ("W", [60.5] * 10),
        "sm_clock_mean": ("MHz", [1410.0] * 10),
        "temperature_p95": ("degC", [60.0] * 10),
        "temperature_sd": ("degC", [2.5] * 10),
        "utilization": ("%", [97.0] * 10),
    }
    assert report.ignored == ["freq_p0"]
    assert report.units["pwr_min_mw"] == {"unit": "mW", "from": "the column's name 'pwr_min_mw'"}
    assert report.units["max_pwr"] == {"unit": "W", "from": "the format"}
    assert measurements(store)["value"].sort().to_list() == [2440.0 + i for i in range(10)]
    one = store.sql("select value, unit, power_w from measurements where figure = 'power_max' limit 1").to_pylist()
    assert one == [{"value": 301.25, "unit": "W", "power_w": 290.5}]


def test_codes_are_null_and_damaged_values_cost_no_row(store: Store, write: Write) -> None:
    damaged = {2: "-1", 4: "[N/A]", 5: "9999", 7: "high"}
    report = add(store, write(f"{HEADER},max_pwr", rows(lambda i: damaged.get(i, 300 + i))))
    assert report.total.kept == 10
    assert report.placeholders == {"max_pwr": 2}
    assert figures(store)["power_max"][1] == [300, 301, 303, 306, 308, 309]
    assert report.notes == ["max_pwr: 2 values cannot be the highest board power, so NULL is stored (first line 7)"]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("max_pwr", "305000", "max_pwr is not stored: column 'max_pwr' does not contain a highest board power in W"),
        ("max_temp [V]", "60", None),
        ("util_mean", "0.9", "util_mean is not stored: column 'util_mean' has no unit; give it: --map util_mean="),
    ],
)
def test_a_column_that_holds_something_else_is_left_out(
    column: str, value: str, said: str | None, store: Store, write: Write
) -> None:
    report = add(store, write(f"{HEADER},{column},min_pwr", rows(value, 60)))
    assert (report.total.kept, list(figures(store))) == (10, ["power_min"])
    assert report.ignored == [column]
    assert column not in report.units
    assert len(report.notes) == (said is not None)
    assert said is None or report.notes[0].startswith(said)


def test_map_and_unit_name_any_column(store: Store, write: Write, refusal: Callable[..., str]) -> None:
    path = write(f"{HEADER},heat,w2", rows(61, 0.3))
    columns = {"heat": "temperature_max", "w2": "power_p99:kW"}
    add(store, path, columns=columns)
    assert figures(store) == {"temperature_max": ("degC", [61.0] * 10), "power_p99": ("W", [300.0] * 10)}
    assert "does not contain a percentile 99 of the board power" in refusal(path, columns={"heat": "power_p99:kW"})
    assert "further telemetry such as power_max" in refusal(path, columns={"heat": "temperature_top"})
    stream = write("timestamp,power.draw [W]", [["2023/07/14 10:12:01", 250]], name="s.csv")
    assert "a file of telemetry has no 'power_max'" in refusal(stream, columns={"power.draw [W]": "power_max"})


@pytest.mark.long(short=1)
@pytest.mark.parametrize("column", ["power_cap", "enforced.power.limit [W]"])
def test_a_power_limit_parts_the_runs(column: str, store: Store, write: Write) -> None:
    add(store, write(f"{HEADER},{column}", rows(lambda i: 250 if i % 2 else 300)))
    assert set(measurements(store)["workload"].cast(pl.String)) == {"sgemm [250 W]", "sgemm [300 W]"}
