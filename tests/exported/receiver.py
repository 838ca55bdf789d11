"""A receiver of OpenTelemetry metrics over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class Receiver(ThreadingHTTPServer):
    """Takes what is sent to it, unless it is told to answer with another status."""

    def __init__(self) -> None:
        self.got: list[ExportMetricsServiceRequest] = []
        self.status = 200
        self.asked, self.taken = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def points(self) -> list[dict[str, Any]]:
        """Every point of all requests, with what stands around it; forgets them."""
        requests, self.got = self.got, []
        return [
            {
                "name": metric.name, "unit": metric.unit, "data": metric.WhichOneof("data"),
                "monotonic": metric.sum.is_monotonic, "host": _pairs(resource.resource.attributes),
                "attributes": _pairs(point.attributes), "start": point.start_time_unix_nano,
                "time": point.time_unix_nano,
                "value": point.as_int if point.WhichOneof("value") == "as_int" else point.as_double,
            }
            for request in requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in getattr(metric, str(metric.WhichOneof("data"))).data_points
        ]  # fmt: skip


def _pairs(attributes: Any) -> dict[str, str]:
    return {entry.key: entry.value.string_value for entry in attributes}


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/metrics"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.asked.set()
        if self.server.status == 200:
            self.server.got.append(ExportMetricsServiceRequest.FromString(body))
            self.server.taken.set()
        answer = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    """One that serves; it is closed at the end."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
