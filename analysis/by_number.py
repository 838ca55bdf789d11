"""Rows in the order in which people count: node-2 before node-10."""

from __future__ import annotations

import polars as pl

from ..store.names import PADDED, UUID


def by_number(*columns: str) -> list[pl.Expr]:
    """What to sort a frame by instead of these columns of names; `store.names.by_number` is the same for lists."""
    return [pl.col(name).cast(pl.String).map_batches(_padded, return_dtype=pl.String) for name in columns]


def _padded(names: pl.Series) -> pl.Series:
    """Each name once: of a large fleet many rows have the name of a node."""
    distinct = names.drop_nulls().unique()
    numbered = distinct.filter(~distinct.str.starts_with(UUID[0]) & ~distinct.str.starts_with(UUID[1]))
    padded = numbered
    for pattern, by in PADDED:
        padded = padded.str.replace_all(pattern, by.replace(r"\1", "${1}"))
    return names.replace(numbered, padded)
