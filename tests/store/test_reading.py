"""Reading: three readers that agree, and files that are torn, foreign, newer, or damaged inside."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from whorl.errors import FormatError, QueryError, StoreError
from whorl.store import Store
from whorl.store.schema import FORMAT, TABLES, TELEMETRY, Table, arrow_schema, table
from whorl.store.views import VIEWS
from whorl.tests.store.appender import group
from whorl.tests.stores import new_store

READERS: dict[str, Callable[[Store, str], pa.Table]] = {
    "sql": lambda store, name: store.sql(f"from {name}"),
    "scan": lambda store, name: store.collect(store.scan(name)).to_arrow(),
    "arrow": lambda store, name: store.arrow(name),
}
readers = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = new_store(tmp_path / "store")
    made.append(group("a"), "a")
    return made


def ids(answer: pa.Table) -> list[str]:
    return sorted(answer["run_id"].to_pylist())


# -- agreement ------------------------------------------------------------------------------------------------

# No time before 1970: the partitions' names are then plain dates.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "VARCHAR": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "BOOLEAN": st.booleans(),
    "INTEGER": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(),
    "TIMESTAMP_NS": st.integers(0, 2**62),
}


def rows_of(spec: Table) -> st.SearchStrategy[list[dict[str, Any]]]:
    columns = {c.name: VALUES[c.type] if c.name == "ts" else st.none() | VALUES[c.type] for c in spec.columns}
    return st.lists(st.fixed_dictionaries(columns), max_size=4)


def multiset(rows: pa.Table) -> list[str]:
    """The rows as sorted text, times as integers, so that NaN equals NaN."""
    fields = [pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in rows.schema]
    plain = pa.table(
        [column.cast(f.type) for column, f in zip(rows.columns, fields, strict=True)], schema=pa.schema(fields)
    )
    return sorted(repr(row) for row in plain.to_pylist())


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_readers_agree_with_what_was_written(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from([spec for spec in TABLES if not spec.made]))
    batches = data.draw(st.lists(rows_of(spec), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(Path(folder) / "s")
        kept: dict[Any, dict[str, Any]] = {}
        for number, rows in enumerate(batches):
            batch = pa.Table.from_pylist(rows, schema=arrow_schema(spec.name))
            store.append({spec.name: batch}, f"b{number}")
            for row in rows:  # of telemetry, the last row of an instant counts
                key = tuple(row[k] for k in ("cluster", "gpu", "ts")) if spec == TELEMETRY else len(kept)
                kept[key] = row
        written = multiset(pa.Table.from_pylist(list(kept.values()), schema=arrow_schema(spec.name)))
        for name, read in READERS.items():
            answer = read(store, spec.name)
            assert answer.column_names == spec.names, name
            assert multiset(answer) == sorted(written), name
        assert store.check() == {}


def test_a_column_that_old_files_lack_is_null(store: Store) -> None:
    schema = arrow_schema("runs")
    old = pa.table(
        {"run_id": ["old"], "cluster": ["c"]},
        schema=pa.schema([schema.field("run_id"), schema.field("cluster")], schema.metadata),
    )
    pq.write_table(old, store.root / "runs" / "old.parquet")
    opened = Store.open(store.root)
    for name, read in READERS.items():
        by_id = {row["run_id"]: row for row in read(opened, "runs").to_pylist()}
        assert sorted(by_id) == ["a-0", "a-1", "a-2", "old"], name
        assert (by_id["old"]["cluster"], by_id["old"]["power_w"]) == ("c", None), name
    assert store.sql("select count(*) n from measurements where figure is null")["n"].to_pylist() == [0]


def test_a_column_of_a_later_whorl_is_ignored(store: Store) -> None:
    schema = arrow_schema("runs")
    wide = store.arrow("runs").append_column("colour", pa.array(["red"] * 3)).replace_schema_metadata(schema.metadata)
    pq.write_table(wide, store.root / "runs" / "wide.parquet")
    for name, read in READERS.items():
        assert read(store, "runs").column_names == table("runs").names, name
        assert len(read(store, "runs")) == 6, name


@pytest.mark.long
def test_types_are_what_the_schema_says(store: Store) -> None:
    for spec in TABLES:
        described = store.sql(f"describe {spec.name}")
        assert described["column_name"].to_pylist() == spec.names
        assert described["column_type"].to_pylist() == [c.type for c in spec.columns]
        for name, read in READERS.items():
            types = [
                pa.string() if pa.types.is_large_string(f.type) or str(f.type) == "string_view" else f.type
                for f in read(store, spec.name).schema
            ]
            assert types == arrow_schema(spec.name).types, name
    for view in VIEWS:
        used = {
            "history": ["telemetry_minutes"],
            "gpus_now": ["gpus"],
            "measurements": ["gpus", "results", "runs"],
            "verdicts_now": ["verdicts"],
            "fingerprints_now": ["fingerprints"],
            "jobs_now": ["jobs"],
            "jobs_on_gpu": ["gpus", "jobs"],
            "telemetry_of_job": ["jobs", "telemetry"],
            "spans_total": ["spans"],
        }
        made = {"name": "VARCHAR", "spans": "BIGINT", "total_j": "DOUBLE", "twice": "BOOLEAN"}
        known = {c.name: c.type for name in used[view.name] for c in table(name).columns} | made
        described = store.sql(f"describe {view.name}")
        for name, kind in zip(described["column_name"].to_pylist(), described["column_type"].to_pylist(), strict=True):
            assert kind == known[name]


# -- files that cannot be read --------------------------------------------------------------------------------


def put(store: Store, name: str, content: bytes) -> Path:
    path = store.root / "runs" / name
    path.write_bytes(content)
    return path


def all_read(store: Store, expected: list[str]) -> None:
    for name, read in READERS.items():
        assert ids(read(store, "runs")) == expected, name


def test_torn_files_are_named_and_the_rest_is_read(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    whole = (store.root / "runs" / "a.parquet").read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little")
    cuts = sorted(
        {0, 1, 4, 8, 100, len(whole) // 2, *(len(whole) - n for n in (footer + 9, footer + 8, footer, 9, 8, 4, 1))}
    )
    torn = [put(store, f"torn{cut}.parquet", whole[:cut]) for cut in cuts]
    torn.append(put(store, "zeros.parquet", bytes(len(whole))))
    torn.append(put(store, "text.parquet", b"run_id,cluster\na,b\n"))
    torn.append(put(store, "name.parquet", whole.replace(b"run_id", b"run_\xe3d")))  # no UTF-8
    with caplog.at_level(logging.WARNING, "whorl"):
        all_read(store, ["a-0", "a-1", "a-2"])
    for path in torn:
        assert caplog.text.count(f"skipped {path}: it is cut off or not a Parquet file") == 1
    assert set(store.skipped) == set(torn)


def test_foreign_and_newer_files_are_named_and_the_rest_is_read(store: Store) -> None:
    folder = store.root / "runs"
    pq.write_table(pa.table({"run_id": ["foreign"]}), folder / "foreign.parquet")
    shutil.copy(store.root / "results" / "a.parquet", folder / "results.parquet")
    newer = arrow_schema("runs").with_metadata({"whorl.table": "runs", "whorl.format": str(FORMAT + 1)})
    pq.write_table(newer.empty_table(), folder / "newer.parquet")
    older = arrow_schema("runs").with_metadata({"whorl.table": "runs", "whorl.format": str(FORMAT - 1)})
    pq.write_table(older.empty_table(), folder / "older.parquet")
    unnumbered = arrow_schema("runs").with_metadata({"whorl.table": "runs", "whorl.format": "one"})
    pq.write_table(unnumbered.empty_table(), folder / "unnumbered.parquet")
    other_type = pa.table({"power_w": ["300 W"]}).replace_schema_metadata(arrow_schema("runs").metadata)
    pq.write_table(other_type, folder / "type.parquet")
    (folder / "folder.parquet").mkdir()
    (folder / "link.parquet").symlink_to("nowhere")
    os.mkfifo(folder / "fifo.parquet")
    all_read(store, ["a-0", "a-1", "a-2"])
    said = {path.stem: reason for path, reason in store.skipped.items()}
    assert "whorl did not write it" in said["foreign"]
    assert "belongs to table 'results'" in said["results"]
    assert f"format {FORMAT + 1}" in said["newer"]
    assert "install a newer whorl" in said["newer"]
    assert f"format {FORMAT - 1}, from before the first release" in said["older"]
    assert "format one" in said["unnumbered"]
    assert "its column power_w is string and not double" in said["type"]
    assert "cannot be read" in said["link"]
    assert "not a regular file" in said["link"]
    assert {"folder", "fifo"} <= set(said)
    assert len(said) == 9


def test_a_table_without_any_file_is_empty(store: Store) -> None:
    shutil.rmtree(store.root / "events")
    (store.root / "runs" / "a.parquet").unlink()
    (store.root / "runs" / "_schema.parquet").write_bytes(b"PAR1")
    for name in ("events", "runs"):
        for reader, read in READERS.items():
            answer = read(store, name)
            assert (answer.num_rows, answer.column_names) == (0, table(name).names), reader


@pytest.mark.long
def test_opening_mends_what_holds_no_facts(store: Store) -> None:
    shutil.rmtree(store.root / "events")
    (store.root / "runs" / "_schema.parquet").write_bytes(b"PAR1")
    (store.root / "whorl.duckdb").unlink()
    opened = Store.open(store.root)
    assert opened.check() == {}
    assert (store.root / "whorl.duckdb").exists()
    assert (store.root / "events" / "_schema.parquet").exists()
    all_read(opened, ["a-0", "a-1", "a-2"])


@readers
def test_a_file_with_a_damaged_page_is_named_and_the_others_are_read(
    store: Store, caplog: pytest.LogCaptureFixture, read: Callable[[Store, str], pa.Table]
) -> None:
    rows = 2000
    store.append(
        {"runs": pa.table({"run_id": [f"r{i}" for i in range(rows)], "power_w": [math.sqrt(i) for i in range(rows)]})},
        "big",
    )
    path = store.root / "runs" / "big.parquet"
    whole = path.read_bytes()
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[:4] + bytes(pages - 4) + whole[pages:])
    if read is READERS["scan"]:  # its list of files was made before
        with pytest.raises(StoreError, match=f"{path}: it is damaged .*run the command again"):
            read(store, "runs")
    assert len(read(store, "runs")) == 3
    assert caplog.text.count(f"skipped {path}: it is damaged") == 1
    assert list(store.skipped) == [path]
    assert len(read(store, "results")) == 3
    assert list(store.check()) == [path]


def test_every_flipped_byte_of_data_is_found(store: Store) -> None:
    """By `arrow` and `check`, which verify checksums; the other readers do not (docs/store.md)."""
    path = store.root / "results" / "a.parquet"
    whole = path.read_bytes()
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    metadata = pq.read_metadata(path).row_group(0)
    places = []
    for i in range(metadata.num_columns):
        column = metadata.column(i)
        # A page's header comes first and is not covered by the checksum of the page; its body ends the chunk.
        first = min(o for o in (column.dictionary_page_offset, column.data_page_offset) if o)
        places.append(first + column.total_compressed_size - 1)
    assert max(places) < pages
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        assert list(Store.open(store.root).check()) == [path]
        again = Store.open(store.root)
        assert len(again.arrow("results")) == 0
        assert list(again.skipped) == [path]
    path.write_bytes(whole)
    assert Store.open(store.root).check() == {}


def test_an_error_of_the_query_is_not_blamed_on_a_file(store: Store) -> None:
    frame = store.scan("runs").select(pl.col("nothing"))
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        store.collect(frame)


def test_a_file_that_went_after_the_scan_is_one_sentence(store: Store) -> None:
    store.append(group("a"), "a")
    frame = store.scan("runs")
    (path,) = (store.root / "runs").glob("a*.parquet")
    path.unlink()
    with pytest.raises(StoreError, match=rf"cannot read {store.root}: No such file .*{path.name}; run it again"):
        store.collect(frame)


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", ["st*r", "w?t", "[ab]", "it's", "{a,b}"])
def test_a_folder_whose_name_looks_like_a_pattern_is_read(store: Store, tmp_path: Path, name: str) -> None:
    store.append(group("a"), "a")
    opened = Store.open(store.root.rename(tmp_path / name))
    assert opened.sql("select count(*) n from telemetry").to_pylist() == [{"n": len(opened.arrow("telemetry"))}]
    assert opened.sql("select count(*) n from runs").to_pylist() == [{"n": len(opened.arrow("runs"))}]
    with pytest.raises(QueryError, match="reads only the store"):
        opened.sql(f"from read_text('{tmp_path}/*/telemetry/../store.toml')")


# -- store.toml -----------------------------------------------------------------------------------------------


def test_a_damaged_store_toml_is_a_sentence(store: Store) -> None:
    for content in (
        b"", b"\xff\xfe", b"format = ", b"format = 'one'", b"format = true", b"format = 0", b"format = 1.5",
        b"format = -1", b"format = " + b"9" * 5000, b"formats = 1", b"a = " + b"[" * 5000, b"\x00" * 50,
    ):  # fmt: skip
        (store.root / "store.toml").write_bytes(content)
        with pytest.raises(StoreError, match=r"store\.toml is damaged \(.*restore it from a backup"):
            Store.open(store.root)


def test_a_place_that_no_path_can_be_is_written_anew(store: Store) -> None:
    about = store.root / "store.toml"
    about.write_text('format = 3\nplace = "a\\u0000b"\n')
    Store.open(store.root)
    assert str(store.root.resolve()) in about.read_text()


def test_a_missing_or_newer_or_older_store_is_a_sentence(store: Store, tmp_path: Path) -> None:
    about = store.root / "store.toml"
    about.write_text(f'format = {FORMAT + 1}\ncreated_by = "whorl 9"\n')
    with pytest.raises(FormatError, match=r"made by whorl 9.*install a newer whorl"):
        Store.open(store.root)
    about.write_text(f"format = {FORMAT - 1}\n")
    with pytest.raises(FormatError, match=r"before the first release.*into a new store"):
        Store.open(store.root)
    about.unlink()
    with pytest.raises(StoreError, match=r"has no store\.toml"):
        Store.open(store.root)
    with pytest.raises(StoreError, match="it does not exist"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="cannot read"):
        Store.open(store.root / "runs" / "a.parquet")
    about.mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        Store.open(store.root)


@pytest.mark.long
def test_a_store_that_was_interrupted_while_it_was_made_says_so(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "S")
    (store.root / "store.toml").unlink()
    with pytest.raises(StoreError, match="interrupted while it was made; run the command"):
        Store.open(store.root)
    assert Store.create(store.root).sql("select count(*) n from runs").to_pylist() == [{"n": 0}]


def test_a_folder_of_other_things_is_not_made_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match="has other contents"):
        Store.create(tmp_path)
    with pytest.raises(StoreError, match="is a file"):
        Store.create(tmp_path / "thesis.tex")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.long
def test_an_interrupted_creation_is_taken_up(store: Store) -> None:
    (store.root / "store.toml").unlink()
    (store.root / "whorl.duckdb").unlink()
    shutil.rmtree(store.root / "events")
    taken_up = Store.create(store.root)
    assert (store.root / "whorl.duckdb").exists()
    all_read(taken_up, ["a-0", "a-1", "a-2"])
