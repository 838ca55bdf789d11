"""A real Prometheus between two exporters and whorl: its page `/federate`, and what promtool dumps of its data."""

from __future__ import annotations

import subprocess
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest

from whorl.collectors.backend import Reading, Status
from whorl.collectors.exporter.exporter import ExporterPages
from whorl.store.importing import Options, read_file
from whorl.store.metrics import METRICS, ROW
from whorl.tests.exporter import NOT_SUPPORTED, Answer, Exported, exporting, page, usual, uuid
from whorl.tests.prometheus_server import PROMTOOL, needs_prometheus, needs_promtool, running

pytestmark = [pytest.mark.prometheus, needs_prometheus, needs_promtool]

NAMES = {m.name: m.prometheus[-1] for m in METRICS if m.prometheus}


def node(number: int, began: float) -> Callable[[str], Answer]:
    """The exporter of a node with two GPUs whose numbers grow with time."""

    def answer(_: str) -> Answer:
        passed = time.time() - began
        return Answer(
            page(
                [
                    Exported(
                        2 * number + gpu,
                        usual(
                            round(100 + passed, 3),
                            int(1e5 * passed),
                            DCGM_FI_DEV_POWER_VIOLATION=int(9e8 * passed) + 5,
                            DCGM_FI_DEV_MEMORY_TEMP=NOT_SUPPORTED,
                        ),
                        node=f"n{number}",
                        labels={"pod": "train-0"},
                    )
                    for gpu in (0, 1)
                ],
                "4.x",
            )
        )

    return answer


@pytest.mark.long
def test_page_and_data_of_a_real_prometheus(tmp_path: Path) -> None:
    began = time.time()
    with exporting(node(0, began)) as first, exporting(node(1, began)) as second:
        places = [urllib.parse.urlsplit(one.url).netloc for one in (first, second)]
        with running(tmp_path, places) as server:
            server.wait_for(f"count({NAMES['power_mw']})", lambda answer: list(answer.values()) == [4.0])
            backend = ExporterPages(url=[server.url + '/federate?match[]={__name__=~"DCGM_.*"}'], interval_s=0.2)
            devices = {device.gpu: device.row["node"] for device in backend.devices()}
            readings: list[Reading] = []
            until = time.monotonic() + 60
            while len(readings) < 12 and time.monotonic() < until:  # three scrapes of four GPUs
                readings += [r for r in backend.read(list(devices), slow=True) if isinstance(r, Reading)]
                time.sleep(0.2)
            backend.close()
        assert devices == {uuid(gpu): f"n{gpu // 2}" for gpu in range(4)}
        seen: dict[tuple[str, int], int] = {}
        for reading in readings:
            assert reading.ts_ns is not None
            assert reading.statuses[ROW["memory_temperature_c"]] == Status.UNREAD  # a float: only "blank" is left
            assert (reading.gpu, reading.ts_ns) not in seen
            power_mw = seen[reading.gpu, reading.ts_ns] = reading.values[ROW["power_mw"]]
            passed = reading.ts_ns / 1e9 - began
            assert abs(power_mw / 1000 - 100 - passed) < 1.0  # s between the scrape and its answer
        assert len(seen) >= 12
        assert readings[-1].statuses[ROW["power_violation_ns"]] == Status.OK
    assert PROMTOOL is not None
    dumped = subprocess.run(
        [PROMTOOL, "tsdb", "dump", str(tmp_path / "data")], capture_output=True, text=True, check=True, timeout=120
    )
    path = tmp_path / "dump.txt"
    path.write_text(dumped.stdout)
    frame = read_file(path, Options()).frame
    stored = {
        (gpu, ts): power for gpu, ts, power in frame.select("gpu", frame["ts"].dt.epoch("ns"), "power_mw").iter_rows()
    }
    assert len(stored) >= len(seen)
    assert {key: stored.get(key) for key in seen} == seen
    assert frame["power_violation_ns"].null_count() == 0
