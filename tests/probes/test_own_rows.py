"""What a job reads and writes in a store of a large campaign: the rows of its own GPUs, in few files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from whorl.probes.recording import Recorder, Run, past_of
from whorl.probes.watch import Window
from whorl.store import Store
from whorl.store.file_names import Bounds, gpu_hashes, may_hold
from whorl.store.journal import Journal
from whorl.store.names import this_host, this_node
from whorl.store.vocabulary import EndedBy, Outcome

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
