"""`whorl report` on stores of every kind: campaigns, imported runs, one GPU, telemetry alone, nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.dashboards.html import refuse_unwritable, write_page
from whorl.store.schema import arrow_rows
from whorl.tests.cli.calling import refusal, whorl
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, stored
from whorl.tests.stores import new_store

pytestmark = pytest.mark.usefixtures("few_replicates")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one campaign over many GPUs, one of which is slow."""
    path = tmp_path_factory.mktemp("campaign") / "S"
    stored(path, 24, 3, kinds=("pinned",))
    return path


@pytest.mark.long
def test_a_campaign_that_was_cut_says_how_many_runs_are_missing(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 16, 3, telemetry=False)
    row = {"cluster": CLUSTER, "campaign": "made-1", "probes": list("abcdef"), "gpus": 16,
           "ended": BEGAN_NS + 100 * 10**9}  # fmt: skip
    sentence = "ot complete: 80 of 96 runs: the campaign was interrupted, or it still runs"
    for stored_to, complete in ((50, False), (100, True)):
        columns = {name: [value] for name, value in row.items()} | {"stored_to": [BEGAN_NS + stored_to * 10**9]}
        store.append({"campaigns": arrow_rows("campaigns", columns)}, f"progress-{stored_to}")
        text = whorl("report --store", store.root, "--out", tmp_path / "r.html").stdout
        for answer in (text, (tmp_path / "r.html").read_text()):
            assert (sentence in answer, "ot complete" in answer) == (not complete, not complete)


def test_what_cannot_be_reported_is_one_sentence(campaign: Path, tmp_path: Path) -> None:
    empty, telemetry, page = tmp_path / "empty", tmp_path / "telemetry", tmp_path / "r.html"
    new_store(empty)
    now = pa.array([BEGAN_NS], pa.timestamp("ns"))
    new_store(telemetry).append({"telemetry": pa.table({"cluster": ["c"], "gpu": ["GPU-1"], "ts": now})}, "one")
    (tmp_path / "to_store").symlink_to(campaign / "store.toml")
    about = (campaign / "store.toml").read_bytes()
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    for store, out, sentence, *words in (
        (empty, page, f"{empty} holds no runs: `whorl import --store {empty} FILES` or `whorl probe run"),
        (telemetry, page, f"{telemetry} holds telemetry and no runs: "),
        (campaign, page, f"holds no runs of cluster 'mars'; it has {CLUSTER}", "--cluster", "mars"),
        (campaign, page, "holds no campaign 'x'; the last ones are made-1", "--campaign", "x"),
        (campaign, tmp_path, f"{tmp_path} is a folder, and --out writes a file"),
        (campaign, tmp_path / "no" / "r.html", f"there is no folder {tmp_path / 'no'}"),
        (campaign, "-", "--out writes a file, and - is none"),
        (campaign, campaign / "store.toml", f"is in the store {campaign}, which holds only its own files"),
        (campaign, campaign / "runs" / "r.html", f"is in the store {campaign}"),
        (campaign, tmp_path / "to_store", f"is in the store {campaign}"),
        (campaign, tmp_path / "socket", "is no regular file: choose another path"),
    ):
        assert sentence in refusal("report --store", store, "--out", out, *words)
    assert refusal("report --store", tmp_path / "none", "--out", page, status=3)
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
    text = whorl("verdicts variability --workload gemm-fp32 --store", tmp_path / "S").stdout
    [row] = [line.split() for line in text.splitlines() if line.startswith("gemm-fp32  run")]
    assert row[2] == "1"
    assert set(row[5:]) == {"n/a"}, "of one value nothing is 0: there is no spread"
    assert "no intervals: a bootstrap needs more than one GPU" in text
    assert "bootstrap replicates" not in text
