"""The kinds of a workload's runs that must not be pooled: a name for each model, power limit and locked clock."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import TYPE_CHECKING

import polars as pl

from ...store.vocabulary import ClockSetting, stated

if TYPE_CHECKING:
    from ...store import Store

APART = ("asked_power_limit_w", "clock")
"""The fields of `runs.conditions` that part the runs of a workload."""
_UNKNOWN = {"model": "model unknown", "limit": "power limit not set", "lock": "clock not locked"}
_FEW = 10_000  # runs: of so few, only the rows of their own GPUs are read


def told_apart(store: Store, runs: pl.DataFrame) -> pl.DataFrame:
    """`runs` with a workload of its own for each model of GPU, power limit and locked clock, where these differ.

    `runs`: with run_id, cluster, workload and gpu; with `conditions`, these are not read again. A workload whose runs
    are alike in these keeps its name; one of two models becomes `sgemm [Tesla V100]` and `sgemm [A100]`. What is not
    known is a kind of its own. Where a GPU is known by its place only, cards of several models may have been there: a
    run is of the model that was there when it began.
    """
    seen = store.scan("gpus").select("cluster", "gpu", "uuid", "model", "first_seen").drop_nulls("model")
    if runs.height <= _FEW:
        seen = seen.filter(pl.col("gpu").is_in(runs["gpu"].drop_nulls().unique().cast(pl.String).to_list()))
    seen = store.collect(seen.sort("first_seen", nulls_last=False, maintain_order=True)).lazy()  # it is asked thrice
    models = seen.group_by("cluster", "gpu").agg(pl.col("model").last())
    keys = ["cluster", "workload"]
    told = limits(store, runs)
    # Most stores have one kind of each workload: then no row needs a name of its own.
    then = _models_then(store, seen)
    who = runs.select(pl.col(*keys, "gpu").cast(pl.Categorical)).unique().cast(pl.String)
    who = store.collect(who.lazy().join(models, on=["cluster", "gpu"], how="left"))
    one_model = who.group_by(keys).agg(pl.col("model").n_unique() == 1)["model"].all()
    if one_model and then is None and all(told[name].n_unique() <= 1 for name in ("limit", "lock")):
        return runs.with_columns(pl.col("workload").cast(pl.Categorical))
    named = runs.select(pl.col(*keys, "gpu").cast(pl.String)).hstack(told).lazy()
    named = named.join(models, on=["cluster", "gpu"], how="left", maintain_order="left")
    if then is not None:
        named = named.with_columns(runs["run_id"].cast(pl.String)).join(then, "run_id", "left", maintain_order="left")
        named = named.with_columns(pl.coalesce("then", "model").alias("model"))
    usual = pl.col("limit").is_null() & pl.col("lock").is_null()
    parts = [
        pl.when((pl.col(kind).n_unique().over(keys) > 1) & ~(usual & (kind != "model"))).then(
            pl.col(kind).fill_null(unknown)
        )
        for kind, unknown in _UNKNOWN.items()
    ]
    kind = pl.concat_str(parts, separator=", ", ignore_nulls=True)
    named = named.select(pl.when(kind == "").then("workload").otherwise(pl.format("{} [{}]", "workload", kind)))
    return runs.with_columns(store.collect(named)["workload"].cast(pl.Categorical))


def kind_of(
    workload: str, limit: str | None, lock: str | None, *, model: str | None, names: Collection[str]
) -> str | None:
    """Of `names` that `told_apart` gave, that of the runs of a workload with this model, power limit and locked clock;
    None where none fits. `limit`, `lock`: of `limits`."""
    known = (model, limit, lock)
    parts = [unknown if value is None else value for value, unknown in zip(known, _UNKNOWN.values(), strict=True)]
    said = (", ".join(chosen) for n in range(len(parts), 0, -1) for chosen in combinations(parts, n))
    return next((name for name in (*(f"{workload} [{kind}]" for kind in said), workload) if name in names), None)


def _models_then(store: Store, seen: pl.LazyFrame) -> pl.LazyFrame | None:
    """The model at the time of each run (`run_id`, `then`) of a place in which cards of several models were.

    A card with a UUID is of one model, however its name is spelled.
    """
    of = ["cluster", "gpu"]
    plain = pl.col("model").str.to_lowercase().str.replace_all("nvidia|tesla", "").str.extract("([a-z]+ ?[0-9]+[a-z]*)")
    places = seen.filter(pl.col("uuid").is_null().all().over(of)).with_columns(plain.alias("plain"))
    known = store.collect(places.filter(pl.col("plain").n_unique().over(of) > 1))
    if known.is_empty():
        return None
    known = known.select(*of, pl.col("first_seen").alias("began"), pl.col("model").alias("then")).drop_nulls("began")
    runs = store.scan("runs").drop_nulls("began").select("run_id", *of, "began")
    runs = runs.join(known.select(of).unique().lazy(), on=of, how="semi").sort("began")
    found = runs.join_asof(known.sort("began").lazy(), on="began", by=of, check_sortedness=False)
    return found.select("run_id", "then")


def limits(store: Store, runs: pl.DataFrame) -> pl.DataFrame:
    """The power limit (`limit`) and locked clock (`lock`) of each run, as text; null where nothing is stated."""
    if "conditions" in runs.columns:
        known = runs.select("conditions")
        if known["conditions"].null_count() == runs.height:
            return _nothing_stated(runs.height)
    else:
        # By SQL: Polars would read all conditions of all runs.
        names = (*APART, "locked_clock_mhz")
        any_of = " or ".join(f"conditions.{name} is not null" for name in names)
        packed = ", ".join(f"{name} := conditions.{name}" for name in names)
        stated_of = store.sql(f"select run_id, struct_pack({packed}) as conditions from runs where {any_of}").polars()
        if stated_of.is_empty():
            return _nothing_stated(runs.height)
        known = runs.select("run_id").join(stated_of, on="run_id", how="left", maintain_order="left")
    return known.select(
        pl.format("{} W", _number("asked_power_limit_w")).alias("limit"),
        pl.when(stated("clock") == ClockSetting.LOCKED.value)
        .then(pl.format("locked at {} MHz", _number("locked_clock_mhz").fill_null("none")))
        .alias("lock"),
    )


def _nothing_stated(runs: int) -> pl.DataFrame:
    nothing = pl.repeat(None, runs, dtype=pl.String, eager=True)
    return pl.DataFrame([nothing.alias("limit"), nothing.alias("lock")])


def _number(key: str) -> pl.Expr:
    """A number of the conditions as text, without a fraction of zero."""
    return stated(key).cast(pl.String).str.strip_suffix(".0")
