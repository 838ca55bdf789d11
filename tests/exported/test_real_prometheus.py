"""A real Prometheus scrapes the page: PromQL gives what SQL gives, and what is not read any more goes stale."""

from __future__ import annotations

import time
import urllib.parse
from pathlib import Path

import pytest

from whorl.dashboards.exported.exporter import Exporter, Settings, page
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.exported.rows import EVERY, SECOND, ago, batch, journal_of, metrics_server
from whorl.tests.prometheus_server import needs_prometheus, running
from whorl.tests.stores import new_store

pytestmark = [pytest.mark.prometheus, needs_prometheus]

AGE_S = 600.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = new_store(tmp_path / "store")
    columns = {"cluster": ["c"], "gpu": ["g1"], "uuid": ["g1"], "node": ['n"1\\'], "model": ["H100 – 80 GB"]}
    store.append({"gpus": arrow_rows("gpus", columns)}, "gpus")
    return store


@pytest.mark.long
def test_promql_gives_what_sql_gives_and_the_rest_goes_stale(store: Store, tmp_path: Path) -> None:
    passed = [0]
    exporter = Exporter(store, Settings(AGE_S, dcgm_names=True), clock=lambda: time.time_ns() + passed[0])
    server = metrics_server(exporter)
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(0), "gpu": "g1", **EVERY, "power_mw": 301_042}]))
        exporter.start()
        server.start()
        with running(tmp_path, [urllib.parse.urlsplit(server.url).netloc]) as prometheus:
            labels = (("cluster", "c"), ("gpu", "g1"))
            (watts,) = (row["w"] for row in store.sql("select power_mw / 1000 as w from telemetry").to_pylist())
            (name,) = prometheus.wait_for("whorl_gpu_power_watts")
            assert dict(name) == dict(labels) | {"__name__": "whorl_gpu_power_watts"}
            assert prometheus.query("whorl_gpu_power_watts + 0") == {labels: watts}
            assert prometheus.query('DCGM_FI_DEV_POWER_USAGE{UUID="g1"} - 0').popitem()[1] == watts
            joined = prometheus.wait_for(
                "whorl_gpu_power_watts * on (cluster, gpu) group_left (node, model) whorl_gpu_info"
            )
            assert joined == {(*labels, ("model", "H100 – 80 GB"), ("node", 'n"1\\')): watts}
            counted = prometheus.query('count({cluster="c", gpu="g1", __name__=~"whorl_gpu_.*"})')
            lines = [line for line in page(exporter.series()).decode().splitlines() if line.startswith("whorl_gpu_")]
            assert counted == {(): len(lines)}
            # The collector has ended. Prometheus is told so after the limit, before its own five minutes.
            passed[0] = int(AGE_S * SECOND)
            prometheus.wait_for("absent(whorl_gpu_power_watts)")
            assert prometheus.query("up") == {(("__name__", "up"),): 1}
            folder, aside = store.root / "journal", tmp_path / "aside"
            folder.rename(aside)
            folder.write_text("no folder")
            prometheus.wait_for("up == 0")
            folder.unlink()
            aside.rename(folder)
        server.close()
        exporter.close()
