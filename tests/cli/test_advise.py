"""`whorl advise` from the command line, where there is no scheduler to ask."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from whorl.tests.advised_fleet import gpu, write_store
from whorl.tests.analysis.chains.logs import LONESTAR, needs_lonestar
from whorl.tests.cli import calling
from whorl.tests.cli.calling import refusal
from whorl.tests.cli.calling import whorl as call
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


def advise(store: str, *options: object, workload: str = "sgemm", stdin: str | None = None) -> Result:
    """Ask for advice: without a stated share, one of six nodes may be excluded."""
    return call("advise --store", store, "--workload", workload, *options, stdin=stdin)


def document(store: str, *options: object, workload: str = "sgemm") -> dict[str, Any]:
    return calling.document("advise --store", store, "--workload", workload, *options)


def nodes(store: str, *options: object, workload: str = "sgemm", stdin: str | None = None) -> str:
    """What `--format exclude` prints."""
    result = advise(store, "--format", "exclude", *options, workload=workload, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_sentence_that_matters_comes_first(store: str) -> None:
    text = advise(store, "--gpus", "4").stdout
    first, second, command = text.splitlines()[:3]
    assert first.startswith(
        "sgemm: the best 4 packed GPUs save 15.3 % [14.8, 15.8] of the time beside random ones (n = 24 GPUs)."
    )
    assert (second[:11], command) == ("Exclude n02", "sbatch --exclude=n02 ...")
    assert "\\n" not in text
    assert "n02/1" in text
    assert gpu(2, 1) not in text, "people read names; --json has the UUID"
    assert text.index("a random packed set, off all slow nodes") < text.index("a random packed set   "), "honest first"
    assert "random GPUs anywhere, off all slow nodes" in text, "a set is compared with random ones of its kind"


def test_without_a_workload_it_is_the_one_that_gains_most(store: str) -> None:
    answer = calling.document("advise --gpus 4 --no-scheduler --store", store)
    assert answer["workload"] == "sgemm"
    first, last = answer["workloads"]
    assert (first["workload"], first["gpus"], first["runs"], first["measurable"]) == ("sgemm", 24, 144, True)
    assert first["low_saved"] < first["saved"] < first["high_saved"]
    assert (last["workload"], last["saved"], last["measurable"]) == ("pagerank", None, None)
    assert "do not repeat" in last["reason"]
    assert "workloads" not in document(store, "--gpus", "4", "--no-scheduler")


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """Root may read everything; the owner may not read what nobody may."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("table", sample(["runs", "results", "gpus"], short=1))
def test_a_store_that_cannot_be_read_is_said_to_be(store: str, table: str) -> None:
    """Not that there are no runs, or no times, or no nodes."""
    importlib.import_module("pyarrow.parquet")  # others may not be able to read it where the tests run
    assert advise(store, "--no-scheduler").exit_code == 0, "nor the other modules"
    folder = Path(tempfile.mkdtemp(prefix="whorl-locked-"))
    copy = shutil.copytree(store, folder / "S")
    folder.chmod(0o755)
    files = list((copy / table).glob("*.parquet"))
    try:
        for path in files:
            path.chmod(0)
        with as_another_user():
            result = advise(str(copy), "--no-scheduler")
        for path in (copy / "store.toml", copy):
            path.chmod(0)
            with as_another_user():
                sentence = refusal("advise --workload sgemm --no-scheduler --store", copy, status=3)
            assert f"cannot read {copy}/store.toml: this user has no read permission there" in sentence
    finally:
        copy.chmod(0o755)
        shutil.rmtree(folder)
    assert result.exit_code == 3
    assert f"{copy} cannot be read: {len(files) - 1} file" in result.stderr  # the empty one holds no rows
    assert "this user has no permission to read it" in result.stderr


@pytest.mark.long
def test_the_users_own_nodes_are_printed_with_the_others(store: str, tmp_path: Path) -> None:
    listed = tmp_path / "mine"
    listed.write_text("n04\nn05\n")
    for users, expected in (
        ("n05", "n[02,05]"), ("n06,n[03-04]", "n[02-04,06]"), ("n02", "n02"), ("elsewhere", "elsewhere,n02"),
        (listed, "n[02,04-05]"),
    ):  # fmt: skip
        assert nodes(store, "--set", f"and={users}") == f"{expected}\n"
    assert nodes(store, "--set", "and=n05", workload="pagerank") == "n05\n"
    few = ("--gpus", "4", "--set")
    assert nodes(store, *few, "and=n[03-06]") == "n[03-06]\n", "one usual node is left, and the job needs twice that"
    assert nodes(store, *few, "and=n[05-06]") == "n[02,05-06]\n"


def test_the_users_own_nodes_are_not_lost_where_there_is_no_advice(store: str, tmp_path: Path) -> None:
    gone = advise(str(tmp_path / "none"), "--format", "exclude", "--set", "and=n05")
    assert (gone.exit_code, gone.stdout) == (3, "n05\n")
    assert gone.stderr.startswith("whorl: ")
    excluded = advise(store, "--format", "exclude", "--set", "and=n[01-06]")
    assert (excluded.exit_code, excluded.stdout) == (2, "n[01-06]\n")
    assert "no node that the job can use was measured" in excluded.stderr


def test_a_difference_to_what_a_scheduler_has_needs_one_that_answers(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are submitted where one does not answer, and an unknown name would refuse them."""
    command = ("advise --workload sgemm --store", store, "--format")
    for options in (["prefer"], ["weights"], ["exclude", "--set", f"output={tmp_path / 'file'}"]):
        assert "`scontrol`" in refusal(*command, *options, status=5)
    assert not (tmp_path / "file").exists()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    for form in ("exclude", "prefer", "nodelist", "weights"):
        sentence = f"whorl: SLURM_CONF names {tmp_path}/slurm.conf, which does not exist"
        assert refusal(*command, form, status=5) == sentence
    assert "SLURM_CONF names" in document(store)["remarks"][0]


@pytest.mark.long
def test_nodes_from_a_file(store: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("n[01,03-04]  # the left half\nn05\n\n")
    result = advise(store, "--nodes", path, "--format", "exclude")
    assert (result.exit_code, result.stdout) == (0, "\n")
    assert "left out: the list of nodes does not contain n[02,06], which were measured" in result.stderr
    assert nodes(store, "--nodes", "-", stdin="n[01-06]\n") == "n02\n"
    command = ("advise --workload sgemm --store", store, "--nodes")
    for text, sentence in (
        ("# none\n", "names no nodes"),
        ("n[1-\n", "is not a host list"),
        ("x1\n", "none of the measured nodes is in the list: the store has n[01-03], ..., the list x1"),
    ):
        path.write_text(text)
        assert sentence in refusal(*command, path)
    assert refusal(*command, tmp_path / "none")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--set max-share=5_percent", "is not a share: write it as 5% or 0.05"),
        ("--set max-share=200%", "is not a share"),
        ("--set soft=1.5", "soft=1.5 is above hard=1.1"),
        ("--set hard=nan --no-scheduler", "hard=nan is not a factor"),
        ("--set locality-penalty=inf --no-scheduler", "locality-penalty=inf is not a factor"),
        ("--gpus 0", "0 is not in the range"),
        ("--gpus 25 --no-scheduler", "the job needs 25 GPUs, but only 24 GPUs"),
        ("--no-scheduler --nodes x", "--no-scheduler and --nodes cannot be used together"),
        ("--format prefer --set output=x", "output= works only with --format exclude"),
        ("--format exclude --set output=x --no-scheduler", "output= needs the scheduler"),
        ("--format weights --no-scheduler", "weights are changes to the scheduler's state"),
        ("--cluster other --no-scheduler", "other"),
        ("apply 12", "--store must follow apply, not precede it"),
        ("--set and=n05", "and= works only with --format exclude"),
        ("--set and=n05 --format prefer", "and= works only with --format exclude"),
        ("--set and=n05 --format exclude --set output=x", "and= works only with --format exclude"),
        ("--workload linpack", "pagerank"),
    ],
)
def test_what_cannot_be_asked(store: str, line: str, sentence: str) -> None:
    workload = () if "--workload" in line else ("--workload", "sgemm")
    assert sentence in refusal("advise --store", store, *workload, *line.split())


def test_what_is_missing(store: str, tmp_path: Path) -> None:
    unnamed = refusal("advise --format exclude --store", store)
    assert "which workload is meant? Give --workload; the store has " in unnamed
    assert "sgemm" in unnamed
    for line in ("advise --workload sgemm", "advise apply 12"):
        assert "Missing option '--store'" in refusal(line)
    assert refusal("advise --workload sgemm --store", tmp_path / "none", status=3)


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
    short = [*priced, "--set", "time=1h"]
    price = document(store, *priced)["price"]
    assert (price["jobs"], price["weeks"], price["job_nodes"], price["run_time_h"]) == (160, 20, 1, 8.0)
    assert (price["added_wait_h"], price["added_wait_low_h"], price["added_wait_high_h"]) == (1.0, 1.0, 1.0)
    assert price["gain_h"] == pytest.approx(8 * 0.135, rel=0.02)
    assert (price["worth"], price["longer_jobs_pct"]) == (True, 100.0)
    pays = "Excluding pays: a run of 8 h saves 1.1 h [1.1, 1.1], and jobs wait 1 h [1, 1] longer on average."
    assert pays in " ".join(advise(store, *priced).stdout.split())
    answer = document(store, *short)
    price = answer["price"]
    assert (price["worth"], price["run_time_from"], answer["exclude"]) == (False, "option", ["n02"])
    assert answer["scheduler"]["exclude"] == "", "no script excludes what does not pay"
    assert price["pays_from_h"] == pytest.approx(7.4, abs=0.1)
    dissuading = advise(store, *short).stdout
    assert dissuading.startswith("Do not exclude: a run of 1 h saves 0.1")
    assert "\nIf waiting cost nothing: Exclude n02: a random job" in dissuading
    assert "sbatch --exclude" not in dissuading
    printed = advise(store, *short, "--format", "exclude", "--set", "and=n05")
    assert (printed.exit_code, printed.stdout) == (0, "n05\n")
    assert "whorl: note: Do not exclude: a run of 1 h saves 0.16 h" in printed.stderr
    assert nodes(store, *priced) == "n02\n"


@pytest.mark.long
def test_a_price_that_is_not_known_says_what_to_do(store: str, tmp_path: Path) -> None:
    unknown = document(store)
    assert unknown["price"] is None
    assert "--set log=FILE reads a saved history of the queue" in unknown["price_reason"]
    assert nodes(store) == "n02\n"
    nothing = document(store, workload="pagerank")
    assert (nothing["price"], nothing["price_reason"]) == (None, None), "nothing is excluded"
    small = document(store, "--set", f"log={queue(tmp_path / 'log', 1.0)}", "--set", "cluster-nodes=1")
    assert "1 of 1 nodes cannot be excluded" in small["price_reason"]
    (tmp_path / "bad.csv").write_text("x\n1\n")
    sentence = refusal("advise --workload sgemm --store", store, "--set", f"log={tmp_path / 'bad.csv'}")
    assert f"{tmp_path}/bad.csv has no column Submit" in sentence


@pytest.mark.long
@needs_lonestar
def test_one_of_76_nodes_of_lonestar6_does_not_pay_for_its_usual_jobs(store: str) -> None:
    price = document(store, "--set", f"log={LONESTAR}", "--set", "cluster-nodes=76")["price"]
    assert (price["jobs"], price["excluded_nodes"], price["worth"]) == (14_403, 1, False)
    assert price["added_wait_low_h"] > 0.1
