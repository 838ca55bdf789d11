"""The judge: from the model of a fleet to verdicts, with one error rate over all its figures.

A GPU's chances over its figures are joined by Simes' rule, and the GPUs are named by Benjamini and Hochberg's (J. R.
Statist. Soc. B 57, 1995), so that at most 3 in 100 of the named are healthy; no chance above one in a thousand names a
GPU. Nodes are named alike. docs/how-we-know/verdicts.md has the rates that were realised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ..engines import HERE, Coverage, Engine
from ..runs.probing import Probed, clusters_with_facts, probed, with_facts
from ..runs.sittings import Bools, Floats, date_of
from ..runs.windows import Progress
from ..statistics.ordering import discoveries, simes
from .causes import Evidence
from .compare import Shift, seen_twice
from .history import Departure, DepartureKind, Histories, histories
from .levels import RELEVANT, in_pct
from .model import TIME_AT_CLOCK, Figure, Model, peer_levels
from .places import places_of
from .ranks import judged_ranks, timelines_alone
from .states import Channel
from .verdict import (
    HELD,
    TIME,
    Action,
    Change,
    ComparedWith,
    Findings,
    Gap,
    Judgement,
    Kind,
    Level,
    Measured,
    NotJudged,
    Smallest,
    State,
    Verdict,
    action_of,
)

if TYPE_CHECKING:
    from ...store import Store

ERROR_RATE = 0.03
"""Of the GPUs that are named, the share that is healthy."""
ERROR_RATE_ALONE = 0.012
"""The same where one workload was measured: one figure does not tell well how heavy its tail is."""
MOST_P = 1e-3
"""A chance above it names no GPU, however many are faulty."""
SHOWS_P = 0.01
"""A named GPU shows it in figures with at most this chance."""
_RUNS = 40  # ids in a verdict, the newest
_MOST = 0.5  # of a batch's GPUs that must have shown it twice; some are measured once
_TOGETHER = 64  # GPUs whose common change is told GPU by GPU; that of more shows in their peers, too


def judge(
    store: Store, *, cluster: str | None = None, campaign: str | None = None, since: datetime | None = None,
    engine: Engine = HERE, progress: Progress | None = None,
) -> Judgement:  # fmt: skip
    """Everything that is concluded about a cluster, from all its runs, or from those of a campaign.

    Without a campaign, facts are concluded too that need no run, such as a GPU that was lost, whenever they were; and
    what timelines of training jobs say about their ranks, if all times are asked for, as those have no dates.

    `since`: runs that began before are left out. What telemetry tells is made in parts, where the `engine` says.
    InputError as of `probed`.
    """
    has_timelines = cluster is not None and cluster in timelines_alone(store)
    alone = has_timelines and cluster not in clusters_with_facts(store, engine=engine)
    if campaign is None and cluster is not None and alone:
        if since is not None:
            return Judgement(cluster, (), (NotJudged(cluster, cluster, Gap.TIMELINES_UNDATED),), 0, 0, runs=0)
        return with_findings(Judgement(cluster, (), (), 0, 0, runs=0), judged_ranks(store, cluster))
    runs = probed(store, campaign, cluster, every=campaign is None, facts=True)
    newest: object = runs.runs["began"].max()
    had_runs, from_ = runs.runs.height > 0, None
    if since is not None:
        from_ = since.astimezone(UTC).replace(tzinfo=None) if since.tzinfo else since
        runs = runs.since(from_)
    if campaign is None:
        runs = with_facts(store, runs, from_, engine=engine, progress=progress)
    evidence = Evidence.of(runs, store, engine=engine, progress=progress)
    judgement = judged(runs, store, model=Model(runs, store, evidence=evidence))
    if had_runs and runs.runs.is_empty():
        at = newest if isinstance(newest, datetime) else None
        none = NotJudged(runs.cluster, runs.cluster, Gap.NOT_SINCE, since=from_, at=at)
        judgement = replace(judgement, not_judged=(none,))
    if campaign is not None:
        return judgement
    judgement = with_findings(judgement, places_of(store, runs.cluster, from_))
    return judgement if since is not None else with_findings(judgement, judged_ranks(store, runs.cluster))


def with_findings(judgement: Judgement, findings: Findings) -> Judgement:
    """The judgement with what is said of places that lose GPUs, or of ranks of training jobs."""
    return replace(
        judgement,
        rows=tuple(sorted((*judgement.rows, *findings.rows), key=_severity)),
        not_judged=(*judgement.not_judged, *findings.not_judged),
        looks=judgement.looks + findings.looks,
        ranks=judgement.ranks + findings.ranks,
    )


def judged(campaign: Probed, store: Store | None = None, *, model: Model | None = None) -> Judgement:
    """The same of runs that are read already. `model`: of these runs, where it is known already."""
    model = model or Model(campaign, store)
    past = histories(model, store)  # first, as of a large fleet it needs as much memory as all figures
    judging = _Judging.of(model)
    verdicts = [*_facts(model), *judging.batches(), *judging.nodes(), *judging.gpus()]
    verdicts += list(_of_past(model, past.steps + past.changes + past.drifts + past.unstable, verdicts))
    gaps = dict.fromkeys([*model.not_judged, *past.not_judged, *_unread(model)])
    if not model.figures and campaign.runs.is_empty():
        gaps[NotJudged(campaign.cluster, campaign.cluster, Gap.NO_RUNS)] = None
    return Judgement(
        cluster=campaign.cluster, rows=tuple(sorted(verdicts, key=_severity)), not_judged=tuple(gaps),
        gpus=int(judging.present.any(axis=0).sum()), looks=int(judging.present.sum()) + past.comparisons,
        watch=tuple(sorted(_of_past(model, past.watch, verdicts), key=_severity)), smallest=judging.smallest(),
        changes=tuple(_changes(past)), runs=campaign.runs.height, peers=peer_levels(model),
        coverage=(campaign.coverage or Coverage()) + model.evidence.coverage,
    )  # fmt: skip


def error_rate(figures: Sequence[Figure]) -> float:
    """Of the GPUs that these figures name, the share that may be healthy."""
    return ERROR_RATE_ALONE if len({figure.workload for figure in figures if figure.timed}) == 1 else ERROR_RATE


_ORDER = {kind: place for place, kind in enumerate(Kind)}
_FACTS = (Kind.LOSES, Kind.LOST, Kind.WRONG, Kind.FAILED)


def _severity(verdict: Verdict) -> tuple[int, bool, float, str]:
    """Facts first, then what costs time, then what does not, then what is no harm; confirmed before suspected, and each
    by its size."""
    harm = 0 if verdict.kind in _FACTS else 3 if verdict.kind is Kind.FAST else 1 if verdict.timed else 2
    return (
        harm * 100 + (_ORDER[verdict.kind] if harm == 0 else 0),
        verdict.state is not State.CONFIRMED,
        -abs(verdict.effect_pct or 0),
        verdict.name,
    )


# -- what needs no peers ------------------------------------------------------------------------------------------


def _facts(model: Model) -> Iterator[Verdict]:
    for fact in model.evidence.facts():
        place = model.place.get(fact.gpu)
        name = fact.gpu if place is None else model.names[place]
        yield Verdict(
            level=Level.GPU, name=name, gpus=(name,), cluster=model.campaign.cluster,
            model=None if place is None else model.models[place], workloads=fact.workloads, kind=fact.kind,
            state=State.CONFIRMED if fact.sittings > 1 else State.SUSPECTED, first_seen=fact.first_seen,
            last_seen=fact.last_seen, runs=fact.runs[-_RUNS:], action=action_of(fact.kind), measured=fact.measured,
            figure="",
        )  # fmt: skip


def _unread(model: Model) -> Iterator[NotJudged]:
    """The GPUs of which not all telemetry could be read: the cluster, where that may be any."""
    cluster, coverage = model.campaign.cluster, model.campaign.coverage
    if coverage is not None and coverage.failures:
        yield NotJudged(cluster, cluster, Gap.NOT_READ)
    for gpu in model.evidence.unread:
        yield NotJudged(cluster, model.names[model.place[gpu]], Gap.NOT_READ)


def _of_past(model: Model, departures: Iterable[Departure], verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """What became worse than its own past, where no verdict says it already."""
    kinds = {DepartureKind.DRIFT: Kind.DRIFTING, DepartureKind.UNSTABLE: Kind.UNSTABLE}
    for departure in departures:
        kind, gpu = kinds.get(departure.kind, Kind.SLOWER), departure.gpu
        is_told = kind is Kind.UNSTABLE and any(verdict.kind is kind and gpu in verdict.gpus for verdict in verdicts)
        if departure.effect_pct <= 0 or is_told:
            continue
        moved = None
        if gpu is not None and kind is Kind.UNSTABLE:
            moved = model.evidence.moves(gpu, departure.workload, departure.effect_pct)
        action = action_of(kind) if moved is None else moved.action
        places = [model.place.get(key) for key in departure.gpus]
        names = [key if at is None else model.names[at] for key, at in zip(departure.gpus, places, strict=True)]
        yield Verdict(
            level=departure.level, name=departure.name if gpu is None else names[0], gpus=tuple(names),
            cluster=model.campaign.cluster, model=next((model.models[at] for at in places if at is not None), None),
            workloads=(departure.workload,), kind=kind, state=departure.state, effect_pct=departure.effect_pct,
            low_pct=departure.low_pct, high_pct=departure.high_pct, p=departure.p, q=departure.q, n=departure.n,
            causes=() if moved is None else moved.causes, first_seen=departure.first_seen,
            last_seen=departure.last_seen, runs=departure.runs[-_RUNS:],
            action=Action.FIND_COMMON_CHANGE if departure.level is Level.BATCH else action,
            measured=(*departure.measured, *departure.joined_with, *(() if moved is None else moved.measured)),
            reference=ComparedWith.PAST,
        )  # fmt: skip


def _changes(past: Histories) -> Iterator[Change]:
    """The dates at which GPUs changed, GPU by GPU."""
    shared = ("workload", "effect_pct", "low_pct", "high_pct", "q", "n", "since", "at", "state", "joined_with")
    for departure in (*past.changes, *past.steps):
        together = len(departure.gpus)
        if together <= _TOGETHER:
            fields = {name: getattr(departure, name) for name in shared}
            yield from (Change(gpu=gpu, together=together, **fields) for gpu in departure.gpus)


# -- beside its peers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judging:
    """The chances of all GPUs in all figures, and who is named for them."""

    model: Model
    p: Floats
    """(figures, gpus) the chance that a healthy GPU lies so far out; 1 where it is too little to matter."""
    present: Bools
    """(figures, gpus) which GPUs have which figure."""
    q: Floats
    """(gpus,) the share of false findings among the GPUs that are at least as clear."""
    rate: float
    """The q up to which a GPU is named."""

    @classmethod
    def of(cls, model: Model) -> _Judging:
        figures = model.figures
        shape = (len(figures), len(model.gpus))
        p = np.array([_naming(figure, figures) for figure in figures]).reshape(shape)
        present = np.array([np.isfinite(figure.effect) for figure in figures], dtype=bool).reshape(shape)
        joined = simes(p, present)
        return cls(model, p, present, discoveries(joined, len(joined)), error_rate(figures))

    @property
    def is_named(self) -> Bools:
        """(gpus,) whom a verdict names."""
        return np.asarray((self.q <= self.rate) & (self.p.min(axis=0, initial=1.0) <= MOST_P))

    def smallest(self) -> tuple[Smallest, ...]:
        """What could have been named beside those that are."""
        rate = self.rate * (int(self.is_named.sum()) + 1) / max(len(self.q), 1)
        return tuple(_smallest(self.model.figures, self.present, rate))

    # batches and nodes

    def batches(self) -> Iterator[Verdict]:
        """One verdict for each batch, from the times that show it."""
        by_batch: dict[tuple[str, object], list[tuple[Figure, Shift]]] = {}
        for figure, shift in self._shifts():
            if shift.what != "node":
                key = (shift.what, frozenset(shift.gpus) if shift.what == "mode" else shift.value)
                by_batch.setdefault(key, []).append((figure, shift))
        for (shared, _), showing in by_batch.items():
            _, shift = _largest(showing)
            name, measured = f"{len(shift.gpus)} GPUs", tuple[Measured, ...]()
            if shared != "mode":
                value = self.model.values[shared][shift.value]
                name, measured = f"{shared} {value}", (Measured(shared, text=value),)
            kind = Kind.SLOW if shift.effect > 0 else Kind.FAST
            yield replace(
                self._of_shift(showing), name=name, kind=kind, action=Action.COMPARE_BOARDS, measured=measured
            )

    def nodes(self) -> Iterator[Verdict]:
        """One verdict for each node whose GPUs are slower or faster together."""
        times = [figure for figure in self.model.figures if figure.name == TIME]
        nodes = len(self.model.values["node"])
        if not times or not nodes:
            return
        row = {id(figure): number for number, figure in enumerate(times)}
        p, present = np.ones((len(times), nodes)), np.zeros((len(times), nodes), dtype=bool)
        for figure in times:
            node_of_gpu = self.model.fleet.node[np.isfinite(figure.effect)]
            present[row[id(figure)], node_of_gpu[node_of_gpu >= 0]] = True
        by_node: dict[int, list[tuple[Figure, Shift]]] = {}
        for figure, shift in self._shifts():
            if shift.what == "node":
                p[row[id(figure)], shift.value] = shift.p
                by_node.setdefault(shift.value, []).append((figure, shift))
        joined = simes(p, present)
        q = discoveries(joined, len(joined))
        for node in map(int, np.flatnonzero((q <= ERROR_RATE) & (joined <= MOST_P))):
            showing = [(figure, shift) for figure, shift in by_node[node] if shift.p <= SHOWS_P]
            figure, shift = _largest(showing)
            effects = {figure.workload: shift.effect for figure, shift in showing}
            why = self.model.evidence.slow([self.model.gpus[gpu] for gpu in shift.gpus], effects)
            slow = shift.effect > 0
            yield replace(
                self._of_shift(showing),
                level=Level.NODE,
                name=self.model.values["node"][node],
                kind=why.kind if slow else Kind.FAST,
                p=float(joined[node]),
                q=float(q[node]),
                causes=why.causes if slow and why.workload == figure.workload else (),
                action=why.action,
                measured=why.measured,
            )

    def _shifts(self) -> Iterator[tuple[Figure, Shift]]:
        """What batches and nodes differ in, where it matters."""
        for figure in self.model.figures:
            if figure.name == TIME and figure.compared is not None:
                yield from ((figure, shift) for shift in figure.compared.shifts if abs(shift.effect) >= RELEVANT)

    def _of_shift(self, showing: Sequence[tuple[Figure, Shift]]) -> Verdict:
        """The verdict of a batch or node, but for its name, kind and action. `showing`: in which figures it shows."""
        model = self.model
        figure, shift = _largest(showing)
        assert figure.compared is not None
        half = 2.6 * shift.error
        ranked = sorted(showing, key=lambda pair: -abs(pair[1].effect))
        workloads = tuple(dict.fromkeys(figure.workload for figure, _ in ranked))
        twice = seen_twice(figure.levels, figure.compared, shift)[shift.gpus]
        of_node = shift.what == "node"
        confirmed = twice.all() if of_node else twice.mean() > _MOST
        of_nodes = shift.what != "mode" and (model.fleet.node >= 0).any()
        first, last, runs = self._seen([model.gpus[gpu] for gpu in shift.gpus], workloads)
        return Verdict(
            level=Level.NODE if of_node else Level.BATCH, name="", gpus=tuple(model.names[gpu] for gpu in shift.gpus),
            cluster=model.campaign.cluster, model=figure.model, workloads=workloads, kind=Kind.SLOW,
            state=State.CONFIRMED if confirmed else State.SUSPECTED, effect_pct=in_pct(shift.effect),
            low_pct=in_pct(shift.effect - half), high_pct=in_pct(shift.effect + half), p=shift.p, q=shift.p, n=shift.n,
            first_seen=first, last_seen=last, runs=runs,
            reference=ComparedWith.NODES if of_nodes else ComparedWith.GPUS,
        )  # fmt: skip

    # GPUs

    def gpus(self) -> Iterator[Verdict]:
        """The verdicts of each GPU that is named."""
        for gpu in map(int, np.flatnonzero(self.is_named)):
            yield from self._of_gpu(gpu)

    def _of_gpu(self, gpu: int) -> Iterator[Verdict]:
        figures = self.model.figures
        showing = [figure for figure, p in zip(figures, self.p[:, gpu], strict=True) if p <= SHOWS_P]
        times = [figure for figure in showing if figure.timed]
        order = np.argsort(self.p[:, gpu], kind="stable")
        others = [figures[at] for at in order if self.p[at, gpu] <= SHOWS_P and not figures[at].timed]
        # A GPU that is named for its power or clock is slow for that, however usual such times are among its peers.
        slow = [
            figure
            for figure in figures
            if figure.compared is not None
            and figure.name == TIME
            and figure.matters[gpu]
            and figure.compared.low[gpu] > 0
        ]
        kinds: set[Kind] = set()
        if any(figure.effect[gpu] > 0 for figure in times) or (slow and others):
            verdict = self._slow(gpu, times, slow, showing)
            kinds.add(verdict.kind)
            yield verdict
        elif times:
            figure = max(times, key=lambda time: abs(time.effect[gpu]))
            kinds.add(Kind.FAST)
            yield replace(self._of_figure(gpu, figure, times), kind=Kind.FAST)
        has_verdict = bool(kinds)
        for figure in others:
            channel = figure.channel
            if channel is None or channel.kind is None:
                continue
            # A held clock is told by the causes of the time; and the power of a braked GPU tells no kelvin a watt.
            held = has_verdict and channel.kind in (*HELD, Kind.STARVED, Kind.UNSTABLE)
            if channel.kind in kinds or held or (channel.kind is Kind.HOT and kinds & HELD):
                continue
            kinds.add(channel.kind)
            level = float(figure.levels.level[gpu])
            value = _beside(channel, level, level - float(figure.effect[gpu]))
            yield replace(
                self._of_figure(gpu, figure, [figure]),
                kind=channel.kind,
                action=action_of(channel.kind),
                measured=(value,),
            )

    def _slow(self, gpu: int, times: Sequence[Figure], slow: Sequence[Figure], showing: Sequence[Figure]) -> Verdict:
        """The verdict of a slow GPU. `times`: that show it; `slow`: in which it is slower than most; `showing`: all."""
        sure = [figure for figure in times if figure.effect[gpu] > 0]
        if sure:  # then what is merely usual for a GPU among its peers is not part of it
            at = {figure.workload for figure in sure}
            slow = [figure for figure in slow if figure.workload in at]
        times = [*slow, *sure]
        effects, at_clock = (
            {figure.workload: float(figure.effect[gpu]) for figure in times if (figure.name == TIME) is raw}
            for raw in (True, False)
        )
        why = self.model.evidence.slow(self.model.gpus[gpu], effects, at_clock)
        name = TIME_AT_CLOCK if why.at_clock else TIME
        figure = next(figure for figure in times if (figure.workload, figure.name) == (why.workload, name))
        verdict = self._of_figure(gpu, figure, times, showing)
        kind = why.kind if why.kind is not Kind.FAST else Kind.SLOW
        return replace(verdict, kind=kind, causes=why.causes, action=why.action, measured=why.measured)

    def _of_figure(self, gpu: int, figure: Figure, over: Sequence[Figure], showing: Sequence[Figure] = ()) -> Verdict:
        """The verdict of a GPU in a figure, but for its kind and what goes with that. `over`: the figures whose
        workloads it names; `showing`: one of these, or `figure`, must have shown it twice for it to be confirmed."""
        compared = figure.compared
        assert compared is not None
        ranked = sorted((beside for beside in over if beside.workload), key=lambda figure: -abs(figure.effect[gpu]))
        workloads = tuple(dict.fromkeys([figure.workload, *(beside.workload for beside in ranked)])) if ranked else ()
        twice = any(beside.compared is not None and beside.compared.confirmed[gpu] for beside in (figure, *showing))
        first, last, runs = self._seen([self.model.gpus[gpu]], workloads)
        name = self.model.names[gpu]
        return Verdict(
            level=Level.GPU, name=name, gpus=(name,), cluster=self.model.campaign.cluster,
            model=self.model.models[gpu], workloads=workloads, kind=Kind.SLOW,
            state=State.CONFIRMED if twice else State.SUSPECTED, effect_pct=_in_pct(figure, compared.effect[gpu]),
            low_pct=_in_pct(figure, compared.low[gpu]), high_pct=_in_pct(figure, compared.high[gpu]),
            p=float(self.p[:, gpu].min()), q=float(self.q[gpu]), n=int(compared.peers[gpu]),
            first_seen=_first_shown(figure, gpu) or first, last_seen=last, runs=runs, reference=ComparedWith.GPUS,
            at_clock=figure.timed and figure.name != TIME, figure=TIME if figure.timed else figure.name,
        )  # fmt: skip

    def _seen(
        self, gpus: Sequence[str], workloads: Sequence[str]
    ) -> tuple[datetime | None, datetime | None, tuple[str, ...]]:
        """When runs of these GPUs and workloads began first and last, and the newest of them; of all workloads if none
        is given."""
        rows = self.model.runs_of(gpus).sort("began", nulls_last=False)
        if workloads:
            rows = rows.filter(pl.col("workload").is_in(list(workloads)))
        began = rows["began"].drop_nulls()
        newest = tuple(rows["run_id"].cast(pl.String).to_list()[-_RUNS:])
        return (None, None, newest) if began.is_empty() else (began[0], began[-1], newest)


def _largest(showing: Sequence[tuple[Figure, Shift]]) -> tuple[Figure, Shift]:
    """The figure in which a batch or node differs most."""
    return max(showing, key=lambda pair: abs(pair[1].effect))


def _first_shown(figure: Figure, gpu: int) -> datetime | None:
    """The first sitting of a GPU that has half of its effect; None where none with a date has it."""
    sat, effect = figure.levels.sat, figure.effect[gpu]
    is_gpu = sat.series == gpu
    off = sat.value[is_gpu] - figure.centre[gpu]
    at = sat.at[is_gpu][off * np.sign(effect) >= abs(effect) / 2]
    return date_of(at[0]) if len(at) and at[0] > 0 else None


def _beside(channel: Channel, level: float, peers: float) -> Measured:
    """A value of a channel beside that of the peers, in its unit; both are given on the scale of `states.channels`."""
    if channel.log:
        level, peers = math.exp(level), math.exp(peers)
    return Measured(channel.name, level, peers, channel.unit)


def _naming(figure: Figure, figures: Sequence[Figure]) -> Floats:
    """(gpus,) the chances of a figure that name: of a difference that matters, and not of one run that stands alone."""
    p = np.where(figure.matters, figure.p, 1.0)
    assert figure.compared is not None
    lone = figure.compared.single & (p <= SHOWS_P)
    if lone.any():
        sign = np.sign(figure.effect)
        backed = np.zeros(len(p), dtype=bool)
        for backing in figures:
            if backing.workload != figure.workload and backing.timed and figure.timed:
                backed |= (np.sign(backing.effect) == sign) & (backing.p <= SHOWS_P)
        p = np.where(lone & ~backed, 1.0, p)
    return p


def _in_pct(figure: Figure, effect: float) -> float | None:
    """An effect in per cent; None where it has none: of a temperature `measured` has both values."""
    if not math.isfinite(effect):
        return None
    if figure.channel is None or figure.channel.log:
        return in_pct(effect)
    return 100 * float(effect) if figure.channel.unit == "share" else None


# -- what could have been named -----------------------------------------------------------------------------------

_EFFECTS = np.geomspace(0.001, 1.5, 400)
"""Of which the least is looked for, as logarithms of a ratio."""


def _smallest(figures: Sequence[Figure], present: Bools, rate: float) -> Iterator[Smallest]:
    """The smallest effect that could have been named, for each workload with times.

    A GPU is imagined that lies in the middle of its peers, but for one workload in which all its sittings are slower.
    It gets the chances that the judge would have given it, joined by the judge's rule over its figures. `present`:
    (figures, gpus) which GPUs have which figure; `rate`: the joined chance at which a GPU is named.
    """
    at_clock = {(figure.model, figure.workload): figure for figure in figures if figure.name == TIME_AT_CLOCK}
    for time, here in zip(figures, present, strict=True):
        if time.name != TIME:
            continue
        assert time.compared is not None
        number = float(np.median(present[:, here].sum(axis=0)))
        free = at_clock.get((time.model, time.workload))
        by_time = time.compared.chances.of_the_middle(_EFFECTS)
        by_clock = by_time if free is None or free.compared is None else free.compared.chances.of_the_middle(_EFFECTS)
        either = np.minimum(by_time, by_clock)
        joint = np.minimum(either, np.maximum(by_time, by_clock) / 2)
        why = Gap.ALONE if np.mean(time.compared.single[here]) > _MOST else None
        pct, any_clock_pct = (
            None if why else _least_pct(p, (joined * number <= rate) & (time.relevant <= _EFFECTS))
            for p, joined in ((either, joint), (by_time, by_time))
        )
        if pct is None:
            why, any_clock_pct = why or Gap.TOO_FEW_TO_NAME, None
        yield Smallest(
            time.workload, time.model, pct, any_clock_pct=any_clock_pct, gpus=int(here.sum()),
            sittings=int(np.median(time.levels.sittings[here])), why=why,
        )  # fmt: skip


def _least_pct(p: Floats, is_named: Bools) -> float | None:
    """The least of `_EFFECTS`, in per cent, that is named; None where none is. `p`: the chance of each."""
    is_named = is_named & (p <= MOST_P)
    return in_pct(float(_EFFECTS[np.argmax(is_named)])) if is_named.any() else None
