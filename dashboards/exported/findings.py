"""Conclusions as series: verdicts, fingerprints and events that are stored, who the GPUs are, and the energy of each
GPU since the exporter began.

Nothing is judged here: `whorl verdicts` and `whorl verdicts fingerprint` judge and store; this reads their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...analysis.energy.readings import meters_of_many
from ...analysis.energy.sensor import Floats
from ...analysis.verdicts.verdict import ACROSS_NODES, State
from ...store.views import OF_ALL_RUNS
from ...store.vocabulary import EventKind
from .series import IDENTITY, ONE, RATIO, SECONDS, TIMESTAMP, UNITS, GpuLabels, Point, Series, identity, series

if TYPE_CHECKING:
    from ...store import Store
    from ...store.newest import Gpu

_IDENTITIES = f"select cluster, gpu, {', '.join(IDENTITY)}, memory_total from gpus_now"
_JUDGED = (
    f"select cluster, epoch_ns(judged_at) / 1e9 as at, gpus from judgements where {OF_ALL_RUNS} "
    "qualify row_number() over (partition by cluster order by judged_at desc) = 1"
)
_VERDICTS = (
    "select cluster, level, [each.gpu for each in gpus] as gpu, kind, state, effect_pct / 100 as effect, n "
    "from verdicts_now"
)
_FINGERPRINTS = (
    "select cluster, gpu, workload, figure, ratio, ratio_low as low, ratio_high as high, peers, sittings "
    "from fingerprints_now where ratio is not null and workload is not null"
)
_EVENTS = (
    "select cluster, gpu, kind, code::varchar as code, count(*) as n, epoch_ns(max(ts)) as at from events "
    "where gpu is not null group by cluster, gpu, kind, events.code"
)

_SETTLED_NS = 30 * 10**9  # newer rows may still come, from nodes whose clock or disk is slow


@dataclass(frozen=True)
class Conclusions:
    """What is known beside the readings, at one time."""

    rows: dict[Gpu, dict[str, Any]] = field(default_factory=dict)
    """By GPU, its row of `gpus_now`."""
    identity: dict[Gpu, tuple[Point, Point | None]] = field(default_factory=dict)
    """By GPU, who it is."""
    series: tuple[Series, ...] = ()
    about: frozenset[Gpu] = frozenset()
    """The GPUs that verdicts and fingerprints are about."""
    last_xid: dict[Gpu, int] = field(default_factory=dict)
    """By GPU, the number of its last XID error."""


def find(store: Store, labels: GpuLabels, now_ns: int) -> Conclusions:
    """What is stored at present. Raises WhorlError."""
    rows = {(row["cluster"], row["gpu"]): row for row in store.sql(_IDENTITIES).to_pylist()}
    identities = {gpu: identity(row, labels[gpu], now_ns) for gpu, row in rows.items()}
    judgements, verdicts, prints, events = (
        store.sql(query).polars() for query in (_JUDGED, _VERDICTS, _FINGERPRINTS, _EVENTS)
    )
    of_gpus = verdicts.explode("gpu").drop_nulls("gpu")
    xids = events.filter(pl.col("kind") == EventKind.XID.value).drop_nulls("code").sort("at")
    return Conclusions(
        rows,
        identities,
        (*_judged(judgements, verdicts, of_gpus, now_ns), *_fingerprints(prints, now_ns), _counted(events, now_ns)),
        frozenset(row for about in (of_gpus, prints) for row in about.select("cluster", "gpu").iter_rows()),
        {(cluster, gpu): int(code) for cluster, gpu, code in xids.select("cluster", "gpu", "code").iter_rows()},
    )


def _points(rows: pl.DataFrame, value: str, labels: Sequence[str], now_ns: int) -> list[Point]:
    """The rows in which a column is known, as points with these columns as labels; a code that is missing is none."""
    known = rows.drop_nulls(value).with_columns(pl.col("cluster").fill_null(""))
    return [
        ({name: label for name, label in names.items() if label is not None}, number, now_ns)
        for names, number in zip(known.select(labels).iter_rows(named=True), known[value].to_list(), strict=True)
    ]


def _judged(judgements: pl.DataFrame, verdicts: pl.DataFrame, of_gpus: pl.DataFrame, now_ns: int) -> Iterable[Series]:
    """The newest judgement of each cluster: its findings by GPU, and how it stands as a whole."""
    kinds = ("cluster", "gpu", "level", "kind")
    of_gpus = of_gpus.filter(~pl.col("level").is_in(list(ACROSS_NODES)))
    states = pl.DataFrame({"each": [state.value for state in State]})
    # A GPU may have such a finding for two figures: the worst is first, and counts.
    in_states = of_gpus.unique(kinds, keep="first", maintain_order=True).join(states, how="cross")
    in_states = in_states.with_columns(
        pl.col("each").alias("state"), is_so=(pl.col("state") == pl.col("each")).cast(int)
    )
    effects, peers = (
        of_gpus.drop_nulls(name).unique(kinds, keep="first", maintain_order=True) for name in ("effect", "n")
    )
    counted = verdicts.group_by("cluster", "level", "kind", "state", maintain_order=True).agg(count=pl.len())
    return (
        series("gpu_verdict", ONE, "gauge", "state of a finding about the GPU or its node: 1 for the state that it is "
               "in, else 0; a GPU without a finding has no such series",
               _points(in_states, "is_so", (*kinds, "state"), now_ns)),
        series("gpu_verdict_effect", RATIO, "gauge", "size of that finding against the peers' level; slower, hotter and"
               " more power are positive", _points(effects, "effect", kinds, now_ns)),
        series("gpu_verdict_peers", ONE, "gauge", "how many GPUs, or nodes, that finding rests on, itself included",
               _points(peers, "n", kinds, now_ns)),
        series("verdicts", ONE, "gauge", "how many findings the newest judgement has",
               _points(counted, "count", ("cluster", "level", "kind", "state"), now_ns)),
        series("judged_gpus", ONE, "gauge", "how many GPUs the newest judgement of all runs is about",
               _points(judgements, "gpus", ("cluster",), now_ns)),
        series("judged", TIMESTAMP, "gauge", "when the GPUs were judged last, since 1970",
               _points(judgements, "at", ("cluster",), now_ns)),
    )  # fmt: skip


def _fingerprints(prints: pl.DataFrame, now_ns: int) -> Iterable[Series]:
    """Of each figure of the newest fingerprint: its ratio to the peers, with interval and number."""
    figure = ("cluster", "gpu", "workload", "figure")
    bounds = prints.unpivot(on=["low", "high"], index=figure, variable_name="end")
    return (
        series("gpu_fleet", RATIO, "gauge", "a figure of the GPU over the median of its peers: GPUs of its model with "
               "the same workload", _points(prints, "ratio", figure, now_ns)),
        series("gpu_fleet_ratio_bound", ONE, "gauge", "the ends of the 95 % interval of that ratio in another sitting",
               _points(bounds, "value", (*figure, "end"), now_ns)),
        series("gpu_fleet_peers", ONE, "gauge", "how many GPUs that ratio compares, itself included",
               _points(prints, "peers", figure, now_ns)),
        series("gpu_fleet_sittings", ONE, "gauge", "how many sittings that figure rests on",
               _points(prints, "sittings", figure, now_ns)),
    )  # fmt: skip


def _counted(events: pl.DataFrame, now_ns: int) -> Series:
    """How many events of each kind are stored about each GPU."""
    meaning = "events of a GPU that are stored, by kind and number of the error"
    return series(
        "gpu_events", ONE, "counter", meaning, _points(events, "n", ("cluster", "gpu", "kind", "code"), now_ns)
    )


# -- energy since the exporter began -----------------------------------------------------------------------------

_SUMS = ("energy_j", "below_j", "above_j", "measured_s", "lacking_s")
"""Of one GPU: its energy, how much less or more it could be, and the time with and without readings that count."""


class Metered:
    """The energy of each GPU from `since_ns` on, as whorl's meter counts it.

    Only the time since the last look is metered: figures of windows side by side add up to that of the whole time.
    """

    def __init__(self, store: Store, since_ns: int) -> None:
        self._store, self._to = store, since_ns
        self._sums: dict[Gpu, Floats] = {}
        """(5,) as `_SUMS` has them."""

    def advance(self, now_ns: int, ended: Callable[[], bool] = lambda: False) -> None:
        """Add what was used since the last time. Raises StoreError; then, and where it is `ended`, nothing is added."""
        began, until = self._to, now_ns - _SETTLED_NS
        if until <= began:
            return
        sums = dict(self._sums)
        for meters in meters_of_many(self._store, since_ns=began, until_ns=until):
            if ended():
                return
            n, seconds = len(meters), (until - began) / 1e9
            used = meters.over(np.arange(n), np.full(n, began), np.full(n, until))
            lacking_s = np.maximum(0.0, seconds - used.measured_s)
            figures = np.stack([used.energy_j, used.below_j, used.above_j, used.measured_s, lacking_s], axis=1)
            figures[used.reason != ""] = (0.0, 0.0, 0.0, 0.0, seconds)
            for gpu, grown in zip(meters.gpus, figures, strict=True):
                sums[gpu] = sums.get(gpu, 0.0) + grown
        self._sums, self._to = sums, until

    def series(self, labels: GpuLabels) -> list[Series]:
        """The sums as they stood after the last look."""
        at, sums = self._to, self._sums

        def points(name: str, **side: str) -> list[Point]:
            place = _SUMS.index(name)
            return [({**labels[gpu], **side}, float(total[place]), at) for gpu, total in sums.items()]

        doubt = [*points("below_j", side="below"), *points("above_j", side="above")]
        return [
            series("gpu_metered_energy", UNITS["mJ"], "counter", "energy since the exporter began, by whorl's meter; "
                   "it grows in steps", points("energy_j")),
            series("gpu_metered_doubt", UNITS["mJ"], "counter", "how much less or more that could be, from gaps and "
                   "from what counter and power disagree by; the error of the sensor comes on top", doubt),
            series("gpu_metered", SECONDS, "counter", "time of it with readings", points("measured_s")),
            series("gpu_unmetered", SECONDS, "counter", "time since then without readings that count",
                   points("lacking_s")),
        ]  # fmt: skip
