"""Whether the books balance: of each GPU what was metered, and what became of it; and what is wrong in a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ..by_number import by_number
from .booked import Booked, booked
from .carbon.billing import NoFigure
from .pieces import Kind

if TYPE_CHECKING:
    from ...store import Store

SCHEMA = "whorl.energy.reconcile/1"
CLOSE = 1e-9
"""The books balance if attributed + idle + unattributed is metered to within this part of it."""

_KEYS = ["cluster", "gpu"]
_PARTS = {Kind.JOB: "attributed_j", Kind.IDLE: "idle_time_j", Kind.UNATTRIBUTED: "unattributed_j"}


@dataclass(frozen=True)
class Balance:
    """Of each GPU, where its metered energy went (`gpus`), and what is wrong (`problems`)."""

    gpus: pl.DataFrame
    """cluster, gpu, name, node, model, first, last; metered_j, attributed_j, idle_time_j, unattributed_j, difference_j
    (NULL with a reason where the GPU has no honest reading); gaps_j and gaps_s (of what was metered: without readings);
    not_read_j and not_read_s (beside it: neither readings nor a job; the energy is a guess); idle_w
    with its interval (idle_low_w, idle_high_w) and what it is known from (idle_source, a code of `IdleSource`);
    power_source (what gave the energy, a code of `PowerSource`); limit_w, problems (how many)."""
    problems: pl.DataFrame
    booked: Booked

    @property
    def balances(self) -> bool:
        """Whether the parts of every GPU add up to what was metered."""
        return bool((self.gpus["difference_j"].abs() <= CLOSE * self.gpus["metered_j"].abs() + CLOSE).all())


def reconcile(
    store: Store,
    *,
    cluster: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    settings: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Balance:
    """Hold what was metered against what was given to jobs, to nobody (idle) and to somebody unknown.

    Raises InputError where there is no telemetry in that time.
    """
    return held(store, booked(store, cluster=cluster, since=since, until=until, settings=settings, progress=progress))


def held(store: Store, found: Booked) -> Balance:
    """What `reconcile` says, from books that are there."""
    lasted = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
    dark = found.dark.group_by(_KEYS, maintain_order=True).agg(
        pl.col("energy_j").sum().alias("not_read_j"), (pl.col("share") * lasted).sum().alias("not_read_s")
    )
    parts = found.lit.group_by(_KEYS, maintain_order=True).agg(
        *(pl.col("energy_j").filter(pl.col("kind") == kind.value).sum().alias(name) for kind, name in _PARTS.items()),
        pl.col("energy_j").sum().alias("sum_j"),
        (pl.col("energy_j") - pl.col("sensed_j")).sum().alias("gaps_j"),
        (pl.col("share") * lasted - pl.col("measured_s")).sum().clip(lower_bound=0).round(3).alias("gaps_s"),
        (pl.col("measured_s").sum() > 0).alias("measured"),
        pl.col("reason").drop_nulls().first(),
    )
    counted = found.problems.group_by(_KEYS, maintain_order=True).agg(pl.len().alias("problems"))
    named = store.sql("select cluster, gpu, name, model from gpus_now").polars()
    gpus = (
        found.metered.join(parts, on=_KEYS, how="left", nulls_equal=True)
        .join(dark, on=_KEYS, how="left", nulls_equal=True)
        .join(counted, on=_KEYS, how="left", nulls_equal=True)
        .join(named, on=_KEYS, how="left", nulls_equal=True)
        .with_columns(pl.col("problems", "not_read_j", "not_read_s", "sum_j", "gaps_j", "gaps_s").fill_null(0))
        .with_columns(pl.col("metered_j") - pl.col("not_read_j"))
        .with_columns((pl.col("metered_j") - pl.col("sum_j")).alias("difference_j"))
        .with_columns(
            pl.when("measured").then(pl.col("metered_j", *_PARTS.values(), "difference_j", "gaps_j", "gaps_s")),
            pl.when(~pl.col("measured")).then("reason").alias("reason"),
        )
        .sort(*by_number("cluster", "node", "name"), "gpu", nulls_last=True)
    )
    places = gpus.select(*_KEYS).with_row_index("place")
    problems = found.problems.join(places, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    problems = problems.sort("place", nulls_last=True, maintain_order=True).drop("place")
    return Balance(
        gpus.select(
            *_KEYS, "name", "node", "model", "first", "last", "metered_j", *_PARTS.values(), "difference_j", "reason",
            "gaps_j", "gaps_s", "not_read_j", "not_read_s", "idle_w", "idle_low_w",
            "idle_high_w", "idle_source", "power_source", "limit_w", "problems",
        ),
        pl.concat([problems, _no_figures(found)], how="diagonal"),
        found,
    )  # fmt: skip


def _no_figures(found: Booked) -> pl.DataFrame:
    """What the settings lack for grams or money, in the form of `Booked.problems`; nothing where there are none."""
    names = ("carbon_reason", "cost_reason") if found.settings.path is not None else ()
    rows = [
        found.counted.filter(pl.col(name).is_not_null() & (pl.col(name) != NoFigure.NO_ENERGY.value))
        .group_by("cluster", pl.col(name).alias("problem"))
        .agg(pl.col("began").min(), pl.col("ended").max(), pl.col("energy_j").sum().alias("joules"))
        .with_columns(pl.lit(1, pl.Int64).alias("n"))
        .sort("cluster", "problem")
        for name in names
    ]
    return pl.concat([found.problems.clear(), *rows], how="diagonal")
