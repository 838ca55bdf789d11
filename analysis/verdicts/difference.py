"""What changed between two times: of the whole fleet first, then the GPUs that moved against it.

Every GPU is its own reference: the median of its sittings before, against the median of those after. What changed for
most GPUs of a model alike is one step of the fleet. A GPU moved if its change differs from that step by more than the
other GPUs' changes do, so that what days do to all of them is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import by_number
from ..runs.probing import Probed, names_of, probed
from ..statistics.ordering import median_interval
from .changes import discoveries
from .compare import LEAST_GPUS
from .judge import SHOWS_P
from .levels import REACH_95, Levels, in_pct
from .model import usable
from .null import Null
from .standing import standings
from .variance import LEAST

if TYPE_CHECKING:
    from ...store import Store

ERROR_RATE = 0.05
"""Expected share of false ones among the GPUs named (Benjamini and Hochberg), where changes are as
`null` takes them to be. By simulation: 0 for normal sittings, 6 to 13 % for Student's t with 4 degrees of freedom."""
RELEVANT_PCT = 1.0
_IDENTITY = {"driver": "driver", "vbios": "VBIOS", "node": "node", "slot": "slot", "power_limit_mw": "power limit"}


@dataclass(frozen=True, slots=True)
class Step:
    """What changed for the GPUs of a model in a workload; slower is positive."""

    workload: str
    model: str | None
    before_ms: float
    after_ms: float
    step_pct: float
    """The median change of a GPU."""
    low_pct: float | None
    high_pct: float | None
    """Its 95 % interval, from the order of the changes; None for fewer than six GPUs."""
    n: int
    """GPUs measured before and after."""
    moved: int
    """How many of them moved against it."""
    compared: bool
    """Whether GPUs could be told apart: enough were measured before and after."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A GPU that moved against the fleet; slower is positive."""

    name: str
    gpu: str
    workload: str
    before_ms: float
    after_ms: float
    change_pct: float
    against_pct: float
    """Its change beyond that of the fleet."""
    low_pct: float
    high_pct: float
    """95 % interval of `against_pct`."""
    p: float
    q: float
    n: int
    sittings_before: int
    sittings_after: int


@dataclass(frozen=True)
class Difference:
    """What changed between two times."""

    cluster: str
    before: datetime
    after: datetime
    steps: tuple[Step, ...]
    moved: tuple[Moved, ...]
    """The largest first."""
    new: tuple[str, ...]
    gone: tuple[str, ...]
    identity: Mapping[str, int]
    """By what changed (driver, VBIOS, node, ...), how many GPUs have another one after."""
    looks: int
    """How many comparisons were made."""
    undated: int
    """Runs that were left out, as their time is not known."""
    lone: tuple[str, ...]
    """Names of GPUs that are not named, as one run alone shows that they moved."""


def difference(
    store: Store | str | Path, before: datetime, after: datetime, *, cluster: str | None = None
) -> Difference:
    """Compare the runs that began before `before` with those that began at `after` or later (UTC).

    InputError where the times are in the wrong order, or one of the two has no runs.
    """
    from ...store import Store

    if before > after:
        raise InputError(f"--before {before:%Y-%m-%d} must not be later than --after {after:%Y-%m-%d}")
    opened = store if isinstance(store, Store) else Store.open(store)
    campaign = probed(opened, cluster=cluster, every=True)
    at = pl.col("began").cast(pl.Datetime("us"))
    runs, _ = usable(campaign)
    old, new = runs.filter(at < before), runs.filter(at >= after)
    for part, word, limit in ((old, "before", before), (new, "after", after)):
        if part.is_empty():
            days = runs.select(pl.col("began").min().alias("first"), pl.col("began").max().alias("last"))
            first, last = days.select(pl.all().dt.date()).row(0)
            has = "none of its runs has a date" if first is None else f"it has runs from {first} to {last}"
            raise InputError(f"cluster {campaign.cluster} has no runs {word} {limit:%Y-%m-%d %H:%M}; {has}")
    names = names_of(campaign.gpus)
    comparison = _compared(old, new, campaign.gpus, names)
    measured = [{*part["gpu"].unique()} for part in (old, new)]
    newcomers, gone = (
        tuple(sorted((names.get(gpu, gpu) for gpu in gpus), key=by_number))
        for gpus in (measured[1] - measured[0], measured[0] - measured[1])
    )
    return Difference(
        cluster=campaign.cluster,
        before=before,
        after=after,
        steps=tuple(comparison.steps),
        moved=tuple(comparison.moved),
        new=newcomers,
        gone=gone,
        identity=_identity(opened, campaign, before),
        looks=comparison.looks,
        undated=int(runs["began"].is_null().sum()),
        lone=tuple(comparison.lone),
    )


@dataclass(frozen=True)
class _Comparison:
    steps: list[Step]
    moved: list[Moved]
    looks: int
    lone: list[str]


def _compared(old: pl.DataFrame, new: pl.DataFrame, gpus: pl.DataFrame, names: Mapping[str, str]) -> _Comparison:
    before, after = (
        {(figure.workload, figure.model): figure.levels for figure in standings(part, gpus, least=None)}
        for part in (old, new)
    )
    keys = gpus["gpu"].to_list()
    by_workload: list[tuple[Step, list[Moved]]] = []
    single_run: set[tuple[str, str]] = set()
    for workload, model in sorted(before.keys() & after.keys(), key=lambda key: (key[0], str(key[1]))):
        sides = before[workload, model], after[workload, model]
        if not (sides[0].known & sides[1].known).any():
            continue
        by_workload.append(_of_workload((workload, model), *sides, keys=keys, names=names))
        few = (sides[0].runs == 1) | (sides[1].runs == 1)
        single_run |= {(workload, keys[gpu]) for gpu in np.flatnonzero(few).tolist()}
    candidates = [move for _, moves in by_workload for move in moves]
    looks = sum(step.n for step, _ in by_workload if step.compared)
    clear = {(move.gpu, move.against_pct > 0, move.workload) for move in candidates if move.p <= SHOWS_P}

    def backed(move: Moved) -> bool:
        """As the judge does: if all rests on one run, another workload must agree."""
        same_way = (key for key in clear if key[:2] == (move.gpu, move.against_pct > 0))
        return (move.workload, move.gpu) not in single_run or any(key[2] != move.workload for key in same_way)

    # Over all comparisons, also the small changes that are left out.
    p_values, sound = np.array([move.p for move in candidates]), np.array([backed(move) for move in candidates], bool)
    would = discoveries(p_values, looks) <= ERROR_RATE
    q_values = discoveries(np.where(sound, p_values, 1.0), looks)
    moved = [replace(move, q=float(q)) for move, q in zip(candidates, q_values, strict=True) if q <= ERROR_RATE]
    named = {(move.workload, move.gpu) for move in moved}
    steps = [
        replace(step, moved=sum((move.workload, move.gpu) in named for move in moves)) for step, moves in by_workload
    ]
    lone = {candidates[place].name for place in np.flatnonzero(would & ~sound)} - {move.name for move in moved}
    return _Comparison(
        sorted(steps, key=lambda step: (-abs(step.step_pct), step.workload)),
        sorted(moved, key=lambda move: -abs(move.against_pct)),
        looks,
        sorted(lone),
    )


def _of_workload(
    key: tuple[str, str | None], old: Levels, new: Levels, *, keys: Sequence[str], names: Mapping[str, str]
) -> tuple[Step, list[Moved]]:
    """The step of the GPUs of a workload and model (`key`), and who may have moved against it, with q-value 1.

    `keys`: of the GPUs, in the order of the arrays; `names`: by key.
    """
    workload, model = key
    on = np.flatnonzero(old.known & new.known)
    change = new.level[on] - old.level[on]
    n, middle = len(on), float(np.median(change))
    before_ms, after_ms = (math.exp(float(np.median(side.level[on]))) for side in (old, new))
    low_pct, high_pct = (None if end is None else in_pct(end) for end in median_interval(np.sort(change)))
    step = Step(
        workload=workload,
        model=model,
        before_ms=before_ms,
        after_ms=after_ms,
        step_pct=in_pct(middle),
        low_pct=low_pct,
        high_pct=high_pct,
        n=n,
        moved=0,
        compared=n >= LEAST_GPUS,
    )
    if not step.compared:
        return step, []
    # A GPU of few sittings is known less well than the others.
    doubt = np.hypot(old.pooled, new.pooled)[on]
    poorer = np.sqrt(np.maximum(doubt**2 - float(np.median(doubt)) ** 2, 0.0))
    null = Null(change, max(LEAST, math.hypot(old.sat.rounding, new.sat.rounding)), slow_share=0.5)
    against = change - null.centre
    # It must also show in what one run of several that went wrong, before or after, cannot make.
    slower = (new.slow_side - old.fast_side)[on] - null.centre
    faster = (new.fast_side - old.slow_side)[on] - null.centre
    sure = np.where(against >= 0, np.maximum(slower, 0.0), np.minimum(faster, 0.0))
    p_values = np.where(null.p(sure, poorer) <= SHOWS_P, null.p(against, poorer), 1.0)
    moves = []
    for place, gpu in enumerate(on.tolist()):
        off = float(against[place])
        if abs(in_pct(off)) < RELEVANT_PCT:
            continue
        half = REACH_95 * math.hypot(null.scale(slow=off > 0), float(poorer[place]))
        moves.append(
            Moved(
                name=names.get(keys[gpu], keys[gpu]),
                gpu=keys[gpu],
                workload=workload,
                before_ms=math.exp(old.level[gpu]),
                after_ms=math.exp(new.level[gpu]),
                change_pct=in_pct(float(change[place])),
                against_pct=in_pct(off),
                low_pct=in_pct(off - half),
                high_pct=in_pct(off + half),
                p=float(p_values[place]),
                q=1.0,
                n=n,
                sittings_before=int(old.sittings[gpu]),
                sittings_after=int(new.sittings[gpu]),
            )
        )
    return step, moves


def _identity(store: Store, campaign: Probed, before: datetime) -> dict[str, int]:
    """How many GPUs have another driver, firmware or place after than before."""
    identities = store.scan("gpus").filter(pl.col("cluster") == campaign.cluster).sort("first_seen", nulls_last=False)
    identities = identities.select("gpu", "first_seen", *(pl.col(name).cast(pl.String) for name in _IDENTITY))
    frame = store.collect(identities)
    at = pl.col("first_seen").cast(pl.Datetime("us"))
    first = (
        frame.filter(at.is_null() | (at < before))
        .group_by("gpu")
        .agg(pl.col(name).drop_nulls().last() for name in _IDENTITY)
    )
    last = frame.group_by("gpu").agg(pl.col(name).drop_nulls().last() for name in _IDENTITY)
    changes = first.join(last, on="gpu", suffix="_after")
    changed = {word: int((changes[name] != changes[f"{name}_after"]).sum()) for name, word in _IDENTITY.items()}
    return {word: n for word, n in changed.items() if n}
