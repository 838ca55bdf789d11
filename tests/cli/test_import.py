"""`whorl import` as a person sees it: the account of each file, what is refused, exit status, JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.cli import calling
from whorl.tests.hints import run_hints

UUIDS = [f"GPU-0a1b2c3d-0000-1111-2222-3333444455{i:02d}" for i in range(40)]
LINES = ["exp,uuid,ts,perf_ms,extra", *(f"sgemm,{UUIDS[i]},{1_590_000_000 + i},{2400 + i},x" for i in range(40))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [*LINES, LINES[5]]
    lines[7] = lines[7].replace("1590000006", "-1")
    lines[9] = lines[9].replace("2408", "fast")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    return path


def run(tmp_path: Path, *words: object) -> Result:
    return calling.whorl("import --store", tmp_path / "store", *words)


def test_the_account_for_people(file: Path, tmp_path: Path) -> None:
    result = run(tmp_path, "--cluster", "lab", file)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "runs.csv: 41 rows of sgemm: 39 kept, 1 duplicate dropped, 1 refused; 39 GPUs",
        "  refused: 1 where perf_ms is not a readable time (line 10)",
        "  units from the columns' names: perf_ms ms",
        "  placeholders stored as NULL: ts 1",
        "  columns not stored: extra",
        f"next: whorl verdicts --store {tmp_path}/store",
    ]
    assert run_hints(result.stdout)
    again = run(tmp_path, "--cluster", "lab", file)
    assert again.stdout == "runs.csv: imported before into cluster lab; nothing added\n"


def test_what_became_of_a_file_is_told_before_the_next_one(file: Path, tmp_path: Path) -> None:
    other_file = tmp_path / "other.csv"
    other_file.write_text("\n".join(LINES[:30]))
    lines = run(tmp_path, file, tmp_path / "none.csv", other_file).output.splitlines()  # both streams, as they came
    assert [line.partition(": ")[0] for line in lines if line[0] != " "] == ["runs.csv", "whorl", "other.csv", "next"]


def test_the_account_for_programs(file: Path, tmp_path: Path) -> None:
    document = calling.document(
        "import --store", tmp_path / "store", file, tmp_path / "none.csv", schema="import", status=2
    )
    (account,), (failed,) = document["files"], document["failed"]
    assert account["refusals"] == [{"reason": "perf_ms is not a readable time", "count": 1, "lines": [10]}]
    assert account["workloads"] == {"sgemm": {"rows": 41, "kept": 39, "duplicates": 1, "refused": 1}}
    assert failed["file"].endswith("none.csv")
    assert "there is no such file" in failed["error"]


def test_one_bad_file_does_not_stop_the_others(file: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.touch()
    result = run(tmp_path, empty, file)
    assert result.exit_code == 2
    assert result.stderr == f"whorl: {empty} is empty (0 bytes): nothing to import\n"
    assert "39 kept" in result.stdout


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--map perf", "--map 'perf' is not COLUMN=VALUE; an example is --map perf=time:ms"),
        ("--map perf=", "--map 'perf=' is not COLUMN=VALUE"),
        ("--unit perf=", "--unit 'perf=' is not COLUMN=VALUE"),
        ("--unit lightyears", "'lightyears' is not a unit of time"),
        ("--unit pref=ms", "names a column that does not exist"),
        ("--unit ms --unit s", "--unit is given twice for the duration"),
        ("--map a=time:s --map a=gpu", "--map is given twice for column 'a'"),
        ("--set time-zone=Mars/Base", "time-zone=Mars/Base: there is no such time zone"),
    ],
)
def test_options_that_cannot_be_used(line: str, sentence: str, file: Path, tmp_path: Path) -> None:
    assert sentence in calling.refusal("import --store", tmp_path / "store", *line.split(), file)


def test_options_reach_the_importer(file: Path, tmp_path: Path) -> None:
    options = ["--unit", "us", "--workload", "mine", "--cluster", "lab"]
    assert "41 rows of mine" in run(tmp_path, *options, file).stdout
    runs = Store.open(tmp_path / "store").scan("results").collect()
    assert runs["value"].min() == 2.4
    assert set(runs["cluster"]) == {"lab"}
    mapped = ["--map", "exp=gpu", "--map", "perf_ms=time:ms", "--cluster", "other"]
    assert run(tmp_path, *mapped, file).exit_code == 0


def test_files_of_which_nothing_can_be_stored_make_no_store(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    refused = run(tmp_path, tmp_path / "none.csv", tmp_path / "empty.csv", tmp_path / "neither.csv")
    assert (refused.exit_code, refused.stderr.count("there is no such file")) == (2, 2)
    assert not (tmp_path / "store").exists()


def store_of_two(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    identity_columns = {"cluster": ["c", "c"], "gpu": ["GPU-01", "GPU-02"], "node": ["n1", "n1"], "slot": [0, 1]}
    store.append({"gpus": arrow_rows("gpus", identity_columns)}, "known")
    return store


@pytest.mark.long(short=1)
@pytest.mark.parametrize("text", ["n1/0", "gpu-01", "GPU-01", "01"])
def test_the_name_of_a_known_gpu_means_that_gpu(text: str, tmp_path: Path) -> None:
    store = store_of_two(tmp_path)
    (tmp_path / "new.csv").write_text("perf_ms\n10.1\n10.2\n")
    options = ("--cluster", "c", "--workload", "x")
    result = run(tmp_path, *options, "--gpu", text, tmp_path / "new.csv")
    assert result.exit_code == 0, result.output
    assert set(store.arrow("runs")["gpu"].to_pylist()) == {"GPU-01"}
    assert store.sql("select count(*) n from gpus_now").to_pylist() == [{"n": 2}]
    assert ("note: --gpu" in result.stdout) == (text != "GPU-01")
    (tmp_path / "column.csv").write_text("card,perf_ms\nn1/1,11.5\nn1/7,11.6\nn1/7,11.7\n")
    assert run(tmp_path, *options, "--map", "card=gpu", tmp_path / "column.csv").exit_code == 0
    assert set(store.arrow("runs")["gpu"].to_pylist()) == {"GPU-01", "GPU-02", "n1/7"}


@pytest.mark.long
def test_a_name_of_several_known_gpus_is_refused_and_a_new_name_is_a_new_gpu(tmp_path: Path) -> None:
    store = store_of_two(tmp_path)
    (tmp_path / "new.csv").write_text("perf_ms\n10.1\n10.2\n")
    options = ("--cluster", "c", "--workload", "x", tmp_path / "new.csv")
    refused = run(tmp_path, "--gpu", "n1", *options)
    assert (refused.exit_code, store.arrow("runs").num_rows) == (2, 0)
    assert "new.csv: --gpu 'n1' fits 2 GPUs: n1/0 (GPU-01), n1/1 (GPU-02); give more of the name" in refused.stderr
    for name in ("v10", "v1"):  # neither is a part of the other
        assert run(tmp_path, "--gpu", name, *options).exit_code == 0
    assert set(store.arrow("runs")["gpu"].to_pylist()) == {"v10", "v1"}
