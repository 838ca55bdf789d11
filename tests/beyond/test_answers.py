"""Answers of whorl and functions of a user that workers of Dask make, beside those that are made here."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from distributed import Client
from polars.testing import assert_frame_equal

import whorl
from whorl.analysis.energy import books, minutes
from whorl.analysis.runs import windows
from whorl.cli import cli
from whorl.errors import InputError, StoreError
from whorl.store import Store
from whorl.store.instants import date_of_ns
from whorl.tests.analysis.energy.stored import rows as table_rows
from whorl.tests.analysis.runs.test_windows import drawn_store
from whorl.tests.beyond.fleet import GPUS, fleet
from whorl.tests.cli.test_energy_choices import fingerprint

DOCS = Path(__file__).resolve().parents[2] / "docs" / "python.md"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fleet(tmp_path_factory.mktemp("beyond") / "fleet")


def said(*arguments: str, status: int = 0) -> tuple[str, str]:
    """What `whorl` prints and says."""
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == status, done.output
    return done.stdout, done.stderr


def close(document: Any, second_document: Any) -> bool:
    """Whether documents are equal, numbers to 1e-9."""
    if isinstance(document, dict):
        return document.keys() == second_document.keys() and all(
            close(document[key], second_document[key]) for key in document
        )
    if isinstance(document, list):
        return len(document) == len(second_document) and all(map(close, document, second_document))
    if isinstance(document, float):
        return bool(document == pytest.approx(second_document, rel=1e-9, abs=1e-12))
    return bool(document == second_document)


@pytest.fixture
def a_day_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The days of this small store are parts of their own."""
    monkeypatch.setattr(minutes, "ROWS_OF_PART", 12_000)


@pytest.mark.usefixtures("a_day_a_part")
def test_energy_is_the_same_on_workers(store: Store, address: str) -> None:
    command = ["energy", "--store", str(store.root), "--by", "user", "--json"]
    here, on_workers = json.loads(said(*command)[0]), json.loads(said(*command, "--on", address)[0])
    assert close(here, on_workers)
    assert here["coverage"]["parts"] > 1
    assert here["coverage"]["failed"] == []
    assert {row["user"] for row in here["rows"]} == {"ada", "bea", None}


@pytest.mark.long
@pytest.mark.usefixtures("a_day_a_part")
@pytest.mark.parametrize("verb", ["reconcile", "excess"])
def test_other_books_are_the_same_on_workers(store: Store, address: str, tmp_path: Path, verb: str) -> None:
    measured = Store.open(shutil.copytree(store.root, tmp_path / "S"))
    figure_rows = [{**row, "gpu": gpu} for number, gpu in enumerate(GPUS) for row in fingerprint(number)]
    measured.append({"fingerprints": table_rows("fingerprints", figure_rows)}, "measured")
    command = ["energy", verb, "--store", str(measured.root), "--json"]
    here, on_workers = json.loads(said(*command)[0]), json.loads(said(*command, "--on", address)[0])
    assert close(here, on_workers)
    assert here["rows"]
    assert here["coverage"]["parts"] > 1


@pytest.mark.long
def test_verdicts_are_the_same_on_workers(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "READINGS", 300)  # a day of a GPU
    command = ["verdicts", "--store", str(drawn_store(tmp_path / "S", 3).root), "--cluster", "c", "--json"]
    here, on_workers = json.loads(said(*command)[0]), json.loads(said(*command, "--on", address)[0])
    assert close(here, on_workers)
    assert here["rows"]
    assert here["coverage"]["parts"] > 4


@pytest.mark.long
@pytest.mark.usefixtures("a_day_a_part")
def test_compaction_stores_the_same_minutes_on_workers(store: Store, address: str, tmp_path: Path) -> None:
    progress, rows = [], []
    for name, place in (("here", "here"), ("workers", address)):
        copy = shutil.copytree(store.root, tmp_path / name)
        progress.append(json.loads(said("store", "compact", "--store", str(copy), "--json", "--on", place)[0]))
        rows.append(Store.open(copy).sql("from energy_minutes order by cluster, gpu, ts").polars())
    assert progress[0]["energy_days"] == progress[1]["energy_days"] == 2
    assert_frame_equal(*rows, rel_tol=1e-9)
    assert rows[0].height >= store.arrow("telemetry").num_rows, "a minute may have several shares"


@pytest.mark.usefixtures("a_day_a_part")
def test_a_part_that_fails_is_named_and_the_others_are_in_the_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_part = books.split_part

    def failing(part: books.BookPart) -> Any:
        if date_of_ns(part.time.window[0]).day == 3:
            raise StoreError("day-1.parquet cannot be read: Input/output error")
        return split_part(part)

    command = ["energy", "--store", str(store.root), "--by", "day"]
    row_by_day = {row["day"]: row for row in json.loads(said(*command, "--json")[0])["rows"]}
    monkeypatch.setattr(books, "split_part", failing)
    out, error = said(*command, "--json", status=1)
    document = json.loads(out)
    assert [row["energy_j"] for row in document["rows"] if row["day"] == "2026-11-02"] == [
        row_by_day["2026-11-02"]["energy_j"]
    ]
    [failed] = document["coverage"]["failed"]
    assert document["coverage"]["parts"] == 2
    assert failed["reason"] == "day-1.parquet cannot be read: Input/output error"
    assert failed["name"] in error
    assert "the answer has 1 of 2 parts, and lacks" in error
    _, error = said(*command, status=1)
    assert "the answer has 1 of 2 parts, and lacks" in error


@pytest.mark.parametrize(
    ("place", "status", "sentence"),
    [
        (["--on", "nowhere"], 2, "--on nowhere is no place: there are here, dask://HOST:PORT"),
        (["--on", "dask://host"], 2, "--on dask://host is no place"),
        (["--workers", "2"], 2, "--workers says nothing without a place: give --on slurm"),
        (["--on", "slurm,there"], 2, "write a place, or a place and `,here`"),
        (["--on", "slurm", "--workers", "0"], 2, "0 is not in the range x>=1"),
        (["--on", "dask://127.0.0.1:9", "--workers", "2"], 2, "whose workers run already"),
        (["--on", "here", "--account", "a"], 2, "--account and --partition are of jobs of Slurm"),
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(store: Store, place: list[str], status: int, sentence: str) -> None:
    _, error = said("energy", "--store", str(store.root), *place, status=status)
    assert sentence in error


def test_without_a_scheduler_it_says_so_or_goes_on_here(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.jobs.workers._CONNECT_S", 1)
    command = ["energy", "--store", str(store.root), "--by", "user", "--json", "--on", "dask://127.0.0.1:9"]
    out, error = said(*command, status=5)
    assert (out, error.count("\n")) == ("", 1)
    assert "no scheduler of Dask answers at dask://127.0.0.1:9" in error
    out, error = said(*command[:-1], f"{command[-1]},here")
    assert json.loads(out)["coverage"]["failed"] == []
    assert error.endswith("this process makes the parts instead\n")


def test_without_dask_it_says_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dask", "distributed", "dask_jobqueue"):
        monkeypatch.setitem(sys.modules, name, None)
    for place in ("dask://127.0.0.1:9", "slurm"):
        _, error = said("energy", "--store", str(store.root), "--on", place, status=5)
        assert error.endswith("pip install 'whorl[dask]'\n")


def test_sums_of_a_users_own_function(store: Store, address: str, tmp_path: Path, monkeypatch: Any) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    [module] = [block for block in blocks if block.startswith("# sums.py")]
    [program] = [block for block in blocks if "from sums import" in block]
    (tmp_path / "sums.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    with Client(address.replace("dask", "tcp"), set_as_default=False) as client:
        client.upload_file(str(tmp_path / "sums.py"))
    frames: dict[str, pl.DataFrame] = {}
    for place in (address, "here"):
        names: dict[str, Any] = {}
        text = program.replace("dask://scheduler:8786", place).replace('"fleet"', repr(str(store.root)))
        exec(compile(text, str(DOCS), "exec"), names)
        assert names["failures"] == []
        frames[place] = pl.DataFrame(pl.from_arrow(names["hourly"])).sort("gpu", "hour")
        assert len(names["daily"]) == 2 * len(GPUS)
    query = "select gpu, date_trunc('hour', ts) as hour, sum(power_mw) as mw, count(*) as n from telemetry group by all"
    expected = store.sql(f"{query} order by gpu, hour").polars()
    for frame in frames.values():
        assert frame["power_mw"].to_list() == [int(value) for value in expected["mw"]]
        assert frame["readings"].to_list() == expected["n"].to_list()


def test_the_engine_is_one_of_the_public_names() -> None:
    assert "engine" in dir(whorl)
    with pytest.raises(InputError, match=r"^on nowhere is no place"):
        whorl.engine("nowhere")
