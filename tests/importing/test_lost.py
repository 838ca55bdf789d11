"""GPUs that are lost in the middle of a log, lines of nvidia-smi itself, and GPUs that have no UUID."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path
from typing import Any

import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file
from whorl.store.schema import arrow_rows

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Write = Callable[..., Path]
Parse = Callable[..., Parsed]
GPUS = [f"GPU-aaaaaaaa-0000-0000-0000-00000000000{n}" for n in range(3)]
DAY = "2026/05/04 10:00:"


MESSAGES = [
    "Failed to initialize NVML: Driver/library version mismatch",
    "NVML library version: 570.124",
    "No devices were found",
    "Unable to determine the device handle for GPU0000:07:00.0: GPU is lost.  Reboot the system to recover this GPU",
]


def stream(write: Write, header: str, *rows: str, name: str = "smi.csv") -> Path:
    """A log of nvidia-smi: each row is read at the second of its number."""
    lines = [
        row if row in MESSAGES or row.startswith("timestamp") else f"{DAY}{second % 60:02d}.123, {row}"
        for second, row in enumerate(rows)
    ]
    return write(f"timestamp, {header}", "\n".join(lines), name=name)


def happened(parsed: Parsed) -> list[tuple[Any, ...]]:
    """Kind, GPU and second of the events."""
    rows: list[tuple[Any, ...]] = parsed.events.select("kind", "gpu", parsed.events["ts"].dt.second()).rows()
    return rows


@pytest.mark.parametrize("mark", ["[GPU is lost]", "GPU is lost", "[GPU requires reset]", "GPU requires reset"])
def test_a_lost_gpu_is_an_event_each_time_it_begins(mark: str, write: Write, parse: Parse) -> None:
    kind = "lost" if "lost" in mark else "needs_reset"
    gone = f"1, {mark}, {mark}, {mark}"
    rows = ["0, {}, 99 W, 40", "1, {}, 99 W, 41", gone, gone, gone, "1, {}, 98 W, 42", gone]
    parsed = parse(stream(write, "index, uuid, power.draw [W], temperature.gpu", *(
        row.format(GPUS[int(row[0])]) for row in rows)))  # fmt: skip
    assert happened(parsed) == [(kind, GPUS[1], 2), (kind, GPUS[1], 6)]
    assert parsed.report.total.refused == 0
    assert parsed.report.gpus == 2
    assert parsed.frame["power_mw"].count() == 3


def test_which_gpu_was_lost_another_column_says(write: Write, parse: Parse) -> None:
    for column, parts in (("pci.bus_id", "00000000:07:00.0"), ("serial", "1563221012345")):
        rows = [f"{GPUS[0]}, {parts}, 99 W", f"{GPUS[1]}, other, 99 W", f"[GPU is lost], {parts}, [GPU is lost]"]
        parsed = parse(stream(write, f"uuid, {column}, power.draw [W]", *rows))
        assert happened(parsed) == [("lost", GPUS[0], 2)]


def test_a_lost_gpu_is_the_same_when_the_log_is_imported_again(store: Store, write: Write) -> None:
    """By its address, of which the file's serials say more, and by one that no row of the file names otherwise."""
    rows = ["1560, 00000000:00:00.0, 9 W", "1561, 00000000:01:00.0, 9 W", "[N/A], 00000000:02:00.0, 9 W"]
    rows += [f"[GPU is lost], 00000000:0{number}:00.0, [GPU is lost]" for number in (1, 2, 3)]
    events = "select gpu, pci_bus_id from events order by pci_bus_id"
    for name in ("first.csv", "again.csv"):
        path = stream(write, "serial, pci.bus_id, power.draw [W]", *rows, name=name)
        path.write_text(path.read_text() + "\n" * len(name))
        import_file(store, path, Options(node="n1"))
        gpus = [row["gpu"] for row in store.sql(events).to_pylist()]
        assert gpus == ["1561", "n1:00000000:02:00.0", None]
    assert len(store.arrow("telemetry")) == 5


def test_a_lost_gpu_that_nothing_names_is_no_new_gpu(store: Store, write: Write) -> None:
    rows = [
        f"{GPUS[0]}, 00000000:01:00.0, 9 W",
        "GPU is lost, 00000000:02:00.0, GPU is lost",
        *[f"{GPUS[0]}, 00000000:01:00.0, 8 W"],
    ]
    path = stream(write, "uuid, pci.bus_id, power.draw [W]", *rows)
    report = import_file(store, path, Options(node="n1"))
    assert report.refusals == {"the GPU is lost, and only its PCI address is known": [3]}
    events = "select kind, gpu, node, pci_bus_id from events"
    assert store.sql(events).to_pylist() == [
        {"kind": "lost", "gpu": None, "node": "n1", "pci_bus_id": "00000000:02:00.0"}
    ]
    assert store.sql("select gpu from gpus_now").to_pylist() == [{"gpu": GPUS[0]}]


def test_a_log_of_a_gpu_that_is_lost_from_the_beginning_is_an_event(store: Store, write: Write) -> None:
    path = stream(write, "index, uuid, power.draw [W]", *["0, [GPU is lost], [GPU is lost]"] * 3)
    assert import_file(store, path, Options(node="n1")).total.kept == 3
    assert store.sql("select kind, gpu from events").to_pylist() == [{"kind": "lost", "gpu": "n1:0"}]
    assert import_file(store, path, Options(node="n1")).already
    grown = stream(write, "index, uuid, power.draw [W]", *["0, [GPU is lost], [GPU is lost]"] * 4, name="grown.csv")
    import_file(store, grown, Options(node="n1"))
    assert len(store.arrow("events")) == 1


def test_an_error_in_one_field_is_its_sensor_and_in_all_the_gpu(write: Write, parse: Parse) -> None:
    rows = ["0, 99 W, 40", "0, ERR!, 40", "0, ERR!, ERR!", "0, [Unknown Error], [Unknown Error]"]
    parsed = parse(stream(write, "index, power.draw [W], temperature.gpu", *rows), node="n1")
    assert happened(parsed) == [("lost", "n1:0", 2)]
    assert parsed.frame["power_mw"].to_list() == [99_000, None, None, None]


@pytest.mark.parametrize("number", [1, 300])
def test_lines_of_nvidia_smi_itself_are_counted_and_passed_over(number: int, write: Write, parse: Parse) -> None:
    header = "uuid, pci.bus_id, power.draw [W]"
    rows = [*MESSAGES[:2], f"timestamp, {header}", f"{GPUS[0]}, 00000000:07:00.0, 99 W", *MESSAGES * number]
    path = stream(write, header, *rows, f"{GPUS[0]}, 00000000:07:00.0, 98 W")
    path.write_text("\n".join([*MESSAGES[:3], path.read_text()]))
    parsed = parse(path, node="n1")
    assert parsed.report.total.as_dict() == {
        "rows": 4 * number + 8, "kept": 2, "duplicates": 0, "refused": 4 * number + 6
    }  # fmt: skip
    assert happened(parsed) == [("lost", GPUS[0], 3)]
    assert parsed.events["pci_bus_id"].to_list() == ["00000000:07:00.0"]
    assert sum("NVML library version: 570.124" in reason for reason in parsed.report.refusals) == 1


def test_a_gpu_at_an_address_is_that_of_its_node(store: Store, tmp_path: Path, write: Write) -> None:
    known = {"cluster": ["fleet"], "gpu": [GPUS[2]], "uuid": [GPUS[2]], "node": ["n3"], "pci_bus_id": ["0000:07:00.0"]}
    store.append({"gpus": arrow_rows("gpus", known)}, "gpus")
    for node in ("n1", "n2", "n3"):
        rows = [f"00000000:{bus}:00.0, {int(node[1])}0{second} W" for second in range(2) for bus in ("07", "0A")]
        path = stream(write, "pci.bus_id, power.draw [W]", *rows, name="gpu.csv")
        import_file(store, path, Options(node=node))
    gpus = store.sql("select gpu from telemetry group by 1 order by 1").to_pylist()
    assert [row["gpu"] for row in gpus] == [
        GPUS[2], *(f"{node}:00000000:{bus}:00.0" for node in ("n1", "n2") for bus in ("07", "0A")),
        "n3:00000000:0A:00.0",
    ]  # fmt: skip


def test_an_identity_that_is_empty_is_passed_over_if_another_is_there(write: Write, parse: Parse) -> None:
    rows = [f"0, [N/A], {60 + second} W" for second in range(3)]
    path = stream(write, "index, uuid, power.draw [W]", *rows)
    assert set(parse(path, node="n1").frame["gpu"]) == {"n1:0"}
    alone = stream(write, "uuid, power.draw [W]", *(row.partition(", ")[2] for row in rows), name="alone.csv")
    assert set(parse(alone).frame["gpu"]) == {"alone"}
    assert set(parse(alone, gpu="n1/0").frame["gpu"]) == {"n1/0"}


@pytest.mark.parametrize("name", ["GPU-v00-0", "c001-4-1", "node/gpu 7", "0xabc", "GPU-aaaa", "A"])
def test_any_spelling_is_a_name_in_a_column_that_is_mapped(name: str, write: Write, parse: Parse) -> None:
    path = write("board,uuid,elapsed_ms", [[f"{name}.{n}", f"{name}", 2400 + n] for n in range(3)])
    for column, gpus in (("board", {f"{name}.{n}" for n in range(3)}), ("uuid", {name})):
        parsed = parse(path, columns={column: "gpu", "elapsed_ms": "time"})
        assert set(parsed.frame["gpu"]) == gpus


def test_the_way_out_of_a_column_of_other_names_works(write: Write, parse: Parse) -> None:
    path = stream(write, "uuid, power.draw [W]", "GPU-v00-0, 99 W", "GPU-v00-1, 98 W")
    with pytest.raises(InputError, match="--map uuid=gpu accepts any name"):
        parse(path)
    assert set(parse(path, columns={"uuid": "gpu"}).frame["gpu"]) == {"GPU-v00-0", "GPU-v00-1"}


@pytest.mark.parametrize("column", ["index", "serial", "pci.bus_id"])
def test_the_only_gpu_of_a_file_may_be_named(column: str, write: Write, parse: Parse) -> None:
    rows = [f"00000000:07:00.{number}, 99 W" if "pci" in column else f"{number}, 99 W" for number in (1, 1, 1, 2)]
    assert set(parse(stream(write, f"{column}, power.draw [W]", *rows[:3]), gpu="left").frame["gpu"]) == {"left"}
    if column == "serial":
        assert set(parse(stream(write, f"{column}, power.draw [W]", *rows), gpu="left").frame["gpu"]) == {"1", "2"}


def test_a_node_that_the_file_names_is_kept(write: Write, parse: Parse) -> None:
    rows = [f"n{second % 2}, 0, 9{second} W" for second in range(4)]
    parsed = parse(stream(write, "host, index, power.draw [W]", *rows), node="n7")
    assert set(parsed.frame["gpu"]) == {"n0:0", "n1:0"}
    assert any("--node is not used" in note for note in parsed.report.notes)


def test_a_verdict_of_a_benchmark_is_stored_where_the_judge_finds_it(store: Store, write: Write) -> None:
    verdicts = {"PASS": "ok", "FAIL": "failed", "faulty": "wrong_result", "ERROR": "failed", "ok": "ok"}
    rows = [["n1", n, "gemm", 2400 + n, f"2026-05-04 10:00:0{n}", word] for n, word in enumerate(verdicts)]
    path = write("host,slot,app,ms,when,verdict", [*rows, ["n1", 9, "gemm", 1, "2026-05-04 10:00:09", "maybe"]])
    columns = {"ms": "time:ms", "when": "began", "verdict": "status", "slot": "index"}
    report = import_file(store, path, Options(columns=columns, cluster="c"))
    assert [reason.split(",")[0] for reason in report.refusals] == ["verdict is 'maybe'"]
    runs = store.sql("select gpu, status from runs order by gpu").to_pylist()
    assert [row["status"] for row in runs] == list(verdicts.values())
    events = store.sql("select ts, cluster, gpu, node, kind, workload from events order by ts").to_pylist()
    assert [tuple(row.values()) for row in events] == [
        (at(2026, 5, 4, 10, 0, second), "c", f"n1:{second}", "n1", kind, "gemm")
        for second, kind in ((1, "probe_failed"), (2, "wrong_result"), (3, "probe_failed"))
    ]


def test_a_table_of_verdicts_needs_no_durations(store: Store, write: Write) -> None:
    path = write("host,gpu,test,result", [["n1", 0, "diag", "PASS"], ["n1", 1, "diag", "FAIL"]])
    columns = {"gpu": "index", "test": "workload", "result": "status"}
    assert import_file(store, path, Options(columns=columns, at="2026-05-04 10:00:00")).total.kept == 2
    runs = store.sql("select gpu, status from runs order by gpu").to_pylist()
    assert [tuple(row.values()) for row in runs] == [("n1:0", "ok"), ("n1:1", "failed")]
    assert store.sql("select gpu, kind from events").to_pylist() == [{"gpu": "n1:1", "kind": "probe_failed"}]


def test_numbers_as_verdicts_are_not_guessed(write: Write, refusal: Callable[..., str]) -> None:
    path = write("gpu,ms,good", [["a", 2400, 1], ["b", 2401, 0]])
    columns = {"gpu": "gpu", "ms": "time:ms", "good": "status"}
    assert "good is '1', which is no verdict that whorl reads" in refusal(path, columns=columns)


def test_a_decimal_comma_is_named(write: Write, refusal: Callable[..., str]) -> None:
    rows = [f"{GPUS[0]}, 101,5 W, {40 + n}" for n in range(3)]
    path = stream(write, "uuid, power.draw [W], temperature.gpu", *rows)
    assert "decimal comma" in refusal(path)
    path.write_text(path.read_text().replace(", ", "; "))
    assert "decimal comma" in refusal(path)


REASONS = [f"clocks_{word}_reasons{active}" for word in ("event", "throttle") for active in ("", ".active")]


@pytest.mark.parametrize("column", REASONS)
def test_reasons_of_the_clock_are_read(column: str, write: Write, parse: Parse) -> None:
    parsed = parse(stream(write, f"uuid, power.draw [W], {column}", f"{GPUS[0]}, 9 W, 0x0000000000000004"))
    assert parsed.frame["clock_event_reasons"].to_list() == [4]


def test_the_header_may_come_again_and_stand_behind_rows(
    write: Write, parse: Parse, refusal: Callable[..., str]
) -> None:
    rows = [f"{GPUS[0]}, 9{second} W" for second in range(3)]
    path = stream(write, "uuid, power.draw [W]", *rows)
    header, *lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], header, *lines[1:]]))
    assert "--set header=timestamp,uuid,power.draw" in refusal(path)
    assert parse(path, header="timestamp,uuid,power.draw").report.refusals == {"it is the header line again": [2]}


def test_a_table_without_times_is_counted_from_at(write: Write, parse: Parse, refusal: Callable[..., str]) -> None:
    path = write("power.draw [W], index", "60 W, 0\n61 W, 1\n60 W, 0\n63 W, 1")
    assert "--at TIME --every SECONDS" in refusal(path)
    assert "--every 1" in refusal(path, at="2026-05-04 10:00:00")
    stamps = parse(path, at="2026-05-04 10:00:00", every=2.0).frame["ts"].to_list()
    assert stamps == [at(2026, 5, 4, 10, 0, second) for second in (0, 0, 2, 2)]
