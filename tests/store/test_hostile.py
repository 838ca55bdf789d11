"""A store that somebody made to harm who reads it: nothing outside it is touched, and no command hangs or crashes."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whorl.errors import QueryError, StoreError
from whorl.store import Store, compaction
from whorl.store.readers import query
from whorl.store.rows import journal_file, replacing
from whorl.store.schema import FORMAT, REPLACED, arrow_schema
from whorl.store.system import files, processes
from whorl.tests.store.journaler import batch
from whorl.tests.stores import new_store

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = new_store(tmp_path / "S")
    made.append({"telemetry": pa.table(batch(["a"], 0, 7).to_pydict()), "runs": pa.table({"run_id": ["r"]})}, "x")
    return made


def note(root: Path, old: list[str], new: list[str], step: int = 2, one: str = "evil") -> Path:
    """A note of whorl's form that says that these files have changed places, a day ago."""
    rows = [
        {"table_name": name.split("/")[0], "file": "/".join(name.split("/")[-2:]), "side": side, "path": name}
        | {"hidden": (side == "old") == (step == 2), "step": step}
        for side, names in (("old", old), ("new", new))
        for name in names
    ]
    path = root / "replaced" / f"{one}.{step}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(REPLACED.name)), path)
    os.utime(path, (1, 1))
    return path


def use(root: Path) -> None:
    """What a reader and a caretaker do."""
    store = Store.open(root)
    store.sql("select (select count(*) from telemetry), (select count(*) from runs), (select count(*) from latest)")
    store.arrow("telemetry")
    store.check()
    compaction.compact(root, pace=replacing.OFFLINE)


NOT_TO_BE_NAMED = (
    "telemetry/day=2020-01-01/mine.parquet",
    "telemetry/../../outside/mine.parquet",
    "../outside/mine.parquet",
    "store.toml",
    "runs/_schema.parquet",
    "whorl.duckdb",
    "journal/n.lock",
)


def test_a_note_removes_nothing_outside_nor_what_a_store_needs(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.parquet").write_bytes(b"mine")
    (store.root / "telemetry" / "day=2020-01-01").symlink_to(outside)
    (store.root / "journal").mkdir(exist_ok=True)
    (store.root / "journal" / "n.lock").touch()
    kept = [store.root / name for name in ("store.toml", "whorl.duckdb", "runs/_schema.parquet", "journal/n.lock")]
    before = {path: path.read_bytes() for path in kept}
    for number, name in enumerate(NOT_TO_BE_NAMED):
        note(store.root, [name], ["runs/not-there.parquet"], 2, f"old{number}")  # it would be removed
        note(store.root, [], ["runs/not-there.parquet", name], 1, f"new{number}")  # and taken back
    note(store.root, ["runs/x.parquet"], [], 2)  # it does remove what it may name
    replacing.recover(store.root, 0)
    use(store.root)
    assert (outside / "mine.parquet").read_bytes() == b"mine"
    assert {path: path.read_bytes() for path in kept} == before
    assert not (store.root / "runs" / "x.parquet").exists()


def test_nothing_is_written_through_a_linked_folder(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(store.root / "telemetry" / "day=2023-11-15")
    (store.root / "telemetry" / "day=2023-11-15").symlink_to(outside)
    with pytest.raises(StoreError, match="it is a link or a file, and no folder of a store"):
        store.append({"telemetry": pa.table(batch(["a"], 1, 7).to_pydict())}, "y")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("depth", ["day=2023-11-15", "day=2023-11-15/n~*"])
def test_a_linked_folder_is_named_and_not_passed_over(tmp_path: Path, depth: str) -> None:
    """An old day was moved to another disk."""
    store = new_store(tmp_path / "day")
    with store.journal("n", background=False, offline=True) as journal:
        journal.append_batch(batch(["a"], 1, 7))
    (folder,) = (store.root / "telemetry").glob(depth)
    shutil.move(folder, tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    store = Store.open(store.root)
    assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 0}]
    assert list(store.skipped) == list(store.check()) == [folder]
    assert "is a link" in store.skipped[folder]
    store.compact(offline=True)
    assert folder.is_symlink()


def test_nothing_is_made_behind_a_linked_folder(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (store.root / "telemetry" / "day=2020-01-01").symlink_to(outside)
    with pytest.raises(OSError, match="it is a link or a file, and no folder of a store"):
        files.make_folder(store.root / "telemetry" / "day=2020-01-01" / "n~00000000")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["pending", "replaced", "journal", "runs"])
def test_a_folder_that_links_to_another_store_changes_nothing_there(store: Store, tmp_path: Path, name: str) -> None:
    other = new_store(tmp_path / "other")
    (other.root / "pending").mkdir(exist_ok=True)
    moves = [["runs/.tmp-host-00000000-1-0", "runs/committed.parquet"]]
    (other.root / "pending" / "x.json").write_text(json.dumps({"format": FORMAT, "moves": moves}))
    note(other.root, ["runs/old.parquet"], ["runs/new.parquet"], step=1)
    (other.root / "journal").mkdir(exist_ok=True)
    before = sorted(other.root.rglob("*"))
    shutil.rmtree(store.root / name, ignore_errors=True)
    (store.root / name).symlink_to(other.root / name)
    with pytest.raises(StoreError, match=f"{name} is a link or a file, and no folder of a store"):
        use(store.root)
    assert sorted(other.root.rglob("*")) == before


@pytest.mark.parametrize("name", ["replaced", "journal", "late"])
def test_a_file_in_the_place_of_a_folder_is_one_sentence(store: Store, name: str) -> None:
    shutil.rmtree(store.root / name, ignore_errors=True)
    (store.root / name).touch()
    with pytest.raises(StoreError, match=f"{name} is a link or a file, and no folder of a store"):
        Store.open(store.root)


def test_a_pipe_in_the_place_of_an_empty_file_is_replaced(store: Store) -> None:
    empty = store.root / "runs" / "_schema.parquet"
    empty.unlink()
    os.mkfifo(empty)
    use(store.root)
    assert empty.is_file()


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def test_a_commit_larger_than_any_memory_is_left_alone(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    (store.root / "pending").mkdir(exist_ok=True)
    make_sparse(store.root / "pending" / "x.json")
    use(store.root)
    assert "x.json is damaged (it is too large)" in caplog.text


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
def test_a_lock_that_is_a_link_is_not_written(store: Store, tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name in ("replaced.lock", "placing.lock", "compact.lock", "import.lock"):
        (store.root / name).unlink(missing_ok=True)
        link(store.root / name, mine)
    note(store.root, ["runs/x.parquet"], [])
    Store.open(store.root).sql("from runs")
    with pytest.raises(StoreError, match=r"compact\.lock"):
        store.compact(offline=True)
    with pytest.raises(StoreError, match=r"placing\.lock"):
        store.append({"telemetry": pa.table(batch(["a"], 2, 7).to_pydict())}, "z")
    with pytest.raises(StoreError, match=r"import\.lock"), store.exclusive():
        pass
    assert mine.read_text() == "mine"


@as_root
def test_who_reads_another_users_store_repairs_nothing(store: Store) -> None:
    dead = f"{processes.host()}-{processes.pid_namespace()}-999999999-0"
    left = store.root / "runs" / f"{files.TEMPORARY}{dead}"
    left.write_bytes(b"half")
    (store.root / "whorl.duckdb").unlink()
    notes = note(store.root, ["runs/x.parquet"], [])
    for lock in store.root.glob("*.lock"):
        lock.unlink()
    os.chown(store.root, 12345, 12345)
    assert Store.open(store.root).sql("select count(*) n from runs").to_pylist() == [{"n": 0}]
    assert left.exists()
    assert notes.exists()
    assert (store.root / "runs" / "x.parquet").exists()
    assert not (store.root / "whorl.duckdb").exists()
    assert list(store.root.glob("*.lock")) == []


def test_pipes_and_links_in_the_journals_folder_are_left_out(store: Store) -> None:
    folder = store.root / "journal"
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "a-1-a-0.telemetry.0.arrow")
    (folder / "b-1-a-0.telemetry.0.arrow").symlink_to("/dev/zero")
    (folder / "c-1-a-0.telemetry.0.arrow").symlink_to("/etc/passwd")
    os.mkfifo(store.root / "replaced" / "x.1.parquet")
    os.mkfifo(store.root / "late" / "x.parquet")
    (store.root / "pending").mkdir(exist_ok=True)
    os.mkfifo(store.root / "pending" / "x.json")
    use(store.root)
    assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 1}]


def test_a_journal_made_to_crash_its_readers_is_left_out(store: Store) -> None:
    """Its check is right, and the places of its texts lie outside the message."""
    with store.journal("n", background=False, offline=True) as journal:
        journal.append_batch(batch(["aaaa", "bbbb"], 3, 1))
        (part,) = journal_file.parts(store.root)
        content = bytearray(part.path.read_bytes())
        start = 8 + int.from_bytes(content[4:8], "little")
        schema = journal_file.head(part.path)
        whole = pa.py_buffer(memoryview(content)[start:])
        made = pa.ipc.read_record_batch(pa.ipc.read_message(whole), schema)
        offsets = made.column("gpu").buffers()[1]
        place = start + offsets.address - whole.address
        content[place + 4 : place + 8] = (1 << 30).to_bytes(4, "little")
        check = start + made.column(journal_file.CHECK).buffers()[1].address - whole.address
        content[check : check + 4] = zlib.crc32(content[start:check]).to_bytes(4, "little")
        del made, offsets, whole
        evil = store.root / "journal" / "evil-1-a-0.telemetry.0.arrow"
        evil.write_bytes(content)
    use(store.root)
    assert Store.open(store.root).sql("select count(*) n from telemetry").to_pylist() == [{"n": 3}]
    assert evil.exists() or evil.with_name(evil.name + journal_file.DAMAGED).exists()


def test_a_journal_of_foreign_columns_is_left_out(store: Store) -> None:
    writer = journal_file.Writer("evil", "h", "0", 1, 1)
    schema = journal_file.schema_of("telemetry", ["ts", "cluster", "gpu"], writer, "")
    for field in (pa.field("gpu", pa.list_(pa.int32())), pa.field("more", pa.null())):
        fields = [field, *(one for one in schema if one.name != field.name)]
        path = store.root / "journal" / "evil-1-a-0.telemetry.0.arrow"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pa.schema(fields, {**schema.metadata, b"whorl.check": b""}).serialize())
        use(store.root)
        with pytest.raises(ValueError, match=r"its (header is damaged|column)"):
            journal_file.read(path)


def test_statements_without_a_name_are_one_sentence(store: Store) -> None:
    for query_text in ("update extensions", "connect", "explain connect", "select 1; connect"):
        with pytest.raises(QueryError):
            store.sql(query_text)


def test_a_file_that_gives_way_while_a_query_begins_is_looked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append({"runs": pa.table({"run_id": ["s"]})}, "y")
    real = query.Connection.run

    def run(self: query.Connection, text: str, **how: bool) -> query.Answer:
        for name in ("x", "y"):
            path = store.root / "runs" / f"{name}.parquet"
            if path.exists():
                path.rename(path.with_name(f"{name}-joined.parquet"))
        return real(self, text, **how)

    monkeypatch.setattr(query.Connection, "run", run)
    assert store.sql("select run_id from runs order by 1").to_pylist() == [{"run_id": "r"}, {"run_id": "s"}]
    assert store.skipped == {}


@as_root
def test_a_second_user_of_a_shared_store_can_do_what_the_first_can(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        root = tmp_path / "S"
        root.mkdir()
        root.chmod(0o2775)
        shared = Store.create(root)
        with shared.journal("n", background=False, offline=True) as journal:
            journal.append_batch(batch(["a"], 3, 1))
            journal.publish()
        compaction.compact(root, pace=replacing.OFFLINE)
    finally:
        os.umask(before)
    for path in root.rglob("*"):
        if path.is_dir() or path.suffix == ".lock":
            assert path.stat().st_mode & stat.S_IWGRP, path
            assert not path.stat().st_mode & stat.S_IWOTH, path


DEEP = "[" * 200_000


def _deep_toml(root: Path) -> None:
    about = root / "store.toml"
    about.write_text(about.read_text() + f"deep = {DEEP}\n")


def _deep_intent(root: Path) -> None:
    (root / "pending").mkdir(exist_ok=True)
    (root / "pending" / "deep.json").write_text(f'{{"format": {FORMAT}, "moves": {DEEP}')


def _deep_note(root: Path) -> None:
    text = DEEP.encode()
    schema = arrow_schema("replaced")
    own = {**(schema.metadata or {}), replacing._SIDES: b"%08x" % zlib.crc32(text) + text}
    pq.write_table(schema.with_metadata(own).empty_table(), root / "replaced" / "deep.1.parquet")


@pytest.mark.parametrize("plant", [_deep_toml, _deep_intent, _deep_note])
def test_json_that_is_nested_too_deeply_is_one_sentence_with_the_file(
    store: Store, plant: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store.append({"runs": pa.table({"run_id": ["r"]})}, "x")
    plant(store.root)
    try:
        opened = Store.open(store.root)
        assert opened.sql("select run_id from runs").to_pylist() == [{"run_id": "r"}]
        opened.compact(offline=True)
        named = caplog.text + str(opened.skipped)
    except StoreError as error:
        named = str(error)
    assert "deep" in named or "store.toml" in named
