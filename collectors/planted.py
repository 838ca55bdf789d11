"""What was planted in simulated GPUs: the ground truth for the analysis, as rows of `truth`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING

from ..simulation.faults import FAULTS, HEALTHY, kinds_in_order, onsets
from ..simulation.identity import identities
from ..simulation.models import PARAMETERS
from ..simulation.physics import Silicon
from ..simulation.spread import USUAL
from ..store.names import SIMULATED
from ..store.schema import arrow_rows
from .recording import identify, short_hash
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
    return _pct(fleet.fault_of(gpu).size)


def _pct(size: float | None) -> float | None:
    return None if size is None else round(100 * size, 9)


def truth_of(cluster: str, fleet: Fleet, who: Sequence[Identity], planted: Sequence[Planted], seed: int) -> pa.Table:
    """A fleet's rows of `truth`: the parameters and the fault of every GPU."""
    n = len(fleet)
    drawn = {column.name: getattr(fleet.silicon, column.name).tolist() for column in fields(Silicon)}
    faulty = {fault.uuid: fault for fault in planted}
    faults = [faulty.get(identity.uuid) for identity in who]
    return arrow_rows(
        "truth",
        {
            "cluster": [cluster] * n,
            "gpu": [identity.uuid for identity in who],
            "kind": [HEALTHY.kind if fault is None else fault.kind for fault in faults],
            "began": [fault and fault.began_ns for fault in faults],
            "ended": [fault and fault.ended_ns for fault in faults],
            "size_pct": [fault and fault.size_pct for fault in faults],
            "population": [fleet.population] * n,
            "silicon": [{name: values[gpu] for name, values in drawn.items()} for gpu in range(n)],
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
    told = store.arrow("truth", rows.column_names, [(cluster, identity.uuid) for identity in who]).to_pylist()
    if all(row in told for row in rows.to_pylist()):
        return {"gpus": identified}
    digest = short_hash([cluster, [vars(fault) for fault in planted], rows["silicon"].to_pylist()])
    store.append({"truth": rows}, f"truth-{digest}")
    return {"gpus": identified, "truth": len(rows)}


def _option(kind: str, size_pct: float | None) -> str:
    """What the key `fault` takes for a fault as the store has it; '' for a healthy GPU."""
    if kind == HEALTHY.kind:
        return ""
    usual = next((fault.size for fault in FAULTS if fault.kind == kind), None)
    return kind if size_pct is None or size_pct == _pct(usual) else f"{kind}={size_pct:.12g}%"


def backends_again(store: Store, cluster: str) -> dict[str, str]:
    """By simulated GPU of a cluster, the `--backend` with which `whorl probe run` measures its fleet again.

    Empty where the store does not say how the fleet was drawn: GPUs of `whorl collect` and of a file of nodes.
    """
    known = store.arrow("gpus", columns=["cluster", "gpu", "driver"]).to_pylist()
    backends: dict[str, str] = {
        row["gpu"]: "" for row in known if (row["cluster"], row["driver"]) == (cluster, SIMULATED)
    }
    claims = store.arrow("campaigns", columns=["cluster", "fleet"]).to_pylist()
    if not any(row["cluster"] == cluster and row["fleet"] for row in claims):
        return backends
    fleets: dict[tuple[str, int, str], dict[str, str]] = {}
    columns = ["cluster", "gpu", "kind", "size_pct", "population", "model", "seed"]
    for row in store.arrow("truth", columns=columns).to_pylist():
        if row["cluster"] == cluster:
            fleet = fleets.setdefault((row["model"], row["seed"], row["population"]), {})
            fleet[row["gpu"]] = _option(row["kind"], row["size_pct"])
    for (model, seed, population), faults in fleets.items():
        gpus = [identity.uuid for identity in identities(seed, len(faults), model)]
        faulty = {place: faults[gpu] for place, gpu in enumerate(gpus) if faults.get(gpu)}
        kinds = kinds_in_order(len(gpus), seed, faulty)
        if faults.keys() == set(gpus) and kinds is not None:
            words = [f"gpus={len(gpus)}", f"model={model}", f"seed={seed}"]
            words += [f"population={population}"] if population != USUAL else []
            words += [f"faults={len(kinds)}"] if kinds else []
            turns = next((n for n in range(1, len(kinds)) if kinds[n:] == kinds[:-n]), len(kinds))
            words += [f"fault={kind}" for kind in kinds[:turns]]
            backends |= dict.fromkeys(gpus, f"simulated:{','.join(words)}")
    return backends
