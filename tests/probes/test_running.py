"""Campaigns: what is stored, who goes on when one fails, and what is not run again."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whorl.errors import DeviceError, StoreError
from whorl.kernels.device import Verdict
from whorl.probes.campaign import Campaign, Plan, Report
from whorl.probes.conditions import Asked, Setting
from whorl.probes.node import run_gpus
from whorl.probes.recording import Recorder, Run, past_of
from whorl.probes.watch import Reading, Window
from whorl.store import Store
from whorl.store.file_names import Bounds, gpu_hashes, may_hold
from whorl.store.journal import Journal
from whorl.store.names import this_host, this_node
from whorl.store.vocabulary import EndedBy, Outcome
from whorl.tests.probes.hand_device import FACTS, QUICK, HandDevice, a_probe, find

TWO = (a_probe("one"), a_probe("two"))


class Together:
    """A watch over several devices that tell of themselves."""

    def __init__(self, devices: Sequence[HandDevice]) -> None:
        self._devices = {device.facts.gpu: device for device in devices}

    def latest(self, gpu: str) -> Reading | None:
        return self._devices[gpu].latest(gpu)

    def window(self, gpu: str, began_ns: int, ended_ns: int) -> Window:
        return self._devices[gpu].window(gpu, began_ns, ended_ns)

    def hurry(self, gpu: str, *, on: bool) -> None:
        self._devices[gpu].hurry(gpu, on=on)


def gpus(number: int, **changes: Any) -> list[HandDevice]:
    return [HandDevice(facts=replace(FACTS, gpu=f"GPU-{i}", index=i), **changes) for i in range(number)]


def run(store: Store, devices: Sequence[HandDevice], **changes: Any) -> Report:
    options: dict[str, Any] = {"probes": TWO, "asked": Asked(QUICK), "campaign": "c", "neighbours": "idle"} | changes
    plan = Plan(**options)
    settings = {device.facts.gpu: Setting(plan.neighbours) for device in devices}
    recorder = Recorder(store, cluster="k", campaign=plan.campaign)
    past_runs = past_of(store, "k", [device.facts.gpu for device in devices]).runs_of(plan.campaign)
    return run_gpus(Campaign(plan, recorder, find, past_runs, len(devices)), devices, Together(devices), settings)


def rows(store: Store, columns: str) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = store.sql(f"select {columns}").to_pylist()
    return table


@pytest.mark.parametrize("neighbours", ["idle", "busy"])
def test_every_probe_runs_on_every_gpu_and_is_stored(neighbours: str, store: Store) -> None:
    devices = gpus(3, temperature_c=lambda s: 50.0, busy_with=("pid 7 (python)",))
    report = run(store, devices, neighbours=neighbours)
    assert len(report.runs) == 6
    assert all(device.closed for device in devices)
    runs = rows(store, "* from runs order by gpu, workload")
    assert [(row["gpu"], row["workload"]) for row in runs] == [
        (f"GPU-{i}", w) for i in range(3) for w in ("one", "two")
    ]
    first = runs[0]
    assert (first["campaign"], first["cluster"], first["status"], first["ended_by"]) == ("c", "k", "ok", "precise")
    assert (first["power_w"], first["temperature_c"], first["sm_clock_mhz"]) == (100.0, 50.0, 1000.0)
    assert first["began"] < first["ended"]
    conditions = first["conditions"]
    assert conditions["neighbours"] == neighbours
    assert conditions["other_processes"] == ["pid 7 (python)"]
    assert (conditions["suite"], conditions["flop"], conditions["clock"]) == ("quick", 1_000_000, "free")
    versions = first["versions"]
    assert (versions["driver"], versions["kernel"]) == ("1", "3")
    assert not any(first["clock_events"].values())
    results = rows(store, f"* from results where run_id = '{first['run_id']}' order by figure, repeat")
    times = [row for row in results if row["figure"] == "time"]
    assert len(times) == conditions["repeats"] >= 20
    assert [row["repeat"] for row in times] == list(range(len(times)))
    assert {row["unit"] for row in times} == {"ms"}
    assert {row["workload"] for row in results} == {"one"}
    assert report.rows == {"runs": 6, "results": len(rows(store, "* from results"))}


def test_a_gpu_that_fails_is_recorded_and_the_others_go_on(store: Store) -> None:
    devices = gpus(3)
    devices[1].error = DeviceError("GPU-1 fell off the bus", gone=True, outcome=Outcome.LOST)
    plain_load = devices[1].load

    async def load(work: Any, *, seed: int) -> Any:
        if devices[1].calls.count("load") == 1:  # how many batches come before depends on the neighbours
            devices[1].breaks_at = 0
        return await plain_load(work, seed=seed)

    devices[1].load = load  # type: ignore[method-assign]
    report = run(store, devices, probes=(a_probe("one"), a_probe("two"), a_probe("three")), neighbours="busy")
    assert report.failures == {"GPU-1": "two: GPU-1 fell off the bus"}
    assert report.unrun == [("GPU-1", "three", "the GPU does not answer any more")]
    done = rows(store, "workload, status, status_detail, ended_by from runs where gpu = 'GPU-1' order by workload")
    assert [tuple(row.values()) for row in done] == [
        ("one", "ok", None, "precise"),
        ("two", "lost", "GPU-1 fell off the bus", "failed"),
    ]
    assert len(rows(store, "* from runs where gpu <> 'GPU-1' and status = 'ok'")) == 6
    events = rows(store, "kind, gpu, workload, detail from events order by ts, kind")
    assert [tuple(row.values()) for row in events] == [
        ("probe_failed", "GPU-1", "two", "two: GPU-1 fell off the bus"),
        ("probe_not_run", "GPU-1", "three", "three: the GPU does not answer any more"),
    ]


def test_a_probe_that_fails_on_a_gpu_that_still_answers_is_one_probe(store: Store) -> None:
    (device,) = gpus(1, breaks_at=0, error=DeviceError("GPU-0 has no memory left"))
    plain_load = device.load

    async def load(work: Any, *, seed: int) -> Any:
        if device.calls.count("load") == 1:
            device.breaks_at = None
        return await plain_load(work, seed=seed)

    device.load = load  # type: ignore[method-assign]
    report = run(store, [device])
    assert report.failures == {"GPU-0": "one: GPU-0 has no memory left"}
    assert rows(store, "workload from runs where status = 'ok'") == [{"workload": "two"}]


def test_wrong_results_and_what_cannot_be_run_are_events(store: Store) -> None:
    (device,) = gpus(1, verdicts=[Verdict(10, 2, "x[1]")])
    report = run(store, [device], probes=(a_probe("one"), a_probe("none", parameters={"size": 0})))
    assert [(run_done.probe, run_done.wrong) for run_done in report.wrong] == [("one", True)]
    assert report.unrun == [("GPU-0", "none", "there is no work of size 0")]
    sentence = "4 of 20 elements of the result are wrong; the first: x[1]"
    assert rows(store, "status, status_detail from runs") == [{"status": "wrong_result", "status_detail": sentence}]
    assert {(row["kind"], row["workload"], row["n"], row["detail"]) for row in rows(store, "* from events")} == {
        ("wrong_result", "one", 4, f"one: {sentence}"),
        ("probe_not_run", "none", None, "none: there is no work of size 0"),
    }


def test_what_a_campaign_has_stored_is_not_run_again(store: Store) -> None:
    run(store, gpus(2), probes=TWO[:1])
    again = gpus(2)
    report = run(store, again)
    assert report.skipped == 2
    assert {run_done.probe for run_done in report.runs} == {"two"}
    assert rows(store, "count(*) n from runs") == [{"n": 4}]
    assert run(store, gpus(2)).skipped == 4
    assert run(store, gpus(2), campaign="another").skipped == 0
    assert run(store, gpus(2), asked=Asked(QUICK, seed=2)).skipped == 0, "other conditions are another measurement"
    newer = tuple(replace(probe, version="2") for probe in TWO)
    assert run(store, gpus(2), probes=newer).skipped == 0


def test_what_failed_is_run_again(store: Store) -> None:
    run(store, gpus(1, breaks_at=0))
    assert len(rows(store, "* from runs")) == 1
    report = run(store, gpus(1))
    assert report.skipped == 0
    assert [run_done.status for run_done in report.runs] == ["ok", "ok"]


def test_a_store_that_failed_is_not_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says it did not store, it may have: a second try could store it twice."""
    recorder = Recorder(store, cluster="k", campaign="c")
    recorder.run(_a_run(1))

    def full(*_: object) -> list[Path]:
        raise StoreError("no space is left")

    with monkeypatch.context() as context:
        context.setattr(store, "append", full)
        with pytest.raises(StoreError):
            recorder.flush()
    recorder.run(_a_run(2))
    with pytest.raises(StoreError, match="no space is left"):
        recorder.flush()
    assert rows(store, "count(*) n from runs") == [{"n": 0}]


def test_an_interrupt_while_storing_comes_afterwards(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, plain = Recorder(store, cluster="k", campaign="c"), store.append
    recorder.run(_a_run(1))

    def interrupted(*arguments: Any) -> list[Path]:
        done = plain(*arguments)
        signal.raise_signal(signal.SIGINT)
        return done

    monkeypatch.setattr(store, "append", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        recorder.flush()
    assert signal.getsignal(signal.SIGINT) is before
    recorder.flush()
    assert rows(store, "count(*) n from runs") == [{"n": 1}]


def _a_run(number: int) -> Any:
    from whorl.probes.recording import Run

    return Run("GPU-0", "one", "1", number, number + 1, Window(), (), {}, {}, EndedBy.PRECISE, Outcome.OK)


# -- own rows ----------------------------------------------------------------------------------------------------------
# What a job reads and writes in a store of a large campaign: the rows of its own GPUs, in few files.


NODES = {node: [f"GPU-{node}-{slot}" for slot in range(4)] for node in ("n01", "n02", "n03")}


def a_run(gpu: str, number: int = 0) -> Run:
    began, ended = 1000 * number, 1000 * (number + 1)
    return Run(gpu, "launch", "1", began, ended, Window(), (), {"clock": "free"}, {}, EndedBy.PRECISE, Outcome.OK)


def record(store: Store, gpus: list[str], journal: Journal | None = None, campaign: str = "c") -> Recorder:
    recorder = Recorder(store, cluster="k", campaign=campaign, journal=journal)
    for number, gpu in enumerate(gpus):
        recorder.run(a_run(gpu, number))
    recorder.flush()
    return recorder


def measured(store: Store, gpus: list[str], campaign: str = "c") -> list[str]:
    return sorted(gpu for gpu, _ in past_of(store, "k", gpus).runs_of(campaign))


def files(store: Store, table: str) -> list[Path]:
    return [path for path in store.files(table) if not path.name.startswith("_")]


def may_name(path: Path, gpu: str) -> bool:
    return may_hold(path.name, Bounds(gpus=gpu_hashes([gpu])))


def test_a_job_opens_the_files_of_its_own_gpus_only(store: Store) -> None:
    for gpus in NODES.values():
        record(store, gpus)
    for path in files(store, "runs"):
        if not may_name(path, NODES["n01"][0]):
            path.write_bytes(b"torn")
    reader = Store.open(store.root)
    assert measured(reader, NODES["n01"]) == NODES["n01"]
    assert reader.skipped == {}
    assert measured(reader, NODES["n02"]) == []
    assert len(reader.skipped) == 1


def test_a_journal_of_runs_is_read_at_once_and_becomes_one_file(store: Store) -> None:
    with store.journal("n01.runs", background=False) as journal:
        for number in range(5):  # five times that something is due
            recorder = Recorder(store, cluster="k", campaign="c", journal=journal)
            recorder.run(a_run(NODES["n01"][number % 4], number))
            recorder.flush()
        assert recorder.rows == {"runs": 1}
        assert measured(store, NODES["n01"]) == NODES["n01"]
        assert measured(store, NODES["n02"]) == []
        assert files(store, "runs") == []
    assert len(files(store, "runs")) == 1
    assert measured(store, NODES["n01"]) == NODES["n01"]
    assert not may_name(files(store, "runs")[0], NODES["n02"][0])
    assert len(store.arrow("runs")) == 5


def test_what_a_dead_job_had_measured_is_known_to_the_next(store: Store) -> None:
    journal = store.journal("n01.runs", background=False)
    record(store, NODES["n01"][:2], journal)
    journal._hold.release()  # as when its process dies: nothing is closed
    assert measured(store, NODES["n01"]) == NODES["n01"][:2]
    with store.journal("n01.runs", background=False) as after:
        record(store, NODES["n01"][2:], after)
    assert measured(store, NODES["n01"]) == NODES["n01"]
    assert len(pa.compute.unique(store.arrow("runs")["run_id"])) == 4


def test_a_node_has_the_schedulers_name_inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n05")
    assert this_node() == "n05"
    monkeypatch.setenv("SLURMD_NODENAME", "../n 5")
    assert this_node() == "n_5"
    monkeypatch.delenv("SLURMD_NODENAME")
    assert this_node() == this_host()
