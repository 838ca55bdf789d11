"""A GPU watched run by run: has it left its own level? One small state for each GPU and workload, no store is read.

    state = None
    for value, at in runs:                    # a duration in any unit, and seconds since 1970
        state, alarm = update(state, value, at, expected=noise)

Every sitting multiplies a score by how much better a changed level explains it than the old one does (the likelihood
ratio of Student's t, a mixture over sizes of change). Under no change the expected score grows by 1 a sitting, so an
alarm at a score of `SITTINGS` comes on average not before that many sittings, whatever the order in which one looks
(the Shiryaev-Roberts procedure). A factor is bounded, so that one run that went wrong cannot raise an alarm alone.

A state is a dict that JSON can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...runs.sittings import LONGEST, PAUSE
from ..levels import RELEVANT
from ..noise import UNKNOWN, Noise

SCHEMA = "whorl.watch/1"
SITTINGS = 500.0
"""A healthy GPU raises a false alarm on average not before this many sittings."""

_DAY_S = 86_400.0
_KEPT = 64  # runs of the present sitting
_SIZES = (0.015, 0.02, 0.03, 0.05, 0.1, 0.2)  # of a change, in logarithms, either way
_SLOWER = 0.75  # the share of the mixture that is slower
_GAIN = 0.25  # of the newest sitting in the level, at least
_STEP = 2.0  # scales by which a sitting moves the level, at most
_PRIOR = 4.0  # sittings that the fleet's scatter counts for beside a GPU's own
_CLIPPED = 10.0
_REMEMBERED = 20.0  # sittings of own scatter
_SURE_RUNS = 3  # in a sitting: from so many on, a middle that is wrong means two wrong runs
_WANDERED = 0.7  # of the variance of a difference is left with many sittings in the level
_FREEDOM = 5.0  # at most: tails are never taken to be lighter


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


State = Mapping[str, Any]


def update(
    state: State | None,
    value: float,
    at_s: float,
    *,
    warmth: float | None = None,
    expected: Noise = UNKNOWN,
) -> tuple[dict[str, Any] | None, Alarm | None]:
    """The state after one more run, and an alarm where the GPU has left its level.

    `value` is a duration, `at_s` when the run began, `warmth` the GPU's temperature in it, °C, where known. A run
    without a finite time and a duration above 0, or from before the present sitting, changes nothing. After an alarm
    the level is that of the sitting which raised it.
    """
    if not (math.isfinite(value) and value > 0 and math.isfinite(at_s)):
        return None if state is None else dict(state), None
    x = math.log(value)
    if state is None or state.get("schema") != SCHEMA:
        return _sitting(None, x, at_s, warmth), None
    now = dict(state)
    if now["warmth"] is None:
        now["warmth"] = now["present_warmth"] = warmth
    elif warmth is not None:
        x -= expected.a_kelvin * (warmth - now["warmth"])
    if at_s < now["began_s"]:
        return now, None
    if at_s - now["last_s"] < PAUSE * _DAY_S and at_s - now["began_s"] < LONGEST * _DAY_S:
        now["values"] = [*now["values"], x][-_KEPT:]
        now["last_s"] = at_s
    else:
        now = _sitting(_closed(now, expected), x, at_s, warmth)
    return _judged(now, expected)


def _sitting(before: dict[str, Any] | None, x: float, at_s: float, warmth: float | None) -> dict[str, Any]:
    """A state in which a sitting begins."""
    start = {"schema": SCHEMA, "n": 0, "level": 0.0, "ended_s": at_s, "score": 0.0, "since_s": at_s}
    start |= {"scatter": 0.0, "weight": 0.0, "warmth": warmth}
    present = {"values": [x], "began_s": at_s, "last_s": at_s, "present_warmth": warmth, "told": False}
    return {**(before or start), **present}


def _away(now: State, expected: Noise) -> tuple[float, float, float]:
    """By how much the present sitting is off the level: its middle, its side nearest to the level, and the scale."""
    low, high = _middles(now["values"])
    middle = (low + high) / 2 - now["level"]
    nearest = max(low - now["level"], 0.0) + min(high - now["level"], 0.0)
    gap = (now["began_s"] - now["ended_s"]) / _DAY_S
    warmth = math.nan if now["present_warmth"] is None else now["present_warmth"]
    scale = math.sqrt(expected.difference(gap, len(now["values"]), math.inf) * expected.roughness(warmth))
    usual = _PRIOR * _usual(expected.freedom)
    own = (usual + now["scatter"]) / (usual + now["weight"] * _usual(expected.freedom))
    # The level is surer than one sitting where many are in it, but it may have wandered since.
    return middle, nearest, scale * max(1.0, own) * math.sqrt(_WANDERED + (1 - _WANDERED) / now["n"])


def _judged(now: dict[str, Any], expected: Noise) -> tuple[dict[str, Any], Alarm | None]:
    if now["n"] == 0 or now["told"]:
        return now, None
    middle, nearest, scale = _away(now, expected)
    factor, slower = _factor(nearest, scale, expected.freedom, len(now["values"]))
    score = (now["score"] + 1) * factor
    if score < SITTINGS or abs(middle) < RELEVANT or (middle > 0) is not slower:
        return now, None
    since = now["since_s"] if now["score"] >= 1 else now["began_s"]
    alarm = Alarm(100 * math.expm1(middle), now["began_s"], since, score, len(now["values"]), int(now["n"]))
    return {**now, "told": True}, alarm


def _closed(now: dict[str, Any], expected: Noise) -> dict[str, Any]:
    """The state after its sitting: the score, the level and the scatter know it."""
    low, high = _middles(now["values"])
    middle = (low + high) / 2
    ended = {**now, "ended_s": now["last_s"]}
    if now["n"] == 0 or now["told"]:
        return {**ended, "n": 1, "level": middle, "score": 0.0, "since_s": now["began_s"]}
    away, nearest, scale = _away(now, expected)
    factor, _ = _factor(nearest, scale, expected.freedom, len(now["values"]))
    score = (now["score"] + 1) * factor
    n = now["n"] + 1
    step = max(-_STEP * scale, min(_STEP * scale, away)) * max(1 / n, _GAIN)
    fading = min(1.0, _REMEMBERED / (now["weight"] + 1))
    return {
        **ended,
        "n": n,
        "level": now["level"] + step,
        "score": score,
        "since_s": now["since_s"] if now["score"] >= 1 else now["began_s"],
        "scatter": fading * now["scatter"] + min(abs(away) / scale, _CLIPPED),
        "weight": fading * now["weight"] + 1,
    }


def _factor(away: float, scale: float, freedom: float, runs: int) -> tuple[float, bool]:
    """How much better changed levels explain a sitting than the old one does, bounded; and whether slower ones do."""
    df = min(freedom, _FREEDOM)

    def log_density(x: float) -> float:
        return -(df + 1) / 2 * math.log1p((x / scale) ** 2 / df)

    same = log_density(away)
    slower = sum(math.exp(log_density(away - size) - same) for size in _SIZES) / len(_SIZES)
    faster = sum(math.exp(log_density(away + size) - same) for size in _SIZES) / len(_SIZES)
    most = math.sqrt(SITTINGS) if runs < _SURE_RUNS else SITTINGS
    mixture = _SLOWER * slower + (1 - _SLOWER) * faster
    return min(mixture, most), slower >= faster


def _middles(values: Sequence[float]) -> tuple[float, float]:
    ranked = sorted(values)
    return ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]


def _usual(freedom: float) -> float:
    """About the mean size of t."""
    return 0.8 + 0.6 / max(freedom - 1, 0.5)
