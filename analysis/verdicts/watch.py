"""A few GPUs, watched run by run: what a store knows of them, read without the rest, and an alarm where one left its
level. The state of a watch is a small one that JSON can hold.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.views import OF_ALL_RUNS
from ...store.vocabulary import EventKind, stated
from ..runs.measurements import SOUND, codes
from ..runs.probing import IS_FACT
from ..runs.sittings import LONGEST, PAUSE
from .changes import CLIPPED, PRIOR_SITTINGS
from .compare import LEAST_GPUS, Fleet
from .judgements import stored
from .levels import RELEVANT, UNKNOWN_NOISE, Noise
from .model import figures_of
from .verdict import Verdict

if TYPE_CHECKING:
    from ...store import Store


SCHEMA = "whorl.watch/1"
SITTINGS = 500.0
"""A healthy GPU raises a false alarm on average not before this many sittings."""

_DAY_S = 86_400.0
_KEPT = 64  # runs of the present sitting
_SIZES = np.array([0.015, 0.02, 0.03, 0.05, 0.1, 0.2])  # of a step, in logarithms, either way
_SLOWER = 0.75  # the share of the mixture that is slower
_GAIN = 0.25  # of the newest sitting in the level, at least
_STEP = 2.0  # scales by which a sitting moves the level, at most
_REMEMBERED = 20.0  # sittings of own scatter
_SURE_RUNS = 3  # in a sitting: from so many on, a middle that is wrong means two wrong runs
_WANDERED = 0.7  # of the variance of a difference is left with many sittings in the level
_FREEDOM = 5.0  # at most: tails are never taken to be lighter

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A GPU left its level."""

    effect_pct: float
    """The present sitting against the level before; slower is positive."""
    at_s: float
    """When the present sitting began, and when the sitting did at which the score began to rise."""
    since_s: float
    score: float
    runs: int
    """In the present sitting."""
    sittings: int
    """Of which the level before is made."""


def update(
    state: State | None, value: float, at_s: float, *, warmth: float | None = None, expected: Noise = UNKNOWN_NOISE
) -> tuple[dict[str, Any] | None, Alarm | None]:
    """The state of a watch after one more run, and an alarm where the GPU has left its level.

    `value` is a duration in any unit, `at_s` when the run began (s since 1970), `warmth` the GPU's temperature in it,
    degC, where known. A run without a finite time and a duration above 0, or from before the present sitting, changes
    nothing. After an alarm the level is that of the sitting which raised it. A state is a dict that JSON can hold, one
    for each GPU and workload; None before the first run.

    Every sitting multiplies a score by how much better changed levels explain it than the old one does: the likelihood
    ratio of Student's t, a mixture over sizes of change. Under no change the expected score grows by 1 a sitting, so an
    alarm at a score of `SITTINGS` comes on average not before that many sittings, whatever the order in which one looks
    (the Shiryaev-Roberts procedure). A factor is bounded, so that one run that went wrong cannot raise an alarm alone.
    """
    if not (math.isfinite(value) and value > 0 and math.isfinite(at_s)):
        return None if state is None else dict(state), None
    x = math.log(value)
    if state is None or state.get("schema") != SCHEMA:
        start = {"schema": SCHEMA, "n": 0, "level": 0.0, "ended_s": at_s, "score": 0.0, "since_s": at_s}
        return start | {"scatter": 0.0, "weight": 0.0, "warmth": warmth} | _sitting(x, at_s, warmth), None
    watch = dict(state)
    if watch["warmth"] is None:
        watch["warmth"] = watch["present_warmth"] = warmth
    elif warmth is not None:
        x -= expected.a_kelvin * (warmth - watch["warmth"])
    if at_s < watch["began_s"]:
        return watch, None
    if at_s - watch["last_s"] < PAUSE * _DAY_S and at_s - watch["began_s"] < LONGEST * _DAY_S:
        watch |= {"values": [*watch["values"], x][-_KEPT:], "last_s": at_s}
    else:
        watch = _closed(watch, expected) | _sitting(x, at_s, warmth)
    if watch["n"] == 0 or watch["told"]:
        return watch, None
    scored = _scored(watch, expected)
    away = scored["away"]
    if scored["score"] < SITTINGS or abs(away) < RELEVANT or (away > 0) is not scored["slower"]:
        return watch, None
    return watch | {"told": True}, Alarm(
        100 * math.expm1(away), watch["began_s"], scored["since_s"], scored["score"], len(watch["values"]), watch["n"],
    )  # fmt: skip


def _sitting(x: float, at_s: float, warmth: float | None) -> dict[str, Any]:
    """What a state holds of a sitting that begins."""
    return {"values": [x], "began_s": at_s, "last_s": at_s, "present_warmth": warmth, "told": False}


def _closed(watch: dict[str, Any], expected: Noise) -> dict[str, Any]:
    """The state when its sitting has ended: the level, the score and the scatter know of it."""
    ended = watch | {"ended_s": watch["last_s"]}
    if watch["n"] == 0 or watch["told"]:
        level = sum(_middle_two(watch["values"])) / 2
        return ended | {"n": 1, "level": level, "score": 0.0, "since_s": watch["began_s"]}
    scored = _scored(watch, expected)
    away, scale, n = scored["away"], scored["scale"], watch["n"] + 1
    fading = min(1.0, _REMEMBERED / (watch["weight"] + 1))
    return ended | {
        "n": n, "level": watch["level"] + max(-_STEP * scale, min(_STEP * scale, away)) * max(1 / n, _GAIN),
        "score": scored["score"], "since_s": scored["since_s"],
        "scatter": fading * watch["scatter"] + min(abs(away) / scale, CLIPPED), "weight": fading * watch["weight"] + 1,
    }  # fmt: skip


def _scored(watch: State, expected: Noise) -> dict[str, Any]:
    """The present sitting: by how much it is `away` from the level, the `scale` of that, the `score` with it, since
    when this rises, and whether `slower` levels explain it better than faster ones."""
    low, high = (middle - watch["level"] for middle in _middle_two(watch["values"]))
    runs, gap = len(watch["values"]), (watch["began_s"] - watch["ended_s"]) / _DAY_S
    warmth = math.nan if watch["present_warmth"] is None else watch["present_warmth"]
    usual = 0.8 + 0.6 / max(expected.freedom - 1, 0.5)  # about the mean size of t
    own_scatter = (PRIOR_SITTINGS * usual + watch["scatter"]) / ((PRIOR_SITTINGS + watch["weight"]) * usual)
    # The level is surer than one sitting where many are in it, but it may have wandered since.
    scale = max(1.0, own_scatter) * math.sqrt(_WANDERED + (1 - _WANDERED) / watch["n"])
    scale *= math.sqrt(expected.difference(gap, runs, math.inf) * expected.roughness(warmth))
    freedom = min(expected.freedom, _FREEDOM)
    nearest = max(low, 0.0) + min(high, 0.0)  # the side of the middle that is nearest to the level
    shifted = nearest - np.stack([0 * _SIZES, _SIZES, -_SIZES])
    log_density = -(freedom + 1) / 2 * np.log1p((shifted / scale) ** 2 / freedom)
    slower, faster = np.exp(log_density[1:] - log_density[0]).mean(axis=1).tolist()
    most = math.sqrt(SITTINGS) if runs < _SURE_RUNS else SITTINGS
    factor = min(_SLOWER * slower + (1 - _SLOWER) * faster, most)
    since = watch["since_s"] if watch["score"] >= 1 else watch["began_s"]
    return {"away": (low + high) / 2, "scale": scale, "score": (watch["score"] + 1) * factor, "since_s": since,
            "slower": slower >= faster}  # fmt: skip


def _middle_two(values: Sequence[float]) -> tuple[float, float]:
    ranked = sorted(values)
    return ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]


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
    chosen = last.filter(pl.col("gpu").is_in(list(gpus)))
    models = chosen["model"].drop_nulls().unique().to_list()
    peers = last.filter(pl.col("model").is_in(models) | pl.col("gpu").is_in(list(gpus))) if peers_too else chosen
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
    placed = chosen.drop_nulls(["node", "slot"]).select("gpu", pl.format("{}/{}", "node", "slot"))
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
