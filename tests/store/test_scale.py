"""The simulated fleet of `benchmarks.scale`, very small."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.benchmarks import scale
from whorl.benchmarks.summit import END_NS, FleetShape, identities, job_rows, jobs_of
from whorl.store import Store
from whorl.store.status import status


@pytest.mark.long
def test_what_the_collectors_of_a_fleet_wrote_is_counted_once_and_asked_alike_of_each_engine(tmp_path: Path) -> None:
    shape = FleetShape(nodes=3, minutes=24)
    store = Store.create(tmp_path / "store")
    store.append({"gpus": identities(shape), "jobs": job_rows(shape, jobs_of(shape))}, "facts")
    nodes = scale.NodeJournals(store.root, shape, [range(2), range(2, 3)])
    with scale.without_disk(nodes):
        nodes.write(0, 13)
        state = status(store)
        assert {table.table: table.rows for table in state.tables}["telemetry"] == 13 * 60 * 18
        assert len(state.journals) == 3
        nodes.write(13, 24)
        nodes.close()
    assert nodes.spent.rows == shape.rows
    assert nodes.spent.seals == 3 + 4 + 4  # every ten minutes, at a minute of their own, and at the end
    store.compact(offline=True, now=END_NS + 3600 * 10**9)
    assert store.sql("select count(*) as n from telemetry").to_pylist() == [{"n": shape.rows}]
    root = str(store.root)
    for question, rows in (("one_gpu", 24), ("hourly", 1), ("p95", 18)):
        answers = [ask(root, question)() for ask in (scale.by_whorl, scale.by_duckdb, scale.by_polars)]
        assert {answer["rows"] for answer in answers} == {rows}
        assert all(answer["sum"] == pytest.approx(answers[0]["sum"], rel=1e-9) for answer in answers)
    assert scale.by_whorl(root, "latest")()["rows"] == 18
    by_user = scale.by_duckdb(root, "energy")()["sum"]
    assert scale.by_whorl(root, "energy")()["sum"] == pytest.approx(by_user, rel=0.02)
