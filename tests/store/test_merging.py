"""Stores that are taken into another: every run, reading and row once, in whatever order."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import FormatError, InputError, StoreError
from whorl.store import Store
from whorl.store.merging import merge
from whorl.store.schema import MINUTES, TABLES, arrow_rows
from whorl.tests import sizes
from whorl.tests.conftest import BuiltOnce
from whorl.tests.store.frozen.make import FIRST_DAY, GPUS, make, readings, rows_of
from whorl.tests.store.other_process import asked
from whorl.tests.stores import new_store

MINUTE = 60_000_000


def rows(store: Store) -> dict[str, list[str]]:
    """Every table of a store, in an order that does not depend on how it was made."""
    return {
        spec.name: sorted(json.dumps(row, default=str, sort_keys=True) for row in store.arrow(spec.name).to_pylist())
        for spec in TABLES
    }


def gpu(uuid: str, node: str, slot: int, cluster: str = "c") -> dict[str, Any]:
    return {"cluster": cluster, "gpu": uuid, "uuid": uuid, "node": node, "slot": slot}


def identities(*gpus: dict[str, Any]) -> dict[str, pa.Table]:
    return {"gpus": pa.Table.from_pylist(list(gpus))}


@pytest.fixture(scope="module")
def three(built_once: BuiltOnce) -> list[Path]:
    """Three stores that share rows: a whole one, a part of it with later readings, and one of a user's campaign."""
    folder = built_once("merging", make_three)
    return [folder / name for name in ("whole", "part", "user")]


def make_three(folder: Path) -> None:
    whole = new_store(folder / "whole")
    make(whole.root)
    part = new_store(folder / "part")
    part.append({name: rows_of(name) for name in ("runs", "results", "gpus", "events", "campaigns")}, "same")
    part.append({"telemetry": readings(1, 3, 3, more=9)}, "later")
    part.append({"telemetry": readings(5)}, "others")
    user = new_store(folder / "user")
    user.append(
        {
            "runs": pa.table({"run_id": ["mine"], "cluster": ["frozen"], "campaign": ["mine"], "gpu": [GPUS[0]]}),
            "results": pa.table({"run_id": ["mine"] * 2, "figure": ["time"] * 2, "value": [1.0, 1.0]}),
            "campaigns": pa.table({"cluster": ["frozen"], "campaign": ["mine"]}),
        },
        "mine",
    )
    user.append({"telemetry": readings(1, 4, 1, more=11)}, "latest")


@pytest.mark.long
def test_three_stores_give_the_same_in_any_order_and_twice(three: list[Path], tmp_path: Path) -> None:
    run = CliRunner()
    answer = run.invoke(cli, ["store", "merge", *map(str, three), "--into", str(tmp_path / "first"), "--json"])
    told = json.loads(answer.stdout)
    assert (answer.exit_code, told["schema"], len(told["sources"])) == (0, "whorl.store.merge/1", 3)
    assert told["sources"][2]["added"] == {"runs": 1, "results": 2, "campaigns": 1}
    plain = run.invoke(cli, ["store", "merge", str(three[0]), "--into", str(tmp_path / "first")])
    assert plain.exit_code == 0
    assert "0 rows added" in plain.output
    expected = rows(Store(tmp_path / "first"))
    for number, order in enumerate(sizes.sample(itertools.permutations(reversed(three)), short=1)):
        into = new_store(tmp_path / f"into-{number}")
        for source in order:
            merge(into, source)
        assert rows(into) == expected
    for source in three:
        again = merge(into, source)
        assert (again.added, again.replaced, again.pruned) == ({}, 0, 0)
    assert rows(into) == expected
    whole = rows(Store(three[0]))
    assert {name for name in whole if expected[name] != whole[name]} == {
        "telemetry", "latest", "runs", "results", "campaigns", "events",
    }  # fmt: skip
    assert len(expected["results"]) == len(whole["results"]) + 2
    power = "select distinct read_us - (select min(read_us) from telemetry where ts = t.ts) from telemetry t"
    assert into.sql(power).to_pylist()
    into.compact(offline=True)
    assert rows(into) == expected
    assert not into.check()


@pytest.mark.long
def test_of_readings_with_one_key_the_one_written_last_counts(tmp_path: Path) -> None:
    older, newer = new_store(tmp_path / "older"), new_store(tmp_path / "newer")
    older.append({"telemetry": readings(0, 0, 4)}, "a")
    newer.append({"telemetry": readings(0, 2, 4, more=500)}, "b")
    for number, (first, second) in enumerate([(older, newer), (newer, older)]):
        into = new_store(tmp_path / f"into-{number}")
        merge(into, first.root)
        done = merge(into, second.root)
        assert done.added == {"telemetry": 2 * len(GPUS)}
        assert done.replaced + done.known.get("telemetry", 0) == 2 * len(GPUS)
        assert done.replaced == (2 * len(GPUS) if number == 0 else 0)
        later = into.sql(
            f"select min(read_us) as low from telemetry where ts >= epoch_ms({(FIRST_DAY + 40_000_000) // 1000})"
        )
        assert later.to_pylist()[0]["low"] > 500
    assert rows(new_store(tmp_path / "into-0")) == rows(new_store(tmp_path / "into-1"))


@pytest.mark.long
def test_pruned_minutes_and_the_readings_of_them_count_once(tmp_path: Path) -> None:
    full, pruned = new_store(tmp_path / "full"), new_store(tmp_path / "pruned")
    for store in (full, pruned):
        store.append({"telemetry": readings(0)}, "a")
    pruned.prune("1d", offline=True)
    assert pruned.arrow(MINUTES.name).num_rows
    pruned.append({"telemetry": readings(0, 1, 1, more=3)}, "late")  # a late reading of a pruned minute
    into = new_store(tmp_path / "into")
    merge(into, pruned.root)
    assert rows(into) == rows(pruned)
    done = merge(into, full.root)
    assert done.pruned == len(GPUS) * 12
    assert rows(into) == rows(pruned)
    other = new_store(tmp_path / "other")
    merge(other, full.root)
    assert merge(other, pruned.root).pruned == pruned.arrow(MINUTES.name).num_rows


def test_gpus_that_moved_and_clusters_of_one_name_are_told(tmp_path: Path) -> None:
    site, user = new_store(tmp_path / "site"), new_store(tmp_path / "user")
    site.append(identities(gpu("GPU-1", "n1", 0), gpu("GPU-2", "n1", 1), gpu("GPU-9", "m1", 0, "d")), "a")
    user.append(identities(gpu("GPU-1", "n7", 3, "e"), gpu("GPU-3", "m1", 0, "d")), "b")
    done = merge(site, user.root)
    assert done.moved == [{"uuid": "GPU-1", "here": "c n1/0", "there": "e n7/3"}]
    assert done.crowded == [{"cluster": "d", "places": 1, "place": "d m1/0"}]
    assert site.arrow("gpus").num_rows == 5
    with pytest.raises(InputError, match="--cluster names one"):
        merge(site, user.root, cluster="x")
    one = new_store(tmp_path / "one")
    one.append(identities(gpu("GPU-2", "n1", 1, "other")), "b")
    assert merge(site, one.root, cluster="c").added == {}


@pytest.mark.long
def test_import_takes_in_stores_and_files_of_tables(three: list[Path], tmp_path: Path) -> None:
    run = CliRunner()
    file = next((three[1] / "telemetry").glob("*/others.*.parquet"))
    renamed = Path(shutil.copy(file, tmp_path / "others.parquet"))
    other = tmp_path / "other"
    answer = run.invoke(cli, ["import", "--store", str(other), "--json", str(renamed), str(file), str(three[2])])
    told = json.loads(answer.stdout)
    assert (answer.exit_code, told["failed"], told["files"]) == (0, [], [])
    assert [source["added"].get("telemetry", 0) for source in told["stores"]] == [48, 0, 4]
    assert run.invoke(cli, ["import", "--store", str(other), "--gpu", "x", str(three[2])]).exit_code == 2


def test_source_that_cannot_be_taken_in_is_refused_in_a_sentence(three: list[Path], tmp_path: Path) -> None:
    into = new_store(tmp_path / "into")
    link = tmp_path / "link"
    link.symlink_to(into.root)
    for same in (into.root, link, into.root / "runs"):
        with pytest.raises((InputError, StoreError)):
            merge(into, same)
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no file of one"):
        merge(into, other)
    with pytest.raises(StoreError, match="is not a store"):
        merge(into, tmp_path / "absent")
    source = shutil.copytree(three[1], tmp_path / "source")
    damaged = next((source / "runs").glob("same.*"))
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" + damaged.read_bytes()[-8:])
    with pytest.raises(StoreError, match=damaged.name):
        merge(into, source)
    about = source / "store.toml"
    about.write_text(about.read_text().replace("format = 4", "format = 7"))
    with pytest.raises(FormatError):
        merge(into, source)
    assert not any(rows(into).values())


def test_a_source_in_a_closed_folder_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into, stat = new_store(tmp_path / "into"), Path.stat

    def as_another_user(path: Path, **options: bool) -> os.stat_result:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", as_another_user)
    with pytest.raises(InputError, match="closed is in a folder that you may not read: ask its owner"):
        merge(into, tmp_path / "closed")


@pytest.mark.long
def test_merge_that_is_killed_can_be_run_again(three: list[Path], tmp_path: Path) -> None:
    expected, into = new_store(tmp_path / "expected"), tmp_path / "into"
    merge(expected, three[0])
    whole = rows(expected)
    ask, end = asked()
    steps = ask("merge", new_store(tmp_path / "counted").root, 0, three[0])["steps"]
    assert rows(new_store(tmp_path / "counted")) == whole
    for which in range(1, steps + 1, 1 if sizes.is_all() else 10):
        new_store(into)
        assert ask("merge", into, which, three[0]) is None
        seen = rows(Store(into))
        others = [name for name in seen if name not in ("telemetry", "latest")]
        assert all(seen[name] == whole[name] for name in others) or not any(seen[name] for name in others), which
        assert set(seen["telemetry"]) <= set(whole["telemetry"]), which
        merge(Store(into), three[0])
        assert rows(Store(into)) == whole, which
        shutil.rmtree(into)
    end()


def test_the_power_of_nodes_is_merged_once_also_from_a_journal(store: Store, tmp_path: Path) -> None:
    power = {"cluster": "c", "source": "ipmi", "covers": "node"}
    readings = [power | {"node": f"n{n % 3}", "ts": 10**18 + n * 10**10, "power_mw": n} for n in range(9)]
    columns = {name: [row[name] for row in readings] for name in readings[0]}
    other = new_store(tmp_path / "other")
    other.append({"node_power": arrow_rows("node_power", columns)}, "first")
    with other.journal("n0") as journal:
        journal.append_columns(
            {name: [*values[:1]] for name, values in columns.items()} | {"part": ["A"]}, "node_power"
        )
        for _ in range(2):
            merged = merge(store, other.root)
    assert merged.known == {"node_power": 10}
    assert store.arrow("node_power").num_rows == 10
    assert sorted(store.arrow("node_power")["power_mw"].to_pylist()) == [0, *range(9)]
