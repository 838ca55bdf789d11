"""How often the cause of a slow GPU is right, by kind of fault and size, and how far its parts are from the truth.

    python benchmarks/causes.py > benchmarks/results/causes.json

Fleets of simulated GPUs at their steady state run six probes on three days. Some GPUs are made faulty, each in a way
and a size that `analysis.verdicts.causes` does not know. Their effects, as measured, are explained one by one. A GPU
counts as slow where it is 1 % slower than its peers in some probe. A cause is right if the largest part is the one that
the fault should have. The true part is how much slower the same GPU is with its fault than without. A brake without a
counter has no signs of its own: what it is called is counted and not judged. Shares have 95 % Wilson intervals.

GPUs that are slow in compute at their own clock, among caps that hold clocks apart, are judged besides: they are not to
be called power cap.

The faults are whorl's own, so this says nothing about other ones; where the files of the public cluster lie beside the
clone, its slow GPUs are explained, too.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.runs.probing import CACHE, COMPUTE, LINK, MEMORY, OTHER, Probed, probed
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.judge import judged as judge_runs
from whorl.analysis.verdicts.verdict import Action, Part
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, share
from whorl.benchmarks.verdict_fleets import made
from whorl.simulation.draws import stream
from whorl.simulation.fleet import Fleet, Steady
from whorl.simulation.models import V100
from whorl.simulation.physics import Floats, Silicon
from whorl.simulation.spread import find_population
from whorl.simulation.workloads import IDLE, PAGERANK, SGEMM, STREAM, Workload
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.schema import arrow_schema

LONGHORN = Path(__file__).resolve().parents[2] / "shared" / "data" / "longhorn"
HOT = ("GPU-87570fdd", "GPU-8bd5126e", "GPU-01f6142b", "GPU-8ebc1398")
"""The GPUs of the public cluster that are slow at 80 to 82 degC."""

_OF_RUNS = pl.DataFrame(arrow_schema("runs").empty_table()).schema
DAYS, RUN_S, SLOW = 3, 10.0, 0.01
PROBES = {
    "gemm": (SGEMM, COMPUTE),
    "fma": (Workload("fma", activity=0.62, compute_share=0.97, bandwidth_share=0.02, noise=0.0011), COMPUTE),
    "l2": (Workload("l2", activity=0.35, compute_share=0.96, bandwidth_share=0.05, noise=0.0011), CACHE),
    "stream": (STREAM, MEMORY),
    "pagerank": (PAGERANK, MEMORY),
    "copy": (replace(IDLE, name="copy", noise=0.002, link_share=1.0), LINK),
    "idle": (IDLE, OTHER),
}


@dataclass(frozen=True)
class Fault:
    """What is planted: what it does to a GPU, what the reasons then say, and the cause that should be named."""

    kind: str
    size: str
    cause: str
    change: Callable[[Silicon, int], None]
    """Changes the silicon of one GPU in place."""
    brake: float = 0.0
    """Share of the time in which the brake's counter runs."""
    limit: float = 1.0
    """Factor on the power limit that the driver tells."""
    waits: float = 0.0
    """By how much it is slower as it waits for the host."""


def factor(name: str, by: float) -> Callable[[Silicon, int], None]:
    def change(silicon: Silicon, gpu: int) -> None:
        getattr(silicon, name)[gpu] *= by

    return change


def braked(held: float) -> Callable[[Silicon, int], None]:
    def change(silicon: Silicon, gpu: int) -> None:
        silicon.slowdown_share[gpu] = held

    return change


def nothing(_silicon: Silicon, _gpu: int) -> None:
    return None


def faults() -> Iterator[Fault]:
    for slower in (0.02, 0.03, 0.05, 0.1):
        held = 2 * slower / (1 + slower)
        yield Fault("brake", f"{slower:.0%}", Part.BRAKE, braked(held), brake=held)
        yield Fault("brake without a counter", f"{slower:.0%}", "", braked(held))
        lower = math.exp(-slower / 0.4)
        yield Fault("lower power limit", f"{slower:.0%}", Part.LIMIT, factor("cap_w", lower), limit=lower)
        yield Fault("starved", f"{slower:.0%}", Part.STARVED, nothing, waits=slower)
    for slower in (0.02, 0.03, 0.05, 0.1, 0.6):
        yield Fault("slow memory", f"{slower:.0%}", Part.MEMORY, factor("memory", 1 / (1 + slower)))
        yield Fault("slow link", f"{slower:.0%}", Part.LINK, factor("link", 1 / (1 + slower)))
    for slower in (0.03, 0.1, 0.45):
        yield Fault("clock ceiling", f"{slower:.0%}", Part.PINNED, factor("ceiling_mhz", 1 / (1 + slower)))
    for more in (0.3, 0.6, 1.0):
        yield Fault("poor cooling", f"resistance +{more:.0%}", Part.HEAT, factor("resistance_k_w", 1 + more))


def planted(population: str, gpus: int, seed: int, kinds: list[Fault]) -> tuple[Fleet, Fleet, dict[int, Fault]]:
    """A fleet with faults, the same without, and which GPU has which."""
    well = Fleet.draw(V100, gpus, seed, find_population(population), faults=0)
    places = stream(seed, "causes").permutation(gpus)[: len(kinds)]
    own = {int(gpu): fault for gpu, fault in zip(places, kinds, strict=True)}
    silicon = Silicon(**{name: getattr(well.silicon, name).copy() for name in Silicon.__dataclass_fields__})
    for gpu, fault in own.items():
        fault.change(silicon, gpu)
    return replace(well, silicon=silicon), well, own


def settled(fleet: Fleet, workload: Workload, own: dict[int, Fault], run: int) -> tuple[Steady, Floats]:
    """Where the GPUs settle, and their times over those at the highest clock, with noise."""
    waits = np.zeros(len(fleet))
    for gpu, fault in own.items():
        waits[gpu] = fault.waits
    steady = fleet.steady(workload, run=run)
    # Who waits for the host works for a part of the time only, at the clock that this power allows.
    for much in sorted({fault.waits for fault in own.values() if fault.waits}):
        other = fleet.steady(replace(workload, activity=workload.activity / (1 + much)), run=run)
        where = waits == much
        steady = Steady(*(np.where(where, getattr(other, n), getattr(steady, n)) for n in Steady.__dataclass_fields__))
    noise = np.exp(fleet.noise(workload, f"time of {workload.name}", run))
    return steady, fleet.relative_time(workload, steady) * noise * (1 + waits)


def measured(fleet: Fleet, own: dict[int, Fault]) -> Probed:
    """The runs of all days, as a store would give them."""
    n = len(fleet)
    random = stream(fleet.seed, "causes: sensors")
    names = np.array([f"GPU-{gpu:04d}" for gpu in range(n)])
    limit = np.full(n, V100.power_limit_w)
    for gpu, fault in own.items():
        limit[gpu] *= fault.limit
    frames = []
    for day in range(DAYS):
        today = fleet.on_day(day)
        for place, (name, (workload, stresses)) in enumerate(PROBES.items()):
            steady, times = settled(today, workload, own, day * 10 + place)
            events = [
                ({"power_cap": 0.9 * RUN_S} if steady.reported_power_w[gpu] > 0.98 * limit[gpu] else {})
                | ({"power_brake": own[gpu].brake * RUN_S} if gpu in own and own[gpu].brake else {})
                for gpu in range(n)
            ]
            began = datetime(2026, 3, 2, tzinfo=UTC).replace(tzinfo=None) + timedelta(days=day, minutes=place)
            frames.append(
                pl.DataFrame(
                    {
                        "gpu": names,
                        "slot": pl.Series(np.arange(n) % 4, dtype=pl.Int64),
                        "value": times if name != "idle" else None,
                        "sm_clock_mhz": np.floor(steady.clock_mhz),
                        "temperature_c": np.rint(steady.temperature_c),
                        "power_w": steady.reported_power_w + 0.3 * random.standard_normal(n),
                        "power_limit_w": limit,
                        "clock_events": events,
                    },
                    schema_overrides={"value": pl.Float64, "clock_events": _OF_RUNS["clock_events"]},
                ).with_columns(
                    workload=pl.lit(name), stresses=pl.lit(stresses), began=pl.lit(began),
                    ended=pl.lit(began + timedelta(seconds=RUN_S)),
                )
            )  # fmt: skip
    runs = pl.concat(frames).with_columns(
        node=pl.lit(None, pl.String), cabinet=pl.lit(None, pl.String), model=pl.lit(V100.name), status=pl.lit("ok"),
        conditions=pl.lit(None, _OF_RUNS["conditions"]), mem_clock_mhz=pl.lit(877.0), energy=pl.lit(None, pl.Float64),
        wrong_elements=pl.lit(0.0), status_detail=pl.lit(None, pl.String), run_id=pl.lit("made"),
    )  # fmt: skip
    of = runs.unique("gpu", maintain_order=True).select("gpu", "node", "cabinet", "slot", "model", "power_limit_w")
    known = of.with_columns(
        temperature_max_operating_c=pl.lit(int(V100.max_operating_c)),
        temperature_slowdown_c=pl.lit(int(V100.slowdown_c)),
    )
    kinds: dict[str, Any] = {
        "gpu": pl.String,
        "node": pl.String,
        "kind": pl.String,
        "code": pl.Int64,
        "detail": pl.String,
    }
    return Probed("made", "made", known, runs, pl.DataFrame(schema={"ts": pl.Datetime("us"), **kinds}))


def judged(population: str, gpus: int, seed: int, kinds: list[Fault], cells: dict[str, Any]) -> None:
    """Explain every faulty GPU of a fleet, and count."""
    faulty, well, own = planted(population, gpus, seed, kinds)
    evidence = Evidence.of(measured(faulty, own))
    over = evidence.by_gpu.with_columns(effect=pl.col("time") - pl.col("peers_time"))
    for gpu, fault in own.items():
        cell = cells[f"{fault.kind}, {fault.size}"]
        slow = over.filter((pl.col("gpu") == f"GPU-{gpu:04d}") & (pl.col("effect") >= SLOW))
        if slow.is_empty():
            cell["not slow"] += 1
            continue
        found = evidence.slow(f"GPU-{gpu:04d}", dict(slow.select("workload", "effect").iter_rows()))
        cell["called"][str(found.main)] += 1
        cell["effect"].append(sum(one.pct for one in found.causes))
        if not fault.cause:
            continue
        cell["right"].append(found.main == fault.cause)
        part = next((one for one in found.causes if one.what == fault.cause), None)
        truth = 100 * (_time(faulty, own, found.workload, gpu) / _time(well, {}, found.workload, gpu) - 1)
        cell["off"].append(abs((part.pct if part else 0.0) - truth))
        cell["held"].append(part is not None and (part.low_pct or 0.0) <= truth <= (part.high_pct or 0.0))


def _time(fleet: Fleet, own: dict[int, Fault], probe: str, gpu: int) -> float:
    """The time of a GPU without noise, over that at its highest clock."""
    workload = replace(PROBES[probe][0], noise=0.0)
    return float(np.median([settled(fleet.on_day(day), workload, own, 0)[1][gpu] for day in range(DAYS)]))


def summed(cells: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {
            "cause_right": share(sum(cell["right"]), len(cell["right"])),
            "less_than_1_pct_slower": cell["not slow"],
            "called": dict(cell["called"]),
            "median_effect_pct": _median(cell["effect"]),
            "median_error_of_the_part_pct": _median(cell["off"]),
            "interval_holds_the_truth": share(sum(cell["held"]), len(cell["held"])),
        }
        for name, cell in cells.items()
    }


def _median(values: list[float]) -> float | None:
    return round(float(np.median(values)), 2) if values else None


def at_same_clock(fleets: int, gpus: int) -> dict[str, Any]:
    """How often the judge calls GPUs "power cap" that are slow in compute at the clock that they have.

    The clocks of `gemm` differ by 1.8 %, as caps hold them, and the times at one clock by 0.25 %.
    """
    sizes: dict[str, Any] = {}
    for effect in (0.02, 0.03, 0.05, 0.1):
        called: dict[str, int] = defaultdict(int)
        for population in ("normal", "t5 silicon", "gamma silicon"):
            for number in range(fleets):
                random = np.random.default_rng([38, number, int(1000 * effect), len(population)])
                fleet = made(random, gpus, population, faults=3, fault="compute", effect=effect)
                verdicts = {row.name: row for row in judge_runs(fleet.campaign).rows}
                for gpu in np.flatnonzero(fleet.faulty):
                    verdict = verdicts.get(fleet.names[gpu])
                    light = verdict is not None and verdict.action == Action.GIVE_LIGHTER_WORK
                    called["not found" if verdict is None else Part.CAP if light else verdict.causes[0].what] += 1
        named = sum(called.values()) - called["not found"]
        sizes[f"{effect:.0%}"] = {"called_power_cap": share(called[Part.CAP], named), "called": dict(called)}
    return sizes


def longhorn() -> dict[str, Any] | None:
    """What the hot GPUs of the public cluster are called; None where its files are not there."""
    if not LONGHORN.is_dir():
        return None
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "store")
        import_file(store, LONGHORN / "sgemm.csv.gz", Options(cluster="longhorn"))
        campaign = probed(store, every=True)
    usual = campaign.sound.group_by("gpu").agg(pl.col("value").median(), pl.len())
    over = usual.with_columns(effect=(pl.col("value") / pl.col("value").median()).log()).sort("effect", descending=True)
    evidence = Evidence.of(campaign)
    found = {}
    for gpu, effect, runs in over.head(5).select("gpu", "effect", "len").iter_rows():
        one = evidence.slow(gpu, {"sgemm": effect})
        found[gpu[:12]] = {
            "cause": str(one.main),
            "kind": one.kind.value,
            "runs": runs,
            "measured": [asdict(value) for value in one.measured],
        }
    called = sum(found.get(gpu, {}).get("cause") == Part.HEAT for gpu in HOT)
    return {"hot": len(HOT), "called_heat": called, "the_five_slowest": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=20, help="of each population")
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--populations", default="normal,longhorn,t5-silicon,gamma-silicon,dust")
    given = parser.parse_args()
    start = time.perf_counter()
    kinds = list(faults())
    result: dict[str, Any] = {
        "benchmark": "causes",
        "machine": machine("numpy", "polars"),
        "model": V100.name,
        "gpus": given.gpus,
        "fleets": given.fleets,
        "days": DAYS,
        "populations": {},
    }
    for population in given.populations.split(","):
        cells: dict[str, Any] = defaultdict(
            lambda: {"right": [], "not slow": 0, "called": defaultdict(int), "effect": [], "off": [], "held": []}
        )
        for number in range(given.fleets):
            # Seeds that no test was tuned with.
            judged(population, given.gpus, 7000 + number, kinds, cells)
            say(f"{population}: fleet {number + 1} of {given.fleets}")
        right = [hit for cell in cells.values() for hit in cell["right"]]
        result["populations"][population] = {"all": share(sum(right), len(right)), **summed(cells)}
    result["slow_at_the_same_clock"] = at_same_clock(given.fleets, given.gpus)
    result["longhorn"] = longhorn()
    result["wall_s"] = round(time.perf_counter() - start, 1)
    print(as_json(result))


if __name__ == "__main__":
    main()
