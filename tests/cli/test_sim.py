"""`whorl demo sim` from the command line: what people see, the JSON, and what follows from it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import Result

from whorl.simulation.faults import KINDS
from whorl.simulation.load import LOADS
from whorl.simulation.models import MODELS
from whorl.store import Store
from whorl.tests.cli.calling import document, refusal, whorl

RUN = "demo sim --gpus 16 --seed 7 --fault 3 --set hours=0.02 --store"


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Result]:
    store = str(tmp_path_factory.mktemp("sim") / "S")
    result = whorl(RUN, store)
    assert result.exit_code == 0, result.output
    return store, result


@pytest.mark.parametrize("model", MODELS)
def test_describe_names_every_number_its_basis_and_the_faults(model: str) -> None:
    text = whorl("demo sim --describe --model", model.split("-", maxsplit=1)[0].lower()).output
    assert text.startswith(f"{model}, simulated")
    basis = "fitted" if model == "V100-SXM2" else "assumed"
    for words in ("resistance_k_w", basis, "sgemm at steady state", *KINDS, *LOADS):
        assert words in text


def test_a_repeated_run_says_so_and_stores_nothing(stepped: tuple[str, Result]) -> None:
    store, result = stepped
    files = sorted(Path(store).rglob("*.parquet"))
    again = whorl(RUN, store)
    assert (again.exit_code, "nothing was stored" in again.stdout) == (0, True), again.output
    assert again.stdout.splitlines()[:4] == result.stdout.splitlines()[:4]
    assert sorted(Path(store).rglob("*.parquet")) == files


def test_steady_runs_over_weeks_as_json(tmp_path: Path) -> None:
    line = "demo sim --gpus 16 --model A100 --set runs=3 --set every=7d --fault drift --fault lost --load pagerank"
    began = ("--set", "began=2026-03-01", "--set", "cluster=green")
    answer = document(line, *began, "--store", tmp_path / "S", schema="sim.run")
    assert (answer["began"], answer["ended"]) == ("2026-03-01T00:00:00Z", "2026-03-22T00:00:00Z")
    assert (answer["model"], answer["cluster"], answer["load"]) == ("A100-SXM4-80", "green", "pagerank")
    assert answer["rows"]["runs"] == 48
    assert "telemetry" not in answer["rows"]
    assert sorted(fault["kind"] for fault in answer["planted"]) == ["drift", "lost"]
    assert Store.open(tmp_path / "S").sql("select distinct cluster, workload from runs").to_pylist() == [
        {"cluster": "green", "workload": "pagerank"}
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--describe --model K80", "no simulated GPU model 'K80'"),
        ("--store S --model K80", "no simulated GPU model"),
        ("--store S --load doom", "no simulated load 'doom'"),
        ("--store S --fault rust", "no fault 'rust'"),
        ("--store S --gpus 2 --fault 3", "3 faults cannot be planted in 2 GPUs"),
        ("--store S --gpus 0", "0 is not in the range"),
        ("--store S --set hours=nan", "not nan"),
        ("--store S --set hours=-1", "not -1"),
        ("--store S --set hours=0", "between 0 and 8784 hours"),
        ("--store S --set hours=8785", "not 8785"),
        ("--store S --set hours=1 --set interval=0.019", "from 0.02 s, the simulation's step, to the 3600 s of the"),
        ("--store S --set hours=0.01 --set interval=37", "to the 36 s of the campaign"),
        ("--store S --set began=noon", "'noon' is not a date"),
        ("--store S --set began=9999-12-31T23:00:00-12:00", "'9999-12-31 23:00:00-12:00' is not a date"),
        *((f"--store S --set began={time}", "from 1970 to 2159") for time in (
            "1492-10-12", "1969-12-31T23:59:59.9", "2160-01-01"
        )),
        ("--store S --set runs=1 --set every=soon", "'soon' is not a time"),
        ("--store S --set runs=1 --set every=437s", "load sgemm on V100-SXM2: the time from one run to the next must "
         "be from 438 s (the slowest GPU then has ended its run) to a year, not 437 s"),
        ("--store S --set runs=1 --set every=13209s --load mixed", "must be from 13210 s"),
        ("--store S --set runs=1 --set every=31622401s", "to a year, not"),
        ("--store S --set every=366d --set runs=101", "more than a century"),
        ("--store S --set runs=0", "0 is not in the range"),
        (f"--store S --seed {1 << 63}", "from 0 to 2^63 - 1"),
        ("--store S --set runs=1 --set hours=2", "hours cannot be used with runs"),
        ("--store S --set every=2d", "every needs runs"),
        ("--store S --set runs=1 --load idle", "has no work"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_in_one_sentence(
    line: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal("demo sim", *line.split())
    assert not (tmp_path / "S").exists(), "no store is made for nothing"


def test_what_is_too_short_for_a_run_says_so_and_names_no_command_that_fails(tmp_path: Path) -> None:
    short = "demo sim --gpus 1 --set hours=0.001 --store"
    text = whorl(short, tmp_path / "S", "--fault", "HOT").stdout
    assert "no runs: under load gemm-fp32 the first one would end after 300 s\n" in text
    following = shlex.split(text.splitlines()[-1].split("next: whorl ")[1])
    assert (following[0], whorl(*following).exit_code) == ("sql", 0)
    idle = whorl(short, tmp_path / "S", "--load", "idle", "--fault", "hot").stdout
    assert "no runs: under load idle no turn is measured\n" in idle
