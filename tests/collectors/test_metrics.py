"""The table of metrics agrees with the table of columns, and the folder with the table of backends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from whorl.collectors import metrics
from whorl.collectors.backends import BACKENDS, find_backend
from whorl.collectors.metrics import METRICS, Metric
from whorl.errors import InputError
from whorl.store.schema import TELEMETRY

NOT_READ = {"ts", "cluster", "gpu", "read_us", "quality", "import_id"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.column)
def test_a_metric_is_a_column_with_its_unit(metric: Metric) -> None:
    (column,) = [c for c in TELEMETRY.columns if c.name == metric.column]
    assert column.unit == metric.unit
    assert column.type in ("INTEGER", "BIGINT")
    assert ("counter" in column.description or "since" in column.description or "life" in column.description) == (
        metric.kind == "counter"
    ) or metric.column == "pcie_replays"


def test_every_column_is_read_once() -> None:
    columns = [metric.column for metric in METRICS]
    assert len(set(columns)) == len(columns)
    assert set(columns) == {c.name for c in TELEMETRY.columns} - NOT_READ


def test_numbers_of_other_interfaces_are_not_shared() -> None:
    for numbers in ([m.dcgm for m in METRICS if m.dcgm], [m.prometheus for m in METRICS if m.prometheus]):
        assert len(set(numbers)) == len(numbers)


def test_a_metric_is_one_row_and_nothing_else() -> None:
    """No other module names a metric's NVML function or field id, but for what a GPU is."""
    source = Path(metrics.__file__).parent
    text = "".join(p.read_text() for p in (source / "nvml.py", source / "rows.py", source / "sampler.py"))
    for metric in METRICS:
        if isinstance(metric.nvml, metrics.Call):
            assert metric.nvml.function not in text or metric.nvml.function == "nvmlDeviceGetMemoryInfo"
    assert replace(METRICS[0], scale=2).scale == 2


def test_every_backend_is_in_the_table() -> None:
    for name in BACKENDS:
        backend = find_backend(name)()
        assert backend.name == name
    with pytest.raises(InputError, match="there is no backend 'x'; there are nvml, simulated"):
        find_backend("x")
