"""Keep telemetry at full rate for a while, and one row a minute of older telemetry.

A minute keeps its number of rows; the lowest, mean and highest value of each gauge; the first and the last value of
each counter; and every bit that was set. The minutes of a day replace its rows in one step. Rows that are hardly more
than one a minute stay: as minutes they would take twice the space.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import InputError, StoreError
from . import compaction, folder, journal_file, keys, parquet, replacing, telemetry_files
from .file_names import EVER, Bounds
from .instants import seconds_of
from .parquet import DamagedError, Verified
from .replacing import Compactor, NewFiles
from .schema import MINUTES, REPLACED, TELEMETRY, arrow_schema
from .system import files
from .telemetry_files import name_of

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

log = logging.getLogger(__name__)

_SHORTEST, _LONGEST = 60, 100 * 366 * 86_400  # s
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
    with contextlib.suppress(InputError):
        span_s = seconds_of(text, plain=False)
        if _SHORTEST <= span_s <= _LONGEST:
            return int(span_s)
    raise InputError(f"{text!r} is not a time to keep: write a number and min, h, d or w, as 90d")


def configured(root: Path) -> str | None:
    """The time to keep that `store.toml` states: `keep = "90d"`. Raises StoreError."""
    try:
        value = folder.stated(root).get("keep")
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {root / folder.ABOUT}: {error}") from error
    if value is not None and not isinstance(value, str):
        raise StoreError(f'{root / folder.ABOUT} states keep = {value!r}; write a text as "90d"')
    return value


def horizon_ns(keep_s: int, now_ns: int) -> int:
    """Rows before this time are pruned: the start of a day if whole days are kept, else of a minute."""
    step = _DAY if keep_s >= 2 * 86_400 else _MINUTE
    return (now_ns - keep_s * 10**9) // step * step


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
    until_ns = horizon_ns(keep_s, now)
    counts: Counter[str] = Counter()
    with files.readable(root), contextlib.ExitStack() as stack:
        compactor = None
        if not dry_run:
            pace = replacing.pace_of(root, offline=offline)
            compactor = stack.enter_context(Compactor(root, pace))
            compactor.most_bytes /= 16  # minutes take little space: rows of some GB go together
        days, counts["waiting"] = _days(root, until_ns // 1000)
        for day, paths in days.items():
            progress(day)
            try:
                counts.update(_prune_day(root, paths, until_ns // 1000, compactor))
            except (DamagedError, FileNotFoundError) as error:
                log.warning("did not change %s: %s", day, error)
                counts["waiting"] += 1
    return Pruned(until_ns, **counts)


def _days(root: Path, until_us: int) -> tuple[dict[str, list[Path]], int]:
    """The days with rows to prune, and their files with those of late rows; and how many days must wait."""

    def skip(path: Path, reason: str) -> None:
        log.warning("did not change %s: %s: %s", path.parent.name, path, reason)

    open_bounds = [
        Bounds(journal.began_us - journal_file.NEAR_US if journal.kind == "now" else EVER.first_us, gpus=journal.gpus)
        for journal in journal_file.journals(root)
        if journal.kind != "rows"
    ]
    days, waiting = {}, 0
    for day_folder, day in compaction.days_of(root, Verified(root), skip, Bounds(last_us=until_us - 1)).items():
        paths = [*day.telemetry, *day.late]
        if day.stays or any(name_of(path).bounds.overlap(bounds) for path in paths for bounds in open_bounds):
            waiting += 1
        elif day.telemetry:
            days[day_folder] = paths
    return days, waiting


def _prune_day(root: Path, paths: list[Path], until_us: int, compactor: Compactor | None) -> Counter[str]:
    """Replace the old rows of a day by minutes, and count; without a compactor only count.

    Raises StoreError, DamagedError, and FileNotFoundError.
    """
    stem, written_ns = f"pruned-{time.time_ns():x}", 1000 * max(name_of(path).written_us for path in paths)
    counts: Counter[str] = Counter()
    with NewFiles() if compactor is None else compactor.replacing(paths) as replacement:
        for number, rows in enumerate(telemetry_files.pieces(TELEMETRY, paths)):
            cold, hot = keys.before(rows, until_us)
            minutes = as_minutes(cold)
            if len(cold) < _SPARSE * len(minutes):
                counts["sparse"] += len(cold)
                minutes, hot = minutes.slice(0, 0), rows
            else:
                counts.update(rows=len(cold), minutes=len(minutes))
            for spec, part, codec in ((MINUTES, minutes, "cold"), (TELEMETRY, hot, "warm")):
                if len(part) and compactor is not None:
                    compactor.beat()
                    name = f"{stem}-{number}"
                    new_files = telemetry_files.files_of(root, spec, part, name, written_ns=written_ns, codec=codec)
                    replacement.add(new_files)
                    counts["after"] += sum(len(content) for _, content in new_files)
        if not counts["rows"]:
            replacement.discard()
            return Counter(sparse=counts["sparse"])
        counts.update(days=1, before=sum(path.stat().st_size for path in paths))
    return counts


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
