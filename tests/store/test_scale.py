"""The simulated fleet of `benchmarks/summit.py`, very small."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.benchmarks import summit
from whorl.benchmarks.summit_fleet import END_NS, FleetShape, identities, job_rows, jobs_of
from whorl.store import Store


@pytest.mark.long
def test_what_the_collectors_of_a_fleet_wrote_is_counted_once_and_asked_alike_of_each_engine(tmp_path: Path) -> None:
    shape = FleetShape(nodes=3, minutes=24)
    store = Store.create(tmp_path / "store")
    store.append({"gpus": identities(shape), "jobs": job_rows(shape, jobs_of(shape))}, "facts")
    nodes = summit.NodeJournals(store.root, shape, [range(2), range(2, 3)])
    with summit.without_disk(nodes):
        nodes.write(0, 13)
        assert summit.status(store, 0) == {"rows": 13 * 60 * 18, "journals": 3}
        nodes.write(13, 24)
        nodes.close()
    assert nodes.spent.rows == shape.rows
    assert nodes.spent.seals == 3 + 4 + 4  # every ten minutes, at a minute of their own, and at the end
    store.compact(offline=True, now=END_NS + 3600 * 10**9)
    assert summit.rows(store, 0) == {"rows": shape.rows}
    for question, rows in (("one_gpu", 24), ("hourly", 1), ("p95", 18), ("latest", 18)):
        answers = [
            summit.CONTENDERS[name](store, 0)
            for name in (question, f"{question} by duckdb", f"{question} by polars")
            if name != "latest"
        ]
        assert {answer["rows"] for answer in answers} == {rows}
        assert all(answer["sum"] == pytest.approx(answers[0]["sum"], rel=1e-9) for answer in answers)
    by_user = summit.CONTENDERS["energy by duckdb"](store, 0)["sum"]
    assert summit.energy(store, 0)["sum"] == pytest.approx(by_user, rel=0.02)
