"""The unit of counters of time held down: ns or us, which pages and documents do not agree on.

DCGM counts in ns. The counter files of dcgm-exporter up to 4.4 say "in us" beside the same numbers, so those words
prove nothing; "in ns" agrees with DCGM and is believed. Otherwise the clock on the wall decides, as nothing is held
down for more than a second a second:

* ns, if the counter grew by more us than have passed (with `_SLACK_US` to spare: an exporter shows a value for a while,
  and then all of what came since at once), or has more us than a driver has ever been loaded;
* us, if it grew by a second a second, to 2 %, between each of `_STEADY` new values in a row.

A GPU that is held down a little, in ns, is not told from one that is held down often, in us: then nothing is decided.
"""

from __future__ import annotations

import re

NS, US = 1, 1000  # ns in one
_SLACK_US = 600_000_000
_AGES_US = 20 * 365 * 86_400_000_000
_STEADY, _NEAR = 6, 0.02
_LEAST_NS = 500_000_000  # between two values, for their rate to be known
_WORDS = re.compile(r"(?:\bin\s+|\()(ns|nanosec\w*|us|µs|microsec\w*)\b", re.IGNORECASE)


class TimeUnit:
    """The unit of all such counters of one exporter, once it is known."""

    def __init__(self) -> None:
        self.factor: int | None = None
        """ns in one of the unit; None while it is not known."""
        self.because = ""
        self._first: dict[str, tuple[int, float]] = {}  # by counter: time (ns) and value, since it last fell
        self._last: dict[str, tuple[int, float]] = {}  # ... of its last new value
        self._steady: dict[str, int] = {}

    def heard(self, words: str) -> None:
        """What the page says of one of the counters."""
        unit = _WORDS.search(words)
        if self.factor is None and unit is not None and unit[1].lower().startswith("n"):
            self.factor, self.because = NS, "the page says ns, as DCGM does"

    def note(self, counter: str, ts_ns: int, value: float) -> None:
        """A value of a counter, whose values come in the order of time."""
        if self.factor is not None:
            return
        if value > _AGES_US:
            self._decide(NS, f"{counter} would be {value / _AGES_US * 20:.0f} years in us")
            return
        last = self._last.get(counter)
        if last is None or value < last[1] or ts_ns <= last[0]:
            self._first[counter] = self._last[counter] = (ts_ns, value)
            self._steady[counter] = 0
            return
        began, before = self._first[counter]
        grown, passed_us = value - before, (ts_ns - began) / 1000
        if grown > passed_us + _SLACK_US:
            self._decide(NS, f"{counter} grew by {grown / 1e6:.0f} s in {passed_us / 1e6:.0f} s if it were in us")
            return
        if value == last[1] or ts_ns - last[0] < _LEAST_NS:
            return
        rate = (value - last[1]) / ((ts_ns - last[0]) / 1000)
        self._steady[counter] = self._steady[counter] + 1 if abs(rate - 1) <= _NEAR else 0
        self._last[counter] = (ts_ns, value)
        if self._steady[counter] >= _STEADY:
            self._decide(US, f"{counter} grew by a second a second if it is in us")

    def _decide(self, factor: int, because: str) -> None:
        self.factor, self.because = factor, because
        self._first, self._last, self._steady = {}, {}, {}
