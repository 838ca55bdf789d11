"""The dashboard for Grafana and docs/dashboard.md name series that exist; Prometheus understands every expression."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whorl.dashboards.exported.exporter import Exporter, Settings
from whorl.dashboards.exported.series import DCGM_NAMES, DCGM_XID
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.conftest import BuiltOnce
from whorl.tests.exported.rows import EVERY, ago, batch, journal_of, metrics_server
from whorl.tests.exported.test_findings import judged
from whorl.tests.prometheus_server import needs_prometheus, running
from whorl.tests.stores import new_store

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"\b(?:whorl|DCGM_FI)_\w+")


def dashboard() -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((DOCS / "grafana" / "whorl.json").read_text())
    return answer


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """One that shows a GPU with a value of every metric."""
    store = new_store(tmp_path_factory.mktemp("dashboard") / "store")
    columns = {"cluster": ["c"], "gpu": ["g1"], "uuid": ["g1"], "node": ["n1"], "slot": [0], "model": ["H100"]}
    store.append({"gpus": arrow_rows("gpus", columns)}, "gpus")
    with journal_of(store) as journal:
        row = {"ts": ago(0), "gpu": "g1", **EVERY, "quality": "power_slow"}
        journal.append_batch(batch([row]))
    exporter = Exporter(store, Settings(age_s=3600.0))
    exporter.refresh()
    return exporter


@pytest.fixture(scope="module")
def names(exporter: Exporter) -> set[str]:
    return {entry.prometheus for entry in exporter.series()}


def test_every_expression_names_series_that_are_exported(names: set[str]) -> None:
    variables = [entry["query"]["query"] for entry in dashboard()["templating"]["list"] if entry["type"] == "query"]
    for text in [*expressions(), *variables]:
        used = NAME.findall(text)
        assert used, text
        assert set(used) <= names, text


def test_the_page_of_docs_names_series_that_are_exported(names: set[str]) -> None:
    """Of each, the page that Prometheus reads has a line that explains it."""
    written = set(NAME.findall((DOCS / "dashboard.md").read_text()))
    assert len(written) > 8
    assert written <= names | {*DCGM_NAMES, DCGM_XID}


def test_panels_do_not_cover_each_other() -> None:
    covered: dict[tuple[int, int], str] = {}
    idents = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(idents)) == len(idents)
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert covered.setdefault((x, y), panel["title"]) == panel["title"]


@pytest.mark.long
@pytest.mark.prometheus
@needs_prometheus
def test_prometheus_answers_every_expression(exporter: Exporter, built_once: BuiltOnce, tmp_path: Path) -> None:
    """One exporter has readings, another one findings."""
    second_exporter = Exporter(Store.open(built_once("exported findings", judged) / "store"), Settings())
    second_exporter.refresh()
    servers = [metrics_server(exporter), metrics_server(second_exporter)]
    for server in servers:
        server.start()
    with running(tmp_path, [urllib.parse.urlsplit(server.url).netloc for server in servers]) as prometheus:
        prometheus.wait_for("count_over_time(whorl_gpu_power_watts[1m]) >= 2 and on () whorl_judged_gpus")
        nothing = []
        for text in expressions():
            expression = text.replace("$__rate_interval", "1m").replace("$__range", "1m")
            if not prometheus.query(expression.replace("$cluster", ".*").replace("$node", ".*")):
                nothing.append(text)
    for server in servers:
        server.close()
    assert not nothing
