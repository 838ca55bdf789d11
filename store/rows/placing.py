"""Find which rows of telemetry are new, and which replace rows that the store has.

The key of a row is (cluster, gpu, ts). Of rows with the same key, the one written last counts, with its NULLs. All
files under `telemetry/` together hold each key once. A row whose key is already there goes to `late/`, with the time
when it was written, and readers use it instead of the other row. So a writer compares its rows with the files that
could hold the same keys. These are files whose times and GPUs, named in their metadata, overlap. Nearly always there
are none.

A file that was written while a journal of the same GPUs was open has the time of writing of every row. In other files,
no row was written later than a row that could contradict it.
"""

from __future__ import annotations

import errno
import functools
import logging
import re
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..schema import TELEMETRY, arrow_schema
from ..system import light
from .arranging import DAY, KEY, gpu_codes, numbers, one, take
from .footers import footer, seen_footer
from .journal_file import WRITTEN

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

log = logging.getLogger(__name__)
T = TypeVar("T")

LOCK = "placing.lock"  # held from the comparison to the rename

_MANY = 500
_TIME, _HASHES = re.compile(rb"-?\d{1,19}"), re.compile(rb"(?:[0-9a-f]{8})*")
_OLDEST = -(2**63)
_MAY_PASS = {errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ETIMEDOUT}
_PAUSES_S = (0.02, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first and the last time of rows (ns), and their GPUs as hashes (None: not known)."""

    first: int
    last: int
    gpus: frozenset[int] | None
    rows: int = 0

    def overlap(self, other: Bounds) -> bool:
        """Whether both could hold the same key."""
        if self.last < other.first or other.last < self.first:
            return False
        return self.gpus is None or other.gpus is None or not self.gpus.isdisjoint(other.gpus)


EVER = (-(2**63), 2**63 - 1)


def hashes(gpus: Iterable[tuple[str | None, str | None]]) -> frozenset[int]:
    """(cluster, gpu) pairs as short hashes.

    If two pairs have the same hash by chance, rows are compared needlessly: no harm.
    """
    return frozenset(zlib.crc32(repr(pair).encode("utf-8", "surrogatepass")) for pair in gpus)


def gpus_in(several: Iterable[pa.Table]) -> frozenset[int]:
    """The GPUs that the rows of some tables are of, as `hashes`."""
    import pyarrow as pa

    found: set[tuple[str | None, str | None]] = set()
    for rows in several:
        if {"cluster", "gpu"} <= set(rows.column_names):
            texts = {
                name: pa.nulls(len(rows), pa.string()) for name in ("cluster", "gpu") if rows[name].type == pa.null()
            }
            named_so = pa.table({"cluster": rows["cluster"], "gpu": rows["gpu"], **texts})
            found |= set(gpu_codes(named_so)[1])  # `group_by` would load 13 MB of libraries into a collector
    return hashes(found)


def as_text(gpus: frozenset[int]) -> str:
    return "".join(f"{one:08x}" for one in sorted(gpus))


_MOST_NAMED, _NAMED = 32, re.compile(r"\.g((?:[0-9a-f]{4})+)(?=\.|$)")


def named(gpus: frozenset[int]) -> str:
    """The end of a file's name that says of which GPUs (as `hashes`) its rows are; "" for more than a few GPUs.

    The job of one node then opens the files of its own GPUs, and not those of thousands of other nodes.
    """
    short = sorted({one & 0xFFFF for one in gpus})
    return "" if not 0 < len(short) <= _MOST_NAMED else ".g" + "".join(f"{one:04x}" for one in short)


def may_name(path: Path, gpus: frozenset[int] | None) -> bool:
    """Whether a file can hold rows of these GPUs, by its name: always, if that names none."""
    found = _NAMED.search(path.name)
    if found is None or gpus is None:
        return True
    return not {int(found[1][at : at + 4], 16) for at in range(0, len(found[1]), 4)}.isdisjoint(
        one & 0xFFFF for one in gpus
    )


@functools.lru_cache(maxsize=4096)
def from_text(text: str) -> frozenset[int]:
    return frozenset(int(text[i : i + 8], 16) for i in range(0, len(text), 8))


def bounds_of(data: pa.Table) -> Bounds:
    """The bounds of rows; there must be at least one row."""
    ts = numbers(data["ts"])
    ends = ends_of_gpus(data)
    if len(ends) > _MANY:  # not sorted: a GPU has many runs of rows
        gpus: Iterable[tuple[str | None, str | None]] = gpu_codes(data)[1]
    else:
        some = take(data.select(["cluster", "gpu"]), ends)
        gpus = set(zip(some["cluster"].to_pylist(), some["gpu"].to_pylist(), strict=True))
    return Bounds(int(ts.min()), int(ts.max()), hashes(gpus), len(data))


def union(several: Sequence[Bounds]) -> Bounds:
    """Bounds that hold all of these; there must be at least one."""
    gpus = [one.gpus for one in several if one.gpus is not None]
    known = frozenset[int]().union(*gpus) if len(gpus) == len(several) else None
    return Bounds(min(b.first for b in several), max(b.last for b in several), known, sum(b.rows for b in several))


def ends_of_gpus(data: pa.Table) -> NDArray[np.int64]:
    """The last row of each run of rows with one (cluster, gpu).

    Comparing neighbours is quicker than coding all rows.
    """
    import numpy as np
    import pyarrow as pa

    yes = pa.scalar(True, pa.bool_())  # for a bare True, pyarrow would look for dateutil on the disk every time
    differs = np.zeros(max(len(data) - 1, 0), bool)
    for name in ("cluster", "gpu"):
        column = one(data[name])
        this, following = column.slice(0, len(differs)), column.slice(1)
        unlike = light.call("coalesce", light.call("not_equal", this, following), yes)  # NULL beside anything
        if column.null_count:
            both = light.call("and", light.call("is_null", this), light.call("is_null", following))
            unlike = light.call("and_not", unlike, both)
        differs |= unlike.to_numpy(zero_copy_only=False)
    return np.append(np.flatnonzero(differs), len(data) - 1) if len(data) else np.zeros(0, np.int64)


def as_metadata(bounds: Bounds) -> dict[str, str]:
    """Bounds as a file's metadata."""
    gpus = "" if bounds.gpus is None else as_text(bounds.gpus)
    return {"whorl.from": str(bounds.first), "whorl.to": str(bounds.last), "whorl.gpus": gpus}


def bounds(path: Path) -> Bounds | None:
    """The bounds of a file of telemetry, late rows or minutes; None if it has no rows. Raises OSError."""
    import pyarrow as pa

    try:
        found = footer(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException):
        return None  # a torn file: readers leave it out, and say so
    if not found.rows or not readable(found.about):
        return None
    if b"whorl.from" in found.about and b"whorl.gpus" in found.about:
        first, last, gpus = (found.about[name].decode() for name in (b"whorl.from", b"whorl.to", b"whorl.gpus"))
        return Bounds(int(first), int(last), from_text(gpus), found.rows)
    return Bounds(*EVER, None, found.rows)  # of an earlier whorl


def readable(keys: Mapping[bytes, bytes]) -> bool:
    """Whether the bounds in a file's metadata, if there are any, are undamaged."""
    known = [keys.get(name) for name in (b"whorl.from", b"whorl.to", b"whorl.gpus")]
    first, last, gpus = known
    if first is None or last is None or gpus is None:
        return first is last is gpus is None
    return all(_TIME.fullmatch(time) for time in (first, last)) and _HASHES.fullmatch(gpus) is not None


def rivals(mine: Bounds, paths: Iterable[Path]) -> list[Path]:
    """The files that could hold a key of these rows. Raises FileNotFoundError if a file was replaced by others."""
    found = []
    for path in paths:
        if not may_name(path, mine.gpus) or _ended(path, mine.first):  # nearly all
            continue
        theirs = bounds(path)
        if theirs is not None and mine.overlap(theirs):
            found.append(path)
    return found


def _ended(path: Path, first: int) -> bool:
    """Whether a file says that its last row is before a time. What was read of it before counts, even if it is gone."""
    import pyarrow as pa

    try:
        last = _patiently(seen_footer, path).about.get(b"whorl.to", b"")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException):
        return True  # as in `bounds`
    return _TIME.fullmatch(last) is not None and int(last) < first


def _patiently(read: Callable[..., T], path: Path, *rest: Any) -> T:
    """What `read` gives of a file. An error of the disk that may pass is waited for: rows that are not compared with
    those of the file would be stored twice."""
    for pause_s in _PAUSES_S:
        try:
            return read(path, *rest)
        except OSError as error:
            if error.errno not in _MAY_PASS:
                raise
            time.sleep(pause_s)
    return read(path, *rest)


def rivals_by_gpu(data: pa.Table, paths: Iterable[Path]) -> list[Path]:
    """The files that could hold a key of these rows: as `rivals`, by the times of each GPU.

    The rows of a thousand journals overlap with a file of each, and yet no row with a file of its own GPU.
    """
    import numpy as np

    codes, pairs = gpu_codes(data)
    ts = numbers(data["ts"])
    first, last = np.full(len(pairs), EVER[1]), np.full(len(pairs), EVER[0])
    np.minimum.at(first, codes, ts)
    np.maximum.at(last, codes, ts)
    spans: dict[int, list[tuple[int, int]]] = {}
    for pair, begin, end in zip(pairs, first.tolist(), last.tolist(), strict=True):
        (own,) = hashes([pair])
        spans.setdefault(own, []).append((begin, end))
    ever = Bounds(int(ts.min()), int(ts.max()), None)
    found = []
    for path in rivals(ever, paths):
        theirs = bounds(path)
        if theirs is None:
            continue
        near = [span for gpu in theirs.gpus or () for span in spans.get(gpu, ())]
        if theirs.gpus is None or any(begin <= theirs.last and theirs.first <= end for begin, end in near):
            found.append(path)
    return found


def keys_in(path: Path) -> pa.Table | None:
    """The keys of a file, and when its rows were written (NULL if it does not say).

    None if the file cannot be read: one damaged file must not stop new rows from being stored. Raises
    FileNotFoundError.
    """
    import pyarrow as pa

    schema = arrow_schema(TELEMETRY.name)
    try:
        data = _patiently(light.read, path, [*KEY, WRITTEN])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        log.warning("rows are not compared with those in %s: %s", path, str(error).splitlines()[0])
        return None
    if any(name in data.column_names and data[name].type != schema.field(name).type for name in KEY):
        return None  # not of whorl: readers leave it out, and say so
    columns = [
        data[name] if name in data.column_names else pa.nulls(len(data), schema.field(name).type) for name in KEY
    ]
    written = data[WRITTEN] if WRITTEN in data.column_names else pa.nulls(len(data), pa.int64())
    return pa.table([*columns, written], names=[*KEY, WRITTEN])


def resolve(data: pa.Table, others: Iterable[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """Split rows, which have the column `written`, into new rows and rows that replace rows of `others`.

    `data` holds whole rows in any order; `others` holds keys and `written`. Rows that `others` supersede are left out.
    """
    import numpy as np

    data = newest(data)
    first, last = _span(data)
    near = [part for part in (_between(other, first, last) for other in others) if len(part)]
    if not near or not len(data):
        return data, data.slice(0, 0)
    group, mine = _groups([data.select([*KEY, WRITTEN]), *near])
    written = np.concatenate([_when(part) for part in [data, *near]])
    known = np.full(int(group.max()) + 1, False)
    latest = np.full(len(known), _OLDEST)
    known[group[mine:]] = True
    np.maximum.at(latest, group[mine:], written[mine:])
    contested = known[group[:mine]]
    wins = written[:mine] >= latest[group[:mine]]
    if not contested.any():
        return data, data.slice(0, 0)
    return take(data, np.flatnonzero(~contested)), take(data, np.flatnonzero(contested & wins))


def newest(data: pa.Table) -> pa.Table:
    """For each key the row that was written last, sorted by gpu and time."""
    import numpy as np

    if len(data) < 2:
        return data
    codes, _ = gpu_codes(data)
    ts = numbers(data["ts"])
    if np.all((codes[1:] > codes[:-1]) | ((codes[1:] == codes[:-1]) & (ts[1:] > ts[:-1]))):
        return data  # as it is, which also takes no memory
    order = np.lexsort((_when(data), ts, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(ts[order]) == 0)
    return take(data, order[np.append(~same, True)])


def only(data: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows whose key is among `keys`."""
    import numpy as np

    outside = np.zeros(len(data), bool)
    outside[without(data, keys)] = True
    return take(data, np.flatnonzero(~outside))


def without(data: pa.Table, keys: pa.Table) -> NDArray[np.int64]:
    """The positions of the rows whose key is not among `keys`."""
    import numpy as np

    if not len(keys) or not len(data):
        return np.arange(len(data))
    group, mine = _groups([data.select(KEY), keys.select(KEY)])
    known = np.full(int(group.max()) + 1, False)
    known[group[mine:]] = True
    return np.flatnonzero(~known[group[:mine]])


def _groups(parts: list[pa.Table]) -> tuple[NDArray[np.int64], int]:
    """The number of the key of every row of all parts, and how many rows the first part has."""
    import numpy as np
    import pyarrow as pa

    keys = pa.concat_tables([part.select(KEY) for part in parts])
    codes, _ = gpu_codes(keys)
    ts = numbers(keys["ts"])
    order = np.lexsort((ts, codes))
    begins = np.append(True, (np.diff(codes[order]) != 0) | (np.diff(ts[order]) != 0))
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(begins) - 1
    return group, len(parts[0])


def _when(data: pa.Table) -> NDArray[np.int64]:
    import pyarrow as pa

    written = one(data[WRITTEN])
    if written.null_count:
        written = light.call("coalesce", written, pa.scalar(int(_OLDEST), pa.int64()))
    return written.to_numpy()  # type: ignore[no-any-return]


def last_written(data: pa.Table) -> int:
    """When the latest of these rows was written; the earliest possible time if no row says."""
    return int(_when(data).max())


def _span(data: pa.Table) -> tuple[int, int]:
    if not len(data):
        return 0, -1
    ts = numbers(data["ts"])
    return int(ts.min()), int(ts.max())


def _between(data: pa.Table, first: int, last: int) -> pa.Table:
    import numpy as np

    ts = numbers(data["ts"])
    inside = (ts >= first) & (ts <= last)
    return data if inside.all() else take(data, np.flatnonzero(inside))


def before(data: pa.Table, until: int) -> tuple[pa.Table, pa.Table]:
    """Split rows: those before a time (ns), and the others."""
    import numpy as np

    early = numbers(data["ts"]) < until
    return take(data, np.flatnonzero(early)), take(data, np.flatnonzero(~early))


def with_written(data: pa.Table, written: int) -> pa.Table:
    """Rows that were all written at one time."""

    import numpy as np

    return data.append_column(WRITTEN, light.integers(np.full(len(data), written, np.int64)))


def last_rows(data: pa.Table) -> pa.Table:
    """The last row of each GPU; the rows are sorted by gpu and time, and each key occurs once.

    A row that lies ahead (see `ahead`) is one only where its GPU has no other.
    """
    import numpy as np

    ends, near = ends_of_gpus(data), numbers(data["ts"]) <= ahead()
    if not near.all():
        begins = np.append(0, ends[:-1] + 1)
        known = np.add.reduceat(near, begins, dtype=np.int64)
        ends = np.where(known > 0, begins + known - 1, ends)
    return take(data, ends)


def ahead() -> int:
    """From this time on (ns) a row lies ahead: a clock that was wrong, for example years ahead, has written it."""
    return time.time_ns() + DAY
