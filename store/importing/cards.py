"""Which card was in a slot when a row was measured, where a file numbers the GPUs of a node and has no UUIDs."""

from __future__ import annotations

import polars as pl

from .content import LINE, Sheet
from .options import Options
from .values import Seen


def of_the_time(sheet: Sheet, when: str, seen: Seen, options: Options) -> None:
    """Give rows that were named by node and number to the card that was there at the time in the column `when`.

    Only slots matter in which the store knows several cards, one after another. A row without a time stays with the
    card that is there now.
    """
    has = {"=uuid", "=node", "=slot"} <= set(sheet.frame.columns)
    if not has or not sheet.frame.select((pl.col("=uuid").is_null() & pl.col("=slot").is_not_null()).any()).item():
        return
    cards = options.cards()
    if cards.is_empty():
        return
    holder = {name: key for key, name in options.known().items()}
    node, slot = pl.col("=node"), pl.col("=slot").cast(pl.String)
    rows = sheet.frame.filter(pl.col("=uuid").is_null() & pl.col(when).is_not_null()).select(
        LINE,
        "=gpu",
        (node + "/" + slot).alias("name"),
        (node + ":" + slot).alias("bare"),
        pl.col(when).alias("ts"),
    )
    named = pl.col("=gpu") == pl.coalesce(
        pl.col("name").replace_strict(holder, default=None, return_dtype=pl.String), "bare"
    )
    rows = rows.filter(named & pl.col("name").is_in(cards["name"].unique().implode())).sort("ts")
    found = rows.join_asof(cards.sort("since"), left_on="ts", right_on="since", by="name", check_sortedness=False)
    earliest = cards.sort("since").group_by("name").agg(pl.col("card").first().alias("first"))
    found = found.join(earliest, on="name").with_columns(pl.coalesce("card", "first").alias("card"))
    found = found.filter(pl.col("card") != pl.col("=gpu"))
    if found.is_empty():
        return
    names = found["name"].unique().sort().to_list()
    which = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    rows_of = "1 row is" if len(found) == 1 else f"{len(found):,} rows are"
    seen.notes.append(f"{rows_of} of a card that is not there any more, or has another number now: {which}")
    sheet.frame = sheet.frame.join(found.select(LINE, "card"), on=LINE, how="left", maintain_order="left")
    sheet.frame = sheet.frame.with_columns(pl.coalesce("card", "=gpu").alias("=gpu")).drop("card")
