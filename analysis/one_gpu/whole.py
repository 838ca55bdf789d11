"""All that a store says of one GPU as of now: it is judged beside all runs of its cluster, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from ..choosing import known_gpus, meant, shared
from ..fleet.timelines import Timelines, timelines
from ..runs.probing import campaigns, is_simulated, probed
from ..verdicts.alike import Neighbour
from ..verdicts.causes import Evidence
from ..verdicts.judge import judged
from . import happened, standing
from .found import Found, found_now
from .past import Line, past
from .peers import beside
from .reasons import Reasons, reasons
from .runs import days_of, kinds_of, own_runs, peers_runs, timed

if TYPE_CHECKING:
    from ...store import Store


@dataclass(frozen=True)
class OneGpu:
    """All that is known of a GPU."""

    row: Mapping[str, Any]
    """Of `known_gpus`."""
    shared: Mapping[str, tuple[int, int]]
    """How many GPUs of its model share its driver, VBIOS and power limit, of how many."""
    found: Found | None
    """None where its cluster has no runs."""
    stands: tuple[standing.Standing, ...]
    alike: tuple[Neighbour, ...]
    lines: tuple[Line, ...]
    marks: tuple[happened.Mark, ...]
    events: tuple[happened.Happened, ...]
    runs: pl.DataFrame = field(repr=False)
    """Of `own_runs`."""
    reasons: Reasons | None
    telemetry: Timelines | None
    """Of its last campaign."""

    @property
    def gpu(self) -> str:
        """Its key in the tables."""
        return str(self.row["gpu"])

    @property
    def name(self) -> str:
        """`node/slot` where known."""
        return str(self.row["name"])

    @property
    def simulated(self) -> bool:
        return is_simulated(self.runs)


def whole(
    store: Store, said: str, cluster: str | None = None, *, progress: Callable[[str], None] | None = None
) -> OneGpu:
    """Everything about the GPU that `said` means. InputError where no GPU or several fit."""
    tell = progress or (lambda _: None)
    known = known_gpus(store)
    row = meant(known, said, cluster, str(store.root))
    where, gpu, keys = str(row["cluster"]), str(row["gpu"]), list(row["keys"])
    found, stands, near = None, [], []
    if where in campaigns(store)["cluster"].to_list():
        tell("judging the GPUs")
        campaign = probed(store, cluster=where, every=True)
        evidence = Evidence.of(campaign, store)
        judgement = judged(campaign, store, evidence=evidence)
        tell("computing the fingerprint")
        figures = standing.of_campaign(store, campaign, evidence)
        stands = standing.standings(store, figures, gpu)
        near = standing.neighbours(
            standing.alike(store, figures), gpu, dict(campaign.gpus.select("gpu", "name").iter_rows())
        )
        found = found_now(judgement, row, {one.workload for one in standing.times(stands) if one.workload})
        del campaign, evidence
    tell("reading its past")
    runs = own_runs(store, where, keys, stands)
    mine = timed(runs)
    peers = peers_runs(store, where, known, row["model"], kinds_of(mine), days_of(mine))
    return OneGpu(
        row,
        shared(known, row),
        found,
        tuple(stands),
        tuple(near),
        tuple(past(mine, beside(peers, keys), stands)),
        tuple(happened.marks(store, where, keys, row["node"])),
        tuple(happened.events(store, where, keys, row["node"])),
        runs,
        reasons(store, where, keys),
        _telemetry(store, where, runs, gpu),
    )


def _telemetry(store: Store, cluster: str, runs: pl.DataFrame, gpu: str) -> Timelines | None:
    """Its telemetry over the last campaign that it was in; None where there is none."""
    last = runs.drop_nulls("campaign").sort("began", nulls_last=False).tail(1)
    if last.is_empty():
        return None
    lines = timelines(store, probed(store, str(last["campaign"].item()), cluster), [gpu])
    return lines if lines is not None and gpu in lines.gpus else None
