"""The layouts that the same authors published for other clusters, with random values: identity, unit, and from what."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from whorl.store.importing import Parsed
from whorl.tests.sizes import sample

Rows = list[list[object]]
R = random.Random(5)
UUIDS = [f"GPU-{uuid.UUID(int=R.getrandbits(128))}" for _ in range(48)]
HEX = [f"{R.getrandbits(64):016x}" for _ in range(48)]


def telemetry(clock: int = 1500, power: int = 280) -> list[object]:
    return [clock + 7 * R.randrange(-5, 5), 877, R.randrange(40, 80), round(power * R.uniform(0.95, 1.02), 3)]


def frontera(app: str) -> tuple[str, Rows]:
    header = ",exp,reps,cabinet,node,device,train_time,mean_iter_dur,perf,max_iter_dur,min_iter_dur,uuid"
    middle, train = (0.179, 0) if app == "bert" else (0.136, 187)
    rows: Rows = []
    for i in range(48):
        perf = middle * R.uniform(0.98, 1.05)
        place = [f"c{196 + i // 16}", 42 + i // 4 % 4, i % 4]
        rows.append(
            [i, app, i % 3, *place, train and train * R.uniform(0.9, 1.1), perf * 1.1, perf, perf * 9, perf * 0.9]
        )
        rows[-1].append(UUIDS[i])
    return header, rows


def nanoseconds() -> tuple[str, Rows]:
    rows: Rows = []
    for i in range(48):
        perf = round(2_585_983_424 * R.uniform(0.99, 1.02))
        rows.append([f"c{196 + i // 16}", i % 4, "pagerank", 42 + i // 4 % 4, perf / 2002, perf, i % 5, UUIDS[i]])
    return "cabinet,device,model,node,perf_avg,perf,run,uuid", rows


def aggregated() -> tuple[str, Rows]:
    header = "exp,cabinet,node,device,uuid,mean_iter_dur_mean,perf,train_time_mean,train_time_median,norm_perf"
    rows: Rows = []
    for i in range(48):
        node = 1 + i // 4
        perf = 0.0257 * R.uniform(0.98, 1.02) * (2 if node == 7 else 1)
        rows.append(
            ["resnet", "c302", node, i % 4, f"c302-{node}-{i % 4}", perf * 1.2, perf, 61.5, 61.4, perf / 0.0257]
        )
    return header, rows


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


def vortex() -> tuple[str, Rows]:
    rows = [["sgemm", UUIDS[i], 1_600_000_000 + i, 2450 * R.uniform(0.97, 1.04), *telemetry()] for i in range(48)]
    return "exp,uuid,ts,perf,freq,memfreq,temp,pwr", rows


def corona() -> tuple[str, Rows]:
    rows: Rows = []
    for i in range(48):
        rows.append(["sgemm", HEX[i], f"corona{100 + i // 8}", 1_600_000_000 + i, 3100 * R.uniform(0.97, 1.04)])
        rows[-1] += [R.randrange(1600, 1800), 1000, R.randrange(40, 90), R.randrange(240, 300)]
    return "exp,uuid,node,ts,perf,freq,memfreq,temp,pwr", rows


# The rows, the unit of `perf`, what proves it ("" where nothing does), and the middle in ms.
LAYOUTS: dict[str, tuple[Callable[[], tuple[str, Rows]], str, str, float]] = {
    "bert of one cluster": (lambda: frontera("bert"), "s", "", 179 * 1.015),
    "resnet of one cluster": (lambda: frontera("resnet"), "s", "column 'train_time'", 136 * 1.015),
    "pagerank totals": (nanoseconds, "ns", "", 2586 * 1.005),
    "one row a GPU": (aggregated, "s", "column 'train_time_mean'", 25.7),
    "row and column of cabinets": (summit, "ms", "the kernels' start times", 2460),
    "no place at all": (vortex, "ms", "", 2460),
    "AMD": (corona, "ms", "", 3115),
}


@pytest.mark.long(short=7)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [48, 1])
def test_unit_and_gpus_of_each_layout(
    layout: str, count: int, write: Callable[..., Path], parse: Callable[..., Parsed], refusal: Callable[..., str]
) -> None:
    make, unit, source, middle = LAYOUTS[layout]
    header, rows = make()
    path = write(header, rows[:count])
    if not source:
        assert "say it, for example --unit perf=ms" in refusal(path)
    found = parse(path, units={} if source else {"perf": unit})
    assert found.report.units["perf"]["unit"] == unit
    assert found.report.units["perf"]["from"].startswith(source or "--unit")
    assert found.frame.height == count == found.report.gpus
    at = header.split(",").index("perf")
    factor = {"s": 1e3, "ms": 1.0, "ns": 1e-6}[unit]
    assert found.frame["value"].to_list() == pytest.approx([float(str(row[at])) * factor for row in rows[:count]])
    if count == 48:
        assert median(found.frame["value"].to_list()) == pytest.approx(middle, rel=0.03)


@pytest.mark.parametrize("layout", sample(LAYOUTS, short=2))
def test_unit_option_overrules_what_was_found(
    layout: str, write: Callable[..., Path], parse: Callable[..., Parsed]
) -> None:
    header, rows = LAYOUTS[layout][0]()
    found = parse(write(header, rows), units={"": "us"})
    assert found.report.units["perf"] == {"unit": "us", "from": "--unit"}
    at = header.split(",").index("perf")
    assert found.frame["value"].to_list() == pytest.approx([float(str(row[at])) / 1000 for row in rows])


def test_places_of_each_layout(write: Callable[..., Path], parse: Callable[..., Parsed]) -> None:
    expected = {
        "bert of one cluster": ("c196-42", "c196", 0, "c196-42-0"),
        "pagerank totals": ("c196-42", "c196", 0, "c196-42-0"),
        "one row a GPU": ("c302-1", "c302", 0, "c302-1-0"),
        "row and column of cabinets": ("h41n01", "h41", None, None),
        "no place at all": (None, None, None, None),
        "AMD": ("corona100", None, None, None),
    }
    for layout, place in expected.items():
        frame = parse(write(*LAYOUTS[layout][0]()), units={"": "ms"}).frame
        assert frame.select("node", "cabinet", "slot", "place").row(0) == place
        keyed = frame["uuid"].null_count() == 0
        assert keyed == (layout not in ("one row a GPU", "AMD"))


def test_the_name_of_a_host_stays_as_slurm_knows_it(write: Callable[..., Path], parse: Callable[..., Parsed]) -> None:
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
def test_units_in_the_name(
    name: str, factor: float, unit: str, write: Callable[..., Path], parse: Callable[..., Parsed]
) -> None:
    rows = longhorn()
    expected = [float(str(row[8])) for row in rows]
    for row in rows:
        row[8] = float(str(row[8])) * factor
    found = parse(write(LONGHORN.replace(",perf,", f",{name},"), rows))
    assert found.report.units[name]["unit"] == unit
    assert found.frame["value"].to_list() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["perf_s", "perf_ns", "perf [us]"])
def test_a_relabelled_duration_is_refused(
    name: str, write: Callable[..., Path], refusal: Callable[..., str], parse: Callable[..., Parsed]
) -> None:
    path = write(LONGHORN.replace(",perf,", f",{name},"), longhorn())
    assert f"{name}=UNIT" in refusal(path)
    assert parse(path, units={name: "ms"}).report.units[name] == {"unit": "ms", "from": "--unit"}


def test_a_device_that_is_always_zero_is_not_believed(write: Callable[..., Path], parse: Callable[..., Parsed]) -> None:
    found = parse(write(LONGHORN, longhorn(device=False)))
    assert found.frame["place"].null_count() == found.frame["slot"].null_count() == 40
    assert found.frame["node"].null_count() == 0
    assert any("the device column was not used" in note for note in found.report.notes)


def test_a_replaced_board_costs_its_place_alone(write: Callable[..., Path], parse: Callable[..., Parsed]) -> None:
    rows = longhorn()
    rows.append([*rows[0]])
    rows[-1][1] = UUIDS[45]
    found = parse(write(LONGHORN, rows))
    assert found.frame["place"].null_count() == 2
    assert found.report.gpus == 41


def test_most_labelled_values_do(write: Callable[..., Path], parse: Callable[..., Parsed]) -> None:
    rows = [["sgemm", UUIDS[i % 48], f"{2 + i / 100} s"] for i in range(60)]
    rows[7][2] = "2407 ms"
    rows[8][2] = "2.5"
    found = parse(write("exp,uuid,perf", rows))
    assert found.report.units["perf"] == {"unit": "s", "from": "the values"}
    assert found.frame["value"][7] == pytest.approx(2407)
    assert found.report.refusals == {"perf is not a readable time": [10]}


def test_two_workloads_are_accounted_for_apart(write: Callable[..., Path], parse: Callable[..., Parsed]) -> None:
    with_names = [["sgemm", UUIDS[i], 2400 + i] for i in range(30)] + [["stream", UUIDS[i], 90 + i] for i in range(20)]
    found = parse(write("exp,uuid,perf", with_names), units={"": "ms"})
    assert sorted(found.frame["workload"].unique().to_list()) == ["sgemm", "stream"]
    named = parse(write("exp,uuid,perf", with_names), units={"": "ms"}, workload="all")
    assert named.frame["workload"].unique().to_list() == ["all"]
