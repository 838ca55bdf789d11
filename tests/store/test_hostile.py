"""A store that somebody made to harm who reads it: nothing outside it is touched, and no command hangs or crashes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import QueryError, StoreError
from whorl.store import Store, file_names, journal_file, parquet, replacing
from whorl.store.schema import FORMAT, LATE, REPLACED, TABLES, arrow_schema
from whorl.store.system import files, processes
from whorl.tests.sizes import sample
from whorl.tests.store.journaler import LATER, batch, leave_journal, open_journal, powers, readings, seen, segments
from whorl.tests.stores import new_store

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
NO_FOLDER = "is a link or a file, and no folder of a store"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = new_store(tmp_path / "S")
    made.append({"telemetry": readings([0], power_mw=[7]), "runs": pa.table({"run_id": ["r"]})}, "x")
    return made


def use(root: Path) -> Store:
    """What readers and a caretaker do; none of it may end in an error."""
    store = Store.open(root)
    store.sql("select (select count(*) from telemetry), (select count(*) from runs), (select count(*) from latest)")
    store.arrow("telemetry")
    store.parts("telemetry")
    store.check()
    for verb in (["status"], ["compact", "--offline"], ["prune", "--keep", "1d", "--dry-run"]):
        answer = CliRunner().invoke(cli, ["store", *verb, "--store", str(root)])
        assert isinstance(answer.exception, SystemExit | None), (verb, answer.output, answer.exception)
        assert "Error" not in answer.output, (verb, answer.output)
    return store


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink()}


# -- notes ------------------------------------------------------------------------------------------------------


def plant_note(root: Path, number: int = 7, **said: Any) -> Path:
    """A note with a sound check; `said` takes the place of what it says."""
    whole = {"format": FORMAT, "number": number, "owner": None, "step": 2, "new": [], "old": {}, **said}
    return plant_text(root, json.dumps(whole).encode(), number)


def plant_text(root: Path, text: bytes, number: int = 7) -> Path:
    schema = arrow_schema(REPLACED.name)
    about = {**(schema.metadata or {}), b"whorl.note": b"%08x" % zlib.crc32(text) + text}
    path = root / "replaced" / f"{number:010d}.parquet"
    pq.write_table(schema.with_metadata(about).empty_table(), path)
    os.utime(path, (1, 1))
    return path


NOT_TO_BE_NAMED = (
    "telemetry/day=2020-01-01/../../outside/mine.parquet",
    "telemetry/../../outside/mine.parquet",
    "../outside/mine.parquet",
    "/etc/passwd",
    "store.toml",
    "whorl.duckdb",
    "journal/n.lock",
)


@pytest.mark.parametrize(("name", "step"), sample(itertools.product(NOT_TO_BE_NAMED, [1, 2]), short=1))
def test_a_note_removes_nothing_outside_nor_what_a_store_needs(
    store: Store, tmp_path: Path, name: str, step: int
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.parquet").write_bytes(b"mine")
    leave_journal(store, batch(["a"], 1, 1))
    kept = [outside / "mine.parquet", *(store.root / one for one in ("store.toml", "whorl.duckdb", "journal/n.lock"))]
    before = [path.read_bytes() for path in kept]
    plant_note(store.root, step=step, new=[name] if step == 1 else [], old={} if step == 1 else {name: 0})
    opened = use(store.root)
    assert [path.read_bytes() for path in kept] == before
    assert "which is not a file that whorl replaces" in str(opened.skipped)


def test_a_note_removes_nothing_through_a_linked_day_and_what_it_may_name_in_the_store(
    store: Store, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.00000000.parquet").write_bytes(b"mine")
    (store.root / "telemetry" / "day=2020-01-01").symlink_to(outside)
    (run,) = segments(store, "runs")
    plant_note(store.root, old={"telemetry/day=2020-01-01/mine.00000000.parquet": 0, f"runs/{run.name}": 0})
    use(store.root)
    assert (outside / "mine.00000000.parquet").read_bytes() == b"mine"
    assert Store.open(store.root).sql("select count(*) n from runs").to_pylist() == [{"n": 0}]


@pytest.mark.long
@pytest.mark.parametrize(
    "said",
    [
        {"owner": 5}, {"owner": ["a"]}, {"owner": "a-b-" + "9" * 40}, {"owner": "-" * 1000}, {"step": "much"},
        {"step": None}, {"old": []}, {"old": {"runs/x.00000000.parquet": 10**400}}, {"new": 7}, {"number": 8},
        {"old": {"runs/x.00000000.parquet": float("nan")}}, {"format": FORMAT + 1}, {"format": None},
        {"owner": f"{processes.host()}-{processes.pid_namespace()}-{10**30}-0"},
    ],
)  # fmt: skip
def test_a_note_that_says_strange_things_ends_nothing(store: Store, said: dict[str, Any]) -> None:
    path = plant_note(store.root, **said)
    os.utime(path, (1, 1))  # whoever owns it has not been heard of for long
    use(store.root)
    assert powers(store) == {("a", 0): 7}


@pytest.mark.long
@pytest.mark.parametrize("ahead", [2, 9_000_000_000])
def test_a_note_whose_number_follows_none_is_named_and_the_next_compaction_removes_it(store: Store, ahead: int) -> None:
    """Other clients of DuckDB follow the highest number, and whorl would when its own numbers come near."""
    store.append({"telemetry": readings([1], power_mw=[8])}, "y")
    store.compact(offline=True, now=LATER)
    (run,) = segments(store, "runs")
    note = plant_note(store.root, replacing.note_numbers(store.root)[-1] + ahead, old={f"runs/{run.name}": 0})
    opened = Store.open(store.root)
    assert opened.sql("select count(*) n from runs").to_pylist() == [{"n": 1}]
    for reasons in (opened.skipped, opened.check()):
        assert "its number follows that of no other note" in reasons[note]
    store.append({"telemetry": readings([2], power_mw=[9])}, "z")
    assert store.compact(offline=True, now=LATER).before >= 2
    assert not note.exists()
    assert seen(store, plain=True) == {("a", 0): 7, ("a", 1): 8, ("a", 2): 9}
    assert not use(store.root).skipped


def test_files_without_a_journals_name_are_named(store: Store) -> None:
    journal = leave_journal(store, batch(["a"], 1, 1))
    other = journal.with_name("copy of n.txt")
    shutil.copy(journal, other)
    renamed = journal.rename(journal.with_name("n-1.journal"))
    said = CliRunner().invoke(cli, ["store", "status", "--store", str(store.root), "--json"])
    assert json.loads(said.stdout)["skipped"].keys() == {str(renamed), str(other)}
    assert Store.open(store.root).check().keys() == {renamed, other}


# -- links, pipes and files in the place of others ------------------------------------------------------------------


def test_nothing_is_written_through_a_linked_folder(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder,) = (store.root / "telemetry").glob("day=*")
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    with pytest.raises(StoreError, match=NO_FOLDER):
        store.append({"telemetry": readings([1])}, "y")
    with open_journal(store) as journal:
        journal.append_batch(batch(["a"], 2, 1))
        with pytest.raises(StoreError, match=NO_FOLDER):
            journal.seal()
        assert powers(store) == {("a", 2): 1}
        folder.unlink()
    assert list(outside.iterdir()) == []
    assert powers(store) == {("a", 2): 1}


def test_a_linked_day_is_named_and_not_passed_over(store: Store, tmp_path: Path) -> None:
    """An old day was moved to another disk."""
    (folder,) = (store.root / "telemetry").glob("day=*")
    shutil.move(folder, tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    opened = use(store.root)
    assert powers(opened) == {}
    assert list(opened.skipped) == list(opened.check()) == [folder]
    assert "is a link" in opened.skipped[folder]


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", ["pending", "replaced", "journal", "runs", "late"])
@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_folder_that_is_a_link_or_a_file_is_refused_and_changes_nothing(
    store: Store, tmp_path: Path, name: str, kind: str
) -> None:
    other = new_store(tmp_path / "other")
    (other.root / "pending").mkdir(exist_ok=True)
    moves = [["runs/.tmp-host-00000000-1-0", "runs/committed.00000000.parquet"]]
    (other.root / "pending" / "x.json").write_text(json.dumps({"format": FORMAT, "moves": moves}))
    plant_note(other.root, step=1, new=["runs/new.00000000.parquet"])
    (other.root / "journal").mkdir(exist_ok=True)
    before = sorted(other.root.rglob("*"))
    shutil.rmtree(store.root / name, ignore_errors=True)
    if kind == "link":
        (store.root / name).symlink_to(other.root / name)
    else:
        (store.root / name).touch()
    with pytest.raises(StoreError, match=f"{name} {NO_FOLDER}"):
        Store.open(store.root)
    assert sorted(other.root.rglob("*")) == before


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


PLANTED: list[Callable[[Path], object]] = [
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/etc/passwd"),
    Path.mkdir,
]
PLACES = (
    "journal/a-1-a-0.journal", "journal/a-1-a-0.rows.journal", "replaced/0000000009.parquet", "pending/x.json",
    "verified.log", "late/day=2023-11-15/x.1.g.0_9999999999999999.00000000.parquet", "runs/y.00000000.parquet",
    "latest/y.0.00000000.parquet", "telemetry/day=2023-11-15/manifest.json", "telemetry/day=2023-11-16",
    "telemetry/day=2023-11-15/x.1.g.0_9999999999999999.00000000.parquet", "runs/_schema.parquet", "journal/n.lock",
)  # fmt: skip


@pytest.mark.parametrize("place", sample(PLACES, short=1))
def test_pipes_links_and_folders_in_the_place_of_files_are_left_out(store: Store, place: str) -> None:
    path = store.root / place
    for plant in PLANTED:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        plant(path)
        opened = use(store.root)
        assert powers(opened) == {("a", 0): 7}, (place, plant)
        assert opened.sql("select count(*) n from runs").to_pylist() == [{"n": 1}]
        if path.is_dir():
            shutil.rmtree(path)


@pytest.mark.parametrize("place", sample([one for one in PLACES if "day=2023-11-16" not in one], short=1))
def test_a_file_larger_than_any_memory_is_left_alone(store: Store, place: str) -> None:
    path = store.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make_sparse(path)
    assert powers(use(store.root)) == {("a", 0): 7}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "cannot read .*: it is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot read .*: it is a link and no regular file"),
        (make_sparse, r"store\.toml is damaged \(it is too large\)"),
    ],
)
def test_a_store_toml_that_never_ends_is_one_sentence(
    store: Store, make: Callable[[Path], object], reason: str
) -> None:
    (store.root / "store.toml").unlink()
    make(store.root / "store.toml")
    with pytest.raises(StoreError, match=reason):
        Store.open(store.root)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_lock_or_a_log_that_is_a_link_is_not_written(
    store: Store, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (store.root / "journal").mkdir(exist_ok=True)
    for name in ("placing.lock", "import.lock", "journal/n.lock", "verified.log"):
        (store.root / name).unlink(missing_ok=True)
        if name != "verified.log" or link is Path.symlink_to:  # a second name of a file of the store is no harm
            link(store.root / name, mine)
    assert powers(Store.open(store.root)) == {("a", 0): 7}
    with pytest.raises(StoreError, match=r"placing\.lock"):
        store.append({"telemetry": readings([2])}, "z")
    with pytest.raises(StoreError, match=r"import\.lock"), store.exclusive():
        pass
    with pytest.raises(StoreError, match=r"n\.lock"):
        open_journal(store)
    assert mine.read_text() == "mine"


# -- journals whose checks are right --------------------------------------------------------------------------------

SAID: dict[str, Any] = {
    "format": FORMAT, "table": "telemetry", "number": 1, "writer": ["evil", "h", "0", 1],
    "columns": [["power_mw", "<i4", "mW"]], "gpus": [["c", "e"]], "texts": ["t"],
}  # fmt: skip


def plant_journal(root: Path, said: object, record: bytes = b"", *, kind: str = "", written: int = 1) -> Path:
    """A journal whose layout says this, and of one tick."""
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    content = journal_file.block(b"L", 1, written, text)
    content += journal_file.block(b"T", 1, written, record or record_of())
    path = root / "journal" / f"evil-1-a-0{kind}.journal"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def record_of(*, gpu: int = 0, null: int = 0, value: int = 5, ts: int = 1_700_006_401_000_000) -> bytes:
    fields = [("ts", "<i8"), ("gpu", "<u2"), ("null", "u1"), ("power_mw", "<i4")]
    return np.array([(ts, gpu, null, value)], fields).tobytes()


STRANGE: dict[str, dict[str, Any]] = {
    "an object": {"columns": [["power_mw", "O", ""]]},
    "a complex number": {"columns": [["power_mw", "<c8", ""]]},
    "a text of bytes": {"columns": [["power_mw", "S4", ""]]},
    "a time": {"columns": [["power_mw", "<M4[s]", ""]]},
    "a column of texts": {"columns": [["power_mw", "<u2", ""], ["fan_speed", "<u2", ""]]},
    "a text of numbers": {"columns": [["quality", "<f4", ""]]},
    "a record larger than any memory": {"columns": [["power_mw", "V2000000000", ""]]},
    "no such type": {"columns": [["power_mw", "<z9", ""]]},
    "a shape": {"columns": [["power_mw", "(2,2)<i1", ""]]},
    "several fields": {"columns": [["power_mw", "<i2,<i2", ""]]},
    "twice": {"columns": [["power_mw", "<i2", ""], ["power_mw", "<i2", ""]]},
    "the key": {"columns": [["gpu", "<i4", ""]]},
    "the time": {"columns": [["ts", "<i4", ""]]},
    "no such column": {"columns": [["colour", "<i4", ""]]},
    "no columns": {"columns": None},
    "no GPUs": {"gpus": []},
    "GPUs that are numbers": {"gpus": [[1, 2]]},
    "GPUs that are lists": {"gpus": [[[], {}]]},
    "GPUs that are one": {"gpus": ["e"]},
    "half a character": {"gpus": [["c", "\ud800"]]},
    "a zero byte": {"gpus": [["c", "a\0b"]]},
    "texts that are numbers": {"texts": [1], "columns": [["quality", "<u2", ""], ["fan_speed", "<i2", ""]]},
    "another table": {"table": "runs"},
    "a newer format": {"format": FORMAT + 1},
    "no number": {"number": 10**400},
    "a writer that is a list": {"writer": [["a"], {}, [], 1]},
    "a process of no number": {"writer": ["n", processes.host(), processes.pid_namespace(), 10**30]},
    "a writer elsewhere": {"writer": ["../../../etc/passwd", "h", "0", 1]},
    "a writer of a zero byte": {"writer": ["a\0b", "h", "0", 1]},
}
HARMLESS = {"the key", "a zero byte", "a process of no number", "a writer elsewhere", "a writer of a zero byte"}


@pytest.mark.parametrize("case", sample(STRANGE, short=1))
def test_a_journal_whose_header_lies_harms_no_other_row(store: Store, case: str) -> None:
    path = plant_journal(store.root, SAID | STRANGE[case])
    opened = Store.open(store.root)
    found = powers(opened)
    assert found.pop(("a", 0)) == 7
    assert (path in opened.skipped) != bool(found) or case in HARMLESS, (found, opened.skipped)
    leave_journal(store, batch(["b"], 1, 1))
    use(store.root)
    after = seen(store)
    assert after.items() >= {("a", 0): 7, ("b", 1): 1}.items()
    assert list((store.root / "journal").glob("n-*.journal")) == [], "it keeps no other journal from being sealed"


@pytest.mark.long
@pytest.mark.parametrize(
    "record",
    [
        record_of(gpu=1), record_of(gpu=65_535), record_of()[:-1], b"x" * 1000, record_of(ts=2**63 - 1),
        record_of(ts=-(10**15)), record_of(null=255), record_of(ts=0) * 3,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["", ".any", ".rows"])
def test_a_journal_whose_records_lie_harms_no_other_row(store: Store, record: bytes, kind: str) -> None:
    plant_journal(store.root, SAID, record, kind=kind)
    leave_journal(store, batch(["b"], 1, 1))
    use(store.root)
    assert powers(store).items() >= {("a", 0): 7, ("b", 1): 1}.items()


@pytest.mark.long(short=1)
@pytest.mark.parametrize("written", [-(2**63), 2**63 - 1])
def test_a_journal_that_was_written_at_no_time_harms_no_other_row(store: Store, written: int) -> None:
    plant_journal(store.root, SAID, written=written)
    use(store.root)
    store.append({"telemetry": readings([1], "e")}, "late")
    use(store.root)
    assert powers(store)["a", 0] == 7


DEEP = b"[" * 200_000
TEXTS = [
    DEEP,
    b'{"format": 4, "gpus": ' + DEEP,
    b"\xff" * 50,
    b"null",
    b"[]",
    b"9" * 5000,
    b'{"format": "4", "table": 1e999}',
]


@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_strange_texts_in_every_small_file_are_named_or_left(
    store: Store, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = plant_journal(store.root, text)
    (store.root / "pending").mkdir(exist_ok=True)
    (store.root / "pending" / "deep.json").write_bytes(text)
    note = plant_text(store.root, text)
    (day,) = (store.root / "telemetry").glob("day=*")
    (day / "manifest.json").write_bytes(b"%08x" % zlib.crc32(text) + text)
    (store.root / "verified.log").write_bytes(text + b"\n")
    opened = use(store.root)
    assert {path, note} <= opened.skipped.keys()
    assert "deep.json is damaged" in caplog.text
    assert powers(opened) == {("a", 0): 7}
    about = store.root / "store.toml"
    about.write_bytes(about.read_bytes() + b"deep = " + text + b"\n")
    try:
        Store.open(store.root)
    except StoreError as error:
        assert "store.toml is damaged" in str(error)  # noqa: PT017 - some are sound


def plant_rows(root: Path, payload: bytes) -> Path:
    path = root / "journal" / "evil-1-a-0.rows.journal"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        journal_file.block(b"L", 0, 1, json.dumps(SAID | {"columns": [], "gpus": []}).encode())
        + journal_file.block(b"C" if payload.startswith(b"{") else b"R", 0, 1, payload)
    )
    return path


def stream_of(rows: pa.RecordBatch, table: str = "events", codec: str | None = None) -> bytes:
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(out, rows.schema.with_metadata({"whorl.table": table}), options=options) as stream:
        stream.write_batch(rows)
    return bytes(out.getvalue())


KINDS = pa.record_batch({"kind": ["gap"] * 100, "gpu": ["e"] * 100})
FOREIGN = {
    "another type": stream_of(pa.record_batch({"kind": [1]})),
    "no such column": stream_of(pa.record_batch({"colour": ["red"]})),
    "a column twice": stream_of(pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], ["kind", "kind"])),
    "no such table": stream_of(KINDS, "nothing"),
    "telemetry without a time": stream_of(pa.record_batch({"gpu": ["e"]}), "telemetry"),
    "a table that is made": stream_of(pa.record_batch({"gpu": ["e"]}), "latest"),
    "a table by days": stream_of(pa.record_batch({"gpu": ["e"]}), "telemetry_minutes"),
    "a dictionary": stream_of(pa.record_batch({"kind": pa.array(["a"]).dictionary_encode()})),
    "the time of writing": stream_of(pa.record_batch({"written": pa.array([1])})),
    "no columns": stream_of(pa.RecordBatch.from_arrays([], [])),
    "no JSON": b"{",
    "JSON without end": b'{"table":' + b"[" * 100_000,
    "no table": b'{"columns": {}}',
    "a text for columns": b'{"table": "events", "columns": "kind"}',
    "a column of another length": b'{"table": "events", "columns": {"kind": ["a"], "gpu": ["a", "b"]}}',
    "a number for a text": b'{"table": "events", "columns": {"kind": [1]}}',
    "a time beyond all": b'{"table": "events", "columns": {"ts": [1' + b"0" * 30 + b"]}}",
    "a list of a table": b'{"table": ["events"], "columns": {"kind": ["a"]}}',
}


@pytest.mark.parametrize("case", sample(FOREIGN, short=1))
def test_rows_of_other_tables_that_do_not_fit_harm_no_other_row(store: Store, case: str) -> None:
    store.append({"events": pa.table({"kind": ["mine"]})}, "e")
    path = plant_rows(store.root, FOREIGN[case])
    leave_journal(store, KINDS, table="events")
    opened = use(store.root)
    assert path in opened.skipped or case == "no columns"
    assert store.sql(
        "select kind, count(*) n from events where kind is not null group by 1 order by 1"
    ).to_pylist() == [
        {"kind": "gap", "n": 100},
        {"kind": "mine", "n": 1},
    ]
    assert list((store.root / "journal").glob("n-*.journal")) == []


# -- files whose names lie, and whose sums are right ------------------------------------------------------------------

DAYS = ("telemetry/day=2023-11-15", "late/day=2023-11-15", "telemetry/day=9999999999999999-01-01")
LYING = (
    "x.ffffffffffffffffffffffff.g.0_1", "x.1.g.0_" + "9" * 30, "x.1.g.-" + "9" * 30 + "_0", "x.1.g.5_1",
    "x." + "f" * 200 + ".g.0_1", "x.1.g" + "00ff" * 40 + ".0_1", "x.7fffffffffffffff.g.0_1",
)  # fmt: skip


@pytest.mark.parametrize(("folder", "name"), sample(itertools.product(DAYS, LYING), short=1))
def test_a_file_whose_name_lies_harms_no_other_row(store: Store, name: str, folder: str) -> None:
    spec = next(one for one in (*TABLES, LATE) if one.name == folder.partition("/")[0])
    rows = readings([1], "e")
    if spec.name == "late":
        rows = rows.append_column("written", pa.array([5]))
    body = parquet.encode(spec, rows)
    path = store.root / folder / f"{name}.{file_names.check_sum(spec.name, body):08x}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    use(store.root)
    assert powers(store)["a", 0] == 7
    store.append({"telemetry": readings([1, 2], "e")}, "y")
    use(store.root)
    assert powers(store)["a", 0] == 7
    store.prune("1d", offline=True, now=LATER)


def test_names_with_strange_characters_are_refused_or_named(store: Store) -> None:
    for name in ("", "../a", "a/b", ".a", "a\nb", "a b", "é"):
        with pytest.raises(StoreError, match="is not a valid name"):
            store.journal(name, background=False)
        with pytest.raises(StoreError, match="is not a valid name"):
            store.append({"runs": pa.table({"run_id": ["s"]})}, name)
    (run,) = segments(store, "runs")
    odd = [run.with_name(name) for name in ("a b.parquet", "new\nline.00000000.parquet", "é.parquet", "[x]*.parquet")]
    odd += [run.with_name(os.fsdecode(b"\xff.parquet"))]
    for path in odd:
        shutil.copy(run, path)
    opened = use(store.root)
    assert set(opened.skipped) == set(odd)
    assert opened.sql("select run_id from runs").to_pylist() == [{"run_id": "r"}]


def test_statements_without_a_name_are_one_sentence(store: Store) -> None:
    for query in ("update extensions", "connect", "explain connect", "select 1; connect"):
        with pytest.raises(QueryError):
            store.sql(query)


# -- intents -----------------------------------------------------------------------------------------------------


def intents() -> list[str]:
    source = "runs/.tmp-h-s-1-0"
    whole = json.dumps({"format": FORMAT, "moves": [[source, "runs/a.00000000.parquet"]]})
    moves: list[Any] = [
        [[source, "../../elsewhere.parquet"]], [["/etc/passwd", "runs/a.parquet"]], "runs", None, [[source, 7]],
        [["runs/a.parquet", "runs/b.parquet"]], [[source, "runs/../../a.parquet"]], [[source, "store.toml"]],
        [[source, "results/a.parquet"]], [[source]],
    ]  # fmt: skip
    texts = [whole[:cut] for cut in (0, 1, 20, len(whole) - 1)]
    texts += [json.dumps({"format": FORMAT, "moves": move}) for move in moves]
    return [*texts, json.dumps({"format": 99, "moves": []}), json.dumps({"moves": []})]


def test_a_damaged_intent_is_named_and_moves_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    (store.root / "runs" / ".tmp-h-s-1-0").write_bytes(b"half")
    (store.root / "pending").mkdir(exist_ok=True)
    intent = store.root / "pending" / "x-0.json"
    for text in sample(intents(), short=6):
        intent.write_text(text)
        before = content(store.root.parent)
        caplog.clear()
        opened = Store.open(store.root)
        assert f"{intent} is damaged" in caplog.text, text
        assert list(opened.check()) == [intent], text
        assert content(store.root.parent) == before, text
        assert opened.sql("select run_id from runs").to_pylist() == [{"run_id": "r"}], text
    store.append({"runs": pa.table({"run_id": ["s"]})}, "y")


def test_an_intent_whose_files_are_gone_is_named_and_ends(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    (store.root / "pending").mkdir(exist_ok=True)
    moves = [["runs/.tmp-h-s-1-0", "runs/a.00000000.parquet"]]
    intent = store.root / "pending" / "x-0.json"
    (run,) = segments(store, "runs")
    intent.write_text(json.dumps({"format": FORMAT, "moves": moves, "removes": [f"runs/{run.name}"]}))
    use(store.root)
    assert "runs/a.00000000.parquet, which is lost" in caplog.text
    assert not intent.exists()
    assert run.exists(), "no intent removes a file"


# -- other users ---------------------------------------------------------------------------------------------------


@as_root
def test_who_reads_another_users_store_repairs_and_writes_nothing(store: Store) -> None:
    dead = f"{processes.host()}-{processes.pid_namespace()}-999999999-0"
    (store.root / "runs" / f"{files.TEMPORARY}{dead}").write_bytes(b"half")
    (store.root / "whorl.duckdb").unlink()
    (run,) = segments(store, "runs")
    plant_note(store.root, old={f"runs/{run.name}": 0})
    (store.root / "verified.log").unlink(missing_ok=True)
    leave_journal(store, batch(["a"], 1, 1))
    os.chown(store.root, 12345, 12345)
    before = content(store.root)
    opened = Store.open(store.root)
    assert opened.sql("select count(*) n from runs").to_pylist() == [{"n": 0}]
    assert powers(opened) == {("a", 0): 7, ("a", 1): 1}
    opened.parts("telemetry")
    opened.check()
    assert content(store.root) == before


@as_root
def test_what_another_user_vouched_for_is_looked_at(store: Store) -> None:
    powers(Store.open(store.root))
    (path,) = segments(store)
    log = store.root / "verified.log"
    assert path.name in log.read_text()
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    status = path.stat()
    path.write_bytes(body)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a bad disk changes it
    os.chown(log, 12345, 12345)
    opened = Store.open(store.root)
    assert powers(opened) == {}
    assert list(opened.skipped) == [path]
