"""Times of rows that a tool prints one after another: in the row, in front of it, or not at all.

A time that lacks its year or day is completed from --at; rows without any time are counted from --at in steps of
--every.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from ....errors import InputError
from ..options import Options
from ..stamps import instant

_NS = 10**9
_HALF_DAY = timedelta(hours=12)
_DAY_ONLY = re.compile(r"^[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}$")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"([0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?)"
_WHOLE = re.compile(rf"^([0-9]{{4}})([-/]?)([0-9]{{2}})\2([0-9]{{2}})[ T]+{_CLOCK} ?(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?$")
_NAMED = re.compile(  # as `date`, C and `ts` print it
    rf"^(?:[A-Za-z]{{3,4}} +)?([A-Za-z]{{3}}) +([0-9]{{1,2}}) +{_CLOCK}(?: +(UTC|GMT))?(?: +([0-9]{{4}}))?$"
)
_OF_DAY = re.compile(f"^{_CLOCK}$")
_UNIX = re.compile(r"^[0-9]{9,19}(?:\.[0-9]+)?$")
_NODE = re.compile(r"^([A-Za-z][A-Za-z0-9._-]*):(?: +|$)(.*)$")


COUNTED = "the times are counted from --at in steps of --every: a pause of the tool itself shifts all that follow"


class Times:
    """The time of each row, as a text that `stamps.times` reads. Rows must be asked for in their order."""

    def __init__(self, file: str, tool: str, options: Options) -> None:
        self._file, self._tool, self._options = file, tool, options
        self._last: datetime | None = None  # the last time that had only its time of day
        self.counted = False

    def of(self, said: str, sweep: int) -> str | None:
        """The time of a row: `said` of it, or else by the number of its sweep. None if `said` is no time.

        Raises InputError where --at or --every is needed and not given.
        """
        text = " ".join(said.strip(" \t[](),|;").split())
        if not text:
            self.counted = True
            return self._of_sweep(sweep)
        if _UNIX.match(text):
            return text
        if found := _WHOLE.match(text):
            year, _, month, day, clock, zone = found.groups()
            return f"{year}-{month}-{day} {clock.replace(',', '.')}{zone or ''}"
        if found := _NAMED.match(text):
            return self._named(*found.groups())
        if found := _OF_DAY.match(text):
            return self._of_day(found[1].replace(",", "."))
        return None

    def _named(self, month: str, day: str, clock: str, zone: str | None, year: str | None) -> str | None:
        if month.lower() not in _MONTHS:
            return None
        number = _MONTHS.index(month.lower()) + 1
        if year is None:
            begin = self._begin("the times in it have no year")
            year = str(begin.year + (number < begin.month - 6) - (number > begin.month + 6))
        return f"{year}-{number:02d}-{int(day):02d} {clock.replace(',', '.')}{'Z' if zone else ''}"

    def _of_day(self, clock: str) -> str | None:
        """The day of a time of day: that of --at, and later the next one when the clock passes midnight."""
        before = self._last or self._begin("the times in it have no date")
        whole, _, part = clock.partition(".")
        try:
            now = datetime.combine(before.date(), datetime.strptime(whole, "%H:%M:%S").time())  # noqa: DTZ007
        except ValueError:
            return None
        if not (self._last is None and self._day_only):
            now += timedelta(days=(before - now > _HALF_DAY) - (now - before > _HALF_DAY))
        self._last = now
        return f"{now:%Y-%m-%d %H:%M:%S}" + (f".{part}" if part else "")

    @property
    def _day_only(self) -> bool:
        return _DAY_ONLY.match((self._options.at or "").strip()) is not None

    def _begin(self, why: str) -> datetime:
        """The civil time that --at says, in --time-zone."""
        if self._options.at is None:
            raise InputError(f"{self._file}: {why}: say on which day it began, for example --at 2026-11-23")
        there = ZoneInfo(self._options.time_zone)
        return datetime.fromtimestamp(self._instant() // _NS, UTC).astimezone(there).replace(tzinfo=None)

    def _instant(self) -> int:
        at = (self._options.at or "").strip()
        return instant(f"{at} 00:00:00" if self._day_only else at, self._options.time_zone, "--at")

    def _of_sweep(self, sweep: int) -> str:
        if self._options.at is None or (self._options.every is None and sweep):
            raise InputError(
                f"{self._file}: {self._tool} printed no times: say when it began and how many seconds lie between two "
                f"readings, for example --at '2026-11-23 14:05:00' --every 1"
            )
        ns = self._instant() + round(sweep * (self._options.every or 0.0) * _NS)
        seconds, rest = divmod(ns, _NS)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d}Z"


class Sweeps:
    """Which reading of its node a row belongs to: a new one begins when a GPU comes again."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._number: dict[str, int] = {}

    def of(self, node: str, name: str) -> int:
        """The number of the sweep, from 0, of the next row of a node."""
        seen = self._seen.setdefault(node, set())
        if name in seen:
            seen.clear()
            self._number[node] = self._number.get(node, 0) + 1
        seen.add(name)
        return self._number.get(node, 0)


def front(text: str) -> tuple[str, str]:
    """What stands in front of a row: a node, as pdsh and srun print it, and a time; each may be empty."""
    text = text.strip()
    found = _NODE.match(text)
    return (found[1], found[2].strip()) if found else ("", text)


def asctime(text: str) -> str | None:
    """A time as C prints it, `Fri Aug  4 11:44:30 2023`, as a text that `stamps.times` reads."""
    found = _NAMED.match(" ".join(text.split()))
    if found is None or found[5] is None or found[1].lower() not in _MONTHS:
        return None
    day = date(int(found[5]), _MONTHS.index(found[1].lower()) + 1, 1)
    return f"{day:%Y-%m}-{int(found[2]):02d} {found[3]}{'Z' if found[4] else ''}"
