"""Streams of `nvidia-smi --query-gpu=... --format=csv`, as its options and its troubles shape them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from datetime import timedelta
from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file

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


@pytest.mark.long
def test_the_node_gives_gpus_their_name_and_an_index_its_gpu(write: Write, store: Store) -> None:
    rows = "\n".join(f"{i}, 2023/07/14 10:12:0{s}.483, 5{i}" for s in range(3) for i in (0, 1))
    import_file(store, write("index, timestamp, temperature.gpu", rows), Options(node="n7"))
    assert [tuple(row.values()) for row in store.sql("select name, gpu from gpus_now order by gpu").to_pylist()] == [
        ("n7/0", "n7:0"),
        ("n7/1", "n7:1"),
    ]
    of_host = "\n".join(f"n8, {row}, {UUID}" for row in rows.split("\n")[::2])
    import_file(store, write("host, index, timestamp, temperature.gpu, uuid", of_host, name="b.csv"), Options())
    assert store.sql("select name from gpus_now where uuid is not null").to_pylist() == [{"name": "n8/0"}]
    later = "\n".join(f"n8, {row}" for row in rows.replace("10:12", "11:12").split("\n"))
    import_file(store, write("host, index, timestamp, temperature.gpu", later, name="c.csv"), Options())
    found = store.sql("select distinct gpu from telemetry where hour(ts) = 11 order by gpu").to_pylist()
    assert [row["gpu"] for row in found] == [UUID, "n8:1"]


def test_several_gpus_without_a_name_are_refused(write: Write, refusal: Callable[..., str]) -> None:
    rows = "\n".join(f"2023/07/14 10:12:{s:02d}.000, {t}" for s in range(20) for t in (40, 60))
    assert "query uuid as well" in refusal(write("timestamp, temperature.gpu", rows))


def test_gpus_that_were_read_in_turn_are_not_taken_for_one(
    write: Write, parse: Parse, refusal: Callable[..., str]
) -> None:
    header = "timestamp, power.draw [W], name"
    times = [(second, 3 * gpu) for second in range(10) for gpu in range(4)]
    rows = "\n".join(f"2023/07/14 10:12:{s:02d}.{ms:03d}, {60 + 80 * ms}.1 W, NVIDIA A100" for s, ms in times)
    text = refusal(write(header, rows))
    assert all(part in text for part in ("in groups of 4", "--map COLUMN=gpu", "--gpu NAME"))
    said = parse(write(header, rows), gpu="n1")
    assert said.frame.height == 40
    assert any("in groups of 4" in note for note in said.report.notes)
    boards = rows.replace("NVIDIA A100", "00000000:07:00.0")  # then all of them are of one card
    assert parse(write(header.replace("name", "pci.bus_id"), boards)).report.gpus == 1
    slow = "\n".join(f"2023/07/14 10:12:{s:02d}.000, 60.1 W, NVIDIA A{100 - 90 * (s % 2)}" for s in range(8))
    assert "readings of NVIDIA A100 and of NVIDIA A10 in turn" in refusal(write(header, slow))


@pytest.mark.long
def test_files_of_one_name_are_of_one_gpu_only_if_their_times_agree(tmp_path: Path, store: Store) -> None:
    def log(node: str, seconds: range, ms: int) -> Path:
        path = tmp_path / node / "gpu.csv"
        path.parent.mkdir()
        rows = [f"2023/07/14 10:12:{s:02d}.{ms + g:03d}, {g}, 4{g}" for s in seconds for g in (0, 1)]
        path.write_text("\n".join(["timestamp, index, temperature.gpu", *rows]) + "\n")
        return path

    import_file(store, log("n1", range(8), 100), Options())
    with pytest.raises(InputError, match="other readings of gpu:0 of the same time, from another file of this name"):
        import_file(store, log("n2", range(8), 150), Options())
    assert import_file(store, log("grown", range(20), 100), Options()).total.kept == 24
    assert import_file(store, log("next", range(30, 34), 150), Options()).total.kept == 8
    assert import_file(store, tmp_path / "n2" / "gpu.csv", Options(node="n2")).total.kept == 16


def test_every_kind_of_unknown_is_null(write: Write, parse: Parse) -> None:
    texts = ["[N/A]", "N/A", "[Not Supported]", "[GPU is lost]", "[Unknown Error]", "", "[Insufficient Permissions]"]
    texts += ["[GPU requires reset]", "[Requested functionality has been deprecated]", "Unknown"]
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


@pytest.mark.parametrize(
    ("header", "row", "what"),
    [
        ("power.draw [mW]", "250.12 W", "says mW and the values say W"),
        ("power.draw [V]", "250.12", "'V' is not a unit of power"),
        ("power.draw [W]", "250.12 V", "values in 'V'"),
        ("clocks.sm [GHz]", "1410", "does not contain"),
    ],
)
def test_a_wrong_unit_is_refused(header: str, row: str, what: str, write: Write, refusal: Callable[..., str]) -> None:
    rows = "\n".join(f"2023/07/14 10:12:0{s}, {row}" for s in range(5))
    assert what in refusal(write(f"timestamp, {header}", rows))


def test_a_torn_last_line_and_a_log_that_was_appended_to(write: Write, parse: Parse) -> None:
    rows = [line(0), line(1), HEADER, line(2), line(3)[:31]]
    found = parse(write(HEADER, "\n".join(rows)))
    assert found.frame.height == 3
    assert found.report.refusals == {
        "it is the header line again": [4],
        "it has 2 fields, but the header names 7": [6],
    }


def test_a_stream_without_time_or_header(write: Write, refusal: Callable[..., str]) -> None:
    assert "without `timestamp`" in refusal(write("power.draw [W], temperature.gpu", "250, 40"))
    assert "--set header=timestamp,uuid,power.draw" in refusal(write(line(0), line(1)))
    assert "--set header=timestamp,uuid,power.draw" in refusal(write(f"0, {line(0)}", f"1, {line(1)}"))
    assert "leave out header=" in refusal(write(HEADER, line(1)), header="timestamp,power.draw")
    assert "does not contain time stamps" in refusal(
        write(line(0), line(1)), header="power.draw,uuid,timestamp,a,b,c,d"
    )


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
    with_commas = write("timestamp;temperature.gpu", "2023-07-14T12:00:00,25+02:00;40", name="comma.csv")
    assert parse(with_commas).frame["ts"].item() == at(2023, 7, 14, 10, 0, 0, 250000)


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
    equal = parse(write("timestamp, temperature.gpu", [[c, 40] for c in twice]), time_zone="Europe/Berlin")
    assert equal.frame["ts"].to_list() == times


@pytest.mark.parametrize("second", ["00", "00.250"])
@pytest.mark.parametrize("copied", [slice(0, None), slice(30, 60), slice(50, 60), slice(100, 130)])
def test_copies_of_rows_in_the_hour_that_comes_twice_are_duplicates(
    write: Write, parse: Parse, copied: slice, second: str
) -> None:
    """A log of 01:30 to 03:30 that goes back by an hour, with some of its rows once more."""
    civil = [f"{minute // 60:02}:{minute % 60:02}" for minute in (*range(90, 180), *range(120, 210))]
    seconds = [second] * 90 + ["00.500" if "." in second else "00"] * 90
    rows = [
        f"2023/10/29 {clock}:{of_minute}, {20 + number % 50}"
        for number, (clock, of_minute) in enumerate(zip(civil, seconds, strict=True))
    ]
    stop = copied.stop or len(rows)
    log = write("timestamp, temperature.gpu", "\n".join([*rows[:stop], *rows[copied], *rows[stop:]]))
    found = parse(log, time_zone="Europe/Berlin")
    assert found.frame["temperature_c"].to_list() == [20 + number % 50 for number in range(180)]
    assert found.report.total.duplicates == len(rows[copied])
    assert found.report.refusals == {}


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("NVIDIA A100-SXM4-80GB", 25),
        ("NVIDIA H100 80GB HBM3", 1000),
        ("Tesla V100-SXM2-16GB", 10),
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


SMI = "timestamp, power.draw [W], temperature.gpu, utilization.gpu [%]"


def stream(*readings: tuple[object, ...], began: at = at(2023, 7, 14, 10, 12), step: int = 1) -> str:
    """Rows of an nvidia-smi stream, `step` seconds apart."""
    times = [(began + timedelta(seconds=step * s)).strftime("%Y/%m/%d %H:%M:%S.%f") for s in range(len(readings))]
    return "\n".join(", ".join(map(str, (time, *row))) for time, row in zip(times, readings, strict=True))


def test_a_stuck_power_sensor(write: Write, parse: Parse) -> None:
    rows = [(46.19, 32 + s // 10, 50) for s in range(200)]
    found = parse(write(SMI, stream(*rows)))
    assert found.frame["quality"].unique().to_list() == ["power_stuck"]
    assert found.events.select("kind", "value", "duration_ns").rows() == [("stuck_sensor", 46190.0, 199 * 10**9)]
    moving = [(46.19 + (s // 90) / 100, *row[1:]) for s, row in enumerate(rows)]
    fine = parse(write(SMI, stream(*moving)))
    assert fine.frame["quality"].null_count() == 200
    assert not fine.events.height


def test_readings_of_0_w_are_marked_and_kept(write: Write, parse: Parse) -> None:
    dead = parse(write(SMI, stream(*[(0, 40 + s // 10, 100) for s in range(30)])))  # no reason to refuse the file
    assert dead.frame["power_mw"].to_list() == [0] * 30
    assert dead.frame["quality"].to_list() == ["power_zero"] * 30
    assert dead.events.select("kind", "n", "duration_ns").rows() == [("zero_power", 30, 29 * 10**9)]
    some = parse(write(SMI, stream(*[(0 if s in (3, 9) else 50.1 + s, 40, 0) for s in range(12)])))
    assert [n for n, mark in enumerate(some.frame["quality"]) if mark == "power_zero"] == [3, 9]
    assert any("2 power readings are 0 W" in note for note in some.report.notes)


def test_a_clock_that_was_set_back(write: Write, parse: Parse) -> None:
    rows = [(50 + s / 10, 40, 0) for s in range(60)]
    late = at(2023, 7, 14, 10, 12, 30, 500000)
    found = parse(write(SMI, "\n".join([stream(*rows), stream(*rows, began=late)])))
    assert found.frame.height == 120
    assert found.events.select("kind", "ts", "duration_ns").rows() == [("clock_step", late, -29_500_000_000)]
    apart = [stream(*rows, began=at(2023, 7, 14, 11)), stream(*rows)]  # two logs in the wrong order
    assert not parse(write(SMI, "\n".join(apart))).events.height
    assert not parse(write(SMI, "\n".join(reversed(stream(*rows).split("\n"))))).events.height  # the newest first


def test_summer_time_that_ends_in_a_stream(write: Write, parse: Parse) -> None:
    hour = [(50 + s / 100, 40, 0) for s in range(60)]
    first, second = at(2023, 10, 29, 2), at(2023, 10, 29, 2, 0, 0, 7000)
    path = write(SMI, "\n".join([stream(*hour, began=first, step=60), stream(*hour, began=second, step=60)]))
    found = parse(path)
    assert found.events["duration_ns"].to_list() == [-3_599_993_000_000]
    assert any("go back by 3599.993 s (line 62)" in note for note in found.report.notes)
    read = parse(path, time_zone="Europe/Berlin")
    assert not read.events.height
    assert read.frame["ts"].is_sorted()
