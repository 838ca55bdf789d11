"""Other engines read the files of a store, every table of it, and find what `whorl sql` finds."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whorl.benchmarks.store_damage import BEGAN, DAY, rows, telemetry
from whorl.store import Store
from whorl.store.schema import DERIVED, arrow_schema
from whorl.tests.conftest import BuiltOnce
from whorl.tests.sizes import is_all
from whorl.tests.store import engine_reader
from whorl.tests.stores import new_store

INSTALLED = ("pyarrow", "polars", "duckdb")
OTHERS = {"duckdb 1.4": ("duckdb==1.4.*", "numpy"), "chdb": ("chdb",), "spark": ("pyspark",)}
MADE_WITHIN_S = 60
Question = dict[str, Any]


def kind_of(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "whole"
    if pa.types.is_floating(type_):
        return "real"
    return "times" if pa.types.is_timestamp(type_) else "others"


def make(root: Path) -> None:
    """Rows in every table; days that were compacted, one that was pruned, a journal that was sealed."""
    store = new_store(root)
    not_compared = {"late", "latest", "telemetry", "telemetry_minutes", "journal", "replaced", "pending"}
    not_compared |= {spec.name for spec in DERIVED}
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and path.name not in not_compared)
    for first in (0, 70):
        store.append({name: rows(arrow_schema(name), range(first, first + 70)) for name in names}, f"from{first}")
    for day in range(3):
        store.append(
            {"telemetry": telemetry(arrow_schema("telemetry"), day, range(90 + day), every_s=60 if day else 5)},
            f"day{day}",
        )
    with store.journal("n", background=False, offline=True) as journal:
        for second in range(30):
            at = BEGAN + second * 10**9
            journal.append(at, ["d", "e"], {"cluster": "c", "power_mw": [second, None], "energy_mj": [2**40, second]})
    store.compact(offline=True, now=BEGAN + 2 * DAY)
    store.prune("1d", offline=True, now=BEGAN + 2 * DAY)


@pytest.fixture(scope="module")
def store(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("engines", lambda folder: make(folder / "store")) / "store")


@pytest.fixture(scope="module")
def questions(store: Store) -> dict[str, Question]:
    """Of each table its files and columns. Those of `latest` are not compared: readers choose among their rows."""
    answers: dict[str, Question] = {}
    for folder in sorted(path for path in store.root.iterdir() if path.is_dir()):
        files = sorted(map(str, folder.rglob("*.parquet")))
        if folder.name in ("late", "latest", "replaced", *(spec.name for spec in DERIVED)) or not files:
            continue
        answers[folder.name] = {"files": files, "whole": [], "real": [], "times": [], "others": []}
        for field in store.arrow(folder.name).schema:
            answers[folder.name][kind_of(field.type)].append(field.name)
    assert {"telemetry", "telemetry_minutes", "runs", "results", "verdicts"} <= answers.keys()
    return answers


@pytest.fixture(scope="module")
def expected(store: Store, questions: dict[str, Question]) -> dict[str, Any]:
    """What `whorl sql` says."""
    sums = {"whole": ", sum({})::bigint", "real": ", sum({})", "times": ", epoch_us(min({}))", "others": ""}
    answers = {}
    for table, question in questions.items():
        names = [(name, kind) for kind, form in sums.items() for name in question[kind]]
        columns_asked = ", ".join(f"count({name}){sums[kind].format(name)}" for name, kind in names)
        (row,) = zip(
            *store.sql(f"select count(*), {columns_asked} from {table}").table.to_pydict().values(), strict=True
        )
        count, values = row[0], iter(row[1:])
        columns = {name: [next(values) for _ in range(2 - (kind == "others"))] for name, kind in names}
        answers[table] = {"rows": count, "columns": columns}
        assert count, table
    return answers


def ask(python: Path, engine: str, questions: dict[str, Question]) -> dict[str, Any]:
    done = subprocess.run(
        [python, engine_reader.__file__, engine],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def compare(answers: dict[str, Any], expected: dict[str, Any]) -> None:
    wrong: dict[str, Any] = {}
    for table, right in expected.items():
        answer = answers[table]
        if answer.get("rows") != right["rows"]:
            wrong[table] = answer.get("error", answer.get("rows")), right["rows"]
            continue
        for name, values in right["columns"].items():
            pairs = list(zip(answer["columns"][name], values, strict=True))
            if not all(
                a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9)) for a, b in pairs
            ):
                wrong[f"{table}.{name}"] = answer["columns"][name], values
    assert not wrong


@pytest.mark.long
@pytest.mark.parametrize("engine", INSTALLED)
def test_an_engine_that_whorl_uses_reads_every_table(
    engine: str, questions: dict[str, Question], expected: dict[str, Any]
) -> None:
    compare({table: engine_reader.answer(engine, question) for table, question in questions.items()}, expected)


def environment(name: str, packages: tuple[str, ...]) -> Path:
    """The Python of an environment with these packages, made once for this user. Skips where it cannot be made."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whorl-tests" / name.replace(" ", "-")
    python = cache / "bin" / "python"
    if (cache / "ready").exists():
        return python
    shutil.rmtree(cache, ignore_errors=True)
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", cache],
        [python, "-m", "pip", "install", "--quiet", *packages],
    ]
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, timeout=MADE_WITHIN_S)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(cache, ignore_errors=True)
        reason = "took too long" if isinstance(error, subprocess.TimeoutExpired) else "failed: is there an index?"
        pytest.skip(f"no environment with {name}: pip install {' '.join(packages)} {reason}")
    (cache / "ready").touch()
    return python


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.spark if name == "spark" else ()) for name in OTHERS]
)
def test_an_engine_in_an_environment_of_its_own_reads_every_table(
    name: str, questions: dict[str, Question], expected: dict[str, Any]
) -> None:
    if name in ("spark", "chdb") and not is_all():
        pytest.skip("an environment with Spark or chdb takes a minute or more: give --all")
    if name == "spark" and shutil.which("java") is None:
        pytest.skip("no java, which Spark runs on: install openjdk-17-jre-headless")
    compare(ask(environment(name, OTHERS[name]), name.split()[0], questions), expected)
