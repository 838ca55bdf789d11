"""A campaign over a simulated fleet, stored as a real one would be: gpus, runs, results, telemetry and events.

`run_in_time` steps the fleet through hours and stores what its drivers report on the way; `run_steady` stores runs
of the steady state alone, for fleets and spans that are too large to step through. What was planted goes to the
table `truth`, which no analysis reads.

A campaign that was interrupted goes on where it was when it is run again with the same arguments, and stores
nothing twice: what a chunk of simulated time holds appears at once or not at all (`simulated_record`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError
from ..simulation.draws import stream
from ..simulation.faults import onsets
from ..simulation.fleet import Fleet
from ..simulation.load import Load
from ..simulation.models import GpuModel
from ..simulation.physics import Floats
from ..simulation.stepping import Happening, Readings, Simulation
from ..simulation.turns import Stop, factors, first_run_ends_s, stops, unit_ms, unit_times_ms
from ..store import Store
from ..store.events import EventKind
from .simulated_record import Record, identify
from .simulated_rows import Planted, event_rows, run_rows, telemetry_rows

CHUNK_S = 600.0
CHUNK_ROWS = 500_000
STEADY_REPEATS = 5
STEADY_UNITS = 100
"""Units of work in a run of the steady state."""
MOST_STEADY_S = 100 * 366 * 86_400
"""How long the runs of the steady state may go on: a century."""
SLOWEST = 2.0
"""No simulated GPU takes that many times as long as one at its highest clock."""
ROOM_SD_K = 0.8
"""How much the machine room's temperature moves from run to run of the steady state (standard deviation)."""

_POWER_SD_SHARE = 0.001  # of the median reported power of a run, as a share of the power limit
_MEDIANS = ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_mw")

Progress = Callable[[float], None]
"""Is told the share of the work that is done."""


@dataclass(frozen=True)
class Stored:
    """What a campaign stored, or had stored before."""

    campaign: str
    cluster: str
    began_ns: int
    ended_ns: int
    gpus: int
    planted: tuple[Planted, ...]
    rows: dict[str, int]
    """Rows written now, by table."""
    before: bool
    """Whether all or part of it was in the store already."""
    measured: bool
    """Whether there is a run in it: in time it must be long enough, and its load have turns that are measured."""


def run_in_time(
    store: Store,
    fleet: Fleet,
    load: Load,
    *,
    hours: float,
    interval_s: float = 1.0,
    cluster: str | None = None,
    began_ns: int | None = None,
    progress: Progress | None = None,
) -> Stored:
    """Step a fleet through so many hours under a load, and store what it reports every `interval_s`.

    Each of the load's turns becomes a run. Without `cluster` the fleet is a cluster of its own; without `began_ns`
    the campaign begins on the day after the fleet's last one in the store. Telemetry is stored in chunks of ten
    simulated minutes, or of half a million rows. InputError for a span or an interval that cannot be simulated, and
    where the store holds another campaign of these GPUs at that time.
    """
    refuse_time(hours, interval_s)
    arguments = {"hours": hours, "interval_s": interval_s}
    record = identify(store, fleet, load, cluster, began_ns, hours * 3600, arguments)
    if record.stored_to_ns < record.ended_ns:
        _step_through(record, interval_s, progress)
    return _stored(record, measured=first_run_ends_s(load) <= record.span_s + 1e-6)


def run_steady(
    store: Store,
    fleet: Fleet,
    load: Load,
    *,
    runs: int = 1,
    every_s: float = 86_400.0,
    cluster: str | None = None,
    began_ns: int | None = None,
    progress: Progress | None = None,
) -> Stored:
    """Store runs of the steady state under a load, one on every GPU every `every_s`: no telemetry.

    The room's temperature differs from run to run, and drifting GPUs age. Faults that set in do so within all the
    runs' time. InputError for numbers that cannot be simulated, a load without work, and where the store holds
    another campaign of these GPUs at that time.
    """
    refuse_steady(fleet.model, load, runs, every_s)
    arguments = {"runs": runs, "every_s": every_s, "steady": 1}
    record = identify(store, fleet, load, cluster, began_ns, runs * every_s, arguments)
    for run in range(runs):
        at_ns, next_ns = (record.began_ns + round(number * every_s * 1e9) for number in (run, run + 1))
        if at_ns >= record.stored_to_ns:
            record.append(_steady_run(record, run, at_ns), next_ns)
        if progress:
            progress((run + 1) / runs)
    return _stored(record, measured=True)


def refuse_time(hours: float, interval_s: float) -> None:
    """InputError for a span or an interval that `run_in_time` cannot simulate."""
    if not 0 < hours <= 24 * 366:
        raise InputError(f"between 0 and {24 * 366} hours can be simulated in time, not {hours:g}")
    if not 0.02 <= interval_s <= 3600 * hours:
        raise InputError(
            f"the interval between readings must be from 0.02 s, the simulation's step, to the {3600 * hours:g} s "
            f"of the campaign, not {interval_s:g} s"
        )


def refuse_steady(model: GpuModel, load: Load, runs: int, every_s: float) -> None:
    """InputError for what `run_steady` cannot simulate: the slowest GPU is to end a run before the next begins."""
    if not load.workloads:
        raise InputError(f"the load {load.name!r} has no work whose steady state could be run: choose another")
    longest_s = SLOWEST * STEADY_UNITS * max(unit_ms(workload, model) for workload in load.workloads) / 1000
    if runs < 1:
        raise InputError(f"a campaign has at least one run, not {runs}")
    if not longest_s <= every_s <= 366 * 86_400:
        raise InputError(
            f"under load {load.name} on {model.name} a run can follow the last one after {ceil(longest_s)} s, when "
            f"the slowest GPU has ended it, to a year, not after {every_s:g} s"
        )
    if runs * every_s > MOST_STEADY_S:
        raise InputError(
            f"{runs} runs every {every_s:g} s take more than a century: choose fewer or more frequent ones"
        )


def _stored(record: Record, *, measured: bool) -> Stored:
    return Stored(
        campaign=record.campaign,
        cluster=record.cluster,
        began_ns=record.began_ns,
        ended_ns=record.ended_ns,
        gpus=len(record.fleet),
        planted=record.planted,
        rows=record.rows,
        before=record.before,
        measured=measured,
    )


# -- in time --------------------------------------------------------------------------------------------------


def _step_through(record: Record, interval_s: float, progress: Progress | None) -> None:
    """Step through the whole campaign, and store the chunks that are not stored yet."""
    began_ns = record.began_ns
    simulation = Simulation(
        record.fleet, record.load, began_ns=began_ns, span_s=record.span_s, age_days=record.age_days(began_ns)
    )
    samples = floor(record.span_s / interval_s + 1e-9)
    per_chunk = max(1, min(round(CHUNK_S / interval_s), CHUNK_ROWS // len(record.fleet)))
    runs = _Runs(record, simulation)
    chunk: list[Readings] = []
    for sample in range(1, samples + 1):
        at_ns = began_ns + round(sample * interval_s * 1e9)
        # A run that ends at this instant counts this reading.
        runs.advance(at_ns - 1)
        simulation.advance(at_ns)
        readings = _at(simulation.readings(), at_ns)
        runs.read(readings)
        chunk.append(readings)
        if len(chunk) < per_chunk and sample < samples:
            continue
        to_ns = at_ns if sample < samples else record.ended_ns
        runs.advance(to_ns)
        tables = runs.tables()
        if to_ns > record.stored_to_ns:
            record.append({"telemetry": telemetry_rows(record, chunk)} | tables, to_ns)
        chunk = []
        if progress:
            progress(sample / samples)


def _at(readings: Readings, ts_ns: int) -> Readings:
    """What was reported at the last control step, as a reader sees it that asks a little later."""
    age_us = readings.values["power_age_us"] + (ts_ns - readings.ts_ns) // 1000
    return replace(readings, ts_ns=ts_ns, values=readings.values | {"power_age_us": age_us})


class _Runs:
    """The runs and events of a campaign in time, gathered while its simulation advances."""

    def __init__(self, record: Record, simulation: Simulation) -> None:
        self._record, self._simulation = record, simulation
        self._stops = stops(record.load, len(record.fleet), record.span_s)
        self._next = next(self._stops, None)
        self._worked: dict[tuple[int, int], list[Floats]] = {}
        self._seen: deque[tuple[int, dict[str, NDArray[np.int32]]]] = deque()
        self._downs: list[Happening] = []
        self._runs: list[pa.Table] = []
        self._results: list[pa.Table] = []
        self._events: list[Happening] = []

    def advance(self, to_ns: int) -> None:
        """Advance the simulation, and look at the work done wherever a measured part begins or ends."""
        began_ns = self._record.began_ns
        while self._next is not None and (at_ns := began_ns + round(self._next.at_s * 1e9)) <= to_ns:
            self._simulation.advance(at_ns)
            self._look(self._next, at_ns)
            self._next = next(self._stops, None)
        self._simulation.advance(to_ns)
        self._listen()

    def read(self, readings: Readings) -> None:
        """Keep a reading for the medians of the runs that are under way."""
        if self._record.load.repeats:
            self._seen.append((readings.ts_ns, {name: readings.values[name].astype(np.int32) for name in _MEDIANS}))
            while self._seen[0][0] < readings.ts_ns - round(self._record.load.busy_s * 1e9):
                self._seen.popleft()

    def tables(self) -> dict[str, pa.Table]:
        """The rows of `runs`, `results` and `events` since the last call."""
        tables = {}
        if self._runs:
            tables = {"runs": pa.concat_tables(self._runs), "results": pa.concat_tables(self._results)}
        if self._events:
            tables["events"] = event_rows(self._record, self._events)
        self._runs, self._results, self._events = [], [], []
        return tables

    def _listen(self) -> None:
        for one in self._simulation.happened():
            self._events.append(one)
            if one.kind in ("lost", "returned"):
                self._downs.append(one)
            if one.kind == "returned":  # as a collector would notice
                self._events.append(replace(one, kind=EventKind.COUNTER_RESET, detail="all counters fell to 0"))

    def _look(self, stop: Stop, at_ns: int) -> None:
        """Note the work done by a stop; the last one of a turn ends a run."""
        record, load = self._record, self._record.load
        key = (stop.turn, int(stop.gpus[0]))
        self._worked.setdefault(key, []).append(self._simulation.worked_s[stop.gpus])
        if stop.part < load.repeats:
            return
        worked = np.array(self._worked.pop(key))
        times = unit_times_ms(record.fleet, load, stop, worked, record.number(stop.turn))
        began_ns = at_ns - round(load.busy_s * 1e9)
        measured_from = began_ns + round(load.warm_up_s * 1e9)
        seen = [values for ts_ns, values in self._seen if measured_from < ts_ns <= at_ns]
        medians = {
            name: np.median([values[name][stop.gpus] for values in seen], axis=0) if seen else None for name in _MEDIANS
        }
        self._listen()
        absent = self._absent(began_ns, at_ns)[stop.gpus]
        conditions = {"warm_up_s": load.warm_up_s, "repeat_s": load.repeat_s}
        runs, results = run_rows(record, stop.turn, stop.gpus, (began_ns, at_ns), times, medians, conditions, absent)
        self._runs.append(runs)
        self._results.append(results)

    def _absent(self, began_ns: int, ended_ns: int) -> NDArray[np.bool_]:
        """Which GPUs were lost at any time of a run."""
        absent = np.zeros(len(self._record.fleet), dtype=np.bool_)
        for one in self._downs:
            if one.kind == "lost" and one.ts_ns < ended_ns:
                back = [other.ts_ns for other in self._downs if other.gpu == one.gpu and other.ts_ns > one.ts_ns]
                absent[one.gpu] |= not back or min(back) > began_ns
        return absent


# -- at steady state ------------------------------------------------------------------------------------------


def _steady_run(record: Record, run: int, at_ns: int) -> dict[str, pa.Table]:
    """The rows of one run on every GPU at steady state."""
    load, n, model = record.load, len(record.fleet), record.fleet.model
    random = stream(record.fleet.seed, "room and power", record.number(run))
    fleet = record.fleet.aged(record.age_days(at_ns)).warmed(ROOM_SD_K * random.standard_normal())
    relative, clock, temperature, power = (np.empty(n) for _ in range(4))
    for workload in dict.fromkeys(load.workloads):
        some = np.array([gpu for gpu in range(n) if load.workload_of(gpu) is workload], dtype=np.intp)
        steady = fleet.steady(workload)
        relative[some] = fleet.relative_time(workload, steady)[some]
        clock[some] = np.floor(steady.clock_mhz[some])
        temperature[some] = np.rint(steady.temperature_c[some])
        power[some] = steady.reported_power_w[some]
    power += _POWER_SD_SHARE * model.power_limit_w * random.standard_normal(n)
    onset, end = onsets(fleet.fault, fleet.seed, record.span_s)
    since_s = (at_ns - record.began_ns) / 1e9
    faults = [fleet.fault_of(gpu) for gpu in range(n)]
    stuck = np.array([fault.sticks for fault in faults]) & (onset <= since_s)
    power[stuck] = fleet.idle().reported_power_w[stuck]  # frozen between two runs
    absent = np.array([fault.falls for fault in faults]) & (onset <= since_s) & (since_s < end)
    times = relative * factors(fleet, load, record.number(run), STEADY_REPEATS)
    medians: dict[str, Floats | None] = {
        "sm_clock_mhz": clock,
        "mem_clock_mhz": np.full(n, model.memory_clock_mhz),
        "temperature_c": temperature,
        "power_mw": 1000 * power,
    }
    window = (at_ns, at_ns + np.rint(STEADY_UNITS * 1e6 * times.mean(axis=0)).astype(np.int64))
    conditions = {"steady_state": True, "units": STEADY_UNITS}
    runs, results = run_rows(record, run, np.arange(n), window, times, medians, conditions, absent)
    return {"runs": runs, "results": results}
