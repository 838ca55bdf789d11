"""`whorl jobs chain-study`: what it prints, writes and refuses. Its figures are checked in tests/analysis/chains."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import Result

from whorl.tests.chain_log import CLUSTER_NODES, chain_log
from whorl.tests.cli import calling


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
