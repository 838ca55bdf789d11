"""A real Prometheus for tests: it scrapes what it is told to, on ports of this machine only."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")

needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="there is no prometheus on this machine")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool on this machine")

_CONFIGURATION = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: tested
    static_configs:
      - targets: {targets}
"""


class Prometheus:
    """A running server at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The answer of PromQL now: by sorted labels (without `instance` and `job`), the value."""
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{words}", timeout=30) as answer:
            series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return {
            tuple(sorted(pair for pair in point["metric"].items() if pair[0] not in ("instance", "job"))): float(
                point["value"][1]
            )
            for point in series
        }

    def wait_for(self, expression: str, until: Callable[[dict[Any, float]], bool] = bool, most_s: float = 60) -> Any:
        """The answer as soon as it is as wanted."""
        end = time.monotonic() + most_s
        while True:
            answer = self.query(expression)
            if until(answer):
                return answer
            assert time.monotonic() < end, f"{expression}: {answer}"
            time.sleep(0.1)


@contextmanager
def running(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these HOST:PORT every second and keeps its data in `folder`."""
    assert PROMETHEUS is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = folder / "prometheus.yml"
    configuration.write_text(_CONFIGURATION.format(targets=json.dumps(list(targets))))
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(PROMETHEUS, f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield _ready(Prometheus(f"http://127.0.0.1:{port}"), process, folder / "prometheus.log")
        finally:
            process.terminate()
            process.wait(60)


def _ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> Prometheus:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{server.url}/-/ready", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return server
    raise AssertionError(log.read_text())
