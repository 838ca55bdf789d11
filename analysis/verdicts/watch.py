"""One GPU watched run by run: a small state that JSON can hold, and an alarm where it has left its own level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runs.sittings import LONGEST, PAUSE
from .changes import CLIPPED, PRIOR_SITTINGS
from .levels import RELEVANT, UNKNOWN_NOISE, Noise

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
    own = (PRIOR_SITTINGS * usual + watch["scatter"]) / ((PRIOR_SITTINGS + watch["weight"]) * usual)
    # The level is surer than one sitting where many are in it, but it may have wandered since.
    scale = max(1.0, own) * math.sqrt(_WANDERED + (1 - _WANDERED) / watch["n"])
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
