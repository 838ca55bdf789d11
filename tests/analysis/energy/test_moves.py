"""GPUs that were on several nodes, one after another: energy and jobs are of the node where a GPU was then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whorl.tests.analysis.energy.stored import at, books, gpu, job, readings, store_of


def test_boards_that_were_exchanged_have_their_energy_on_both_nodes(tmp_path: Path) -> None:
    """GPU-a with 100 W and GPU-b with 300 W change places after 400 of 1000 s, and job 1 had a GPU of n1 before."""
    steady = [readings(name, range(1001), [watts] * 1001) for name, watts in (("GPU-a", 100), ("GPU-b", 300))]
    where = [("GPU-a", "n1", 0), ("GPU-b", "n2", 0), ("GPU-a", "n2", 400), ("GPU-b", "n1.example.org", 400)]
    gpus = [gpu(name, node=node, first_seen=at(seconds)) for name, node, seconds in where]
    # Neither another spelling of the node nor a row that was found by the node's name is a move.
    gpus += [gpu("GPU-b", node="n1", first_seen=at(600)), gpu("GPU-a", node="n1", uuid=None, first_seen=at(700))]
    found = books(store_of(tmp_path / "s", gpus, steady, [job(1, None, 100, 300)]))
    on = found.pieces.filter(pl.col("gpu").is_not_null()).group_by("gpu", "node").agg(pl.col("energy_j").sum())
    assert {(name, node): joules for name, node, joules in on.iter_rows()} == pytest.approx(
        {("GPU-a", "n1"): 4e4, ("GPU-a", "n2"): 6e4, ("GPU-b", "n2"): 12e4, ("GPU-b", "n1.example.org"): 18e4}
    )
    of_job: dict[str, Any] = found.pieces.filter(pl.col("kind") == "job").row(0, named=True)
    assert (of_job["node"], of_job["gpu"]) == ("n1", None)
    assert of_job["above_j"] == pytest.approx(2e4)  # at most what GPU-a had meanwhile
