"""What `whorl demo sim` says: a campaign that was simulated, and how a model of GPU is simulated."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from math import inf
from typing import Any

from ...dashboards.document import Column, Command, Document, Facts, Part, Section, Table, TableColumns
from ...dashboards.words import many, number
from ...probes.loads import Stored
from ...simulation import describe
from ...simulation.faults import FAULTS, Fault
from ...simulation.fleet import Fleet
from ...simulation.load import LOADS, Load
from ...simulation.models import PARAMETERS, GpuModel
from ...simulation.spread import POPULATION_SAYS
from ...store.instants import iso

_MOST_LISTED = 12  # planted faults that are printed
_OF_POWER = "select gpu, avg(power_mw) / 1e3 as w from telemetry group by gpu order by w desc limit 5"


def sim_mapping(stored: Stored, fleet: Fleet, load: Load) -> dict[str, Any]:
    """`whorl.sim.run/1`."""
    return {
        "schema": "whorl.sim.run/1",
        "campaign": stored.campaign,
        "cluster": stored.cluster,
        "model": fleet.model.name,
        "gpus": stored.gpus,
        "seed": fleet.seed,
        "load": load.name,
        "began": iso(stored.began_ns),
        "ended": iso(stored.ended_ns),
        "rows": stored.rows,
        "stored_before": stored.before,
        "planted": [
            {"gpu": fault.uuid}
            | {name: getattr(fault, name) for name in ("place", "kind", "size_pct")}
            | {"began": _time(fault.began_ns), "ended": _time(fault.ended_ns)}
            for fault in stored.planted
        ],
    }


def _time(ns: int | None) -> str | None:
    return None if ns is None else iso(ns)


def sim_document(stored: Stored, fleet: Fleet, load: Load, load_name: str, *, store: str) -> Document:
    """What was simulated, planted and stored, and what to do next. `load_name`: as the load was called."""
    return Document(f"Campaign {stored.campaign}", list(_sim_parts(stored, fleet, load, load_name, store=store)))


def _sim_parts(stored: Stored, fleet: Fleet, load: Load, load_name: str, *, store: str) -> Iterator[Part]:
    yield (
        f"simulated {stored.gpus:,} {fleet.model.name} GPUs of seed {fleet.seed} under load {load_name}, "
        f"{iso(stored.began_ns)} to {iso(stored.ended_ns)}: campaign {stored.campaign}"
    )
    for fault in stored.planted[:_MOST_LISTED]:
        period = "" if fault.began_ns is None else f", from {iso(fault.began_ns)}"
        period += "" if fault.ended_ns is None else f" to {iso(fault.ended_ns)}"
        yield f"planted {fault.label}: {fault.name} ({fault.uuid}){period}"
    if len(stored.planted) > _MOST_LISTED:
        yield f"planted {len(stored.planted) - _MOST_LISTED:,} more: they are in the table `truth`"
    if not stored.planted:
        yield "planted nothing: every GPU is healthy"
    written = ", ".join(f"{many(rows, 'row')} of {table}" for table, rows in sorted(stored.rows.items()))
    if written:
        yield f"stored in {store}: {written}" + ("; the rest was there before" if stored.before else "")
    else:
        yield f"all of it was in {store} before; nothing was stored"
    if stored.measured:
        yield Command(f"next: whorl verdicts variability --store {shlex.quote(store)}")
        return
    ends_s = load.first_run_ends_s
    why = f"the first one would end after {ends_s:g} s" if ends_s < inf else "no turn is measured"
    yield f"no runs: under load {load_name} {why}"
    yield Command(f'next: whorl sql --store {shlex.quote(store)} "{_OF_POWER}"')


def describe_mapping(model: GpuModel) -> dict[str, Any]:
    """`whorl.sim.describe/1`."""
    return {
        "schema": "whorl.sim.describe/1",
        "model": model.name,
        "version": PARAMETERS,
        "parameters": [vars(row) for row in describe.parameters(model)],
        "sensors": describe.sensors(model),
        "sgemm": describe.steady_point(model),
        "faults": [{"kind": row.kind, "share": row.share, "says": row.says, **describe.sizes(row)} for row in FAULTS],
        "populations": [{"name": name, "says": says} for name, says in POPULATION_SAYS.items()],
        "loads": [{"name": load.name, "says": load.says} for load in LOADS.values()],
    }


def describe_document(model: GpuModel) -> Document:
    """How a model is simulated: parameters, sensors, steady state, faults, populations, loads."""
    point = describe.steady_point(model)
    columns: TableColumns = [
        ("parameter", "name"),
        (Column("value", "number"), lambda row: f"{row.value:g}"),
        ("unit", "unit"),
        ("basis", "basis"),
        (Column("meaning", "sentence"), "meaning"),
    ]
    title = f"{model.name}, simulated (parameter set {PARAMETERS})"
    parts: list[Part] = [
        f"{title}: no number here is a measurement",
        Table.of(describe.parameters(model), columns),
        Section("Sensors", describe.sensors(model)),
        f"sgemm at steady state: {number(point['sm_clock_mhz'])} MHz (sd {number(point['sm_clock_sd_mhz'], 3)}), "
        f"{number(point['power_w'])} W, {number(point['temperature_c'], 3)} degC; time spread (fence) "
        f"{number(point['time_fence_pct'], 2)} %; idle {number(point['idle_power_w'], 3)} W",
        Facts([(fault.kind, _fault_text(fault)) for fault in FAULTS], "Faults that can be planted"),
        Facts(list(POPULATION_SAYS.items()), "Populations of healthy GPUs"),
        Facts([(load.name, load.says) for load in LOADS.values()], "Loads (gemm-fp32 and gemm mean sgemm)"),
    ]
    return Document(title, parts)


def _fault_text(fault: Fault) -> str:
    if fault.size is None:
        return fault.says
    usual = f"usual {100 * fault.size:.3g} %, from {100 * fault.least:g} to {100 * fault.most:g} %"
    return f"{fault.says} Size: {fault.size_says}; {usual}"
