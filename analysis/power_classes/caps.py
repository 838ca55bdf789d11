"""What a power or clock cap does to the time and power of a workload, from other workloads that ran under caps.

A workload that was never run under a cap is taken to behave like those with a similar load: power without the cap, as
a share of the limit. How wrong that is, is measured where the answer is known: each workload is left out in turn, with
all its settings, and predicted from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..statistics.ordering import Floats

NEIGHBOURS = 5


@dataclass(frozen=True)
class Curve:
    """A workload in one setting (batch size, model of GPU, ...) under several caps."""

    family: str
    """The workload: its settings are left out together."""
    setting: str
    load: float
    """Power under the highest cap, as a share of the power limit."""
    share: Floats
    """(caps,) the cap as a share of the highest, rising to 1."""
    time: Floats
    """(caps,) the time, as a multiple of that under the highest cap."""
    power: Floats
    """(caps,) the power, likewise."""


@dataclass(frozen=True)
class Prediction:
    """What a cap does to a workload: its time, power and energy as multiples of those without the cap.

    `time_error_pct` and `power_error_pct` are mean absolute errors at this cap where each of `families` workloads was
    left out in turn. All None with a `reason`.
    """

    time: float | None
    power: float | None
    energy: float | None
    time_error_pct: float | None
    power_error_pct: float | None
    families: int
    nearest: tuple[str, ...]
    """The workloads it is taken from, the nearest in load first."""
    reason: str | None = None


def curves(runs: pl.DataFrame) -> list[Curve]:
    """The curves of runs under caps: columns family, setting, cap, time, power_w, and limit_w where the cap is a clock.

    A setting with one cap, or without time or power under its highest, gives none.
    """
    limit = "limit_w" if "limit_w" in runs.columns else "cap"
    known = runs.filter(*(pl.col(name) > 0 for name in ("cap", "time", "power_w", limit)))
    known = known.group_by("family", "setting", "cap").agg(
        pl.col("time", "power_w").median(), pl.col(limit).alias("of").max()
    )
    found = []
    for (family, setting), part in known.sort("family", "setting", "cap").group_by(
        "family", "setting", maintain_order=True
    ):
        cap, time, power = (part[name].to_numpy().astype(np.float64) for name in ("cap", "time", "power_w"))
        if len(cap) > 1:
            load = float(power[-1] / part["of"][-1])
            found.append(Curve(str(family), str(setting), load, cap / cap[-1], time / time[-1], power / power[-1]))
    return found


def predict(known: Sequence[Curve], load: float, share: float, *, without: str = "") -> Prediction:
    """What a cap at `share` of the limit does to a workload of this `load`, from curves of workloads but `without`.

    The median over the `NEIGHBOURS` settings nearest in load, with its error from `leave_one_out`.
    """
    usable = [one for one in known if one.family != without and one.share[0] <= share <= 1]
    if not usable:
        return Prediction(None, None, None, None, None, 0, (), "no workload was run under a cap as low as this")
    time, power = nearest_curves(usable, load, share)
    errors = list(leave_one_out(usable, share).values())
    wrong: list[float] | list[None] = [float(np.mean(of)) for of in zip(*errors, strict=True)] or [None, None]
    names = tuple(dict.fromkeys(one.family for one in by_distance(usable, load)[:NEIGHBOURS]))
    return Prediction(time, power, time * power, wrong[0], wrong[1], len(errors), names)


Method = Callable[[Sequence[Curve], float, float], tuple[float, float]]
"""From curves, a load and a share of the cap to a time and a power, as multiples."""


def nearest_curves(known: Sequence[Curve], load: float, share: float) -> tuple[float, float]:
    """The median of the settings nearest in load."""
    return _median([at(one, share) for one in by_distance(known, load)[:NEIGHBOURS]])


def mean_curve(known: Sequence[Curve], load: float, share: float) -> tuple[float, float]:  # noqa: ARG001
    """The mean over the workloads, whatever their load."""
    families: dict[str, list[tuple[float, float]]] = {}
    for one in known:
        families.setdefault(one.family, []).append(at(one, share))
    time, power = np.mean([np.mean(points, axis=0) for points in families.values()], axis=0)
    return float(time), float(power)


def limit_rule(known: Sequence[Curve], load: float, share: float) -> tuple[float, float]:  # noqa: ARG001
    """Without any curve: a cap costs no time, and power is what it was, or the cap if that is less."""
    return 1.0, min(1.0, share / load)


METHODS: Mapping[str, Method] = {"nearest": nearest_curves, "mean curve": mean_curve, "limit rule": limit_rule}


def leave_one_out(
    known: Sequence[Curve], share: float, method: Method = nearest_curves
) -> dict[str, tuple[float, float]]:
    """By workload, the mean absolute error of time and power (%) at a cap, predicted from the other workloads."""
    usable = [one for one in known if one.share[0] <= share <= 1]
    found = {}
    for family in sorted({one.family for one in usable}):
        others = [one for one in usable if one.family != family]
        if not others:
            return {}
        pairs = [(method(others, one.load, share), at(one, share)) for one in usable if one.family == family]
        errors = [(abs(said[0] / true[0] - 1), abs(said[1] / true[1] - 1)) for said, true in pairs]
        time, power = 100 * np.mean(errors, axis=0)
        found[family] = float(time), float(power)
    return found


def by_distance(known: Sequence[Curve], load: float) -> list[Curve]:
    """The curves, the nearest in load first."""
    return sorted(known, key=lambda one: (abs(one.load - load), one.family, one.setting))


def at(curve: Curve, share: float) -> tuple[float, float]:
    """Time and power of a curve under a cap, as multiples; between two caps on the line between them."""
    return float(np.interp(share, curve.share, curve.time)), float(np.interp(share, curve.share, curve.power))


def _median(points: list[tuple[float, float]]) -> tuple[float, float]:
    time, power = np.median(points, axis=0)
    return float(time), float(power)
