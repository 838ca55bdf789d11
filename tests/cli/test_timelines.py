"""Timelines of training jobs: imported and judged on the command line. Real ones are read beside the clone."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import Result

from whorl.tests.chain_log import CLUSTER_NODES, chain_log
from whorl.tests.cli import calling
from whorl.tests.cli.calling import refusal, whorl

REAL = Path(__file__).parents[3] / "shared" / "data" / "timelines"
STEPS = range(12)
OPTYPES = {"forward-compute": 0.2, "backward-compute": 0.4}


def verdicts(store: Path) -> dict[str, Any]:
    return calling.document("verdicts --store", store)


def timeline(
    peers: int = 4, stages: int = 2, *, slow: dict[int, float] | None = None, steps: Sequence[int] = STEPS,
    sequences: float = 0.0, lasting: float = 0.0,
) -> pl.DataFrame:  # fmt: skip
    """A made-up timeline in the published layout. The last stage has 40 % more work, and microbatches differ by
    `sequences`; `lasting`: how much more of that one data-parallel rank always has. `slow`: factor of a rank's times.

    The ranks with the slow ones wait: their send and receive take long.
    """
    rng = np.random.default_rng(1)
    work = sequences * rng.standard_normal((len(steps), 4, peers))
    work[:, :, 0] += lasting
    rows = []
    for optype, seconds in OPTYPES.items():
        for stage in range(stages):
            for peer in range(peers):
                rank = stage * peers + peer
                factor = (slow or {}).get(rank, 1.0) * (1.4 if stage == stages - 1 else 1.0)
                for number, step in enumerate(steps):
                    for microbatch in range(4):
                        took = seconds * factor * np.exp(work[number, microbatch, peer] + 0.01 * rng.standard_normal())
                        rows.append((peer, stage, rank, step, optype, number + microbatch, took, microbatch))
                        if (slow or {}) and rank not in (slow or {}):
                            rows.append((peer, stage, rank, step, "forward-recv", number, 1.0 + took, microbatch))
    names = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id"]
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(pl.lit(0).alias("mc"))


def imported(folder: Path, frame: pl.DataFrame, *options: object) -> Path:
    frame.write_parquet(folder / "trace-x.parquet")
    result = whorl("import --store", folder / "S", folder / "trace-x.parquet", *options)
    assert result.exit_code == 0, result.output
    return folder / "S"


def rows_of(store: Path, query: str) -> list[list[Any]]:
    return [list(row.values()) for row in calling.document("sql --store", store, query)["rows"]]


@pytest.mark.long
@pytest.mark.skipif(not REAL.is_dir(), reason=f"real timelines are not at {REAL}")
def test_real_jobs(tmp_path: Path) -> None:
    """In one published job a rank is 2.5 times slower, in another one the stages have unequal work."""
    for name in ("AR", "ST"):
        steps = pl.read_parquet(REAL / f"trace-{name}.parquet").filter(pl.col("mb_id") < 4)
        steps.write_parquet(tmp_path / f"trace-{name}.parquet")
        (tmp_path / f"meta-{name}.yaml").write_bytes((REAL / f"meta-{name}.yaml").read_bytes())
        files = tmp_path / f"trace-{name}.parquet"
        assert whorl("import", "--store", tmp_path / "S", "--cluster", name, files).exit_code == 0
    document = verdicts(tmp_path / "S")
    (row,) = document["rows"]
    assert (row["level"], row["name"], row["cluster"], row["gpus"], row["n"]) == ("rank", "rank 0", "AR", [], 4)
    assert row["workloads"] == ["forward-compute", "backward-compute"]
    assert 145 < row["low_pct"] < row["effect_pct"] < row["high_pct"] < 160
    assert row["p"] < 1e-6
    assert row["q"] < 1e-5
    assert "2.28 times" in row["looks"]
    assert "tensor parallelism" in row["action"]
    assert {no["cluster"] for no in document["not_judged"]} == {"ST"}
    assert all("two" in no["why"] for no in document["not_judged"])


def test_a_slow_rank_is_named_by_its_gpu_where_a_file_says_it(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks.csv"
    ranks.write_text("rank,node,index\n0,n01,0\n1,n01,1\n2,n02,0\n")
    store = imported(tmp_path, timeline(slow={1: 1.5}), "--set", f"ranks={ranks}")
    (row,) = verdicts(store)["rows"]
    assert (row["level"], row["name"], row["gpus"]) == ("gpu", "n01/1", ["n01/1"])
    assert 45 < row["effect_pct"] < 55
    explained = whorl("explain n01/1 --store", store)
    assert (explained.exit_code, "1.5" in explained.output) == (0, True)
    assert rows_of(store, "select name, gpus[1].gpu from verdicts_now") == [["n01/1", "n01/1"]]
    page = whorl("report --gpu n01/1 --store", store, "--out", tmp_path / "page.html")
    assert "n01/1: slow, suspected +" in page.output


def test_uuids_of_ranks_and_the_layout_beside_it(tmp_path: Path) -> None:
    """Stage and place in data parallelism follow from the sizes; a rank without a GPU keeps the level `rank`."""
    (tmp_path / "meta-x.yaml").write_text("trial_name: big\nrun_id: 3\ndp_size: 4\npp_size: 2\ntp_size: 1\n")
    (tmp_path / "ranks.csv").write_text("# map\nrank,uuid\n0,GPU-00000000-aaaa-bbbb-cccc-000000000000\n")
    frame = timeline(slow={5: 2.0}).drop("stage", "dp_rank")
    store = imported(tmp_path, frame, "--set", f"ranks={tmp_path / 'ranks.csv'}")
    (row,) = verdicts(store)["rows"]
    assert (row["level"], row["name"]) == ("rank", "rank 5")
    assert "big run 3" in row["reference"]
    assert whorl("explain", "rank 5", "--store", store).exit_code == 0


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("peers", "stages", "sequences", "lasting"),
    [(8, 1, 0.4, 0.0), (4, 4, 0.4, 0.0), (4, 4, 0.3, 0.9), (3, 1, 0.0, 0.0)],
)
def test_unequal_work_names_nobody(tmp_path: Path, peers: int, stages: int, sequences: float, lasting: float) -> None:
    """Stages of unequal work, sequences of unequal lengths, and a rank that always gets the longer ones."""
    document = verdicts(imported(tmp_path, timeline(peers, stages, sequences=sequences, lasting=lasting)))
    assert document["rows"] == []
    assert any("sequences" in no["why"] for no in document["not_judged"]) == bool(lasting)


def test_a_slow_rank_is_found_among_unequal_sequences_and_among_three(tmp_path: Path) -> None:
    """What the other stages needed for the same data tells how much work it was. Three values do not tell how they
    are distributed: what is assumed of it must not hide a rank so slow.
    """
    for name in ("stages", "three"):
        (tmp_path / name).mkdir()
    unequal = verdicts(imported(tmp_path / "stages", timeline(4, 4, slow={6: 2.0}, sequences=0.3)))
    assert [row["name"] for row in unequal["rows"]] == ["rank 6"]
    (row,) = verdicts(imported(tmp_path / "three", timeline(3, 1, slow={1: 1.3})))["rows"]
    assert (row["name"], row["n"]) == ("rank 1", 3)
    assert row["q"] < 0.03


@pytest.mark.long
def test_two_slow_ranks_do_not_hide_each_other_in_a_small_job(tmp_path: Path) -> None:
    """Each makes the ranks of the other stage that have its data look fast."""
    store = imported(tmp_path, timeline(4, 2, slow={1: 1.5, 6: 1.3}))
    assert [row["name"] for row in verdicts(store)["rows"]] == ["rank 1", "rank 6"]
    text = whorl("verdicts --store", store).output
    assert text.startswith("2 of 8 ranks stand out. Nothing was found about the other 6 ranks.")


def test_a_csv_of_other_names_beside_runs(tmp_path: Path) -> None:
    """A cluster may have runs, and timelines too: both are judged. The GPU is one that the store knows."""
    store, trace, ranks = tmp_path / "S", tmp_path / "trace.csv", tmp_path / "ranks.csv"
    runs = [f"app,GPU-00000000-0000-0000-0000-00000000000{gpu},n1,{gpu},{5 + gpu / 100}" for gpu in range(4)]
    (tmp_path / "runs.csv").write_text("\n".join(["exp,uuid,node,device,perf_ms", *runs]))
    assert whorl("import --store", store, tmp_path / "runs.csv").exit_code == 0
    timeline(slow={0: 1.7}).rename({"rank": "worker", "mb_id": "piece"}).write_csv(trace)
    ranks.write_text("rank,gpu\n0,gpu-00000000-0000-0000-0000-000000000003\n")
    command = "import --map worker=rank --map piece=microbatch --store"
    assert whorl(command, store, "--set", f"ranks={ranks}", trace).exit_code == 0
    document = verdicts(store)
    assert [row["level"] for row in document["rows"]] == ["gpu"]
    assert "app" in {gap["subject"] for gap in document["not_judged"]}
    assert rows_of(store, "select count(distinct gpu) from gpus") == [[4]]


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (timeline(2, slow={0: 2.0}), "only two ranks"),
        (timeline(1, slow={0: 2.0}), "no other rank"),
        (timeline(slow={0: 2.0}, steps=[7]), "1 step with peers"),
        (timeline(slow={0: 2.0}).drop("stage"), "stage of the pipeline is not known"),
        (timeline(slow={0: 2.0}).filter(pl.col("optype") == "forward-recv"), "compute in its name"),
    ],
)
def test_what_cannot_be_concluded_is_said(tmp_path: Path, frame: pl.DataFrame, why: str) -> None:
    """Nor is anything concluded of operations that send and receive alone: who waits is no suspect."""
    store = imported(tmp_path, frame)
    document = verdicts(store)
    assert document["rows"] == []
    assert any(why in gap["why"] for gap in document["not_judged"])
    assert whorl("verdicts --store", store).exit_code == 0
    assert "no dates" in whorl("verdicts --since 30d --store", store).output


@pytest.mark.long
def test_two_jobs_keep_apart(tmp_path: Path) -> None:
    """A file adds nothing twice; another job needs a name of its own, and then the names of ranks have it."""
    store, trace = imported(tmp_path, timeline(slow={0: 2.0})), tmp_path / "trace-x.parquet"
    assert [row["name"] for row in verdicts(store)["rows"]] == ["rank 0"]
    assert "nothing added" in whorl("import --store", store, trace).output
    timeline(slow={3: 2.0}).write_parquet(trace)
    assert "--set job=NAME" in refusal("import --store", store, trace)
    assert whorl("import --set job=second --store", store, trace).exit_code == 0
    explained = whorl("explain", "rank 0", "--store", store).output
    assert "whorl verdicts --store" in explained.partition("To judge again:")[2]
    assert "whorl verdicts" in refusal("report --store", store, "--out", tmp_path / "page.html")
    assert {row["name"] for row in verdicts(store)["rows"]} == {"rank 0 of trace-x", "rank 3 of second"}


def test_ranks_that_compute_each_layer_together_are_one(tmp_path: Path) -> None:
    """Of four ranks of tensor parallelism all are slow if one is."""
    frame = timeline(slow={1: 1.8})
    ranks = pl.concat([frame.with_columns(pl.col("rank") * 4 + part) for part in range(4)])
    (tmp_path / "trace-x.yaml").write_text("dp_size: 4\npp_size: 2\ntp_size: 4\n")
    (row,) = verdicts(imported(tmp_path, ranks))["rows"]
    assert (row["level"], row["name"]) == ("rank", "ranks 4, 5, 6, 7")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("ranks.csv", "rank,uuid\n0,seven\n", "names no GPU"),
        ("ranks.csv", "rank,uuid\nzero,GPU-00000000-aaaa\n", "no whole number"),
        ("ranks.csv", "node,index\nn1,0\n", "it needs rank"),
        ("ranks.csv", "rank,node,index\n0,n1,0\n1,n1,0\n", "of another rank"),
        ("ranks.csv", "rank,node,index\n0,n1,0\n0,n1,1\n", "second time"),
        ("ranks.csv", "", "is empty"),
        ("layout.yaml", "- 4\n", "NAME: VALUE"),
        ("layout.yaml", "pp_size: many\n", "no number of ranks"),
        ("layout.yaml", "pp_size: 4\npp_size: 2\n", "line 2 has pp_size a second time"),
        ("layout.yaml", None, "cannot be read"),
    ],
)
def test_a_small_file_that_is_wrong_is_named(tmp_path: Path, name: str, text: str | None, sentence: str) -> None:
    timeline().write_parquet(tmp_path / "trace.parquet")
    if text is not None:
        (tmp_path / name).write_text(text)
    option = f"{name.partition('.')[0]}={tmp_path / name}"
    refused = refusal("import --store", tmp_path / "S", "--set", option, tmp_path / "trace.parquet")
    assert name in refused
    assert sentence in refused
    assert not (tmp_path / "S").exists()


# -- chain study -------------------------------------------------------------------------------------------------------
# `whorl jobs chain-study`: what it prints, writes and refuses. Its figures are checked in tests/analysis/chains.


def study(log: Path, *words: object) -> Result:
    return calling.whorl("jobs chain-study --log", log, "--cluster-nodes", CLUSTER_NODES, *words)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(chain_log())
    return path


def test_the_table_and_the_samples_of_the_published_study(log: Path, tmp_path: Path) -> None:
    answer = study(log, "--as-published", "mirage", "--nodes", 2, "--set", f"samples={tmp_path / 'samples.csv'}")
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()[3:5]] == ["reactive", "average"]
    assert "Least interruption: average, " in answer.stdout.splitlines()[0]
    with (tmp_path / "samples.csv").open() as file:
        samples = list(csv.DictReader(file))
    assert len(samples) == 43
    assert samples[0]["start"] == "2022-11-01T00:00:00"
    mean_h = sum(max(0, int(sample["reactive_min"])) for sample in samples) / 60 / len(samples)
    assert f"{mean_h:.2f} [" in answer.stdout


def test_rows_that_cannot_be_used_are_named_and_the_others_used(log: Path) -> None:
    log.write_text(log.read_text().replace("2022-11-01T03:07:00", "gestern", 1))
    answer = study(log, "--policy", "reactive")
    assert answer.exit_code == 0
    assert "log.csv: left out line 3: Submit is no time" in answer.stderr
    assert "SLURM_TIME_FORMAT=%s sacct" in answer.stderr
    assert "95 jobs of" in answer.stdout


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--policy reactive,best", "best"),
        ("--as-published mirage --policy p75", "--policy p75"),
        ("--as-published mirage --cost 1", "--as-published fixes what --cost would change"),
        ("--set samples=samples.csv", "samples= writes the samples of --as-published"),
        ("--test-from 2023-01-01", "choose an earlier --test-from"),
        ("--policy p75", "a model needs"),
        ("--set time-zone=Mars", "no such time zone"),
        ("--nodes 5", "5 nodes, and the cluster has 4"),
    ],
)
def test_what_cannot_be_studied_is_one_sentence(log: Path, line: str, sentence: str) -> None:
    answer = study(log, *line.split())
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert sentence in answer.stderr
