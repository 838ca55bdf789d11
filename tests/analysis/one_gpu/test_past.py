"""The runs of a GPU under the names of their kinds, its past beside its peers, and how well its runs repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from whorl.analysis.one_gpu.explain import explain, own_runs, timed
from whorl.analysis.one_gpu.standing import Line
from whorl.analysis.runs.probing import probed
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, judged_store, uuid

SLOW = 5


def lines(store: Store, gpu: str) -> dict[str, Line]:
    """The past of a GPU, as its page shows it."""
    return {line.workload: line for line in explain(store, gpu, peers=True).lines}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """16 GPUs on four days with three runs each; one becomes 5 % slower on the third day."""
    return judged_store(
        tmp_path_factory.mktemp("past") / "S", 16, (0, 2, 4, 6), runs=lambda _: 3,
        time=lambda gpu, day: 1.05 if gpu == SLOW and day >= 4 else 1.0,
    )  # fmt: skip


@pytest.mark.long
def test_a_change_shows_in_the_gpu_and_not_in_its_peers(fleet: Store) -> None:
    line = lines(fleet, uuid(SLOW))["gemm-fp32"]
    before, after = line.sittings[1], line.sittings[2]
    assert after.off_pct - before.off_pct == pytest.approx(5, abs=1)
    assert before.low_pct is not None
    assert before.high_pct is not None
    assert before.low_pct < before.off_pct < before.high_pct < after.off_pct
    assert line.between is not None
    assert line.between.peers_pct is not None
    assert line.between.pct > line.between.peers_pct[4], "it moves more from sitting to sitting than its peers"
    assert line.within is not None
    assert line.within.freedom == 8
    assert line.within.low_pct is not None
    assert line.within.high_pct is not None
    assert line.within.low_pct < line.within.pct < line.within.high_pct
    assert line.within.peers_pct is not None
    assert line.within.peers_pct[2] == pytest.approx(0.2, abs=0.05), "the noise of a run is 0.2 %"
    assert (line.within.peers, line.between.peers) == (15, 15)


def test_the_spread_is_that_of_the_runs(fleet: Store) -> None:
    x = (
        timed(own_runs(fleet, CLUSTER, [uuid(3)]))
        .filter(pl.col("workload") == "stream-triad")
        .sort("at")["x"]
        .to_numpy()
    )
    line = lines(fleet, uuid(3))["stream-triad"]
    assert line.within is not None
    assert line.within.pct == pytest.approx(100 * np.sqrt(x.reshape(4, 3).var(axis=1, ddof=1).mean()))
    low, high = line.sittings[0].low_pct, line.sittings[0].high_pct
    assert low is not None
    assert high is not None
    assert (high - low) / 2 == pytest.approx(1.96 * 1.2533 * line.within.pct / np.sqrt(3), rel=0.02)


def add_run(store: Store, gpu: str, began: int | None, time: float, **conditions: object) -> None:
    shared = {"run_id": [f"{gpu}-{began}-{time}"], "cluster": [CLUSTER], "workload": ["gemm-fp32"], "gpu": [gpu]}
    columns = {"conditions": [conditions or None], "began": [began], "status": ["ok"]}
    figure = {"figure": ["time"], "repeat": [0], "value": [time], "unit": ["ms"]}
    rows = {"runs": arrow_rows("runs", shared | columns), "results": arrow_rows("results", shared | figure)}
    store.append(rows, shared["run_id"][0])


@pytest.mark.long
def test_runs_at_another_power_limit_have_the_name_of_their_kind(tmp_path: Path) -> None:
    """The kinds follow from the runs of all GPUs, of which only one's are read."""
    store = judged_store(tmp_path / "S", 9, (0, 2), workloads=("gemm-fp32",))
    for gpu in range(4, 9):
        for day in (1, 3):
            add_run(store, uuid(gpu), BEGAN_NS + day * DAY_NS, 150.0 + gpu, asked_power_limit_w=200)
    all_runs = probed(store, cluster=CLUSTER, every=True).runs
    assert set(all_runs["workload"]) == {"gemm-fp32", "gemm-fp32 [200 W]"}
    for gpu in (1, 6):
        assert set(lines(store, uuid(gpu))) == set(all_runs.filter(pl.col("gpu") == uuid(gpu))["workload"])
    assert lines(store, uuid(6))["gemm-fp32 [200 W]"].sittings[0].peers == 5
