"""What spans used so far, by name and attributes; and which of several ways to do a thing are worth choosing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...store.unbeaten import unbeaten
from ...store.vocabulary import Code
from .curve import WIDTH
from .figures import Figure, Why, figure, missing

if TYPE_CHECKING:
    from .spans import Span

_MOST = 10_000  # kinds of spans that are told apart
_STUDENT_95 = (
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t, with 1 to 30 degrees of freedom."""

Attributes = tuple[tuple[str, Any], ...]


@dataclass
class Total:
    """The spans of one name with the same attributes that have ended: their number, time and energy, all together."""

    name: str
    attributes: Mapping[str, Any]
    n: int = 0
    seconds: float = 0.0
    _squares: tuple[float, float] = (0.0, 0.0)  # of s, and of J
    _joules: float = 0.0
    _used: NDArray[np.float64] | None = field(default=None, repr=False)
    _most_w: NDArray[np.float64] | None = field(default=None, repr=False)
    _why: Why | None = field(default=None, repr=False)

    def _add(self, span: Span) -> None:
        seconds = span.duration_s or 0.0
        self.n += 1
        self.seconds += seconds
        self._squares = (self._squares[0] + seconds**2, self._squares[1])
        assert span.book is not None
        self._why = self._why or span.book.why
        if span.used is None:
            return
        joules = float(span.used[:-1:WIDTH].sum())
        self._joules += joules
        self._squares = (self._squares[0], self._squares[1] + joules**2)
        self._most_w = span.book.most_w
        self._used = span.used.copy() if self._used is None else self._used + span.used

    def figure(self) -> Figure:
        """Their energy, all together."""
        if self._why is not None or self._used is None or self._most_w is None:
            return missing(self._why or Why.OPEN)
        return figure(self._used, self._most_w)

    def _spread(self, squares: float, total: float) -> float:
        """Half of the 95 % interval of the mean over spans, from how they differ."""
        if self.n < 2:
            return math.inf
        variance = max(squares - total**2 / self.n, 0.0) / (self.n - 1)
        t = _STUDENT_95[self.n - 2] if self.n - 2 < len(_STUDENT_95) else 1.96 + 2.4 / (self.n - 1)
        return t * math.sqrt(variance / self.n)


class Totals:
    """Each kind of span that has ended, in order of its first one. A span inside one of its own name is in that."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, Attributes], Total] = {}
        self.left_out = 0
        """Spans of further kinds: only the first 10,000 are told apart."""

    def add(self, span: Span) -> None:
        """Count a span that has ended."""
        outer = span.within
        while outer is not None:
            if getattr(outer, "name", None) == span.name:
                return
            outer = outer.within
        attributes: Attributes = tuple(sorted(span.attributes.items()))
        key = (span.name, attributes)
        try:
            total = self._kinds.get(key)
        except TypeError:  # a value that cannot be a key
            key = (span.name, tuple((name, repr(value)) for name, value in attributes))
            total = self._kinds.get(key)
        if total is None:
            if len(self._kinds) >= _MOST:
                self.left_out += 1
                return
            total = self._kinds[key] = Total(span.name, dict(span.attributes))
        total._add(span)

    def __iter__(self) -> Iterator[Total]:
        return iter(list(self._kinds.values()))

    def __len__(self) -> int:
        return len(self._kinds)


@dataclass(frozen=True)
class Factor:
    """Grams of CO2e of a kWh that a GPU used, with the site's PUE (None: not stated), and where the figure is from."""

    g_per_kwh: float
    pue: float | None = None
    zone: str | None = None
    source: str = "given"
    year: int | None = None


class Unquoted(Code):
    """Why a configuration has no quote."""

    UNSEEN = "unseen", "no span with its name and attributes has ended: run it in one first"
    SEVERAL = "several", "spans with several names have its attributes: name one with span=..."


@dataclass(frozen=True)
class Quote:
    """What one span of a configuration takes: means over `n` spans with 95 % intervals; s, J and grams of CO2e.

    The interval of the energy holds the spread of the spans and the error of the sensors; the latter is common to all
    configurations on the same GPUs. `pareto`: no other configuration is better in one and no worse in all.
    """

    configuration: Mapping[str, Any] | str
    n: int
    seconds: float | None
    seconds_low: float | None
    seconds_high: float | None
    energy_j: float | None
    low_j: float | None
    high_j: float | None
    co2e_g: float | None
    factor: Factor | None
    reason: str | None
    pareto: bool


def quote(
    totals: Totals,
    configurations: Sequence[Mapping[str, Any] | str],
    *,
    span: str | None = None,
    factor: Factor | None = None,
) -> list[Quote]:
    """What each configuration takes, from the spans that have ended.

    A configuration is the attributes of its spans, or their name. Spans may have further attributes.
    """
    found: list[tuple[Mapping[str, Any] | str, list[Total]]] = []
    for one in configurations:
        name, attributes = (one, {}) if isinstance(one, str) else (span, one)
        found.append(
            (
                one,
                [
                    total
                    for total in totals
                    if name in (None, total.name) and all(total.attributes.get(k) == v for k, v in attributes.items())
                ],
            )
        )
    quotes = [_quoted(one, kinds, factor) for one, kinds in found]
    points = [
        None if q.seconds is None or q.energy_j is None else (q.seconds, q.energy_j, q.co2e_g or 0.0) for q in quotes
    ]
    return [Quote(**{**vars(q), "pareto": chosen}) for q, chosen in zip(quotes, unbeaten(points), strict=True)]


def _quoted(one: Mapping[str, Any] | str, kinds: Sequence[Total], factor: Factor | None) -> Quote:
    nothing = Quote(one, 0, None, None, None, None, None, None, None, None, None, pareto=False)
    if not kinds or len({kind.name for kind in kinds}) > 1:
        reason = Unquoted.SEVERAL if kinds else Unquoted.UNSEEN
        return Quote(**{**vars(nothing), "reason": reason})
    total = Total(kinds[0].name, {})
    for kind in kinds:
        total.n += kind.n
        total.seconds += kind.seconds
        total._joules += kind._joules
        total._squares = (total._squares[0] + kind._squares[0], total._squares[1] + kind._squares[1])
        total._why, total._most_w = total._why or kind._why, kind._most_w
        if kind._used is not None:
            total._used = kind._used if total._used is None else total._used + kind._used
    n, seconds = total.n, total.seconds / total.n
    spread_s = total._spread(total._squares[0], total.seconds)
    energy = total.figure()
    low = high = None
    if energy.energy_j is not None and energy.low_j is not None and energy.high_j is not None:
        spread_j = total._spread(total._squares[1], total._joules)
        mean = energy.energy_j / n
        low = max(0.0, mean - math.hypot(mean - energy.low_j / n, spread_j))
        high = mean + math.hypot(energy.high_j / n - mean, spread_j)
    joules = None if energy.energy_j is None else energy.energy_j / n
    return Quote(
        one,
        n,
        seconds,
        None if math.isinf(spread_s) else max(0.0, seconds - spread_s),
        None if math.isinf(spread_s) else seconds + spread_s,
        joules,
        low,
        None if high is not None and math.isinf(high) else high,
        None if joules is None or factor is None else joules / 3.6e6 * factor.g_per_kwh,
        factor,
        energy.reason,
        pareto=False,
    )
