"""The queries to begin with run on every store, and what they draw is in their answers."""

from __future__ import annotations

from typing import Any

import pytest

from whorl.analysis.example_queries import EXAMPLES, Example
from whorl.dashboards.figures.queried import KINDS
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.stores import new_store

_AT, _LATER = 1_790_000_000_000_000_000, 1_790_000_030_000_000_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A row of each thing; the GPU has no model and no node, the run no status."""
    store = new_store(tmp_path_factory.mktemp("examples") / "store")
    gpu: dict[str, list[Any]] = {"cluster": ["c"], "gpu": ["GPU-1"]}
    run = {"run_id": ["r"], **gpu, "workload": ["w"], "power_w": [250.0], "began": [_AT], "ended": [_LATER]}
    job = {"allocation": ["7"], "job_id": ["7"], **gpu, "user": ["ann"], "began": [_AT], "ended": [_LATER]}
    judged: dict[str, list[Any]] = {"judgement": ["1"], "cluster": ["c"]}
    rows: dict[str, dict[str, list[Any]]] = {
        "gpus": gpu,
        "runs": run,
        "results": {"run_id": ["r"], "figure": ["time"], "value": [1.5], "unit": ["ms"]},
        "events": {**gpu, "ts": [_AT], "kind": ["gap"]},
        "jobs": {**job, "share": [1.0], "recorded": [_LATER], "gpu_from": ["file"]},
        "telemetry": {**gpu, "ts": [_AT], "power_mw": [250_000]},
        "judgements": {**judged, "judged_at": [_AT], "gpus": [1], "findings": [1]},
        "verdicts": {**judged, "level": ["gpu"], "name": ["GPU-1"], "kind": ["slow"]},
    }
    store.append({name: arrow_rows(name, columns) for name, columns in rows.items()}, "x")
    return store


@pytest.mark.long(short=4)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda query: query.title)
def test_an_example_runs_and_can_be_drawn(example: Example, filled: Store) -> None:
    answer = filled.sql(example.query)
    assert len(answer) == 1, "it has nothing to say about this store"
    drawn = {example.x, example.y, example.colour} - {None}
    assert drawn <= set(answer.column_names)
    assert (example.chart is None) == (not drawn)
    assert example.chart is None or example.chart in KINDS
