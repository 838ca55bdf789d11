"""What was planted in simulated GPUs: the ground truth for the analysis, as rows of `truth`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING

from ..simulation.faults import HEALTHY, onsets
from ..simulation.models import PARAMETERS
from ..simulation.physics import Silicon
from ..store.schema import arrow_rows
from .recording import identify
from .rows import short_hash
from .simulated import devices_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..simulation.fleet import Fleet
    from ..simulation.identity import Identity
    from ..store import Store


@dataclass(frozen=True)
class Planted:
    """A GPU that has a simulated fault: the ground truth for the analysis."""

    uuid: str
    place: str
    name: str
    """For people."""
    kind: str
    size_pct: float | None
    """Of the fault, %; None for a kind without size."""
    label: str
    """The kind, with its size where that is not the usual one."""
    began_ns: int | None
    """UTC; None if the fault is there from the start."""
    ended_ns: int | None


def planted_in(fleet: Fleet, who: Sequence[Identity], began_ns: int, span_s: float) -> tuple[Planted, ...]:
    """The faulty GPUs of a fleet whose simulation begins at a time; faults set in within so many seconds."""
    named = fleet.named
    began, ended = onsets(fleet.fault, fleet.seed, span_s)

    def instant(seconds: float) -> int | None:
        return began_ns + round(seconds * 1e9) if seconds > 0 and isfinite(seconds) else None

    return tuple(
        Planted(
            who[gpu].uuid,
            who[gpu].place,
            who[gpu].name,
            kind,
            _size_pct(fleet, gpu),
            named[gpu],
            instant(began[gpu]),
            instant(ended[gpu]),
        )
        for gpu, kind in fleet.planted.items()
    )


def _size_pct(fleet: Fleet, gpu: int) -> float | None:
    size = fleet.fault_of(gpu).size
    return None if size is None else round(100 * size, 9)


def truth_of(cluster: str, fleet: Fleet, who: Sequence[Identity], planted: Sequence[Planted], seed: int) -> pa.Table:
    """A fleet's rows of `truth`: the parameters and the fault of every GPU."""
    n = len(fleet)
    drawn = {column.name: getattr(fleet.silicon, column.name).tolist() for column in fields(Silicon)}
    faulty = {one.uuid: one for one in planted}
    found = [faulty.get(one.uuid) for one in who]
    return arrow_rows(
        "truth",
        {
            "cluster": [cluster] * n,
            "gpu": [one.uuid for one in who],
            "kind": [HEALTHY.kind if one is None else one.kind for one in found],
            "began": [one and one.began_ns for one in found],
            "ended": [one and one.ended_ns for one in found],
            "size_pct": [one and one.size_pct for one in found],
            "population": [fleet.population] * n,
            "silicon": [json.dumps({name: values[gpu] for name, values in drawn.items()}) for gpu in range(n)],
            "model": [fleet.model.name] * n,
            "seed": [seed] * n,
            "parameters": [PARAMETERS] * n,
        },
    )


def introduce(
    store: Store, cluster: str, fleet: Fleet, who: Sequence[Identity], planted: Sequence[Planted], seed: int
) -> dict[str, int]:
    """Store who the GPUs of a simulated node are and what was planted in them, unless the store was told the same.

    Returns the number of rows stored, by table.
    """
    identified = identify(store, devices_of(fleet.model, who, fleet.vbios), cluster, None, time.time_ns())
    rows = truth_of(cluster, fleet, who, planted, seed)
    name = f"truth-{short_hash([cluster, [vars(one) for one in planted], rows['silicon'].to_pylist()])}"
    if (store.root / "truth" / f"{name}.parquet").exists():
        return {"gpus": identified}
    store.append({"truth": rows}, name)
    return {"gpus": identified, "truth": len(rows)}
