"""GPUs that were on several nodes, one after another: boards are exchanged to see whether a fault goes with them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from .claims import Key, listed

if TYPE_CHECKING:
    from ....store import Store

_ALWAYS, _NEVER = -(2**62), 2**62
Stay = tuple[str | None, int, int]
"""A node, and from when to when the GPU was there, ns."""


@dataclass(frozen=True)
class Moves:
    """The stays of each GPU that has moved, in order; the first one has no begin, the last one no end."""

    of: dict[Key, list[Stay]]

    @classmethod
    def read(cls, store: Store, gpus: Collection[Key] | None = None) -> Moves:
        """The moves that the table `gpus` shows, of some GPUs or of all.

        `n1` and `n1.example.org` are one node. A row without a UUID, of a GPU that has one, was found by its node.
        """
        only = "" if gpus is None else f" AND gpu IN ({listed(gpus)})"
        rows = store.sql(
            "SELECT cluster, gpu, arg_max(node, length(node)) AS node, since FROM (SELECT cluster, gpu, node, "
            f"coalesce(epoch_ns(first_seen), {_ALWAYS}) AS since FROM gpus "
            f"WHERE node IS NOT NULL AND parent IS NULL{only} "
            "QUALIFY (uuid IS NOT NULL OR max(uuid) OVER (PARTITION BY cluster, gpu) IS NULL) "
            "AND count(DISTINCT split_part(node, '.', 1)) OVER (PARTITION BY cluster, gpu) > 1) "
            "GROUP BY ALL ORDER BY since"
        )
        stays: dict[Key, list[Stay]] = {}
        for row in rows.to_pylist():
            own = stays.setdefault((row["cluster"], row["gpu"]), [])
            if not own:
                own.append((row["node"], _ALWAYS, _NEVER))
            elif _short(own[-1][0]) != _short(row["node"]):
                own[-1] = own[-1][0], own[-1][1], row["since"]
                own.append((row["node"], row["since"], _NEVER))
        return cls(stays)

    @property
    def times(self) -> list[int]:
        """When GPUs moved, ns."""
        return sorted({since for stays in self.of.values() for _, since, _ in stays[1:]})

    def stays(self, key: Key, now: str | None) -> list[Stay]:
        """Where a GPU was when; one that has not moved was always where it is now."""
        return self.of.get(key) or [(now, _ALWAYS, _NEVER)]

    def placed(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Pieces, each with the node on which its GPU was; they are cut at `times`."""
        rows = [(*key, since, node) for key, stays in self.of.items() for node, since, _ in stays]
        if not rows:
            return pieces
        schema = {"cluster": pl.String, "gpu": pl.String, "since": pl.Int64, "there": pl.String}
        stays = pl.DataFrame(rows, schema, orient="row").sort("since")
        numbered = pieces.with_row_index("=row").with_columns(pl.col("began").dt.epoch("ns").alias("since"))
        moved = numbered.join(stays.select("cluster", "gpu").unique(), on=["cluster", "gpu"], how="semi").sort("since")
        found = moved.select("=row", "cluster", "gpu", "since").join_asof(
            stays, on="since", by=["cluster", "gpu"], check_sortedness=False
        )
        told = numbered.join(found.select("=row", "there"), on="=row", how="left", maintain_order="left")
        return told.with_columns(pl.coalesce("there", "node").alias("node")).select(pieces.columns)


def _short(node: str | None) -> str:
    return (node or "").partition(".")[0]
