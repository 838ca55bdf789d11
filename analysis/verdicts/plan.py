"""Which GPUs to probe next: those whose next sitting is expected to tell most, in the time that there is.

What is known of a GPU's level is a distribution over a grid: first that of the fleet (most GPUs near their peers, one
in fifty faulty), then what its sittings say, then, with age, the fleet's again. A sitting is worth the uncertainty
(entropy, bits) about "slower than the threshold" that it is expected to take away. A GPU whose sequential test has
ended leaves, until its last sitting is too old.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy import special

from ...errors import InputError
from ...store.names import plain_workload, same_work
from ..runs.probing import campaigns, other_names, probed
from ..runs.sittings import Floats, Ints
from ..spread.passive import passive
from .compare import LEAST_GPUS
from .judgements import stored
from .levels import in_pct
from .model import Figure, Model
from .verdict import ACROSS_NODES, Kind, Level, State

if TYPE_CHECKING:
    from ...store import Store

THRESHOLD_PCT = 3.0
"""Slower by more than this matters."""
OLD_DAYS = 90.0
"""After which a decision is open again."""
_HALF_DAYS = 365.0
"""After which half of what was known of a GPU no longer counts: it may have been repaired, or worn."""
_FAULTY, _FAULT = 0.02, 0.08
"""Share of GPUs that are faulty, and the standard deviation of ln time among them."""
_LEAST = 5e-4
_GRID = np.linspace(-0.3, 0.5, 401)
_CHUNK = 4096
ALPHA, BETA = 0.001, 0.05
"""Chance that a GPU at the level of its peers is called slow, and that one slower by `effect` is called fine."""


class Decision(IntEnum):
    """What is decided of a GPU."""

    OPEN = 0
    FINE = 1
    SLOW = 2


class Why(StrEnum):
    """Why a GPU is worth measuring."""

    SUSPECTED = "suspected"
    FOUND = "found before"
    """It was found faulty, and that is long ago: it may have been repaired."""
    NEVER = "never measured"
    PASSIVE = "ordinary jobs"
    """Never measured, and the power of its ordinary jobs says that it is slow."""
    OLD = "measured long ago"
    UNDECIDED = "not decided yet"


_FIRST = {Why.SUSPECTED: 0, Why.FOUND: 1}


@dataclass(frozen=True, slots=True)
class Remark:
    """What the newest judgement says against a GPU."""

    kind: Kind | None
    """None: its newest sitting was slower than its earlier ones, not surely enough for a finding."""
    state: State
    of_node: bool
    """Whether it is a finding about the GPU's node."""


@dataclass(frozen=True, slots=True)
class Next:
    """A GPU to probe."""

    gpu: str
    name: str
    node: str | None
    why: Why
    bits: float
    """What a sitting is expected to tell."""
    slow_chance: float
    """The chance that it is slower than the threshold, as far as it is known."""
    sittings: int
    last: datetime | None
    seconds: float
    remark: Remark | None
    """The finding that makes it worth measuring; None where it is something else."""
    age_days: float | None
    """Days since its last sitting; None where it has none, or none with a date."""
    decision: str
    """What its sequential test says: "open", "fine" or "slow"."""
    slower_pct: float | None
    """By how much it is slower than its peers, in the workload in which it is slowest; None if never measured."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval of that in another sitting; None where it is not known."""


@dataclass(frozen=True, slots=True)
class PassiveRanks:
    """How the power of ordinary jobs ranks GPUs that were never probed."""

    gpus: int
    """How many it ranks."""
    workload: str
    """Of the jobs."""
    spearman: float
    """Expected rank correlation with speed, with its 95 % interval."""
    low: float
    high: float
    n: int
    """GPUs from which that is known."""


@dataclass(frozen=True)
class Planned:
    """What to probe next, the most telling first."""

    cluster: str
    probes: tuple[str, ...]
    budget_s: float
    threshold_pct: float
    seconds: float
    """How long the probes take on one GPU."""
    gpus: tuple[Next, ...]
    """Those that fit into the budget."""
    left_out: int
    """How many more are worth measuring."""
    decided: dict[str, int]
    """How many GPUs need no probe now, by what was decided."""
    passive: PassiveRanks | None
    unmeasured: bool
    """Whether the cluster has runs, but none of these probes: all GPUs are worth the same."""


def planned(
    store: Store,
    probes: Collection[str],
    *,
    budget_s: float,
    seconds: float,
    cluster: str | None = None,
    threshold_pct: float = THRESHOLD_PCT,
    now: datetime | None = None,
) -> Planned:
    """Rank the GPUs of a cluster. `seconds`: how long the probes take on one GPU.

    InputError where the store knows no GPUs, or several clusters and none is named.
    """
    at = (now or datetime.now(UTC)).replace(tzinfo=None)
    gpus, name = _gpus(store, cluster)
    model = _model(store, name, probes, at)
    threshold = math.log1p(threshold_pct / 100)
    knowledge = _known(model, gpus["gpu"].to_list(), threshold, at)
    score, spread, passive_ranks = _passive(None if model is None else store, name, gpus["gpu"], knowledge)
    bits, chance = _worth(knowledge, score, spread, threshold)
    remarks, ranked, decided = _remarks(store, name), list[Next](), Counter[str]()
    for place, row in enumerate(gpus.iter_rows(named=True)):
        expected_slow = score[place] > 0 and chance[place] >= 0.5
        why, remark = _why(remarks.get(row["name"], {}), knowledge, place, expected_slow=expected_slow)
        decision = Decision(knowledge.decision[place]).name.lower()
        if why is Why.UNDECIDED and knowledge.decision[place] != Decision.OPEN:
            decided[decision] += 1
            continue
        level, half, age = (float(values[place]) for values in (knowledge.level, knowledge.half, knowledge.age))
        ranked.append(
            Next(
                **row,
                why=why,
                bits=float(bits[place]),
                slow_chance=float(chance[place]),
                sittings=int(knowledge.sittings[place]),
                last=knowledge.last[place],
                seconds=seconds,
                remark=remark,
                age_days=age if math.isfinite(age) else None,
                decision=decision,
                slower_pct=_pct(level),
                low_pct=_pct(level - half),
                high_pct=_pct(level + half),
            )
        )
    ranked.sort(key=_order)
    fit = max(0, math.floor(budget_s / seconds))
    return Planned(
        cluster=name,
        probes=tuple(probes),
        budget_s=budget_s,
        threshold_pct=threshold_pct,
        seconds=seconds,
        gpus=tuple(ranked[:fit]),
        left_out=max(0, len(ranked) - fit),
        decided=dict(decided),
        passive=passive_ranks,
        unmeasured=model is not None and model.runs.is_empty(),
    )


def _order(gpu: Next) -> tuple[int, float, datetime, str]:
    """The most telling first. A thousandth of a bit tells nothing: then the order is that of dates and names."""
    return _FIRST.get(gpu.why, len(_FIRST)), -round(gpu.bits, 3), gpu.last or datetime.min, gpu.name  # noqa: DTZ901


def _pct(effect: float) -> float | None:
    return in_pct(effect) if math.isfinite(effect) else None


def _why(
    remarks: Mapping[State, Remark], knowledge: _Known, place: int, *, expected_slow: bool
) -> tuple[Why, Remark | None]:
    """Why a GPU is worth measuring, and the finding that says so.

    `remarks`: of the newest judgement; `expected_slow`: whether the power of its jobs says so.
    """
    sittings = int(knowledge.sittings[place])
    old = sittings > 0 and float(knowledge.age[place]) > OLD_DAYS
    if State.SUSPECTED in remarks and not (old and State.CONFIRMED in remarks):
        return Why.SUSPECTED, remarks[State.SUSPECTED]
    if sittings == 0:
        return (Why.PASSIVE if expected_slow else Why.NEVER), None
    if old and State.CONFIRMED in remarks:
        return Why.FOUND, remarks[State.CONFIRMED]
    return (Why.OLD if old else Why.UNDECIDED), None


def _gpus(store: Store, cluster: str | None) -> tuple[pl.DataFrame, str]:
    """The whole GPUs of the cluster: gpu, name, node."""
    rows = store.sql("select cluster, gpu, name, node, uuid, parent, mig_profile from gpus_now").polars()
    clusters = sorted(rows["cluster"].drop_nulls().unique().to_list())
    if cluster is None and len(clusters) > 1:
        raise InputError(f"{store.root} has GPUs of {', '.join(clusters)}: choose one by --cluster")
    if not clusters or (cluster is not None and cluster not in clusters):
        others = f" of cluster {cluster!r}; it has {', '.join(clusters)}" if clusters else ""
        raise InputError(
            f"{store.root} holds no GPUs{others}: `whorl collect` or `whorl probe run` adds those of a node"
        )
    name = cluster or clusters[0]
    twice = list(other_names(store, name))  # names that a GPU has beside its UUID
    whole_gpus = (pl.col("cluster") == name) & pl.col("parent").is_null() & ~pl.col("gpu").is_in(twice)
    return rows.filter(whole_gpus).sort("name").select("gpu", "name", "node"), name


def _model(store: Store, cluster: str, probes: Collection[str], now: datetime) -> Model | None:
    """Of the runs of the probes, or of the same work under other names; None for a cluster without runs."""
    if cluster not in campaigns(store)["cluster"]:
        return None
    campaign = probed(store, cluster=cluster, every=True)
    names = {name for probe in probes for name in same_work(probe)}
    workloads = [name for name in campaign.probes if plain_workload(name) in names]
    return Model(replace(campaign, runs=campaign.runs.filter(pl.col("workload").is_in(workloads))), now=now)


@dataclass
class _Known:
    """What sittings say of each GPU: arrays of shape (gpus,)."""

    level: Floats
    """ln(time / peers' time), of the workload in which it is slowest; NaN where it was never measured."""
    half: Floats
    """Half of the 95 % interval of that in another sitting."""
    doubt: Floats
    """Standard deviation of it, as the level in the long run."""
    sittings: Ints
    age: Floats
    """Days since the last sitting."""
    last: list[datetime | None]
    decision: Ints
    sd: float = 0.01
    """Of a sitting; this one, and the next, where the fleet does not tell it."""
    silicon: float = 0.01
    """Between GPUs, without those that are far off."""


def _known(model: Model | None, gpus: Sequence[str], effect: float, now: datetime) -> _Known:
    n = len(gpus)
    level, half, doubt = np.full((3, n), np.nan)
    sittings, decision = np.zeros((2, n), np.int64)
    knowledge = _Known(
        level, half, doubt, sittings=sittings, age=np.full(n, np.inf), last=[None] * n, decision=decision
    )
    if model is None or model.runs.is_empty():
        return knowledge
    figures, number = model.times, {gpu: place for place, gpu in enumerate(gpus)}
    place = np.array([number.get(gpu, -1) for gpu in model.gpus])
    again = [figure.levels.again for figure in figures if figure.levels.between_known]
    if again:
        knowledge.sd = max(_LEAST, float(np.median(again)))
    off = np.array([figure.effect for figure in figures])
    if np.isfinite(off).sum() >= LEAST_GPUS:
        knowledge.silicon = max(_LEAST, 1.4826 * float(np.nanmedian(np.abs(off))))
    measured = np.flatnonzero(np.isfinite(off).any(axis=0) & (place >= 0))
    worst, rows = np.nanargmax(off[:, measured], axis=0), place[measured]
    knowledge.level[rows] = off[worst, measured]
    knowledge.half[rows] = np.array([figure.half for figure in figures])[worst, measured]
    knowledge.sittings[rows] = np.array([figure.levels.sittings for figure in figures])[worst, measured]
    knowledge.doubt = knowledge.sd / np.sqrt(np.maximum(knowledge.sittings, 1))
    last = model.runs.group_by("gpu_no").agg(pl.col("began").max().cast(pl.Datetime("us")))
    for gpu, at in zip(place[last["gpu_no"]].tolist(), last["began"], strict=True):
        if gpu >= 0 and at is not None:
            knowledge.last[gpu], knowledge.age[gpu] = at, (now - at).total_seconds() / 86_400
    knowledge.decision = _decisions(figures, place, n, effect=effect, sd=knowledge.sd)
    return knowledge


def _decisions(figures: Sequence[Figure], place: Ints, gpus: int, *, effect: float, sd: float) -> Ints:
    """Decided: slow in any workload, or fine in all that it was measured in. `place`: of each GPU of the arrays."""
    slow, undecided = np.zeros(gpus, bool), np.zeros(gpus, bool)
    for figure in figures:
        sat = figure.levels.sat
        planned_for = place[sat.series] >= 0
        owner = place[sat.series[planned_for]]
        deviation = (sat.value - figure.centre[sat.series])[planned_for]
        decision, _ = decide(owner, deviation, gpus, effect=effect, sd=sd)
        slow |= decision == Decision.SLOW
        undecided[owner] |= decision[owner] == Decision.OPEN
    return np.where(slow, int(Decision.SLOW), np.where(undecided, int(Decision.OPEN), int(Decision.FINE)))


def _worth(knowledge: _Known, score: Floats, spread: Floats, threshold: float) -> tuple[Floats, Floats]:
    """(gpus,) bits that another sitting is expected to tell, and the chance of being slower than the threshold.

    `score`, `spread`: of `_passive`.
    """
    n = len(knowledge.level)
    healthy = _normal(_GRID[None, :] - score[:, None], spread[:, None])
    faulty = _normal(_GRID, _FAULT)[None, :]
    prior = (1 - _FAULTY) * _rows_to_one(healthy) + _FAULTY * _rows_to_one(faulty)
    bits, chance = np.empty(n), np.empty(n)
    sees = _normal(_GRID[:, None] - _GRID[None, :], knowledge.sd)  # (seen, level)
    sees /= sees.sum(axis=0, keepdims=True)
    beyond = (threshold < _GRID).astype(np.float64)
    for begin in range(0, n, _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        level, doubt = knowledge.level[chunk, None], knowledge.doubt[chunk, None]
        likelihood = np.where(
            np.isfinite(level), _normal(_GRID[None, :] - np.nan_to_num(level), np.nan_to_num(doubt, nan=1.0)), 1.0
        )
        fresh = 0.5 ** (knowledge.age[chunk, None] / _HALF_DAYS)
        after = _rows_to_one(prior[chunk] * (likelihood + 1e-12))
        belief = fresh * after + (1 - fresh) * prior[chunk]
        chance[chunk] = belief @ beyond
        of_seen = belief @ sees.T
        slow = np.divide((belief * beyond) @ sees.T, of_seen, out=np.zeros_like(of_seen), where=of_seen > 0)
        bits[chunk] = np.maximum(0.0, _entropy(chance[chunk]) - (of_seen * _entropy(slow)).sum(axis=1))
    return bits, chance


def _normal(at: Floats, sd: Floats | float) -> Floats:
    return np.asarray(np.exp(-0.5 * (at / sd) ** 2) / sd)


def _rows_to_one(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _entropy(p: Floats) -> Floats:
    """Of yes or no, bits."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


def _passive(
    store: Store | None, cluster: str, gpus: pl.Series, knowledge: _Known
) -> tuple[Floats, Floats, PassiveRanks | None]:
    """(gpus,) by how much the power of ordinary jobs expects a GPU to be slower, ln; 0 where it says nothing. And the
    standard deviation of a healthy GPU about that. `store`: None for a cluster without runs.

    A rank of power tells a rank of speed with some correlation: the expected place is that share of its own place, and
    the more it tells, the less is left to chance.
    """
    score, spread = np.zeros(len(gpus)), np.full(len(gpus), knowledge.silicon)
    never = knowledge.sittings == 0
    if store is None or not never.any():
        return score, spread, None
    fingerprints = passive(store, cluster=cluster)
    telling = [jobs for jobs in fingerprints.worth if jobs.expected is not None and jobs.gpus >= LEAST_GPUS]
    best = max(telling, key=lambda jobs: jobs.gpus, default=None)
    if best is None or best.expected is None:
        return score, spread, None
    expected = best.expected
    scored = fingerprints.rows.filter((pl.col("workload") == best.workload) & pl.col("score").is_not_null())
    share = (scored["score"].rank("average").to_numpy() - 0.5) / max(scored.height, 1)
    place = dict(zip(scored["gpu"].to_list(), special.ndtri(share).tolist(), strict=True))
    score = np.array([place.get(gpu, 0.0) for gpu in gpus]) * expected.spearman * knowledge.silicon * never
    ranked = int((score != 0).sum())
    if not ranked:
        return score, spread, None
    spread[gpus.is_in(list(place)).to_numpy() & never] = max(
        _LEAST, knowledge.silicon * math.sqrt(1 - expected.spearman**2)
    )
    ranks = PassiveRanks(ranked, best.workload, expected.spearman, expected.low, expected.high, expected.n)
    return score, spread, ranks


def _remarks(store: Store, cluster: str) -> dict[str, dict[State, Remark]]:
    """By name, what the newest judgement says against a GPU or its node: the worst of each state."""
    slower = Remark(None, State.SUSPECTED, of_node=False)
    judgements = stored(store, cluster)
    remarks = {name: {State.SUSPECTED: slower} for judgement in judgements for name in judgement.watch}
    for row in (row for judgement in judgements for row in judgement.judgement.rows):
        no_harm = row.kind is Kind.LOSES or (row.kind is Kind.FAST and row.state is State.CONFIRMED)
        if row.level in ACROSS_NODES or no_harm:
            continue
        remark = Remark(row.kind, row.state, of_node=row.level is not Level.GPU)
        for name in row.gpus:
            remarks.setdefault(name, {}).setdefault(row.state, remark)
    return remarks


def decide(owner: Ints, deviation: Floats, gpus: int, *, effect: float, sd: float) -> tuple[Ints, Ints]:
    """(gpus,) the decision about each GPU, and after how many sittings it fell (all of them, where it is open).

    `owner`: the number of the GPU of each sitting, in the order of time; `deviation`: ln(time / peers' time) of it;
    `effect`: such a deviation that matters; `sd`: standard deviation of a sitting; both above 0.

    A. Wald's test (Annals of Mathematical Statistics 16, 1945) of two levels, 0 and `effect`: the sum of the logarithms
    of the likelihood ratios ends it at one of two bounds. A sitting counts at most half of the way to a bound, so that
    no single one decides. By simulation (tests/analysis/verdicts/test_online.py) the two chances hold with normal
    sittings and with Student's t with 4 degrees of freedom.
    """
    order = np.argsort(owner, kind="stable")
    owner, deviation = owner[order], deviation[order]
    slow, fine = math.log((1 - BETA) / ALPHA), math.log(BETA / (1 - ALPHA))
    step = np.clip(effect * (deviation - effect / 2) / sd**2, fine / 2, slow / 2)
    count = np.bincount(owner, minlength=gpus)
    first = np.cumsum(count) - count
    total = np.cumsum(step)
    before = np.concatenate(([0.0], total))[first]
    total = total - before[owner]
    place = np.arange(len(owner)) - first[owner] + 1
    near = 1e-9  # what rounding leaves of a sum
    crossed = np.where(total >= slow - near, int(Decision.SLOW), np.where(total <= fine + near, int(Decision.FINE), 0))
    decided = np.zeros(gpus, dtype=np.int64)
    after = count.astype(np.int64)
    ends = np.flatnonzero(crossed)[::-1]  # of several crossings of a GPU the first one stays
    decided[owner[ends]] = crossed[ends]
    after[owner[ends]] = place[ends]
    return decided, after
