"""The score of each GPU in each workload: its relative time, shrunk by how little it repeats."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...errors import InputError
from ...store.names import gpu_name
from ..runs.columns import OTHERS, Runs, gpu_medians
from ..runs.columns import workloads as by_workload
from ..statistics.ordering import Floats, Ints
from ..verdicts.levels import Levels
from .coupling import Units, units
from .posterior import posterior
from .reading import Place, Readings, available, read
from .references import Reference, references, variants
from .workload_scores import WorkloadScores

if TYPE_CHECKING:
    from ...store import Store

SEED = 2022
REFITS = 20
"""Of the prior, each to a bootstrap sample of the GPUs."""


@dataclass(frozen=True)
class Scores:
    """The scores of a fleet's GPUs in some workloads of one cluster."""

    cluster: str
    workloads: tuple[str, ...]
    gpus: tuple[str, ...]
    """Every GPU measured in one of the workloads, by node, slot and name: the order of all arrays."""
    places: tuple[Place, ...]
    of: Mapping[str, WorkloadScores]
    """The scores of each workload, made when they are first asked for."""
    general: tuple[str, ...]
    """What was left out or assumed in all workloads, sentences."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Workloads that have runs but no scores, and the sentence that says why."""

    unscored: tuple[str, ...] = ()
    """The same as sentences of their own, of those that were meant to have scores."""

    @cached_property
    def nodes(self) -> tuple[str | None, ...]:
        """The node of each GPU; None where none is known."""
        return tuple(place.node for place in self.places)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out or assumed, in all workloads and in each, sentences."""
        return (*self.general, *(note for one in self.of.values() for note in one.notes), *self.unscored)

    def name(self, gpu: int) -> str:
        """The name of GPU number `gpu` for people."""
        place = self.places[gpu]
        return gpu_name(self.gpus[gpu], place.node, place.slot)

    def belief(self, workload: str) -> Floats:
        """(gpus,) the scores to decide by; NaN for a GPU not measured in `workload`."""
        return self.one(workload).belief

    def draw(self, rng: np.random.Generator, workload: str) -> Floats:
        """(gpus,) what the scores may be: one draw from what the runs leave open; NaN as in `belief`.

        The mean of many draws is the belief. GPUs that cannot be distinguished are drawn alike, whatever was measured
        of each, so that choosing among them gains nothing.
        """
        return self.one(workload).draw(rng)

    def power(self, workload: str) -> Floats:
        """(gpus,) median power while the workload ran, in W; NaN where unknown."""
        return self.one(workload).power_w

    def one(self, workload: str) -> WorkloadScores:
        """The scores of a workload; raises `InputError`, which says what there is."""
        if workload not in self.of:
            none = f"there are no scores of workload {workload}; there are {', '.join(self.workloads)}"
            raise InputError(self.left_out.get(workload, none))
        return self.of[workload]

    def notes_on(self, workload: str) -> list[str]:
        """The notes without those about other workloads."""
        return [*self.general, *self.of[workload].notes, *self.unscored]


def scores(
    store: Store,
    workloads: Sequence[str] = (),
    *,
    cluster: str | None = None,
    nodes: Collection[str] | None = None,
    seed: int = SEED,
    known: Sequence[tuple[str, str]] | None = None,
) -> Scores:
    """The scores of the GPUs of `cluster` in `workloads`; all of the cluster's, where none is named.

    `cluster` may be left out where only one has all the workloads. `nodes`: only the GPUs there are compared.
    The same seed gives the same scores; docs/placement.md says how they are made. `known`: what `available` says of the
    store, where it was asked already.

    Raises `InputError` for an empty store and for a workload or cluster that it does not have.
    """
    found = read(store, workloads, cluster, nodes, known=available(store) if known is None else known)
    names = sorted(found.places, key=lambda gpu: _order(gpu, found.places[gpu]))
    place = {gpu: number for number, gpu in enumerate(names)}
    makers: dict[str, Callable[[], WorkloadScores]] = {}
    left_out = dict(found.left_out)
    for number, workload in enumerate(found.workloads):
        rng = np.random.default_rng([seed, number])
        its: list[str] = []
        try:
            runs = _runs(found, workload, its)
        except InputError as error:
            if workloads or (number == len(found.workloads) - 1 and not makers):
                raise
            left_out[workload] = str(error)
            continue
        makers[workload] = partial(_scored, runs, found.places, place, rng, its)
    places = tuple(found.places[gpu] for gpu in names)
    unscored = tuple(f"{workload} was left out: {why}" for workload, why in left_out.items())
    of = _WhenAsked(makers)
    return Scores(
        found.cluster, tuple(makers), tuple(names), places, of, found.notes, found.untimed | left_out, unscored
    )


class _WhenAsked(Mapping[str, WorkloadScores]):
    """The scores of each workload, made when they are first asked for: of a large fleet they take seconds."""

    def __init__(self, makers: Mapping[str, Callable[[], WorkloadScores]]) -> None:
        self._makers = makers
        self._made: dict[str, WorkloadScores] = {}
        self._lock = threading.Lock()

    def __getitem__(self, workload: str) -> WorkloadScores:
        with self._lock:
            if workload not in self._made:
                self._made[workload] = self._makers[workload]()
            return self._made[workload]

    def __contains__(self, workload: object) -> bool:
        return workload in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # another process gets them made


def _order(gpu: str, place: Place) -> tuple[bool, str, int, str]:
    return place.node is None, place.node or "", -1 if place.slot is None else place.slot, gpu


def _runs(found: Readings, workload: str, notes: list[str]) -> Runs:
    frame = found.runs.filter(pl.col("workload").cast(pl.String) == workload)
    usable = frame.filter(pl.col("value").is_finite() & (pl.col("value") > 0))
    if usable.height < frame.height:
        bad = frame.height - usable.height
        was = "1 run was" if bad == 1 else f"{bad:,} runs were"
        notes.append(f"{was} left out of {workload}: no positive time")
    for one in by_workload(usable):
        return one
    raise InputError(f"no run of {workload} on {found.cluster} has a positive time: measure it again")


def _scored(
    runs: Runs,
    places: Mapping[str, Place],
    place: dict[str, int],
    rng: np.random.Generator,
    notes: list[str],
) -> WorkloadScores:
    apart = units(runs)
    middle = float(np.median(apart.levels.level))
    level = apart.levels.level - middle
    boards = [places[name] for name in runs.names]
    several = np.diff(apart.observed.starts) > 1
    # Sets of GPUs that jobs couple have no one board; where nothing repeats, nor do variants.
    can = not apart.coupled and several.sum() > 1
    variant = variants(apart.levels, boards) if can else np.zeros(len(boards), dtype=np.intp)
    of_gpu = np.where(apart.unit >= 0, level[apart.unit], np.nan)
    compared = references(of_gpu, variant, boards, float(np.exp(middle)))
    usual = np.ones(len(level))
    if len(compared) > 1:
        usual[apart.unit] = np.array([one.usual_ms for one in compared])[variant] / np.exp(middle)
        _say_variants(runs.workload, compared, notes)
    found = posterior(apart.observed.without(np.log(usual)), rng, REFITS)
    lower, upper = in_another_sitting(apart.levels, found.belief, found.lower, found.upper)
    at = np.array([place[name] for name in runs.names], dtype=np.intp)
    _say_coupled(runs, apart, notes)
    _say_sittings(runs, apart, notes)
    unit = _spread(apart.unit, at, len(place), -1)
    runs_of = np.diff(apart.observed.starts)

    def over(values: Floats) -> Floats:
        return np.where(unit >= 0, values[unit], np.nan)

    others = {}
    for name, column in OTHERS.items():
        values = runs.other(name)
        known = np.full(len(runs.names), np.nan) if values is None else gpu_medians(values, runs.gpu, len(runs.names))
        others[column] = _spread(known, at, len(place), np.nan)
    newest, ids = _when(runs)
    return WorkloadScores(
        runs.workload,
        runs=np.where(unit >= 0, runs_of[unit], 0),
        raw=over(np.exp(level)),
        belief=over(found.belief * usual),
        lower=over(lower * usual),
        upper=over(upper * usual),
        standing_out=np.where(unit >= 0, found.standing_out[unit], False),
        newest=_spread(newest, at, len(place), np.datetime64("NaT")),
        **others,
        repeatable=found.repeatable or len(compared) > 1,
        reason=found.reason if len(compared) == 1 else None,
        p=found.p,
        coupled=apart.coupled,
        references=compared,
        reference=_spread(variant, at, len(place), -1),
        unit=unit,
        posterior=found,
        later=apart.levels.later(),
        freedom=math.inf if apart.levels.noise is None else apart.levels.noise.freedom,
        usual_ms=float(np.exp(middle)),
        run_ids=ids,
        notes=tuple(notes),
    )


def in_another_sitting(of: Levels, belief: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """The intervals of scores in another sitting, at another time, from those of the scores in the long run.

    Runs of one sitting repeat far better than sittings do, and sittings of one week better than those of another month.
    So how well a GPU's runs agree does not say how well its score will hold; the judge says how sittings differ.
    """
    reach = math.nan if of.noise is None else of.noise.reach(0.9) * of.later()
    down, up = (np.exp(np.hypot(np.log(end / belief), reach)) for end in (lower, upper))
    return belief / down, belief * up


def _spread(values: npt.NDArray[Any], at: Ints, count: int, missing: object) -> npt.NDArray[Any]:
    """`values` of some GPUs as an array over all."""
    found = np.full(count, missing, dtype=values.dtype)
    found[at] = values
    return found


def _when(runs: Runs) -> tuple[npt.NDArray[Any], dict[str, tuple[str, ...]]]:
    """When each GPU of `runs` was measured last, and its runs."""
    frame = runs.frame.select(
        gpu=pl.Series(runs.gpu), began=pl.col("began").cast(pl.Datetime("us")), run_id=pl.col("run_id")
    )
    by_gpu = frame.sort("gpu", "began", nulls_last=True, maintain_order=True).group_by("gpu", maintain_order=True)
    found = by_gpu.agg(newest=pl.col("began").max(), run_id=pl.col("run_id"))
    ids = {runs.names[gpu]: tuple(its) for gpu, its in found.select("gpu", "run_id").iter_rows()}
    return found["newest"].to_numpy(), ids


def _say_variants(workload: str, compared: Sequence[Reference], notes: list[str]) -> None:
    main, *others = compared
    notes += [
        f"{one} take {one.usual_ms / main.usual_ms:.2f} times as long in {workload} as {main}: whether a GPU is slow "
        "is said beside boards of its own VBIOS"
        for one in others
    ]


def _say_coupled(runs: Runs, apart: Units, notes: list[str]) -> None:
    if apart.crossing:
        notes.append(
            f"{apart.crossing:,} runs of {runs.workload} were left out: their jobs used several nodes, so they say too "
            "little about one node"
        )
    if apart.coupled:
        sets, jobs = len(apart.observed.starts) - 1, len(apart.observed.x)
        notes.append(
            f"the {len(runs.names):,} GPUs of {runs.workload} were measured in jobs on several GPUs, which finish "
            f"together. So only {sets:,} sets of GPUs can be compared, from {jobs:,} jobs; single-GPU runs would say "
            "more"
        )


def _say_sittings(runs: Runs, apart: Units, notes: list[str]) -> None:
    sat = apart.sittings
    what = "jobs" if apart.coupled else "runs"
    if sat.length is not None:
        span = "a day" if sat.length == "day" else "an hour"
        notes.append(
            f"{what} of {runs.workload} on one GPU within {span} are more alike than others ({100 * sat.share:.0f} % "
            f"of the variance is between such groups): each group counts as one run, {len(apart.observed.x):,} in all"
        )
    if not apart.levels.between_known and (np.diff(apart.observed.starts) > 1).sum() > 1:
        notes.append(
            f"hardly any GPU has {what} of {runs.workload} from different days (or their dates are not known): the "
            f"intervals assume that days differ as SGEMM on a public cluster did, and more where {what} of a day do"
        )
