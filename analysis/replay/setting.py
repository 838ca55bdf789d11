"""What `whorl replay` replays: traces, fleets, policies and schedulers, from the options; and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ...errors import InputError, WhorlError
from ...store import Store
from . import published as study_of_pal
from .classes import assign
from .failures import read_failures
from .findings import Finding, Gain, findings, gains
from .from_store import Level, Measured, measured
from .job import Trace
from .options import Options
from .policies import POLICIES, SCHEDULERS, find_policy, find_scheduler
from .profiles import profiles, published_trace
from .study import BASELINES, Case, General, Progress, Published, Replayed, Study, run_all
from .traces import Reading, read_trace

DEFAULT = "packed,pm-first,pal"
_MOST_GPUS = 1_000_000


@dataclass(frozen=True)
class Answered:
    """The results of a setting."""

    results: Sequence[Replayed]
    refused: Sequence[tuple[Case, WhorlError]]
    """Cases that cannot be replayed, and why."""
    gains: Sequence[Gain]
    """Of the traces as they are, over the seeds."""
    findings: Sequence[Finding]
    conditions: dict[str, str]
    notes: list[str]

    @property
    def reasons(self) -> list[str]:
        """Why cases were refused, each reason once, with the policies that it leaves out."""
        policies: dict[str, list[str]] = {}
        for case, error in self.refused:
            policies.setdefault(str(error), []).append(case.policy)
        return [
            why if all(name in why for name in names) else f"{why} (left out: {', '.join(dict.fromkeys(names))})"
            for why, names in policies.items()
        ]


@dataclass
class Setting:
    """A study, and what to run of it."""

    study: Study
    policies: list[str]
    """Those asked for."""
    added: list[str]
    """Baselines beside them."""
    schedulers: list[str]
    against: tuple[str, ...]
    seed: int
    apart: bool = False
    """The baselines are no rows of the answer."""
    clocks: dict[str, list[str]] = field(default_factory=dict)
    """By scheduler, the policies that decide by rounds while their baselines decide at every event (own clocks)."""
    conditions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def cases(self, seeds: Sequence[int], policies: Sequence[str], **flags: bool) -> list[Case]:
        """These policies crossed with all traces, schedulers and seeds, policies side by side."""
        traces = range(len(self.study.traces))
        crossed = product(traces, self.schedulers, seeds, policies)
        return [Case(trace, policy, scheduler, seed, **flags) for trace, scheduler, seed, policy in crossed]

    def answer(
        self, *, seeds: int = 1, workers: int = 1, record: bool = False, progress: Progress | None = None
    ) -> Answered:
        """Replay it with `seeds` seeds, in `workers` processes. `record` keeps what figures need of the first seed.

        Findings need, beside the traces as they are, other jobs for each seed but the first, and controls.

        Raises:
            InputError: no case can be replayed.
        """
        first, *further = range(self.seed, self.seed + seeds)
        policies = [*self.policies, *self.added]
        controlled = self._controlled([first, *further])
        cases = self.cases([first, *further], policies)
        cases = [replace(case, record=record and case.seed == first) for case in cases]
        cases += self.cases(further, policies, resampled=True)
        controls = self.cases([first, *further], controlled, flat=True)
        cases += [replace(case, resampled=case.seed != first) for case in controls]
        if progress is not None:
            progress(0, len(cases))
        replayed, failed = run_all(self.study, cases, workers=workers, progress=progress)
        results = [result for result in replayed if not (result.case.resampled or result.case.flat)]
        refused = [(case, error) for case, error in failed if not (case.resampled or case.flat)]
        conditions = self.conditions | {"seeds": f"{first} to {further[-1]}" if further else f"{first}"}
        answered = Answered(results, refused, [], [], conditions, [])
        if not results:
            raise InputError("; ".join(answered.reasons))
        notes = [*self.notes, *(note for result in results for note in result.notes), *answered.reasons]
        lost = [str(error) for case, error in failed if case.resampled or case.flat]
        reasons = {str(error) for _, error in refused}
        notes += [
            f"{lost.count(why):,} replays for the findings (other jobs of a trace, or without scores) are left out: "
            + why
            for why in dict.fromkeys(lost)
            if why not in reasons
        ]
        compared = [result for result in replayed if result.case.resampled or result.case.seed == first]
        return replace(
            answered,
            gains=gains(results, self.against),
            findings=findings(compared, self.against, controlled),
            notes=list(dict.fromkeys(notes)),
        )

    def _controlled(self, seeds: Sequence[int]) -> list[str]:
        """The policies whose choices scores can change."""
        looking = [name for name in self.policies if name not in self.against and not find_policy(name).blind]
        return looking if looking and self.study.informed(seeds) else []


def as_published(options: Mapping[str, Any]) -> Setting:
    """PAL (SC'24) as its artifact runs it."""
    traces = tuple(published_trace(path) for path in options["paths"])
    _once([trace.name for trace in traces])
    measured_scores = profiles(options["profiles"])
    baseline = study_of_pal.BASELINE
    policies = _named(options["policies"], "all", "policy", study_of_pal.POLICIES)
    return Setting(
        Published(traces, measured_scores),
        policies,
        [baseline],
        _named(options["schedulers"], "fifo", "scheduler", study_of_pal.SCHEDULERS),
        ("packed-sticky", baseline),
        study_of_pal.SEED if options["seed"] is None else options["seed"],
        apart=True,
        conditions={
            "simulation": "as published: PAL (SC'24), with its artifact's oddities (docs/replay-as-published.md)",
            "traces": "; ".join(f"{trace.name}: {len(trace.jobs):,} jobs" for trace in traces),
            "fleet": f"{study_of_pal.NODES} nodes of {study_of_pal.GPUS_PER_NODE} GPUs, scores drawn from the profiles",
            "locality penalty": f"{study_of_pal.LOCALITY:g}",
            "clock": f"rounds of {study_of_pal.ROUND_S:g} s; jobs end at their edges",
        },
        notes=[note for trace in traces for note in trace.notes] + list(measured_scores.notes),
    )


def general(options: Mapping[str, Any]) -> Setting:
    """These traces on the measured fleet, or on one of the shape that was asked for."""
    reading = Reading(
        options["duration_unit"],
        options["processors_per_gpu"],
        gpus_per_node=options["gpus_per_node"] or 1,
        regimes=options.get("regimes"),
    )
    traces = [read_trace(path, options["trace_format"], reading) for path in options["paths"]]
    _once([trace.name for trace in traces])
    return general_of(traces, options)


def general_of(traces: list[Trace], options: Mapping[str, Any]) -> Setting:
    """The same for traces that were read already."""
    if (options["nodes"] or 0) * (options["gpus_per_node"] or 0) > _MOST_GPUS:
        raise InputError(f"--nodes times --gpus-per-node is more than {_MOST_GPUS:,} GPUs; give a smaller fleet")
    chosen = options["classes"]
    fleets: Level | Measured
    if options["store"]:
        workloads, cluster = _workloads(options["store"], options["cluster"])
        traces = assign(traces, workloads, chosen)
        fleets, source, notes = _measured(options, traces, cluster)
    else:
        traces = assign(traces, (), chosen)
        fleets, source, notes = _level(options)
    policies, schedulers = _policies(options["policies"]), _schedulers(options["schedulers"])
    waiting = [name for name in policies if find_policy(name).by_rounds]
    ordered = [name for name in schedulers if find_scheduler(name).by_rounds]
    clock = _Clock(options["clock"], options["round_s"], waiting + ordered)
    failures = read_failures(options["failures"], fleets.node_names) if options["failures"] else ()
    fleet = fleets.draw(0).fleet
    conditions = {
        "traces": "; ".join(f"{trace.name}: {len(trace.jobs):,} jobs" for trace in traces),
        "fleet": f"{len(fleet):,} GPUs in {len(fleet.node_names):,} nodes, {source}",
        "locality penalty": f"{options['locality_penalty']:g}",
        "backfill": options["backfill"],
        "clock": str(clock),
        "cost of a preemption, a migration": f"{options['preemption_cost']:g} s, {options['migration_cost']:g} s",
    }
    if options["mtbf"]:
        conditions["failures"] = f"drawn: every node each {options['mtbf']:g} h, for {options['repair']:g} h (means)"
    elif options["failures"]:
        conditions["failures"] = f"{len(failures):,} of {Path(options['failures']).name}"
    rules = Options(
        round_s=options["round_s"],
        rounds=clock.rounds,
        backfill=options["backfill"],
        preemption_s=options["preemption_cost"],
        migration_s=options["migration_cost"],
        on_failure=options["on_failure"],
        failures=failures,
    )
    return Setting(
        General(tuple(traces), fleets, rules, options["mtbf"], options["repair"]),
        policies,
        [name for name in BASELINES if name not in policies],
        schedulers,
        BASELINES,
        options["seed"] or 0,
        clocks={name: waiting for name in schedulers if clock.rounds is None and waiting and name not in ordered},
        conditions=conditions,
        notes=[f"{trace.name}: {note}" for trace in traces for note in trace.notes] + notes,
    )


def _once(names: list[str]) -> None:
    """Stop where two traces have one name: nobody could tell their rows apart."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two trace files are named {name}; give each trace once, in a file with its own name")


def _split(texts: tuple[str, ...], default: str, option: str) -> list[str]:
    names = [name.strip() for text in texts or (default,) for name in text.split(",")]
    names = list(dict.fromkeys(name for name in names if name))
    if not names:
        raise InputError(f"--{option} names none; an example is --{option} {default}")
    return names


def _named(texts: tuple[str, ...], default: str, option: str, choices: tuple[str, ...]) -> list[str]:
    """The names asked for, each one of `choices`; `all` is all of these."""
    names: list[str] = []
    for name in _split(texts, default, option):
        if name != "all" and name not in choices:
            raise InputError(f"no {option} is named {name!r}; there are {', '.join(choices)}, and all")
        names += choices if name == "all" else [name]
    return list(dict.fromkeys(names))


def _policies(texts: tuple[str, ...]) -> list[str]:
    """Policies under their own names where an alias was given; `all` adds every one of them at the end."""
    names = _split(texts, DEFAULT, "policy")
    every_name = [policy.name for policy in POLICIES] if "all" in names else []
    return list(dict.fromkeys([*(find_policy(name).name for name in names if name != "all"), *every_name]))


def _schedulers(texts: tuple[str, ...]) -> list[str]:
    names = _split(texts, "fifo", "scheduler")
    if "all" in names:
        return [scheduler.name for scheduler in SCHEDULERS]
    return list(dict.fromkeys(find_scheduler(name).name for name in names))


@dataclass(frozen=True)
class _Clock:
    """When decisions are made, and by whom: those who wait for the edge of a round pay for it."""

    choice: str | None
    """Of `--clock`; None: the clock that all can share."""
    round_s: float
    by_rounds: list[str]
    """Policies and schedulers that are made to decide by rounds."""

    @property
    def rounds(self) -> bool | None:
        """Whether all decide by rounds; None: each by its own clock."""
        choices = {None: bool(self.by_rounds), "rounds": True, "events": False, "own": None}
        return choices[self.choice]

    def __str__(self) -> str:
        edge = f"at the edges of rounds of {self.round_s:g} s"
        event = "at every arrival, finish and failure"
        names = ", ".join(self.by_rounds)
        if self.choice == "rounds":
            return f"all decide {edge}"
        if not names:
            return f"all decide {event}"
        if self.choice == "events":
            return f"all decide {event}, also {names}, which are made for rounds"
        if self.choice == "own":
            return f"{names} decide {edge}, the others {event} (own clocks)"
        return (
            f"all decide {edge}, which {names} need{'s' if len(self.by_rounds) == 1 else ''} (--clock own: only these)"
        )


def _workloads(store: str, cluster: str | None) -> tuple[list[str], str]:
    """The workloads measured on the one cluster that is meant, and its name."""
    from ..placement import available

    measured_workloads = available(Store.open(store), cluster)
    clusters = list(dict.fromkeys(name for name, _ in measured_workloads))
    if len(clusters) > 1:
        raise InputError(
            f"{store} has runs of {len(clusters)} clusters: {', '.join(clusters)}; choose one by --cluster"
        )
    if not clusters:
        of_cluster = f" of cluster {cluster}" if cluster else ""
        raise InputError(
            f"{store} holds no times{of_cluster} to score GPUs by; `whorl import --store {store} FILES` or "
            f"`whorl probe run --store {store} --suite quick` adds some"
        )
    return [workload for _, workload in measured_workloads], clusters[0]


def _measured(options: Mapping[str, Any], traces: list[Trace], cluster: str) -> tuple[Level | Measured, str, list[str]]:
    from ..placement import scores

    used = sorted({job.workload for trace in traces for job in trace.jobs if job.workload})
    if not used and options["nodes"] is not None:  # no score is needed, and of the store's nodes none is
        return _level(options, "no job has a measured workload")
    fleet_scores = scores(Store.open(options["store"]), used, cluster=cluster)
    fleets = measured(
        fleet_scores,
        used,
        nodes=options["nodes"],
        gpus_per_node=options["gpus_per_node"],
        locality=options["locality_penalty"],
    )
    source = "in their measured nodes" if options["nodes"] is None else "drawn from those measured"
    notes = list(fleets.notes)
    notes += [
        f"{name}: no GPU is known to differ from another ({fleet_scores.of[name].reason}), so there is nothing to gain"
        for name in used
        if not fleet_scores.of[name].repeatable
    ]
    return fleets, f"{source} on {cluster}", notes


def _level(options: Mapping[str, Any], why: str = "without --store") -> tuple[Level, str, list[str]]:
    if options["nodes"] is None:
        raise InputError(
            "give a fleet: --store DIR for the GPUs measured there, or --nodes N and --gpus-per-node G for GPUs "
            "that are all equal"
        )
    level = Level(options["nodes"], options["gpus_per_node"], options["locality_penalty"])
    return level, "all alike", [f"{why}: all GPUs are equal, so choosing among them gains nothing"]
