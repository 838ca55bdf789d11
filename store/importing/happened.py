"""What a file says that happened to its GPUs, as rows of `events`."""

from __future__ import annotations

import time

import polars as pl

from ..events import TYPED
from ..instants import times_of_ns
from .content import LINE, Sheet
from .options import Options
from .stamps import instant
from .values import Seen

_SHOWN = 10  # sentences in the report; the table has all
_COLUMNS = ("kind", *TYPED, "detail")
_TYPES = {"code": pl.Int64, "n": pl.Int64, "duration_ns": pl.Int64, "before": pl.Float64, "value": pl.Float64}


def of_rows(sheet: Sheet, options: Options, seen: Seen) -> pl.DataFrame:
    """The events of a sheet whose rows have their GPUs: columns of `events`, and `LINE`, the key of the row."""
    read = pl.col("=timestamp").dt.epoch("ns") if "=timestamp" in sheet.frame.columns else pl.lit(None, pl.Int64)
    rows = sheet.frame.select(LINE, "=gpu", "=node", read.alias("read"))
    rows = rows.filter(pl.col(LINE).is_in([key for key, _ in sheet.events]))
    whose = {key: (gpu, node, ts) for key, gpu, node, ts in rows.iter_rows()}
    known = [(key, event) for key, event in sheet.events if key in whose]
    times = [next((ns for ns in (event.ts_ns, whose[key][2]) if ns is not None), None) for key, event in known]
    if None in times:
        sheet.used.add("at")
        otherwise = instant(options.at, options.time_zone, "--at") if options.at is not None else time.time_ns()
        times = [otherwise if ns is None else ns for ns in times]
    columns: dict[str, list[object]] = {name: [getattr(event, name) for _, event in known] for name in _COLUMNS}
    columns["kind"] = [event.kind.value for _, event in known]
    columns |= {
        LINE: [key for key, _ in known],
        "ts": list(times),
        "gpu": [whose[key][0] for key, _ in known],
        "node": [whose[key][1] for key, _ in known],
    }
    schema = dict.fromkeys(columns, pl.String) | _TYPES | {LINE: pl.Int64, "ts": pl.Int64}
    schema = {name: kind for name, kind in schema.items() if name in columns}
    for (_, event), gpu in list(zip(known, columns["gpu"], strict=True))[:_SHOWN]:
        seen.notes.append(f"{gpu}: {event.detail}")
    if len(known) > _SHOWN:
        seen.notes.append(f"{len(known) - _SHOWN} more events are in the table `events`")
    return pl.DataFrame(columns, schema=schema).with_columns(times_of_ns(pl.col("ts")))
