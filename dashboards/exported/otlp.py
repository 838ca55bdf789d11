"""Series for OpenTelemetry: sent to a collector by OTLP over HTTP, through the official SDK.

What the semantic conventions for hardware have a name for is called so (`hw.power`); the rest is `whorl.gpu.*`. The
attributes of a point say which GPU it is (`hw.id`) and what it is; the resource says its host. A point has the time of
its reading, and is sent once.
"""

from __future__ import annotations

import io
import logging
import ssl
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from ... import __version__
from ...errors import InputError
from ...store.system.network import TooLarge, fetch

if TYPE_CHECKING:
    from ...store.newest import Gpu
    from .exporter import Exporter
    from .series import Labels, Series

_PATH = "/v1/metrics"
_TOGETHER = 20_000  # points of one request
_MOST_BYTES = 1 << 16  # of a collector's answer, which says little
_SDK = "opentelemetry"  # the name of its loggers


@dataclass(frozen=True, slots=True)
class Convention:
    """The name of a series by the semantic conventions, what sort of metric it is there, and attributes that it has."""

    name: str
    data: Literal["gauge", "counter", "updown"]
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
_OF_THE_EXPORTER = "export_"  # begins what it says of itself, for Prometheus only


def convention(series: Series) -> Convention:
    """How a series is called."""
    name = series.name + ("_rate" if series.unit.code.endswith("/s") else "")  # beside the counter of the same bytes
    spelled = name.replace("gpu_", "gpu.", 1)
    data: Literal["gauge", "counter"] = "counter" if series.kind == "counter" else "gauge"
    return CONVENTIONS.get(name) or Convention(f"whorl.{spelled}", data, series.unit.code)


@dataclass
class _SentPoint:
    """What was sent of a point: since when its counter counts, the last value and its time."""

    start: int
    value: float
    time: int


Host = tuple[str, str]
"""Cluster and node; "" for none."""


@dataclass
class Spelling:
    """Turns series into what the SDK sends. Points that were given before are left out."""

    began_ns: int
    _sent: dict[tuple[str, ...], _SentPoint] = field(default_factory=dict)
    """By name and labels."""
    _again: bool = False

    def again(self) -> None:
        """Give the last points once more: they did not arrive."""
        self._again = True

    def data(self, all_series: Iterable[Series], rows: Mapping[Gpu, Mapping[str, Any]]) -> list[ResourceMetrics]:
        """By host, what is new. `rows` are those of `gpus_now`."""
        hosts: dict[Host, dict[str, tuple[Convention, Series, list[NumberDataPoint]]]] = {}
        for series in all_series:
            if series.kind == "info" or series.name.startswith(_OF_THE_EXPORTER):
                continue
            spelled = convention(series)
            for labels, value, at in series.points:
                point = self._point(spelled, labels, value, at)
                if point is None:
                    continue
                host, attributes = _attributes(labels, rows)
                metric = hosts.setdefault(host, {}).setdefault(spelled.name, (spelled, series, []))
                attributes |= spelled.attributes
                metric[2].append(NumberDataPoint(attributes, point.start, point.time, point.value))
        self._again = False
        scope = InstrumentationScope("whorl", __version__)
        return [
            ResourceMetrics(
                _resource(*host), [ScopeMetrics(scope, [_metric(*parts) for parts in metrics.values()], "")], ""
            )
            for host, metrics in hosts.items()
        ]

    def _point(self, spelled: Convention, labels: Labels, value: float, at: int) -> _SentPoint | None:
        """A point to send; None where it was sent. A counter that fell began anew after the last point."""
        key = (spelled.name, str(spelled.attributes), *labels.values())
        before = self._sent.get(key)
        if before is not None and (at < before.time or (at == before.time and not self._again)):
            return None
        start = self.began_ns if before is None else before.time if value < before.value else before.start
        self._sent[key] = _SentPoint(min(start, at), value, at)
        return self._sent[key]


def _attributes(labels: Labels, rows: Mapping[Gpu, Mapping[str, Any]]) -> tuple[Host, dict[str, str]]:
    """The host of a point, and its attributes."""
    cluster, gpu = labels.get("cluster", ""), labels.get("gpu")
    attributes = {f"whorl.{name}": value for name, value in labels.items() if name not in ("cluster", "gpu")}
    if gpu is None:
        return (cluster, ""), attributes
    row = rows.get((cluster or None, gpu), {})
    attributes |= {"hw.id": gpu, "hw.type": "gpu"}
    attributes |= {name: str(row[column]) for column, name in _IDENTITY.items() if row.get(column) is not None}
    return (cluster, str(row.get("node") or "")), attributes


def _resource(cluster: str, node: str) -> Resource:
    pairs = {"service.name": "whorl", "service.version": __version__, "whorl.cluster": cluster, "host.name": node}
    return Resource({name: value for name, value in pairs.items() if value})


def _metric(spelled: Convention, series: Series, points: list[NumberDataPoint]) -> Metric:
    if spelled.data == "gauge":
        return Metric(spelled.name, series.help, spelled.unit, Gauge(points))
    total = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=spelled.data == "counter")
    return Metric(spelled.name, series.help, spelled.unit, total)


class _LastWarning(logging.Handler):
    """Keeps what the SDK says, to be told in our sentence."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class Sender:
    """Sends what an exporter knows to a collector. `endpoint` is http://HOST:PORT, or the full address.

    `timeout_s` is for all requests of one sending together, and for each with its retries.
    """

    def __init__(self, exporter: Exporter, endpoint: str, *, timeout_s: float, now_ns: int) -> None:
        self.url = address(endpoint)
        self._exporter, self._spelling, self._warning = exporter, Spelling(now_ns), _LastWarning()
        logger = logging.getLogger(_SDK)
        logger.addHandler(self._warning)
        logger.propagate = False
        self._timeout_s, self._bounded = timeout_s, _Bounded()
        session = requests.Session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, self._bounded)
        self._client = OTLPMetricExporter(endpoint=self.url, timeout=timeout_s, session=session)

    def send(self) -> int:
        """Send what is new; returns how many points. Raises InputError where the collector does not take them."""
        sent = 0
        self._bounded.until = time.monotonic() + self._timeout_s
        for data, points in _requests(self._spelling.data(self._exporter.series(), self._exporter.rows())):
            self._warning.text = ""
            if self._client.export(data) is not MetricExportResult.SUCCESS:
                self._spelling.again()
                why = f" ({self._warning.text.rstrip('.')})" if self._warning.text else ""
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


def _requests(hosts: Iterable[ResourceMetrics]) -> Iterator[tuple[MetricsData, int]]:
    """Some hosts at a time, and how many points they have."""
    batch: list[ResourceMetrics] = []
    points = 0
    for host in hosts:
        batch.append(host)
        points += sum(len(metric.data.data_points) for scope in host.scope_metrics for metric in scope.metrics)
        if points >= _TOGETHER:
            yield MetricsData(batch), points
            batch, points = [], 0
    if batch:
        yield MetricsData(batch), points


class _Bounded(BaseAdapter):
    """Sends requests until the time `until`, in seconds of the clock that is never set, and reads a bounded answer.

    What `requests` sends by itself has no end in time: its limit begins anew with each byte.
    """

    def __init__(self) -> None:
        super().__init__()
        self.until = 0.0

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - the parameters are those of requests
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> requests.Response:
        """The answer. Raises requests' ConnectionError for what may be tried again, else TimeoutError."""
        assert request.url is not None
        assert isinstance(request.body, bytes)
        left_s = min(timeout, self.until - time.monotonic())
        if left_s <= 0:
            raise TimeoutError("the time is over")
        headers = {name: str(text) for name, text in request.headers.items()}
        question = urllib.request.Request(request.url, request.body, headers, method=request.method)  # noqa: S310 - see `address`
        try:
            tls = _tls(verify, cert) if request.url.startswith("https:") else None
            answer = fetch(question, timeout_s=left_s, most_bytes=_MOST_BYTES, tls=tls)
        except TimeoutError:
            raise TimeoutError(f"no answer within {left_s:.0f} s") from None
        except TooLarge:
            raise ValueError(f"its answer has more than {_MOST_BYTES:,} bytes") from None
        except OSError as error:
            raise requests.ConnectionError(error) from error
        if 300 <= answer.status < 400:  # the SDK would take it for success
            raise ValueError(f"it sends on to {answer.headers.get('Location')!r}: give that as --endpoint")
        response = requests.Response()
        response.status_code, response.reason, response.url = answer.status, answer.reason, request.url
        response.headers = CaseInsensitiveDict(answer.headers.items())
        response.raw, response.request = io.BytesIO(answer.body), request
        return response

    def close(self) -> None:
        """Nothing stays open."""


def _tls(verify: bool | str, cert: str | tuple[str, str] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if cert:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context
