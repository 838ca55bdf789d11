"""Turn a sheet of readings of nodes' meters, one a row, into rows of `node_power`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from ..schema import NODE_POWER
from ..vocabulary import PowerMeter, PowerOf
from . import identity
from .content import LINE, Sheet
from .layout import Bound, Layout
from .options import Options
from .times import times
from .values import Remarks, is_placeholder, numbers, parsed

if TYPE_CHECKING:
    from ..store import Store

_HOST = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_BMC = r"[-.](?i:bmc|ipmi|oob|mgmt|ilo|idrac|xcc)$|\..*$"  # behind the host, in the name of a BMC or a full name
_CODES = {"source": PowerMeter, "covers": PowerOf}
_USUAL = {"source": PowerMeter.PDU, "covers": PowerOf.NODE_WALL}


def parse(
    sheet: Sheet, layout: Layout, options: Options, remarks: Remarks
) -> tuple[pl.DataFrame, pl.DataFrame, list[int]]:
    """The readings of a sheet (columns of `node_power`, and LINE), no events, and the lines of duplicates.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = layout.bound
    duplicates = identity.drop_duplicates(sheet)
    times(sheet, bound["timestamp"], remarks, minus_one=False, stream=False, time_zone=options.time_zone)
    measured = layout.metrics
    numbers(sheet, measured, remarks, minus_one=False)
    texts = [_text(bound, name) for name in ("part", *_CODES)]
    sheet.frame = sheet.frame.with_columns(_text(bound, "node").fill_null(pl.lit(options.node)), *texts)
    _as_the_store_calls_them(sheet, options, remarks)
    filled = pl.col("=source").fill_null(_USUAL["source"].value), pl.col("=covers").fill_null(_USUAL["covers"].value)
    sheet.frame = sheet.frame.with_columns(filled)
    sheet.refuse(
        (pl.col("=timestamp").is_null(), f"{bound['timestamp'].column} is missing"),
        (pl.col("=node").is_null(), "it names no node: say it with --node"),
        (~pl.col("=node").str.contains(_HOST), "its node is not the name of one host: an outlet of several is of none"),
        *((~pl.col(f"={name}").is_in(list(codes)), f"its {name} is none of {', '.join(codes)}")
          for name, codes in _CODES.items()),
        (pl.all_horizontal(pl.col(parsed(b.meaning)).is_null() for b in measured), "it has neither power nor energy"),
    )  # fmt: skip
    frame = sheet.frame.select(
        LINE,
        pl.lit(options.cluster).alias("cluster"),
        pl.col("=timestamp").alias("ts"),
        *(pl.col(f"={name}").alias(name) for name in ("node", "part", *_CODES)),
        *(pl.col(parsed(b.meaning)).round().cast(pl.Int64).alias(b.meaning.column) for b in measured),
    )
    first = frame.select(pl.struct(NODE_POWER.key).is_first_distinct()).to_series()
    again = frame.filter(~first)[LINE].to_list()
    sheet.refused.add("it is a second reading of the same meter at the same time", again)
    return frame.filter(first), pl.DataFrame(schema={LINE: pl.Int64}), duplicates


def unseen(store: Store, frame: pl.DataFrame) -> pl.DataFrame:
    """The readings of which the store has none of the same meter at the same time."""
    near = pl.col("node").is_in(frame["node"].unique().implode()) & pl.col("ts").is_between(
        frame["ts"].min(), frame["ts"].max()
    )
    stored = store.collect(store.scan(NODE_POWER.name).filter(near).select(NODE_POWER.key))
    return frame.join(stored, on=list(NODE_POWER.key), how="anti", nulls_equal=True, maintain_order="left")


def _text(bound: dict[str, Bound], name: str) -> pl.Expr:
    """The texts of a column, null where one stands for "unknown" and where there is no such column."""
    if name not in bound:
        return pl.lit(None, pl.String).alias(f"={name}")
    column = bound[name].column
    has_text = ~is_placeholder(column, minus_one=False)
    return pl.when(has_text).then(pl.col(column).str.strip_chars()).alias(f"={name}")


def _as_the_store_calls_them(sheet: Sheet, options: Options, remarks: Remarks) -> None:
    """Take `n1-bmc` or `n1.example.org` for n1 where the store has GPUs on a node n1, and on none of the other name."""
    nodes = options.fleet()["node"].drop_nulls().unique()
    node, host = pl.col("=node"), pl.col("=node").str.replace(_BMC, "")
    is_longer = ~node.is_in(nodes.implode()) & host.is_in(nodes.implode()) & (host != node)
    names = sheet.frame.filter(is_longer)["=node"].unique(maintain_order=True)
    if len(names):
        remarks.notes.append(f"{len(names)} names of nodes are those of the store with more behind them, as {names[0]}")
        sheet.frame = sheet.frame.with_columns(pl.when(is_longer).then(host).otherwise(node).alias("=node"))
