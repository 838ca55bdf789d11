"""The seam of formats: rows of a reader, named after meanings, take the way of all imports."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.events import Event
from whorl.store.importing import Options, Parsed, formats, import_file, read_file
from whorl.store.importing.formats import Format
from whorl.store.importing.rows import Rows, Value
from whorl.store.vocabulary import EventKind

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Parse = Callable[..., Parsed]


def _read_runs(text: str, rows: Rows) -> None:
    """`GPU WORKLOAD SECONDS` or `GPU WORKLOAD lost`, several to a line with `;` between them."""
    for line, entries in enumerate(text.splitlines()[1:], start=2):
        for number, entry in enumerate(entries.split(";")):
            parts = entry.split()
            if len(parts) != 3:
                rows.refuse(line, "it has not three words")
                continue
            gpu, workload, seconds = parts
            values: dict[str, Value] = {
                "index": gpu,
                "workload": workload,
                "bandwidth [GB/s]": 4.0,
                "serial": "S1",
                "colour": "red",
            }
            if seconds == "lost":
                key = rows.add(line, values | {"status": "lost", "status_detail": "it fell off the bus"}, text)
                rows.event(key, Event(EventKind.LOST, None, "it fell off the bus"))
            else:
                rows.add(line, values | {"time [s]": seconds}, text + str(number))


def _read_telemetry(text: str, rows: Rows) -> None:
    for line, entry in enumerate(text.splitlines()[1:], start=2):
        clock, watts, replays = entry.split()
        rows.add(line, {"index": 0, "timestamp": clock, "power [W]": watts, "pcie_replays": replays})


@pytest.fixture(autouse=True)
def _two_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    def begins(word: str) -> Callable[[str], bool]:
        return lambda head: head.startswith(word)

    mine = (
        Format("toy runs", "runs", begins("#runs"), _read_runs),
        Format("toy stream", "telemetry", begins("#stream"), _read_telemetry),
    )
    monkeypatch.setattr(formats, "FORMATS", mine)


def _file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "any.csv"
    path.write_text("\n".join(lines))
    return path


def test_runs_of_several_rows_a_line(tmp_path: Path, store: Store) -> None:
    path = _file(tmp_path, "#runs", "0 copy 0.25; 1 copy 0.25; 1", "0 triad 2;1 triad lost")
    report = import_file(store, path, Options(node="n1", at="2026-05-01 12:00:00", time_zone="Europe/Berlin"))
    assert (report.format, report.kind, report.total.rows, report.total.kept) == ("toy runs", "runs", 5, 4)
    assert report.refusals == {"it has not three words": [2]}
    assert report.ignored == ["colour"]
    runs = store.sql("select workload, gpu, began, status, status_detail from runs order by workload, gpu").to_pylist()
    noon = at(2026, 5, 1, 10)
    assert [tuple(row.values()) for row in runs] == [
        ("copy", "n1:0", noon, "ok", None),
        ("copy", "n1:1", noon, "ok", None),
        ("triad", "n1:0", noon, "ok", None),
        ("triad", "n1:1", noon, "lost", "it fell off the bus"),
    ]
    figures = store.sql("select figure, unit, value, count(*) n from results group by all order by all").to_pylist()
    assert [tuple(row.values()) for row in figures] == [
        ("bandwidth", "GB/s", 4.0, 4),
        ("time", "ms", 250.0, 2),
        ("time", "ms", 2000.0, 1),
    ]
    assert store.sql("select ts, gpu, node, kind from events").to_pylist() == [
        {"ts": noon, "gpu": "n1:1", "node": "n1", "kind": "lost"}
    ]
    assert store.sql("select name, serial from gpus_now order by name").to_pylist()[0] == {
        "name": "n1/0",
        "serial": "S1",
    }


def test_equal_rows_of_other_records_are_other_runs(tmp_path: Path, store: Store) -> None:
    import_file(store, _file(tmp_path, "#runs", "0 copy 0.25"), Options(node="n1"))
    again = import_file(store, _file(tmp_path, "#runs", "0 copy 0.25", "0 copy 0.5"), Options(node="n1"))
    assert (again.total.kept, again.total.duplicates) == (2, 0)


def test_a_name_for_the_only_gpu_replaces_its_number(tmp_path: Path, parse: Parse) -> None:
    one = parse(_file(tmp_path, "#runs", "0 copy 0.25", "0 triad 0.5"), node="n1", gpu="left")
    assert one.frame.select("gpu", "node", "slot").unique().rows() == [("left", "n1", None)]
    two = parse(_file(tmp_path, "#runs", "0 copy 0.25; 1 copy 0.5"), gpu="left")
    assert two.frame["gpu"].to_list() == ["left:0", "left:1"]


def test_a_stream_has_metrics_that_nvidia_smi_does_not_print(tmp_path: Path, parse: Parse) -> None:
    found = parse(_file(tmp_path, "#stream", "1700000000 250.5 3", "1700000001 251 4", "1700000002 252 x"), node="n1")
    assert found.frame.select("gpu", "power_mw", "pcie_replays").rows() == [("n1:0", 250500, 3), ("n1:0", 251000, 4)]
    assert found.report.refusals == {"pcie_replays is not a readable number": [4]}


@pytest.mark.parametrize(
    "content", ["JobIDRaw|JobID|State\n7|7|COMPLETED\n", '{"meta": {},\n "jobs": [{"derived_exit_code": {}}]}\n']
)
def test_what_sacct_prints_is_told(content: str, tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = tmp_path / "acct.txt"
    path.write_text(content)
    assert "is what sacct prints of jobs; read it with whorl jobs import --log" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        "05/01/2026 10:00:00;S;1234.pbs01;user=ann exec_vnode=(n01:ngpus=4)\n",
        '"JOB_FINISH" "10.108" 1777603700 101 33816578 64 1777600000\n',
    ],
)
def test_accounts_of_other_schedulers_are_told(content: str, tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = tmp_path / "acct.txt"
    path.write_text(content)
    assert "write who had which GPU as a CSV with job_id, node, gpu, began, ended" in refusal(path)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    path = _file(tmp_path, "#runs", "0 copy 1", "0 triad 2")
    for options, said in (
        (Options(node="n1", header="a,b"), "leave out header="),
        (Options(node="n1", at="noon"), "--at 'noon' is not a time"),
        (Options(node="n1", at="2026-05-01", time_zone="Nowhere"), "no such time zone"),
        (Options(node="n1", workload="mine"), "leave out --workload"),
    ):
        with pytest.raises(InputError, match=said):
            read_file(path, options)


def test_nothing_in_it_is_told(tmp_path: Path, refusal: Callable[..., str]) -> None:
    assert "holds no measurement" in refusal(_file(tmp_path, "#runs"))
