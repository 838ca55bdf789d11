"""What telemetry says of the time of runs, made in parts: some GPUs and some days each, here or on other machines.

A run belongs to the part in which it began, and all of its readings are read there. So a figure of a run is made in one
place, and to put parts together is to write one below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from ...store.file_names import DAY_US, Bounds, gpu_hash, gpu_hashes, parse
from ...store.instants import date_of_ns
from ...store.manifest import gpus_of
from ...store.metrics import UNTRUSTED_POWER
from ...store.schema import arrow_schema
from ...store.views import FIGURES, WINDOW
from ...store.windows import figures, readings
from ..engines import HERE, Coverage, Engine, PartFailure, opened
from .sittings import Ints

if TYPE_CHECKING:
    import pyarrow as pa

    from ...store import Store
    from ...store.snapshot import Rows

READINGS = 1_500_000
"""Of a part, about."""
TRUSTED = ~pl.col("quality").fill_null("").str.contains("|".join(UNTRUSTED_POWER))
"""Of readings: whether their power is a measurement."""
_EVER = Bounds()
_FIGURES = {
    column.name: {"BIGINT": pl.Int64(), "DOUBLE": pl.Float64(), "VARCHAR": pl.String()}[column.type]
    for column in FIGURES
}
_RUN = ("run_id", "cluster", "campaign", "workload", "gpu", "job_id", "began", "ended", "status")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class GpuDays:
    """Some days of a store, of some GPUs of a cluster or (None) of all GPUs; from `since_us` to before `until_us`."""

    root: str
    since_us: int
    until_us: int
    cluster: str | None = None
    gpus: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """For people."""
        ends = [] if self.since_us == _EVER.first_us else [f"from {_day(self.since_us)}"]
        ends += [] if self.until_us == _EVER.last_us else [f"to {_day(self.until_us - 1)}"]
        return ", ".join([" ".join(ends) or "all days", *([] if self.gpus is None else [_range(self.gpus)])])

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.since_us, self.until_us - 1, None if self.gpus is None else gpu_hashes(self.gpus))


@dataclass(frozen=True)
class PartRows:
    """What a part gives, and which files of it cannot be read."""

    rows: pl.DataFrame
    left_out: str | None = None
    """The files, with the reasons; None where all were read."""
    unread: tuple[int, ...] = ()
    """The windows that have no rows for it."""


def reasons_of(damaged: Mapping[Path, str]) -> str | None:
    """Of `PartRows.left_out`."""
    return "; ".join(f"{path}: {reason}" for path, reason in damaged.items()) or None


@dataclass(frozen=True)
class WindowPart:
    """Windows of some GPUs that began within some days. `windows` has the columns `store.views.WINDOW`."""

    root: str
    windows: pa.Table

    @property
    def name(self) -> str:
        """For people."""
        began = self.windows["began"].cast("int64").to_numpy()
        ends = f"runs from {_day(began.min())} to {_day(began.max())}"
        return f"{ends}, {_range(self.windows['gpu'].to_pylist())}"

    def whole(self, read: Callable[[Rows], pl.DataFrame]) -> PartRows:
        """What `read` makes of the telemetry of these windows: rows with `window`, its row in `windows`.

        A window that may have readings in a file that is damaged has no rows. Raises StoreError.
        """
        began, until = (self.windows[name].cast("int64").to_numpy() for name in ("began", "until"))
        gpus = self.windows["gpu"].to_pylist()
        within = Bounds(int(began.min()), int(until.max()) - 1, gpu_hashes(set(gpus)))
        store = opened(self.root)
        rows, damaged = store.read("telemetry", read, within), store.left_out("telemetry", within)
        unread = np.zeros(len(began), bool)
        for path in damaged:
            stated = parse(path.name)
            times, hashes = _EVER if stated is None else stated.bounds, gpus_of(path)
            has_gpu = [hashes is None or gpu_hash(gpu) in hashes for gpu in gpus]
            unread |= (began <= times.last_us) & (until > times.first_us) & has_gpu
        windows = np.flatnonzero(unread)
        rows = rows.filter(~pl.col("window").is_in(windows)) if len(windows) else rows
        return PartRows(rows, reasons_of(damaged) if len(windows) else None, tuple(windows.tolist()))

    def readings(self, columns: Mapping[str, pl.Expr], only: pl.Expr) -> PartRows:
        """The readings in the windows that `only` holds for, in no order: `window` (its row), and expressions of
        columns of telemetry by name. Readings that have none of these columns are left out, too. What is not needed is
        dropped row group by row group."""
        sources = sorted({name for column in (only, *columns.values()) for name in column.meta.root_names()})
        kinds = cast("pl.DataFrame", pl.from_arrow(arrow_schema("telemetry").empty_table().select(sources))).schema
        selected = [pl.col("window"), *(column.alias(name) for name, column in columns.items())]
        nothing = pl.DataFrame(schema={"window": pl.UInt32, **kinds}).select(selected)

        def read_rows(rows: Rows) -> pl.DataFrame:
            pieces = [nothing]
            for batch, window, row in readings(rows, self.windows, sources):
                names = [name for name in sources if name in batch.schema.names]
                if not names or not len(row):
                    continue
                piece = cast("pl.DataFrame", pl.from_arrow(batch.select(names)))
                piece = piece if len(row) == len(batch) and (row[1:] > row[:-1]).all() else piece[row]
                absent = [pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in names]
                piece = piece.with_columns(pl.Series("window", window.astype(np.uint32)), *absent)
                pieces.append(piece.cast(kinds).filter(only).select(selected))
            return pl.concat(pieces)

        return self.whole(read_rows) if len(self.windows) else PartRows(nothing)


def _day(at_us: int) -> str:
    return f"{date_of_ns(int(at_us) * 1000):%Y-%m-%d}"


def _range(gpus: Sequence[str]) -> str:
    first, last = min(gpus), max(gpus)
    return f"GPU {first}" if first == last else f"GPUs {first} to {last}"


# -- parts ----------------------------------------------------------------------------------------------------


def made(
    store: Store, engine: Engine, function: Callable[[Any], PartRows], parts: Sequence[Any],
    progress: Progress | None = None,
) -> tuple[list[PartRows | None], Coverage]:  # fmt: skip
    """What each part gives, in their order, None where it failed; and what that covers. A part without the rows of a
    file counts as a failure, too."""
    engine.require(store)
    results: list[PartRows | None] = []
    failures = []
    for part, result in zip(
        parts, engine.map(function, parts, name=lambda part: str(part.name), progress=progress), strict=True
    ):
        results.append(None if isinstance(result, PartFailure) else result)
        if isinstance(result, PartFailure):
            failures.append(result)
        elif result.left_out is not None:
            failures.append(PartFailure(part.name, result.left_out))
    return results, Coverage(len(parts), tuple(failures))


def gpu_days(
    store: Store, within: tuple[int, int] | None = None, *, cluster: str | None = None,
    gpus: Sequence[str] | None = None, most: int | None = None,
) -> list[GpuDays]:  # fmt: skip
    """Parts of the telemetry of a store, those of a day after those of the days before. `within`: two times, us UTC;
    `gpus`: only these, in their order; `most`: readings of a part, about. Raises StoreError."""
    most, root = most or READINGS, str(store.root.absolute())
    since_us, until_us = within or (_EVER.first_us, _EVER.last_us)
    starts, rows = _spans(store, Bounds(since_us, until_us - 1, None if gpus is None else gpu_hashes(gpus)), most)
    parts = []
    for start_us, end_us, n in zip(starts, [*starts[1:], _EVER.last_us], rows, strict=True):
        times = max(since_us, start_us), min(until_us, end_us)
        if gpus is None:
            parts.append(GpuDays(root, *times))
            continue
        edges = np.linspace(0, len(gpus), _pieces(n, len(gpus), most) + 1).round().astype(int).tolist()
        parts += [GpuDays(root, *times, cluster, tuple(gpus[a:b])) for a, b in pairwise(edges)]
    return parts


def arrow_of(windows: pl.DataFrame) -> pa.Table:
    """Windows as `WindowPart` has them."""
    return windows.select(*WINDOW).to_arrow(compat_level=pl.CompatLevel.oldest())


def up_to_end() -> pl.Expr:
    """`until` of runs of which a reading at their very end counts."""
    return (pl.col("ended") + pl.duration(microseconds=1)).alias("until")


def window_parts(store: Store, windows: pl.DataFrame) -> list[tuple[WindowPart, Ints]]:
    """Parts of windows, and of each the rows that its windows have in `windows`. Raises StoreError.

    `windows` has the columns `store.views.WINDOW`, without NULL but in `cluster` and `ended`.
    """
    if windows.is_empty():
        return []
    first, last = windows["began"].dt.epoch("us").min(), windows["until"].dt.epoch("us").max()
    hashes = gpu_hashes(windows["gpu"].unique())
    starts, rows = _spans(store, Bounds(cast("int", first), cast("int", last) - 1, hashes), READINGS)
    span = np.searchsorted(starts, windows["began"].dt.epoch("us").to_numpy(), "right") - 1
    numbered = windows.select(pl.col("gpu").rank("dense"), pl.Series("span", span)).with_row_index("row")
    place = pl.col("gpu").rank("dense").over("span") - 1
    numbered = numbered.with_columns(place.alias("place"), pl.col("gpu").n_unique().over("span").alias("gpus"))
    parts = []
    for (number,), of_span in numbered.sort("span", "gpu", "row").group_by("span", maintain_order=True):
        gpus = int(of_span["gpus"][0])
        piece = pl.col("place") * _pieces(rows[cast("int", number)], gpus, READINGS) // gpus
        for _, of_part in of_span.group_by(piece, maintain_order=True):
            chosen = of_part["row"].to_numpy().astype(np.int64)
            parts.append((WindowPart(str(store.root.absolute()), arrow_of(windows[chosen])), chosen))
    return parts


def _pieces(rows: int, gpus: int, most: int) -> int:
    return max(1, min(-(-rows // most), gpus))


def _spans(store: Store, within: Bounds, most: int) -> tuple[list[int], list[int]]:
    """Times (us UTC) at which spans of days begin that have so many readings at most, or are a day, and about how many
    they have. The first begins before all times."""
    starts, rows = [_EVER.first_us], [0]
    for day, n in store.readings_by_day(within).items():
        if rows[-1] and rows[-1] + n > most:
            starts.append(day * DAY_US)
            rows.append(0)
        rows[-1] += n
    return starts, rows


# -- windows of runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunWindows:
    """What telemetry says of the time of runs."""

    rows: pl.DataFrame
    """A row for each run: the columns of the view `run_windows`. `n` is None where its part could not be read."""
    coverage: Coverage


def windows_of_runs(
    store: Store, *, cluster: str | None = None, since: datetime | None = None, until: datetime | None = None,
    engine: Engine = HERE, progress: Progress | None = None,
) -> RunWindows:  # fmt: skip
    """The view `run_windows`, made in parts: figures of power, energy, clock and temperature of each run.

    Only runs of a cluster, or that began from `since` to before `until` (UTC). Raises StoreError, EngineError.
    """
    runs = store.scan("runs").filter(pl.all_horizontal(pl.col("gpu", "began", "ended").is_not_null())).select(_RUN)
    runs = runs if cluster is None else runs.filter(pl.col("cluster") == cluster)
    runs = runs if since is None else runs.filter(pl.col("began") >= since)
    runs = runs if until is None else runs.filter(pl.col("began") < until)
    rows = store.collect(runs.sort("cluster", "gpu", "began", "run_id", nulls_last=True))
    parts = window_parts(store, rows.select(*(column for column in WINDOW if column != "until"), until="ended"))
    results, coverage = made(store, engine, _figures, [part for part, _ in parts], progress)
    pieces = [pl.DataFrame(schema={"row": pl.Int64, **_FIGURES})]
    for (_, chosen), result in zip(parts, results, strict=True):
        if result is not None:
            row = pl.Series("row", chosen).gather(result.rows["window"])
            pieces.append(result.rows.select(row, *_FIGURES))
    order = pl.DataFrame({"row": np.arange(rows.height)})
    of_runs = order.join(pl.concat(pieces), on="row", how="left", maintain_order="left")
    return RunWindows(rows.hstack(of_runs.drop("row")), coverage)


def _figures(part: WindowPart) -> PartRows:
    """The figures of the windows of a part."""

    def read_figures(rows: Rows) -> pl.DataFrame:
        of_windows = cast("pl.Series", pl.from_arrow(figures(rows, part.windows)))
        return of_windows.struct.unnest().with_row_index("window")

    return part.whole(read_figures)
