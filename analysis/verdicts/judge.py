"""The judge: from all looks at a fleet to verdicts, with one error rate over all of them.

A GPU's chances over its looks are joined by Simes' rule, and the GPUs are named by Benjamini and Hochberg's (J. R.
Statist. Soc. B 57, 1995), so that at most 3 in 100 of the named are healthy; no chance above one in a thousand names a
GPU. Nodes are named alike. docs/operating-characteristics.md has the rates that were realised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ..runs.probing import Probed, clusters_with_facts, names_of, probed, with_facts
from ..runs.sittings import Bools, Floats, Ints, date_of
from .causes import Evidence
from .changes import discoveries
from .channels import Channel
from .compare import Shift, seen_twice
from .history import Departure, DepartureKind, Histories, histories
from .levels import RELEVANT, in_pct
from .model import Look, Looks, looks
from .places import Lossy, places_of
from .ranks import Ranks, judged_ranks, timelines_alone
from .smallest import smallest
from .standing import peer_levels
from .verdict import (
    HELD,
    TIME,
    Action,
    Cause,
    Change,
    ComparedWith,
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
"""A named GPU shows it in looks with at most this chance."""
_RUNS = 40  # ids in a verdict, the newest
_MOST = 0.5  # of a batch's GPUs that must have shown it twice; some are measured once
_TOGETHER = 64  # GPUs whose common change is told GPU by GPU; that of more shows in their peers, too


def judge(
    store: Store, *, cluster: str | None = None, campaign: str | None = None, since: datetime | None = None
) -> Judgement:
    """Everything that is concluded about a cluster, from all its runs, or from those of a campaign.

    Without a campaign, facts are concluded too that need no run, such as a GPU that was lost, whenever they were; and
    what timelines of training jobs say about their ranks, if all times are asked for, as those have no dates.

    `since`: runs that began before are left out. InputError as of `probed`.
    """
    alone = cluster is not None and cluster in timelines_alone(store) and cluster not in clusters_with_facts(store)
    if campaign is None and cluster is not None and alone:
        if since is not None:
            return Judgement(cluster, (), (NotJudged(cluster, cluster, Gap.TIMELINES_UNDATED),), 0, 0, runs=0)
        return with_ranks(Judgement(cluster, (), (), 0, 0, runs=0), judged_ranks(store, cluster))
    found = probed(store, campaign, cluster, every=campaign is None, facts=True)
    newest: object = found.runs["began"].max()
    had_runs, from_ = found.runs.height > 0, None
    if since is not None:
        from_ = since.astimezone(UTC).replace(tzinfo=None) if since.tzinfo else since
        found = found.since(from_)
    if campaign is None:
        found = with_facts(store, found, from_)
    judgement = judged(found, store)
    if had_runs and found.runs.is_empty():
        at = newest if isinstance(newest, datetime) else None
        none = NotJudged(found.cluster, found.cluster, Gap.NOT_SINCE, since=from_, at=at)
        judgement = replace(judgement, not_judged=(none,))
    if campaign is not None:
        return judgement
    judgement = with_places(judgement, places_of(store, found.cluster, from_))
    return judgement if since is not None else with_ranks(judgement, judged_ranks(store, found.cluster))


def with_places(judgement: Judgement, lossy: Lossy) -> Judgement:
    """The judgement with what is said of places that lose GPUs."""
    return replace(
        judgement,
        rows=tuple(sorted((*judgement.rows, *lossy.verdicts), key=_severity)),
        not_judged=(*judgement.not_judged, *lossy.not_judged),
        looks=judgement.looks + lossy.tests,
    )


def with_ranks(judgement: Judgement, ranks: Ranks) -> Judgement:
    """The judgement with what is said of ranks of training jobs."""
    return replace(
        judgement,
        rows=tuple(sorted((*judgement.rows, *ranks.rows), key=_severity)),
        not_judged=(*judgement.not_judged, *ranks.not_judged),
        looks=judgement.looks + ranks.comparisons,
        ranks=ranks.ranks,
    )


def judged(found: Probed, store: Store | None = None, *, evidence: Evidence | None = None) -> Judgement:
    """The same of runs that are read already. `evidence`: of these runs, where it is known already."""
    evidence = evidence or Evidence.of(found, store)
    all_ = looks(found, evidence)
    judge_ = _Judge(all_)
    rows = judge_.facts() + judge_.shared() + judge_.nodes() + judge_.gpus()
    past = histories(found, store)
    rows += judge_.of_the_past(past.steps + past.changes + past.drifts + past.unstable, rows)
    said = dict.fromkeys([*all_.not_judged, *(one for one in past.not_judged if one not in all_.not_judged)])
    if not all_.of and found.runs.height == 0:
        said[NotJudged(found.cluster, found.cluster, Gap.NO_RUNS)] = None
    many = int(sum(look.compared.p.size and np.isfinite(look.compared.effect).sum() for look in all_.of))
    some = np.zeros(len(all_.gpus), dtype=bool)
    for look in all_.of:
        some |= np.isfinite(look.compared.effect)
    watch = judge_.of_the_past(past.watch, rows)
    return Judgement(
        found.cluster, tuple(sorted(rows, key=_severity)), tuple(said), int(some.sum()), many + past.comparisons,
        tuple(sorted(watch, key=_severity)), judge_.smallest(), tuple(_changes(past)), found.runs.height,
        peers=peer_levels(all_),
    )  # fmt: skip


def _changes(past: Histories) -> Iterator[Change]:
    """The dates at which GPUs changed, GPU by GPU."""
    shared = ("workload", "effect_pct", "low_pct", "high_pct", "q", "n", "since", "at", "state", "joined_with")
    for departure in (*past.changes, *past.steps):
        together = len(departure.gpus)
        if together <= _TOGETHER:
            fields = {name: getattr(departure, name) for name in shared}
            yield from (Change(gpu=gpu, together=together, **fields) for gpu in departure.gpus)


def simes(p: Floats, counted: Bools) -> Floats:
    """(gpus,) one chance for each GPU of its (looks, gpus) chances, of those that are `counted`."""
    ranked = np.sort(np.where(counted, p, 2.0), axis=0)
    n = counted.sum(axis=0)
    rank = np.arange(1, len(p) + 1)[:, None]
    joined: Floats = np.where(rank <= n, ranked * n / rank, 1.0).min(axis=0, initial=1.0)
    return joined


def error_rate(of: Sequence[Look]) -> float:
    """Of the GPUs that these looks name, the share that may be healthy."""
    return ERROR_RATE_ALONE if len({look.workload for look in of if look.timed}) == 1 else ERROR_RATE


_ORDER = {kind: place for place, kind in enumerate(Kind)}
_FIRST = (Kind.LOSES, Kind.LOST, Kind.WRONG, Kind.FAILED)


def _severity(one: Verdict) -> tuple[int, bool, float, str]:
    """What was seen first, then what costs time, then what does not, then what is no harm; confirmed before suspected,
    and each by its size."""
    harm = 0 if one.kind in _FIRST else 3 if one.kind is Kind.FAST else 1 if one.timed else 2
    return (
        harm * 100 + (_ORDER[one.kind] if harm == 0 else 0),
        one.state is not State.CONFIRMED,
        -abs(one.effect_pct or 0),
        one.name,
    )


class _Judge:
    def __init__(self, all_: Looks) -> None:
        self._all = all_
        self._campaign = all_.campaign
        self._names = list(names_of(all_.campaign.gpus).values())
        self._models: list[str | None] = all_.campaign.gpus["model"].to_list()
        self._place = {gpu: place for place, gpu in enumerate(all_.gpus)}
        of = all_.of
        shape = (len(of), len(all_.gpus))
        self._p = np.array([_backed(place, of) for place in range(len(of))]).reshape(shape)
        known = np.array([np.isfinite(look.compared.effect) for look in of], dtype=bool).reshape(shape)
        joined = simes(self._p, known)
        self._q = discoveries(joined, len(joined))
        self._own = self._p.min(axis=0, initial=1.0)
        self._known = known
        self._rate = error_rate(of)
        self._by_gpu: tuple[pl.DataFrame, Ints] | None = None

    def smallest(self) -> tuple[Smallest, ...]:
        """What could have been named beside those that are."""
        named = int(((self._q <= self._rate) & (self._own <= MOST_P)).sum())
        rate = self._rate * (named + 1) / max(len(self._q), 1)
        return tuple(smallest(self._all.of, self._known, rate, MOST_P))

    # -- what needs no test -------------------------------------------------------------------------------

    def facts(self) -> list[Verdict]:
        return [
            Verdict(
                Level.GPU, self._name(fact.gpu), (self._name(fact.gpu),), self._campaign.cluster,
                self._models[self._place[fact.gpu]] if fact.gpu in self._place else None, fact.workloads, fact.kind,
                State.CONFIRMED if fact.sittings > 1 else State.SUSPECTED, None, None, None, None, None, None, (),
                fact.first_seen, fact.last_seen, fact.runs[-_RUNS:], action_of(fact.kind), fact.measured, figure="",
            )
            for fact in self._all.evidence.facts()
        ]  # fmt: skip

    # -- batches and nodes --------------------------------------------------------------------------------

    def shared(self) -> list[Verdict]:
        """One verdict for each batch, from the looks at times that show it."""
        by_batch: dict[tuple[str, object], list[tuple[Look, Shift]]] = {}
        for look in self._all.of:
            if look.what != "time":
                continue
            for shift in look.compared.shifts:
                if shift.what != "node" and abs(shift.effect) >= RELEVANT:
                    key = (shift.what, shift.value) if shift.what != "mode" else ("mode", frozenset(shift.gpus))
                    by_batch.setdefault(key, []).append((look, shift))
        found = []
        for (what, _), shown in by_batch.items():
            look, shift = max(shown, key=lambda one: abs(one[1].effect))
            names = tuple(self._names[gpu] for gpu in shift.gpus)
            shared: tuple[Measured, ...] = ()
            if what == "mode":
                name = f"{len(names)} GPUs"
            else:
                value = self._all.values[what][shift.value]
                name, shared = f"{what} {value}", (Measured(what, text=value),)
            kind = Kind.SLOW if shift.effect > 0 else Kind.FAST
            found.append(
                self._of_shift(
                    Level.BATCH, name, look, shift, shown, kind, shared, Action.COMPARE_BOARDS, shift.p,
                )
            )  # fmt: skip
        return found

    def nodes(self) -> list[Verdict]:
        timed = [look for look in self._all.of if look.what == "time"]
        count = len(self._all.values["node"])
        if not timed or not count:
            return []
        p = np.ones((len(timed), count))
        known = np.zeros((len(timed), count), dtype=bool)
        shifts: dict[int, list[tuple[Look, Shift]]] = {}
        for row, look in enumerate(timed):
            known[
                row, np.unique(self._all.fleet.node[np.isfinite(look.compared.effect) & (self._all.fleet.node >= 0)])
            ] = True
            for shift in look.compared.shifts:
                if shift.what == "node" and abs(shift.effect) >= RELEVANT:
                    p[row, shift.value] = shift.p
                    shifts.setdefault(shift.value, []).append((look, shift))
        joined = simes(p, known)
        q = discoveries(joined, len(joined))
        found = []
        for node in map(int, np.flatnonzero((q <= ERROR_RATE) & (joined <= MOST_P))):
            shown = [(look, shift) for look, shift in shifts[node] if shift.p <= SHOWS_P]
            look, shift = max(shown, key=lambda one: abs(one[1].effect))
            effects = {one.workload: its.effect for one, its in shown}
            told = self._all.evidence.slow([self._all.gpus[gpu] for gpu in shift.gpus], effects)
            slow = shift.effect > 0
            name = self._all.values["node"][node]
            found.append(
                self._of_shift(
                    Level.NODE, name, look, shift, shown, told.kind if slow else Kind.FAST,
                    told.measured, told.action, float(joined[node]),
                    float(q[node]), told.causes if slow and told.workload == look.workload else (),
                )
            )  # fmt: skip
        return found

    def _of_shift(
        self, level: Level, name: str, look: Look, shift: Shift, shown: Sequence[tuple[Look, Shift]], kind: Kind,
        measured: tuple[Measured, ...], action: Action, p: float, q: float | None = None,
        causes: tuple[Cause, ...] = (),
    ) -> Verdict:  # fmt: skip
        half = 2.6 * shift.error
        workloads = [one.workload for one, _ in sorted(shown, key=lambda one: -abs(one[1].effect))]
        seen = seen_twice(look.levels, look.compared, shift)[shift.gpus]
        confirmed = seen.all() if level is Level.NODE else seen.mean() > _MOST
        first, last, runs = self._evidence([self._all.gpus[gpu] for gpu in shift.gpus], workloads)
        of_nodes = shift.what != "mode" and (self._all.fleet.node >= 0).any()
        return Verdict(
            level, name, tuple(self._names[gpu] for gpu in shift.gpus), self._campaign.cluster, look.model,
            tuple(dict.fromkeys(workloads)), kind, State.CONFIRMED if confirmed else State.SUSPECTED,
            in_pct(shift.effect), in_pct(shift.effect - half), in_pct(shift.effect + half), p, p if q is None else q,
            shift.n, causes, first, last, runs, action, measured, ComparedWith.NODES if of_nodes else ComparedWith.GPUS,
        )  # fmt: skip

    # -- GPUs ---------------------------------------------------------------------------------------------

    def gpus(self) -> list[Verdict]:
        found = []
        for gpu in np.flatnonzero((self._q <= self._rate) & (self._own <= MOST_P)):
            found += self._of_gpu(int(gpu))
        return found

    def _of_gpu(self, gpu: int) -> list[Verdict]:
        shown = [look for place, look in enumerate(self._all.of) if self._p[place, gpu] <= SHOWS_P]
        timed = [look for look in shown if look.timed]
        others = [look for look in shown if not look.timed]
        # A GPU that is named for its power or clock is slow for that, however usual such times are among its peers.
        raw = [look for look in self._all.of if look.what == "time" and look.matters[gpu]]
        slow = [look for look in raw if look.compared.effect[gpu] > 0 and look.compared.low[gpu] > 0]
        found: list[Verdict] = []
        if any(look.compared.effect[gpu] > 0 for look in timed) or (slow and others):
            found.append(self._slow(gpu, timed, slow, shown))
        elif timed:
            look = max(timed, key=lambda one: abs(one.compared.effect[gpu]))
            found.append(self._row(gpu, look, timed, Kind.FAST, (), (), Action.NOTHING))
        kinds = {one.kind for one in found}
        for look in sorted(others, key=lambda one: float(self._p[self._all.of.index(one), gpu])):
            channel = look.channel
            if channel is None or channel.kind is None:
                continue
            kind = channel.kind
            # A held clock is told by the causes of the time; and the power of a braked GPU tells no kelvin a watt.
            held = found and kind in (*HELD, Kind.STARVED, Kind.UNSTABLE)
            held = held or (kind is Kind.HOT and bool(kinds & HELD))
            if kind in kinds or held:
                continue
            kinds.add(kind)
            own = float(look.levels.level[gpu])
            value = _beside(channel, own, own - float(look.compared.effect[gpu]))
            found.append(self._row(gpu, look, [look], kind, (), (value,), action_of(kind)))
        return found

    def _slow(self, gpu: int, timed: Sequence[Look], slow: Sequence[Look], shown: Sequence[Look]) -> Verdict:
        sure = [look for look in timed if look.compared.effect[gpu] > 0]
        if sure:  # then what is merely usual for a GPU among its peers is not part of it
            at = {look.workload for look in sure}
            slow = [look for look in slow if look.workload in at]
        timed_looks = [*slow, *sure]
        effects, at_clock = (
            {look.workload: float(look.compared.effect[gpu]) for look in timed_looks if (look.what == "time") is raw}
            for raw in (True, False)
        )
        told = self._all.evidence.slow(self._all.gpus[gpu], effects, at_clock)
        figure = "time at its clock" if told.at_clock else "time"
        look = next(look for look in timed_looks if (look.workload, look.what) == (told.workload, figure))
        kind = told.kind if told.kind is not Kind.FAST else Kind.SLOW
        return self._row(gpu, look, timed_looks, kind, told.causes, told.measured, told.action, shown)

    def _row(
        self, gpu: int, look: Look, over: Sequence[Look], kind: Kind, causes: tuple[Cause, ...],
        measured: tuple[Measured, ...], action: Action, shown: Sequence[Look] = (),
    ) -> Verdict:  # fmt: skip
        one = look.compared
        ranked = sorted((other for other in over if other.workload), key=lambda other: -abs(other.compared.effect[gpu]))
        workloads = tuple(dict.fromkeys([look.workload, *(other.workload for other in ranked)])) if ranked else ()
        first, last, runs = self._evidence([self._all.gpus[gpu]], workloads, look, gpu)
        confirmed = any(other.compared.confirmed[gpu] for other in (look, *shown))
        effect, low, high = (_inin_pct(look, float(value[gpu])) for value in (one.effect, one.low, one.high))
        return Verdict(
            Level.GPU, self._names[gpu], (self._names[gpu],), self._campaign.cluster, self._models[gpu], workloads,
            kind, State.CONFIRMED if confirmed else State.SUSPECTED,
            effect, low, high, float(self._own[gpu]), float(self._q[gpu]), int(one.peers[gpu]),
            causes, first, last, runs, action, measured, ComparedWith.GPUS, look.timed and look.what != "time",
            TIME if look.timed else look.what,
        )  # fmt: skip

    # -- history ------------------------------------------------------------------------------------------

    def of_the_past(self, departures: Iterable[Departure], rows: Sequence[Verdict]) -> list[Verdict]:
        """Departures from a GPU's own past that are worse, of GPUs whose verdict does not say it already."""
        kinds = {DepartureKind.DRIFT: Kind.DRIFTING, DepartureKind.UNSTABLE: Kind.UNSTABLE}
        verdicts = []
        for departure in departures:
            kind, gpu = kinds.get(departure.kind, Kind.SLOWER), departure.gpu
            is_known = kind is Kind.UNSTABLE and any(row.kind is kind and gpu in row.gpus for row in rows)
            if departure.effect_pct <= 0 or is_known:
                continue
            moved = None
            if gpu is not None and kind is Kind.UNSTABLE:
                moved = self._all.evidence.moves(gpu, departure.workload, departure.effect_pct)
            action = action_of(kind) if moved is None else moved.action
            models = (self._models[self._place[key]] for key in departure.gpus if key in self._place)
            verdicts.append(
                Verdict(
                    level=departure.level,
                    name=departure.name if gpu is None else self._name(gpu),
                    gpus=tuple(map(self._name, departure.gpus)),
                    cluster=self._campaign.cluster,
                    model=next(models, None),
                    workloads=(departure.workload,),
                    kind=kind,
                    state=departure.state,
                    effect_pct=departure.effect_pct,
                    low_pct=departure.low_pct,
                    high_pct=departure.high_pct,
                    p=departure.p,
                    q=departure.q,
                    n=departure.n,
                    causes=() if moved is None else moved.causes,
                    first_seen=departure.first_seen,
                    last_seen=departure.last_seen,
                    runs=departure.runs[-_RUNS:],
                    action=Action.FIND_COMMON_CHANGE if departure.level is Level.BATCH else action,
                    measured=(*departure.measured, *departure.joined_with, *(() if moved is None else moved.measured)),
                    reference=ComparedWith.PAST,
                )
            )
        return verdicts

    # -- evidence -----------------------------------------------------------------------------------------

    def _name(self, gpu: str) -> str:
        return self._names[self._place[gpu]] if gpu in self._place else gpu

    def _runs_of(self, gpu: str) -> pl.DataFrame:
        """The runs of a GPU: workload, began, run_id."""
        if self._by_gpu is None:
            runs = self._all.runs.select("gpu_no", "workload", "began", "run_id").sort("gpu_no")
            starts = np.searchsorted(runs["gpu_no"].to_numpy(), np.arange(len(self._all.gpus) + 1))
            self._by_gpu = runs, starts
        runs, edges = self._by_gpu
        place = self._place[gpu]
        return runs.slice(int(edges[place]), int(edges[place + 1] - edges[place])).drop("gpu_no")

    def _evidence(
        self, gpus: Sequence[str], workloads: Sequence[str], look: Look | None = None, gpu: int = -1
    ) -> tuple[datetime | None, datetime | None, tuple[str, ...]]:
        """When it was seen first and last, and the newest runs that show it."""
        rows = pl.concat([self._runs_of(one) for one in gpus])
        if workloads:
            rows = rows.filter(pl.col("workload").is_in(list(workloads)))
        rows = rows.sort("began", nulls_last=False)
        began = rows["began"].drop_nulls()
        first = None if began.is_empty() else began[0]
        if look is not None:
            sat, whole = look.levels.sat, look.compared.effect[gpu]
            own = sat.series == gpu
            off = (sat.value - look.levels.steps)[own] - look.compared.centre[gpu]
            shows = sat.at[own][off * np.sign(whole) >= abs(whole) / 2]
            if len(shows) and shows[0] > 0:
                first = date_of(shows[0])
        return first, None if began.is_empty() else began[-1], tuple(rows["run_id"].cast(pl.String).to_list()[-_RUNS:])


def _beside(channel: Channel, own: float, peers: float) -> Measured:
    """A value of a channel beside that of the peers, in its unit; both are given on the scale of `channels`."""
    if channel.log:
        own, peers = math.exp(own), math.exp(peers)
    return Measured(channel.name, own, peers, channel.unit)


def _backed(place: int, of: Sequence[Look]) -> Floats:
    """(gpus,) the chances of a look that name: of a difference that matters, and not of one run that stands alone."""
    look = of[place]
    p = np.where(look.matters, look.compared.p, 1.0)
    lone = look.compared.single & (p <= SHOWS_P)
    if lone.any():
        sign = np.sign(look.compared.effect)
        backed = np.zeros(len(p), dtype=bool)
        for other in of:
            if other.workload != look.workload and other.timed and look.timed:
                same = np.sign(other.compared.effect) == sign
                backed |= same & (other.compared.p <= SHOWS_P)
        p = np.where(lone & ~backed, 1.0, p)
    return p


def _inin_pct(look: Look, value: float) -> float | None:
    """An effect of a look in per cent; None where it has none: the sentence of a temperature says how many kelvin."""
    if not math.isfinite(value):
        return None
    if look.channel is None or look.channel.log:
        return in_pct(value)
    return 100 * value if look.channel.unit == "share" else None
