"""Fingerprints of a store's GPUs: computed from all runs of a cluster, stored, and one of them looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ..choosing import find
from ..runs.probing import probed
from ..spread.passive import passive_fingerprints
from .answers.alike import Alike, Neighbour
from .fingerprint import fingerprint, store_fingerprint, with_passive

if TYPE_CHECKING:
    from ...store import Store
    from ..runs.probing import Probed
    from .causes.evidence import Evidence


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of a cluster's GPUs, or that of one."""

    cluster: str
    rows: pl.DataFrame
    """Rows of the table `fingerprints`, with `name`; of one GPU where one was asked for."""
    gpu: str | None
    neighbours: tuple[Neighbour, ...]
    """The GPUs most like it; none where all GPUs were asked for."""
    notes: tuple[str, ...]


def fingerprints(store: Store | str | Path, *, cluster: str | None = None, gpu: str | None = None) -> Fingerprints:
    """Compute the fingerprints of a cluster, store them, and give those of all GPUs or of the one that `gpu` means.

    InputError where there are no runs, where several clusters have some and none is named, and where no GPU or
    several fit.
    """
    from ...store import Store

    opened = store if isinstance(store, Store) else Store.open(store)
    key: str | None = None
    if gpu is not None:
        row = find(opened, gpu, cluster)
        cluster, key = str(row["cluster"]), str(row["gpu"])
    campaign = probed(opened, cluster=cluster, every=True)
    rows, names = computed(opened, campaign)
    notes = store_fingerprint(opened, rows)
    shown = rows if key is None else rows.filter(pl.col("gpu") == key)
    shown = shown.with_columns(pl.col("gpu").replace_strict(dict(names), default=pl.col("gpu")).alias("name"))
    alike = () if key is None else tuple(Alike.of(rows).nearest(key, names))
    return Fingerprints(campaign.cluster, shown, key, alike, notes)


def computed(
    store: Store, campaign: Probed, evidence: Evidence | None = None
) -> tuple[pl.DataFrame, Mapping[str, str]]:
    """The rows of `fingerprints` of all GPUs of a cluster, not stored, and the names of its GPUs by key.

    `campaign`: from `probed(..., every=True)`. `evidence`: of it, where it is known already.
    """
    of = f"select gpu, name, serial from gpus_now where cluster = '{campaign.cluster.replace(chr(39), chr(39) * 2)}'"
    identities = pl.DataFrame(
        store.sql(of).to_pylist(), schema={"gpu": pl.String, "name": pl.String, "serial": pl.String}
    )
    names: Mapping[str, str] = dict(identities.select("gpu", "name").iter_rows())
    serials = identities.select("gpu", "serial")
    passive = passive_fingerprints(store, cluster=campaign.cluster)
    return with_passive(fingerprint(campaign, serials, evidence), passive, serials), names
