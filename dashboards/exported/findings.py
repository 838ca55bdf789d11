"""What whorl found, as series: verdicts, fingerprints and events that are stored, and who the GPUs are.

Nothing is judged here: `whorl verdicts` and `whorl verdicts fingerprint` judge and store; this reads what they
stored last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...analysis.verdicts.verdict import ACROSS_NODES, State
from ...store.views import OF_ALL_RUNS
from ...store.vocabulary import EventKind
from .series import IDENTITY, ONE, RATIO, TIMESTAMP, Labels, Point, Series, Who, identity, series

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

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
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
    dcgm: dict[Gpu, Labels] = field(default_factory=dict)
    """The labels of a GPU as dcgm-exporter writes them, once they were asked for."""


def find(store: Store, who: Who, now_ns: int) -> Found:
    """What is stored now. Raises WhorlError."""
    rows = {(row["cluster"], row["gpu"]): row for row in store.sql(_IDENTITIES).to_pylist()}
    known = {gpu: identity(row, who[gpu], now_ns) for gpu, row in rows.items()}
    events = store.sql(_EVENTS).to_pylist()
    fingerprints = store.sql(_FINGERPRINTS).to_pylist()
    verdicts = store.sql(_VERDICTS).to_pylist()
    series = (
        *_judged(store.sql(_JUDGED).to_pylist(), verdicts, who, now_ns),
        *_fingerprints(fingerprints, who, now_ns),
        _counted(events, who, now_ns),
    )
    about = {(row["cluster"], gpu) for row in verdicts for gpu in row["keys"] or ()}
    about |= {(row["cluster"], row["gpu"]) for row in fingerprints}
    return Found(rows, known, series, frozenset(about), _last_xid(events))


def _judged(judgements: Iterable[Row], verdicts: Iterable[Row], who: Who, now_ns: int) -> list[Series]:
    """The newest judgement of each cluster: its findings by GPU, and how it stands as a whole."""
    found: dict[str, list[Point]] = {"state": [], "effect": [], "peers": []}
    count: Counter[tuple[str, str, str, str]] = Counter()
    for row in verdicts:
        count[row["cluster"], row["level"], row["kind"], row["state"]] += 1
        for gpu in row["keys"] or () if row["level"] not in ACROSS_NODES else ():
            mine = who[row["cluster"], gpu].having(level=row["level"], kind=row["kind"])
            found["state"] += [(mine.having(state=one.value), int(row["state"] == one), now_ns) for one in State]
            if row["effect_pct"] is not None:
                found["effect"].append((mine, row["effect_pct"] / 100, now_ns))
            if row["n"] is not None:
                found["peers"].append((mine, row["n"], now_ns))
    stood = [(who.cluster(row["cluster"]), row) for row in judgements]
    counted = [
        (who.cluster(cluster).having(level=level, kind=kind, state=state), n, now_ns)
        for (cluster, level, kind, state), n in count.items()
    ]
    return [
        series("gpu_verdict", ONE, "gauge", "state of a finding about the GPU or its node: 1 for the state that it is "
               "in, else 0; a GPU without a finding has no such series", _once(found["state"])),
        series("gpu_verdict_effect", RATIO, "gauge", "size of that finding against the peers' level; slower, hotter and"
               " more power are positive", _once(found["effect"])),
        series("gpu_verdict_peers", ONE, "gauge", "how many GPUs, or nodes, that finding rests on, itself included",
               _once(found["peers"])),
        series("verdicts", ONE, "gauge", "how many findings the newest judgement has", counted),
        series("judged_gpus", ONE, "gauge", "how many GPUs the newest judgement of all runs is about",
               [(mine, row["gpus"], now_ns) for mine, row in stood]),
        series("judged", TIMESTAMP, "gauge", "when the GPUs were judged last, since 1970",
               [(mine, row["at"] / 1e9, now_ns) for mine, row in stood]),
    ]  # fmt: skip


def _once(points: list[Point]) -> list[Point]:
    """The first point of each thing: a GPU may have the same kind of finding for two figures, the worst first."""
    first: dict[tuple[tuple[str, str], ...], Point] = {}
    for point in points:
        first.setdefault(point[0].pairs, point)
    return list(first.values())


def _fingerprints(rows: Iterable[Row], who: Who, now_ns: int) -> list[Series]:
    """Of each figure of the newest fingerprint: its ratio to the peers, with interval and number."""
    value: list[Point] = []
    ends: list[Point] = []
    peers: list[Point] = []
    sittings: list[Point] = []
    for row in rows:
        labels = {"workload": row["workload"], "figure": row["figure"]}
        mine = who[row["cluster"], row["gpu"]].having(**labels)
        value.append((mine, row["ratio"], now_ns))
        for end, name in (("ratio_low", "low"), ("ratio_high", "high")):
            if row[end] is not None:
                ends.append((mine.having(end=name), row[end], now_ns))
        peers.append((mine, row["peers"], now_ns))
        sittings.append((mine, row["sittings"], now_ns))
    return [
        series("gpu_fleet", RATIO, "gauge", "a figure of the GPU over the median of its peers: GPUs of its model with "
               "the same workload", value),
        series("gpu_fleet_ratio_bound", ONE, "gauge", "the ends of the 95 % interval of that ratio in another sitting",
               ends),
        series("gpu_fleet_peers", ONE, "gauge", "how many GPUs that ratio compares, itself included", peers),
        series("gpu_fleet_sittings", ONE, "gauge", "how many sittings that figure rests on", sittings),
    ]  # fmt: skip


def _counted(events: Iterable[Row], who: Who, now_ns: int) -> Series:
    """How many events of each kind are stored about each GPU."""
    found: list[Point] = []
    for row in events:
        labels = {"kind": row["kind"]} | ({} if row["code"] is None else {"code": str(row["code"])})
        found.append((who[row["cluster"], row["gpu"]].having(**labels), row["n"], now_ns))
    return series(
        "gpu_events", ONE, "counter", "events of a GPU that are stored, by kind and number of the error", found
    )


def _last_xid(events: Iterable[Row]) -> dict[Gpu, int]:
    known = sorted(
        (row for row in events if row["kind"] == EventKind.XID and row["code"] is not None), key=itemgetter("at")
    )
    return {(row["cluster"], row["gpu"]): row["code"] for row in known}
