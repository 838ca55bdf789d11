"""`whorl report` on stores of every kind: campaigns, imported runs, one GPU, telemetry alone, nothing."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.dashboards.page import refuse_unwritable, write_page
from whorl.dashboards.store_report import look
from whorl.simulation.sample import write_sample
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, stored
from whorl.tests.stores import new_store

pytestmark = pytest.mark.usefixtures("few_replicates")

LONGHORN = Path(__file__).parents[2].parent / "shared" / "data" / "longhorn"


def report(store: object, *arguments: object, out: Path) -> Result:
    given = ["report", "--store", str(store), "--out", str(out), *map(str, arguments)]
    return CliRunner().invoke(cli, given, catch_exceptions=False)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one campaign over many GPUs, one of which is slow."""
    path = tmp_path_factory.mktemp("campaign") / "S"
    stored(path, 24, 3, kinds=("pinned",))
    return path


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of imported runs of two clusters, without a campaign."""
    folder = tmp_path_factory.mktemp("imported")
    files = [str(path) for path in write_sample(folder / "files").files]
    for cluster in ("east", "west"):
        done = CliRunner().invoke(cli, ["import", "--store", str(folder / "S"), "--cluster", cluster, *files])
        assert done.exit_code == 0, done.output
    return folder / "S"


@pytest.mark.long
def test_a_campaign_is_on_the_page_with_what_stands_out(campaign: Path, tmp_path: Path) -> None:
    done = report(campaign, out=tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("campaign made-1: 24 simulated V100-SXM2 GPUs on 6 nodes, ")
    assert "1 GPU stands out, 1 finding (" in done.stdout
    assert f"report: {tmp_path / 'r.html'}" in done.stdout
    page = (tmp_path / "r.html").read_text()
    assert "Probes on 24 simulated V100-SXM2 GPUs" in page
    assert "1 finding: " in page
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.long
def test_a_campaign_that_was_cut_says_how_many_runs_are_missing(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 16, 3, telemetry=False)

    def progress(to_s: int) -> None:
        row = {
            "cluster": [CLUSTER],
            "campaign": ["made-1"],
            "asked": ['{"probes": {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}}'],
            "gpus": [16],
            "stored_to": [BEGAN_NS + to_s * 1_000_000_000],
            "ended": [BEGAN_NS + 100 * 1_000_000_000],
        }
        store.append({"campaigns": arrow_rows("campaigns", row)}, f"progress-{to_s}")

    said = "ot complete: 80 of 96 runs: the campaign was interrupted, or it still runs"
    progress(50)
    assert said in report(store.root, out=tmp_path / "r.html").stdout
    assert said in (tmp_path / "r.html").read_text()
    progress(100)
    assert "ot complete" not in report(store.root, out=tmp_path / "r.html").stdout


@pytest.mark.long
def test_imported_runs_are_reported_by_cluster(imported: Path, tmp_path: Path) -> None:
    several = report(imported, out=tmp_path / "r.html")
    assert several.exit_code == 2
    assert several.stderr == f"whorl: {imported} has runs of east, west: choose one by --cluster\n"
    done = report(imported, "--cluster", "west", out=tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("cluster west: ")
    page = (tmp_path / "r.html").read_text()
    assert "Runs of cluster west" in page
    assert "median of its model in this workload" in page
    assert "in this probe" not in page
    assert "Temperature rise" not in page, "runs that are days apart have no common inlet temperature"


@pytest.mark.long
@pytest.mark.skipif(not LONGHORN.is_dir(), reason=f"the Longhorn files are not at {LONGHORN}")
def test_a_gpu_with_two_names_is_one_where_a_file_has_both(tmp_path: Path) -> None:
    """bert names GPUs by place, pagerank has place and UUID. Times of bert belong to its jobs: no GPU is named."""
    files = [str(LONGHORN / f"{name}.csv.gz") for name in ("bert", "pagerank")]
    CliRunner().invoke(cli, ["import", "--store", str(tmp_path / "S"), "--cluster", "longhorn", *files])
    done = report(tmp_path / "S", out=tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    gpus = int(re.search(r"longhorn: (?:up to )?(\d+) GPUs", done.stdout)[1])  # type: ignore[index]
    both = Store.open(tmp_path / "S").sql("select count(distinct gpu) as n from runs")["n"][0].as_py()
    assert 172 <= gpus < both
    assert "not judged: bert (the GPUs of a job finish together" in done.stdout
    assert "no single GPU stands out, 1 finding (" in done.stdout


def test_what_cannot_be_reported_is_one_sentence(campaign: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    new_store(empty)
    telemetry = tmp_path / "telemetry"
    now = pa.array([BEGAN_NS], pa.timestamp("ns"))
    new_store(telemetry).append({"telemetry": pa.table({"cluster": ["c"], "gpu": ["GPU-1"], "ts": now})}, "one")
    page = tmp_path / "r.html"
    cases: list[tuple[tuple[object, ...], Path, int, str]] = [
        ((empty,), page, 2, f"{empty} holds no runs: `whorl import --store {empty} FILES` or `whorl probe run"),
        ((telemetry,), page, 2, f"{telemetry} holds telemetry and no runs: "),
        ((tmp_path / "none",), page, 3, "none"),
        ((campaign, "--cluster", "mars"), page, 2, f"holds no runs of cluster 'mars'; it has {CLUSTER}"),
        ((campaign, "--campaign", "x"), page, 2, "holds no campaign 'x'; the last ones are made-1"),
        ((campaign,), tmp_path, 2, f"{tmp_path} is a folder, and --out writes a file"),
        ((campaign,), tmp_path / "no" / "r.html", 2, f"there is no folder {tmp_path / 'no'}"),
        ((campaign,), Path("-"), 2, "--out writes a file, and - is none"),
        ((campaign,), campaign / "store.toml", 2, f"is in the store {campaign}, which holds only its own files"),
        ((campaign,), campaign / "runs" / "r.html", 2, f"is in the store {campaign}"),
        ((campaign,), tmp_path / "to_store", 2, f"is in the store {campaign}"),
        ((campaign,), tmp_path / "socket", 2, "is no regular file: choose another path"),
    ]
    (tmp_path / "to_store").symlink_to(campaign / "store.toml")
    about = (campaign / "store.toml").read_bytes()
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    for arguments, out, status, sentence in cases:
        done = report(*arguments, out=out)
        assert (done.exit_code, done.stdout) == (status, ""), arguments
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    assert not page.exists()
    assert (campaign / "store.toml").read_bytes() == about


@pytest.mark.long
def test_a_figure_of_a_workload_is_found_by_its_other_names(campaign: Path) -> None:
    looked = look(campaign)
    assert looked.distribution("sgemm") == looked.distribution("gemm-fp32")
    assert looked.machine("sgemm") == looked.machine("gemm-fp32")


def test_a_page_goes_into_a_pipe_and_through_a_link_and_replaces_neither(tmp_path: Path) -> None:
    pipe, link, page = tmp_path / "pipe", tmp_path / "link.html", tmp_path / "page.html"
    os.mkfifo(pipe)
    link.symlink_to(page)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        refuse_unwritable(pipe, "--out")
        write_page(pipe, "<p>short</p>")
        assert os.read(reader, 100) == b"<p>short</p>"
    finally:
        os.close(reader)
    write_page(link, "<p>linked</p>")
    assert page.read_text() == "<p>linked</p>"
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()


def test_a_page_never_replaces_a_device(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.open("wb").close()
    except OSError:
        pytest.skip("this user can make no device here")
    write_page(device, "<p>short</p>")
    assert stat.S_ISCHR(device.lstat().st_mode)


def test_one_gpu_has_no_spread(tmp_path: Path) -> None:
    stored(tmp_path / "S", 1, 1)
    done = CliRunner().invoke(cli, ["variability", "--store", str(tmp_path / "S"), "--workload", "gemm-fp32"])
    assert done.exit_code == 0, done.output
    [row] = [line.split() for line in done.stdout.splitlines() if line.startswith("gemm-fp32  run")]
    assert row[2] == "1"
    assert set(row[5:]) == {"n/a"}, "of one value nothing is 0: there is no spread"
    assert "no intervals: a bootstrap needs more than one GPU" in done.stdout
    assert "bootstrap replicates" not in done.stdout


@pytest.mark.long
def test_a_spread_that_is_not_of_the_gpus_names_nobody_and_is_said(tmp_path: Path) -> None:
    """Of thirty GPUs one is slow in both workloads; only in `real` does it repeat, run by run."""
    rng = np.random.default_rng(1)
    rows = ["gpu,work,run,ms"]
    for gpu in range(30):
        for run in range(6):
            slow = 20 if gpu == 3 else 0
            rows.append(f"g{gpu},real,{run},{100 + slow + rng.normal(0, 0.1)}")
            # The runs of every GPU spread alike, about a median that is another one for GPU 3.
            rows.append(f"g{gpu},luck,{run},{100 + (-1) ** run * 40 + slow / 5 + (gpu % 5) / 10}")
    (tmp_path / "f.csv").write_text("\n".join(rows) + "\n")
    meanings = ["gpu=gpu", "work=workload", "run=run", "ms=time:ms"]
    options = [word for meaning in meanings for word in ("--map", meaning)]
    done = CliRunner().invoke(cli, ["import", "--store", f"{tmp_path}/S", *options, str(tmp_path / "f.csv")])
    assert done.exit_code == 0, done.output
    done = report(tmp_path / "S", out=tmp_path / "r.html")
    [named] = [line.split() for line in done.stdout.splitlines() if line.startswith("gpu ")]
    assert named[1:4] == ["g3", "slow", "suspected"]
    assert "real" in named
    assert "luck" not in named
    why = "the differences between GPUs do not repeat (ICC 0.00; 30 GPUs, 180 runs): they belong to the runs"
    sentence = f"luck ({why})"
    assert f"not judged: {sentence}\n" in done.stdout
    assert f"Not judged: {sentence}." in (tmp_path / "r.html").read_text()
