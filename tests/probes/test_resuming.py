"""Simulated campaigns that are killed or interrupted at any point, and run again: the same rows as in one go.

A process of its own runs each campaign, and is killed by SIGKILL at one of the points at which a file of the store is
made or moved. What is stored afterwards is compared with a store in which nothing was interrupted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import compute

from whorl.probes import simulated
from whorl.probes.campaign import Plan
from whorl.probes.catalogue import choose
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.loads import run_load, run_steady
from whorl.probes.simulated import run_simulated
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import find_load
from whorl.simulation.models import V100
from whorl.store import Store
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store

KINDS = ("lost", "wrong_results", "brake")
TABLES = ("gpus", "truth", "runs", "results", "telemetry", "events")
CHUNK = 300  # rows of telemetry, so that a short campaign is stored in many parts


def fleet() -> Fleet:
    return Fleet.draw(V100, 8, 5, faults=3, kinds=KINDS)


def in_time(store: Store) -> None:
    """Three minutes of turns of half a minute."""
    turns = replace(find_load("gemm"), busy_s=25.0, idle_s=5.0, begins_s=5.0, warm_up_s=10.0, repeats=3)
    run_load(store, fleet(), turns, hours=0.05)


def at_steady_state(store: Store) -> None:
    run_steady(store, fleet(), find_load("mixed"), runs=6)


def probed(store: Store, *, unnamed: bool = False) -> None:
    """Three probes, one of which changes the pace of the readings."""
    plan = Plan(choose(["gemm-fp32", "launch", "power-square"]), Asked(EFFORTS["quick"]), "c", "busy")
    run_simulated(store, fleet(), plan, telemetry_s=0.1, unnamed=unnamed)


CAMPAIGNS: dict[str, Callable[[Store], None]] = {
    "in_time": in_time,
    "at_steady_state": at_steady_state,
    "probed": probed,
}

TRIED = sample(CAMPAIGNS, short=1)

# Runs a campaign in a child of its own for each death that is asked for, [CAMPAIGN, STORE, N, AFTER]: it dies at the
# Nth move of a file into its place, before it or when it is done. Prints the stores of those that did not die.
DYING = """
import json, os, signal, sys
from functools import partial
from whorl.probes import simulated
from whorl.store import Store
from whorl.tests.probes import test_resuming as these
simulated.TELEMETRY_ROWS = these.CHUNK
for name, folder, at, after in json.loads(sys.argv[1]):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), status
        continue
    store, number, moves = Store.open(folder), 0, {"replace": os.replace, "rename": os.rename}
    def counted(how, *given, **options):
        global number
        number += 1
        if number == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        moves[how](*given, **options)
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)
    os.replace, os.rename = partial(counted, "replace"), partial(counted, "rename")  # Path's go by them
    these.CAMPAIGNS[name](store)
    print(folder, flush=True)
    os._exit(0)
"""


@dataclass(frozen=True)
class Whole:
    """A campaign in which nothing was interrupted."""

    store: Path
    moves: int
    """Of files into their places."""


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with patch.object(simulated, "TELEMETRY_ROWS", CHUNK):
        yield


@pytest.fixture(scope="module")
def uninterrupted(small_chunks: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    """Each campaign in a store of its own; read only."""
    by_name = {}
    for name in TRIED:
        store = new_store(tmp_path_factory.mktemp("whole") / name)
        with (
            patch.object(os, "replace", wraps=os.replace) as replaced,
            patch.object(os, "rename", wraps=os.rename) as renamed,
        ):
            CAMPAIGNS[name](store)
        by_name[name] = Whole(store.root, replaced.call_count + renamed.call_count)
    return by_name


@pytest.fixture(scope="module")
def killed(uninterrupted: dict[str, Whole], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """By campaign: stores in which it was killed twice."""
    random = np.random.default_rng(7)
    folder = tmp_path_factory.mktemp("killed")
    stores = {name: [folder / f"{name}-{number}" for number in range(1)] for name in TRIED}
    deaths = [
        (name, str(new_store(store).root), int(random.integers(1, part + 1)), bool(random.integers(2)))
        for name in TRIED
        for store in stores[name]
        for part in (3 * uninterrupted[name].moves // 4, uninterrupted[name].moves // 2)
    ]
    command = [sys.executable, "-c", DYING, json.dumps(deaths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2700)
    assert done.returncode == 0, done.stderr
    survived = done.stdout.split()
    assert len(set(survived)) == len(survived) < len(deaths) / 2, "each died, and most twice"
    return stores


def is_complete(store: Path) -> bool:
    """Whether a killed campaign had stored all of it."""
    rows = Store.open(store).arrow("campaigns")
    return bool(len(rows)) and compute.max(rows["stored_to"]).value >= compute.min(rows["ended"]).value


def assert_same_rows(first_store: Path, second_store: Path) -> None:
    """The same rows of every table; `campaigns` says in both that all is stored, and to the same instant."""
    first, second = Store.open(first_store), Store.open(second_store)
    for table in TABLES:
        assert sorted_rows(first, table).equals(sorted_rows(second, table)), table
    assert campaigns(first).equals(campaigns(second))
    assert second.check() == {}


def campaigns(store: Store) -> pa.Table:
    """Each campaign, to which instant all of it is stored, and when it ended first."""
    return store.sql(
        "select campaign, asked, fleet, born, gpus, began, max(stored_to), min(ended) from campaigns group by all "
        "order by campaign, began"
    ).table


def sorted_rows(store: Store, table: str) -> pa.Table:
    rows = store.arrow(table).combine_chunks()
    plain = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return rows.sort_by([(name, "ascending") for name in plain])


@pytest.mark.long
@pytest.mark.parametrize("name", TRIED)
def test_a_campaign_killed_at_any_point_ends_with_the_same_rows(
    name: str, uninterrupted: dict[str, Whole], killed: dict[str, list[Path]]
) -> None:
    """Each was killed twice, and is then run to its end."""
    assert uninterrupted[name].moves > 20
    for store in killed[name]:
        if not is_complete(store):
            CAMPAIGNS[name](Store.open(store))
        assert_same_rows(uninterrupted[name].store, store)


@pytest.mark.long
def test_a_campaign_without_a_name_of_its_own_goes_on_under_the_one_it_has(tmp_path: Path) -> None:
    """As `whorl demo`, whose campaigns are named after the time at which they begin."""
    uninterrupted, stopped = new_store(tmp_path / "whole"), new_store(tmp_path / "stopped")
    plan = Plan(choose(["gemm-fp32"]), Asked(EFFORTS["quick"]), "first", "busy")

    def stop(done: int, total: int, text: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    run_simulated(uninterrupted, fleet(), plan, unnamed=True)
    with pytest.raises(KeyboardInterrupt):
        run_simulated(stopped, fleet(), plan, unnamed=True, progress=stop)
    second = Plan(plan.probes, plan.asked, "second", "busy")
    report = run_simulated(stopped, fleet(), second, unnamed=True)
    assert report.campaign == "first"
    assert len(report.runs) == 8
    assert_same_rows(uninterrupted.root, stopped.root)
    third = Plan(plan.probes, plan.asked, "third", "busy")
    assert run_simulated(stopped, fleet(), third, unnamed=True).campaign == "third", "the first one is complete"
