"""Values that hold for a time: steps over time, and how settings that are dated become steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]

ALWAYS, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
NONE = -1
"""The code of a step without a value."""


@dataclass(frozen=True)
class Dated:
    """A setting that holds from `began` until `ended` (ns UTC, `ended` excluded), on one cluster or on all."""

    value: float | str
    began: int = ALWAYS
    ended: int = NEVER
    cluster: str | None = None

    def meets(self, other: Dated) -> bool:
        """Whether both hold on the same cluster at some time."""
        return self.cluster == other.cluster and self.began < other.ended and other.began < self.ended


@dataclass(frozen=True)
class Steps:
    """A value that changes in steps: `values[i]` holds from `starts[i]` until `starts[i + 1]`; NaN where there is none.

    `starts[0]` is `ALWAYS`. `codes` says where each value comes from, `NONE` where there is none.
    """

    starts: Times
    values: Floats
    codes: npt.NDArray[np.int32]

    @classmethod
    def constant(cls, value: float, code: int) -> Self:
        """One value at all times."""
        return cls(np.array([ALWAYS]), np.array([float(value)]), np.array([code], np.int32))

    @classmethod
    def of(cls, began: Times, ended: Times, values: Floats, code: int) -> Self:
        """From spans in order that do not overlap; between them there is no value."""
        holes = np.append(began[1:] > ended[:-1], ended[-1] < NEVER) if len(began) else np.array([], bool)
        starts = np.concatenate([np.array([ALWAYS], np.int64), began, ended[holes]])
        none = np.full(int(holes.sum()), np.nan)
        found = np.concatenate([np.array([np.nan]), values, none])
        order = np.argsort(starts, kind="stable")
        starts, found = starts[order], found[order]
        last = np.append(starts[1:] != starts[:-1], True)  # a span from ALWAYS on replaces the empty first step
        starts, found = starts[last], found[last]
        return cls(starts, found, np.where(np.isnan(found), NONE, code).astype(np.int32))

    def find(self, times: Times) -> npt.NDArray[np.int64]:
        """The step that each time is in."""
        return np.searchsorted(self.starts, times, side="right") - 1

    def at(self, times: Times) -> Floats:
        """The value at each time."""
        return self.values[self.find(times)]

    def code_at(self, times: Times) -> npt.NDArray[np.int32]:
        """Where the value at each time comes from."""
        return self.codes[self.find(times)]

    def or_else(self, other: Steps) -> Steps:
        """These values; where there is none, those of `other`."""
        starts = np.union1d(self.starts, other.starts)
        mine = self.at(starts)
        none = np.isnan(mine)
        return Steps(
            starts,
            np.where(none, other.at(starts), mine),
            np.where(none, other.code_at(starts), self.code_at(starts)).astype(np.int32),
        )

    def cuts(self, since: int, until: int) -> Times:
        """The times between `since` and `until` at which the value or where it comes from changes."""
        same = (self.values[1:] == self.values[:-1]) | (np.isnan(self.values[1:]) & np.isnan(self.values[:-1]))
        changed = self.starts[1:][~same | (self.codes[1:] != self.codes[:-1])]
        inside: Times = changed[(changed > since) & (changed < until)]
        return inside


EMPTY = Steps.constant(np.nan, NONE)


def spans_of(dated: Sequence[Dated], cluster: str) -> list[tuple[int, int, float | str]]:
    """What holds on a cluster: (began, ended, value) in order. What names the cluster comes before what names none."""
    edges = sorted({edge for one in dated for edge in (one.began, one.ended)})
    spans = []
    for began, ended in pairwise(edges):
        holding = [one for one in dated if one.began <= began and one.ended >= ended]
        own = [one for one in holding if one.cluster == cluster] or [one for one in holding if one.cluster is None]
        if own:
            spans.append((began, ended, own[0].value))
    return spans


def steps_of(dated: Sequence[Dated], cluster: str) -> Steps:
    """Numbers that hold on a cluster, as steps; the code is 0."""
    spans = spans_of(dated, cluster)
    if not spans:
        return EMPTY
    began, ended, values = zip(*spans, strict=True)
    return Steps.of(np.array(began, np.int64), np.array(ended, np.int64), np.array(values, float), 0)
