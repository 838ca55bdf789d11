"""A simulated fleet and what it did, as rows of the store's tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..simulation.faults import HEALTHY, onsets
from ..simulation.fleet import Fleet
from ..simulation.identity import Identity
from ..simulation.load import Load
from ..simulation.models import PARAMETERS
from ..simulation.physics import Floats, Silicon
from ..simulation.stepping import Happening, Readings
from ..simulation.turns import unit
from ..simulation.workloads import Workload
from ..store.conditions import Clock
from ..store.events import Event
from ..store.events import event_rows as as_rows
from ..store.outcomes import Outcome
from ..store.schema import arrow_schema

if TYPE_CHECKING:
    from .simulated_record import Record

DRIVER = "simulated"


@dataclass(frozen=True)
class Planted:
    """A GPU that was made faulty: the ground truth for what analysis should find."""

    uuid: str
    place: str
    kind: str
    began_ns: int | None
    """UTC, None where the fault is there from the start."""
    ended_ns: int | None


def planted(fleet: Fleet, who: tuple[Identity, ...], began_ns: int, span_s: float) -> tuple[Planted, ...]:
    """The faulty GPUs of a fleet, with the time within a span at which their faults set in."""
    began, ended = onsets(fleet.fault, fleet.seed, span_s)

    def instant(seconds: float) -> int | None:
        return began_ns + round(seconds * 1e9) if seconds > 0 and isfinite(seconds) else None

    return tuple(
        Planted(who[gpu].uuid, who[gpu].place, kind, instant(began[gpu]), instant(ended[gpu]))
        for gpu, kind in fleet.planted.items()
    )


def gpu_rows(fleet: Fleet, who: tuple[Identity, ...], cluster: str, seen_ns: int) -> pa.Table:
    """The fleet's rows of `gpus`, as their drivers would describe them."""
    model, n = fleet.model, len(fleet)
    limit_mw = round(1000 * model.power_limit_w)
    columns = {
        "cluster": [cluster] * n,
        "gpu": [one.uuid for one in who],
        "uuid": [one.uuid for one in who],
        "place": [one.place for one in who],
        "cabinet": [f"c{one.cabinet:03d}" for one in who],
        "node": [one.host for one in who],
        "slot": [one.device for one in who],
        "model": [model.name] * n,
        "driver": [DRIVER] * n,
        "nvml_index": [one.device for one in who],
        "power_limit_mw": [limit_mw] * n,
        "power_limit_default_mw": [limit_mw] * n,
        "power_limit_min_mw": [round(1000 * model.min_power_limit_w)] * n,
        "power_limit_max_mw": [limit_mw] * n,
        "sm_clock_max_mhz": [int(model.max_clock_mhz)] * n,
        "mem_clock_max_mhz": [int(model.memory_clock_mhz)] * n,
        "temperature_slowdown_c": [int(model.slowdown_c)] * n,
        "temperature_shutdown_c": [int(model.shutdown_c)] * n,
        "memory_total": [model.memory_gb << 30] * n,
        "first_seen": [seen_ns] * n,
    }
    return table("gpus", columns)


def truth_rows(fleet: Fleet, who: tuple[Identity, ...], cluster: str, faulty: tuple[Planted, ...]) -> pa.Table:
    """The fleet's rows of `truth`: what was drawn and planted, for every GPU."""
    n = len(fleet)
    drawn = {column.name: getattr(fleet.silicon, column.name).tolist() for column in fields(Silicon)}
    known = {one.uuid: one for one in faulty}
    found = [known.get(one.uuid) for one in who]
    columns = {
        "cluster": [cluster] * n,
        "gpu": [one.uuid for one in who],
        "kind": [HEALTHY.kind if one is None else one.kind for one in found],
        "began": [one and one.began_ns for one in found],
        "ended": [one and one.ended_ns for one in found],
        "silicon": [json.dumps({name: values[gpu] for name, values in drawn.items()}) for gpu in range(n)],
        "model": [fleet.model.name] * n,
        "seed": [fleet.seed] * n,
        "parameters": [PARAMETERS] * n,
    }
    return table("truth", columns)


def run_rows(
    record: Record,
    number: int,
    gpus: NDArray[np.intp],
    window: tuple[int, int | NDArray[np.int64]],
    times_ms: Floats,
    medians: Mapping[str, Floats | None],
    conditions: Mapping[str, object],
    absent: NDArray[np.bool_],
) -> tuple[pa.Table, pa.Table]:
    """The rows of `runs` and `results` of one run on some GPUs; `times_ms` has the shape (repeats, GPUs).

    `window` is when it began and ended, UTC ns, the end for all or for each GPU.
    """
    fleet, load, m = record.fleet, record.load, len(gpus)
    repeats = len(times_ms)
    names = [record.who[gpu].uuid for gpu in gpus]
    run_ids = [short_hash([record.campaign, number, name]) for name in names]
    workloads = [_work(load, int(gpu)) for gpu in gpus]
    wrong = np.where(absent, 0, fleet.wrong_elements(run=record.number(number))[gpus])
    status = [
        (Outcome.LOST, "the GPU was lost")
        if gone
        else (Outcome.WRONG_RESULT, f"{count} elements of the result are wrong")
        if count
        else (Outcome.OK, None)
        for gone, count in zip(absent.tolist(), wrong.tolist(), strict=True)
    ]
    stated = {
        workload: json.dumps(
            {
                "load": load.name,
                "unit": unit(workload),
                "repeats": repeats,
                "input_seed": fleet.seed,
                "power_cap_w": fleet.model.power_limit_w,
                "clock": Clock.FREE,
                "neighbours": "the same work" if len(load.workloads) == 1 else "other work",
                "simulated": True,
                "parameters": PARAMETERS,
            }
            | dict(conditions)
        )
        for workload in dict.fromkeys(workloads)
    }

    def median(name: str, scale: float = 1.0) -> pa.Array:
        values = medians[name]
        if values is None:
            return pa.nulls(m, pa.float64())
        return pa.array(np.asarray(values, dtype=np.float64) * scale, mask=absent)

    runs = table(
        "runs",
        {
            "run_id": run_ids,
            "cluster": [record.cluster] * m,
            "campaign": [record.campaign] * m,
            "workload": [workload.name for workload in workloads],
            "gpu": names,
            "began": [window[0]] * m,
            "ended": np.broadcast_to(window[1], m),
            "sm_clock_mhz": median("sm_clock_mhz"),
            "mem_clock_mhz": median("mem_clock_mhz"),
            "temperature_c": median("temperature_c"),
            "power_w": median("power_mw", 1e-3),
            "conditions": [stated[workload] for workload in workloads],
            "probe_version": [f"simulated {PARAMETERS}"] * m,
            "status": [code for code, _ in status],
            "status_detail": [detail for _, detail in status],
        },
    )
    present = np.flatnonzero(~absent)
    figures = [("time", "ms", repeat, times_ms[repeat]) for repeat in range(repeats)]
    figures.append(("wrong_elements", "elements", 0, wrong.astype(np.float64)))
    results = pa.concat_tables(
        [
            table(
                "results",
                {
                    "run_id": [run_ids[i] for i in present],
                    "cluster": [record.cluster] * len(present),
                    "workload": [workloads[i].name for i in present],
                    "gpu": [names[i] for i in present],
                    "repeat": [repeat] * len(present),
                    "figure": [figure] * len(present),
                    "unit": [label] * len(present),
                    "value": values[present],
                },
            )
            for figure, label, repeat, values in figures
        ]
    )
    return runs, results


def telemetry_rows(record: Record, chunk: Sequence[Readings]) -> pa.Table:
    """The rows of `telemetry` for a chunk of readings, sorted by GPU and time; of a lost GPU all values are NULL."""
    n, samples = len(record.fleet), len(chunk)
    schema = arrow_schema("telemetry")
    names = [one.uuid for one in record.who]
    order = np.argsort(names)
    rows = np.repeat(order, samples)
    lost = np.array([one.lost for one in chunk]).T[order].ravel()
    columns: dict[str, object] = {
        "ts": np.tile(np.array([one.ts_ns for one in chunk]), n),
        "cluster": pa.repeat(record.cluster, n * samples),
        "gpu": pa.array(names).take(pa.array(rows)),
    }
    for name in chunk[0].values:
        values = np.array([one.values[name] for one in chunk]).T[order].ravel()
        columns[name] = pa.array(values, schema.field(name).type, mask=lost if lost.any() else None)
    return table("telemetry", columns)


def event_rows(record: Record, happened: Sequence[Happening]) -> pa.Table:
    """The rows of `events` of what happened to GPUs."""
    who = record.who
    told = [
        Event(one.kind, who[one.gpu].uuid, one.detail, one.ts_ns, who[one.gpu].host, code=one.code) for one in happened
    ]
    return pa.Table.from_batches([as_rows(told, cluster=record.cluster)])


def short_hash(what: object) -> str:
    """Twelve digits that are the same for the same plain data."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def table(name: str, columns: Mapping[str, object]) -> pa.Table:
    """Rows of a store's table, from some of its columns."""
    schema = arrow_schema(name)
    return pa.table({key: pa.array(values, schema.field(key).type) for key, values in columns.items()})


def _work(load: Load, gpu: int) -> Workload:
    workload = load.workload_of(gpu)
    assert workload is not None, "a load without work has no runs"
    return workload
