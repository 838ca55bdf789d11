"""Keep telemetry at full rate for a while, and one row a minute of older telemetry.

A minute keeps its number of rows; the lowest, mean and highest value of each gauge; the first and the last value of
each counter; and every bit that was set. The minutes of a day replace its rows in one step. Rows that are hardly more
than one a minute stay: as minutes they would take twice the space.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import InputError, StoreError
from . import compaction
from .readers import reading
from .rows import journal_file, placing, replacing, writing
from .rows.replacing import Pace
from .schema import LATE, MINUTES, REPLACED, TELEMETRY, arrow_schema
from .system import files

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

log = logging.getLogger(__name__)

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LONGEST = 100 * 366 * 86_400  # s
_MINUTE = 60 * 10**9
_DAY = 86_400 * 10**9
_SPARSE = 1.5  # rows a minute; one row of a minute takes as much space as two or three rows


@dataclass
class Pruned:
    """What pruning did or would do: rows of telemetry, minutes made of them, bytes of files before and after."""

    until: int  # ns: rows before are pruned
    rows: int = 0
    minutes: int = 0
    before: int = 0
    after: int = 0
    days: int = 0
    sparse: int = 0  # rows that stay because they are hardly more than one a minute
    waiting: int = 0  # days left for the next time
    replaced: int = 0  # of these, days whose files have just been replaced, as by compacting
    free_at: float | None = None  # s since 1970: from then on these can be pruned


def seconds(text: str) -> int:
    """A time to keep as `90d`, `12h`, `2w`, in seconds. Raises InputError."""
    found = re.fullmatch(r"\s*(\d+)\s*([mhdw])\s*", text)
    if not found or not 0 < int(found[1]) * _UNITS[found[2]] <= _LONGEST:
        raise InputError(f"{text!r} is not a time to keep: write a number and m, h, d or w, as 90d")
    return int(found[1]) * _UNITS[found[2]]


def configured(root: Path) -> str | None:
    """The time to keep that `store.toml` states: `keep = "90d"`. Raises StoreError."""
    try:
        value = tomllib.loads(files.read_small(root / "store.toml")).get("keep")
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"cannot read {root / 'store.toml'}: {error}") from error
    if value is not None and not isinstance(value, str):
        raise StoreError(f'{root / "store.toml"} states keep = {value!r}; write a text as "90d"')
    return value


def horizon(keep_s: int, now: int) -> int:
    """Rows before this time are pruned (ns): the start of a day if whole days are kept, else of a minute."""
    step = _DAY if keep_s >= 2 * 86_400 else _MINUTE
    return (now - keep_s * 10**9) // step * step


def prune(
    root: Path,
    keep_s: int,
    *,
    pace: Pace | None = None,
    now: int | None = None,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Pruned:
    """Turn telemetry older than `keep_s` seconds into minutes. Raises StoreError, also where another compacts.

    The time is `now` (ns), or by default that of this host or of the file server, whichever is earlier: where one clock
    is years ahead, everything would be pruned.
    """
    pace = pace or replacing.pace_of(root)
    if now is None:
        now = min(time.time_ns(), int(files.clock(root / REPLACED.name) * 1e9))
    until = horizon(keep_s, now)
    done = Pruned(until)
    with contextlib.nullcontext() if dry_run else compaction.lock(root), files.readable(root):
        if not dry_run:
            replacing.recover(root, pace.grace_s, every=True)
            compaction.fold(root, pace, compaction.Done())
        found = reading.snapshot(root)
        by_day: dict[str, list[Path]] = {}
        for path in compaction.sound(TELEMETRY, found.files[TELEMETRY.name]):
            bounds = placing.bounds(path)
            if bounds is not None and (bounds.gpus is None or bounds.first < until):
                by_day.setdefault(path.relative_to(root).parts[1], []).append(path)
        notes = replacing.notes(root)
        now_s = files.clock(root / REPLACED.name)
        free_at = {
            one: replacing.due(note, now_s, pace.grace_s)
            for note in notes.values()
            if note.step == 2
            for one in note.new
        }
        # A row that waits, or that a journal still holds, may correct a row of these files: it would count twice.
        waits = compaction.open_rows(found)
        if not dry_run:  # `fold` would put most late rows in place first
            waits += [bounds for path in found.files[LATE.name] if (bounds := placing.bounds(path)) is not None]
        with_journal = {part.generation for part in journal_file.parts(root)}
        for day, paths in sorted(by_day.items()):
            mine = [bounds for path in paths if (bounds := placing.bounds(path)) is not None]
            noted = {one for path in paths if (one := replacing.key(root, path)) in found.noted}
            if dry_run:  # `recover` would end these first
                noted = {one for one in noted if free_at.get(one, math.inf) > now_s}
            written = any(
                journal_file.live_of(path) and not compaction.is_orphan(path, with_journal, now) for path in paths
            )
            if noted or written or any(rows.overlap(other) for rows in mine for other in waits):
                done.waiting += 1
                if noted and not written and noted <= free_at.keys():
                    done.replaced += 1
                    done.free_at = max([done.free_at or 0.0, *(free_at[one] for one in noted)])
                continue
            progress(day)
            try:
                _prune_day(root, paths, until, pace, done, dry_run)
            except (compaction.DamagedError, FileNotFoundError) as error:
                log.warning("did not change %s: %s", day, error)
                done.waiting += 1
    return done


def _prune_day(root: Path, paths: list[Path], until: int, pace: Pace, done: Pruned, dry_run: bool) -> None:
    import pyarrow as pa

    minutes: list[pa.Table] = []
    rest: list[pa.Table] = []
    old: list[Path] = []
    if sparse := _sparse(paths, until):
        done.sparse += sparse
        return
    for path in paths:
        data = compaction.whole(TELEMETRY, path)
        cold, hot = placing.before(data, until)
        if len(cold):
            old.append(path)
            rest.append(hot)
            minutes.append(as_minutes(cold))
            done.rows += len(cold)
    if not old:
        return
    joined = _rejoined(pa.concat_tables(minutes), old, until)
    kept = pa.concat_tables(rest)
    done.days += 1
    done.minutes += len(joined)
    done.before += sum(path.stat().st_size for path in old)
    if dry_run:
        return
    moves: dict[Path, Path] = {}
    name = f"pruned-{time.time_ns():x}"
    try:
        moves = writing.write_temporary(writing.placed(root, MINUTES, joined, name), stays=True)
        if len(kept):
            moves |= writing.write_temporary(
                writing.placed(root, TELEMETRY, compaction.said(root, kept), name), stays=True
            )
        done.after += sum(path.stat().st_size for path in moves)
        replacing.replace(root, old, moves, pace)
    except OSError as error:
        for temporary in moves:
            files.remove(temporary)
        raise files.failed("write", root, error) from error


def _sparse(paths: list[Path], until: int) -> int:
    """How many rows before `until` the files of a day have, if they are hardly more than one a minute; else 0."""
    import polars as pl

    keys = [keys for path in paths if (keys := placing.keys_in(path)) is not None]
    cold = [cast("pl.DataFrame", pl.from_arrow(placing.before(one, until)[0])) for one in keys]
    rows = sum(map(len, cold))
    if not rows:
        return 0
    minutes = pl.concat(cold).select(_minute(), "cluster", "gpu").n_unique()
    return rows if rows < _SPARSE * minutes else 0


def _rejoined(minutes: pa.Table, paths: list[Path], until: int) -> pa.Table:
    """The minutes of a day. A minute whose rows lie in several files gets one row."""
    import polars as pl
    import pyarrow as pa

    frame = cast("pl.DataFrame", pl.from_arrow(minutes))
    twice = frame.select("cluster", "gpu", "ts").filter(pl.struct("cluster", "gpu", "ts").is_duplicated()).unique()
    if not len(twice):
        return minutes.sort_by([("gpu", "ascending"), ("ts", "ascending")])
    keys = ["cluster", "gpu", "ts"]
    parts = []
    for path in paths:
        rows = cast("pl.DataFrame", pl.from_arrow(placing.before(compaction.whole(TELEMETRY, path), until)[0]))
        inside = rows.with_columns(_minute().alias("minute"))
        parts.append(
            inside.join(twice, left_on=["cluster", "gpu", "minute"], right_on=keys, how="semi", nulls_equal=True)
        )
    once = pl.concat(parts).unique(["cluster", "gpu", "ts"], maintain_order=True)  # a copy may hold rows twice
    again = as_minutes(once.drop("minute").to_arrow())
    others = frame.join(twice, on=keys, how="anti", nulls_equal=True).to_arrow().cast(minutes.schema)
    return pa.concat_tables([others, again]).sort_by([("gpu", "ascending"), ("ts", "ascending")])


def _minute() -> pl.Expr:
    """When the minute of a row began. This also holds before 1970, because integer division rounds down."""
    import polars as pl

    return (pl.col("ts").cast(pl.Int64) // _MINUTE * _MINUTE).cast(pl.Datetime("ns"))


def as_minutes(data: pa.Table) -> pa.Table:
    """Rows of telemetry as rows of `telemetry_minutes`, sorted by gpu and time."""
    import polars as pl

    frame = cast("pl.DataFrame", pl.from_arrow(data)).sort("gpu", "ts", maintain_order=True)
    keys = ["minute", "cluster", "gpu"]
    made = (
        frame.with_columns(_minute().alias("minute"))
        .group_by(keys, maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("n"), *_parts())
    )
    answer = made.rename({"minute": "ts"}).sort("gpu", "ts", "cluster").select(MINUTES.names).to_arrow()
    return answer.cast(arrow_schema(MINUTES.name))


def _parts() -> Iterable[pl.Expr]:
    import polars as pl

    for column in TELEMETRY.columns:
        name, values = column.name, pl.col(column.name)
        match column.kind:
            case "gauge":
                yield values.min().alias(f"{name}_min")
                yield values.mean().alias(f"{name}_mean")
                yield values.max().alias(f"{name}_max")
            case "counter":
                yield values.drop_nulls().first().alias(f"{name}_first")
                yield values.drop_nulls().last().alias(f"{name}_last")
            case "mask":
                yield values.drop_nulls().bitwise_or().alias(name)
            case "text":
                yield values.drop_nulls().max().alias(name)
