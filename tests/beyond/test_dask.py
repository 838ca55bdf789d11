"""Parts that real workers of Dask make: what is raised, named, done again, and done here instead."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask import config as dask_config
from distributed import Client, LocalCluster, Status

import whorl
from whorl.analysis.engines import DaskEngine, Engine, PartFailure
from whorl.errors import EngineError, InputError
from whorl.jobs.workers import engine
from whorl.store import Store
from whorl.tests.beyond.squares import (
    FAILURES,
    PARTS,
    SQUARES,
    Square,
    failing,
    greedy,
    killed_once,
    named,
    paused_once,
    process,
    refused,
    slowly,
    squared,
    wrong,
)  # fmt: skip
from whorl.tests.stores import new_store


@pytest.fixture
def dask(address: str) -> Iterator[Engine]:
    with engine(address) as opened:
        yield opened


@pytest.fixture
def own_dask(own_address: str) -> Iterator[Engine]:
    with engine(own_address) as opened:
        yield opened


def test_results_have_the_order_of_the_parts_and_come_from_the_workers(dask: Engine) -> None:
    assert dask.workers == 2
    progress: list[str] = []
    assert list(dask.map(squared, PARTS, name=named, progress=progress.append)) == SQUARES
    assert progress[-1] == "12 of 12 parts"
    processes = set(dask.map(process, PARTS, name=named))
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_a_part_that_fails_is_named_and_others_stay(dask: Engine) -> None:
    results = list(dask.map(failing, PARTS, name=named))
    assert [result for result in results if isinstance(result, PartFailure)] == [
        PartFailure("square 2", "a.parquet is damaged"),
        PartFailure("square 5", "[Errno 5] Input/output error"),
        PartFailure("square 7", "no Parquet"),
        PartFailure("square 9", "the memory did not suffice"),
    ]
    assert [SQUARES[n] for n in range(12) if n not in FAILURES] == [r for r in results if isinstance(r, int)]


def test_bad_input_and_errors_of_the_program_are_raised(dask: Engine) -> None:
    with pytest.raises(InputError, match=r"^0 is not asked for$"):
        list(dask.map(refused, PARTS, name=named))
    with pytest.raises(ZeroDivisionError):
        list(dask.map(wrong, PARTS, name=named))
    assert list(dask.map(squared, PARTS, name=named)) == SQUARES, "the workers are there for the next answer"


def test_a_part_of_a_worker_that_was_killed_is_made_again(own_dask: Engine, tmp_path: Path) -> None:
    parts = [Square(number, tmp_path) for number in range(12)]
    assert list(own_dask.map(killed_once, parts, name=named)) == SQUARES
    assert (tmp_path / "killed").exists()


def test_a_part_that_waits_at_a_paused_worker_is_begun_at_another(address: str, tmp_path: Path) -> None:
    parts = [Square(number, tmp_path) for number in range(12)]
    with Client(address.replace("dask", "tcp"), set_as_default=False) as client:
        try:
            assert list(DaskEngine(client, wait_s=4).map(paused_once, parts, name=named)) == SQUARES
            statuses = client.run(lambda dask_worker: dask_worker.status.name)
            assert sorted(statuses.values()) == ["paused", "running"]
        finally:
            client.run(lambda dask_worker: setattr(dask_worker, "status", Status.running))


@pytest.mark.parametrize("or_here", [False, True])
def test_workers_whose_memory_is_full_are_an_error_or_the_parts_are_made_here(or_here: bool) -> None:
    reasons: list[str] = []
    with (
        dask_config.set({"distributed.worker.memory.pause": 0.001}),
        LocalCluster(
            n_workers=1, processes=False, memory_limit="4GiB", dashboard_address=":0", silence_logs=50
        ) as full,
        Client(full, set_as_default=False) as client,
    ):
        while any(worker["status"] != "paused" for worker in client.scheduler_info()["workers"].values()):
            time.sleep(0.01)
        results = DaskEngine(client, wait_s=1, or_here=reasons.append if or_here else None).map(
            squared, PARTS, name=named
        )
        if or_here:
            assert list(results) == SQUARES
        else:
            with pytest.raises(EngineError) as raised:
                list(results)
            reasons.append(str(raised.value))
    assert reasons == [
        "no worker of Dask has taken a part for 1 s: none is there, or their memory is full; "
        "start some with more memory, and ask again"
    ]


@pytest.mark.long
def test_a_part_that_takes_too_much_memory_is_named_and_others_stay(own_dask: Engine) -> None:
    results = list(own_dask.map(greedy, PARTS, name=named))
    [failure] = [result for result in results if isinstance(result, PartFailure)]
    assert failure.name == "square 1"
    assert "4 workers ended" in failure.reason
    assert "memory" in failure.reason
    assert [result for result in results if isinstance(result, int)] == [s for s in SQUARES if s != 1]


def test_workers_must_see_the_store(dask: Engine, tmp_path: Path) -> None:
    store = new_store(tmp_path / "fleet")
    dask.require(store)
    descriptor = os.open(store.root, os.O_RDONLY)
    try:
        seen_here = Store(f"/proc/self/fd/{descriptor}")
        with pytest.raises(EngineError, match=rf"workers on \S+ do not see the store /proc/self/fd/{descriptor}:"):
            dask.require(seen_here)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("whorl.__version__", rf"^the whorl of workers on \S+ is {whorl.__version__}, here 9\.9\.9: give all"),
        ("platform.python_version", rf"^the Python of workers on \S+ is {platform.python_version()}, here 9\.9\.9:"),
    ],
)
def test_workers_must_have_the_same_versions(
    dask: Engine, store: Store, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    monkeypatch.setattr(name, "9.9.9" if name.startswith("whorl") else lambda: "9.9.9")
    with pytest.raises(EngineError, match=sentence):
        dask.require(store)


@pytest.mark.parametrize("or_here", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_scheduler_that_dies_is_an_error_or_the_parts_are_made_here(or_here: bool) -> None:
    sentences: list[str] = []
    mortal = LocalCluster(
        n_workers=1, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address=":0", silence_logs=50
    )
    with (
        mortal,
        engine(mortal.scheduler_address.replace("tcp", "dask"), or_here=or_here, tell=sentences.append) as dask,
    ):
        results = dask.map(slowly, PARTS, name=named)
        first = [next(results), next(results)]
        mortal.close()
        if or_here:
            assert [*first, *results] == SQUARES
            [sentence] = sentences
            assert sentence.startswith("the scheduler of Dask does not answer any more")
            assert sentence.endswith("this process makes the parts instead")
        else:
            with pytest.raises(EngineError, match="the scheduler of Dask does not answer any more"):
                list(results)
