"""What spans used so far, by name and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .spans import Span, SpanEnergy, Unmeasured

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .sensor import BoardLimits

_MOST = 10_000  # kinds of spans that are told apart


@dataclass
class Total:
    """The spans of one name with the same attributes that have ended: their number, time and energy, all together."""

    name: str
    attributes: Mapping[str, Any]
    n: int = 0
    seconds: float = 0.0
    _used: NDArray[np.float64] | None = field(default=None, repr=False)
    _boards: BoardLimits | None = field(default=None, repr=False)
    _reason: Unmeasured | None = field(default=None, repr=False)

    def figure(self) -> SpanEnergy:
        """Their energy, all together."""
        from .split import figure

        if self._reason is not None or self._used is None or self._boards is None:
            return SpanEnergy(reason=self._reason or Unmeasured.OPEN)
        return figure(self._used, self._boards)


class Totals:
    """Each kind of span that has ended, in order of its first one. A span inside one of its own name is in that."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, tuple[tuple[str, Any], ...]], Total] = {}
        self.left_out = 0
        """Spans of further kinds: only the first 10,000 are told apart."""

    def add(self, span: Span, boards: BoardLimits, reason: Unmeasured | None) -> None:
        """Count a span that has ended, on these GPUs; without energy for a `reason`."""
        outer = span.within
        while outer is not None:
            if outer.name == span.name:
                return
            outer = outer.within
        attributes = tuple(sorted(span.attributes.items()))
        try:
            total = self._kinds.get((span.name, attributes))
        except TypeError:  # a value that cannot be a key
            attributes = tuple((name, repr(value)) for name, value in attributes)
            total = self._kinds.get((span.name, attributes))
        if total is None:
            if len(self._kinds) >= _MOST:
                self.left_out += 1
                return
            total = self._kinds[span.name, attributes] = Total(span.name, dict(span.attributes))
        total.n += 1
        total.seconds += span.duration_s or 0.0
        total._reason, total._boards = total._reason or reason, boards
        if span.used is not None:
            total._used = span.used + (0.0 if total._used is None else total._used)

    def __iter__(self) -> Iterator[Total]:
        return iter(list(self._kinds.values()))

    def __len__(self) -> int:
        return len(self._kinds)
