"""What a store knows of a few GPUs, read without reading the rest: their own levels, their peers, their findings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.views import OF_ALL_RUNS
from ...store.vocabulary import EventKind, stated
from ..runs.measurements import SOUND, codes
from ..runs.probing import IS_FACT
from .compare import LEAST_GPUS, Fleet
from .judgements import stored
from .levels import UNKNOWN_NOISE
from .model import figures_of
from .verdict import Verdict
from .watch import Alarm, update

if TYPE_CHECKING:
    from ...store import Store

_OF_GPU = ("node", "slot", "model", "vbios", "driver", "cabinet")
_LEAST = 1e-3  # no GPU is steadier from sitting to sitting


@dataclass(frozen=True, slots=True)
class Level:
    """The usual time of a GPU in a workload, ms; None where it is unknown."""

    own_ms: float | None
    low_ms: float | None
    high_ms: float | None
    """95 % interval of its own level in another sitting."""
    peers_ms: float | None
    """The level that the judge compares it with; None for fewer than eight GPUs of its model."""
    peers: int
    spread: float | None = None
    """Standard deviation of ln time from sitting to sitting; None where no GPUs show it."""
    past: tuple[tuple[float, float], ...] = ()
    """Its runs: the time (ms), and when it began (s since 1970), in the order of time."""

    def left(self, time_ms: float, at_s: float) -> Alarm | None:
        """Whether the GPU has left its own level with one more run (`online`); None where it has not."""
        noise = (
            UNKNOWN_NOISE
            if self.spread is None
            else replace(UNKNOWN_NOISE, between=np.full(1, 2 * max(self.spread, _LEAST) ** 2))
        )
        state, alarm = None, None
        for value, at in (*self.past, (time_ms, at_s)):
            state, new_alarm = update(state, value, at, expected=noise)
            alarm = new_alarm or alarm
        return alarm if alarm is not None and state is not None and alarm.at_s >= state["began_s"] else None


@dataclass(frozen=True, slots=True)
class Happened:
    """Events of one kind about a GPU, of those that tell a fault without any run."""

    kind: EventKind
    code: int | None
    """Of an XID, its number."""
    n: int
    last: datetime | None


@dataclass(frozen=True)
class Known:
    """What a store knows of a few GPUs."""

    names: Mapping[str, str]
    levels: Mapping[str, Mapping[str, Level]]
    """GPU -> workload -> level."""
    verdicts: Mapping[str, Sequence[Verdict]]
    """GPU -> findings of the newest judgement that cover it."""
    usual: Mapping[tuple[str, str | None], tuple[float, int]] = field(default_factory=dict)
    """(workload, model) -> median of the GPUs, and how many there are."""
    happened: Mapping[str, Sequence[Happened]] = field(default_factory=dict)
    """GPU -> what no judgement has seen yet."""

    def peers_of(self, gpu: str, workload: str, model: str | None) -> Level | None:
        """What its peers take, for a GPU that has no level of its own."""
        peers = self.usual.get((workload, model))
        if peers is None or peers[1] < LEAST_GPUS or workload in self.levels.get(gpu, {}):
            return None
        return Level(None, None, None, *peers)


def known(
    store: Store,
    gpus: Collection[str],
    workloads: Collection[str],
    *,
    leave_out: str | None = None,
    peers_too: bool = True,
) -> Known:
    """What is known of GPUs in these workloads (names of probes), without the runs of one campaign.

    Without `peers_too` the runs of other GPUs are not read, and nothing is known of peers. Runs with a power limit or a
    locked clock that was asked for are left out.
    """
    identities = store.collect(store.scan("gpus").select("gpu", *_OF_GPU, "first_seen").sort("first_seen"))
    last = identities.group_by("gpu").agg(pl.col(name).drop_nulls().last() for name in _OF_GPU)
    mine = last.filter(pl.col("gpu").is_in(list(gpus)))
    models = mine["model"].drop_nulls().unique().to_list()
    peers = last.filter(pl.col("model").is_in(models) | pl.col("gpu").is_in(list(gpus))) if peers_too else mine
    keys = peers["gpu"].to_list()
    runs = _runs(store, peers, workloads, leave_out)
    dated = runs.filter(pl.col("gpu").is_in(list(gpus)) & pl.col("began").is_not_null()).sort("began")
    at = pl.col("began").cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    past = {
        key: tuple(rows.select("value", at).iter_rows())
        for key, rows in dated.group_by("gpu", "workload", maintain_order=True)
    }
    levels: dict[str, dict[str, Level]] = {}
    usual: dict[tuple[str, str | None], tuple[float, int]] = {}
    runs = runs.with_columns(pl.Series("gpu_no", codes(runs["gpu"], keys)))
    for figure in figures_of(runs, len(keys), fleet=Fleet.of(peers)[0]):
        measured = np.flatnonzero(figure.levels.known)
        n = len(measured)
        usual[figure.workload, figure.model] = math.exp(float(np.median(figure.levels.level[measured]))), n
        for gpu in (gpu for gpu in measured.tolist() if keys[gpu] in gpus):
            level, half = figure.levels.level[gpu], figure.half[gpu]
            low, high = (None if np.isnan(half) else math.exp(level + side * half) for side in (-1, 1))
            levels.setdefault(keys[gpu], {})[figure.workload] = Level(
                own_ms=math.exp(level),
                low_ms=low,
                high_ms=high,
                peers_ms=math.exp(figure.centre[gpu]) if n >= LEAST_GPUS else None,
                peers=int(figure.peers[gpu]),
                spread=figure.levels.again if figure.levels.between_known else None,
                past=past.get((keys[gpu], figure.workload), ()),
            )
    placed = mine.drop_nulls(["node", "slot"]).select("gpu", pl.format("{}/{}", "node", "slot"))
    return Known(dict(placed.iter_rows()), levels, findings(store, gpus), usual, unjudged(store, gpus))


def _runs(store: Store, peers: pl.DataFrame, workloads: Collection[str], leave_out: str | None) -> pl.DataFrame:
    """The sound runs of these GPUs and workloads under no special conditions, with their median times as `value`."""
    # The driver's own limit is no special condition; the keys are null where nothing was asked for.
    special = pl.any_horizontal(stated(key).is_not_null() for key in ("asked_power_limit_w", "locked_clock_mhz"))
    chosen = pl.col("workload").is_in(list(workloads)) & pl.col("gpu").is_in(peers["gpu"].implode())
    runs = store.scan("runs").filter(chosen & SOUND & ~special)
    if leave_out is not None:
        runs = runs.filter(pl.col("campaign").ne_missing(leave_out))
    frame = store.collect(runs.select("run_id", "workload", "gpu", "began"))
    times = store.scan("results").filter(chosen & pl.col("figure").is_in(["time", "time_median"]))
    value = pl.coalesce(pl.col("value").filter(pl.col("figure") == "time_median").first(), pl.col("value").median())
    medians = store.collect(times.group_by("run_id").agg(value.alias("value")))
    frame = frame.join(medians, on="run_id").join(peers.select("gpu", "model"), on="gpu", how="left")
    return frame.filter(pl.col("value").is_finite() & (pl.col("value") > 0))


def findings(store: Store, gpus: Collection[str]) -> dict[str, list[Verdict]]:
    """The findings of the newest judgement of each cluster that cover these GPUs, by GPU."""
    verdicts: dict[str, list[Verdict]] = {}
    for judgement in stored(store):
        for verdict, keys in zip(judgement.judgement.rows, judgement.keys, strict=True):
            for gpu in keys.intersection(gpus):
                verdicts.setdefault(gpu, []).append(verdict)
    return verdicts


def unjudged(store: Store, gpus: Collection[str]) -> dict[str, list[Happened]]:
    """By GPU, the faults that events tell since the newest judgement of all runs, the last ones first."""
    judged = (
        store.scan("judgements").filter(pl.sql_expr(OF_ALL_RUNS)).group_by("cluster").agg(pl.col("judged_at").max())
    )
    results = pl.col("kind").is_in([EventKind.WRONG_RESULT.value, EventKind.PROBE_FAILED.value])
    faults = store.scan("events").filter((IS_FACT | results) & pl.col("gpu").is_in(list(gpus)))
    new = store.collect(faults.select("cluster", "gpu", "kind", "code", "ts")).join(
        store.collect(judged), on="cluster", how="left"
    )
    new = new.filter(pl.col("judged_at").is_null() | (pl.col("ts") > pl.col("judged_at")))
    by_kind = new.group_by("gpu", "kind", "code").agg(pl.len(), pl.col("ts").max()).sort("ts", descending=True)
    happened: dict[str, list[Happened]] = {}
    for gpu, kind, code, n, last in by_kind.iter_rows():
        happened.setdefault(str(gpu), []).append(Happened(EventKind(kind), code, n, last))
    return happened
