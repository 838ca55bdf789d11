"""`whorl report` on stores of every kind: campaigns, imported runs, one GPU, telemetry alone, nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.dashboards.html import refuse_unwritable, write_page
from whorl.store.schema import arrow_rows
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, stored
from whorl.tests.stores import new_store

pytestmark = pytest.mark.usefixtures("few_replicates")


def report(store: object, *arguments: object, out: Path) -> Result:
    given = ["report", "--store", str(store), "--out", str(out), *map(str, arguments)]
    return CliRunner().invoke(cli, given, catch_exceptions=False)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one campaign over many GPUs, one of which is slow."""
    path = tmp_path_factory.mktemp("campaign") / "S"
    stored(path, 24, 3, kinds=("pinned",))
    return path


@pytest.mark.long
def test_a_campaign_that_was_cut_says_how_many_runs_are_missing(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 16, 3, telemetry=False)

    def progress(to_s: int) -> None:
        row = {
            "cluster": [CLUSTER],
            "campaign": ["made-1"],
            "probes": [list("abcdef")],
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
    done = CliRunner().invoke(
        cli, ["verdicts", "variability", "--store", str(tmp_path / "S"), "--workload", "gemm-fp32"]
    )
    assert done.exit_code == 0, done.output
    [row] = [line.split() for line in done.stdout.splitlines() if line.startswith("gemm-fp32  run")]
    assert row[2] == "1"
    assert set(row[5:]) == {"n/a"}, "of one value nothing is 0: there is no spread"
    assert "no intervals: a bootstrap needs more than one GPU" in done.stdout
    assert "bootstrap replicates" not in done.stdout
