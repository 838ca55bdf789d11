"""Files of no known format, CSV and Parquet, whose columns the person names."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Write = Callable[..., Path]
Parse = Callable[..., Parsed]
Refusal = Callable[..., str]

NAMES = "card,what,seconds,watts,clock"
ROWS = [[f"card {i % 4}", "hpl", 12.5 + i, 300_000 + i, 1.41] for i in range(20)]
COLUMNS = {"card": "gpu", "what": "workload", "seconds": "time:s", "watts": "power:mW", "clock": "sm_clock:GHz"}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"secs": "time:s"}, "has no column 'secs' (--map)"),
        ({"seconds": "duration:s"}, "'duration' is not a known meaning"),
        ({"seconds": "time:parsec"}, "'parsec' is not a unit of time"),
        ({"seconds": "time:W"}, "'W' is not a unit of time"),
        ({"seconds": "time"}, "--unit seconds=ms"),
        ({"watts": "power"}, "--map watts=power:W or --unit watts=W"),
        ({"watts": "power:W"}, "does not contain a median board power in W (from --map)"),
        ({"what": "workload:s"}, "workload has no unit"),
        ({"watts": "time:s"}, "both 'seconds' and 'watts' are mapped to time"),
        ({"clock": "temperature:C", "watts": "sm_clock:Hz"}, "clock"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, str], what: str, write: Write, refusal: Refusal) -> None:
    assert what in refusal(write(NAMES, ROWS), columns=COLUMNS | changes)


def test_a_file_may_say_which_board_it_was_and_under_which_limit(write: Write, parse: Parse, refusal: Refusal) -> None:
    rows = [
        [f"card {i % 4}", 5 + i, "A100" if i % 2 else "[N/A]", 0.3, 1200 if i < 10 else "", "SN1"] for i in range(20)
    ]
    columns = {"card": "gpu", "s": "time:s", "board": "model", "limit": "power_limit:kW", "lock": "locked_clock:MHz"}
    file = write("card,s,board,limit,lock,number", rows)
    found = parse(file, columns=columns | {"number": "serial"}).frame
    assert found["model"].to_list() == [None, "A100"] * 10
    assert set(found["serial"]) == {"SN1"}
    assert "driver" not in found.columns
    stated = found["conditions"].to_list()
    assert stated[0] == {"asked_power_limit_w": 300.0, "locked_clock_mhz": 1200.0, "clock": "locked"}
    assert stated[-1] == {"asked_power_limit_w": 300.0, "locked_clock_mhz": None, "clock": "free"}
    assert "has no unit" in refusal(file, columns=columns | {"limit": "power_limit"})


def test_telemetry(write: Write, parse: Parse, refusal: Refusal) -> None:
    rows = [[f"2023-07-14T12:00:{s:02d}Z", "a", 0.25, 313.15] for s in range(10)]
    columns = {"t": "timestamp", "card": "gpu", "p": "power:kW", "k": "temperature:K"}
    found = parse(write("t,card,p,k", rows), columns=columns)
    assert found.frame.select("power_mw", "temperature_c").row(0) == (250_000, 40)
    assert "has no unit" in refusal(write("t,card,p,k", rows), columns=columns | {"p": "power"})
    assert "name a duration" in refusal(write("t,card,p,k", rows), columns={"card": "gpu", "p": "power:kW"})
    assert "at least one metric" in refusal(write("t,card,p,k", rows), columns={"card": "gpu", "t": "timestamp"})


def parquet(tmp_path: Path, **columns: Any) -> Path:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_with_every_type(tmp_path: Path, parse: Parse) -> None:
    start = dt.datetime(2023, 7, 14, 12)
    path = parquet(
        tmp_path,
        when=pa.array([start + dt.timedelta(seconds=i) for i in range(6)], pa.timestamp("us", tz="Europe/Berlin")),
        card=pa.array(["a", "b"] * 3).dictionary_encode(),
        took=pa.array([dt.timedelta(milliseconds=1500 + i) for i in range(6)]),
        power=pa.array([250, None, 251, 252, 253, 254], pa.int16()),
        heat=pa.array([40.5, float("nan"), 41.0, None, 42.0, float("inf")]),
        nested=pa.array([{"x": i % 2} for i in range(6)]),
        blob=pa.array([b"\xff\x00"] * 6),
        day=pa.array([start.date()] * 6),
    )
    columns = {"when": "began", "card": "gpu", "took": "time", "power": "power:W", "heat": "temperature:C"}
    found = parse(path, columns=columns)
    assert found.frame["value"].to_list() == [1500, 1501, 1502, 1503, 1504]
    assert found.frame["began"][0] == start
    assert found.frame["power_w"].to_list() == [250, None, 251, 252, 253]
    assert found.frame["temperature_c"].to_list() == [40.5, None, 41, None, 42]
    assert found.report.refusals == {"heat is not a readable temperature": [6]}
    assert found.report.ignored == ["nested", "blob", "day"]


@pytest.mark.long
def test_a_damaged_parquet_is_refused_or_read_whole(tmp_path: Path, parse: Parse, refusal: Refusal) -> None:
    r = random.Random(3)
    path = parquet(tmp_path, gpu=[f"g{i}" for i in range(50)], perf=[2400.0 + i for i in range(50)])
    whole = path.read_bytes()
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        if r.random() < 0.3:
            del data[r.randrange(len(data)) :]
        for _ in range(r.randint(1, 3)):
            if data:
                data[r.randrange(len(data))] ^= r.randrange(1, 256)
        path.write_bytes(data)
        try:
            found = parse(path, columns={"gpu": "gpu", "perf": "time:ms"})
        except InputError:
            assert refusal(path, columns={"gpu": "gpu", "perf": "time:ms"})
            refused += 1
        else:
            assert found.report.total.rows <= 50
    assert refused > 150


def test_numbers_of_gpus_on_one_node_are_not_taken_for_names(
    write: Callable[..., Path], parse: Callable[..., Parsed], refusal: Callable[..., str]
) -> None:
    of_one = write("host,gpu,perf_s", [["n0", i % 4, 2 + i / 100] for i in range(16)])
    assert "all are of node n0: say --map gpu=index" in refusal(of_one, columns={"gpu": "gpu"})
    rows = [[1_748_000_000 + i // 4, i % 4, 61 + i] for i in range(16)]
    stream = write("time,gpu,watt", rows, name="stream.csv")
    said = {"time": "timestamp", "watt": "power:W"}
    assert "all are of node n7: say --map gpu=index" in refusal(stream, node="n7", columns=said | {"gpu": "gpu"})
    assert parse(stream, node="n7", columns=said | {"gpu": "index"}).frame["gpu"].max() == "n7:3"
    (note,) = (n for n in parse(stream, columns=said | {"gpu": "gpu"}).report.notes if "no name but a number" in n)
    assert "--map gpu=index --node NAME" in note


OF_STUDY = [
    ["resnet", r, "c196", 11 + i // 4, i % 4, 186.3, 0.14, 0.135 + i / 1e4, f"GPU-{i:08x}-0000-0000-0000-000000000000"]
    for r in range(3)
    for i in range(8)
]


def test_gpus_and_times_of_usual_names_need_no_mapping(write: Write, parse: Parse) -> None:
    uuids = [row[-1] for row in OF_STUDY[:2]]
    readings = [[1_732_096_800 + i // 2, uuids[i % 2], 61_000 + i] for i in range(8)]
    found = parse(write("timestamp,uuid,power_mw", readings), columns={"power_mw": "power"})
    assert set(found.frame["gpu"]) == set(uuids)
    numbered = [[n, 1_732_096_800 + n, 61_000 + n] for n in range(8)]
    found = parse(write("index,timestamp,power_mw", numbered), columns={"power_mw": "power"}, gpu="a")
    assert set(found.frame["gpu"]) == {"a"}
    found = parse(write("gpu_index,timestamp,power_mw", numbered[:2]), columns={"power_mw": "power"}, node="n1")
    assert found.frame["gpu"].to_list() == ["n1:0", "n1:1"]
    found = parse(write("gpu_index,timestamp,power_mw", numbered[:1]), columns={"power_mw": "power"}, gpu="a")
    assert found.frame["gpu"].to_list() == ["a"]
    runs = [["n1", 0, uuids[0], 12.5], ["n1", 1, uuids[1], 12.6]]
    found = parse(write("host,slot,uuid,seconds", runs), columns={"seconds": "time:s"})
    assert found.frame["place"].to_list() == ["n1-0", "n1-1"]
    assert found.frame["gpu"].to_list() == uuids
    found = parse(write("host,slot,uuid,seconds", runs), columns={"seconds": "time:s", "host": "gpu"})
    assert found.frame["gpu"].unique().to_list() == ["n1"]


def test_what_is_of_no_known_format_is_told_how_to_map_runs_and_readings(write: Write, refusal: Refusal) -> None:
    sentence = refusal(write("when,board,watts", [["2026-11-20 10:00:00", "a", 61]]))
    assert "of runs --map COLUMN=time:ms --map COLUMN=gpu, of readings --map COLUMN=timestamp --map COLUMN=power:W" in (
        sentence
    )


def test_a_table_with_rows_of_several_metrics_is_refused(
    write: Callable[..., Path], parse: Callable[..., Parsed], refusal: Callable[..., str]
) -> None:
    rows = [[1_748_000_000 + i, "n1", ("power", "temp")[i % 2], (61, 40)[i % 2]] for i in range(8)]
    said = {"time": "timestamp", "value": "power:W"}
    text = refusal(write("time,node,metric,value", rows), columns=said)
    assert "column 'metric' has 'power' and 'temp', so column 'value' holds several metrics" in text
    assert parse(write("time,node,metric,value", rows[::2], name="one.csv"), columns=said).frame.height == 4


def test_gpus_of_several_clusters_or_nodes_do_not_become_one(
    write: Callable[..., Path], parse: Callable[..., Parsed], refusal: Callable[..., str]
) -> None:
    head = "cluster,cabinet,node,device,exp,perf_ms"
    rows = [[("ls6", "frontera")[i % 2], "c001", 1 + i % 2, i // 2 % 4, "sgemm", 2100 + i] for i in range(16)]
    (note,) = (n for n in parse(write(head, rows), cluster="x").report.notes if "column 'cluster'" in n)
    assert "rows of frontera and of ls6, and all are stored as of cluster x" in note
    same = [[*row[:2], 1, *row[3:]] for row in rows]
    assert "both have a GPU c001-1-0: split the file, and import each part" in refusal(write(head, same, name="s.csv"))
    hosts = write("host,elapsed", [[f"n{i % 2}", 2 + i / 10] for i in range(8)], name="hosts.csv")
    assert "rows of node n0 and of node n1" in refusal(hosts, columns={"elapsed": "time:s"}, gpu="g")


def test_runs_of_files_of_one_name_are_told(tmp_path: Path, store: Store) -> None:
    notes: list[list[str]] = []
    for node in ("n1", "n2"):
        path = tmp_path / node / "r.csv"
        path.parent.mkdir()
        path.write_text(f"gpu,time_ms\n0,{100 + len(notes)}\n1,{110 + len(notes)}\n")
        options = Options(columns={"gpu": "index", "time_ms": "time"}, workload="g")
        notes.append([n for n in import_file(store, path, options).notes if "another file of this name" in n])
    assert notes[0] == []
    assert notes[1][0].startswith("the store has runs of r:0, r:1 already")


def test_a_table_with_a_column_for_each_gpu_is_imported_once_for_each(write: Callable[..., Path], store: Store) -> None:
    path = write("time,gpu0,gpu1", [[1_748_000_000 + i, 61 + i, 301 + i] for i in range(5)])

    def of(gpu: str, column: str) -> Options:
        return Options(gpu=gpu, columns={"time": "timestamp", column: "power:W"})

    assert [import_file(store, path, of(f"n1/{n}", f"gpu{n}")).total.kept for n in (0, 1)] == [5, 5]
    assert import_file(store, path, of("n1/1", "gpu1")).already
    for gpu, column in (("n1/0", "gpu1"), ("n1/2", "gpu1")):  # the second GPU in the place of another
        with pytest.raises(InputError, match="was imported before"):
            import_file(store, path, of(gpu, column))
    rows = store.sql("select gpu, max(power_mw) as most from telemetry group by gpu order by gpu").to_pylist()
    assert [tuple(row.values()) for row in rows] == [("n1/0", 65_000), ("n1/1", 305_000)]
