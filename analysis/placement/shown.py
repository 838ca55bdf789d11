"""Scores and advice as rows to be shown: every GPU, and every node by its slowest GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ..by_number import by_number
from ..verdicts import Judgement
from .advice import Advice
from .scores import Scores
from .tiers import nodes_of

EXCLUDED, KEPT, AVOIDED, PREFERRED, UNMARKED = "excluded", "hard, kept", "avoid", "prefer", ""
"""What the advice says about a node: `hard, kept` is certainly slow and not excluded; `avoid` is slow."""


def gpu_rows(scores: Scores, kinds: Sequence[str], judged: Judgement | None = None) -> pl.DataFrame:
    """Every GPU that was measured in these kinds of a workload, slowest first.

    Columns: cluster, gpu, name, node, model, workload, runs, raw (level of its times over the median GPU), score (what
    is believed of it), low, high (90 % of the score in another sitting; null where nobody knows what repeats),
    newest (of its runs), power_w, sm_clock_mhz, temperature_c (medians), finding (`Judgement.worst` of `judged`, null
    where nobody has judged the cluster: who stands out is said by the judge alone).
    """
    frames = []
    for kind in kinds:
        one = scores.one(kind)
        there = np.flatnonzero(one.runs > 0)
        places = [scores.places[gpu] for gpu in there]
        frames.append(
            pl.DataFrame(
                {
                    "cluster": [scores.cluster] * len(there),
                    "gpu": [scores.gpus[gpu] for gpu in there],
                    "name": [scores.name(int(gpu)) for gpu in there],
                    "node": [place.node for place in places],
                    "model": [place.model for place in places],
                    "workload": [kind] * len(there),
                    "runs": one.runs[there],
                    "raw": one.raw[there],
                    "score": one.belief[there],
                    "low": one.lower[there],
                    "high": one.upper[there],
                    "newest": one.newest[there].astype("datetime64[us]"),
                    "power_w": one.power_w[there],
                    "sm_clock_mhz": one.sm_clock_mhz[there],
                    "temperature_c": one.temperature_c[there],
                },
                schema_overrides={"node": pl.String, "model": pl.String},
            ).with_columns(pl.selectors.float().fill_nan(None))
        )
    rows = pl.concat(frames)
    rows = rows.with_columns(pl.lit(None, pl.String).alias("finding") if judged is None else judged.worst(rows))
    return rows.sort("score", *by_number("gpu"), descending=[True, False], nulls_last=True)


def node_rows(scores: Scores, advice: Advice) -> pl.DataFrame:
    """Every node with GPUs measured in the workload of one kind of advice, fastest first.

    Columns: node, gpus (measured there), worst (name of its slowest GPU), runs (of that GPU), score, low, high (of that
    GPU, as in `gpu_rows`), mark.
    """
    one, nodes = scores.one(advice.kind), nodes_of(scores, advice.kind, None)
    tiers = {its.node: KEPT if its.tier == "hard" else AVOIDED for its in advice.nodes}
    worst = np.array(nodes.worst, dtype=np.intp)
    marks = [
        EXCLUDED if name in advice.exclude else tiers.get(name) or (PREFERRED if name in advice.prefer else UNMARKED)
        for name in nodes.names
    ]
    return (
        pl.DataFrame(
            {
                "node": nodes.names,
                "gpus": [len(its) for its in nodes.gpus],
                "worst": [scores.name(gpu) for gpu in nodes.worst],
                "runs": one.runs[worst],
                "score": one.belief[worst],
                "low": one.lower[worst],
                "high": one.upper[worst],
                "mark": marks,
            },
            schema={
                "node": pl.String,
                "gpus": pl.Int64,
                "worst": pl.String,
                "runs": pl.Int64,
                "score": pl.Float64,
                "low": pl.Float64,
                "high": pl.Float64,
                "mark": pl.String,
            },
        )
        .with_columns(pl.selectors.float().fill_nan(None))
        .sort("score", *by_number("node"), nulls_last=True)
    )
