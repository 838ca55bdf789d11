"""Rows in the order in which people count: node-2 before node-10."""

from __future__ import annotations

import polars as pl

from ..store.names import PADDED

_UUID = 36  # letters


def by_number(*columns: str) -> list[pl.Expr]:
    """What to sort a frame by instead of these columns of names; `store.names.by_number` is the same for lists."""
    return [_padded(pl.col(name).cast(pl.String)) for name in columns]


def _padded(names: pl.Expr) -> pl.Expr:
    counted: pl.Expr = pl.when(names.str.len_bytes() < _UUID).then(names)  # nobody counts UUIDs, and it would take long
    for pattern, by in PADDED:
        counted = counted.str.replace_all(pattern, by.replace(r"\1", "${1}"))
    return pl.coalesce(counted, names)
