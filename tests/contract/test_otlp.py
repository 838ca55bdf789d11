"""What `whorl export otlp --once` sends to a collector of OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from whorl.tests.contract.forms import is_clock
from whorl.tests.contract.harness import Golden, InputFolder, figures, run
from whorl.tests.exported.receiver import receiving


def _metrics(requests: list[ExportMetricsServiceRequest]) -> dict[str, Any]:
    """By name: the unit, the kind, the attributes, and figures of the values."""
    points: dict[str, dict[str, Any]] = {}
    for request in requests:
        for resource in request.resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                kind = str(metric.WhichOneof("data"))
                row = points.setdefault(
                    metric.name, {"unit": metric.unit, "kind": kind, "attributes": set(), "values": []}
                )
                for point in getattr(metric, kind).data_points:
                    row["attributes"] |= {attribute.key for attribute in point.attributes}
                    row["values"].append(getattr(point, str(point.WhichOneof("value"))))
    return {
        name: row
        | {"attributes": sorted(row["attributes"]), "values": figures([None] if is_clock(name) else row["values"])}
        for name, row in sorted(points.items())
    }


@pytest.mark.long
def test_what_a_collector_gets_is_that_of_its_golden_file(input_folder: InputFolder, golden: Golden) -> None:
    store = input_folder("fleet") / "store"
    with receiving() as collector:
        answer = run("export", "otlp", "--store", store, "--endpoint", collector.url, "--once", "--max-age", "5200w")
    golden("fleet/export-otlp", {"status": answer.status, "metrics": _metrics(collector.got)})
    assert not answer.stdout


@pytest.mark.long
def test_a_collector_that_is_not_there_is_an_error(input_folder: InputFolder) -> None:
    with receiving() as collector:
        endpoint = collector.url
    answer = run("export", "otlp", "--store", input_folder("one") / "store", "--endpoint", endpoint, "--once")
    assert answer.status == 2
