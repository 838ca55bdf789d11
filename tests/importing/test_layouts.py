"""Tables of runs: the layouts that were published for many clusters, their numbers and further telemetry."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

import polars as pl
import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, Report, import_file

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Write = Callable[..., Path]
Parse = Callable[..., Parsed]
Refusal = Callable[..., str]
Rows = list[list[object]]
R = random.Random(5)
UUIDS = [f"GPU-{uuid.UUID(int=R.getrandbits(128))}" for _ in range(48)]
GOOD = 40
"""Rows before those with the texts that a test tries."""


def telemetry(clock: int = 1500, power: int = 280) -> list[object]:
    return [clock + 7 * R.randrange(-5, 5), 877, R.randrange(40, 80), round(power * R.uniform(0.95, 1.02), 3)]


def frontera(app: str) -> tuple[str, Rows]:
    header = ",exp,reps,cabinet,node,device,train_time,mean_iter_dur,perf,max_iter_dur,min_iter_dur,uuid"
    middle, train = (0.179, 0) if app == "bert" else (0.136, 187)
    rows: Rows = []
    for i in range(48):
        perf = middle * R.uniform(0.98, 1.05)
        place = [f"c{196 + i // 16}", 42 + i // 4 % 4, i % 4]
        trained = train and train * R.uniform(0.9, 1.1)
        rows.append([i, app, i % 3, *place, trained, perf * 1.1, perf, perf * 9, perf * 0.9, UUIDS[i]])
    return header, rows


def nanoseconds() -> tuple[str, Rows]:
    rows: Rows = []
    for i in range(48):
        perf = round(2_585_983_424 * R.uniform(0.99, 1.02))
        rows.append([f"c{196 + i // 16}", i % 4, "pagerank", 42 + i // 4 % 4, perf / 2002, perf, i % 5, UUIDS[i]])
    return "cabinet,device,model,node,perf_avg,perf,run,uuid", rows


def summit() -> tuple[str, Rows]:
    header = (
        ",exp,input_size,reps,uuid,cabinet,node,row,col,ts,kern,kern_min_start,kern_max_start,num_kerns,perf,freq,"
        "memfreq,temp,pwr"
    )
    rows: Rows = []
    for i in range(48):
        perf, start = 2400 * R.uniform(0.95, 1.1), 290 + R.random()
        place = [f"h{41 + i // 24}", f"h{41 + i // 24}n{1 + i // 6 % 4:02d}", "h", 41 + i // 24]
        kernels = ["volta_sgemm_128x64_nn", f"{start:.6f}", f"{start + perf * 0.099:.6f}", 100, f"{perf:.6f}"]
        rows.append([i, "sgemm", 25536, 100, UUIDS[i], *place, 1_600_000_000 + i, *kernels, *telemetry()])
    return header, rows


# The rows, the unit of `perf`, what proves it ("" where nothing does), and the first row's node, cabinet, slot, place.
LAYOUTS: dict[str, tuple[Callable[[], tuple[str, Rows]], str, str, tuple[object, ...]]] = {
    "bert": (lambda: frontera("bert"), "s", "", ("c196-42", "c196", 0, "c196-42-0")),
    "resnet": (lambda: frontera("resnet"), "s", "column 'train_time'", ("c196-42", "c196", 0, "c196-42-0")),
    "pagerank": (nanoseconds, "ns", "", ("c196-42", "c196", 0, "c196-42-0")),
    "cabinets": (summit, "ms", "the kernels' start times", ("h41n01", "h41", None, None)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [48, 1])
def test_unit_and_gpus_of_each_layout(layout: str, count: int, write: Write, parse: Parse, refusal: Refusal) -> None:
    make, unit, source, place = LAYOUTS[layout]
    header, rows = make()
    path = write(header, rows[:count])
    if not source:
        assert "say it, for example --unit perf=ms" in refusal(path)
    found = parse(path, units={} if source else {"perf": unit})
    assert found.report.units["perf"]["unit"] == unit
    assert found.report.units["perf"]["from"].startswith(source or "--unit")
    assert found.frame.height == count == found.report.gpus
    numbers = [float(str(row[header.split(",").index("perf")])) for row in rows[:count]]
    factor = {"s": 1e3, "ms": 1.0, "ns": 1e-6}[unit]
    assert found.frame["value"].to_list() == pytest.approx([number * factor for number in numbers])
    assert found.frame.select("node", "cabinet", "slot", "place").row(0) == place
    overruled = parse(path, units={"": "us"})
    assert overruled.report.units["perf"] == {"unit": "us", "from": "--unit"}
    assert overruled.frame["value"].to_list() == pytest.approx([number / 1000 for number in numbers])


def test_the_name_of_a_host_stays_as_slurm_knows_it(write: Write, parse: Parse) -> None:
    rows: Rows = [["sgemm", UUIDS[i], f"gpu-node-{i // 4:03d}", i % 4, 2440.5 + i] for i in range(48)]
    frame = parse(write("exp,uuid,node,device,perf_ms", rows)).frame
    assert frame.select("node", "slot", "place").row(29) == ("gpu-node-007", 1, "gpu-node-7-1")


LONGHORN = "exp,uuid,cabinet,node,ts,kern_min_start,kern_max_start,num_kerns,perf,freq,memfreq,temp,pwr,device"


def longhorn(device: bool = True) -> Rows:
    rows: Rows = []
    for i in range(40):
        perf = 2440 * R.uniform(0.96, 1.05)
        place = [f"c{1 + i // 16:03d}", f"{1 + i // 4 % 4:03d}", 1_590_000_000 + i]
        rows.append(["sgemm", UUIDS[i], *place, 290.5, 290.5 + perf * 0.099, 100, perf, *telemetry(1350, 295)])
        rows[-1].append(i % 4 if device else 0)
    return rows


@pytest.mark.parametrize(
    ("name", "factor", "unit"),
    [
        ("perf_ms", 1, "ms"),
        ("perf_s", 1e-3, "s"),
        ("perf [ns]", 1e6, "ns"),
        ("perf (us)", 1e3, "us"),
        ("Perf", 1, "ms"),
    ],
)
def test_units_in_the_name(name: str, factor: float, unit: str, write: Write, parse: Parse, refusal: Refusal) -> None:
    rows, relabelled = longhorn(), longhorn()
    expected = [float(str(row[8])) for row in rows]
    for row in rows:
        row[8] = float(str(row[8])) * factor
    header = LONGHORN.replace(",perf,", f",{name},")
    found = parse(write(header, rows))
    assert found.report.units[name]["unit"] == unit
    assert found.frame["value"].to_list() == pytest.approx(expected)
    if unit != "ms":  # the kernels' start times contradict the name
        assert f"{name}=UNIT" in refusal(write(header, relabelled)).replace("'", "")


def test_a_device_column_that_puts_two_gpus_in_one_place(write: Write, parse: Parse) -> None:
    found = parse(write(LONGHORN, longhorn(device=False)))
    assert found.frame["place"].null_count() == found.frame["slot"].null_count() == 40
    assert found.frame["node"].null_count() == 0
    assert any("the device column was not used" in note for note in found.report.notes)
    rows = longhorn()
    rows.append([*rows[0]])
    rows[-1][1] = UUIDS[45]  # a board that was replaced costs its place alone
    found = parse(write(LONGHORN, rows))
    assert (found.frame["place"].null_count(), found.report.gpus) == (2, 41)


def test_the_unit_after_most_values_is_that_of_the_column(write: Write, parse: Parse) -> None:
    rows = [["sgemm", UUIDS[i % 48], f"{2 + i / 100} s"] for i in range(60)]
    rows[7][2] = "2407 ms"
    rows[8][2] = "2.5"
    found = parse(write("exp,uuid,perf", rows))
    assert found.report.units["perf"] == {"unit": "s", "from": "the values"}
    assert found.frame["value"][7] == pytest.approx(2407)
    assert found.report.refusals == {"perf is not a readable time": [10]}


def test_two_workloads_are_accounted_for_apart(write: Write, parse: Parse, store: Store) -> None:
    path = write("exp,uuid,perf", [[("sgemm", "stream")[i % 3 == 0], UUIDS[i], 2400 + i] for i in range(30)] * 2)
    report = import_file(store, path, Options(units={"": "ms"}))
    counts = {name: (counts.kept, counts.duplicates) for name, counts in report.workloads.items()}
    assert counts == {"sgemm": (20, 20), "stream": (10, 10)}
    named = parse(path, units={"": "ms"}, workload="all")
    assert named.frame["workload"].unique().to_list() == ["all"]


# -- numbers and times ----------------------------------------------------------------------------------------


def column_of(write: Write, parse: Parse, column: str, *texts: str) -> Parsed:
    """A file of GOOD rows and one for each text in a column, the first of them on line GOOD + 2."""
    fields = {"uuid": UUIDS[0], "perf_ms": "2400", "temp": "50", "pwr": "290", "ts": "1590000000"}
    rows = [list((fields | {"ts": str(1_590_000_001 + i)}).values()) for i in range(GOOD)]
    for number, text in enumerate(texts):
        own = {"uuid": UUIDS[1], "ts": str(1_590_000_001 + number)}
        rows.append(list((fields | own | {column: text}).values()))
    return parse(write("uuid,perf_ms,temp,pwr,ts", rows))


def refused(texts: list[str], found: Parsed) -> list[str]:
    """Those of the texts whose lines are refused."""
    lines = sorted(line for lines in found.report.refusals.values() for line in lines)
    return [texts[line - GOOD - 2] for line in lines]


def test_numbers_that_are_read(write: Write, parse: Parse) -> None:
    found = column_of(write, parse, "perf_ms", "2500", "+2.5e3", " 2500. ", "025e2")
    assert found.frame["value"].to_list()[GOOD:] == [2500] * 4
    assert column_of(write, parse, "pwr", "250.0 W", "250.0W").frame["power_w"].to_list()[GOOD:] == [250] * 2


def test_durations_that_are_refused(write: Write, parse: Parse) -> None:
    texts = ["1e309", "inf", "-inf", "0x1F", "２４００", "2_400", "1e", "--5", "0", "-0", "-5", "2.4.0", "12:30"]
    texts += ["2 400", "2400 s", "2400\t5", "2400 parsecs"]
    found = column_of(write, parse, "perf_ms", *texts)
    assert refused(texts, found) == texts
    assert "perf_ms is below 0 ms" in found.report.refusals
    for far_off in ("9" * 40, "1e-309"):  # several of them would be numbers in another unit
        assert refused([far_off], column_of(write, parse, "perf_ms", far_off)) == [far_off]


def test_what_means_unknown(write: Write, parse: Parse) -> None:
    texts = ["nan", "NaN", "N/A", "", "-1", "-1.0", "None", "null"]
    found = column_of(write, parse, "temp", *texts)
    assert found.frame["temperature_c"].to_list() == [50.0] * GOOD + [None] * len(texts)
    assert found.report.placeholders == {"temp": len(texts)}
    found = column_of(write, parse, "perf_ms", *texts)
    assert refused(texts, found) == texts
    assert list(found.report.refusals) == ["perf_ms is missing"]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1590000000", 0),
        ("1590000000.25", 250_000),
        ("1590000000250", 250_000),
        ("1590000000250125000", 250_125),
        ("2020-05-20T18:40:00Z", 0),
        ("2020-05-20 20:40:00.250+02:00", 250_000),
        ("2020/05/20 18:40:00", 0),
        ("-1", None),
    ],
)
def test_instants_that_are_read(text: str, micros: int | None, write: Write, parse: Parse) -> None:
    time = None if micros is None else at(2020, 5, 20, 18, 40, 0, micros)
    assert column_of(write, parse, "ts", text).frame["began"][-1] == time


def test_instants_that_are_refused(write: Write, parse: Parse) -> None:
    texts = f"0 1 159000000 15900000000 {'9' * 19} {'9' * 40} 1e9 -5 2020-05-20 20:40:00 yesterday inf".split()
    texts += ["2020-13-01 00:00:00", "1970-01-01 00:00:00", "2263-01-01 00:00:00", "9999-12-31 23:59:59"]
    texts += ["2020-05-20 18:40:00+99:00", "2020-02-30 00:00:00"]
    found = column_of(write, parse, "ts", *texts)
    assert refused(texts, found) == texts
    assert list(found.report.refusals) == ["ts is not a readable time stamp"]


def test_a_duration_far_off_is_stored_and_told(write: Write, parse: Parse) -> None:
    rows = [["sgemm", gpu, 2400 + i] for i, gpu in enumerate(UUIDS)]
    rows[4][2] = 24_000_000
    found = parse(write("exp,uuid,perf_ms", rows))
    assert found.report.total.refused == 0
    assert ["500 times" in note and "first line 6" in note for note in found.report.notes].count(True) == 1


# -- further telemetry of runs --------------------------------------------------------------------------------

HEADER = "exp,uuid,ts,perf,pwr"


def rows_with(*more: object) -> Rows:
    """Ten runs; `more` ends each row, or is a function of the row's number."""
    tails = [[cell(i) if callable(cell) else cell for cell in more] for i in range(10)]
    return [["sgemm", UUIDS[i], 1_600_000_000 + i, 2440 + i, 290.5, *tails[i]] for i in range(10)]


def add(store: Store, path: Path, **options: object) -> Report:
    return import_file(store, path, Options(units={"": "ms"}, **options))  # type: ignore[arg-type]


def figures(store: Store) -> dict[str, tuple[str, list[float]]]:
    """Unit and values by figure, `time` left out."""
    frame = store.scan("results").filter(pl.col("figure") != "time").sort("value").collect()
    parts = frame.group_by("figure", maintain_order=True)
    return {str(name): (part["unit"][0], part["value"].to_list()) for (name,), part in parts}


def test_each_becomes_a_figure_with_its_unit(store: Store, write: Write) -> None:
    header = f"{HEADER},max_pwr,pwr_min_mw,avg_clock [GHz],temp_p95 [K],std_temp,utilization.gpu [%],freq_p0"
    report = add(store, write(header, rows_with(301.25, 60_500, 1.41, 333.15, 2.5, 97, 1)))
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


def test_codes_are_null_and_damaged_values_cost_no_row(store: Store, write: Write) -> None:
    damaged = {2: "-1", 4: "[N/A]", 5: "9999", 7: "high"}
    report = add(store, write(f"{HEADER},max_pwr", rows_with(lambda i: damaged.get(i, 300 + i))))
    assert report.total.kept == 10
    assert report.placeholders == {"max_pwr": 2}
    assert figures(store)["power_max"][1] == [300, 301, 303, 306, 308, 309]
    assert report.notes == ["max_pwr: 2 values cannot be the highest board power, so NULL is stored (first line 7)"]


def test_a_column_that_holds_something_else_is_left_out(store: Store, write: Write) -> None:
    report = add(store, write(f"{HEADER},max_pwr,util_mean", rows_with("305000", "0.9")))
    assert (report.total.kept, figures(store)) == (10, {})
    assert report.notes[0].startswith("max_pwr is not stored: column 'max_pwr' does not contain a highest board power")
    assert report.notes[1].startswith("util_mean is not stored: column 'util_mean' has no unit; give it: --map")


def test_a_power_limit_parts_the_runs(store: Store, write: Write) -> None:
    add(store, write(f"{HEADER},cap,spread", rows_with(lambda i: 250 if i % 2 else 300, 1.5)),
        columns={"cap": "power_limit:W", "spread": "power_sd:W"})  # fmt: skip
    assert figures(store) == {"power_sd": ("W", [1.5] * 10)}
    limits = store.sql("select distinct conditions.asked_power_limit_w w from runs order by 1").to_pylist()
    assert [row["w"] for row in limits] == [250.0, 300.0]
