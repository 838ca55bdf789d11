"""What changed between two times: of the whole fleet first, then the GPUs that moved against it.

Every GPU is its own reference: the median of its sittings before, against the median of those after. What changed for
most GPUs of a model alike is one step of the fleet. A GPU moved if its change differs from that step by more than the
other GPUs' changes do, so that what days do to all of them is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...errors import InputError
from ...store.names import gpu_name
from ..probing import Probed, probed
from .null import Null
from .standing import by_sitting, standing

if TYPE_CHECKING:
    from ...store import Store

Floats = npt.NDArray[np.float64]

ERROR_RATE = 0.05
"""Expected share of false ones among the GPUs named (Benjamini and Hochberg), where changes are as
`null` takes them to be. By simulation: 0 for normal sittings, 6 to 13 % for Student's t with 4 degrees of freedom."""
RELEVANT_PCT = 1.0
LEAST_GPUS = 8
"""Measured before and after, in one workload: with fewer, nobody knows how far changes usually differ."""
_REACH = 2.6  # of Student's t with 5 degrees of freedom, 97.5 %: sittings have heavier tails than the normal one
_FLOOR = 1e-4  # of a time: none is known better
_OF = ["workload", "model"]
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
    runs = campaign.sound.filter(pl.col("value").is_finite() & (pl.col("value") > 0))
    old, new = runs.filter(at < before), runs.filter(at >= after)
    for some, word, when in ((old, "before", before), (new, "after", after)):
        if some.is_empty():
            days = runs.select(pl.col("began").min().alias("first"), pl.col("began").max().alias("last"))
            first, last = (str(day) for day in days.select(pl.all().dt.date()).row(0))
            raise InputError(
                f"cluster {campaign.cluster} has no runs {word} {when:%Y-%m-%d %H:%M}; it has runs from {first} to "
                f"{last}"
            )
    notes = []
    if untimed := int(runs["began"].is_null().sum()):
        notes.append(f"left out: {untimed:,} runs whose time is not known")
    names = {
        gpu: gpu_name(gpu, node, slot) for gpu, node, slot in campaign.gpus.select("gpu", "node", "slot").iter_rows()
    }
    steps, moved, looks = _compared(old, new, names)
    seen = [{*some["gpu"].unique()} for some in (old, new)]
    newcomers, gone = (tuple(sorted(names.get(gpu, gpu) for gpu in seen[1 - i] - seen[i])) for i in (0, 1))
    return Difference(
        campaign.cluster, before, after, tuple(steps), tuple(moved), newcomers, gone,
        _identity(opened, campaign, before), looks, tuple(notes),
    )  # fmt: skip


def _compared(old: pl.DataFrame, new: pl.DataFrame, names: Mapping[str, str]) -> tuple[list[Step], list[Moved], int]:
    sides = [standing(by_sitting(some)).select(*_OF, "gpu", "x", "sittings", "spread") for some in (old, new)]
    both = sides[0].join(sides[1], on=[*_OF, "gpu"], suffix="_after", nulls_equal=True)
    both = both.with_columns((pl.col("x_after") - pl.col("x")).alias("change")).sort("gpu")
    told: list[tuple[Step, list[Moved]]] = []
    looks = 0
    for (workload, model), some in sorted(both.group_by(_OF), key=lambda item: tuple(map(str, item[0]))):
        step, moved = _of_workload(str(workload), None if model is None else str(model), some, names)
        looks += some.height if step.why is None else 0
        told.append((step, moved))
    every = [one for _, moved in told for one in moved]
    kept = _false_discoveries(every, looks)
    counted = {(one.workload, one.gpu) for one in kept}
    of_step = [(step, [one for one in moved if (one.workload, one.gpu) in counted]) for step, moved in told]
    steps = [_with(step, len(moved)) for step, moved in of_step]
    steps.sort(key=lambda one: (-abs(one.step_pct), one.workload))
    return steps, sorted(kept, key=lambda one: -abs(one.against_pct)), looks


def _with(step: Step, moved: int) -> Step:
    return Step(**asdict(step) | {"moved": moved})


def _of_workload(
    workload: str, model: str | None, some: pl.DataFrame, names: Mapping[str, str]
) -> tuple[Step, list[Moved]]:
    change = some["change"].to_numpy()
    n, middle = len(change), float(np.median(change))
    low, high = _of_median(change)
    before, after = (math.exp(float(np.median(some[name].to_numpy()))) for name in ("x", "x_after"))
    why = (
        None
        if n >= LEAST_GPUS
        else f"{n} GPU{'' if n == 1 else 's'} measured before and after; {LEAST_GPUS} are needed"
    )
    low_pct, high_pct = (None if end is None else _pct(end) for end in (low, high))
    step = Step(workload, model, before, after, _pct(middle), low_pct, high_pct, n, 0, why)
    if why is not None:
        return step, []
    # A GPU of few sittings is known less well than the others.
    known = np.sqrt(1 / some["sittings"].to_numpy() + 1 / some["sittings_after"].to_numpy())
    spread = some.select(pl.mean_horizontal("spread", "spread_after").fill_null(0.0)).to_series().to_numpy()
    more = spread * np.sqrt(np.maximum(known**2 - float(np.median(known)) ** 2, 0.0))
    null = Null(change, _FLOOR)
    against = change - null.centre
    p = null.p(against, more)
    moved = []
    for place, row in enumerate(some.iter_rows(named=True)):
        off = float(against[place])
        if abs(_pct(off)) < RELEVANT_PCT:
            continue
        half = _REACH * math.hypot(null.scale(off > 0), float(more[place]))
        moved.append(
            Moved(
                names.get(row["gpu"], row["gpu"]), row["gpu"], workload, math.exp(row["x"]), math.exp(row["x_after"]),
                _pct(row["change"]), _pct(off), _pct(off - half), _pct(off + half),
                float(p[place]), 1.0, n, row["sittings"], row["sittings_after"],
            )
        )  # fmt: skip
    return step, moved


def _of_median(values: Floats) -> tuple[float | None, float | None]:
    """The 95 % interval of the median, from the order of the values; None for fewer than six."""
    n = len(values)
    if n < 6:
        return None, None
    place = max(0, int(n / 2 - 0.98 * math.sqrt(n)) - (n < 20))
    ordered = np.sort(values)
    return float(ordered[place]), float(ordered[n - 1 - place])


def _false_discoveries(found: list[Moved], looks: int) -> list[Moved]:
    """Those whose q value is at most the error rate; q is over all comparisons, also the small ones left out."""
    ordered = sorted(found, key=lambda one: one.p)
    least, kept = 1.0, []
    for place in range(len(ordered) - 1, -1, -1):
        one = ordered[place]
        least = min(least, one.p * looks / (place + 1))
        if least <= ERROR_RATE:
            kept.append(Moved(**asdict(one) | {"q": least}))
    return kept


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


def _pct(log: float) -> float:
    return 100 * math.expm1(log)
