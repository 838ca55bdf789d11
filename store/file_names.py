"""What the name of a table's file says: whose rows they are, of when, and what its content adds up to.

A name is `STEM.gHASHES.CRC.parquet`: hashes of its GPUs, and the CRC-32 of the table, the format and the content (see
`check_sum`). A file of a table by days says more: `STEM.WRITTEN.gHASHES.FIRST_LAST.CRC.parquet`, see `FileName`. So a
listing of names is enough to find the rows of a time and a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import re
import zlib
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreError
from .schema import FORMAT

EMPTY = "_schema.parquet"
"""The file of every table's folder that has its columns and no row."""
DELTA_LOG = "_delta_log"
"""The folder in that of a table that has its Delta log (see `table_logs`)."""

_GIVEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STEM = r"[A-Za-z0-9_-][A-Za-z0-9._-]*?"
_GPUS = r"\.g(?P<gpus>(?:[0-9a-f]{4})*)"
_CRC = r"\.(?P<crc>[0-9a-f]{8})\.parquet"
_PLAIN = re.compile(rf"(?P<stem>{_STEM}){_GPUS}{_CRC}")
_TIMES = r"\.(?P<first>-?\d{1,19})_(?P<last>-?\d{1,19})"
_DATED = re.compile(rf"(?P<stem>{_STEM})\.(?P<written>[0-9a-f]{{1,14}}){_GPUS}{_TIMES}{_CRC}")
_MOST_GPUS = 16
DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()


class Bounds(NamedTuple):
    """Between which times (since 1970, inclusive) and of which GPUs (`gpu_hash`; None: any) rows are."""

    first_us: int = -(2**63)
    last_us: int = 2**63 - 1
    gpus: frozenset[int] | None = None

    def overlap(self, bounds: Bounds) -> bool:
        """Whether a row can lie within both."""
        if self.last_us < bounds.first_us or bounds.last_us < self.first_us:
            return False
        return self.gpus is None or bounds.gpus is None or not self.gpus.isdisjoint(bounds.gpus)


EVER = Bounds()
"""All times, and any GPU."""


class FileName(NamedTuple):
    """The parts of a file's name.

    `stem`: who made it; of a sealed journal, the journal's own name. `crc`: as `check_sum` gives it. `dated`: whether
    it is of a table by days. `written_us`: when its last row was written, since 1970. `bounds`: of its rows. A file
    that is not dated has no `written_us`, and any times.
    """

    stem: str
    bounds: Bounds = EVER
    dated: bool = False
    written_us: int = 0
    crc: int = 0


def check(name: str, label: str = "name") -> None:
    """Raise StoreError where a name that a caller gives cannot begin names of files; `label` says what it is."""
    if not _GIVEN.fullmatch(name):
        raise StoreError(f"{name!r} is not a valid {label}: use letters, digits, '.', '_' and '-'")


def gpu_hash(gpu: str | None) -> int:
    """Sixteen bits for a GPU. Two GPUs with the same ones cost a needless look into a file, and no harm."""
    return zlib.crc32(("" if gpu is None else f"={gpu}").encode("utf-8", "surrogatepass")) & 0xFFFF


def gpu_hashes(gpus: Iterable[str | None]) -> frozenset[int]:
    return frozenset(map(gpu_hash, gpus))


def hash_text(hashes: frozenset[int] | None) -> str:
    """Hashes of GPUs as names have them; "" of none, and of so many that a name would become too long."""
    return "".join(f"{gpu_bits:04x}" for gpu_bits in sorted(hashes or ())) if len(hashes or ()) <= _MOST_GPUS else ""


def parse_hashes(text: str) -> frozenset[int] | None:
    """The hashes of GPUs in a name; None where it says nothing."""
    return frozenset(int(text[at : at + 4], 16) for at in range(0, len(text), 4)) or None


@functools.lru_cache(maxsize=65_536)
def parse(name: str) -> FileName | None:
    """What the name of a file says; None for a name that whorl does not give."""
    dated = _DATED.fullmatch(name)
    match = dated or _PLAIN.fullmatch(name)
    if match is None:
        return None
    stem, crc, gpus = match["stem"], int(match["crc"], 16), parse_hashes(match["gpus"])
    if dated is None:
        return FileName(stem, Bounds(gpus=gpus), crc=crc)
    bounds = Bounds(int(dated["first"]), int(dated["last"]), gpus)
    return FileName(stem, bounds, dated=True, written_us=int(dated["written"], 16), crc=crc)


def check_sum(table: str, content: bytes = b"", so_far: int | None = None, *, version: str = str(FORMAT)) -> int:
    """The CRC-32 that the name of a file of a table ends in; `so_far`: that of what stands before `content`.

    It begins with the table and the format, so that a file of another table or format does not pass for one of this.
    """
    return zlib.crc32(content, zlib.crc32(f"whorl {version} {table}".encode()) if so_far is None else so_far)


def compose(table: str, parts: FileName, content: bytes) -> str:
    """The name of a file of a table, with the check sum of its content."""
    hashes = hash_text(parts.bounds.gpus)
    written = f".{max(parts.written_us, 0):x}" if parts.dated else ""
    times = f".{parts.bounds.first_us}_{parts.bounds.last_us}" if parts.dated else ""
    return f"{parts.stem}{written}.g{hashes}{times}.{check_sum(table, content):08x}.parquet"


def of_stem(names: Iterable[str], stem: str) -> list[str]:
    """Those names of files that `stem` made."""
    begin = f"{stem}."  # asked first: a fleet has ten thousands of names in a folder
    return [
        name
        for name in names
        if name.startswith(begin) and (file_name := parse(name)) is not None and file_name.stem == stem
    ]


def may_hold(name: str, bounds: Bounds) -> bool:
    """Whether a file can hold a row within the bounds, by its name. A strange name may."""
    if bounds is not EVER:  # most names of a folder are of another time: to parse one takes ten times as long
        try:
            first, _, last = name.rsplit(".", 3)[-3].partition("_")
            if int(last) < bounds.first_us or bounds.last_us < int(first):
                return False
        except (IndexError, ValueError):
            pass  # it says no times
    file_name = parse(name)
    return file_name is None or file_name.bounds.overlap(bounds)


def by_day(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Files of a table by days, by the folder of their day."""
    days: dict[str, list[Path]] = {}
    for path in paths:
        days.setdefault(path.parent.name, []).append(path)
    return days


def bounds_of_day(folder: str) -> Bounds:
    """The bounds of what the folder of a day, `day=YYYY-MM-DD`, can hold."""
    number = day_number(folder)
    return EVER if number is None else Bounds(number * DAY_US, (number + 1) * DAY_US - 1)


@functools.lru_cache(maxsize=4096)
def day_number(folder: str) -> int | None:
    """The days since 1970 of a folder `day=YYYY-MM-DD`; None for another name."""
    text = folder.removeprefix("day=")
    if text == folder or not re.fullmatch(r"-?\d{4,}-\d\d-\d\d", text):
        return None
    with contextlib.suppress(ValueError):  # no such day, or none of the years 1 to 9999
        return date.fromisoformat(text).toordinal() - _EPOCH
    import numpy as np  # takes longer to load than a query

    try:
        return int(np.datetime64(text, "D").astype("int64"))
    except ValueError:
        return None


def day_folder(number: int) -> str:
    """The folder of a day, from the days since 1970."""
    import numpy as np

    return f"day={np.datetime64(number, 'D')}"
