"""Which GPUs to probe next: those whose next sitting is expected to tell most, in the time that there is.

What is known of a GPU's level is a distribution over a grid: first that of the fleet (most GPUs near their peers, one
in fifty faulty), then what its sittings say, then, with age, the fleet's again. A sitting is worth the uncertainty
(entropy, bits) about "slower than the threshold" that it is expected to take away. A GPU whose sequential test has
ended leaves, until its last sitting is too old.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import plain_workload, same_work
from ..runs.probing import Probed, campaigns, other_names, probed
from ..runs.sittings import Floats, Ints
from ..spread.passive import passive
from .answers.standing import Standing, standings
from .compare import LEAST_GPUS
from .model import usable
from .recording import newest, watched
from .verdict import Kind, Level, State

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
_SITTING, _SILICON = 0.01, 0.01
"""Standard deviations of a sitting and between GPUs, where the fleet does not tell them."""
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
    reason: str
    """`why` in plain words."""


@dataclass(frozen=True)
class Planned:
    """What to probe next, the most telling first."""

    cluster: str
    probes: tuple[str, ...]
    budget_s: float
    gpus: tuple[Next, ...]
    """Those that fit into the budget."""
    left_out: int
    """How many more are worth measuring."""
    decided: dict[str, int]
    """How many GPUs need no probe now, by what was decided."""
    passive: str | None
    """What the power of ordinary jobs added, in a sentence; None where nothing."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The document of `whorl.plan/1`."""
        found = {name: getattr(self, name) for name in ("cluster", "budget_s", "left_out", "decided", "passive")}
        found |= {"probes": list(self.probes), "notes": list(self.notes)}
        return {"schema": "whorl.plan/1", **found, "gpus": [asdict(one) | {"why": str(one.why)} for one in self.gpus]}


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
    gpus, of = _gpus(store, cluster)
    campaign = probed(store, cluster=of, every=True) if _has_runs(store, of) else None
    runs = _runs(campaign, probes, at)
    known = _known(campaign, runs, gpus["gpu"].to_list(), math.log1p(threshold_pct / 100), at)
    score, spread, said = _passive(store, of, gpus, known)
    bits, chance = _worth(known, score, spread, math.log1p(threshold_pct / 100))
    told = _told(store, of)
    rows: list[tuple[tuple[Any, ...], Next]] = []
    decided: dict[str, int] = {}
    for place, row in enumerate(gpus.iter_rows(named=True)):
        why, reason = _why(
            told.get(row["name"], {}), known, place, float(chance[place]), score[place] > 0, threshold_pct
        )
        if why is Why.UNDECIDED and known.decision[place] != Decision.OPEN:
            word = "slow" if known.decision[place] == Decision.SLOW else "fine"
            decided[word] = decided.get(word, 0) + 1
            continue
        one = Next(
            row["gpu"], row["name"], row["node"], why, float(bits[place]), float(chance[place]),
            int(known.sittings[place]), known.last[place], seconds, reason,
        )  # fmt: skip
        worth = round(one.bits, 3)  # a thousandth of a bit tells nothing: the order is that of dates and names then
        rows.append(((_FIRST.get(why, len(_FIRST)), -worth, one.last or datetime.min, one.name), one))  # noqa: DTZ901
    rows.sort(key=lambda item: item[0])
    fit = max(0, math.floor(budget_s / seconds))
    notes = [f"one GPU takes {seconds:.0f} s, which is longer than the budget"] if not fit else []
    if runs is not None and runs.is_empty():
        notes.append(f"no runs of {' or '.join(probes)} yet: all GPUs are worth the same")
    return Planned(
        of,
        tuple(probes),
        budget_s,
        tuple(one for _, one in rows[:fit]),
        max(0, len(rows) - fit),
        decided,
        said,
        tuple(notes),
    )


def _why(
    told: Mapping[State, str], known: _Known, place: int, chance: float, passive: bool, threshold_pct: float
) -> tuple[Why, str]:
    """Why a GPU is worth measuring, and the same in plain words. `told`: what the newest judgement says of it."""
    sittings, age = int(known.sittings[place]), float(known.age[place])
    old = sittings > 0 and age > OLD_DAYS
    if State.SUSPECTED in told and not (old and State.CONFIRMED in told):
        return Why.SUSPECTED, told[State.SUSPECTED]
    if sittings == 0:
        if passive and chance >= 0.5:
            return Why.PASSIVE, "never measured; the power of its jobs says slow"
        return Why.NEVER, "never measured"
    if old:
        days = f"{age:,.0f} days ago" if math.isfinite(age) else "at an unknown time"
        if State.CONFIRMED in told:
            return Why.FOUND, f"{told[State.CONFIRMED]} {days}: repaired since?"
        if known.decision[place] == Decision.SLOW:
            return Why.OLD, f"slow {days}: still so?"
        was = "fine" if known.decision[place] == Decision.FINE else "not decided"
        return Why.OLD, f"{was}, but measured {days}"
    if sittings == 1:
        return Why.UNDECIDED, "one sitting: another one is needed"
    off, half = float(known.level[place]), float(known.half[place])
    says, low, high = (f"{100 * math.expm1(end):+.1f}" for end in (off, off - half, off + half))
    reach = f" [{low}, {high}]" if math.isfinite(half) else ""  # as `explain` has it
    return Why.UNDECIDED, f"{says}{reach} %: too near to {threshold_pct:g} %"


def _gpus(store: Store, cluster: str | None) -> tuple[pl.DataFrame, str]:
    """The whole GPUs of the cluster: gpu, name, node."""
    rows = store.sql("select cluster, gpu, name, node, uuid, parent, mig_profile from gpus_now").polars()
    clusters = sorted(rows["cluster"].drop_nulls().unique().to_list())
    if cluster is None and len(clusters) > 1:
        raise InputError(f"{store.root} has GPUs of {', '.join(clusters)}: choose one by --cluster")
    if not clusters or (cluster is not None and cluster not in clusters):
        of = f" of cluster {cluster!r}; it has {', '.join(clusters)}" if clusters else ""
        raise InputError(f"{store.root} holds no GPUs{of}: `whorl collect` or `whorl probe run` adds those of a node")
    of = cluster or clusters[0]
    twice = list(other_names(store, of))  # names that a GPU has beside its UUID
    mine = rows.filter((pl.col("cluster") == of) & pl.col("parent").is_null() & ~pl.col("gpu").is_in(twice)).sort(
        "name"
    )
    return mine.select("gpu", "name", "node"), of


def _has_runs(store: Store, cluster: str) -> bool:
    return cluster in campaigns(store)["cluster"].to_list()


def _runs(campaign: Probed | None, probes: Collection[str], now: datetime) -> pl.DataFrame | None:
    """The runs of the probes, or of the same work under other names."""
    if campaign is None:
        return None
    names = {name for probe in probes for name in same_work(probe)}
    wanted = [name for name in campaign.probes if plain_workload(name) in names]
    return usable(campaign, now)[0].filter(pl.col("workload").is_in(wanted))


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
    sd: float
    """Of a sitting."""
    silicon: float
    """Between GPUs, without those that are far off."""


def _known(
    campaign: Probed | None, runs: pl.DataFrame | None, gpus: Sequence[str], effect: float, now: datetime
) -> _Known:
    n = len(gpus)
    found = _Known(
        np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64), np.full(n, np.inf),
        [None] * n, np.zeros(n, np.int64), _SITTING, _SILICON,
    )  # fmt: skip
    if campaign is None or runs is None or runs.is_empty():
        return found
    number = {gpu: place for place, gpu in enumerate(gpus)}
    place = np.array([number.get(gpu, -1) for gpu in campaign.gpus["gpu"]])
    stood = standings(runs, campaign.gpus)
    again = [one.levels.again for one in stood if one.levels.between_known]
    if again:
        found.sd = max(_LEAST, float(np.median(again)))
    off = np.array([one.off for one in stood])
    if np.isfinite(off).sum() >= LEAST_GPUS:
        found.silicon = max(_LEAST, 1.4826 * float(np.nanmedian(np.abs(off))))
    there = np.flatnonzero(np.isfinite(off).any(axis=0) & (place >= 0))
    worst = np.nanargmax(off[:, there], axis=0)
    found.level[place[there]] = off[worst, there]
    found.half[place[there]] = np.array([one.half for one in stood])[worst, there]
    found.sittings[place[there]] = np.array([one.levels.sittings for one in stood])[worst, there]
    found.doubt = found.sd / np.sqrt(np.maximum(found.sittings, 1))
    last = runs.group_by("gpu").agg(pl.col("began").max().cast(pl.Datetime("us")))
    for gpu, at in last.filter(pl.col("gpu").is_in(list(number))).iter_rows():
        found.last[number[gpu]] = at
        found.age[number[gpu]] = np.inf if at is None else (now - at).total_seconds() / 86_400
    found.decision = _decisions(stood, place, n, effect, found.sd)
    return found


def _decisions(stood: Sequence[Standing], place: Ints, gpus: int, effect: float, sd: float) -> Ints:
    """Decided: slow in any workload, or fine in all that it was measured in. `place`: of each GPU of the arrays."""
    slow, open_ = np.zeros(gpus, bool), np.zeros(gpus, bool)
    for one in stood:
        sat = one.levels.sat
        mine = place[sat.series] >= 0
        owner = place[sat.series[mine]]
        deviation = (sat.value - one.levels.steps - one.centre[sat.series])[mine]
        found, _ = decide(owner, deviation, gpus, effect=effect, sd=sd)
        slow |= found == Decision.SLOW
        open_[owner] |= found[owner] == Decision.OPEN
    return np.where(slow, int(Decision.SLOW), np.where(open_, int(Decision.OPEN), int(Decision.FINE)))


def _worth(known: _Known, score: Floats, spread: Floats, threshold: float) -> tuple[Floats, Floats]:
    """(gpus,) bits that another sitting is expected to tell, and the chance of being slower than the threshold.

    `score`, `spread`: of `_passive`.
    """
    n = len(known.level)
    healthy = _normal(_GRID[None, :] - score[:, None], spread[:, None])
    faulty = _normal(_GRID, _FAULT)[None, :]
    prior = (1 - _FAULTY) * _rows_to_one(healthy) + _FAULTY * _rows_to_one(faulty)
    bits, chance = np.empty(n), np.empty(n)
    sees = _normal(_GRID[:, None] - _GRID[None, :], known.sd)  # (seen, level)
    sees /= sees.sum(axis=0, keepdims=True)
    beyond = (threshold < _GRID).astype(np.float64)
    for begin in range(0, n, _CHUNK):
        some = slice(begin, begin + _CHUNK)
        level, doubt = known.level[some, None], known.doubt[some, None]
        seen = np.where(
            np.isfinite(level), _normal(_GRID[None, :] - np.nan_to_num(level), np.nan_to_num(doubt, nan=1.0)), 1.0
        )
        fresh = 0.5 ** (known.age[some, None] / _HALF_DAYS)
        after = _rows_to_one(prior[some] * (seen + 1e-12))
        belief = fresh * after + (1 - fresh) * prior[some]
        chance[some] = belief @ beyond
        of_seen = belief @ sees.T
        slow = np.divide((belief * beyond) @ sees.T, of_seen, out=np.zeros_like(of_seen), where=of_seen > 0)
        bits[some] = np.maximum(0.0, _entropy(chance[some]) - (of_seen * _entropy(slow)).sum(axis=1))
    return bits, chance


def _normal(at: Floats, sd: Floats | float) -> Floats:
    found: Floats = np.exp(-0.5 * (at / sd) ** 2) / sd
    return found


def _rows_to_one(weights: Floats) -> Floats:
    found: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return found


def _entropy(p: Floats) -> Floats:
    """Of yes or no, bits."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    found: Floats = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return found


def _passive(store: Store, cluster: str, gpus: pl.DataFrame, known: _Known) -> tuple[Floats, Floats, str | None]:
    """(gpus,) by how much the power of ordinary jobs expects a GPU to be slower, ln; 0 where it says nothing. And the
    standard deviation of a healthy GPU about that.

    A rank of power tells a rank of speed with some correlation: the expected place is that share of its own place, and
    the more it tells, the less is left to chance.
    """
    nothing, spread = np.zeros(gpus.height), np.full(gpus.height, known.silicon)
    if not (known.sittings == 0).any() or not _has_runs(store, cluster):
        return nothing, spread, None
    found = passive(store, cluster=cluster)
    worth = [one for one in found.worth if one.expected is not None and one.gpus >= LEAST_GPUS]
    if not worth:
        return nothing, spread, None
    best = max(worth, key=lambda one: one.gpus)
    rows = found.rows.filter((pl.col("workload") == best.workload) & pl.col("score").is_not_null())
    place = (pl.col("score").rank("average") - 0.5) / pl.len()
    normal = rows.select("gpu", (2 * place - 1).alias("u"))
    assert best.expected is not None
    rho = best.expected.spearman
    # The normal quantile of the place, to a few thousandths, by its logistic form.
    by_gpu = {gpu: math.log((1 + u) / (1 - u)) / 1.702 for gpu, u in normal.iter_rows()}
    never = known.sittings == 0
    score = np.array([by_gpu.get(gpu, 0.0) for gpu in gpus["gpu"]]) * rho * known.silicon * never
    helped = int(((score != 0) & never).sum())
    if not helped:
        return nothing, spread, None
    told = gpus["gpu"].is_in(list(by_gpu)).to_numpy() & never
    spread[told] = max(_LEAST, known.silicon * math.sqrt(1 - rho**2))
    said = (
        f"{helped:,} GPUs that were never probed are ranked by the power of {best.workload} jobs (expected rank "
        f"correlation with speed {rho:.2f} [{best.expected.low:.2f}, {best.expected.high:.2f}], n {best.expected.n})"
    )
    return score, spread, said


def _told(store: Store, cluster: str) -> dict[str, dict[State, str]]:
    """By name, what the newest judgement says against a GPU or its node, in plain words: the worst of each state."""
    again = "its newest sitting was slower: measure again"
    found: dict[str, dict[State, str]] = {name: {State.SUSPECTED: again} for name in watched(store, cluster)}
    for row in (row for one in newest(store) if one.cluster == cluster for row in one.rows):
        if row.level is Level.BATCH or (row.kind is Kind.FAST and row.state is State.CONFIRMED):
            continue
        words = f"{row.kind}, {row.state}" + ("" if row.level is Level.GPU else " of its node")
        for name in row.gpus:
            said = f"{words}: measure again" if row.state is State.SUSPECTED else words
            found.setdefault(name, {}).setdefault(row.state, said)
    return found


def decide(owner: Ints, deviation: Floats, gpus: int, *, effect: float, sd: float) -> tuple[Ints, Ints]:
    """(gpus,) the decision about each GPU, and after how many sittings it fell (all of them, where it is open).

    `owner`: the number of the GPU of each sitting, in the order of time; `deviation`: ln(time / peers' time) of it;
    `effect`: such a deviation that matters; `sd`: standard deviation of a sitting; both above 0.

    A. Wald's test (Annals of Mathematical Statistics 16, 1945) of two levels, 0 and `effect`: the sum of the logarithms
    of the likelihood ratios ends it at one of two bounds. A sitting counts at most half of the way to a bound, so that
    no single one decides. By simulation (tests/analysis/verdicts/test_sequential.py) the two chances hold with normal
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
