"""Streams of `nvidia-smi --query-gpu=... --format=csv`, as its options and its troubles shape them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file
from whorl.store.schema import arrow_rows

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Write = Callable[..., Path]
Parse = Callable[..., Parsed]
UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
HEADER = "timestamp, uuid, power.draw [W], temperature.gpu, clocks.sm [MHz], utilization.gpu [%], pstate"


def line(second: int, uuid: str = UUID, power: str = "250.12 W", clock: str = "1410 MHz", share: str = "98 %") -> str:
    return f"2023/07/14 10:12:{second:02d}.483, {uuid}, {power}, 61, {clock}, {share}, P0"


def test_units_beside_the_values_and_without(write: Write, parse: Parse) -> None:
    with_units = parse(write(HEADER, "\n".join(line(s) for s in range(10))))
    bare = "\n".join(line(s, power="250.12", clock="1410", share="98") for s in range(10))
    without = parse(write(HEADER, bare, name="b.csv"))
    assert with_units.frame.drop("run_id", strict=False).equals(without.frame)
    row = without.frame.row(0, named=True)
    assert (row["power_mw"], row["sm_clock_mhz"], row["utilization"], row["pstate"]) == (250_120, 1410, 98, 0)
    assert row["ts"] == at(2023, 7, 14, 10, 12, 0, 483000)
    assert row["gpu"] == row["uuid"] == UUID


def test_several_gpus_by_uuid_and_by_index(write: Write, parse: Parse) -> None:
    other = UUID.replace("0a", "ff")
    found = parse(write(HEADER, "\n".join(line(s, u) for s in range(5) for u in (UUID, other))))
    assert found.report.gpus == 2
    rows = "\n".join(f"{i}, 2023/07/14 10:12:0{s}.483, 55" for s in range(5) for i in (0, 1))
    by_index = parse(write("index, timestamp, temperature.gpu", rows, name="node7.csv"))
    assert sorted(by_index.frame["gpu"].unique().to_list()) == ["node7:0", "node7:1"]
    assert any("'index'" in note for note in by_index.report.notes)
    named = parse(write("index, timestamp, temperature.gpu", rows, name="node7.csv"), gpu="n9")
    assert sorted(named.frame["gpu"].unique().to_list()) == ["n9:0", "n9:1"]


def test_the_gpu_from_the_option_or_the_name(write: Write, parse: Parse) -> None:
    path = write("timestamp, temperature.gpu", "2023/07/14 10:12:00, 50", name="a100-7.log.csv")
    assert parse(path).frame["gpu"].to_list() == ["a100-7"]
    assert parse(path, gpu="x").frame["gpu"].to_list() == ["x"]


def test_several_gpus_without_a_name_are_refused(write: Write, refusal: Callable[..., str]) -> None:
    rows = "\n".join(f"2023/07/14 10:12:{s:02d}.000, {t}" for s in range(20) for t in (40, 60))
    assert "query uuid as well" in refusal(write("timestamp, temperature.gpu", rows))


def test_every_kind_of_unknown_is_null(write: Write, parse: Parse) -> None:
    texts = ["[N/A]", "N/A", "[Not Supported]", "[GPU is lost]", "[Unknown Error]", "", "[Insufficient Permissions]"]
    found = parse(write(HEADER, "\n".join(line(s, power=text) for s, text in enumerate([*texts, "99 W"]))))
    assert found.frame["power_mw"].to_list() == [None] * len(texts) + [99_000]
    assert found.report.placeholders == {"power.draw [W]": len(texts)}


def test_further_columns(write: Write, parse: Parse) -> None:
    header = (
        "timestamp, power.draw.average [W], memory.used [MiB], clocks_event_reasons.active, clocks.current.sm [MHz], "
        "clocks.current.memory [MHz], fan.speed [%], enforced.power.limit [W], temperature.memory, pstate"
    )
    row = "2023/07/14 10:12:00, 250.5 W, 1024 MiB, 0x0000000000000045, 1410 MHz, 1215 MHz, 40 %, 400.00 W, 70, P12"
    found = parse(write(header, row)).frame.row(0, named=True)
    assert found["power_average_mw"] == 250_500
    assert found["memory_used"] == 1024 * 1024**2
    assert found["clock_event_reasons"] == 0x45
    assert found["power_limit_mw"] == 400_000
    assert (found["memory_temperature_c"], found["fan_speed"], found["pstate"]) == (70, 40, 12)


@pytest.mark.parametrize("mask", ["0x7FFFFFFFFFFFFFFF", "0xFFFFFFFFFFFFFFFF", "0x", "-3", "9" * 40])
def test_a_mask_that_cannot_be_is_refused(mask: str, write: Write, parse: Parse) -> None:
    rows = "\n".join(f"2023/07/14 10:12:0{s}, {m}" for s, m in enumerate(("0x1", "0x4", mask)))
    found = parse(write("timestamp, clocks_throttle_reasons.active", rows))
    assert found.frame["clock_event_reasons"].to_list() == [1, 4]
    assert list(found.report.refusals.values()) == [[4]]


def test_huge_energy_and_memory_are_refused_and_do_not_overflow(write: Write, parse: Parse) -> None:
    header = "timestamp, total_energy_consumption [mJ], memory.used [MiB]"
    rows = "\n".join(
        f"2023/07/14 10:12:0{s}, {e}, {m}" for s, e, m in ((0, 5, 6), (1, 7, 8), (2, "1e40", 9), (3, 9, "9" * 30))
    )
    found = parse(write(header, rows))
    assert found.frame["energy_mj"].to_list() == [5, 7]
    assert sorted(n for lines in found.report.refusals.values() for n in lines) == [4, 5]


@pytest.mark.parametrize(
    ("header", "row", "what"),
    [
        ("power.draw [mW]", "250.12", "has a median of 250.12 mW"),
        ("power.draw [mW]", "250.12 W", "says mW and the values say W"),
        ("power.draw [V]", "250.12", "'V' is not a unit of power"),
        ("power.draw [W]", "250.12 V", "values in 'V'"),
        ("clocks.sm [GHz]", "1410", "does not contain"),
        ("clocks.sm [kHz]", "1410", "has a median of 1.41 MHz"),
    ],
)
def test_a_wrong_unit_is_refused(header: str, row: str, what: str, write: Write, refusal: Callable[..., str]) -> None:
    rows = "\n".join(f"2023/07/14 10:12:0{s}, {row}" for s in range(5))
    assert what in refusal(write(f"timestamp, {header}", rows))


def test_a_unit_that_differs_on_one_row_refuses_that_row(write: Write, parse: Parse) -> None:
    rows = [line(s) for s in range(10)]
    rows[3] = line(3, power="0.25012 kW")
    found = parse(write(HEADER, "\n".join(rows)))
    assert found.report.refusals == {"power.draw [W] is not a readable power": [5]}


def test_a_torn_last_line_and_a_log_that_was_appended_to(write: Write, parse: Parse) -> None:
    rows = [line(0), line(1), HEADER, line(2), line(3)[:31]]
    found = parse(write(HEADER, "\n".join(rows)))
    assert found.frame.height == 3
    assert found.report.refusals == {
        "it is the header line again": [4],
        "it has 2 fields, but the header names 7": [6],
    }


def test_an_appended_log_with_other_columns_is_refused(write: Write, refusal: Callable[..., str]) -> None:
    first = "timestamp, temperature.gpu, power.draw [W]"
    rows = "2023/07/14 10:12:00, 40, 41\ntimestamp, power.draw [W], temperature.gpu\n2023/07/14 10:12:01, 41, 40"
    assert "line 3 is a second header" in refusal(write(first, rows))


def test_a_second_reading_at_one_instant(write: Write, parse: Parse) -> None:
    rows = [line(s) for s in range(12)] + [line(3, power="99 W"), line(4)]
    found = parse(write(HEADER, "\n".join(rows)))
    assert found.report.refusals == {"it is a second reading of the same GPU at the same time": [14]}
    assert found.duplicates == [15]


def test_a_stream_without_time_or_header(write: Write, refusal: Callable[..., str]) -> None:
    assert "without `timestamp`" in refusal(write("power.draw [W], temperature.gpu", "250, 40"))
    assert "without noheader" in refusal(write(line(0), line(1)))


def zoned(write: Write, parse: Parse, zone: str, *clocks: str) -> list[at]:
    rows = "\n".join(f"{clock}, 4{i % 10}" for i, clock in enumerate(clocks))
    found: list[at] = parse(write("timestamp, temperature.gpu", rows), time_zone=zone).frame["ts"].to_list()
    return found


def test_time_zones(write: Write, parse: Parse) -> None:
    clocks = ("2023/07/14 12:00:00.5", "2023/01/14 12:00:00")
    assert zoned(write, parse, "Europe/Berlin", *clocks) == [
        at(2023, 7, 14, 10, 0, 0, 500000),
        at(2023, 1, 14, 11),
    ]
    explicit = ("2023-07-14T12:00:00Z", "2023-07-14T12:00:00+02:00", "2023-07-14 12:00:00-0730")
    assert zoned(write, parse, "Europe/Berlin", *explicit) == [
        at(2023, 7, 14, 12),
        at(2023, 7, 14, 10),
        at(2023, 7, 14, 19, 30),
    ]


def test_the_hour_that_is_skipped_and_the_one_that_comes_twice(write: Write, parse: Parse) -> None:
    skipped = [f"2023/03/26 {h}:30:00" for h in ("00", "01", "02", "03", "04")]
    found = parse(
        write("timestamp, temperature.gpu", "\n".join(f"{c}, 40" for c in skipped)), time_zone="Europe/Berlin"
    )
    assert found.report.refusals == {"timestamp is not a readable time stamp": [4]}
    assert found.frame["ts"].dt.hour().to_list() == [23, 0, 1, 2]

    twice = [
        f"2023/10/29 {h}:{m}:00" for h, m in (("01", 30), ("02", 10), ("02", 50), ("02", 10), ("02", 50), ("03", 30))
    ]
    times = zoned(write, parse, "Europe/Berlin", *twice)
    assert times == sorted(times)
    assert [(t.hour, t.minute) for t in times] == [(23, 30), (0, 10), (0, 50), (1, 10), (1, 50), (2, 30)]


@pytest.mark.parametrize("zone", ["Mars/Base", "Europe", "localtime", "", "../etc", "/etc/passwd"])
def test_a_zone_that_is_none(zone: str, write: Write, refusal: Callable[..., str]) -> None:
    path = write("timestamp, temperature.gpu", "2023/07/14 12:00:00, 40")
    assert refusal(path, time_zone=zone) == (
        f"--time-zone {zone}: there is no such time zone; an example is Europe/Berlin"
    )


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("NVIDIA A100-SXM4-80GB", 25),
        ("NVIDIA A30", 25),
        ("NVIDIA H100 80GB HBM3", 1000),
        ("NVIDIA GH200 480GB", 1000),
        ("NVIDIA RTX A6000", 1000),
        ("NVIDIA RTX 6000 Ada Generation", 1000),
        ("Quadro RTX 6000", 100),
        ("Tesla V100-SXM2-16GB", 10),
        ("Tesla K80", None),
        ("Vega 20", None),
    ],
)
def test_what_the_power_reading_averages_over_goes_by_the_model(
    model: str, window: int | None, write: Write, parse: Parse
) -> None:
    rows = [f"2023/07/14 10:12:0{s}, {model}, 250, 45" for s in range(3)]
    stream = write("timestamp, name, power.draw [W], temperature.gpu", "\n".join(rows))
    assert parse(stream).frame["power_window_ms"].to_list() == [window] * 3
    bare = write("timestamp, power.draw [W]", "2023/07/14 10:12:00, 250", name="b.csv")
    assert parse(bare).frame["power_window_ms"].to_list() == [None]
    assert any("--model NAME" in note for note in parse(bare).report.notes)
    said = parse(bare, model=model)
    assert said.frame.select("model", "power_window_ms").row(0) == (model, window)
    assert not any("--model NAME" in note for note in said.report.notes)
    assert any("--model is not used" in note for note in parse(stream, model="A100").report.notes)


def test_the_model_of_a_stream_from_the_store(write: Write, store: Store) -> None:
    known = {"cluster": ["fleet"], "gpu": [UUID], "uuid": [UUID], "node": ["n01"], "slot": [0]}
    store.append({"gpus": arrow_rows("gpus", known | {"model": ["NVIDIA A100-PCIE-40GB"]})}, "gpus")
    path = write("timestamp, power.draw [W]", "2023/07/14 10:12:00, 250")
    import_file(store, path, Options(gpu="n01/0"))
    assert store.sql("select gpu, power_window_ms from telemetry").to_pylist() == [{"gpu": UUID, "power_window_ms": 25}]


def test_a_stuck_power_sensor(write: Write, parse: Parse) -> None:
    rows = [f"2023/07/14 10:{12 + s // 60:02d}:{s % 60:02d}, 46.19, {32 + s // 10}" for s in range(200)]
    found = parse(write("timestamp, power.draw [W], temperature.gpu", "\n".join(rows)))
    assert found.frame["quality"].unique().to_list() == ["power_stuck"]
    assert found.events["kind"].to_list() == ["stuck_sensor"]
    moving = [row.replace("46.19", "46.20") if i == 150 else row for i, row in enumerate(rows)]
    fine = parse(write("timestamp, power.draw [W], temperature.gpu", "\n".join(moving)))
    assert fine.frame["quality"].null_count() == 200
