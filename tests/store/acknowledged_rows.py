"""What many writers were told is stored, and whether a reader saw just that.

Each node of a fleet goes through the same program, step by step. A file that all processes map into their memory says
how many steps each node has begun, how many were acknowledged, and how many of these a plain client must see. So what
a reader may see follows from two numbers a node: what was acknowledged before it began, and what was begun when it
ended. A step that a kill interrupted is done once more by the next process of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whorl.store import Store

BURST, CORRECTION, EVENT, GROUP, PUBLISH = "bcegp"
PROGRAM = BURST * 3 + CORRECTION + BURST * 2 + GROUP + BURST * 2 + EVENT + BURST * 4 + PUBLISH
"""The steps of a node, again and again: a burst of readings, the last burst once more with other values, an event,
a group of rows of a job, and `Journal.publish`."""
RESULTS = 3
"""Results of a run."""
CHANGE_MW = 1_000_000
"""What a correction adds to the power."""
_PERIOD = 997

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class WriterFleet:
    """How many nodes, GPUs of a node, and readings of a GPU in a burst."""

    nodes: int
    gpus: int
    readings: int

    def gpu_names(self, node: int) -> list[str]:
        return [f"GPU-{node * self.gpus + gpu:06}" for gpu in range(self.gpus)]


def base_mw(numbers: Ints) -> Ints:
    """The power of the readings of these numbers, mW."""
    return np.asarray(100_000 + numbers % _PERIOD * 100)


def count_of(kind: str, steps: Ints) -> Ints:
    """How many steps of a kind are among the first `steps` of the program."""
    before = np.cumsum([0, *(letter == kind for letter in PROGRAM)])
    return np.asarray(steps // len(PROGRAM) * before[-1] + before[steps % len(PROGRAM)])


class StepCounts:
    """The steps of each node: begun, acknowledged, published, and the times of its last burst (us), in a mapped file.

    What one process writes is there for the others at once, also after it was killed.
    """

    _COLUMNS = ("begun", "acknowledged", "published", "burst_us")

    def __init__(self, path: Path, nodes: int) -> None:
        mode = "r+" if path.exists() else "w+"
        self._counts = np.memmap(path, np.int64, mode=mode, shape=(nodes, len(self._COLUMNS)))  # type: ignore[call-overload]

    def get(self, column: str) -> Ints:
        return np.array(self._counts[:, self._COLUMNS.index(column)])

    def set(self, column: str, node: int, number: int) -> None:
        self._counts[node, self._COLUMNS.index(column)] = number


@dataclass(frozen=True)
class StepBounds:
    """The least and the most steps of each node whose rows a reader may see."""

    fleet: WriterFleet
    least: Ints
    most: Ints
    published: Ints | None = None
    """For DuckDB alone: it must see so many steps; of later ones it may see what is in place."""

    def query(self, name: str) -> str:
        """The query of this name, about what was published."""
        if self.published is None:
            return CHECKS[name][0].format(readings="true", events="true")
        bursts, events = (count_of(kind, self.published) for kind in (BURST, EVENT))
        upto = np.repeat(bursts * self.fleet.readings, self.fleet.gpus).tolist()
        return CHECKS[name][0].format(
            readings=f"energy_mj_last < {upto}[split_part(gpu, '-', 2)::bigint + 1]",
            events=f"code < {events.tolist()}[node[2:]::bigint + 1]",
        )

    def wrong(self, name: str, rows: pa.Table) -> list[str]:
        """What is wrong with the answer to the query of this name."""
        if self.published is not None and name in ("readings", "events"):
            return CHECKS[name][1](rows, replace(self, least=self.published, most=self.published))
        return CHECKS[name][1](rows, self)

    def outside(self, kind: str, counts: Ints) -> list[str]:
        """What is wrong with the number of steps of a kind that were seen of each node."""
        least, most = count_of(kind, self.least), count_of(kind, self.most)
        return [
            f"node {node}: {counts[node]} steps {kind!r}, not {least[node]} to {most[node]}"
            for node in np.flatnonzero((counts < least) | (counts > most)).tolist()
        ]

    def wrong_readings(self, counts: Ints) -> list[str]:
        """What is wrong with the number of readings that were seen of each GPU."""
        each = self.fleet.readings
        halves = [f"GPU {gpu}: a burst is there in part" for gpu in np.flatnonzero(counts % each).tolist()]
        by_node = (counts // each).reshape(self.fleet.nodes, self.fleet.gpus)
        return halves + [text for of_gpu in by_node.T for text in self.outside(BURST, of_gpu)]


# -- what queries say ------------------------------------------------------------------------------------------

READINGS = """
    with parts as (select gpu, n, energy_mj_first as first, energy_mj_last as last, power_mw_mean as mw
        from history where {readings})
    select split_part(gpu, '-', 2)::bigint as number, sum(n)::bigint as n, sum(n - 1 <> last - first)::bigint as ragged,
        min(first) as first, max(last) as last, sum((first + last) * n / 2)::bigint as sum, sum(mw * n) as mw, sum(
        (last * (last + 1) * (2 * last + 1) - (first - 1) * first * (2 * first - 1)) // 6)::bigint as squares
    from parts group by gpu"""
"""Of each GPU: its readings, and those in minutes. The energy counter is the number of a reading."""

JOBS = f"""
    with figures as (select run_id, count(*) as n, sum(value) as sum from results group by run_id),
        starts as (select job_id, count(*) as n from events where kind = 'returned' group by job_id),
        claims as (select job_id, count(*) as n from jobs group by job_id)
    select split_part(run_id, '-', 1)[2:]::bigint as node, count(*) as n, count(distinct run_id) as runs,
        max(split_part(run_id, '-', 2)::bigint) as last, count(*) filter (
            figures.n is distinct from {RESULTS} or figures.sum <> {sum(range(RESULTS))}
            or starts.n is distinct from 1 or claims.n is distinct from 1) as partial
    from runs left join figures using (run_id) left join starts on starts.job_id = run_id
        left join claims on claims.job_id = run_id group by 1"""
EVENTS = """
    select node[2:]::bigint as node, count(*) as n, count(distinct code) as codes, max(code) as last
    from events where kind = 'health' and {events} group by 1"""
LATEST = (
    "select split_part(gpu, '-', 2)::bigint as number, count(*) as n, max(energy_mj) as last from latest group by 1"
)
MINUTES = """
    select split_part(gpu, '-', 2)::bigint as number, energy_mj_first as first, energy_mj_last as last
    from telemetry_minutes"""


def _spread(table: pa.Table, by: str, size: int) -> dict[str, Any]:
    """The columns of an answer as arrays by GPU or node; 0 where the answer has none."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        columns[name] = np.zeros(size, np.float64 if name == "mw" else np.int64)
        columns[name][table[by].to_numpy()] = table[name].to_numpy()
    return columns


def wrong_telemetry(table: pa.Table, bounds: StepBounds) -> list[str]:
    """What is wrong with an answer to `READINGS`: each reading must be there once, with its power."""
    fleet = bounds.fleet
    columns_seen = _spread(table, "number", fleet.nodes * fleet.gpus)
    n = columns_seen["n"]
    wrong = bounds.wrong_readings(n)
    once = (
        (columns_seen["first"] == 0) & (columns_seen["last"] == np.maximum(n - 1, 0)) & (columns_seen["ragged"] == 0)
        & (columns_seen["sum"] == n * (n - 1) // 2) & (columns_seen["squares"] == n * (n - 1) * (2 * n - 1) // 6)
    )  # fmt: skip
    wrong += [
        f"GPU {gpu}: {n[gpu]} readings up to {columns_seen['last'][gpu]}: not each once"
        for gpu in np.flatnonzero(~once)
    ]
    base_sums = np.append(0, np.cumsum(base_mw(np.arange(n.max(initial=0)))))
    corrections = (columns_seen["mw"] - base_sums[n]) / (CHANGE_MW * fleet.readings)
    wrong += [
        f"GPU {gpu}: corrections add {corrections[gpu]} bursts"
        for gpu in np.flatnonzero(abs(corrections - np.round(corrections)) > 1e-6)
    ]
    by_node = np.round(corrections).astype(np.int64).reshape(fleet.nodes, fleet.gpus)
    return wrong + [text for of_gpu in by_node.T for text in bounds.outside(CORRECTION, of_gpu)]


def wrong_jobs(table: pa.Table, bounds: StepBounds) -> list[str]:
    """What is wrong with an answer to `JOBS`: each group of rows once, and whole."""
    columns_seen = _spread(table, "node", bounds.fleet.nodes)
    n = columns_seen["n"]
    partial = np.flatnonzero(
        (columns_seen["runs"] != n) | (columns_seen["partial"] > 0) | ((n > 0) & (columns_seen["last"] != n - 1))
    )
    return bounds.outside(GROUP, n) + [f"node {node}: a job twice, missing or in part" for node in partial]


def wrong_events(table: pa.Table, bounds: StepBounds) -> list[str]:
    columns_seen = _spread(table, "node", bounds.fleet.nodes)
    n = columns_seen["n"]
    strange = np.flatnonzero((columns_seen["codes"] != n) | ((n > 0) & (columns_seen["last"] != n - 1)))
    return bounds.outside(EVENT, n) + [f"node {node}: an event twice or missing" for node in strange]


def wrong_latest(table: pa.Table, bounds: StepBounds) -> list[str]:
    columns_seen = _spread(table, "number", bounds.fleet.nodes * bounds.fleet.gpus)
    wrong = [f"GPU {gpu}: {columns_seen['n'][gpu]} rows of latest" for gpu in np.flatnonzero(columns_seen["n"] > 1)]
    return wrong + bounds.wrong_readings(np.where(columns_seen["n"] > 0, columns_seen["last"] + 1, 0))


# -- what whole tables say -------------------------------------------------------------------------------------


def wrong_rows(rows: pa.Table, minutes: pa.Table, bounds: StepBounds) -> list[str]:
    """What is wrong with all rows of telemetry: gpu, energy_mj, power_mw, temperature_c.

    `minutes` is an answer to `MINUTES` that was asked for later: what it has was pruned meanwhile.
    """
    import pyarrow.compute as pc

    fleet = bounds.fleet
    names = pc.dictionary_encode(rows["gpu"].combine_chunks())
    of_name = np.array([int(name.split("-")[1]) for name in names.dictionary.to_pylist()], np.int64)
    gpus = of_name[names.indices.to_numpy()] if len(rows) else np.zeros(0, np.int64)
    numbers, mw, versions = (rows[name].to_numpy() for name in ("energy_mj", "power_mw", "temperature_c"))
    first, last = minutes["first"].to_numpy(), minutes["last"].to_numpy()
    most = 1 + max(numbers.max(initial=-1), last.max(initial=-1))
    counts = np.bincount(gpus * most + numbers, minlength=fleet.nodes * fleet.gpus * most)
    wrong = [
        f"GPU {key // most}: reading {key % most} is there {counts[key]} times" for key in np.flatnonzero(counts > 1)
    ]
    changes = np.zeros((fleet.nodes * fleet.gpus, most + 1), np.int64)
    np.add.at(changes, (minutes["number"].to_numpy(), first), 1)
    np.add.at(changes, (minutes["number"].to_numpy(), last + 1), -1)
    there = (counts.reshape(len(changes), most) > 0) | (np.cumsum(changes, axis=1)[:, :-1] > 0)
    n = there.sum(axis=1)
    upto = np.where(n > 0, most - np.argmax(there[:, ::-1], axis=1), 0)
    wrong += [f"GPU {gpu}: {upto[gpu] - n[gpu]} readings are missing" for gpu in np.flatnonzero(upto != n)]
    values = np.flatnonzero(mw != base_mw(numbers) + CHANGE_MW * versions)
    wrong += [f"GPU {gpus[row]}: reading {numbers[row]} is {mw[row]} mW" for row in values]
    return wrong + bounds.wrong_readings(n)


CHECKS: dict[str, tuple[str, Callable[[pa.Table, StepBounds], list[str]]]] = {
    "readings": (READINGS, wrong_telemetry), "jobs": (JOBS, wrong_jobs), "events": (EVENTS, wrong_events),
    "latest": (LATEST, wrong_latest),
}  # fmt: skip
"""Queries, and what judges their answers."""
COLUMNS = ["gpu", "energy_mj", "power_mw", "temperature_c"]


def arrow(store: Store) -> pa.Table:
    return store.arrow("telemetry", COLUMNS)


def scan(store: Store) -> pa.Table:
    return store.collect(store.scan("telemetry").select(COLUMNS)).to_arrow()


def parts(store: Store) -> pa.Table:
    tables = [part.arrow(COLUMNS) for part in store.parts("telemetry")]
    return pa.concat_tables(tables) if tables else store.arrow("telemetry", COLUMNS).slice(0, 0)


TABLES: dict[str, Any] = {"arrow": arrow, "scan": scan, "parts": parts}
"""Ways to read the whole of a table."""
