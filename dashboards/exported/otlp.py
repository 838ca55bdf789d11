"""Series for OpenTelemetry: sent to a collector by OTLP over HTTP, through the official SDK.

What the semantic conventions for hardware have a name for is called so (`hw.power`); the rest is `whorl.gpu.*`. The
attributes of a point say which GPU it is (`hw.id`) and what it is; the resource says its host. A point has the time of
its reading, and is sent once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ... import __version__
from ...errors import InputError
from .series import Labels, Series

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, NumberDataPoint, ResourceMetrics

    from ...store.newest import Gpu
    from .exporting import Exporter

_PATH = "/v1/metrics"
_TOGETHER = 20_000  # points of one request
_SDK = "opentelemetry"  # the name of its loggers

Data = Literal["gauge", "counter", "updown"]


@dataclass(frozen=True, slots=True)
class Convention:
    """The name of a series by the semantic conventions, what sort of metric it is there, and attributes that it has."""

    name: str
    data: Data
    unit: str
    attributes: tuple[tuple[str, str], ...] = ()


CONVENTIONS = {
    "gpu_power": Convention("hw.power", "gauge", "W"),
    "gpu_energy": Convention("hw.energy", "counter", "J"),
    "gpu_temperature": Convention("hw.temperature", "gauge", "Cel", (("hw.sensor_location", "GPU"),)),
    "gpu_memory_temperature": Convention("hw.temperature", "gauge", "Cel", (("hw.sensor_location", "MEMORY"),)),
    "gpu_utilization": Convention("hw.gpu.utilization", "gauge", "1", (("hw.gpu.task", "general"),)),
    "gpu_encoder_utilization": Convention("hw.gpu.utilization", "gauge", "1", (("hw.gpu.task", "encoder"),)),
    "gpu_decoder_utilization": Convention("hw.gpu.utilization", "gauge", "1", (("hw.gpu.task", "decoder"),)),
    "gpu_memory": Convention("hw.gpu.memory.limit", "updown", "By"),
    "gpu_memory_used": Convention("hw.gpu.memory.usage", "updown", "By"),
    "gpu_pcie_tx": Convention("hw.gpu.io", "counter", "By", (("network.io.direction", "transmit"),)),
    "gpu_pcie_rx": Convention("hw.gpu.io", "counter", "By", (("network.io.direction", "receive"),)),
    "gpu_ecc_corrected": Convention("hw.errors", "counter", "{error}", (("error.type", "corrected"),)),
    "gpu_ecc_uncorrected": Convention("hw.errors", "counter", "{error}", (("error.type", "uncorrected"),)),
}
"""By the name of a series. `gpu_memory_utilization` is none of them: it is the share of time with memory traffic."""

_IDENTITY = {
    "name": "hw.name", "model": "hw.model", "serial": "hw.serial_number", "driver": "hw.driver_version",
    "vbios": "hw.firmware_version", "parent": "hw.parent",
}  # fmt: skip
_OURS = "export_"  # begins what the exporter says of itself, for Prometheus only


def convention(series: Series) -> Convention:
    """How a series is called."""
    data: Data = "counter" if series.kind == "counter" else "gauge"
    name = series.name + ("_rate" if series.unit.code.endswith("/s") else "")  # beside the counter of the same bytes
    spelled = name.replace("gpu_", "gpu.", 1)
    return CONVENTIONS.get(name) or Convention(f"whorl.{spelled}", data, series.unit.code)


@dataclass
class _Counted:
    """What was sent of a point: since when its counter counts, the last value and its time."""

    start: int
    value: float
    time: int


@dataclass
class Spelling:
    """Turns series into what the SDK sends. Points that were given before are left out."""

    began_ns: int
    _sent: dict[tuple[str, str], _Counted] = field(default_factory=dict)
    """By name and labels."""
    _again: bool = False

    def again(self) -> None:
        """Give what was given last time once more: it did not arrive."""
        self._again = True

    def data(self, series: Iterable[Series], rows: Mapping[Gpu, Mapping[str, Any]]) -> list[ResourceMetrics]:
        """By host, what is new. `rows` are those of `gpus_now`."""
        from opentelemetry.sdk.metrics.export import ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        found: dict[tuple[str, str], dict[str, tuple[Convention, Series, list[NumberDataPoint]]]] = {}
        known: dict[Labels, tuple[tuple[str, str], dict[str, str]]] = {}
        for one in series:
            if one.kind == "info" or one.name.startswith(_OURS):
                continue
            spelled = convention(one)
            for labels, value, when in one.points:
                point = self._point(spelled, labels, value, when)
                if point is None:
                    continue
                host, attributes = known.get(labels) or known.setdefault(labels, _of(labels, rows))
                metric = found.setdefault(host, {}).setdefault(spelled.name, (spelled, one, []))
                metric[2].append(_with(point, attributes | dict(spelled.attributes)))
        self._again = False
        scope = InstrumentationScope("whorl", __version__)
        return [
            ResourceMetrics(
                Resource(_host(*host)), [ScopeMetrics(scope, [_metric(*one) for one in metrics.values()], "")], ""
            )
            for host, metrics in found.items()
        ]

    def _point(self, spelled: Convention, labels: Labels, value: float, when: int) -> _Counted | None:
        """A point to send; None where it was sent. A counter that fell began anew after the last point."""
        key = (spelled.name + str(spelled.attributes), labels.text)
        before = self._sent.get(key)
        if before is not None and (when < before.time or (when == before.time and not self._again)):
            return None
        start = self.began_ns if before is None else before.time if value < before.value else before.start
        self._sent[key] = _Counted(min(start, when), value, when)
        return self._sent[key]


def _with(point: _Counted, attributes: dict[str, str]) -> NumberDataPoint:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    return NumberDataPoint(attributes, point.start, point.time, point.value)


def _of(labels: Labels, rows: Mapping[Gpu, Mapping[str, Any]]) -> tuple[tuple[str, str], dict[str, str]]:
    """The host of a point (cluster and node), and its attributes."""
    pairs = dict(labels.pairs)
    cluster, gpu = pairs.pop("cluster", ""), pairs.pop("gpu", None)
    attributes = {f"whorl.{name}": value for name, value in pairs.items()}
    if gpu is None:
        return (cluster, ""), attributes
    row = rows.get((cluster or None, gpu), {})
    attributes |= {"hw.id": gpu, "hw.type": "gpu"}
    attributes |= {name: str(row[column]) for column, name in _IDENTITY.items() if row.get(column) is not None}
    return (cluster, str(row.get("node") or "")), attributes


def _host(cluster: str, node: str) -> dict[str, str]:
    known = {"service.name": "whorl", "service.version": __version__, "whorl.cluster": cluster, "host.name": node}
    return {name: value for name, value in known.items() if value}


def _metric(spelled: Convention, one: Series, points: list[NumberDataPoint]) -> Metric:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, Sum

    if spelled.data == "gauge":
        return Metric(spelled.name, one.help, spelled.unit, Gauge(points))
    of = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=spelled.data == "counter")
    return Metric(spelled.name, one.help, spelled.unit, of)


class _Last(logging.Handler):
    """Keeps what the SDK says, to be told in our sentence."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.said = record.getMessage()


class Sender:
    """Sends what an exporter knows to a collector. `endpoint` is http://HOST:PORT, or the full address.

    `timeout_s` is for all requests of one sending together, and for each with its retries.
    """

    def __init__(self, exporter: Exporter, endpoint: str, *, timeout_s: float, now_ns: int) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        from .bounded import Bounded, bounded_session

        self.url = address(endpoint)
        self._exporter, self._spelling, self._last = exporter, Spelling(now_ns), _Last()
        logger = logging.getLogger(_SDK)
        logger.addHandler(self._last)
        logger.propagate = False
        self._timeout_s, self._bounded = timeout_s, Bounded()
        self._client = OTLPMetricExporter(endpoint=self.url, timeout=timeout_s, session=bounded_session(self._bounded))

    def send(self) -> int:
        """Send what is new; returns how many points. Raises InputError where the collector does not take them."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        sent = 0
        self._bounded.until = time.monotonic() + self._timeout_s
        for data, points in _requests(self._spelling.data(self._exporter.series(), self._exporter.rows())):
            self._last.said = ""
            if self._client.export(data) is not MetricExportResult.SUCCESS:
                self._spelling.again()
                why = f" ({self._last.said.rstrip('.')})" if self._last.said else ""
                raise InputError(f"{self.url} does not take the metrics{why}: see whether the collector runs there")
            sent += points
        return sent

    def close(self) -> None:
        """End the connection."""
        self._client.shutdown()


def address(endpoint: str) -> str:
    """The address to send to. Raises InputError for what is none."""
    parts = urlsplit(endpoint)
    try:
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # the port is no number
        sound = False
    if not sound:
        raise InputError(f"--endpoint {endpoint!r} is no address: write http://HOST:PORT, as http://127.0.0.1:4318")
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _PATH


def _requests(data: Iterable[ResourceMetrics]) -> Iterator[tuple[MetricsData, int]]:
    """Some hosts at a time, and how many points they have."""
    from opentelemetry.sdk.metrics.export import MetricsData

    some: list[ResourceMetrics] = []
    points = 0
    for one in data:
        some.append(one)
        points += sum(len(metric.data.data_points) for scope in one.scope_metrics for metric in scope.metrics)
        if points >= _TOGETHER:
            yield MetricsData(some), points
            some, points = [], 0
    if some:
        yield MetricsData(some), points
