"""All that a store says of one GPU, for its page: what explains it, its fingerprint, its clock and its telemetry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ..choosing import known_gpus
from ..fleet.timelines import Timelines, timelines
from ..runs.probing import probed
from ..verdicts.fingerprint import Neighbour
from . import happened, standing
from .explain import Explained, explain
from .reasons import Reasons, reasons

if TYPE_CHECKING:
    from ...store import Store


@dataclass(frozen=True)
class OneGpu(Explained):
    """All that is known of a GPU."""

    stands: tuple[standing.Standing, ...]
    """Its figures beside its peers, of the newest fingerprints."""
    figures: standing.Figures | None
    """Those fingerprints; None where its cluster has no runs."""
    alike: tuple[Neighbour, ...]
    marks: tuple[happened.Mark, ...]
    reasons: Reasons | None
    telemetry: Timelines | None
    """Of its last campaign."""


def whole(
    store: Store, name: str, cluster: str | None = None, *, progress: Callable[[str], None] | None = None
) -> OneGpu:
    """Everything about the GPU that `said` means. InputError where no GPU or several fit."""
    tell = progress or (lambda _: None)
    tell("reading its past and what was judged")
    explained = explain(store, name, cluster=cluster, peers=True)
    on_cluster, gpu, keys = explained.cluster, explained.gpu, list(explained.row["keys"])
    tell("reading the fingerprints")
    figures = standing.figures(store, on_cluster, float("inf"))
    stands, near = [], []
    if figures is not None:
        stands = standing.standings(store, figures, gpu)
        names = known_gpus(store).filter(pl.col("cluster") == on_cluster).select("gpu", "name")
        near = standing.neighbours(standing.alike(store, figures), gpu, dict(names.iter_rows()))
    return OneGpu(
        **vars(explained),
        stands=tuple(stands),
        figures=figures,
        alike=tuple(near),
        marks=tuple(happened.marks(store, on_cluster, keys, explained.row["node"])),
        reasons=reasons(store, on_cluster, keys),
        telemetry=_telemetry(store, on_cluster, explained.runs, gpu),
    )


def _telemetry(store: Store, cluster: str, runs: pl.DataFrame, gpu: str) -> Timelines | None:
    """Its telemetry over the last campaign that it was in; None where there is none."""
    last = runs.drop_nulls("campaign").sort("began", nulls_last=False).tail(1)
    if last.is_empty():
        return None
    lines = timelines(store, probed(store, str(last["campaign"].item()), cluster), [gpu])
    return lines if lines is not None and gpu in lines.gpus else None
