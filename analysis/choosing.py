"""Which GPU is meant, and which are beside it: every GPU of a store as one small frame, searched in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from ..errors import InputError
from ..store.catalog import quoted
from ..store.names import LISTED, no_such_gpu, several_gpus
from ..store.views import now_of
from .by_number import by_number
from .runs.probing import other_names

if TYPE_CHECKING:
    from ..store import Store

_NAMES = ("name", "uuid", "serial", "place", "gpu")
_APART = "\n"  # between the names of a GPU, and around them


def known_gpus(store: Store, gpus: str = "gpus") -> pl.DataFrame:
    """A row a GPU: the columns of `gpus_now`, `names` (all of them in lower case, a line each), and `keys` (what it is
    called in other tables). By cluster, cabinet, node, slot and key.

    A GPU that some files name by its place and others by its UUID has one row, that of the UUID. `gpus`: an SQL
    query for those rows of `gpus` that count.
    """
    # Python's times have no nanoseconds.
    query = f"select * replace (cast(first_seen as timestamp) as first_seen) from ({now_of(gpus)})"
    rows = store.sql(query).polars()
    own = pl.concat_str(
        (pl.col(name).cast(pl.String).str.replace_all(_APART, " ", literal=True) for name in _NAMES),
        separator=_APART,
        ignore_nulls=True,
    )
    rows = rows.with_columns(own.str.to_lowercase().alias("names"), pl.concat_list("gpu").alias("keys"))
    for cluster in rows["cluster"].unique():
        also = other_names(store, cluster)
        if also:
            rows = _joined(rows, str(cluster), also)
    framed = pl.concat_str(pl.lit(_APART), "names", pl.lit(_APART)).alias("names")
    places = by_number("cluster", "cabinet", "node")
    return rows.with_columns(framed).sort(*places, "slot", *by_number("gpu"), nulls_last=True)


def _joined(rows: pl.DataFrame, cluster: str, also: Mapping[str, str]) -> pl.DataFrame:
    """Without the rows of other names (`also`: name -> key), whose names and keys go to the GPU's own row."""
    second = (pl.col("cluster") == cluster) & pl.col("gpu").is_in(list(also))
    extra = rows.filter(second).select(
        pl.lit(cluster).alias("cluster"), pl.col("gpu").replace(also), "names", other="gpu"
    )
    extra = extra.group_by("cluster", "gpu").agg(pl.col("names").str.join(_APART).alias("more"), "other")
    rows = rows.filter(~second).join(extra, on=["cluster", "gpu"], how="left")
    return rows.with_columns(
        pl.concat_str("names", "more", separator=_APART, ignore_nulls=True).alias("names"),
        pl.when(pl.col("other").is_null()).then("keys").otherwise(pl.concat_list("keys", "other")).alias("keys"),
    ).drop("more", "other")


def find(store: Store, said: str, cluster: str | None = None) -> Mapping[str, Any]:
    """The row of `known_gpus` of the GPU that `said` means: its name, UUID, serial or a part that no other has.

    InputError where there are no GPUs, and where none or several fit.
    """
    # Who has the name, and all that were ever on the same nodes, as these decide who has it now.
    names = f"concat_ws('{_APART}', gpu, uuid, serial, place, node || '/' || slot)"
    named = f"contains(lower({names}), {quoted(said.strip().lower())})"
    beside = f"(select node from gpus where {named})"
    some = f"(select * from gpus where gpu in (select gpu from gpus where {named} or node in {beside}))"
    try:
        return meant(known_gpus(store, some), said, cluster, str(store.root))
    except InputError:  # the sentence tells of all GPUs
        return meant(known_gpus(store), said, cluster, str(store.root))


def meant(known: pl.DataFrame, said: str, cluster: str | None, where: str) -> Mapping[str, Any]:
    """The same in the rows of `known_gpus`. `where`: the store, for a sentence."""
    rows = known if cluster is None else known.filter(pl.col("cluster") == cluster)
    if known.is_empty():
        raise InputError(f"{where} holds no GPUs: `whorl collect` or `whorl probe run` adds those of a node")
    if rows.is_empty():
        others = ", ".join(known["cluster"].drop_nulls().unique().sort())
        raise InputError(f"{where} holds no GPUs of cluster {cluster!r}; it has {others}")
    wanted = said.strip().lower()
    several = rows["cluster"].n_unique() > 1
    if several:  # a name may be in both
        rows = rows.with_columns(
            pl.concat_str("names", pl.col("cluster").str.to_lowercase(), pl.lit(":"), "name", pl.lit(_APART))
        )
    for fits in (f"{_APART}{wanted}{_APART}", wanted if len(wanted) > 1 else None):
        if fits is None:
            continue
        found = rows.filter(pl.col("names").str.contains(fits, literal=True))
        if found.height == 1:
            return found.row(0, named=True)
        if found.height:
            clusters = found["cluster"].drop_nulls().unique().sort().to_list()
            raise several_gpus(said, _first(found, several), found.height, clusters if len(clusters) > 1 else ())
    raise no_such_gpu(said, f"in {where}", _first(rows, several), rows.height)


def _first(rows: pl.DataFrame, several: bool) -> list[tuple[str, str]]:
    """Names and keys of the first GPUs, for a sentence."""
    of = pl.format("{}:{}", "cluster", "gpu") if several else pl.col("gpu")
    return list(rows.head(LISTED).select("name", of.alias("key")).iter_rows())


def search(known: pl.DataFrame, text: str, cluster: str | None, most: int, first: tuple[str, ...] = ()) -> pl.DataFrame:
    """At most so many GPUs of `known_gpus` that have all words of a text in their names, model, node or cluster: those
    whose name begins with it first, then the keys in `first`."""
    rows = known if cluster is None else known.filter(pl.col("cluster") == cluster)
    whole = text.strip().lower()
    for word in whole.split():
        fits = pl.col("names").str.contains(word, literal=True)
        for column in ("model", "node", "cluster"):
            fits |= pl.col(column).str.to_lowercase().str.contains(word, literal=True).fill_null(value=False)
        rows = rows.filter(fits)
    begins = pl.col("names").str.contains(f"{_APART}{whole}", literal=True) & pl.lit(bool(whole))
    return rows.sort(~begins, ~pl.col("gpu").is_in(list(first)), maintain_order=True).head(most)


@dataclass(frozen=True)
class Beside:
    """The GPUs of a node in the order of their slots, as (name, key); of a MIG instance, those of its card."""

    gpus: tuple[tuple[str, str], ...]
    previous: str | None
    """Its name; None at the first."""
    next: str | None


def beside(known: pl.DataFrame, row: Mapping[str, Any]) -> Beside:
    """What is on the node of a GPU (a row of `known_gpus`); nothing where its node is not known."""
    here = known.filter(pl.col("cluster") == row["cluster"])
    if row["parent"] is not None:
        here = here.filter(pl.col("parent") == row["parent"]).sort("mig_profile", "gpu", nulls_last=True)
    elif row["node"] is not None:
        # A card that another one replaced in its slot is not there any more.
        there = (pl.col("name") != pl.col("gpu")) | pl.col("slot").is_null() | (pl.col("gpu") == row["gpu"])
        here = here.filter((pl.col("node") == row["node"]) & pl.col("parent").is_null() & there)
    else:
        return Beside((), None, None)
    gpus = tuple(here.select("name", "gpu").iter_rows())
    at = next(place for place, (_, gpu) in enumerate(gpus) if gpu == row["gpu"])
    return Beside(gpus, gpus[at - 1][0] if at else None, gpus[at + 1][0] if at + 1 < len(gpus) else None)


def shared(known: pl.DataFrame, row: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """By driver, vbios and power_limit_mw, where it is known: how many GPUs of the model have the same value as that of
    `row`, and of how many it is known."""
    alike = known.filter((pl.col("cluster") == row["cluster"]) & pl.col("model").eq_missing(pl.lit(row["model"])))
    names = [name for name in ("driver", "vbios", "power_limit_mw") if row[name] is not None]
    return {name: ((alike[name] == row[name]).sum(), alike[name].count()) for name in names}
