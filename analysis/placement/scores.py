"""The score of each GPU in each workload: its relative time, shrunk by how little it repeats.

From the runs of a store (`units`) and what they say of each GPU (`posterior`) to scores over the fleet's median GPU,
each beside those of its model and board. docs/how-we-know/advice.md has the definitions.
"""

from __future__ import annotations

import math
import threading
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ...errors import InputError
from ...store.names import find_workload, gpu_name
from ..by_number import by_number
from ..runs.measurements import OTHERS, Runs, gpu_medians
from ..runs.measurements import workloads as by_workload
from ..statistics.ordering import Floats, Ints
from ..verdicts import Judgement
from ..verdicts.compare import Fleet, compare
from ..verdicts.levels import Levels
from .notes import many, note
from .posterior import Mask, Posterior, posterior
from .units import ComparedUnits, FleetRuns, GpuPlace, all_cross_nodes, available, read_runs, units

if TYPE_CHECKING:
    from ...store import Store

SEED = 2022


@dataclass(frozen=True)
class Reference:
    """A set of GPUs that are compared with each other."""

    model: str | None  # None if the store does not name it
    vbios: str | None  # only where the boards of the model differ by it
    gpus: int
    nodes: int  # how many of the known nodes have them
    usual_ms: float  # the time of the median GPU

    def __str__(self) -> str:
        words = [self.model or "", "" if self.vbios is None else f"VBIOS {self.vbios}"]
        board = f" ({', '.join(filter(None, words))})" if any(words) else ""
        nodes = f" on {many(self.nodes, 'node', 'nodes')}" if self.nodes else ""
        return f"{many(self.gpus, 'GPU', 'GPUs')}{board}{nodes}"


@dataclass(frozen=True)
class WorkloadScores:
    """One workload over the GPUs of a fleet: arrays of one length, NaN (NaT, 0 runs) for a GPU not measured in it.

    A score is a time over that of the fleet's median GPU: 1 is usual, higher is slower. Whether a GPU is slow is said
    by its score over that of its `reference`: see `slow`.
    """

    workload: str
    runs: Ints
    """How many runs a score rests on; of coupled GPUs, how many jobs; where runs of a day are alike, how many days."""
    raw: Floats  # the measured level of the GPU, as the judge has it, over that of the fleet's median GPU
    belief: Floats  # the posterior mean of the score; exactly 1 for GPUs that cannot be distinguished
    lower: Floats
    upper: Floats
    """A 90 % interval of the score in another sitting, at another time; NaN if it is not known which differences
    repeat."""
    standing_out: Mask  # GPUs that stand out: they differ by more than chance gives the largest of all GPUs
    newest: npt.NDArray[np.datetime64]
    sm_clock_mhz: Floats
    power_w: Floats
    temperature_c: Floats  # as the clock and the power, a median over the runs of the GPU
    repeatable: bool  # whether the test showed that differences between GPUs repeat, at the 5 % level
    reason: str | None  # why not
    p: float | None  # of the permutation test
    references: tuple[Reference, ...]  # what the GPUs are compared with: one set, or one for each board variant
    reference: Ints  # the number of each GPU's reference; -1 for a GPU not measured
    unit: Ints  # the set of GPUs that a GPU is scored with; -1 for a GPU not measured
    posterior: Posterior  # of the units
    later: Floats
    """(units,) the scale of Student's t with `freedom` degrees by which another sitting differs from the score in the
    long run, as a logarithm; NaN where it is not known."""
    freedom: float
    usual_ms: float  # the time of the fleet's median GPU
    run_ids: Mapping[str, tuple[str, ...]]  # the runs of each GPU, in the order of time
    notes: tuple[str, ...] = ()  # what was left out or assumed in this workload, sentences

    def draw(self, rng: np.random.Generator) -> Floats:
        """(gpus,) what the scores may be: one draw, of all together, from what the runs leave open.

        The mean of many draws is the belief. GPUs that cannot be distinguished are drawn alike, whatever was measured
        of each, so that choosing among them gains nothing.
        """
        return by_gpu(self.posterior.draw(rng), self.unit) * self.usual

    def draw_sitting(self, rng: np.random.Generator) -> Floats:
        """(gpus,) the same in another sitting, at another time."""
        moved = np.nan_to_num(self.later) * rng.standard_t(self.freedom, len(self.later))
        return by_gpu(self.posterior.draw(rng) * np.exp(moved), self.unit) * self.usual

    @cached_property
    def usual(self) -> Floats:
        """(gpus,) the score of the median GPU of each GPU's reference: 1 where there is one reference."""
        if len(self.references) == 1:
            return np.ones(len(self.reference))
        times = np.array([reference.usual_ms for reference in self.references])
        return np.where(self.reference >= 0, times[self.reference] / self.usual_ms, np.nan)

    def slow(self, scores: Floats) -> Floats:
        """(gpus,) `scores` over those of the references: above 1 a GPU is slower than its like."""
        return scores / self.usual

    def seated(self, gpus: npt.NDArray[np.integer[Any]]) -> WorkloadScores:
        """The scores of a fleet that is drawn from this one: GPU number `gpus[n]` stands in place n."""
        columns = {column.name: getattr(self, column.name) for column in fields(self) if column.name != "later"}
        arrays: dict[str, Any] = {name: array[gpus] for name, array in columns.items() if isinstance(array, np.ndarray)}
        return replace(self, **arrays)


def by_gpu(by_unit: Floats, unit: Ints) -> Floats:
    """(gpus,) the value of each GPU's unit; NaN for a GPU without one."""
    return np.where(unit >= 0, by_unit[unit], np.nan)


@dataclass(frozen=True)
class Scores:
    """The scores of a fleet's GPUs in some workloads of one cluster."""

    cluster: str
    workloads: tuple[str, ...]
    gpus: tuple[str, ...]  # every GPU measured in one of the workloads, by node, slot and name: the order of all arrays
    places: tuple[GpuPlace, ...]
    of: Mapping[str, WorkloadScores]  # the scores of each workload, made when they are first asked for
    general: tuple[str, ...]  # what was left out or assumed in all workloads, sentences
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Workloads that have runs but no scores, and the sentence that says why."""
    unscored: tuple[str, ...] = ()  # the same as sentences of their own, of those that were meant to have scores

    @cached_property
    def nodes(self) -> tuple[str | None, ...]:
        """The node of each GPU; None where none is known."""
        return tuple(place.node for place in self.places)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out or assumed, in all workloads and in each, sentences."""
        return (*self.general, *(note for scored in self.of.values() for note in scored.notes), *self.unscored)

    def name(self, gpu: int) -> str:
        """The name of GPU number `gpu` for people."""
        place = self.places[gpu]
        return gpu_name(self.gpus[gpu], place.node, place.slot)

    def one(self, workload: str) -> WorkloadScores:
        """The scores of a workload; raises `InputError`, which says what there is."""
        if workload not in self.of:
            having = f"there are no scores of workload {workload}; there are {', '.join(self.workloads)}"
            raise InputError(self.left_out.get(workload, having))
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
    The same seed gives the same scores; docs/how-we-know/advice.md says how they are made. `known`: what `available`
    says of the store, where it was asked already.

    Raises `InputError` for an empty store and for a workload or cluster that it does not have.
    """
    timed = available(store) if known is None else known
    fleet = read_runs(store, workloads, cluster, nodes=nodes, timed=timed)
    gpus = sorted(fleet.places, key=lambda gpu: _in_order(gpu, fleet.places[gpu]))
    makers: dict[str, Callable[[], WorkloadScores]] = {}
    unusable = dict(fleet.unusable)
    of_cluster = [workload for on, workload in timed if on == fleet.cluster]
    for workload in fleet.workloads:
        notes: list[str] = []
        try:
            runs = _runs_of(fleet, workload, notes)
        except InputError as error:
            if workloads or (workload == fleet.workloads[-1] and not makers):
                raise
            unusable[workload] = str(error)
            continue
        rng = np.random.default_rng([seed, of_cluster.index(workload)])
        makers[workload] = partial(_scored, runs, fleet.places, gpus, rng, notes)
    return Scores(
        fleet.cluster,
        tuple(makers),
        tuple(gpus),
        tuple(fleet.places[gpu] for gpu in gpus),
        _MadeWhenRead(makers),
        fleet.notes,
        fleet.untimed | unusable,
        tuple(note("left_out", workload=workload, why=why) for workload, why in unusable.items()),
    )


class _MadeWhenRead(UserDict[str, Any]):
    """The scores of each workload, made when they are first read: of a large fleet they take seconds."""

    _lock = threading.RLock()

    def __getitem__(self, workload: str) -> WorkloadScores:
        with self._lock:
            if not isinstance(self.data[workload], WorkloadScores):
                self.data[workload] = self.data[workload]()
            scored: WorkloadScores = self.data[workload]
        return scored

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # another process gets them made


def _in_order(gpu: str, place: GpuPlace) -> tuple[bool, str, int, str]:
    return place.node is None, place.node or "", -1 if place.slot is None else place.slot, gpu


def kinds_of(scores: Scores, work: str, kinds: Sequence[str], model: str | None = None) -> list[str]:
    """Of the `kinds` of `work` those with scores and, where `model` is given, of that model: its name or a part of it.

    Raises `InputError` for a model that no GPU has, and for kinds that share GPUs (they differ in power limit or
    clock): of those one must be chosen.
    """
    scored = [kind for kind in kinds if kind in scores.of]
    if not scored:
        scores.one(kinds[0])
    if model is not None:
        scored = _of_model(scores, work, scored, model)
    measured = np.array([scores.of[kind].runs > 0 for kind in scored])
    if (measured.sum(axis=0) > 1).any():
        find_workload(work, scored)
    return scored


def _of_model(scores: Scores, work: str, kinds: Sequence[str], model: str) -> list[str]:
    models = {kind: scores.of[kind].references[0].model for kind in kinds}
    names = sorted({name for name in models.values() if name is not None})
    if not names:
        raise InputError(
            f"the store does not name the model of any GPU that was measured in {work}: leave out --model, or import "
            "the models (`whorl import --map COLUMN=model`)"
        )
    text = model.strip().lower()
    exact = [name for name in names if name.lower() == text]
    fits = exact or [name for name in names if text and text in name.lower()]
    if not fits:
        raise InputError(f"no GPU of model {model!r} was measured in {work}; there are {', '.join(names)}")
    return [kind for kind in kinds if models[kind] in fits]


# -- one workload ----------------------------------------------------------------------------------------------------


def _runs_of(fleet: FleetRuns, workload: str, notes: list[str]) -> Runs:
    frame = fleet.runs.filter(pl.col("workload").cast(pl.String) == workload)
    usable = frame.filter(pl.col("value").is_finite() & (pl.col("value") > 0))
    if usable.height < frame.height:
        bad = many(frame.height - usable.height, "run was", "runs were")
        notes.append(note("no_time", runs=bad, workload=workload))
    runs = next(by_workload(usable), None)
    if runs is None:
        raise InputError(f"no run of {workload} on {fleet.cluster} has a positive time: measure it again")
    if all_cross_nodes(runs):
        raise InputError(
            f"all runs of {workload} on {fleet.cluster} are of jobs on several nodes, which say too little about one "
            "node: measure jobs on one node, or single GPUs"
        )
    return runs


def _scored(
    runs: Runs, places: Mapping[str, GpuPlace], gpus: Sequence[str], rng: np.random.Generator, notes: list[str]
) -> WorkloadScores:
    """The scores of one workload. `gpus`: the names of all GPUs of the fleet, in the order of the arrays."""
    compared = units(runs)
    middle = float(np.median(compared.levels.level))
    level = compared.levels.level - middle
    boards = [places[name] for name in runs.names]
    # Sets of GPUs that jobs couple have no one board; where nothing repeats, nor do variants.
    comparable = not compared.coupled and (compared.runs.sizes > 1).sum() > 1
    variant = _variants(compared.levels, boards) if comparable else np.zeros(len(boards), dtype=np.intp)
    references = _references(by_gpu(level, compared.unit), variant, boards, middle)
    usual, log_times = np.ones(len(level)), compared.runs
    if len(references) > 1:
        usual[compared.unit] = np.array([reference.usual_ms for reference in references])[variant] / np.exp(middle)
        log_times = log_times.about(np.log(usual))
    scored = posterior(log_times, rng)
    lower, upper = in_another_sitting(compared.levels, scored.belief, scored.lower, scored.upper)
    notes += _notes(runs, compared, references)
    number = {name: place for place, name in enumerate(gpus)}
    seat = np.array([number[name] for name in runs.names], dtype=np.intp)

    def over_fleet(values: npt.NDArray[Any], missing: object) -> npt.NDArray[Any]:
        spread = np.full(len(gpus), missing, dtype=values.dtype)
        spread[seat] = values
        return spread

    conditions = dict.fromkeys(OTHERS.values(), np.full(len(gpus), np.nan))
    for name, column in OTHERS.items():
        if (measured := runs.other(name)) is not None:
            conditions[column] = over_fleet(gpu_medians(measured, runs.gpu, len(seat)), np.nan)
    newest, run_ids = _newest(runs)
    unit = over_fleet(compared.unit, -1)
    return WorkloadScores(
        runs.workload,
        runs=np.where(unit >= 0, compared.runs.sizes[unit], 0),
        raw=by_gpu(np.exp(level), unit),
        belief=by_gpu(scored.belief * usual, unit),
        lower=by_gpu(lower * usual, unit),
        upper=by_gpu(upper * usual, unit),
        standing_out=(unit >= 0) & scored.standing_out[unit],
        newest=over_fleet(newest, np.datetime64("NaT")),
        **conditions,
        repeatable=scored.repeatable or len(references) > 1,
        reason=scored.reason if len(references) == 1 else None,
        p=scored.p,
        references=references,
        reference=over_fleet(variant, -1),
        unit=unit,
        posterior=scored,
        later=compared.levels.later(),
        freedom=math.inf if compared.levels.noise is None else compared.levels.noise.freedom,
        usual_ms=float(np.exp(middle)),
        run_ids=run_ids,
        notes=tuple(notes),
    )


def _variants(levels: Levels, boards: Sequence[GpuPlace]) -> Ints:
    """(gpus,) the board variant of each GPU, from 0 for the commonest: boards whose VBIOS shifts them as a whole.

    The runs of a workload on several models are several kinds of it (`runs/measurements.py`), each with its own
    scores. Boards of one model may differ too: otherwise all boards of a slower variant would look like faults. That a
    VBIOS shifts its boards is the judge's to say: it needs 8 GPUs, and two nodes of each.
    """
    variant = np.zeros(len(boards), dtype=np.intp)
    if len({board.vbios for board in boards} - {None}) < 2:
        return variant
    vbios = numbered(board.vbios for board in boards)
    compared = compare(levels, Fleet(numbered(board.node for board in boards), {"vbios": vbios}))
    shifts = () if compared is None else compared.shifts
    for number, shifted in enumerate(sorted(shift.value for shift in shifts if shift.what == "vbios"), 1):
        variant[vbios == shifted] = number
    return variant


def _references(level: Floats, variant: Ints, boards: Sequence[GpuPlace], middle: float) -> tuple[Reference, ...]:
    """The reference of each variant. `level`: (gpus,) log times about `middle`; NaN where unknown."""
    models = {board.model for board in boards}
    model = models.pop() if len(models) == 1 else None
    references = []
    for number in np.unique(variant):
        gpus = np.flatnonzero((variant == number) & np.isfinite(level)).tolist()
        vbios = ", ".join(sorted({boards[gpu].vbios or "unknown" for gpu in gpus})) if variant.any() else None
        nodes = len({boards[gpu].node for gpu in gpus} - {None})
        usual_ms = float(np.exp(middle + np.median(level[gpus])))
        references.append(Reference(model, vbios, len(gpus), nodes, usual_ms))
    return tuple(references)


def numbered(names: Iterable[str | None]) -> Ints:
    """The number of each name in sorted order; -1 for None."""
    names = list(names)
    numbers = {name: number for number, name in enumerate(sorted({name for name in names if name is not None}))}
    return np.array([-1 if name is None else numbers[name] for name in names], dtype=np.intp)


def in_another_sitting(levels: Levels, belief: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """The intervals of scores in another sitting, at another time, from those of the scores in the long run.

    Runs of one sitting repeat far better than sittings do, and sittings of one week better than those of another month.
    So how well a GPU's runs agree does not say how well its score will hold; the judge says how sittings differ.
    """
    reach = math.nan if levels.noise is None else levels.noise.reach(0.9) * levels.later()
    down, up = (np.exp(np.hypot(np.log(end / belief), reach)) for end in (lower, upper))
    return belief / down, belief * up


def _newest(runs: Runs) -> tuple[npt.NDArray[Any], dict[str, tuple[str, ...]]]:
    """When each GPU of `runs` was measured last, and its runs in the order of time."""
    frame = runs.frame.select(
        gpu=pl.Series(runs.gpu), began=pl.col("began").cast(pl.Datetime("us")), run_id=pl.col("run_id")
    )
    in_time = frame.sort("gpu", "began", nulls_last=True, maintain_order=True).group_by("gpu", maintain_order=True)
    last = in_time.agg(newest=pl.col("began").max(), run_id=pl.col("run_id"))
    ids = {runs.names[gpu]: tuple(run_ids) for gpu, run_ids in last.select("gpu", "run_id").iter_rows()}
    return last["newest"].to_numpy(), ids


def _notes(runs: Runs, compared: ComparedUnits, references: Sequence[Reference]) -> list[str]:
    """What was left out or assumed in a workload."""
    workload, count = runs.workload, len(compared.runs.x)
    main, *others = references
    notes = [
        note("variant", variant=variant, times=variant.usual_ms / main.usual_ms, workload=workload, main=main)
        for variant in others
    ]
    if compared.crossing:
        notes.append(note("crossing", count=compared.crossing, workload=workload))
    if compared.coupled:
        sizes = {"gpus": len(runs.names), "units": len(compared.runs.sizes), "count": count}
        notes.append(note("coupled", workload=workload, **sizes))
    what = "jobs" if compared.coupled else "runs"
    if compared.sitting is not None:
        span, share = "a day" if compared.sitting == "day" else "an hour", 100 * compared.sitting_share
        notes.append(note("sittings", runs=what, workload=workload, span=span, share=share, count=count))
    if not compared.levels.between_known and (compared.runs.sizes > 1).sum() > 1:
        notes.append(note("one_day", runs=what, workload=workload))
    return notes


# -- rows to be read -------------------------------------------------------------------------------------------------


def gpu_rows(scores: Scores, kinds: Sequence[str], judged: Judgement | None = None) -> pl.DataFrame:
    """Every GPU that was measured in these kinds of a workload, slowest first.

    Columns: cluster, gpu, name, node, model, workload, runs, raw (level of its times over the median GPU), score (what
    is believed of it), low, high (90 % of the score in another sitting; null where nobody knows what repeats),
    newest (of its runs), power_w, sm_clock_mhz, temperature_c (medians), finding (`Judgement.worst` of `judged`, null
    where nobody has judged the cluster: who stands out is said by the judge alone).
    """
    frames = []
    for kind in kinds:
        scored = scores.one(kind)
        gpus = np.flatnonzero(scored.runs > 0)
        places = [scores.places[gpu] for gpu in gpus]
        frames.append(
            pl.DataFrame(
                {
                    "cluster": [scores.cluster] * len(gpus),
                    "gpu": [scores.gpus[gpu] for gpu in gpus],
                    "name": [scores.name(int(gpu)) for gpu in gpus],
                    "node": [place.node for place in places],
                    "model": [place.model for place in places],
                    "workload": [kind] * len(gpus),
                    "runs": scored.runs[gpus],
                    "raw": scored.raw[gpus],
                    "score": scored.belief[gpus],
                    "low": scored.lower[gpus],
                    "high": scored.upper[gpus],
                    "newest": scored.newest[gpus].astype("datetime64[us]"),
                    "power_w": scored.power_w[gpus],
                    "sm_clock_mhz": scored.sm_clock_mhz[gpus],
                    "temperature_c": scored.temperature_c[gpus],
                },
                schema_overrides={"node": pl.String, "model": pl.String},
            ).with_columns(pl.selectors.float().fill_nan(None))
        )
    rows = pl.concat(frames)
    rows = rows.with_columns(pl.lit(None, pl.String).alias("finding") if judged is None else judged.worst(rows))
    return rows.sort("score", *by_number("gpu"), descending=[True, False], nulls_last=True)
