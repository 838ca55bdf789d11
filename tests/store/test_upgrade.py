"""Stores of other formats: the frozen one of format 4 is read for ever, and upgraded to a made format 4.1."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import FormatError, StoreError
from whorl.store import Store
from whorl.store.schema import CATALOG, FORMAT, TELEMETRY, arrow_rows
from whorl.store.upgrade import upgrade
from whorl.store.vocabulary import CONDITIONS
from whorl.tests import sizes
from whorl.tests.store import other_process
from whorl.tests.store.frozen.answers import ANSWERS, FROZEN, answers

Ask = Callable[..., Any]


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A copy of the frozen store, opened once, so that its views are its own."""
    subprocess.run(["tar", "-xf", FROZEN, "-C", tmp_path], check=True)  # `filter` of tarfile is of Python 3.11.4
    return tmp_path / "store"


@pytest.fixture(scope="module")
def newer() -> Iterator[Ask]:
    """A process of the made format: what to do, the store, and when it is killed (0: not)."""
    ask, end = other_process.asked("made")
    yield ask
    end()


def test_frozen_store_answers_as_when_it_was_made(frozen: Path) -> None:
    upgrade(frozen, offline=True)
    assert json.loads(json.dumps(answers(Store(frozen)), sort_keys=True)) == json.loads(ANSWERS.read_text())
    added = [column.name for column in TELEMETRY.columns if column.added]
    (row,) = Store(frozen).sql(f"select {', '.join(f'count({name})' for name in added)} from telemetry").to_pylist()
    assert set(row.values()) == {0}
    fields = ", ".join(f"count(conditions.{condition.name})" for condition in CONDITIONS if condition.added)
    (row,) = Store(frozen).sql(f"select {fields} from runs").to_pylist()
    assert set(row.values()) == {0}


def test_column_that_a_file_lacks_is_null_by_every_reader_and_after_compaction(frozen: Path) -> None:
    store, place = Store(frozen), "00000000:02:00.0"
    count = len(store.arrow("events", ["kind"]))
    row = {"kind": ["lost"], "node": ["n1"], "pci_bus_id": [place], "ts": [1_767_225_600_000_000_000]}
    store.append({"events": arrow_rows("events", row)}, "new")
    for compacted in (False, True):
        if compacted:
            store.compact(offline=True)
        with duckdb.connect(str(frozen / CATALOG), read_only=True) as client:
            plain = client.sql("select pci_bus_id from events").to_arrow_table().column(0)
        columns = (
            store.sql("select pci_bus_id from events").column(0),
            store.arrow("events", ["pci_bus_id"]).column(0),
            store.collect(store.scan("events").select("pci_bus_id")).to_arrow().column(0),
        )
        assert [column.drop_null().to_pylist() for column in (plain, *columns)] == [[place]] * 4
        assert {len(column) for column in columns} == {count + 1}


@pytest.mark.long
def test_new_store_is_read_without_a_look_at_all_files_for_columns(tmp_path: Path, frozen: Path) -> None:
    """To look for columns takes DuckDB 0.2 ms for every file of a table, whatever is asked."""
    for root, looks in ((tmp_path / "S", False), (frozen, True)):
        Store.create(root)
        with duckdb.connect(str(root / CATALOG), read_only=True) as client:
            (views,) = client.sql("select string_agg(sql) from duckdb_views() where view_name = 'telemetry'").fetchall()
        assert ("union_by_name" in views[0]) == looks


@pytest.mark.long
def test_upgrade_renames_adds_and_converts_columns(frozen: Path, newer: Ask) -> None:
    expected = json.loads(ANSWERS.read_text())
    numbers = "select sum(read_us)::bigint as us, max(read_us) as most from telemetry"
    firmware = "select vbios from gpus order by vbios"
    before, vbios = Store(frozen).sql(numbers).to_pylist(), Store(frozen).sql(firmware).to_pylist()
    refused = newer("answers", frozen)["error"]
    assert "FormatError" in refused
    assert f"format {FORMAT}; run `whorl store upgrade --store {frozen}`" in refused
    done = newer("upgrade", frozen)
    assert (done["older"], done["newer"], done["journals"], done["unreadable"]) == ("4", "4.1", 3, [])
    assert newer("answers", frozen) == expected
    assert newer(numbers.replace("read_us", "answer_us"), frozen) == before
    assert newer(firmware.replace("vbios", "firmware"), frozen) == [
        {"firmware": row["vbios"] and row["vbios"].lower()} for row in vbios
    ]
    assert newer("select count(fans_rpm) as n from telemetry", frozen) == [{"n": 0}]
    assert newer("upgrade", frozen)["files"] == 0
    with pytest.raises(FormatError, match="install a newer whorl"):
        Store(frozen)


@pytest.mark.long
def test_upgrade_is_refused_beside_a_living_collector_and_takes_what_an_older_whorl_stored_later(
    frozen: Path, newer: Ask
) -> None:
    opened = Store(frozen)
    with opened.journal("busy", background=False, offline=True) as journal:
        journal.append(10**18, ["GPU-1"], {"power_mw": 1})
        assert "StoreError: busy writes to" in newer("upgrade", frozen)["error"]
        assert len(opened.arrow("telemetry")) == 1 + json.loads(ANSWERS.read_text())["telemetry"]["rows"]
    assert newer("upgrade", frozen)["newer"] == "4.1"
    count = "select count(*)::int as n from events"
    ((before,),) = (row.values() for row in newer(count, frozen))
    (stray,) = opened.append({"events": pa.table({"cluster": ["frozen"], "kind": ["made"]})}, "stray")
    assert (newer(count, frozen), newer("check", frozen)) == ([{"n": before}], [str(stray)])
    with pytest.raises(FormatError):
        opened.compact(offline=True)  # which files were replaced is not for an older whorl to judge
    assert newer("upgrade", frozen)["files"] == 1
    assert newer(count, frozen) == [{"n": before + 1}]


@pytest.mark.long
def test_killed_upgrade_leaves_the_old_store_or_the_new_one(frozen: Path, newer: Ask, tmp_path: Path) -> None:
    expected = json.loads(ANSWERS.read_text())
    Store(frozen)
    pristine, killed = tmp_path / "pristine", tmp_path / "killed"
    shutil.copytree(frozen, pristine)
    steps = newer("upgrade", frozen)["steps"]
    seen = set()
    for which in range(1, steps + 1, 1 if sizes.is_all() else 36):
        shutil.rmtree(frozen)
        shutil.copytree(pristine, frozen)
        assert (answer := newer("upgrade", frozen, which)) is None, (which, answer)
        shutil.copytree(frozen, killed)
        try:
            told = answers(Store(frozen))
            seen.add("old")
        except FormatError:
            told = newer("answers", frozen)
            seen.add("new")
        notes = [name for name in told["skipped"] if name[:-8].isdecimal()]  # of an upgrade that stopped at the switch
        assert json.loads(json.dumps(told)) == expected | {"skipped": notes}, which
        shutil.rmtree(frozen)
        killed.rename(frozen)
        assert (again := newer("upgrade", frozen)).get("newer") == "4.1", (which, again)
        assert newer("answers", frozen) == expected, which
    assert seen == {"old", "new"}


@pytest.mark.long(short=2)
@pytest.mark.parametrize("version", ["5", '"4.2"', "3", '"x"'])
def test_formats_that_cannot_be_upgraded_are_refused(frozen: Path, version: str) -> None:
    about = frozen / "store.toml"
    about.write_text(f"format = {version}\n")
    answer = CliRunner().invoke(cli, ["store", "upgrade", "--store", str(frozen)])
    assert answer.exit_code == StoreError.exit_code
    assert len(answer.output.strip().splitlines()) == 1
