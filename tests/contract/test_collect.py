"""`whorl collect` as a process over the stand-in of the driver: the GPUs, the events in their order, and the ticks."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import whorl
from whorl.tests.nvml_library import NvmlLibrary

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("stores_are_copied")]

GPUS = 8
HZ = 20
PATIENCE_S = 120.0
FOR_GOOD = {"not_supported", "failed_reading"}
"""Events of a metric that this driver does not have, at the start."""
BUSY = {"missed_ticks", "hung", "answers_again"}
"""Events of a machine that has other things to do."""


class RunningCollector:
    """A collector of this node's GPUs, and its store. The process is killed at the end of the block if it runs."""

    def __init__(self, library: NvmlLibrary, store: Path) -> None:
        self.store, self.errors = store, ""
        words = ["collect", "--store", str(store), "--node", "n1", "--interval", str(1 / HZ)]
        configuration = store.with_name("slurm.conf")
        configuration.write_text("ClusterName=turing\n")
        environment = library.environment(SLURM_CONF=str(configuration))
        environment.pop("SLURM_CLUSTER_NAME", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "whorl", *words, "--set", "slow-interval=0.5", "--set", "durable=tick"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> RunningCollector:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def sql(self, query: str) -> list[dict[str, Any]]:
        """The rows of an answer."""
        return list(whorl.Store.open(self.store).sql(query).to_pylist())

    def wait(self, condition: str, table: str = "events") -> None:
        """Wait until a row of a table is as said."""
        last = time.monotonic() + PATIENCE_S
        while not self.sql(f"select 1 from {table} where {condition} limit 1"):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < last, f"no row of {table} where {condition}"
            time.sleep(0.3)

    def end(self, number: signal.Signals) -> None:
        """End it by a signal, and keep what it wrote on standard error."""
        self.process.send_signal(number)
        self.errors = self.process.communicate(timeout=PATIENCE_S)[1]
        assert self.process.returncode == 0, self.errors


@pytest.fixture(scope="module")
def ended(compiled_nvml: Path, tmp_path_factory: pytest.TempPathFactory) -> RunningCollector:
    """Eight GPUs: two tell XIDs, one is lost and returns, one is reset; then SIGTERM."""
    folder = tmp_path_factory.mktemp("collect")
    whorl.Store.create(folder / "store")
    library = NvmlLibrary(compiled_nvml, folder)
    library.write(f"gpus {GPUS}", "model H100", "load 10 1")
    with RunningCollector(library, folder / "store") as run:
        run.wait("true", "telemetry")
        library.add(f"from {time.time()} gpu 5 xid 48")
        run.wait("kind = 'xid' and code = 48")
        library.add("gpu 2 lost")
        run.wait("kind = 'lost'")
        library.add(f"from {time.time()} gpu 1 xid 79")
        run.wait("kind = 'xid' and code = 79")
        library.remove("gpu 2 lost")
        run.wait("kind = 'returned'")
        library.add(f"from {time.time()} gpu 6 reset")
        run.wait("kind = 'counter_reset' and metric = 'energy_mj'")
        run.end(signal.SIGTERM)
    assert not library.setters()
    return run


def gpu(index: int) -> str:
    """How the stand-in names a GPU: `whorl` in hexadecimal, and the index."""
    return f"GPU-77686f72-6c00-4000-8000-{index:012x}"


def test_every_gpu_is_known_by_its_uuid_and_place(ended: RunningCollector) -> None:
    rows = ended.sql("select gpu, uuid, cluster, node, model, nvml_index from gpus order by nvml_index")
    assert [tuple(row.values()) for row in rows] == [
        (gpu(n), gpu(n), "turing", "n1", "NVIDIA H100 80GB HBM3", n) for n in range(GPUS)
    ]
    assert len({row["gpu"] for row in ended.sql("select distinct gpu from telemetry")}) == GPUS


def test_the_events_are_those_that_happened_in_their_order(ended: RunningCollector) -> None:
    rows = ended.sql("select kind, gpu, metric, code from events order by events.ts")
    kinds = [tuple(row.values()) for row in rows if row["kind"] not in FOR_GOOD | BUSY]
    assert kinds == [
        ("collect_began", None, None, None),
        ("xid", gpu(5), None, 48),
        ("lost", gpu(2), None, None),
        ("xid", gpu(1), None, 79),
        ("returned", gpu(2), None, None),
        ("counter_reset", gpu(6), "energy_mj", None),
        ("collect_ended", None, None, None),
    ]
    lacking = {(row["gpu"], row["metric"]) for row in rows if row["kind"] in FOR_GOOD}
    metrics = {metric for _, metric in lacking}
    assert lacking == {(gpu(n), metric) for n in range(GPUS) for metric in metrics}
    assert len(lacking) == sum(row["kind"] in FOR_GOOD for row in rows)  # each is told once
    [reset] = ended.sql("select before, value from events where kind = 'counter_reset'")
    assert reset["before"] > reset["value"] >= 0


def test_ticks_kept_and_missed_are_the_grid(ended: RunningCollector) -> None:
    """A tick that is read late is stamped late, so on a busy machine the ends of the grid are known to a few ticks."""
    per_gpu = ended.sql(
        "select gpu, count(*) n, count(distinct ts) ticks, count(power_mw) powers, count(*) filter (quality = 'lost') "
        "lost, epoch_us(min(ts)) first_us, epoch_us(max(ts)) last_us from telemetry group by gpu order by gpu"
    )
    [(n, ticks)] = {(row["n"], row["ticks"]) for row in per_gpu}
    [events] = ended.sql(
        "select sum(n) filter (kind = 'missed_ticks') missed, max(n) filter (kind = 'collect_ended') ticks from events"
    )
    assert n == ticks == events["ticks"]
    assert len(per_gpu) == GPUS
    assert "a new value every 100 ms" in ended.errors  # which is less often than it is read
    assert f"stored {GPUS * ticks:,} rows of {ticks:,} tick" in ended.errors
    for number, row in enumerate(per_gpu):
        grid = round((row["last_us"] - row["first_us"]) * HZ / 1e6) + 1
        assert ticks + int(events["missed"] or 0) == pytest.approx(grid, abs=4)
        assert (row["lost"] > 0) == (number == 2)
        assert row["powers"] == n - row["lost"] or number == 2


def test_another_collector_adds_rows_and_no_identity(
    ended: RunningCollector, compiled_nvml: Path, tmp_path: Path
) -> None:
    library = NvmlLibrary(compiled_nvml, tmp_path)
    library.write(f"gpus {GPUS}", "model H100")
    store = Path(shutil.copytree(ended.store, tmp_path / "store"))
    with RunningCollector(library, store) as again:
        again.wait("ts > (select max(ts) from events where kind = 'collect_ended')", "telemetry")
        again.end(signal.SIGINT)
    count = "select count(*) n from telemetry"
    assert again.sql(count)[0]["n"] > ended.sql(count)[0]["n"]
    assert len(again.sql("select gpu from gpus")) == GPUS
