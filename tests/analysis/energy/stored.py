"""Stores with GPUs, readings and jobs, made in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from whorl.analysis.energy.attribute import PIECES, Attribution
from whorl.analysis.energy.claims import of_store, read_claims, with_activity
from whorl.analysis.energy.meter import Energies, Meters, meters_of_readings
from whorl.analysis.energy.readings import meters_of_many
from whorl.analysis.energy.sensor import Note, Problem, Readings
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.stores import new_store

S = 1_000_000_000
NOON = int(datetime(2026, 11, 2, 12, tzinfo=UTC).timestamp()) * S
"""Times in these tests are s after it."""


def at(seconds: float) -> int:
    return NOON + round(seconds * S)


def rows(name: str, records: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(key for record in records for key in record))
    return arrow_rows(name, {key: [record.get(key) for record in records] for key in names})


def job(number: int | str, gpu: str | None, began: float, ended: float | None, **columns: Any) -> dict[str, Any]:
    return {
        "cluster": "c", "allocation": f"{number}.0", "job_id": str(number), "raw_id": str(number), "user": "ada",
        "account": "physics", "state": "COMPLETED", "began": at(began), "ended": None if ended is None else at(ended),
        "node": "n1", "gpu": gpu, "share": 1.0, "node_gpus": 1, "recorded": at(1e6), "source": "csv",
    } | columns  # fmt: skip


def readings(gpu: str | None, seconds: Sequence[float], watts: Sequence[float], **options: Any) -> pa.Table:
    """Telemetry of a GPU; utilisation is 0 up to 60 W. Further columns in `other`."""
    power = np.asarray(watts, float)
    columns = {
        "ts": [at(s) for s in seconds], "cluster": ["c"] * len(power), "gpu": [gpu] * len(power),
        "power_mw": np.round(power * 1000).astype(int).tolist(),
        "utilization": np.where(power > 60, 100, 0).tolist(), "power_limit_mw": [300_000] * len(power),
    }  # fmt: skip
    return arrow_rows("telemetry", columns | options)


def gpu(name: str, **columns: Any) -> dict[str, Any]:
    return {"cluster": "c", "gpu": name, "uuid": name, "node": "n1", "model": "A100-SXM4-80GB",
            "power_limit_mw": 300_000, "power_limit_default_mw": 300_000, "first_seen": at(-1e6)} | columns  # fmt: skip


def store_of(
    path: Path,
    gpus: Sequence[Mapping[str, Any]],
    telemetry: Sequence[pa.Table],
    jobs: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]] = (),
) -> Store:
    store = new_store(path)
    tables = {"gpus": rows("gpus", gpus)} if gpus else {}
    if telemetry:
        tables["telemetry"] = pa.concat_tables(telemetry, promote_options="default")
    if jobs:
        tables["jobs"] = rows("jobs", jobs)
    if events:
        tables["events"] = rows("events", events)
    store.append(tables, "made")
    return store


@dataclass(frozen=True)
class Meter:
    """One of some meters."""

    among: Meters
    number: int

    @property
    def cluster(self) -> str:
        return str(self.among.boards["cluster"][self.number])

    @property
    def gpu(self) -> str:
        return str(self.among.boards["gpu"][self.number])

    @property
    def first_ns(self) -> int:
        return int(self.among["first_ns"][self.number])

    @property
    def last_ns(self) -> int:
        return int(self.among["last_ns"][self.number])

    @property
    def idle_w(self) -> float | None:
        watts = float(self.among["idle_w"][self.number])
        return None if np.isnan(watts) else watts

    @property
    def notes(self) -> tuple[Note, ...]:
        rows = self.among.notes.filter(cluster=self.cluster, gpu=self.gpu).drop("cluster", "gpu").rows()
        return tuple(Note(Problem(problem), *fields) for problem, *fields in rows)

    @property
    def energy_j(self) -> Any:
        """(k,) from its first reading to each."""
        return self.among.knots["energy_j"][self.among["begins"][self.number] : self.among["ends"][self.number]]

    def over(self, began: Any, ended: Any) -> Energies:
        began, ended = np.asarray(began, np.int64), np.asarray(ended, np.int64)
        return self.among.over(np.full(len(began), self.number), began, ended)


def meters(store: Store, **options: Any) -> list[Meter]:
    """The meter of each GPU of a store; `of`: as `meters_of_many` takes it."""
    return [Meter(group, number) for group in meters_of_many(store, **options) for number in range(len(group))]


@dataclass(frozen=True)
class Books:
    """The energy of a store's GPUs: all pieces, what was metered, and what is wrong."""

    pieces: pl.DataFrame
    metered: pl.DataFrame
    problems: pl.DataFrame


def books(store: Store, *, cuts: Sequence[int] = (), **options: Any) -> Books:
    """The books of a store; `of`: as `read_claims` takes it."""
    times = {name: options[name] for name in ("since_ns", "until_ns") if name in options}
    claims = with_activity(store, read_claims(store, **options), -(2**61), 2**61)
    split = Attribution(claims, cuts=cuts, **times)
    frames = split.pieces([split.split(meters_of_many(store, **options))])
    pieces = pl.concat([pl.DataFrame(schema=PIECES), *frames], rechunk=False)
    sums = of_store(store, split.metered, cluster=None, since_ns=-(2**62), until_ns=2**62)
    return Books(pieces, split.metered, pl.concat([split.problems, sums]))


def build(
    cluster: str,
    gpu: str,
    readings: Readings,
    limit_w: float | None = None,
    model: str | None = None,
    events: Sequence[Note] = (),
) -> Meter:
    """The meter of one GPU."""
    alone = readings.each(lambda values: values[None])
    return Meter(meters_of_readings([(cluster, gpu)], alone, [limit_w], models=[model], events=[events]), 0)
