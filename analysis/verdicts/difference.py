"""What changed between two times: of the whole fleet first, then the GPUs that moved against it.

Every GPU is its own reference: the median of its sittings before, against the median of those after. What changed for
most GPUs of a model alike is one step of the fleet. A GPU moved if its change differs from that step by more than the
other GPUs' changes do, so that what days do to all of them is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import by_number
from ..runs.probing import probed
from ..runs.sittings import Floats, Ints
from ..statistics.ordering import discoveries, median_interval
from .compare import LEAST_GPUS
from .judge import SHOWS_P
from .levels import LEAST, REACH_95, Levels, in_pct
from .model import Model, figures_of
from .null import Null

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
    model = Model(probed(opened, cluster=cluster, every=True))
    name, runs, began = model.campaign.cluster, model.runs, pl.col("began").cast(pl.Datetime("us"))
    old, new = runs.filter(began < before), runs.filter(began >= after)
    for part, word, limit in ((old, "before", before), (new, "after", after)):
        if part.is_empty():
            ends = runs.select(pl.col("began").min().alias("first"), pl.col("began").max().alias("last"))
            first, last = ends.select(pl.all().dt.date()).row(0)
            has = "none of its runs has a date" if first is None else f"it has runs from {first} to {last}"
            raise InputError(f"cluster {name} has no runs {word} {limit:%Y-%m-%d %H:%M}; {has}")
    by_workload = list(_by_workload(model, old, new))
    n = sum(step.n for step, _ in by_workload if step.compared)
    moved, lone = _moved([candidate for _, candidates in by_workload for candidate in candidates], n)
    named = {(move.workload, move.gpu) for move in moved}
    steps = (
        replace(step, moved=sum((move.workload, move.gpu) in named for move, _ in candidates))
        for step, candidates in by_workload
    )
    measured = [{*part["gpu_no"].unique()} for part in (old, new)]
    new_gpus, gone = (
        tuple(sorted((model.names[gpu] for gpu in gpus), key=by_number))
        for gpus in (measured[1] - measured[0], measured[0] - measured[1])
    )
    return Difference(
        cluster=name,
        before=before,
        after=after,
        steps=tuple(sorted(steps, key=lambda step: (-abs(step.step_pct), step.workload))),
        moved=tuple(sorted(moved, key=lambda move: -abs(move.against_pct))),
        new=new_gpus,
        gone=gone,
        identity=_identity(opened, name, before),
        looks=n,
        undated=int(runs["began"].is_null().sum()),
        lone=tuple(lone),
    )


_Candidate = tuple[Moved, bool]
"""A GPU that may have moved, with q-value 1, and whether all rests on one run, before or after."""


def _moved(candidates: Sequence[_Candidate], n: int) -> tuple[list[Moved], list[str]]:
    """Who moved, of `n` comparisons, and the names of GPUs that are not named, as one run alone shows it."""
    clear = {(move.gpu, move.against_pct > 0, move.workload) for move, _ in candidates if move.p <= SHOWS_P}

    def backed(move: Moved, lone: bool) -> bool:
        """As the judge does: if all rests on one run, another workload must agree."""
        same_way = (key for key in clear if key[:2] == (move.gpu, move.against_pct > 0))
        return not lone or any(key[2] != move.workload for key in same_way)

    # Over all comparisons, also the small changes that are left out.
    p_values = np.array([move.p for move, _ in candidates])
    sound = np.array([backed(move, lone) for move, lone in candidates], dtype=bool)
    would = discoveries(p_values, n) <= ERROR_RATE
    q_values = discoveries(np.where(sound, p_values, 1.0), n).tolist()
    moved = [replace(move, q=q) for (move, _), q in zip(candidates, q_values, strict=True) if q <= ERROR_RATE]
    alone = {candidates[place][0].name for place in np.flatnonzero(would & ~sound).tolist()}
    return moved, sorted(alone - {move.name for move in moved})


def _by_workload(model: Model, old: pl.DataFrame, new: pl.DataFrame) -> Iterator[tuple[Step, list[_Candidate]]]:
    """By workload and model of GPUs, the step of the fleet and who may have moved against it. `old`, `new`: runs."""
    before, after = (
        {(figure.workload, figure.model): figure.levels for figure in figures_of(runs, len(model.gpus))}
        for runs in (old, new)
    )
    for workload, of_model in sorted(before.keys() & after.keys(), key=lambda key: (key[0], str(key[1]))):
        sides = before[workload, of_model], after[workload, of_model]
        gpus = np.flatnonzero(sides[0].known & sides[1].known)
        if len(gpus):
            change = (sides[1].level - sides[0].level)[gpus]
            step = _step(workload, of_model, change, medians=[float(np.median(side.level[gpus])) for side in sides])
            yield step, list(_candidates(model, step, *sides, gpus=gpus)) if step.compared else []


def _step(workload: str, model: str | None, change: Floats, *, medians: Sequence[float]) -> Step:
    """The step of the GPUs of a workload and model, from their changes, and the medians before and after (ln ms)."""
    low_pct, high_pct = (None if end is None else in_pct(end) for end in median_interval(np.sort(change)))
    return Step(
        workload=workload,
        model=model,
        before_ms=math.exp(medians[0]),
        after_ms=math.exp(medians[1]),
        step_pct=in_pct(float(np.median(change))),
        low_pct=low_pct,
        high_pct=high_pct,
        n=len(change),
        moved=0,
        compared=len(change) >= LEAST_GPUS,
    )


def _candidates(model: Model, step: Step, old: Levels, new: Levels, *, gpus: Ints) -> Iterator[_Candidate]:
    """Who may have moved against the step, of these GPUs."""
    change = (new.level - old.level)[gpus]
    # A GPU of few sittings is known less well than the others.
    doubt = np.hypot(old.pooled, new.pooled)[gpus]
    poorer = np.sqrt(np.maximum(doubt**2 - float(np.median(doubt)) ** 2, 0.0))
    null = Null(change, max(LEAST, math.hypot(old.sat.rounding, new.sat.rounding)), slow_share=0.5)
    against = change - null.centre
    # It must also show in what one run of several that went wrong, before or after, cannot make.
    slower = (new.slow_side - old.fast_side)[gpus] - null.centre
    faster = (new.fast_side - old.slow_side)[gpus] - null.centre
    sure = np.where(against >= 0, np.maximum(slower, 0.0), np.minimum(faster, 0.0))
    p_values = np.where(null.p(sure, poorer) <= SHOWS_P, null.p(against, poorer), 1.0)
    for place in np.flatnonzero(np.abs(100 * np.expm1(against)) >= RELEVANT_PCT).tolist():
        gpu, off = int(gpus[place]), float(against[place])
        half = REACH_95 * math.hypot(null.scale(slow=off > 0), float(poorer[place]))
        move = Moved(
            name=model.names[gpu],
            gpu=model.gpus[gpu],
            workload=step.workload,
            before_ms=math.exp(old.level[gpu]),
            after_ms=math.exp(new.level[gpu]),
            change_pct=in_pct(float(change[place])),
            against_pct=in_pct(off),
            low_pct=in_pct(off - half),
            high_pct=in_pct(off + half),
            p=float(p_values[place]),
            q=1.0,
            n=step.n,
            sittings_before=int(old.sittings[gpu]),
            sittings_after=int(new.sittings[gpu]),
        )
        yield move, bool(old.runs[gpu] == 1 or new.runs[gpu] == 1)


def _identity(store: Store, cluster: str, before: datetime) -> dict[str, int]:
    """How many GPUs have another driver, firmware or place after than before."""
    identities = store.scan("gpus").filter(pl.col("cluster") == cluster).sort("first_seen", nulls_last=False)
    rows = store.collect(identities.select("gpu", "first_seen", *(pl.col(name).cast(pl.String) for name in _IDENTITY)))
    at = pl.col("first_seen").cast(pl.Datetime("us"))
    first, last = (
        part.group_by("gpu").agg(pl.col(name).drop_nulls().last() for name in _IDENTITY)
        for part in (rows.filter(at.is_null() | (at < before)), rows)
    )
    changes = first.join(last, on="gpu", suffix="_after")
    changed = {word: int((changes[name] != changes[f"{name}_after"]).sum()) for name, word in _IDENTITY.items()}
    return {word: n for word, n in changed.items() if n}
