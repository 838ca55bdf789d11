"""How often healthy ranks of made-up training jobs are named, and slow ones found: `python -m whorl.benchmarks.ranks`.

The jobs break what the judge assumes: ranks differ as Student's t, steps resemble their neighbours, operations have
heavy tails, stages have unequal work, sequences are unequal, also lastingly from rank to rank. Beside it stands the
usual rule, "slower than 1.1 times the median of its peers". Prints JSON: jobs in which a healthy rank was named, and
jobs in which the slow one was.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..analysis.verdicts.ranks import ClusterContext, judged_job

CONTEXT = ClusterContext(
    "c", pl.DataFrame(schema={"gpu": pl.String, "name": pl.String, "model": pl.String}), only_job=True
)
OPERATIONS = {"forward-compute": 0.2, "backward-compute": 0.4}  # s


@dataclass(frozen=True)
class JobPopulation:
    """A made-up kind of training job; spreads are standard deviations of logarithms."""

    name: str
    peers: int = 4
    stages: int = 4
    steps: int = 40
    microbatches: int = 8
    ranks: float = 0.008
    """How healthy ranks differ."""
    heavy: bool = False
    """Ranks differ as Student's t with 3 degrees of freedom."""
    operations: float = 0.01
    pauses: float = 0.0
    """Share of operations that a pause of the host makes up to twice as long."""
    neighbours: float = 0.0
    """Correlation of a rank's steps with the next ones, whose spread is that of the operations."""
    sequences: float = 0.0
    """How the work of microbatches differs."""
    lasting: float = 0.0
    """The part of that which is the same in all steps of a data-parallel rank."""


POPULATIONS = (
    JobPopulation("equal work"),
    JobPopulation("three peers, one stage", peers=3, stages=1),
    JobPopulation("eight peers, one stage", peers=8, stages=1),
    JobPopulation("64 peers", peers=64, stages=2, steps=12, microbatches=2),
    JobPopulation("ranks differ by 2 %, three peers, one stage", peers=3, stages=1, ranks=0.02),
    JobPopulation("ranks differ by 2 %", ranks=0.02),
    JobPopulation("ranks differ as t3", heavy=True),
    JobPopulation("ranks differ as t3, three peers, one stage", peers=3, stages=1, heavy=True),
    JobPopulation("neighbouring steps alike", neighbours=0.95, operations=0.03),
    JobPopulation("neighbouring steps alike, three peers, one stage", 3, 1, neighbours=0.95, operations=0.03),
    JobPopulation("pauses of the host", pauses=0.1),
    JobPopulation("unequal sequences", sequences=0.4),
    JobPopulation("unequal sequences, one stage", stages=1, peers=8, sequences=0.4),
    JobPopulation("unequal sequences, three peers, one stage", 3, 1, sequences=0.4),
    JobPopulation("lastingly longer sequences", sequences=0.4, lasting=0.5),
    JobPopulation("lastingly longer sequences, one stage", 8, 1, sequences=0.4, lasting=0.5),
    JobPopulation("lastingly longer sequences, three peers, one stage", 3, 1, sequences=0.4, lasting=0.5),
    JobPopulation("few steps", steps=5, microbatches=1, operations=0.03),
    JobPopulation("few steps, unequal sequences, one stage", 4, 1, steps=5, microbatches=1, sequences=0.4),
)


def made(kind: JobPopulation, rng: np.random.Generator, slower: float = 1.0) -> pl.DataFrame:
    """The operations of a job; the first rank of stage 0 takes `slower` times as long."""
    shape = (kind.stages, kind.peers, kind.steps, kind.microbatches)
    work = kind.sequences * (
        kind.lasting * rng.standard_normal((1, kind.peers, 1, 1))
        + np.sqrt(1 - kind.lasting**2) * rng.standard_normal((1, kind.peers, *shape[2:]))
    )
    # The last stage also has the loss, and the first the embedding, which do not depend on the sequence as others do.
    fixed = np.where(np.isin(np.arange(kind.stages), (0, kind.stages - 1)), 0.3, 0.1)[:, None, None, None]
    rows = []
    for optype, seconds in OPERATIONS.items():
        spread = rng.standard_t(3, shape[:2]) if kind.heavy else rng.standard_normal(shape[:2])
        y = np.log(seconds * (fixed + (1 - fixed) * np.exp(work))) + kind.ranks * spread[:, :, None, None]
        y = y + rng.normal(0, 0.3, (kind.stages, 1, 1, 1))
        y = y + kind.operations * rng.standard_t(4, shape)
        if kind.neighbours:
            series = np.empty(shape[:3])
            series[..., 0] = rng.standard_normal(shape[:2])
            for step in range(1, kind.steps):
                fresh = np.sqrt(1 - kind.neighbours**2) * rng.standard_normal(shape[:2])
                series[..., step] = kind.neighbours * series[..., step - 1] + fresh
            y = y + kind.operations * series[..., None]
        y = y + np.where(rng.random(shape) < kind.pauses, rng.random(shape) * np.log(2), 0.0)
        y[0, 0] += np.log(slower)
        stage, peer, step, microbatch = (place.ravel() for place in np.indices(shape))
        columns = {"stage": stage, "dp_rank": peer, "rank": stage * kind.peers + peer, "step": step}
        columns |= {"microbatch": microbatch, "duration_s": np.exp(y).ravel()}
        rows.append(pl.DataFrame(columns).with_columns(pl.lit(optype).alias("optype")))
    missing = {"model_chunk": pl.Int64, "tp_size": pl.Int64, "gpu": pl.String}
    return pl.concat(rows).with_columns(pl.lit(None, dtype).alias(name) for name, dtype in missing.items())


def usual_rule(operations: pl.DataFrame) -> set[str]:
    """The ranks whose median is over 1.1 times that of their stage in an operation."""
    medians = operations.group_by("optype", "stage", "rank").agg(pl.col("duration_s").median())
    over = medians.filter(pl.col("duration_s") > 1.1 * pl.col("duration_s").median().over("optype", "stage"))
    return {f"rank {rank}" for rank in over["rank"].unique()}


def measured(jobs: int, effects: tuple[float, ...], seed: int, only: str = "") -> Iterator[dict[str, object]]:
    """The rates of each population."""
    for kind in POPULATIONS:
        if only not in kind.name:
            continue
        rng = np.random.default_rng(seed)
        row: dict[str, object] = {"population": kind.name, "ranks": kind.peers * kind.stages}
        for slower in (1.0, *effects):
            count = jobs if slower == 1 else max(jobs // 4, 1)
            hits, false = Counter[str](), Counter[str]()
            slow = {"rank 0"} if slower > 1 else set()
            for _ in range(count):
                operations = made(kind, rng, slower)
                suspects = {verdict.name for verdict in judged_job("j", operations, CONTEXT).rows}
                for rule, names in (("whorl", suspects), ("rule", usual_rule(operations))):
                    hits[rule] += bool(names & slow)
                    false[rule] += bool(names - slow)
            row["healthy" if slower == 1 else f"x{slower:g}"] = {"jobs": count, "false": false, "found": hits}
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--effects", type=float, nargs="*", default=(1.1, 1.3, 2.5))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for row in measured(options.jobs, options.effects, options.seed, options.only):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
