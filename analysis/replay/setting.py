"""What `whorl replay` replays: traces, fleets, policies and schedulers, from the options; and its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InputError, WhorlError
from ...store import Store
from . import published as study_of_pal
from .findings import ENERGY, PolicyFinding, PolicyGain, findings, gains
from .fleet import read_failures
from .from_store import EqualFleets, MeasuredFleets
from .jobs import Trace, assign, read_plans, with_plan
from .options import Options
from .policies import POLICIES, SCHEDULERS, Policy, Scheduler, find_policy, find_scheduler
from .policies.eaco import Sharing
from .published import profiles, published_trace
from .study import BASELINES, Case, General, Progress, Published, Replayed, Study, WorldFacts, run_all
from .tables import read_curves, read_pairs
from .traces import TraceOptions, read_trace

DEFAULT = "packed,pm-first,pal"
ROUND_S = 360.0
PACKED = ("packed", "packed-sticky")
_MOST_GPUS = 1_000_000


class Group(NamedTuple):
    """What was replayed of a trace under a scheduler, whole schedulers among them under the first."""

    trace: str
    scheduler: str | None
    results: list[Replayed]
    findings: list[PolicyFinding]
    energy: list[PolicyFinding]

    @property
    def title(self) -> str:
        """Its heading among several."""
        return f"{self.trace}, {self.scheduler}"

    @property
    def policies(self) -> list[str]:
        """Those of its results, in their order."""
        return list(dict.fromkeys(result.case.policy for result in self.results))

    @property
    def packed(self) -> str:
        """The name of the baseline that leaves no nodes out."""
        return next((name for name in PACKED if name in self.policies), PACKED[0])


@dataclass(frozen=True)
class Answered:
    """The results of a setting."""

    results: Sequence[Replayed]
    refused: Sequence[tuple[Case, WhorlError]]  # cases that cannot be replayed, and why
    reasons: Sequence[str]  # the same in sentences, each once
    gains: Sequence[PolicyGain]  # of the traces as they are, over the seeds
    findings: Sequence[PolicyFinding]  # of the average JCT
    energy: Sequence[PolicyFinding]  # the same of all energy, where it is known
    conditions: dict[str, str]
    notes: list[str]

    @property
    def groups(self) -> list[Group]:
        """What belongs together: by trace and scheduler, and over all traces."""
        first = next((result.case.scheduler for result in self.results if result.case.scheduler), None)
        members: dict[tuple[str, str | None], Group] = {}

        def group(trace: str, scheduler: str | None) -> Group:
            key = (trace, scheduler or first)
            return members.setdefault(key, Group(*key, [], [], []))

        for result in self.results:
            group(result.trace, result.case.scheduler).results.append(result)
        for finding in self.findings:
            group(finding.trace, finding.scheduler).findings.append(finding)
        for finding in self.energy:
            group(finding.trace, finding.scheduler).energy.append(finding)
        return list(members.values())


def _reasons(refused: Sequence[tuple[Case, WhorlError]]) -> list[str]:
    """Why cases were refused, each reason once, with the policies that it leaves out."""
    policies: dict[str, list[str]] = {}
    for case, error in refused:
        policies.setdefault(str(error), []).append(case.policy)
    return [
        why if all(name in why for name in names) else f"{why} (left out: {', '.join(dict.fromkeys(names))})"
        for why, names in policies.items()
    ]


@dataclass
class ReplaySetting:
    """A study, and what to run of it."""

    study: Study
    policies: list[str]  # those asked for
    added: list[str]  # baselines beside them
    schedulers: list[str]
    against: tuple[str, ...]
    seed: int
    apart: bool = False  # the baselines are no rows of the answer
    whole_schedulers: frozenset[str] = frozenset()  # those of the policies that are whole schedulers
    clocks: dict[str, list[str]] = field(default_factory=dict)
    """By scheduler, the policies that decide by rounds while their baselines decide at every event (own clocks)."""
    conditions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def cases(self, seeds: Sequence[int], policies: Sequence[str], **flags: bool) -> list[Case]:
        """These policies crossed with all traces, schedulers and seeds, policies side by side.

        Whole schedulers stand once, beside the placements under the first scheduler.
        """
        crossed = product(range(len(self.study.traces)), self.schedulers, seeds, policies)
        return [
            Case(trace, policy, None if policy in self.whole_schedulers else scheduler, seed, **flags)
            for trace, scheduler, seed, policy in crossed
            if policy not in self.whole_schedulers or scheduler == self.schedulers[0]
        ]

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
        reasons = _reasons(refused)
        if not results:
            raise InputError("; ".join(reasons))
        conditions = self.conditions | {"seeds": f"{first} to {further[-1]}" if further else f"{first}"}
        notes = [*self.notes, *(note for result in results for note in result.notes), *reasons]
        if "power" in conditions and all(result.metrics.energy_kwh is None for result in results):
            notes.append("the power of the GPUs is not known, so there is no energy in all: give --world gpu-power=W")
        lost = Counter(str(error) for case, error in failed if case.resampled or case.flat)
        notes += [
            f"{count:,} replays for the findings (other jobs of a trace, or without scores) are left out: {why}"
            for why, count in lost.items()
            if all(why != str(error) for _, error in refused)
        ]
        compared = [result for result in replayed if result.case.resampled or result.case.seed == first]
        return Answered(
            results,
            refused,
            reasons,
            gains=gains(results, self.against),
            findings=findings(compared, self.against, controlled),
            energy=[finding for finding in findings(compared, self.against, controlled, ENERGY) if finding.gains],
            conditions=conditions,
            notes=list(dict.fromkeys(notes)),
        )

    def _controlled(self, seeds: Sequence[int]) -> list[str]:
        """The policies whose choices scores can change."""
        looking = [name for name in self.policies if name not in self.against and not _class_of(name).blind]
        return looking if looking and self.study.informed(seeds) else []


def as_published(options: Mapping[str, Any]) -> ReplaySetting:
    """PAL (SC'24) as its artifact runs it."""
    traces = tuple(published_trace(path) for path in options["paths"])
    _once([trace.name for trace in traces])
    scores_of_models = profiles(options["profiles"])
    baseline = study_of_pal.BASELINE
    policies = _named(options["policy"], "all", "policy", study_of_pal.POLICIES)
    return ReplaySetting(
        Published(traces, scores_of_models),
        policies,
        [baseline],
        _named(options["scheduler"], "fifo", "scheduler", study_of_pal.SCHEDULERS),
        ("packed-sticky", baseline),
        study_of_pal.SEED if options["seed"] is None else options["seed"],
        apart=True,
        conditions={
            "simulation": "as published: PAL (SC'24), with its artifact's oddities (docs/how-we-know/replay.md)",
            "traces": _sizes(traces),
            "fleet": f"{study_of_pal.NODES} nodes of {study_of_pal.GPUS_PER_NODE} GPUs, scores drawn from the profiles",
            "locality penalty": f"{study_of_pal.LOCALITY:g}",
            "clock": f"rounds of {study_of_pal.ROUND_S:g} s; jobs end at their edges",
        },
        notes=[note for trace in traces for note in trace.notes] + list(scores_of_models.notes),
    )


def general(options: Mapping[str, Any]) -> ReplaySetting:
    """The traces at `options["paths"]` on the measured fleet, or on one of the shape that was asked for.

    Raises InputError for options that cannot be used.
    """
    regimes = options["regimes"]
    reading = TraceOptions(
        options["duration_unit"],
        options["processors_per_gpu"],
        gpus_per_node=options["gpus_per_node"] or 1,
        regimes=None if regimes is None else Path(regimes),
    )
    traces = [read_trace(path, options["trace_format"], reading) for path in options["paths"]]
    _once([trace.name for trace in traces])
    if (options["nodes"] or 0) * (options["gpus_per_node"] or 0) > _MOST_GPUS:
        raise InputError(f"--nodes times --gpus-per-node is more than {_MOST_GPUS:,} GPUs; give a smaller fleet")
    fleets: EqualFleets | MeasuredFleets
    if options["store"]:
        workloads, cluster = _workloads(options["store"], options["cluster"])
        traces = assign(traces, workloads, options["classes"])
        fleets, source, notes = _measured(options, traces, cluster)
    else:
        traces = assign(traces, (), options["classes"])
        fleets, source, notes = _level(options)
    plans = {model: read_plans(path) for model, path in options["burst"].items()}
    traces = [with_plan(_with_deadlines(trace, options["deadline_slack"]), plans) for trace in traces]
    choice = _Choice.of(options)
    failures = read_failures(options["failures"], fleets.node_names) if options["failures"] else ()
    fleet = fleets.draw(0).fleet
    conditions = {
        "traces": _sizes(traces),
        "fleet": f"{len(fleet):,} GPUs in {len(fleet.node_names):,} nodes, {source}",
        "locality penalty": f"{options['locality_penalty']:g}",
        "backfill": options["backfill"],
        "clock": choice.clock_text,
        "cost of a preemption, a migration": f"{choice.preemption_s:g} s, {options['migration_cost']:g} s",
    }
    if choice.start_s:
        conditions["cost of a start"] = f"{choice.start_s:g} s beside {choice.leader}, in all rows (preemption-cost)"
    if options["mtbf"]:
        conditions["failures"] = f"drawn: every node each {options['mtbf']:g} h, for {options['repair']:g} h (means)"
    elif options["failures"]:
        conditions["failures"] = f"{len(failures):,} of {Path(options['failures']).name}"
    if options["knowledge"] == "estimate":
        conditions["work of jobs"] = f"policies know it within exp(N(0, {options['knowledge_error']:g}))"
    elif options["knowledge"] == "none":
        conditions["work of jobs"] = "policies do not know it"
    tables, table_notes = _tables(options)
    facts = WorldFacts(
        tables,
        gpu_w=options["gpu_power"],
        power=_power(options, choice),
        knowledge=options["knowledge"],
        error=options["knowledge_error"],
    )
    if facts.power:
        conditions["power"] = _power_text(options["gpu_power"], facts.power)
    rules = Options(
        round_s=choice.round_s,
        rounds=choice.rounds,
        backfill=options["backfill"],
        preemption_s=choice.preemption_s,
        start_s=choice.start_s,
        migration_s=options["migration_cost"],
        on_failure=options["on_failure"],
        failures=failures,
    )
    sharing = Sharing(options["deadline_slack"] or Sharing.deadline_slack, options["pair_at_least"], options["alpha"])
    return ReplaySetting(
        General(tuple(traces), fleets, rules, facts, {"eaco": (sharing,)}, options["mtbf"], options["repair"]),
        list(choice.policies),
        [name for name in BASELINES if name not in choice.policies],
        [row.name for row in choice.schedulers],
        BASELINES,
        options["seed"] or 0,
        whole_schedulers=frozenset(name for name, row in choice.policies.items() if row.whole),
        clocks=choice.clocks_apart,
        conditions=conditions,
        notes=[
            *(f"{trace.name}: {note}" for trace in traces for note in trace.notes),
            *notes,
            *table_notes,
            *(f"{name}: {row.note}" for name, row in choice.policies.items() if row.note),
        ],
    )


def _sizes(traces: Sequence[Trace]) -> str:
    return "; ".join(f"{trace.name}: {len(trace.jobs):,} jobs" for trace in traces)


def _once(names: Sequence[str]) -> None:
    """Stop where two traces have one name: nobody could tell their rows apart."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two trace files are named {name}; give each trace once, in a file with its own name")


# -- what is given about jobs, speed and power ------------------------------------------------------------------


def _with_deadlines(trace: Trace, slack: float | None) -> Trace:
    """Jobs that state no deadline are to end within `slack` times their time alone; None: they have none."""
    if slack is None:
        return trace
    jobs = (
        job if job.deadline_s is not None else replace(job, deadline_s=job.submit_s + slack * job.ideal_s)
        for job in trace.jobs
    )
    return replace(trace, jobs=tuple(jobs))


def _tables(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Fields of `Rates`, and what reading them chose."""
    tables: dict[str, Any] = {name: options[name] for name in ("backward", "foreground")}
    if options["pairs"] is not None:
        tables["pairs"] = read_pairs(Path(options["pairs"]))
    if options["curves"] is not None:
        tables["curves"] = read_curves(Path(options["curves"]))
    return tables, list(tables["pairs"].notes) if "pairs" in tables else []


def _power(options: Mapping[str, Any], choice: _Choice) -> dict[str, float]:
    """Fields of `Power`. Nodes sleep where an option or a policy lets them."""
    names = {"idle_w": "gpu_idle", "node_w": "node_power", "asleep_w": "asleep_power", "sleep_after_s": "sleep_after"}
    power = {name: float(options[option]) for name, option in names.items() if options[option] is not None}
    counts_on_it = any(row.nodes_sleep for row in choice.policies.values())
    if "asleep_w" in power or (counts_on_it and "node_w" in power):
        power.setdefault("sleep_after_s", 0.0)
    return power | ({"wake_s": options["wake"]} if power else {})


def _power_text(gpu_w: float | None, power: Mapping[str, float]) -> str:
    parts = [] if gpu_w is None else [f"a busy GPU {gpu_w:g} W, where none was measured"]
    parts += [
        f"{name} {power[key]:g} W" for key, name in (("idle_w", "an idle GPU"), ("node_w", "a node")) if key in power
    ]
    if "sleep_after_s" in power:
        wake = f", {power['wake_s']:g} s to wake up" if power["wake_s"] else ""
        after = f"after {power['sleep_after_s']:g} s" if power["sleep_after_s"] else "at once"
        parts.append(f"nodes without jobs sleep {after} at {power.get('asleep_w', 0.0):g} W{wake}")
    return "; ".join(parts)


# -- policies and clocks ----------------------------------------------------------------------------------------


def _class_of(name: str) -> type[Policy]:
    """The class of a policy. One of a user's own that cannot be loaded is any policy: its replays say why."""
    try:
        return find_policy(name)
    except InputError:
        if ":" not in name:
            raise
        return Policy


def _split(texts: Sequence[str], default: str, option: str) -> list[str]:
    names = [name.strip() for text in texts or (default,) for name in text.split(",")]
    names = list(dict.fromkeys(name for name in names if name))
    if not names:
        raise InputError(f"--{option} names none; an example is --{option} {default}")
    return names


def _named(texts: Sequence[str], default: str, option: str, choices: tuple[str, ...]) -> list[str]:
    """The names asked for, each one of `choices`; `all` is all of these."""
    names: list[str] = []
    for name in _split(texts, default, option):
        if name != "all" and name not in choices:
            raise InputError(f"no {option} is named {name!r}; there are {', '.join(choices)}, and all")
        names += choices if name == "all" else [name]
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class _Choice:
    """Policies and schedulers, and when they decide: those who wait for the edge of a round pay for it.

    A policy may be made for rounds and costs of its own, which then hold for all rows.
    """

    policies: dict[str, type[Policy]]
    schedulers: list[Scheduler]
    clock: str | None  # of the key `clock`; None: the clock that all can share
    leader: str | None  # the first policy with rounds and costs of its own
    round_s: float
    preemption_s: float
    start_s: float

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> _Choice:
        """What the options say. Policies stand under their own names; `all` is every placement."""
        names = _split(options["policy"], DEFAULT, "policy")
        chosen = [name if ":" in name else find_policy(name).name for name in names if name != "all"]
        chosen += [row.name for row in POLICIES if not row.whole] if "all" in names else []
        if "shockwave" in chosen:
            chosen.append("srtf")  # the fairest by Shockwave's own measure
        policies = {name: _class_of(name) for name in chosen}
        schedulers = _split(options["scheduler"], "fifo", "scheduler")
        rows = SCHEDULERS if "all" in schedulers else dict.fromkeys(map(find_scheduler, schedulers))
        leader = next((name for name, row in policies.items() if row.round_s), None)
        leading = Policy if leader is None else policies[leader]
        cost_s = options["preemption_cost"]
        return cls(
            policies,
            list(rows),
            options["clock"],
            leader,
            round_s=options["round"] or leading.round_s or ROUND_S,
            preemption_s=cost_s or 0.0,
            start_s=leading.start_s if cost_s is None else 0.0,
        )

    @property
    def _waiting(self) -> list[str]:
        """Policies that are made to decide by rounds."""
        return [name for name, row in self.policies.items() if row.by_rounds]

    @property
    def rounds(self) -> bool | None:
        """Whether all decide by rounds; None: each by its own clock."""
        by_rounds = bool(self._waiting or any(row.by_rounds for row in self.schedulers))
        return {None: by_rounds, "rounds": True, "events": False, "own": None}[self.clock]

    @property
    def clocks_apart(self) -> dict[str, list[str]]:
        """By scheduler, the policies that decide by rounds while their baselines decide at every event."""
        if self.clock != "own" or not self._waiting:
            return {}
        return {row.name: self._waiting for row in self.schedulers if not row.by_rounds}

    @property
    def clock_text(self) -> str:
        """When decisions are made, and by whom."""
        slower = list(dict.fromkeys([*self._waiting, *(row.name for row in self.schedulers if row.by_rounds)]))
        names = ", ".join(slower)
        edge, event = f"at the edges of rounds of {self.round_s:g} s", "at every arrival, finish and failure"
        if self.clock == "rounds":
            return f"all decide {edge}"
        if not slower:
            return f"all decide {event}"
        if self.clock == "events":
            return f"all decide {event}, also {names}, which are made for rounds"
        if self.clock == "own":
            return f"{names} decide {edge}, the others {event} (own clocks)"
        return f"all decide {edge}, which {names} need{'s' if len(slower) == 1 else ''} (clock=own: only these)"


# -- fleets -----------------------------------------------------------------------------------------------------


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


def _measured(
    options: Mapping[str, Any], traces: list[Trace], cluster: str
) -> tuple[EqualFleets | MeasuredFleets, str, list[str]]:
    from ..placement import scores

    used = sorted({job.workload for trace in traces for job in trace.jobs if job.workload})
    if not used and options["nodes"] is not None:  # no score is needed, and of the store's nodes none is
        return _level(options, "no job has a measured workload")
    fleet_scores = scores(Store.open(options["store"]), used, cluster=cluster)
    fleets = MeasuredFleets(
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


def _level(options: Mapping[str, Any], why: str = "without --store") -> tuple[EqualFleets, str, list[str]]:
    if options["nodes"] is None:
        raise InputError(
            "give a fleet: --store DIR for the GPUs measured there, or --nodes N and --gpus-per-node G for GPUs "
            "that are all equal"
        )
    level = EqualFleets(options["nodes"], options["gpus_per_node"], options["locality_penalty"])
    return level, "all alike", [f"{why}: all GPUs are equal, so choosing among them gains nothing"]
