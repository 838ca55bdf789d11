"""`whorl advise` from the command line, where there is no scheduler to ask."""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.tests.advised_fleet import gpu, write_store
from whorl.tests.analysis.chains.logs import LONESTAR, needs_lonestar
from whorl.tests.sizes import sample


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_store(tmp_path_factory.mktemp("advised")))


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Slurm, whatever this one has."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "WHORL_"))]:
        monkeypatch.delenv(name)


def whorl(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def advise(store: str, *options: str, workload: str = "sgemm", stdin: str | None = None) -> Result:
    """Ask for advice: without a stated share, one of six nodes may be excluded."""
    return whorl("advise", "--store", store, "--workload", workload, *options, stdin=stdin)


def document(store: str, *options: str, workload: str = "sgemm") -> dict[str, Any]:
    result = advise(store, "--json", *options, workload=workload)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_the_sentence_that_matters_comes_first(store: str) -> None:
    text = advise(store, "--gpus", "4").stdout
    first, second, command = text.splitlines()[:3]
    assert first.startswith(
        "sgemm: the best 4 packed GPUs save 15.3 % [14.7, 15.8] of the time beside random ones (n = 24 GPUs)."
    )
    assert second.startswith("Exclude n02")
    assert command == "sbatch --exclude=n02 ..."
    assert "\\n" not in text
    assert "n02/1" in text
    assert gpu(2, 1) not in text, "people read names; --json has the UUID"
    assert text.index("a random packed set, off all slow nodes") < text.index("a random packed set   "), "honest first"
    assert "random GPUs anywhere, off all slow nodes" in text, "a set is compared with random ones of its kind"


def test_without_a_workload_it_is_the_one_that_gains_most(store: str) -> None:
    result = whorl("advise", "--store", store, "--gpus", "4", "--no-scheduler", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["workload"] == "sgemm"
    first, last = answer["workloads"]
    assert (first["workload"], first["gpus"], first["runs"], first["measurable"]) == ("sgemm", 24, 144, True)
    assert first["low_saved"] < first["saved"] < first["high_saved"]
    assert (last["workload"], last["saved"], last["measurable"]) == ("pagerank", None, None)
    assert "do not repeat" in last["reason"]
    assert "workloads" not in document(store, "--gpus", "4", "--no-scheduler")


@pytest.mark.parametrize("table", sample(["runs", "results", "gpus"], short=1))
def test_a_store_that_cannot_be_read_is_said_to_be(store: str, table: str) -> None:
    """Not that there are no runs, or no times, or no nodes. The owner may read; root may read everything."""
    importlib.import_module("pyarrow.parquet")  # others may not be able to read it where the tests run
    assert advise(store, "--no-scheduler").exit_code == 0, "nor the other modules"
    folder = Path(tempfile.mkdtemp(prefix="whorl-locked-"))
    copy = shutil.copytree(store, folder / "S")
    folder.chmod(0o755)
    files = list((copy / table).glob("*.parquet"))
    others = os.geteuid() == 0
    try:
        for path in files:
            path.chmod(0)
        if others:
            os.seteuid(65534)
        result = advise(str(copy), "--no-scheduler")
        for path in (copy / "store.toml", copy):
            if others:
                os.seteuid(0)
            path.chmod(0)
            if others:
                os.seteuid(65534)
            locked = advise(str(copy), "--no-scheduler")
            assert locked.exit_code == 3
            assert f"cannot read {copy}/store.toml: this user has no read permission there" in locked.stderr
    finally:
        if others:
            os.seteuid(0)
        copy.chmod(0o755)
        shutil.rmtree(folder)
    assert result.exit_code == 3
    assert f"{copy} cannot be read: {len(files) - 1} file" in result.stderr  # the empty one holds no rows
    assert "this user has no permission to read it" in result.stderr


def test_exclude_is_one_line_possibly_empty(store: str) -> None:
    result = advise(store, "--no-scheduler", "--format", "exclude")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "n02\n", "")
    assert advise(store, "--no-scheduler", "--format", "exclude", workload="gemm").stdout == "n02\n", (
        "another name of it"
    )
    result = advise(store, "--no-scheduler", "--format", "exclude", workload="pagerank")
    assert (result.exit_code, result.stdout) == (0, "\n")
    assert result.stderr.startswith("whorl: note: nothing is excluded. No measurable benefit")


@pytest.mark.long
def test_the_users_own_nodes_are_printed_with_the_others(store: str, tmp_path: Path) -> None:
    def printed(own: str, *options: str, workload: str = "sgemm") -> str:
        result = advise(store, "--format", "exclude", "--set", f"and={own}", *options, workload=workload)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert printed("n05") == "n[02,05]\n"
    assert printed("n06,n[03-04]") == "n[02-04,06]\n"
    assert printed("n02") == "n02\n"
    assert printed("n05", workload="pagerank") == "n05\n"
    assert printed("elsewhere") == "elsewhere,n02\n"
    listed = tmp_path / "mine"
    listed.write_text("n04\nn05\n")
    assert printed(str(listed)) == "n[02,04-05]\n"
    assert printed("n[03-06]", "--gpus", "4") == "n[03-06]\n", "one usual node is left, and the job needs twice that"
    assert printed("n[05-06]", "--gpus", "4") == "n[02,05-06]\n"


def test_the_users_own_nodes_are_not_lost_where_there_is_no_advice(store: str, tmp_path: Path) -> None:
    own = ("--format", "exclude", "--set", "and=n05")
    gone = advise(str(tmp_path / "none"), *own)
    assert (gone.exit_code, gone.stdout) == (3, "n05\n")
    assert gone.stderr.startswith("whorl: ")
    every = advise(store, "--format", "exclude", "--set", "and=n[01-06]")
    assert (every.exit_code, every.stdout) == (2, "n[01-06]\n")
    assert "no node that the job can use was measured" in every.stderr
    for options in (
        ["--set", "and=n05"],
        ["--format", "prefer", "--set", "and=n05"],
        [*own, "--set", f"output={tmp_path / 'x'}"],
    ):
        refused = advise(store, *options)
        assert refused.exit_code == 2
        assert "and= works only with --format exclude" in refused.stderr


def test_a_difference_to_what_a_scheduler_has_needs_one(store: str, tmp_path: Path) -> None:
    for options in (["prefer"], ["weights"], ["exclude", "--set", f"output={tmp_path / 'file'}"]):
        result = advise(store, "--format", *options)
        assert (result.exit_code, result.stdout) == (5, "")
        assert "`scontrol`" in result.stderr
    assert not (tmp_path / "file").exists()
    result = advise(store, "--no-scheduler", "--format", "weights")
    assert result.exit_code == 2
    assert "weights are changes to the scheduler's state" in result.stderr


@pytest.mark.long
def test_nodes_from_a_file(store: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("n[01,03-04]  # the left half\nn05\n\n")
    result = advise(store, "--nodes", str(path), "--format", "exclude")
    assert (result.exit_code, result.stdout) == (0, "\n")
    assert "left out: the list of nodes does not contain n[02,06], which were measured" in result.stderr
    assert advise(store, "--nodes", "-", "--format", "exclude", stdin="n[01-06]\n").stdout == "n02\n"
    for text, sentence in (
        ("# none\n", "names no nodes"),
        ("n[1-\n", "is not a host list"),
        ("x1\n", "none of the measured nodes is in the list: the store has n[01-03], ..., the list x1"),
    ):
        path.write_text(text)
        refused = advise(store, "--nodes", str(path))
        assert refused.exit_code == 2
        assert sentence in refused.stderr
    assert advise(store, "--nodes", str(tmp_path / "none")).exit_code == 2


def test_the_locality_penalty_moves_the_best_set(store: str) -> None:
    near = document(store, "--gpus", "4", "--no-scheduler", "--set", "locality-penalty=1.7")
    assert near["break_even"] is None or near["break_even"] < 1.7
    assert near["spread"] is None or near["spread"]["slowdown"] >= near["packed"]["slowdown"] * 0.999


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "max-share=5 percent"], "is not a share: write it as 5% or 0.05"),
        (["--set", "max-share=200%"], "is not a share"),
        (["--set", "soft=1.5"], "soft=1.5 is above hard=1.1"),
        (["--set", "hard=nan", "--no-scheduler"], "hard=nan is not a factor"),
        (["--set", "locality-penalty=inf", "--no-scheduler"], "locality-penalty=inf is not a factor"),
        (["--gpus", "0"], "0 is not in the range"),
        (["--gpus", "25", "--no-scheduler"], "the job needs 25 GPUs, but only 24 GPUs"),
        (["--no-scheduler", "--nodes", "x"], "--no-scheduler and --nodes cannot be used together"),
        (["--format", "prefer", "--set", "output=x"], "output= works only with --format exclude"),
        (["--format", "exclude", "--set", "output=x", "--no-scheduler"], "output= needs the scheduler"),
        (["--cluster", "other", "--no-scheduler"], "other"),
        (["--set", "and=n05", "apply", "12"], "and before apply has no effect"),
        (["--json", "apply", "12"], "--json before apply has no effect"),
    ],
)
def test_what_cannot_be_asked(store: str, options: list[str], sentence: str) -> None:
    result = advise(store, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_what_is_missing(store: str, tmp_path: Path) -> None:
    unsaid = whorl("advise", "--store", store, "--format", "exclude")
    assert unsaid.exit_code == 2
    assert "which workload is meant? Give --workload; the store has " in unsaid.stderr
    assert "sgemm" in unsaid.stderr
    assert "Missing option '--store'" in whorl("advise", "--workload", "sgemm").stderr
    assert "Missing option '--store'" in whorl("advise", "apply", "12").stderr
    unknown = advise(store, workload="linpack")
    assert unknown.exit_code == 2
    assert "pagerank" in unknown.stderr
    assert "sgemm" in unknown.stderr
    assert advise(str(tmp_path / "none")).exit_code == 3


def test_a_scheduler_that_does_not_answer_gets_no_names(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike one that is not there: jobs are submitted here, and an unknown name would refuse them."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    for form in ("exclude", "prefer", "nodelist", "weights"):
        result = advise(store, "--format", form)
        assert (result.exit_code, result.stdout) == (5, "")
        assert result.stderr == f"whorl: SLURM_CONF names {tmp_path}/slurm.conf, which does not exist\n"
    assert "SLURM_CONF names" in document(store)["remarks"][0]


def test_a_sentence_keeps_its_dots(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    from whorl.cli.documents.advice import sentence
    from whorl.cli.output import say

    say(f"Note: {sentence('not 5 nodes (n[1,3], ...)')} {sentence('any node will do.')}")
    assert capsys.readouterr().out == "Note: not 5 nodes (n[1,3], ...). any node will do.\n"


def queue(path: Path, load: float) -> str:
    """The log of a queue of 20 weeks: each Monday jobs of one node for eight hours, `load` of them a node of eight."""
    lines = ["submit,start,end,limit_min,nodes"]
    for week in range(20):
        monday = dt.datetime(2026, 1, 5, tzinfo=dt.UTC) + dt.timedelta(weeks=week)
        ends = monday + dt.timedelta(hours=8)
        lines += [f"{monday:%FT%T},{monday:%FT%T},{ends:%FT%T},600,1"] * round(8 * load)
    path.write_text("\n".join(lines))
    return str(path)


def test_advice_states_its_price_in_waiting(store: str, tmp_path: Path) -> None:
    """With one of eight nodes fewer, one of eight jobs of each Monday waits eight hours: one hour on average."""
    log = queue(tmp_path / "full.csv", 1.0)
    priced = ["--gpus", "4", "--set", f"log={log}", "--set", "cluster-nodes=8"]
    price = document(store, *priced)["price"]
    assert (price["jobs"], price["weeks"], price["job_nodes"], price["run_time_h"]) == (160, 20, 1, 8.0)
    assert (price["added_wait_h"], price["added_wait_low_h"], price["added_wait_high_h"]) == (1.0, 1.0, 1.0)
    assert price["gain_h"] == pytest.approx(8 * 0.135, rel=0.02)
    assert (price["worth"], price["longer_jobs_pct"]) == (True, 100.0)
    text = advise(store, *priced).stdout
    assert (
        "Excluding pays: a run of 8 h saves 1.1 h [1.1, 1.1], and jobs wait 1 h [1, 1] longer on average."
        in " ".join(text.split())
    )
    short = document(store, *priced, "--set", "time=1h")
    assert (short["price"]["worth"], short["price"]["run_time_from"], short["exclude"]) == (False, "option", ["n02"])
    assert short["scheduler"]["exclude"] == "", "no script excludes what does not pay"
    assert short["price"]["pays_from_h"] == pytest.approx(7.4, abs=0.1)
    dissuading = advise(store, *priced, "--set", "time=1h").stdout
    assert dissuading.startswith("Do not exclude: a run of 1 h saves 0.1")
    assert "\nIf waiting cost nothing: Exclude n02: a random job" in dissuading
    assert "sbatch --exclude" not in dissuading
    printed = advise(store, *priced, "--set", "time=1h", "--format", "exclude", "--set", "and=n05")
    assert (printed.exit_code, printed.stdout) == (0, "n05\n")
    assert "whorl: note: Do not exclude: a run of 1 h saves 0.16 h" in printed.stderr
    assert advise(store, *priced, "--format", "exclude").stdout == "n02\n"


@pytest.mark.long
def test_a_price_that_is_not_known_says_what_to_do(store: str, tmp_path: Path) -> None:
    unknown = document(store)
    assert unknown["price"] is None
    assert "--set log=FILE reads a saved history of the queue" in unknown["price_reason"]
    assert advise(store, "--format", "exclude").stdout == "n02\n"
    nothing = document(store, workload="pagerank")
    assert (nothing["price"], nothing["price_reason"]) == (None, None), "nothing is excluded"
    small = document(store, "--set", f"log={queue(tmp_path / 'log', 1.0)}", "--set", "cluster-nodes=1")
    assert "1 of 1 nodes cannot be excluded" in small["price_reason"]
    (tmp_path / "bad.csv").write_text("x\n1\n")
    refused = advise(store, "--set", f"log={tmp_path / 'bad.csv'}")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{tmp_path}/bad.csv has no column Submit" in refused.stderr


@pytest.mark.long
@needs_lonestar
def test_one_of_76_nodes_of_lonestar6_does_not_pay_for_its_usual_jobs(store: str) -> None:
    price = document(store, "--set", f"log={LONESTAR}", "--set", "cluster-nodes=76")["price"]
    assert (price["jobs"], price["excluded_nodes"], price["worth"]) == (14_403, 1, False)
    assert price["added_wait_low_h"] > 0.1
