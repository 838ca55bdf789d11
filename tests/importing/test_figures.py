"""Further telemetry of runs: columns of any spelling become figures, and never cost a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis import measurements
from whorl.store import Store
from whorl.store.importing import Options, Parsed, Report, import_file
from whorl.store.importing.meanings import figure_named as named
from whorl.store.importing.meanings import figure_of_column as of_column

Write = Callable[..., Path]
Parse = Callable[..., Parsed]
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


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("max_pwr", "power_max"),
        ("max_power_w", "power_max"),
        ("pwr_max", "power_max"),
        ("power.max [W]", "power_max"),
        ("power.draw.max [W]", "power_max"),
        ("maxPower", "power_max"),
        ("peak_power_watts", "power_max"),
        ("p95_power", "power_p95"),
        ("power_95th_percentile", "power_p95"),
        ("p50_power", "power_median"),
        ("average_power", "power_mean"),
        ("avg_clock", "sm_clock_mean"),
        ("mean_freq", "sm_clock_mean"),
        ("clocks.sm.min [MHz]", "sm_clock_min"),
        ("min_memfreq", "mem_clock_min"),
        ("max_gpu_temp_c", "temperature_max"),
        ("temperature.memory.mean", "memory_temperature_mean"),
        ("std_temp", "temperature_sd"),
        ("utilization.gpu [%]", "utilization"),
        ("mem_util_avg", "memory_utilization_mean"),
        ("energy_j", "energy_total"),
        ("clocks.max.sm [MHz]", None),
        ("max_power_limit", None),
        ("min_iter_dur", None),
        ("kern_min_start", None),
        ("perf_min", None),
        ("mean_perf", None),
        ("power_q1", None),
        ("pwr", None),
    ],
)
def test_a_column_is_known_by_the_words_of_its_name(column: str, name: str | None) -> None:
    found = of_column(column)
    assert (found and found.name) == name
    if name is not None:
        assert named(name) == found


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


def test_an_unknown_format_gives_what_states_its_unit_and_asks_for_the_rest(store: Store, write: Write) -> None:
    text = [["a", 5 + i, 300, 61, 250 if i < 5 else 200, 97] for i in range(10)]
    path = write("card,s,max_power_w,temp_max,power_limit,fan", text)
    report = import_file(store, path, Options(columns={"card": "gpu", "s": "time:s"}, workload="hpl"))
    assert list(figures(store)) == ["power_max"]
    assert "if temp_max is the highest GPU temperature, say so with --map temp_max=temperature_max:C" in report.notes
    assert "if power_limit is the power limit that was set, say so with --map power_limit=power_limit:W" in report.notes
    assert report.ignored == ["temp_max", "power_limit", "fan"]


@pytest.mark.parametrize(("column", "value"), [("power", "hot"), ("power_limit", "none set"), ("temperature [V]", 60)])
def test_other_names_of_what_runs_have_cost_nothing_either(
    column: str, value: object, store: Store, write: Write
) -> None:
    text = [row[:4] + row[5:] for row in rows(value)]
    report = add(store, write(f"exp,uuid,ts,perf,{column}", text))
    assert (report.total.kept, report.ignored) == (10, [column])
    runs = store.scan("runs").collect()
    assert runs["power_w"].null_count() == runs["temperature_c"].null_count() == 10


def test_power_and_temperature_without_a_statistic_are_the_medians(store: Store, write: Write) -> None:
    add(store, write("exp,uuid,ts,perf,power_w,temperature", [row[:4] + row[5:] for row in rows(250.5, 61)]))
    runs = store.scan("runs").collect()
    assert (set(runs["power_w"]), set(runs["temperature_c"])) == ({250.5}, {61.0})
    assert figures(store) == {}


@pytest.mark.long(short=1)
@pytest.mark.parametrize("column", ["power_cap", "enforced.power.limit [W]"])
def test_a_power_limit_parts_the_runs(column: str, store: Store, write: Write) -> None:
    add(store, write(f"{HEADER},{column}", rows(lambda i: 250 if i % 2 else 300)))
    assert set(measurements(store)["workload"].cast(pl.String)) == {"sgemm [250 W]", "sgemm [300 W]"}
