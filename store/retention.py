"""Keep telemetry at full rate for a while, and one row a minute of older telemetry.

A minute keeps its number of rows; the lowest, mean and highest value of each gauge; the first and the last value of
each counter; and every bit that was set. The minutes of a day replace its rows in one step. Rows that are hardly more
than one a minute stay: as minutes they would take twice the space.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import InputError, StoreError
from . import compaction, file_names, journal_file, keys, parquet, replacing, snapshot, telemetry_files
from .file_names import Bounds
from .parquet import Verified
from .replacing import Compactor
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
    waiting: int = 0  # days left for the next time: an open journal has or corrects rows of them


def seconds(text: str) -> int:
    """A time to keep as `90d`, `12h`, `2w`, in seconds. Raises InputError."""
    match = re.fullmatch(r"\s*(\d+)\s*([mhdw])\s*", text)
    if not match or not 0 < int(match[1]) * _UNITS[match[2]] <= _LONGEST:
        raise InputError(f"{text!r} is not a time to keep: write a number and m, h, d or w, as 90d")
    return int(match[1]) * _UNITS[match[2]]


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
    offline: bool = False,
    now: int | None = None,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Pruned:
    """Turn telemetry older than `keep_s` seconds into minutes. Raises StoreError, also where another compacts.

    The time is `now` (ns), or by default that of this host or of the file server, whichever is earlier: where one clock
    is years ahead, everything would be pruned.
    """
    if now is None:
        now = min(time.time_ns(), int(files.clock(root / REPLACED.name) * 1e9))
    done = Pruned(horizon(keep_s, now))
    with files.readable(root):
        if dry_run:
            for day in _days(root, done):
                _prune_day(root, day, done)
            return done
        with Compactor(root, replacing.pace_of(root, offline=offline)) as compactor:
            compactor.tidy()
            for day in _days(root, done):
                compactor.beat()
                progress(day.name)
                _prune_day(root, day, done, compactor)
    return done


@dataclass
class _Day:
    """The files of a day that has rows to prune: of telemetry, and those with rows that take the place of others."""

    name: str
    telemetry: list[Path]
    late: list[Path]


def _days(root: Path, done: Pruned) -> list[_Day]:
    """The days with rows before `done.until`; those that must wait are counted."""
    until = done.until // 1000
    hidden = replacing.newest(root).hidden
    unsealed = {journal_name.stem for journal_name in journal_file.journals(root)}
    verified, days = Verified(root), dict[str, _Day]()
    damaged: set[str] = set()

    def skip(path: Path, reason: str) -> None:
        log.warning("did not change %s: %s: %s", path.parent.name, path, reason)
        damaged.add(path.parent.name)

    for spec in (TELEMETRY, LATE):
        paths = snapshot.visible(root, spec, hidden, unsealed, Bounds(last=until - 1))
        for path in snapshot.sound(spec, paths, verified, skip):
            day = days.setdefault(path.parent.name, _Day(path.parent.name, [], []))
            (day.telemetry if spec == TELEMETRY else day.late).append(path)
    oldest = telemetry_files.oldest_journal(root)
    live = _live_bounds(root)
    ready = []
    for name, day in sorted(days.items()):
        paths = [*day.telemetry, *day.late]
        of_journal = any(file_names.may_hold(path.name, bounds) for path in paths for bounds in live)
        if name in damaged or of_journal or any(telemetry_files.blocked(path, oldest) for path in paths):
            done.waiting += 1
        elif day.telemetry:
            ready.append(day)
    return ready


def _live_bounds(root: Path) -> list[Bounds]:
    """The bounds of the readings in each open journal."""
    bounds = []
    for journal_name in journal_file.journals(root):
        if journal_name.kind != "rows":
            with contextlib.suppress(OSError, ValueError):  # readers leave it out, and say so
                rows = journal_file.read(journal_name.path).telemetry
                bounds += [keys.bounds_of(rows)] if rows is not None else []
    return bounds


def _prune_day(root: Path, day: _Day, done: Pruned, compactor: Compactor | None = None) -> None:
    try:
        rows = compaction.joined([*day.telemetry, *day.late])
    except (compaction.DamagedError, FileNotFoundError) as error:
        log.warning("did not change %s: %s", day.name, error)
        done.waiting += 1
        return
    until = done.until // 1000
    cold, hot = keys.before(rows, until)
    if not len(cold):
        return
    minutes = as_minutes(cold)
    if len(cold) < _SPARSE * len(minutes):
        done.sparse += len(cold)
        return
    old = [*day.telemetry, *day.late]
    done.rows += len(cold)
    done.days += 1
    done.minutes += len(minutes)
    done.before += sum(path.stat().st_size for path in old)
    if compactor is None:
        return
    stem = f"pruned-{time.time_ns():x}"
    written = 1000 * max(file_name.written for path in old if (file_name := file_names.parse(path.name)) is not None)
    moves: dict[Path, Path] = {}
    try:
        for spec, part, codec in ((MINUTES, minutes, "cold"), (TELEMETRY, hot, "warm")):
            if len(part):
                name, content = telemetry_files.file_of(spec, part, stem, written, codec=codec)
                path = root / spec.name / day.name / name
                moves[parquet.write(path, content)] = path
                done.after += len(content)
        compactor.replace(old, moves)
    except OSError as error:
        for temporary in moves:
            files.remove(temporary)
        raise files.failed("write", root, error) from error


def as_minutes(rows: pa.Table) -> pa.Table:
    """Rows of telemetry as rows of `telemetry_minutes`, sorted by gpu and time."""
    import polars as pl

    frame = cast("pl.DataFrame", pl.from_arrow(parquet.complete(TELEMETRY, rows))).sort(
        "gpu", "ts", maintain_order=True
    )
    keys = ["minute", "cluster", "gpu"]
    minutes = (
        frame.with_columns(pl.col("ts").dt.truncate("1m").alias("minute"))
        .group_by(keys, maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("n"), *_parts())
    )
    answer = minutes.rename({"minute": "ts"}).sort("gpu", "ts", "cluster").select(MINUTES.names).to_arrow()
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
