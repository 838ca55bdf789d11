"""Campaigns of a load over a simulated fleet. Each turn of the load is a run on every GPU.

`run_load` steps the fleet through hours and stores what its drivers report on the way. `run_steady` is the fast way
for fleets and spans that are too large to step through: runs at the steady state, without telemetry. Both are recorded
as probes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from .. import __version__
from ..collectors.claim import Claim, Planted, claim, fleet_of, own_cluster
from ..collectors.recording import short_hash
from ..errors import InputError
from ..kernels.simulated_device import VERSIONS
from ..simulation.bench import DAY_NS, Bench
from ..simulation.campaigns import factors, unit, unit_ms
from ..simulation.draws import Floats, stream
from ..simulation.faults import onsets
from ..simulation.fleet import Fleet
from ..simulation.load import Load
from ..simulation.models import PARAMETERS, GpuModel
from ..simulation.spread import USUAL
from ..store import Store
from ..store.vocabulary import ClockSetting, EndedBy, Outcome
from .figures import Figure
from .recording import Recorder, Run
from .simulated import Claimed, recorder_of
from .watch import Recent, Window

STEADY_REPEATS = 5
STEADY_UNITS = 100
"""Units of work in a run of the steady state."""
MOST_STEADY_S = 100 * 366 * 86_400
"""How long the runs of the steady state may go on: a century."""
SLOWEST = 2.0
"""Every simulated GPU takes less than this many times as long as one at its highest clock."""
_POWER_SD_SHARE = 0.001  # of the median reported power of a run, as a share of the power limit
_VERSION = f"simulated {PARAMETERS}"

Progress = Callable[[float], None]
"""It is called with the share of the work that is done."""


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
    """Whether it has a run: it must be long enough, and its load must have turns that are measured."""


def run_load(
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
    """Step a fleet through some hours under a load, and store what it reports every `interval_s`.

    Each of the load's turns becomes a run. Without `cluster` the fleet is a cluster of its own; without `began_ns`
    the campaign begins on the day after the fleet's last one in the store. The same arguments give the same campaign:
    if it was interrupted, it goes on where it stopped. InputError for a span or an interval that cannot be simulated,
    and if the store holds another campaign of these GPUs at that time.
    """
    refuse_time(hours, interval_s)
    arguments = {"hours": hours, "interval_s": interval_s}
    claimed = _claim(store, fleet, load, cluster, began_ns, hours * 3600, arguments)
    keeping = Claimed(claimed, progress=progress)
    if not claimed.complete:
        _Turns(claimed, load, keeping, interval_s).run()
    return _stored(claimed, keeping.recorder, measured=load.first_run_ends_s <= claimed.span_s + 1e-6)


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

    Temperatures and times differ from day to day, and drifting GPUs age. Faults that set in do so within all the
    runs' time. InputError for numbers that cannot be simulated, a load without work, and where the store holds
    another campaign of these GPUs at that time.
    """
    refuse_steady(fleet.model, load, runs, every_s)
    arguments = {"runs": runs, "every_s": every_s, "steady": 1}
    claimed = _claim(store, fleet, load, cluster, began_ns, runs * every_s, arguments)
    recorder = recorder_of(claimed)
    for run in range(runs):
        at_ns, next_ns = (claimed.began_ns + round(number * every_s * 1e9) for number in (run, run + 1))
        if at_ns >= claimed.stored_to_ns:
            for steady_run in _steady_runs(claimed, load, run, at_ns):
                recorder.run(steady_run)
            recorder.take("campaigns", claimed.progress(next_ns))
            recorder.flush(claimed.file_name(next_ns))
            claimed.stored_to_ns = next_ns
        if progress:
            progress((run + 1) / runs)
    return _stored(claimed, recorder, measured=True)


def refuse_time(hours: float, interval_s: float) -> None:
    """InputError for a span or an interval that `run_load` cannot simulate."""
    if not 0 < hours <= 24 * 366:
        raise InputError(f"between 0 and {24 * 366} hours can be simulated in time, not {hours:g}")
    if not 0.02 <= interval_s <= 3600 * hours:
        raise InputError(
            f"the interval between readings must be from 0.02 s, the simulation's step, to the {3600 * hours:g} s "
            f"of the campaign, not {interval_s:g} s"
        )


def refuse_steady(model: GpuModel, load: Load, runs: int, every_s: float) -> None:
    """InputError for what `run_steady` cannot simulate: the slowest GPU must end a run before the next begins."""
    if not load.workloads:
        raise InputError(f"the load {load.name!r} has no work whose steady state could be run: choose another")
    longest_s = SLOWEST * STEADY_UNITS * max(unit_ms(workload, model) for workload in load.workloads) / 1000
    if runs < 1:
        raise InputError(f"a campaign must have at least one run, not {runs}")
    if not longest_s <= every_s <= 366 * 86_400:
        raise InputError(
            f"load {load.name} on {model.name}: the time from one run to the next must be from {ceil(longest_s)} s "
            f"(the slowest GPU then has ended its run) to a year, not {every_s:g} s"
        )
    if runs * every_s > MOST_STEADY_S:
        raise InputError(
            f"{runs} runs every {every_s:g} s take more than a century: choose fewer or more frequent ones"
        )


# -- what both ways share -------------------------------------------------------------------------------------


def _claim(
    store: Store,
    fleet: Fleet,
    load: Load,
    cluster: str | None,
    began_ns: int | None,
    span_s: float,
    arguments: dict[str, float],
) -> Claim:
    """The claim of a campaign that is named after its arguments: the same arguments give the same campaign."""
    cluster = cluster or own_cluster(fleet)
    kinds = {str(gpu): kind for gpu, kind in fleet.named.items()}
    everything = {"gpus": len(fleet), "faults": kinds, "load": repr(load), "began": began_ns}
    everything |= arguments | {"kin": fleet_of(fleet, cluster), "parameters": PARAMETERS}
    asked = {"load": load.name, "gpus": len(fleet), "faults": sorted(kinds.values()), "began": began_ns}
    if fleet.population != USUAL:
        asked["population"] = fleet.population
    return claim(
        store,
        fleet,
        f"sim-{short_hash(everything)[:12]}",
        asked | arguments,
        span_s=span_s,
        cluster=cluster,
        began_ns=began_ns,
    )


def _stored(claimed: Claim, recorder: Recorder, *, measured: bool) -> Stored:
    rows = Counter(claimed.rows)
    rows.update(recorder.rows)
    return Stored(
        campaign=claimed.campaign,
        cluster=claimed.cluster,
        began_ns=claimed.began_ns,
        ended_ns=claimed.ended_ns,
        gpus=len(claimed.fleet),
        planted=claimed.planted,
        rows=dict(rows),
        before=claimed.before,
        measured=measured,
    )


def _number(claimed: Claim, run: int) -> int:
    """A number for the random draws of a run; no run of another campaign has the same number."""
    return int(claimed.campaign.removeprefix("sim-"), 16) + run


class _Results(NamedTuple):
    """What a run on a GPU came to: of each repeat its time, how many elements were wrong, and its telemetry."""

    times_ms: Sequence[float]
    wrong: int
    window: Window


def _run(
    claimed: Claim, load: Load, gpu: int, span_ns: tuple[int, int], results: _Results | None, **conditions: object
) -> Run:
    """A run on a GPU from one time to another (UTC ns); without results the GPU was lost."""
    workload = load.workload_of(gpu)
    assert workload is not None, "a load without work has no runs"
    figures, window, status, detail = list[Figure](), Window(), Outcome.LOST, "the GPU was lost"
    if results is not None:
        wrong, window = results.wrong, results.window
        figures = [Figure("time", "ms", time_ms, repeat) for repeat, time_ms in enumerate(results.times_ms)]
        figures.append(Figure("wrong_elements", "elements", wrong))
        status, detail = Outcome.WRONG_RESULT if wrong else Outcome.OK, f"{wrong} elements of the result are wrong"
    return Run(
        gpu=claimed.who[gpu].uuid,
        probe=workload.name,
        version=_VERSION,
        began_ns=span_ns[0],
        ended_ns=span_ns[1],
        window=window,
        figures=figures,
        conditions={
            "load": load.name,
            "unit": unit(workload),
            "seed": claimed.fleet.seed,
            "power_limit_w": claimed.fleet.model.power_limit_w,
            "clock": ClockSetting.FREE,
            "neighbours": "busy",
            "simulated": True,
            **conditions,
        },
        versions=VERSIONS | {"whorl": __version__},
        ended_by=EndedBy.COMPLETE,
        status=status,
        status_detail=None if status is Outcome.OK else detail,
    )


# -- in time --------------------------------------------------------------------------------------------------


class _Turns:
    """A campaign in time: a coroutine for each GPU watches the load's turns on it, and records them as runs."""

    def __init__(self, claimed: Claim, load: Load, keeping: Claimed, interval_s: float) -> None:
        fleet = claimed.fleet
        self._claimed, self._load, self._keeping, self._interval_s = claimed, load, keeping, interval_s
        self._bench = Bench(fleet, load, began_ns=claimed.began_ns, span_s=claimed.span_s, age_days=claimed.age_days)
        if load.repeats:
            seconds = load.busy_s - load.warm_up_s + 2 * interval_s
            keeping.watch = Recent([identity.uuid for identity in claimed.who], seconds=seconds, interval_s=interval_s)
        # The noise and the wrong results of a turn are drawn for the whole fleet at once.
        self._factors = lru_cache(8)(
            lambda turn: factors(self._bench.fleet, load, _number(claimed, turn), load.repeats)
        )
        self._wrong = lru_cache(8)(lambda turn: fleet.wrong_elements(run=_number(claimed, turn)))

    def run(self) -> None:
        starts_s = self._load.starts_s(len(self._claimed.fleet)).tolist()
        work = [self._on(gpu, start_s) for gpu, start_s in enumerate(starts_s)]
        self._keeping.run(self._bench, [*work, self._bench.until(self._claimed.ended_ns)], every_s=self._interval_s)

    async def _on(self, gpu: int, start_s: float) -> None:
        """Watch every turn on one GPU that ends within the campaign."""
        load, bench = self._load, self._bench
        for turn in range(load.turns(start_s, self._claimed.span_s)):
            measured_s = start_s + turn * load.period_s + load.warm_up_s
            worked_s = []
            for part in range(load.repeats + 1):
                at_ns = bench.began_ns + round((measured_s + part * load.repeat_s) * 1e9)
                await bench.until(at_ns)
                worked_s.append(bench.worked_s(gpu))
            began_ns = at_ns - round(load.busy_s * 1e9)
            results = None if bench.away(gpu, began_ns, at_ns) else self._results(gpu, turn, at_ns, np.diff(worked_s))
            readings = 0 if results is None else results.window.readings
            times = {"warm_up_s": load.warm_up_s, "repeat_s": load.repeat_s, "readings": readings}
            run = _run(self._claimed, load, gpu, (began_ns, at_ns), results, repeats=load.repeats, **times)
            self._keeping.recorder.run(run)

    def _results(self, gpu: int, turn: int, ended_ns: int, done_s: Floats) -> _Results:
        """What a turn came to, of which the work that was done in each part is known."""
        load, window = self._load, Window()
        with np.errstate(divide="ignore"):
            times_ms = load.repeat_s / done_s * self._factors(turn)[:, gpu]
        if self._keeping.watch:
            # A reading at the instant at which measuring begins is about the time before it.
            began_ns = ended_ns - round(load.busy_s * 1e9) + round(load.warm_up_s * 1e9) + 1
            window = self._keeping.watch.window(self._claimed.who[gpu].uuid, began_ns, ended_ns)
        return _Results(times_ms.tolist(), int(self._wrong(turn)[gpu]), window)


# -- at steady state ------------------------------------------------------------------------------------------


def _steady_runs(claimed: Claim, load: Load, run: int, at_ns: int) -> Iterator[Run]:
    n, model, number = len(claimed.fleet), claimed.fleet.model, _number(claimed, run)
    random = stream(claimed.fleet.seed, "power", number)
    age_days = claimed.age_days + (at_ns - claimed.began_ns) / 86_400e9
    fleet = claimed.fleet.aged(age_days).on_day(at_ns // DAY_NS).throttled(number)
    workloads = [load.workload_of(gpu) for gpu in range(n)]
    relative, clock, temperature, power = (np.empty(n) for _ in range(4))
    for workload in dict.fromkeys(load.workloads):
        some = np.array([gpu for gpu in range(n) if workloads[gpu] is workload], dtype=np.intp)
        steady = fleet.steady(workload)
        relative[some] = fleet.relative_time(workload, steady)[some]
        clock[some] = np.floor(steady.clock_mhz[some])
        temperature[some] = np.rint(steady.temperature_c[some])
        power[some] = steady.reported_power_w[some]
    power += _POWER_SD_SHARE * model.power_limit_w * random.standard_normal(n)
    onset, end = onsets(fleet.fault, fleet.seed, claimed.span_s)
    since_s = (at_ns - claimed.began_ns) / 1e9
    faults = [fleet.fault_of(gpu) for gpu in range(n)]
    stuck = np.array([fault.sticks for fault in faults]) & (onset <= since_s)
    power[stuck] = fleet.idle().reported_power_w[stuck]  # frozen between two runs
    power[np.array([fault.blind for fault in faults])] = 0.0
    absent = np.array([fault.falls for fault in faults]) & (onset <= since_s) & (since_s < end)
    times = relative * factors(fleet, load, number, STEADY_REPEATS)
    ended_ns = at_ns + np.rint(STEADY_UNITS * 1e6 * times.mean(axis=0)).astype(np.int64)
    columns = (clock, temperature, power, fleet.wrong_elements(run=number), ended_ns, absent)
    of_each = zip(*(column.tolist() for column in columns), times.T.tolist(), strict=True)
    conditions = {"repeats": STEADY_REPEATS, "steady_state": True, "units": STEADY_UNITS}
    for gpu, (clock_mhz, temperature_c, power_w, wrong, end_ns, is_absent, times_ms) in enumerate(of_each):
        window = Window(
            sm_clock_mhz=clock_mhz,
            mem_clock_mhz=float(model.memory_clock_mhz),
            temperature_c=temperature_c,
            power_w=power_w,
        )
        results = None if is_absent else _Results(times_ms, wrong, window)
        yield _run(claimed, load, gpu, (at_ns, end_ns), results, **conditions)
