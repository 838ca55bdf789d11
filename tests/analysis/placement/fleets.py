"""Fleets whose scores are known, and stores with runs drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from whorl.store import Store
from whorl.tests.stores import new_store

Floats = npt.NDArray[np.float64]
BEGAN = datetime.fromisoformat("2026-09-01")


@dataclass
class Fleet:
    """GPUs in nodes of four, named by number; `known[workload]` is the score that each really has."""

    gpus: int
    per_node: int = 4
    true_scores: dict[str, Floats] = field(default_factory=dict)
    tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"g{number:05d}" for number in range(self.gpus)]

    def node(self, gpu: int) -> str:
        return f"n{gpu // self.per_node:04d}"

    def run(
        self,
        workload: str,
        true_scores: Floats,
        noise: Floats,
        *,
        usual_ms: float = 100.0,
        began: datetime = BEGAN,
        jobs: Mapping[tuple[int, int], str] | None = None,
        skip: frozenset[tuple[int, int]] = frozenset(),
    ) -> Fleet:
        """Add runs of `workload`: `noise` (gpus, runs) is a factor on each; `skip`: (gpu, run) that did not happen."""
        self.true_scores[workload] = true_scores / np.median(true_scores)
        for (gpu, run), factor in np.ndenumerate(noise):
            if (gpu, run) in skip:
                continue
            job = None if jobs is None else jobs.get((gpu, run))
            self.add(
                workload,
                self.names[gpu],
                float(usual_ms * true_scores[gpu] * factor),
                began + timedelta(hours=run),
                job,
            )
        return self

    def add(
        self, workload: str, gpu: str, value: float, began: datetime | None = BEGAN, job: str | None = None
    ) -> None:
        """Add one run."""
        runs = self.tables.setdefault("runs", {})
        run_id = f"{workload}-{len(runs.get('run_id', []))}"
        _add(runs, run_id=run_id, cluster="c", workload=workload, gpu=gpu, began=began, job_id=job, status="ok")
        _add(
            self.tables.setdefault("results", {}),
            run_id=run_id,
            cluster="c",
            workload=workload,
            gpu=gpu,
            repeat=0,
            figure="time",
            unit="ms",
            value=value,
        )

    def identity(self, gpu: str, **columns: Any) -> None:
        """Add what is known of a GPU."""
        row = dict.fromkeys(("uuid", "place", "node", "slot", "driver", "first_seen"))
        _add(self.tables.setdefault("gpus", {}), **{**row, **columns, "cluster": "c", "gpu": gpu})

    def store(self, path: Path, *, places: bool = True) -> Store:
        """The store with all of it."""
        if places:
            for number, name in enumerate(self.names):
                self.identity(name, node=self.node(number), slot=number % self.per_node)
        store = new_store(path)
        store.append({name: pa.table(columns) for name, columns in self.tables.items()}, "fleet")
        return store


def _add(columns: dict[str, list[Any]], **row: Any) -> None:
    for name, value in row.items():
        columns.setdefault(name, []).append(value)


def noise(rng: np.random.Generator, gpus: int, runs: int, sd: float = 0.02, glitches: float = 0.0) -> Floats:
    """Factors about 1: log-normal, and `glitches` of the runs take half as long again, whichever GPU they are on."""
    far = np.where(rng.random((gpus, runs)) < glitches, np.log(1.5), 0.0)
    return np.exp(rng.normal(0.0, sd, (gpus, runs)) + far)
