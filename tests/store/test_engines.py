"""Other engines read the files of a store, every table of it, and find what `whorl sql` finds; the scripts of
docs/engines say how, and each of them runs here."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.store import Store, replacing
from whorl.store.metrics import power_is_trusted
from whorl.store.schema import DERIVED, arrow_schema
from whorl.tests.conftest import BuiltOnce
from whorl.tests.sizes import is_all, is_long
from whorl.tests.store import engine_reader
from whorl.tests.store.flipped_bits import BEGAN, DAY, rows, telemetry
from whorl.tests.store.test_windows import at, readings, run
from whorl.tests.store.test_windows import rows as records
from whorl.tests.stores import new_store

INSTALLED = ("pyarrow", "polars", "duckdb")
OTHERS = {
    "duckdb 1.4": ("duckdb==1.4.*", "numpy"),
    "duckdb 1.5": ("duckdb==1.5.5", "numpy", "duckdb_extensions==1.5.5", *(
        f"duckdb_extension_{name}==1.5.5" for name in ("avro", "delta", "iceberg")
    )),
    "chdb": ("chdb",),
    "spark": ("pyspark",),
    "trino": ("trino-sql-validator",),
}  # fmt: skip
LONG = "duckdb 1.4"  # the one whose environment is made in seconds
EXTEND = """
from duckdb_extensions import import_extension
for name in ("avro", "delta", "iceberg"):
    import_extension(name)
"""
MADE_WITHIN_S, ALL_MADE_WITHIN_S = 60, 900
LOGS = ("delta", "iceberg")
SCRIPTS = Path(__file__).resolve().parents[2] / "docs" / "engines"
GPU = "GPU-5a3c7e10"  # the one of the scripts
SPARK = (
    "--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false",
    "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1",
)  # fmt: skip
Question = dict[str, Any]
Rows = list[tuple[Any, ...]]


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
    if "duckdb_extensions==1.5.5" in packages:  # which a query would load from the network
        commands.append(["env", f"HOME={cache}", python, "-c", EXTEND])
    try:
        for command in commands:
            limit_s = ALL_MADE_WITHIN_S if is_all() else MADE_WITHIN_S
            subprocess.run(command, check=True, capture_output=True, timeout=limit_s)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(cache, ignore_errors=True)
        reason = "took too long" if isinstance(error, subprocess.TimeoutExpired) else "failed: is there an index?"
        pytest.skip(f"no environment with {name}: pip install {' '.join(packages)} {reason}")
    (cache / "ready").touch()
    return python


def installed(name: str) -> Path:
    """The Python of the environment of an engine; skips where this engine cannot be tried."""
    if name != LONG and not is_all():
        pytest.skip(f"an environment with {name} takes a minute or more, or is a large download: give --all")
    if name == "spark" and shutil.which("java") is None:
        pytest.skip("no java, which Spark runs on: install openjdk-17-jre-headless")
    return environment(name, OTHERS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", ["duckdb 1.4", "duckdb 1.5", "chdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_an_engine_in_an_environment_of_its_own_reads_every_table(
    name: str, questions: dict[str, Question], expected: dict[str, Any]
) -> None:
    compare(ask(installed(name), name.split()[0], questions), expected)


def write_fleet(root: Path) -> None:
    """Two days of readings and runs; replaced files are there still, and late rows, some of a key that came twice."""
    store = new_store(root)
    telemetry = [
        *readings(GPU, range(100), lambda s: None if s == 50 else (100 + s) * 1000, energy_mj=lambda s: 150_000 * s,
                  sm_clock_mhz=1000, temperature_c=lambda s: 40 + s % 7),
        *readings("reset", range(100), 200_049, energy_mj=lambda s: 10**9 + 200_000 * s if s < 50 else 200_000 * s),
        *readings("stuck", range(100), 300_000, quality="power_stuck"),
        *readings("zero", range(100), lambda s: 0 if s < 10 else 80_000, power_instant_mw=lambda s: 80_000 + s),
    ]  # fmt: skip
    runs = [
        run("steady", GPU, 10, 20), run("over it", GPU, 15, 60), run("all", GPU, -10, 110),
        run("reset", "reset", 0, 100), run("before it", "reset", 0, 40), run("stuck", "stuck", 0, 100),
        run("zero", "zero", 0, 100), run("gaps", "zero", 90, 300), run("none", GPU, 500, 600),
        run("instant", GPU, 5, 5), run("backwards", GPU, 20, 10), run("open", GPU, 0, None),
        run("long", "zero", -40_000, 40_000),
    ]  # fmt: skip
    job = {"cluster": "c", "recorded": at(0), "allocation": "1@1", "job_id": "1", "began": at(10), "ended": at(70)}
    jobs = [job | {"gpu": GPU}, job | {"gpu": "reset"}, job | {"allocation": "2@1", "gpu": "zero", "ended": None}]
    store.append({"telemetry": records("telemetry", *telemetry[::2]), "runs": records("runs", *runs)}, "a")
    store.append({"telemetry": records("telemetry", *telemetry[1::2]), "jobs": records("jobs", *jobs)}, "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replacing, "pace_of", lambda _root, *, offline=False: replacing.Pace(0.05, 0.05, 3600.0))
        store.compact()
    for name, watts in (("c", 900_000), ("d", 150_000)):
        store.correct(records("telemetry", *readings(GPU, range(20, 40), watts, temperature_c=90)), name)


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("engines-fleet", lambda folder: write_fleet(folder / "fleet")) / "fleet")


def listed(store: Path, *arguments: str) -> list[Path]:
    done = CliRunner().invoke(cli, ["store", "files", "--store", str(store), *arguments])
    assert done.exit_code == 0, done.output
    return [Path(line) for line in done.output.splitlines()]


def test_the_files_that_are_listed_are_those_that_readers_use(fleet: Store, tmp_path: Path) -> None:
    """Not those that were replaced, nor those of a journal that is still there."""
    on_disk = set((fleet.root / "telemetry").rglob("*_*.parquet"))
    assert listed(fleet.root, "telemetry") == [fleet.root / "telemetry" / "_schema.parquet", *fleet.files("telemetry")]
    assert len(on_disk) == 7
    assert [path.parent.name for path in listed(fleet.root, "late")] == ["late", "day=2026-11-02", "day=2026-11-02"]
    assert len(listed(fleet.root, "telemetry", "--since", "2026-11-03")) == 2
    assert len(listed(fleet.root, "telemetry", "--until", "2026-11-02")) == 1
    store = new_store(tmp_path / "S")
    with store.journal("n", background=False, offline=True) as journal:
        journal.append(BEGAN, ["d"], {"cluster": "c", "power_mw": [5]})
        [path] = (store.root / "journal").glob("*.journal")
        content = path.read_bytes()
        journal.seal()
        assert len(listed(store.root, "telemetry")) == 2
        path.write_bytes(content)
        assert len(listed(store.root, "telemetry")) == 1
        path.unlink()


def test_files_of_a_table_that_is_not_there_are_refused(fleet: Store) -> None:
    done = CliRunner().invoke(cli, ["store", "files", "--store", str(fleet.root), "latest"])
    assert done.exit_code == 2
    assert "no files of a table 'latest'; there are gpus, telemetry, " in done.output


@pytest.fixture(scope="module")
def page(fleet: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store, the scripts of docs/engines, and what the commands write that their heads name."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(fleet.root, folder / "fleet")
    shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
    texts = [path.read_text() for path in SCRIPTS.glob("*.py")]
    commands = {line for text in texts for line in re.findall(r"^whorl .*$|(?<=`)whorl [^`]*(?=`)", text, re.M)}
    logs = [f"whorl store register --store fleet --{log}" for log in LOGS] if is_long() else []
    assert commands == {
        "whorl store files --store fleet --json > files.json", "whorl store files --store fleet > files.txt",
        "whorl sql --store fleet --unsafe \"copy (from jobs_now) to 'jobs_now.parquet'\"",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in [*sorted(commands), *logs]:
            command, _, target = line.partition(" > ")
            done = CliRunner().invoke(cli, shlex.split(command)[1:])
            assert done.exit_code == 0, done.output
            if target:
                (folder / target).write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def right(fleet: Store, page: Path) -> dict[str, Rows]:
    """What whorl answers to the questions of the page."""
    power = "coalesce(power_instant_mw, power_mw)"
    view = f"select *, case when {power} between 500 and 5e6 and {power_is_trusted()} then {power} end as board_mw"
    columns = "began, ended, n, power_mean_w, power_median_w, power_p95_w, energy_j, energy_from, sm_clock_mean_mhz, "
    windows = f"select run_id, cluster, gpu, {columns} temperature_max_c from {{}} order by run_id"
    jobs = "(select allocation || ' ' || gpu as run_id, * from job_windows where ended is not null)"
    queries = {name: f"with readings as ({view} from telemetry) {(page / f'{name}.sql').read_text()}" for name in
               ("p95", "hours", "runs")}  # fmt: skip
    queries |= {"run_windows": windows.format("run_windows"), "job_windows": windows.format(jobs)}
    answers = {name: [tuple(row.values()) for row in fleet.sql(query).to_pylist()] for name, query in queries.items()}
    assert {name: len(rows) for name, rows in answers.items()} == {
        "p95": 6, "hours": 2, "runs": 7, "run_windows": 12, "job_windows": 2,
    }  # fmt: skip
    assert any(150.0 in row for row in answers["run_windows"])
    return answers


def agree(answers: dict[str, Any], right: dict[str, Rows]) -> None:
    """That answers have the rows that are right, in order; times may be texts, with any number of digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, str) and re.match(r"2026-\d\d-\d\d", value):
            value = dt.datetime.fromisoformat(value)
        elif isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            value = dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001 - UTC without a zone
        return float(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else value

    assert answers.keys() <= right.keys()
    for name, answer in answers.items():
        assert len(answer) == len(right[name]), name
        for row, right_row in zip(answer, right[name], strict=True):
            expected = [pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in map(plain, right_row)]
            assert [plain(value) for value in row] == expected, name


@pytest.mark.parametrize(
    ("engine", "how"),
    [("polars", "list"), ("duckdb", "list"), *(pytest.param("polars", log, marks=pytest.mark.long) for log in LOGS)],
)
def test_a_script_is_right_for_an_engine_that_whorl_uses(
    engine: str, how: str, page: Path, right: dict[str, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(page)
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # that of whorl's extra `iceberg`
    answers = engine_reader.answers_of(engine, f"with_{engine}.py", how)
    assert len(answers) == 3
    agree(answers, right)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "script", "how"),
    [
        ("duckdb 1.4", "duckdb", "list"), ("duckdb 1.5", "duckdb", "delta"), ("duckdb 1.5", "duckdb", "iceberg"),
        ("chdb", "clickhouse", "list"), ("chdb", "clickhouse", "delta"), ("chdb", "clickhouse", "iceberg"),
        pytest.param("spark", "spark", "list", marks=pytest.mark.spark),
    ],
)  # fmt: skip
def test_a_script_is_right_for_an_engine_in_an_environment_of_its_own(
    name: str, script: str, how: str, page: Path, right: dict[str, Rows]
) -> None:
    python, engine = installed(name), name.split()[0]
    command: list[str | Path] = [python]
    if engine == "spark":
        command = [python.parent / "spark-submit", *SPARK]
    done = subprocess.run(
        [*command, engine_reader.__file__, engine, f"with_{script}.py", how],
        cwd=page,
        env={
            **os.environ,
            "HOME": str(python.parents[1]),
            "PYSPARK_PYTHON": str(python),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])  # spark-submit prints what a script prints as well
    assert len(answers) == (5 if engine == "spark" else 3)
    agree(answers, right)


@pytest.mark.long
def test_trino_takes_the_sql_of_the_page_by_its_grammar(page: Path) -> None:
    python = installed("trino")
    percentile = "percentile_cont(0.95) within group (order by board_mw)", "approx_percentile(board_mw, 0.95)"
    texts = [(page / f"{name}.sql").read_text().replace(*percentile) for name in ("readings", "p95", "hours", "runs")]
    check = "import json, sys, trino_sql_validator as t; print([t.validate(s).valid for s in json.load(sys.stdin)])"
    done = subprocess.run(
        [python, "-c", check], input=json.dumps([*texts, "select from"]), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[True, True, True, True, False]\n"
