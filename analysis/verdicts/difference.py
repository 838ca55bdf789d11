"""What changed between two times: of the whole fleet first, then the GPUs that moved against it.

Every GPU is its own reference: the median of its sittings before, against the median of those after. What changed for
most GPUs of a model alike is one step of the fleet. A GPU moved if its change differs from that step by more than the
other GPUs' changes do, so that what days do to all of them is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import by_number
from ..runs.probing import Probed, names_of, probed
from ..statistics.ordering import median_interval
from .answers.standing import standings
from .compare import LEAST_GPUS
from .judge import SHOWS_P
from .levels import LEAST, REACH_95, Levels, in_pct
from .model import usable
from .null import Null
from .past.own_past import discoveries

if TYPE_CHECKING:
    from ...store import Store

ERROR_RATE = 0.05
"""Expected share of false ones among the GPUs named (Benjamini and Hochberg), where changes are as
`null` takes them to be. By simulation: 0 for normal sittings, 6 to 13 % for Student's t with 4 degrees of freedom."""
RELEVANT_PCT = 1.0
_NAMED = 6  # GPUs in a sentence
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
    why: str | None
    """Why GPUs could not be told apart, in a sentence; None where they could."""


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
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The document of `whorl.diff/1`."""
        found: dict[str, Any] = {"schema": "whorl.diff/1", "cluster": self.cluster}
        found |= {"before": self.before, "after": self.after, "looks": self.looks, "error_rate": ERROR_RATE}
        found |= {"steps": [asdict(one) for one in self.steps], "moved": [asdict(one) for one in self.moved]}
        found |= {"new": list(self.new), "gone": list(self.gone), "identity": dict(self.identity)}
        return found | {"notes": list(self.notes)}


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
    for some, word, when in ((old, "before", before), (new, "after", after)):
        if some.is_empty():
            days = runs.select(pl.col("began").min().alias("first"), pl.col("began").max().alias("last"))
            first, last = days.select(pl.all().dt.date()).row(0)
            has = "none of its runs has a date" if first is None else f"it has runs from {first} to {last}"
            raise InputError(f"cluster {campaign.cluster} has no runs {word} {when:%Y-%m-%d %H:%M}; {has}")
    notes = []
    if untimed := int(runs["began"].is_null().sum()):
        notes.append(f"left out: {untimed:,} runs whose time is not known")
    names = names_of(campaign.gpus)
    steps, moved, looks, alone = _compared(old, new, campaign.gpus, names)
    if alone:
        which = ", ".join(alone[:_NAMED]) + (" and others" if len(alone) > _NAMED else "")
        gpus = "1 GPU" if len(alone) == 1 else f"{len(alone)} GPUs"
        notes.append(f"not named, as one run alone shows that it moved: {gpus} ({which}); measure again to know")
    seen = [{*some["gpu"].unique()} for some in (old, new)]
    newcomers, gone = (
        tuple(sorted((names.get(gpu, gpu) for gpu in seen[1 - i] - seen[i]), key=by_number)) for i in (0, 1)
    )
    return Difference(
        campaign.cluster, before, after, tuple(steps), tuple(moved), newcomers, gone,
        _identity(opened, campaign, before), looks, tuple(notes),
    )  # fmt: skip


def _compared(
    old: pl.DataFrame, new: pl.DataFrame, gpus: pl.DataFrame, names: Mapping[str, str]
) -> tuple[list[Step], list[Moved], int, list[str]]:
    """The steps, who moved, how many comparisons were made, and who would have moved if one run could tell it."""
    sides = [
        {(one.workload, one.model): one.levels for one in standings(some, gpus, least=None)} for some in (old, new)
    ]
    keys = gpus["gpu"].to_list()
    told: list[tuple[Step, list[Moved]]] = []
    lone: set[tuple[str, str]] = set()
    for workload, model in sorted(sides[0].keys() & sides[1].keys(), key=lambda one: (one[0], str(one[1]))):
        before, after = (side[workload, model] for side in sides)
        if not (before.known & after.known).any():
            continue
        told.append(_of_workload(workload, model, before, after, keys, names))
        lone |= {(workload, keys[gpu]) for gpu in np.flatnonzero((before.runs == 1) | (after.runs == 1)).tolist()}
    moved = [one for _, some in told for one in some]
    looks = sum(step.n for step, _ in told if step.why is None)
    clear = {(one.gpu, one.against_pct > 0, one.workload) for one in moved if one.p <= SHOWS_P}
    # As the judge does: if all rests on one run, another workload must agree.
    backed = np.array(
        [
            (one.workload, one.gpu) not in lone
            or any(key[:2] == (one.gpu, one.against_pct > 0) and key[2] != one.workload for key in clear)
            for one in moved
        ],
        dtype=bool,
    )
    # Over all comparisons, also the small changes that are left out.
    p = np.array([one.p for one in moved])
    counted = discoveries(p, looks) <= ERROR_RATE
    alone = {one.name for one, would, by in zip(moved, counted, backed, strict=True) if would and not by}
    q = discoveries(np.where(backed, p, 1.0), looks)
    kept = [replace(one, q=float(its)) for one, its in zip(moved, q, strict=True) if its <= ERROR_RATE]
    named = {(one.workload, one.gpu) for one in kept}
    steps = [replace(step, moved=sum((one.workload, one.gpu) in named for one in some)) for step, some in told]
    steps.sort(key=lambda one: (-abs(one.step_pct), one.workload))
    alone -= {one.name for one in kept}
    return steps, sorted(kept, key=lambda one: -abs(one.against_pct)), looks, sorted(alone)


def _of_workload(
    workload: str, model: str | None, old: Levels, new: Levels, keys: Sequence[str], names: Mapping[str, str]
) -> tuple[Step, list[Moved]]:
    on = np.flatnonzero(old.known & new.known)
    change = new.level[on] - old.level[on]
    n, middle = len(on), float(np.median(change))
    gpus = "1 GPU" if n == 1 else f"{n} GPUs"
    why = None if n >= LEAST_GPUS else f"{gpus} measured before and after; {LEAST_GPUS} are needed"
    before, after = (math.exp(float(np.median(side.level[on]))) for side in (old, new))
    low_pct, high_pct = (None if end is None else in_pct(end) for end in median_interval(np.sort(change)))
    step = Step(workload, model, before, after, in_pct(middle), low_pct, high_pct, n, 0, why)
    if why is not None:
        return step, []
    # A GPU of few sittings is known less well than the others.
    doubt = np.hypot(old.pooled, new.pooled)[on]
    more = np.sqrt(np.maximum(doubt**2 - float(np.median(doubt)) ** 2, 0.0))
    null = Null(change, max(LEAST, math.hypot(old.sat.rounding, new.sat.rounding)))
    against = change - null.centre
    # It must also show in what one run of several that went wrong, before or after, cannot make.
    slower = (new.slow_side - old.fast_side)[on] - null.centre
    faster = (new.fast_side - old.slow_side)[on] - null.centre
    sure = np.where(against >= 0, np.maximum(slower, 0.0), np.minimum(faster, 0.0))
    p = np.where(null.p(sure, more) <= SHOWS_P, null.p(against, more), 1.0)
    moved = []
    for place, gpu in enumerate(on.tolist()):
        off = float(against[place])
        if abs(in_pct(off)) < RELEVANT_PCT:
            continue
        half = REACH_95 * math.hypot(null.scale(slow=off > 0), float(more[place]))
        moved.append(
            Moved(
                names.get(keys[gpu], keys[gpu]), keys[gpu], workload, math.exp(old.level[gpu]),
                math.exp(new.level[gpu]), in_pct(float(change[place])), in_pct(off), in_pct(off - half),
                in_pct(off + half), float(p[place]), 1.0, n, int(old.sittings[gpu]), int(new.sittings[gpu]),
            )
        )  # fmt: skip
    return step, moved


def _identity(store: Store, campaign: Probed, before: datetime) -> dict[str, int]:
    """How many GPUs have another driver, firmware or place after than before."""
    known = store.scan("gpus").filter(pl.col("cluster") == campaign.cluster).sort("first_seen", nulls_last=False)
    known = known.select("gpu", "first_seen", *(pl.col(name).cast(pl.String) for name in _IDENTITY))
    frame = store.collect(known)
    at = pl.col("first_seen").cast(pl.Datetime("us"))
    seen = (
        frame.filter(at.is_null() | (at < before))
        .group_by("gpu")
        .agg(pl.col(name).drop_nulls().last() for name in _IDENTITY)
    )
    last = frame.group_by("gpu").agg(pl.col(name).drop_nulls().last() for name in _IDENTITY)
    both = seen.join(last, on="gpu", suffix="_after")
    changed = {word: int((both[name] != both[f"{name}_after"]).sum()) for name, word in _IDENTITY.items()}
    return {word: n for word, n in changed.items() if n}
