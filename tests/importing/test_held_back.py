"""Cases that a reviewer found: files that real systems write, and moments at which processes die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, Report, import_file

Write = Callable[..., Path]
Parse = Callable[..., Parsed]


def add(store: Store, path: Path, **options: object) -> Report:
    return import_file(store, path, Options(**options))  # type: ignore[arg-type]


def test_equal_rows_of_two_gpus_are_two_runs(store: Store, write: Write) -> None:
    for name, gpu in (("a.csv", "A"), ("b.csv", "B"), ("a.csv", "B")):
        add(store, write("perf_ms", [[10.1], [10.2], [10.3 + (name == "b.csv")]], name=name), gpu=gpu, workload="x")
    rows = store.sql("select gpu, list(value order by value) v from measurements group by 1 order by 1").to_pylist()
    assert rows == [{"gpu": "A", "v": [10.1, 10.2, 10.3]}, {"gpu": "B", "v": [10.1, 10.2, 10.3, 11.3]}]


@pytest.mark.long
def test_what_a_dead_import_decided_is_seen_by_one_that_was_open_already(store: Store, write: Write) -> None:
    rows = [["sgemm", f"c001-1-{i % 4}", 1_600_000_000 + i, 2440 + i] for i in range(10)]
    whole, part = (
        write("exp,uuid,ts,perf", rows, name="whole.csv"),
        write("exp,uuid,ts,perf", rows[:8], name="part.csv"),
    )
    early = Store.open(store.root)
    code = """
import os, signal, sys
from pathlib import Path
from whorl.store import Store
from whorl.store import commits
from whorl.store.system import files
from whorl.store.importing import Options, import_file
commits._finish = lambda root, intent: os.kill(os.getpid(), signal.SIGKILL)
import_file(Store.open(sys.argv[1]), Path(sys.argv[2]), Options(units={"": "ms"}))
"""
    killed = subprocess.run([sys.executable, "-c", code, str(store.root), str(part)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert os.listdir(store.root / "pending")  # noqa: PTH208 - the intent is durable, nothing is in place
    report = add(early, whole, units={"": "ms"})
    assert (report.total.kept, report.total.duplicates) == (2, 8)
    counted = Store.open(store.root).sql("select count(*) n, count(distinct run_id) d from measurements").to_pylist()
    assert counted == [{"n": 10, "d": 10}]


@pytest.mark.parametrize("column", ["pci.bus_id", "serial"])
def test_a_stream_whose_gpus_another_column_tells_apart(column: str, write: Write, parse: Parse) -> None:
    rows = "\n".join(f"2023/07/14 10:12:{s:02d}.{g}03, 0000{g}:00.0, {100 + g} W" for s in range(9) for g in range(4))
    found = parse(write(f"timestamp, {column}, power.draw [W]", rows, name="n1.csv"))
    assert found.report.gpus == 4
    assert found.frame.group_by("gpu").agg(found.frame["power_mw"].n_unique()).height == 4


@pytest.mark.long
def test_further_metrics_of_the_same_instants_are_kept(store: Store, write: Write) -> None:
    def stream(header: str, values: list[str], name: str) -> Path:
        return write(
            f"timestamp, uuid, {header}",
            "\n".join(f"2023/07/14 10:12:0{i}, {UUID}, {v}" for i, v in enumerate(values)),
            name=name,
        )

    watts = [f"{250 + i} W" for i in range(5)]
    assert add(store, stream("power.draw [W]", watts, "p.csv")).total.kept == 5
    assert add(store, stream("clocks.sm [MHz]", ["1400 MHz"] * 5, "c.csv")).total.kept == 5
    again = add(store, stream("power.draw [W], clocks.sm [MHz]", [f"{w}, 1400 MHz" for w in watts], "both.csv"))
    assert (again.total.kept, again.total.duplicates) == (0, 5)
    other = add(store, stream("power.draw [W]", ["250 W", "99 W"], "other.csv"))
    assert (other.total.kept, other.total.duplicates, other.total.refused) == (0, 1, 1)
    assert other.refusals == {"the store has another reading of this GPU at this time": [3]}
    counted = store.sql("select count(power_mw) p, count(sm_clock_mhz) c, count(*) n from telemetry").to_pylist()
    assert counted == [{"p": 5, "c": 5, "n": 5}]


UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        ("GPU-8AF705259683161c", "GPU-8af705259683161c"),
        ("0xABCDEF0123456789", "0xabcdef0123456789"),
        ("c197-001-00", "c197-1-0"),
        (UUID.upper().replace("GPU-", ""), UUID),
    ],
)
def test_identities_of_real_systems(identity: str, key: str, write: Write, parse: Parse) -> None:
    found = parse(
        write("exp,uuid,ts,perf", [["2mm", identity, 1_600_000_000 + i, 5] for i in range(3)]), units={"": "s"}
    )
    assert found.frame["gpu"].unique().to_list() == [key]
    assert found.frame["workload"].unique().to_list() == ["2mm"]


def test_map_that_contradicts_the_name_is_refused_and_unit_decides(write: Write, parse: Parse) -> None:
    path = write("board,elapsed_ms", [["g1", 2400], ["g2", 2500]])
    columns = {"board": "gpu", "elapsed_ms": "time:s"}
    with pytest.raises(InputError, match="--unit elapsed_ms=s"):
        parse(path, columns=columns)
    found = parse(path, columns=columns | {"elapsed_ms": "time"}, units={"elapsed_ms": "s"})
    assert found.frame["value"].to_list() == [2_400_000, 2_500_000]


def test_an_option_that_is_empty_is_said() -> None:
    with pytest.raises(InputError, match="--cluster is empty"):
        Options(cluster=" ")
