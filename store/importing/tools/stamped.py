"""Times of rows that a tool prints one after another: in the row, in front of it, or not at all.

A time that lacks its year or day is completed from --at; rows without any time are counted from --at in steps of
--every.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from ....errors import InputError
from ..content import written
from ..rows import Rows
from ..stamps import instant

_NS = 10**9
_HALF_DAY = timedelta(hours=12)
_DAY_ONLY = re.compile(r"^[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}$")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = r"([0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?)"
_WHOLE = re.compile(rf"^([0-9]{{4}})([-/]?)([0-9]{{2}})\2([0-9]{{2}})[ T]+{_CLOCK} ?(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?$")
_ZONE = re.compile("^(?:[A-Z]{3,5}|Z|[+-][0-9]{2}(?::?[0-9]{2})?)$")
_OF_DAY = re.compile(f"^{_CLOCK}$")
_UNIX = re.compile(r"^[0-9]{9,19}(?:\.[0-9]+)?$")
_LABEL = re.compile(r"^\s*([A-Za-z][A-Za-z0-9._-]*|[0-9]{1,6}):(?: |$)")
_LABELLED = 0.9  # of the lines have a label, where a tool puts one in front of each
_NODE = re.compile(r"^([A-Za-z][A-Za-z0-9._-]*):(?: +|$)(.*)$")

COUNTED = "the times are counted from --at in steps of --every: a pause of the tool itself shifts all that follow"


class UntimedError(InputError):
    """A file has no times, and no option says when it was measured."""


class Times:
    """The time of each row, as a text that `stamps.times` reads. Rows must be asked for in their order."""

    def __init__(self, rows: Rows, tool: str) -> None:
        self._rows, self._file, self._tool, self._options, self._used = rows, rows.file, tool, rows.options, rows.used
        self._last: datetime | None = None  # the last time that had only its time of day
        self.counted = False

    def of(self, text: str, sweep: int) -> str | None:
        """The time of a row: by its `text`, or else by the number of its sweep. None if `text` is no time.

        Raises UntimedError where --at or --every is needed and not given.
        """
        text = " ".join(text.strip(" \t[](),|;").split())
        if not text:
            self.counted = True
            return self._of_sweep(sweep)
        if _UNIX.match(text):
            return text
        if match := _WHOLE.match(text):
            year, _, month, day, clock, zone = match.groups()
            return f"{year}-{month}-{day} {_two_digits(clock)}{zone or ''}"
        if match := _OF_DAY.match(text):
            return self._of_day(_two_digits(match[1]))
        return self._spelled(text)

    def _spelled(self, text: str) -> str | None:
        """A time with the name of a month, its parts in any order, as `date`, `ts` and C print it in many countries."""
        parts = dict.fromkeys(("year", "month", "day", "clock", "half", "zone"), "")
        for word in text.split():
            kind = _part(word)
            if kind is None or parts.get(kind):
                return None
            parts[kind] = word
        if not (parts["month"] and parts["day"] and parts["clock"]):
            return None
        month = _MONTHS.index(parts["month"][:3].lower()) + 1
        if not parts["year"]:
            begin = self._begin("the times in it have no year")
            parts["year"] = str(begin.year + (month < begin.month - 6) - (month > begin.month + 6))
        clock = _two_digits(parts["clock"])
        if parts["half"]:
            clock = f"{int(clock[:2]) % 12 + 12 * (parts['half'].lower() == 'pm'):02d}{clock[2:]}"
        civil = f"{parts['year']}-{month:02d}-{int(parts['day']):02d} {clock}"
        return civil + self._offset(parts["zone"], civil)

    def _offset(self, zone: str, civil: str) -> str:
        """What stands behind a time in ISO 8601 for a zone such as CET. Raises InputError if --time-zone has none."""
        if zone in ("", "UTC", "GMT", "Z"):
            return "Z" if zone else ""
        if zone[0] in "+-":
            return zone if len(zone) > 3 else f"{zone}00"
        try:
            then = datetime.fromisoformat(civil[:19])
        except ValueError:
            return ""  # it is no time, and will be refused as one
        for fold in (0, 1):
            local = then.replace(tzinfo=self._zone, fold=fold)
            if local.tzname() == zone:
                return local.strftime("%z")
        raise InputError(f"{self._file}: times in it are in {zone}: say where that is, as --time-zone Europe/Berlin")

    def _of_day(self, clock: str) -> str | None:
        """The day of a time of day: that of --at, and later the next one when the clock passes midnight."""
        before = self._last or self._begin("the times in it have no date")
        seconds, _, fraction = clock.partition(".")
        try:
            now = datetime.combine(before.date(), datetime.strptime(seconds, "%H:%M:%S").time())  # noqa: DTZ007
        except ValueError:
            return None
        if not (self._last is None and self._day_only):
            now += timedelta(days=(before - now > _HALF_DAY) - (now - before > _HALF_DAY))
        self._last = now
        return f"{now:%Y-%m-%d %H:%M:%S}" + (f".{fraction}" if fraction else "")

    @property
    def _day_only(self) -> bool:
        return _DAY_ONLY.match((self._options.at or "").strip()) is not None

    def _begin(self, why: str) -> datetime:
        """The civil time that --at says, in --time-zone."""
        if self._options.at is None:
            raise InputError(f"{self._file}: {why}: say on which day it began, for example --at 2026-11-23")
        self._used.add("at")
        return datetime.fromtimestamp(self._instant // _NS, UTC).astimezone(self._zone).replace(tzinfo=None)

    @cached_property
    def _zone(self) -> ZoneInfo:
        instant("2000-01-01 00:00:00", self._options.time_zone, "the year 2000")  # which says if it is none
        return ZoneInfo(self._options.time_zone)

    @cached_property
    def _instant(self) -> int:
        at = (self._options.at or "").strip()
        return instant(f"{at} 00:00:00" if self._day_only else at, self._options.time_zone, "--at")

    def _of_sweep(self, sweep: int) -> str:
        self._rows.sweeps = max(self._rows.sweeps, sweep + 1)
        if self._options.at is None or (self._options.every is None and sweep):
            raise UntimedError(
                f"{self._file}: {self._tool} printed no times: say when it began and how many seconds lie between two "
                f"readings, for example --at '2026-11-23 14:05:00' --every 1"
            )
        self._used.update(("at", "every") if sweep else ("at",))
        try:
            return text_of_ns(self._instant + round(sweep * (self._options.every or 0.0) * _NS))
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{self._file}: --every {self._options.every:g} puts its readings beyond the year 9999: give the "
                "seconds between two readings"
            ) from error


def text_of_ns(ns: int) -> str:
    """An instant (ns since 1970, UTC) as `stamps.times` reads it. Raises ValueError or OverflowError beyond 9999."""
    seconds, fraction = divmod(ns, _NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{fraction:09d}Z"


class Sweeps:
    """Which reading of its node a row belongs to: a new one begins when a GPU comes again."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._number: dict[str, int] = {}

    def of(self, node: str, name: str) -> int:
        """The number of the sweep, from 0, of the next row of a node."""
        names = self._seen.setdefault(node, set())
        if name in names:
            names.clear()
            self._number[node] = self._number.get(node, 0) + 1
        names.add(name)
        return self._number.get(node, 0)


def by_host(text: str, file: str) -> dict[str, list[tuple[int, str]]]:
    """The lines of a log with their numbers, by the host that pdsh, clush or srun wrote in front of each; all under
    "" where nobody did. Raises InputError where srun numbered the lines of several tasks, whose hosts nobody knows."""
    lines = list(written(text))
    labels = [_LABEL.match(line) for _, line in lines]
    if not lines or sum(label is not None for label in labels) < _LABELLED * len(lines):
        return {"": lines}
    hosts: dict[str, list[tuple[int, str]]] = {}
    for (number, line), label in zip(lines, labels, strict=True):
        if label is not None:
            hosts.setdefault(label[1], []).append((number, line[label.end() :]))
    if any(host.isdecimal() for host in hosts):
        if len(hosts) > 1:
            raise InputError(
                f"{file} has lines of {len(hosts)} tasks of srun ({', '.join(list(hosts)[:3])}), and nothing says on "
                "which hosts they ran: write a file for each (srun --output=%N.log) and give each its --node"
            )
        return {"": next(iter(hosts.values()))}
    return hosts


def front(text: str) -> tuple[str, str]:
    """What stands in front of a row: a node, as pdsh and srun print it, and a time; each may be empty."""
    text = text.strip()
    match = _NODE.match(text)
    return (match[1], match[2].strip()) if match else ("", text)


def _part(word: str) -> str | None:
    """Which part of a time a word is: "" for the day of the week; None if it is none."""
    low = word.lower()
    if low.isalpha() and low[:3] in _MONTHS:
        return "month"
    if low.isalpha() and low[:3] in _DAYS:
        return ""
    if low in ("am", "pm"):
        return "half"
    if low.isdecimal() and len(low) in (1, 2, 4):
        return "year" if len(low) == 4 else "day"
    if _OF_DAY.match(word):
        return "clock"
    return "zone" if _ZONE.match(word) else None


def _two_digits(clock: str) -> str:
    """A time of day with two digits for the hour, and a point before the fraction."""
    return clock.replace(",", ".").zfill(len(clock) + (clock[1] == ":"))
