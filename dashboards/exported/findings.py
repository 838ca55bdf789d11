"""Conclusions as series: verdicts, fingerprints and events that are stored, who the GPUs are, and the energy of each
GPU since the exporter began.

Nothing is judged here: `whorl verdicts` and `whorl verdicts fingerprint` judge and store; this reads their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...analysis.energy.meter import Energies
from ...analysis.energy.readings import meters_of_many
from ...analysis.verdicts.verdict import ACROSS_NODES, State
from ...store.views import OF_ALL_RUNS
from ...store.vocabulary import EventKind
from .series import IDENTITY, ONE, RATIO, SECONDS, TIMESTAMP, UNITS, GpuLabels, Point, Series, identity, series

if TYPE_CHECKING:
    from ...store import Store
    from ...store.newest import Gpu

_IDENTITIES = f"select cluster, gpu, {', '.join(IDENTITY)}, memory_total from gpus_now"
_JUDGED = (
    f"select cluster, epoch_ns(judged_at) as at, gpus from judgements where {OF_ALL_RUNS} "
    "qualify row_number() over (partition by cluster order by judged_at desc) = 1"
)
_VERDICTS = "select cluster, level, [each.gpu for each in gpus] as keys, kind, state, effect_pct, n from verdicts_now"
_FINGERPRINTS = (
    "select cluster, gpu, class, workload, figure, ratio, ratio_low, ratio_high, peers, sittings "
    "from fingerprints_now where ratio is not null and workload is not null"
)
_EVENTS = (
    "select cluster, gpu, kind, code, count(*) as n, epoch_ns(max(ts)) as at from events where gpu is not null "
    "group by cluster, gpu, kind, code"
)

_SETTLED_NS = 30 * 10**9  # newer rows may still come, from nodes whose clock or disk is slow

Row = Mapping[str, Any]


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
    events = store.sql(_EVENTS).to_pylist()
    fingerprints = store.sql(_FINGERPRINTS).to_pylist()
    verdicts = store.sql(_VERDICTS).to_pylist()
    all_series = (
        *_judged(store.sql(_JUDGED).to_pylist(), verdicts, labels, now_ns),
        *_fingerprints(fingerprints, labels, now_ns),
        _counted(events, labels, now_ns),
    )
    about = {(row["cluster"], gpu) for row in verdicts for gpu in row["keys"] or ()}
    about |= {(row["cluster"], row["gpu"]) for row in fingerprints}
    xids = (row for row in events if row["kind"] == EventKind.XID and row["code"] is not None)
    last_xid = {(row["cluster"], row["gpu"]): row["code"] for row in sorted(xids, key=itemgetter("at"))}
    return Conclusions(rows, identities, all_series, frozenset(about), last_xid)


def _judged(judgements: Iterable[Row], verdicts: Iterable[Row], labels: GpuLabels, now_ns: int) -> list[Series]:
    """The newest judgement of each cluster: its findings by GPU, and how it stands as a whole."""
    states: dict[tuple[str, ...], Point] = {}
    effects: dict[tuple[str, ...], Point] = {}
    peers: dict[tuple[str, ...], Point] = {}
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for row in verdicts:
        counts[row["cluster"], row["level"], row["kind"], row["state"]] += 1
        for gpu in row["keys"] or () if row["level"] not in ACROSS_NODES else ():
            point = {**labels[row["cluster"], gpu], "level": row["level"], "kind": row["kind"]}
            key = tuple(point.values())  # a GPU may have such a finding for two figures: the worst is first, and stays
            for state in State:
                value = int(row["state"] == state)
                states.setdefault((*key, state.value), ({**point, "state": state.value}, value, now_ns))
            if row["effect_pct"] is not None:
                effects.setdefault(key, (point, row["effect_pct"] / 100, now_ns))
            if row["n"] is not None:
                peers.setdefault(key, (point, row["n"], now_ns))
    clusters = [({"cluster": row["cluster"] or ""}, row) for row in judgements]
    counted = [
        ({"cluster": cluster or "", "level": level, "kind": kind, "state": state}, n, now_ns)
        for (cluster, level, kind, state), n in counts.items()
    ]
    return [
        series("gpu_verdict", ONE, "gauge", "state of a finding about the GPU or its node: 1 for the state that it is "
               "in, else 0; a GPU without a finding has no such series", [*states.values()]),
        series("gpu_verdict_effect", RATIO, "gauge", "size of that finding against the peers' level; slower, hotter and"
               " more power are positive", [*effects.values()]),
        series("gpu_verdict_peers", ONE, "gauge", "how many GPUs, or nodes, that finding rests on, itself included",
               [*peers.values()]),
        series("verdicts", ONE, "gauge", "how many findings the newest judgement has", counted),
        series("judged_gpus", ONE, "gauge", "how many GPUs the newest judgement of all runs is about",
               [(cluster, row["gpus"], now_ns) for cluster, row in clusters]),
        series("judged", TIMESTAMP, "gauge", "when the GPUs were judged last, since 1970",
               [(cluster, row["at"] / 1e9, now_ns) for cluster, row in clusters]),
    ]  # fmt: skip


def _fingerprints(rows: Iterable[Row], labels: GpuLabels, now_ns: int) -> list[Series]:
    """Of each figure of the newest fingerprint: its ratio to the peers, with interval and number."""
    points = [
        ({**labels[row["cluster"], row["gpu"]], "workload": row["workload"], "figure": row["figure"]}, row)
        for row in rows
    ]
    ratios, peers, sittings = (
        [(point, row[name], now_ns) for point, row in points] for name in ("ratio", "peers", "sittings")
    )
    ends: list[Point] = [
        ({**point, "end": end}, row[f"ratio_{end}"], now_ns)
        for point, row in points
        for end in ("low", "high")
        if row[f"ratio_{end}"] is not None
    ]
    return [
        series("gpu_fleet", RATIO, "gauge", "a figure of the GPU over the median of its peers: GPUs of its model with "
               "the same workload", ratios),
        series("gpu_fleet_ratio_bound", ONE, "gauge", "the ends of the 95 % interval of that ratio in another sitting",
               ends),
        series("gpu_fleet_peers", ONE, "gauge", "how many GPUs that ratio compares, itself included", peers),
        series("gpu_fleet_sittings", ONE, "gauge", "how many sittings that figure rests on", sittings),
    ]  # fmt: skip


def _counted(events: Iterable[Row], labels: GpuLabels, now_ns: int) -> Series:
    """How many events of each kind are stored about each GPU."""
    points: list[Point] = []
    for row in events:
        code = {} if row["code"] is None else {"code": str(row["code"])}
        points.append(({**labels[row["cluster"], row["gpu"]], "kind": row["kind"], **code}, row["n"], now_ns))
    meaning = "events of a GPU that are stored, by kind and number of the error"
    return series("gpu_events", ONE, "counter", meaning, points)


# -- energy since the exporter began -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnergySum:
    """Of one GPU: its energy, how much less or more it could be, and the time with and without readings that count."""

    energy_j: float = 0.0
    below_j: float = 0.0
    above_j: float = 0.0
    measured_s: float = 0.0
    lacking_s: float = 0.0

    def plus(self, further: EnergySum) -> EnergySum:
        """The sum of both."""
        return EnergySum(*(a + b for a, b in zip(astuple(self), astuple(further), strict=True)))


def _sums(used: Energies, seconds: float) -> list[EnergySum]:
    """The energy of each window, as a sum."""
    figures = np.stack([used.energy_j, used.below_j, used.above_j, used.measured_s]).T.tolist()
    return [
        EnergySum(lacking_s=seconds)
        if reason
        else EnergySum(energy, below, above, measured, max(0.0, seconds - measured))
        for reason, (energy, below, above, measured) in zip(used.reason.tolist(), figures, strict=True)
    ]


class Metered:
    """The energy of each GPU from `since_ns` on, as whorl's meter counts it.

    Only the time since the last look is metered: figures of windows side by side add up to that of the whole time.
    """

    def __init__(self, store: Store, since_ns: int) -> None:
        self._store, self._to = store, since_ns
        self._sums: dict[Gpu, EnergySum] = {}

    def advance(self, now_ns: int, ended: Callable[[], bool] = lambda: False) -> None:
        """Add what was used since the last time. Raises StoreError; then, and where it is `ended`, nothing is added."""
        began, until = self._to, now_ns - _SETTLED_NS
        if until <= began:
            return
        sums = dict(self._sums)
        for meters in meters_of_many(self._store, since_ns=began, until_ns=until):
            if ended():
                return
            n = len(meters)
            used = meters.over(np.arange(n), np.full(n, began), np.full(n, until))
            for gpu, grown in zip(meters.gpus, _sums(used, (until - began) / 1e9), strict=True):
                sums[gpu] = sums.get(gpu, EnergySum()).plus(grown)
        self._sums, self._to = sums, until

    def series(self, labels: GpuLabels) -> list[Series]:
        """The sums as they stood after the last look."""
        at, sums = self._to, self._sums

        def points(name: str, **side: str) -> list[Point]:
            return [({**labels[gpu], **side}, getattr(total, name), at) for gpu, total in sums.items()]

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
