"""Ranks of training jobs against their peers: which rank computes slower, from timelines of its operations alone.

Peers are the ranks that do the same work: the same operation of the same stage and part of the model, in the same step,
on a microbatch of the same number. What a rank's time tells is the logarithm of its ratio to the median of its peers.
Their data may differ all the same: sequences of unequal lengths. A microbatch passes all stages of a pipeline, so what
the other stages needed for it tells how much work it was. A rank is named if it is slower than its peers, and slower
than its data explain. Operations that send, receive or wait are no evidence: who waits is a victim.
docs/how-we-know/verdicts.md has the formulas and the rates that were realised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..runs.probing import campaigns, clusters_with_timelines
from ..runs.sittings import Bools, Floats
from ..statistics.ordering import discoveries, quantile, simes
from .levels import RELEVANT, in_pct
from .null import Null
from .verdict import Action, ComparedWith, Findings, Gap, Kind, Level, Measured, NotJudged, Quantity, State, Verdict

if TYPE_CHECKING:
    from ...store import Store

COMPUTES = r"(?i)compute|^(?:forward|backward|fwd|bwd)(?:[-_ ]?(?:pass|step))?$"
"""What the names of operations have in which a rank computes and waits for nobody."""
FEWEST_PEERS = 3
"""Ranks, itself included: of two that differ, nobody can say which is at fault."""
FEWEST_STEPS = 5
ERROR_RATE = 0.03
"""Of the ranks that are named, the share that is healthy: one job alone does not tell how heavy its tails are."""
MOST_P, MOST_OF_JOB = 1e-3, 0.01
"""A chance above the first, or above this share of a job's ranks if that is more, names no rank. In a job of three, one
chance in 300 is still a healthy rank in 1 of 100 jobs only; the first alone would leave out ranks 1.3 times slower."""
SHOWS_P = 0.01
"""A named rank shows it in operations with at most this p-value."""
_BLOCKS = 10
"""Parts into which the steps are cut, so that steps that resemble their neighbours do not count as independent."""
_FLOOR = 0.005
"""The least scale of healthy ranks, as a logarithm."""
_FLOOR_OF_FEW, _FEW = 0.02, 8
"""The same of fewer ranks than this, which cannot tell their spread: as much as matrix products differ on V100."""
_LASTING = 0.25
"""Where no other stage tells how much work the data were: how much of what single operations differ may be lasting, as
a rank may always get the longer sequences."""
_UNLIKE = 0.3
"""How much less, or more, a stage may need for longer sequences than the other stages do."""
_WORK = ("optype", "stage", "model_chunk", "model", "step", "microbatch")
"""Columns that are equal where the work is."""
_TEXT = pl.col("optype", "gpu", "job").cast(pl.String)
_LISTED = 4


@dataclass(frozen=True)
class ClusterContext:
    """What a verdict says beside the job: the cluster, its GPUs (gpu, name, model), and whether it has one job."""

    cluster: str
    gpus: pl.DataFrame
    only_job: bool


@dataclass(frozen=True)
class ComparedOperation:
    """One operation over the workers of a job: ranks, or the ranks that compute each layer together."""

    optype: str
    cells: pl.DataFrame
    """One row for each worker and piece of work."""
    workers: list[int]
    p: Floats
    """(workers,) 1 where a worker is no slower than its peers, or than its data explain."""
    of_data: Bools
    """(workers,) whether it is slower than its peers, and its data explain it."""


@dataclass(frozen=True)
class _Levels:
    """(workers,) each: the level, the standard deviation of the blocks, and how many blocks there are; NaN of what has
    fewer than two."""

    level: Floats
    sd: Floats
    blocks: Floats


@dataclass(frozen=True, order=True)
class _Effect:
    """Logarithms of the ratio of a worker to its peers in one operation."""

    level: float
    low: float
    high: float
    """95 % interval of another block of steps."""
    optype: str
    peers: int
    steps: int
    slower: int
    """Steps in which it was slower."""


@dataclass
class _Job:
    """The operations of one training job that compute, and its workers."""

    cluster: str
    name: str
    operations: pl.DataFrame
    """With `worker` and `y`, the logarithm of the duration."""
    workers: pl.DataFrame
    """By `worker`: stage, dp_rank, ranks, gpus, tp_size."""
    unjudged: list[NotJudged] = field(default_factory=list)

    def leave_out(self, cause: Gap, subject: str = "", **numbers: Any) -> None:
        """Note what is not judged."""
        name = f"{self.name}: {subject}" if subject else self.name
        self.unjudged.append(NotJudged(self.cluster, name, cause, level=Level.RANK, **numbers))


def timelines_alone(store: Store) -> list[str]:
    """The clusters with timelines of training jobs that have no runs."""
    with_runs = set(campaigns(store)["cluster"])
    return [name for name in clusters_with_timelines(store) if name not in with_runs]


def judged_ranks(store: Store, cluster: str) -> Findings:
    """What the timelines of a cluster's training jobs say about their ranks; nothing where there are none."""
    operations = store.scan("operations").filter(pl.col("cluster") == cluster)
    names = store.collect(operations.select("job").unique().sort("job"))["job"].to_list()
    if not names:
        return Findings()
    gpus = store.sql("select cluster, gpu, name, model from gpus_now").polars().filter(pl.col("cluster") == cluster)
    context = ClusterContext(cluster, gpus, len(names) == 1)
    parts = [
        judged_job(name, store.collect(operations.filter(pl.col("job") == name)).with_columns(_TEXT), context)
        for name in names
    ]
    return Findings(
        tuple(row for part in parts for row in part.rows),
        tuple(no for part in parts for no in part.not_judged),
        looks=sum(part.looks for part in parts),
        ranks=sum(part.ranks for part in parts),
    )


def judged_job(name: str, operations: pl.DataFrame, context: ClusterContext) -> Findings:
    """What the timeline of one training job says about its ranks. `operations`: its rows of table `operations`."""
    job = _job(context.cluster, name, operations.join(context.gpus.select("gpu", "model"), on="gpu", how="left"))
    cells = _cells(job)
    compared = [_compared(str(optype), rows) for (optype,), rows in cells.group_by("optype", maintain_order=True)]
    rows = _named(job, compared, context)
    _note_data(job, compared)
    workers = {worker for comparison in compared for worker in comparison.workers}
    ranks = job.workers.filter(pl.col("worker").is_in(list(workers)))["ranks"].list.len().sum()
    looks = sum(len(comparison.workers) for comparison in compared)
    return Findings(tuple(rows), tuple(job.unjudged), looks, int(ranks))


def _job(cluster: str, name: str, operations: pl.DataFrame) -> _Job:
    """The operations that compute, each with its worker."""
    computing = operations.filter(pl.col("optype").str.contains(COMPUTES) & (pl.col("duration_s") > 0))
    if computing["model"].null_count():
        computing = computing.with_columns(pl.lit(None, pl.String).alias("model"))  # of some only, it parts no ranks
    by_stage = pl.when(pl.col("tp_size").fill_null(0) != 1).then(pl.format("{}:{}", "stage", "dp_rank"))
    worker = pl.coalesce(by_stage, pl.format("rank {}", "rank")).rank("dense").cast(pl.Int64).alias("worker")
    computing = computing.with_columns(worker, pl.col("duration_s").log().alias("y"))
    workers = computing.group_by("worker").agg(
        pl.col("stage", "dp_rank", "tp_size").first(),
        pl.col("rank").unique().sort().alias("ranks"),
        pl.col("gpu").drop_nulls().unique().sort().alias("gpus"),
    )
    job = _Job(cluster, name, computing, workers.sort("worker"))
    if computing.is_empty():
        job.leave_out(Gap.NO_COMPUTING)
    elif computing["stage"].null_count():
        job.leave_out(Gap.NO_STAGE, _ranks(workers.filter(pl.col("stage").is_null())))
        job.operations = computing.filter(pl.col("stage").is_not_null())
    return job


def _cells(job: _Job) -> pl.DataFrame:
    """One row for each worker and piece of work that three workers or more did: `ratio`, the logarithm of its ratio to
    their median, and `beyond`, what is left of it without what other stages needed for the same data."""
    if job.operations.is_empty():
        return pl.DataFrame(schema={"optype": pl.String})
    cells = job.operations.group_by(*_WORK, "worker", "dp_rank").agg(pl.col("y").median())
    cells = cells.with_columns(
        pl.len().over(_WORK).alias("peers"), (pl.col("y") - pl.col("y").median().over(_WORK)).alias("ratio")
    )
    _note_few(job, cells)
    cells = cells.filter(pl.col("peers") >= FEWEST_PEERS)
    steps = cells.group_by("worker").agg(pl.col("step").n_unique().alias("steps"))
    short = steps.filter(pl.col("steps") < FEWEST_STEPS)
    if short.height:
        ranks = _ranks(job.workers.filter(pl.col("worker").is_in(short["worker"].implode())))
        job.leave_out(Gap.FEW_STEPS, ranks, n=int(short["steps"].to_numpy().max()), total=FEWEST_STEPS)
        cells = cells.filter(~pl.col("worker").is_in(short["worker"].implode()))
    return _beyond_data(cells).sort("optype", "worker", "step")


def _note_few(job: _Job, cells: pl.DataFrame) -> None:
    """Say of which stages too few workers do the same work, and how far apart those are."""
    most = cells.group_by("stage").agg(pl.col("peers").max())
    for stage, peers in most.filter(pl.col("peers") < FEWEST_PEERS).sort("stage").iter_rows():
        if peers < 2:
            job.leave_out(Gap.LONE_RANK, f"stage {stage}", total=FEWEST_PEERS)
            continue
        pair = cells.filter((pl.col("stage") == stage) & (pl.col("peers") == peers))
        levels = pair.group_by("optype", "worker").agg((2 * pl.col("ratio").median()).exp().alias("ratio"))
        _, worker, ratio = levels.sort("ratio", "worker").row(-1)
        rank = int(job.workers.filter(pl.col("worker") == worker)["ranks"][0][0])
        job.leave_out(Gap.TWO_RANKS, f"stage {stage}", n=rank, total=FEWEST_PEERS, share=float(ratio) - 1)


def _beyond_data(cells: pl.DataFrame) -> pl.DataFrame:
    """`cells` with `beyond`: NULL where no other stage worked on the same data."""
    work = ["optype", "step", "microbatch", "dp_rank"]
    pieces = cells.filter(pl.col("dp_rank").is_not_null())
    if pieces["stage"].n_unique() < 2:
        return cells.with_columns(pl.lit(None, pl.Float64).alias("beyond"))
    by_stage = pieces.pivot("stage", index=work, values="ratio", aggregate_function="median")
    stages = [column for column in by_stage.columns if column not in work]
    ratios = by_stage.select(stages).to_numpy().astype(np.float64)
    parts = []
    for place, stage in enumerate(stages):
        others = np.delete(ratios, place, axis=1)
        others = others[np.isfinite(others).any(axis=1)]
        index = by_stage.filter(pl.Series(np.isfinite(np.delete(ratios, place, axis=1)).any(axis=1)))
        parts.append(
            index.select(work).with_columns(
                pl.lit(int(stage)).alias("stage"), pl.Series("data", np.nanmedian(others, axis=1))
            )
        )
    explained = pl.concat(parts).with_columns(pl.col("stage").cast(cells.schema["stage"]))
    joined = cells.join(explained, on=[*work, "stage"], how="left", nulls_equal=True)
    return joined.with_columns((pl.col("ratio") - pl.col("data")).alias("beyond")).drop("data")


def _compared(optype: str, cells: pl.DataFrame) -> ComparedOperation:
    """The workers in one operation: levels and p-values."""
    workers = cells["worker"].unique().sort().to_list()
    ratio, beyond = (_levels(cells, column, workers) for column in ("ratio", "beyond"))
    alone = ~np.isfinite(beyond.level)
    p_ratio = _p_values(ratio, np.where(alone, _LASTING * _spread(cells), 0.0))
    p_beyond = _p_values(_not_fast_beside_slow(ratio, beyond), _UNLIKE * np.abs(ratio.level - beyond.level))
    slow = ratio.level >= RELEVANT
    of_stage = slow & (beyond.level >= RELEVANT) & (ratio.level >= beyond.level / 2)
    p_values = np.where(slow & alone, p_ratio, np.where(of_stage, p_beyond, 1.0))
    of_data = slow & (p_ratio <= MOST_P) & (p_values > SHOWS_P)
    return ComparedOperation(optype=optype, cells=cells, workers=workers, p=p_values, of_data=of_data & ~alone)


def _levels(cells: pl.DataFrame, column: str, workers: Sequence[int]) -> _Levels:
    """The levels of workers: the mean of the medians of blocks of steps, so that no single step decides."""
    steps = cells.group_by("worker", "step").agg(pl.col(column).median())
    number = (steps["step"].rank("dense").cast(pl.Int64) - 1).alias("number")
    last = int(number.to_numpy().max(initial=0))
    block = (number * min(_BLOCKS, last + 1) // (last + 1)).alias("block")
    medians = steps.with_columns(block).drop_nulls(column).group_by("worker", "block").agg(pl.col(column).median())
    in_order = medians.sort("block")  # so that the sums are the same every time
    by_worker = in_order.group_by("worker").agg(
        pl.col(column).mean().alias("level"), pl.col(column).std().alias("sd"), pl.len().alias("blocks")
    )
    rows = pl.DataFrame({"worker": workers}).join(by_worker, on="worker", how="left", maintain_order="left")
    level, sd, blocks = (rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in ("level", "sd", "blocks"))
    finite = np.isfinite(sd)
    return _Levels(*(np.where(finite, values, np.nan) for values in (level, sd, blocks)))


def _not_fast_beside_slow(ratio: _Levels, beyond: _Levels) -> _Levels:
    """`beyond`, or the ratio of a worker that looks fast only because another stage is slow with the same data: so slow
    ranks do not make the healthy ones look uneven."""
    is_beside = (beyond.level < 0) & (np.abs(ratio.level) < np.abs(beyond.level))
    level, sd = (np.where(is_beside, getattr(ratio, name), getattr(beyond, name)) for name in ("level", "sd"))
    return _Levels(level, sd, beyond.blocks)


def _p_values(levels: _Levels, data: Floats) -> Floats:
    """(workers,) p-values of levels among those of all workers; 1 where there is no level. `data`: (workers,) how far
    the data of a worker may move its level, as a standard deviation."""
    p_values = np.ones(len(levels.level))
    finite: Bools = np.isfinite(levels.level)
    if finite.any():
        values = levels.level[finite]
        null = Null(values, _FLOOR if len(values) >= _FEW else _FLOOR_OF_FEW)
        error = levels.sd[finite] / np.sqrt(levels.blocks[finite])
        p_values[finite] = null.p(values - null.centre, np.hypot(error, data[finite]))
    return p_values


def _spread(cells: pl.DataFrame) -> float:
    """How much single operations of a worker differ from its level, as a robust standard deviation: pauses of the host
    make some of them very long."""
    around = (pl.col("ratio") - pl.col("ratio").median().over("worker")).abs().median()
    return 1.4826 * float(cells.select(around).item())


# -- from p-values to names -----------------------------------------------------------------------------------


def _named(job: _Job, compared: Sequence[ComparedOperation], context: ClusterContext) -> list[Verdict]:
    """A verdict for each worker that is slow by the rule of Benjamini and Hochberg."""
    if not compared:
        return []
    count = int(job.workers["worker"].to_numpy().max()) + 1
    p_values = np.full((len(compared), count), np.nan)
    for row, comparison in enumerate(compared):
        p_values[row, comparison.workers] = comparison.p
    present = np.isfinite(p_values)
    counts = present.sum(axis=0)
    p_values = np.where(present, p_values, 1.0)
    joined, q_values = simes(p_values, present), np.ones(count)
    q_values[counts > 0] = discoveries(joined[counts > 0], int((counts > 0).sum()))
    most_p = max(MOST_P, MOST_OF_JOB / max(1, int((counts > 0).sum())))
    rows = []
    for worker in np.flatnonzero((counts > 0) & (q_values <= ERROR_RATE) & (p_values.min(axis=0) <= most_p)):
        showing = [comparison for row, comparison in enumerate(compared) if p_values[row, worker] <= SHOWS_P]
        effects = sorted((_effect(comparison, int(worker)) for comparison in showing), reverse=True)
        about = job.workers.filter(pl.col("worker") == int(worker)).row(0, named=True)
        rows.append(_verdict(job, effects, about, (float(joined[worker]), float(q_values[worker])), context))
    return rows


def _note_data(job: _Job, compared: Sequence[ComparedOperation]) -> None:
    """Say which workers are slower together with the other stages that had the same data."""
    workers = {worker for look in compared for worker, flag in zip(look.workers, look.of_data, strict=True) if flag}
    if workers:
        job.leave_out(Gap.SLOW_BY_DATA, _ranks(job.workers.filter(pl.col("worker").is_in(list(workers)))))


def _effect(comparison: ComparedOperation, worker: int) -> _Effect:
    """How much slower a named worker is than the median of the others that did the same work."""
    of_worker = pl.col("worker") == worker
    others = comparison.cells.filter(~of_worker).group_by(_WORK).agg(pl.col("y").median().alias("others"))
    pairs = comparison.cells.filter(of_worker).join(others, on=_WORK, nulls_equal=True)
    pairs = pairs.with_columns((pl.col("y") - pl.col("others")).alias("ratio"))
    levels = _levels(pairs, "ratio", [worker])
    level, sd, blocks = float(levels.level[0]), float(levels.sd[0]), float(levels.blocks[0])
    half = float(quantile(0.025, blocks - 1)) * sd * math.sqrt(1 + 1 / blocks)
    steps = pairs.group_by("step").agg(pl.col("ratio").median())["ratio"]
    return _Effect(
        level, level - half, level + half, comparison.optype, int(pairs["peers"].to_numpy().min()), len(steps),
        int((steps > 0).sum()),
    )  # fmt: skip


def _verdict(
    job: _Job, effects: Sequence[_Effect], about: Mapping[str, Any], chances: tuple[float, float],
    context: ClusterContext,
) -> Verdict:  # fmt: skip
    first, ranks = effects[0], about["ranks"]
    name = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_some(ranks)}"
    keys = dict(context.gpus.select("gpu", "name").iter_rows())
    gpus = tuple(keys.get(gpu, gpu) for gpu in about["gpus"])
    is_gpu = len(ranks) == len(gpus) == 1
    together = len(ranks) > 1 or (about["tp_size"] or 1) > 1
    models = context.gpus.filter(pl.col("gpu").is_in(about["gpus"]))["model"].drop_nulls().unique().to_list()
    ratios = [
        Measured(Quantity.RATIO, math.exp(effect.level), limit=effect.steps, n=effect.slower, text=effect.optype)
        for effect in effects
    ]
    return Verdict(
        level=Level.GPU if is_gpu else Level.RANK,
        name=gpus[0] if is_gpu else name if context.only_job else f"{name} of {job.name}",
        gpus=gpus, cluster=context.cluster, model=models[0] if len(models) == 1 else None,
        workloads=tuple(effect.optype for effect in effects), kind=Kind.SLOW, state=State.SUSPECTED,
        effect_pct=in_pct(first.level), low_pct=in_pct(first.low), high_pct=in_pct(first.high), p=chances[0],
        q=chances[1], n=first.peers, action=Action.PROBE_TENSOR_GROUP if together else Action.PROBE_RANKS,
        measured=(
            Measured(Quantity.RANKS, value=about["stage"], text=_some(ranks)),
            Measured(Quantity.TRAINING_JOB, text=job.name),
            *ratios,
        ),
        reference=ComparedWith.RANKS,
    )  # fmt: skip


def _some(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:_LISTED])) + (", ..." if len(names) > _LISTED else "")


def _ranks(workers: pl.DataFrame) -> str:
    """The ranks of workers, in words."""
    numbers = sorted(rank for ranks in workers["ranks"] for rank in ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {_some(numbers)}"
