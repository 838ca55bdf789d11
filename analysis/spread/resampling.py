"""The 95 % intervals of a workload's figures: what is resampled, nodes or GPUs, and what can be had from how many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..runs.columns import numbers
from ..statistics import bootstrap
from ..statistics.ordering import Floats, Ints, tie_ranks

FEW = 20
"""Units below which every interval is too narrow."""
LEAST_NODES = 6
"""Nodes below which GPUs are resampled even if those of a node are alike; the intervals are then too narrow."""
_WIDEST = 5.0
"""Times its lower end, the most that the upper end of the coefficient of variation may be: beyond it a few values
decide the figure, and no resampling says what others would do."""
FEW_FOR_TAILS = 50
"""Units below which there is no interval for what rests on the outer twentieth of the values."""


@dataclass(frozen=True)
class Units:
    """What the bootstrap draws."""

    what: str
    """"GPU" or "node"."""
    count: int
    of: Ints | None = None
    """(gpus,) the unit of each GPU; None where each GPU is one."""
    nodes: int | None = None
    """How many nodes there are, if GPUs of a node are alike and they are too few to be resampled."""

    @property
    def narrow(self) -> str | None:
        """Why the intervals are too narrow; None if they are not."""
        if self.nodes is not None:
            return f"GPUs of a node are alike, and there are only {self.nodes} nodes"
        return f"they come from fewer than {FEW} {self.what}s" if self.count < FEW else None

    def says(self, found: dict[str, bootstrap.Interval | None]) -> str:
        """What was resampled and what has no interval, a sentence."""
        text = f"from {self.count:,} {self.what}s that were resampled"
        if self.what == "node":
            text += ", because GPUs of a node are alike"
        why = {"whisk_pct": "its ends are two single values", "cov_pct": "a few values decide it"}
        if self.count < FEW_FOR_TAILS:
            why["p95p5_pct"] = f"fewer than {FEW_FOR_TAILS} {self.what}s"
        none = [f"{name} ({why[name]})" for name in why if found[name] is None]
        return f"{text}; none for {', '.join(none)}"


def units(names: list[str], ordered: Floats, owners: Ints, where: pl.DataFrame | None) -> Units:
    """Nodes, if several GPUs are on one and those of a node are more alike than others; else GPUs.

    `ordered`: the medians of the GPUs, ascending; `owners`: whose they are; `where`: `gpu` and `node`.
    """
    alone = Units("GPU", len(names))
    if where is None or "node" not in where.columns:
        return alone
    found = pl.DataFrame({"gpu": names}).join(where.select("gpu", "node"), on="gpu", how="left", maintain_order="left")
    known = found["node"].is_not_null().to_numpy()
    node, nodes = numbers(found["node"].drop_nulls())
    if len(nodes) < 2 or len(nodes) == len(node):
        return alone
    rank = np.empty(len(names))
    rank[owners] = tie_ranks(ordered)
    gpus = len(node)
    clear = 1.0 + np.sqrt(2.0 / (len(nodes) - 1) + 2.0 / (gpus - len(nodes)))
    if _ratio(rank[known], node, len(nodes)) <= clear:
        return alone
    if len(nodes) < LEAST_NODES:
        return Units("GPU", len(names), nodes=len(nodes))
    unit = np.empty(len(names), dtype=np.intp)
    unit[known] = node
    unit[~known] = len(nodes) + np.arange(int((~known).sum()))
    return Units("node", len(nodes) + int((~known).sum()), unit)


def _ratio(rank: Floats, node: Ints, nodes: int) -> float:
    """The mean square between nodes over that within: 1 give or take its standard error if nodes do not matter. Of
    ranks, so that no GPU that is far off decides."""
    size = np.bincount(node, minlength=nodes)
    away = rank - rank.mean()
    between = float((np.bincount(node, away, nodes) ** 2 / size).sum())
    within = float((away**2).sum()) - between
    if within <= 0:
        return np.inf
    return between / (nodes - 1) / (within / (len(rank) - nodes))


def intervals(
    resampled: bootstrap.Resampled, replicated: dict[str, Floats], of: Units
) -> tuple[dict[str, bootstrap.Interval | None], bootstrap.Interval | None]:
    """The intervals of the headline figures, and that of the ICC."""
    once = resampled.figures(np.ones((1, of.count), dtype=np.int32))
    found = {name: bootstrap.percentile_interval(replicated[name]) for name in bootstrap.FIGURES}
    of_icc = bootstrap.percentile_interval(replicated["icc"])
    if of.count >= LEAST_NODES:
        found["cov_pct"] = cov = bootstrap.cov_interval(once, replicated)
        if cov is not None and cov[1] > _WIDEST * cov[0]:
            found["cov_pct"] = None
        of_icc = bootstrap.icc_interval(once, replicated, resampled.moments)
    found["whisk_pct"] = None
    if of.count < FEW_FOR_TAILS:
        found["p95p5_pct"] = None
    return found, of_icc
