"""Many replays: traces, policies, schedulers and seeds crossed, in several processes where that pays.

What comes out depends on the cases alone, never on how many processes ran them. Within a seed every policy meets the
same fleet, the same failures and the same random numbers, so that differences are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np

from ...errors import InputError
from . import failures
from .engine import replay
from .fleet import Fleet, Floats
from .job import Trace
from .options import Options
from .outcome import Metrics, Outcome
from .profiles import Profiles
from .published import pal_sc24, published_fleet
from .resampling import resampled
from .workers import answers

_PAYS_S = 3.0  # of work left, from which starting further processes is worth it
_FAILURES, _JOBS = 3, 5  # words of the random numbers that failures and jobs are drawn with


@dataclass(frozen=True)
class Case:
    """One replay to be run: which trace (its place), policy, scheduler and seed."""

    trace: int
    policy: str
    scheduler: str
    seed: int
    record: bool = False
    """Keep the outcome whole, with its spans and series, for drawing."""
    resampled: bool = False
    """The jobs are drawn again from the trace's, by the seed."""
    flat: bool = False
    """The policy is shown 1 for every score: its control."""


@dataclass(frozen=True)
class Replayed:
    """What a case gave."""

    case: Case
    trace: str
    metrics: Metrics
    jct_s: Floats
    wall_s: float
    notes: tuple[str, ...] = ()
    outcome: Outcome | None = None
    """Of recorded cases."""
    fleet: Fleet | None = None
    """Of recorded cases."""

    def row(self) -> dict[str, object]:
        """The row of `whorl.replay/1`."""
        of = self.metrics
        return {
            "trace": self.trace,
            "policy": self.case.policy,
            "scheduler": self.case.scheduler,
            "seed": self.case.seed,
            "jobs": of.jobs,
            "avg_jct_s": of.avg_jct_s,
            "median_jct_s": of.median_jct_s,
            "p99_jct_s": of.p99_jct_s,
            "makespan_s": of.makespan_s,
            "end_s": of.end_s,
            "util_held": of.util_held,
            "energy_j": of.energy_j,
            "wall_s": self.wall_s,
        }


class Fleets(Protocol):
    """A fleet for every seed."""

    def draw(self, seed: int) -> Fleet: ...


class Study(Protocol):
    """What the cases have in common; it goes to other processes, so it can be pickled."""

    @property
    def traces(self) -> Sequence[object]: ...

    def informed(self, seeds: Sequence[int]) -> bool:
        """Whether policies see any difference between GPUs."""
        ...

    def run(self, case: Case) -> Replayed: ...


@dataclass(frozen=True)
class General:
    """Traces on fleets that differ from seed to seed."""

    traces: tuple[Trace, ...]
    fleets: Fleets
    options: Options
    mtbf_h: float | None = None
    """Mean time between failures of a node; None for none but those of `options`."""
    repair_h: float = 24.0

    def informed(self, seeds: Sequence[int]) -> bool:
        """Whether policies see any difference between GPUs."""
        return any(np.ptp(scores) > 0 for seed in seeds for scores in self.fleets.draw(seed).belief.values())

    def run(self, case: Case) -> Replayed:
        trace = _jobs_of(case, self.traces)
        fleet = self.fleets.draw(case.seed)
        fleet = fleet.flat() if case.flat else fleet
        options = replace(self.options, record=case.record)
        if self.mtbf_h is not None:
            options = replace(options, failures=(*options.failures, *self._failures(trace, fleet, case.seed)))
        outcome = replay(trace, fleet, case.policy, case.scheduler, options=options, seed=case.seed)
        outcome = replace(outcome, notes=tuple(note for note in outcome.notes if note not in trace.notes))
        return _replayed(case, outcome, outcome.metrics(), fleet)

    def _failures(self, trace: Trace, fleet: Fleet, seed: int) -> tuple[failures.Failure, ...]:
        """Failures until long after the last job can have ended, were there none."""
        assert self.mtbf_h is not None
        slowest = fleet.locality * max((float(scores.max()) for scores in fleet.actual.values()), default=1.0)
        work = sum(job.gpus * job.ideal_s for job in trace.jobs) / len(fleet)
        longest = max(job.ideal_s for job in trace.jobs)
        until = trace.jobs[-1].submit_s + 2 * slowest * (work + longest)
        random = np.random.default_rng([seed, _FAILURES])
        return failures.drawn(len(fleet.node_names), until, mtbf_h=self.mtbf_h, repair_h=self.repair_h, random=random)


@dataclass(frozen=True)
class Published:
    """Traces as the artifact of PAL (SC'24) simulates them."""

    traces: tuple[Trace, ...]
    profiles: Profiles

    def informed(self, seeds: Sequence[int]) -> bool:  # noqa: ARG002 (the scores of the profiles always differ)
        return True

    def run(self, case: Case) -> Replayed:
        trace = _jobs_of(case, self.traces)
        of = (trace, self.profiles, case.policy, case.scheduler)
        outcome = pal_sc24(*of, seed=case.seed, flat=case.flat, record=case.record)
        fleet = published_fleet(self.profiles, seed=case.seed)[0] if case.record else None
        return _replayed(case, outcome, outcome.metrics(published=True), fleet)


def _jobs_of(case: Case, traces: Sequence[Trace]) -> Trace:
    trace = traces[case.trace]
    return resampled(trace, np.random.default_rng([case.seed, _JOBS, case.trace])) if case.resampled else trace


def _replayed(case: Case, outcome: Outcome, metrics: Metrics, fleet: Fleet | None) -> Replayed:
    kept = (outcome, fleet) if case.record else (None, None)
    return Replayed(case, outcome.trace, metrics, outcome.jct_s, outcome.wall_s, outcome.notes, *kept)


def cases(
    traces: int, policies: Sequence[str], schedulers: Sequence[str], seeds: Sequence[int], *, record: bool = False
) -> list[Case]:
    """All of them crossed, policies side by side; `record` keeps those of the first seed whole."""
    return [
        Case(trace, policy, scheduler, seed, record and seed == seeds[0])
        for trace, scheduler, seed, policy in product(range(traces), schedulers, seeds, policies)
    ]


def controls(
    traces: int, policies: Sequence[str], controlled: Sequence[str], schedulers: Sequence[str], seeds: Sequence[int]
) -> list[Case]:
    """What findings need beside `cases`: the policies on other jobs for each seed but the first, and the controls."""
    found = cases(traces, policies, schedulers, seeds[1:]) + [
        replace(case, flat=True) for case in cases(traces, controlled, schedulers, seeds)
    ]
    return [replace(case, resampled=case.seed != seeds[0]) for case in found]


Progress = Callable[[int, int], None]


def run_all(
    study: Study, wanted: Sequence[Case], *, workers: int = 1, progress: Progress | None = None
) -> tuple[list[Replayed], list[tuple[Case, InputError]]]:
    """What each case gave, in their order, and the cases that cannot be replayed, each with why.

    `progress(done, wanted)` is called after each. The first cases run here; the others go to `workers` processes if
    they would take some seconds.

    Raises:
        WhorlError: a process ended before its work did, as when memory ran out.
    """
    found: dict[int, Replayed] = {}
    refused: dict[int, InputError] = {}
    for number, result in _results(study, wanted, workers):
        if isinstance(result, Replayed):
            found[number] = result
        else:
            refused[number] = result
        if progress is not None:
            progress(len(found) + len(refused), len(wanted))
    return [found[n] for n in sorted(found)], [(wanted[n], refused[n]) for n in sorted(refused)]


_Numbered = tuple[int, Replayed | InputError]


def _results(study: Study, wanted: Sequence[Case], workers: int) -> Iterator[_Numbered]:
    began = time.perf_counter()
    for number, case in enumerate(wanted):
        left = len(wanted) - number
        passed = time.perf_counter() - began
        if workers > 1 and number and left > 1 and left * passed / number > _PAYS_S:
            rest = answers(partial(_outcome, study), wanted[number:], workers)
            yield from ((number + place, result) for place, result in rest)
            return
        yield number, _outcome(study, case)


def _outcome(study: Study, case: Case) -> Replayed | InputError:
    try:
        return study.run(case)
    except InputError as error:
        return error


def read_failures(path: Path | str, node_names: Sequence[str]) -> tuple[failures.Failure, ...]:
    """Failures of a CSV with the columns node (a name, or its number in `node_names`), down_s, up_s (empty: for good).

    Upper and lower case are the same. They hold names: a number would be another node wherever a seed draws the order
    of the nodes.

    Raises:
        InputError: the file cannot be read, or a row names no node or no times.
    """
    from .traces.table import CALENDAR_S, sheet, text_of

    path = Path(path)
    found = sheet(path, text_of(path))
    found.need("node", "down_s", "up_s", do="Add what is missing (up_s may be empty: the node stays away)")
    name = {str(place): name for place, name in enumerate(node_names)} | {name.lower(): name for name in node_names}
    nodes = found.frame["node"].str.strip_chars().str.to_lowercase()
    there = ", ".join(node_names[:3]) + (f", ... {node_names[-1]}" if len(node_names) > 3 else "")
    found.check(~nodes.is_in(list(name)), f"no node of the fleet is named {{node!r}}; there are {there}", "node")
    down = found.numbers("down_s")
    up = found.numbers("up_s", unknown=("",)).fill_null(float("inf"))
    found.check(down < 0, "down_s is {down_s}: it must be at least 0", "down_s")
    since = "down_s is {down_s}, a time since 1970: write seconds after the trace's first job"
    found.check(down > CALENDAR_S, since, "down_s")
    found.check(up <= down, "down_s is {down_s} and up_s is {up_s}: up_s must be the later one", "down_s", "up_s")
    return tuple(failures.Failure(name[node], start, end) for node, start, end in zip(nodes, down, up, strict=True))
